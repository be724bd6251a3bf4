//! Access to the leader: waiting for a leader, sending requests to it, and confirming that this member leads.
//!
//! # Not here
//!
//! Elections (`raft`), transfer of leadership (`member::Administrator`), and the consequences of a change of leadership
//! (`housekeeping`, `applier`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_raft::{NONE, Role};
use quorate_state::units::MemberId;

use crate::{Handles, MemberInfo, Reader};
use quorate_requests::RequestError;
use quorate_telemetry::log;

/// Pause between two attempts to send a request to the leader.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Interval at which a member looks up the leader again if its member list does not contain the leader yet.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The leader and its peer URLs.
#[derive(Clone, Debug)]
pub struct Leader {
    /// The leader's member id.
    pub id: u64,
    /// The leader's peer URLs.
    pub peer_urls: Vec<String>,
}

/// Waits for the leader, and confirms the leadership of this member.
#[derive(Clone, Debug)]
pub struct LeaderWatch {
    info: Arc<MemberInfo>,
    reader: Arc<Reader>,
}

impl LeaderWatch {
    /// Creates a watch from these handles.
    pub fn new(handles: &Handles) -> Self {
        Self { info: Arc::clone(&handles.info), reader: Arc::clone(&handles.reader) }
    }

    /// Waits until there is a leader with known peer URLs.
    pub async fn wait_for_leader(&self, deadline: Instant) -> Result<Leader, RequestError> {
        let mut leadership = self.info.member_status().leadership();
        let found = async {
            loop {
                let led = leadership.wait_for(|now| now.leader != NONE).await;
                let id = led.map_err(|_| RequestError::Stopped)?.leader;
                // A new member may know the leader's id before it knows the leader's URLs, so the lookup is repeated.
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

    /// Waits for the result of a request to the leader. Returns `None` if the leader stops leading before it has
    /// responded, so that the caller can ask the new leader. A paused leader might never respond.
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

    /// Asks a quorum to confirm that this member leads. Returns true only if this member leads in the same term from
    /// the call until the confirmation. Returns false as soon as this member stops leading in that term.
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
