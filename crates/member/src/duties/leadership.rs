//! Who leads: waiting for a leader, asking it, and being sure to be it.
//!
//! # Not here
//!
//! Elections (`raft`); handing the lead over (`member::Administrator`); what follows from a change of leadership
//! (`housekeeping`, `applier`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_raft::{NONE, Role};
use quorate_state::units::MemberId;

use crate::{Handles, MemberInfo, Reader, RequestError};
use quorate_telemetry::log;

/// Between two attempts to have the leader do something.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How often a leader that is not among the members is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The leader, as something to be asked.
#[derive(Clone, Debug)]
pub struct Leader {
    /// Which member it is.
    pub id: u64,
    /// Where it is asked.
    pub peer_urls: Vec<String>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct LeaderWatch {
    info: Arc<MemberInfo>,
    reader: Arc<Reader>,
}

impl LeaderWatch {
    /// Of these handles.
    pub fn new(handles: &Handles) -> Self {
        Self { info: Arc::clone(&handles.info), reader: Arc::clone(&handles.reader) }
    }

    /// Waits until there is a leader, or there has been none for an election timeout.
    ///
    /// A leader whose process has ended is forgotten at once and succeeded within ticks (decision record 0009).
    /// What etcd's followers would meanwhile go on to accept, because they do not know yet, waits for the
    /// successor.
    pub async fn require_leader(&self) -> Result<(), RequestError> {
        let patience = self.info.limits().election_timeout;
        let is_led = self.info.member_status().has_leader_within(patience).await;
        if is_led { Ok(()) } else { Err(RequestError::NoLeader) }
    }

    /// Waits until there is a leader that can be asked.
    pub async fn wait_for_leader(&self, deadline: Instant) -> Result<Leader, RequestError> {
        let mut leadership = self.info.member_status().leadership();
        let found = async {
            loop {
                let led = leadership.wait_for(|now| now.leader != NONE).await;
                let id = led.map_err(|_| RequestError::Stopped)?.leader;
                // A member that is new here may know who leads before it knows the members.
                match self.info.facts().members.get(MemberId(id)) {
                    Some(row) => return Ok(Leader { id, peer_urls: row.peer_urls.clone() }),
                    None => tokio::time::sleep(LOOK_AGAIN).await,
                }
            }
        };
        let leader = tokio::time::timeout_at(deadline.into(), found)
            .await
            .unwrap_or(Err(RequestError::NoLeader))?;
        if leader.peer_urls.is_empty() { Err(RequestError::NoLeader) } else { Ok(leader) }
    }

    /// Asks the leader something for as long as it leads. `None` if it ceases to before it has answered: one
    /// that was paused answers nobody, and the next one does.
    pub async fn while_leading<T>(
        &self,
        leader: u64,
        asking: impl Future<Output = T>,
    ) -> Option<T> {
        let mut leadership = self.info.member_status().leadership();
        tokio::select! {
            biased;
            answer = asking => Some(answer),
            _ = leadership.wait_for(|now| now.leader != leader) => None,
        }
    }

    /// Whether this member leads, as confirmed by a quorum, in one term from before the call until after
    /// the confirmation. Does not wait any longer once it has ceased to lead.
    pub async fn confirm_leadership(&self) -> bool {
        let member_status = self.info.member_status();
        let mut leadership = member_status.leadership();
        let before = member_status.state();
        if !before.leads() {
            return false;
        }
        let term = before.leadership.term;
        let confirmed = tokio::select! {
            biased;
            passed = self.reader.read_barrier() => passed,
            _ = leadership.wait_for(|now| now.role != Role::Leader || now.term != term) => return false,
        };
        if let Err(error) = confirmed {
            log::warn!(
                "failed to confirm that this member leads",
                "term" = term.get(),
                "error" = error.to_string()
            );
            return false;
        }
        member_status.state().leads_in(term)
    }
}
