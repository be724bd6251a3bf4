//! Who leads: waiting for a leader, being sure to be it, and handing the lead over.
//!
//! # Not here
//!
//! Elections (`raft`); what follows from a change of leadership (`housekeeping`, `applier`).

use std::time::{Duration, Instant};

use quorate_raft::{NONE, Role};
use quorate_state::units::MemberId;

use crate::log;
use crate::member::{Member, RequestError};
use crate::standing::Standing;

/// Between two attempts to have the leader do something.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How often a leader that is not among the members is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The leader, as something to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Leader {
    pub(crate) id: u64,
    pub(crate) peer_urls: Vec<String>,
}

impl Standing {
    /// Whether there is no leader, and has been none for so long (an election timeout, here and below) that
    /// it is no mere change of leaders.
    pub(crate) fn misses_leader(&self, patience: Duration) -> bool {
        self.leaderless_since().is_some_and(|since| since.elapsed() >= patience)
    }

    /// Waits for a leader until there has been none for so long. Says whether there is one.
    pub(crate) async fn has_leader_within(&self, patience: Duration) -> bool {
        let Some(since) = self.leaderless_since() else { return true };
        let mut leadership = self.leadership();
        let led = leadership.wait_for(|now| now.leader != NONE);
        matches!(tokio::time::timeout_at((since + patience).into(), led).await, Ok(Ok(_)))
    }
}

impl Member {
    /// Waits until there is a leader, or there has been none for an election timeout.
    ///
    /// A leader whose process has ended is forgotten at once and succeeded within ticks (decision record 0009).
    /// What etcd's followers would meanwhile go on to accept, because they do not know yet, waits for the
    /// successor.
    pub(crate) async fn require_leader(&self) -> Result<(), RequestError> {
        let patience = self.limits().election_timeout;
        let is_led = self.standing().has_leader_within(patience).await;
        if is_led { Ok(()) } else { Err(RequestError::NoLeader) }
    }

    /// Waits until there is a leader that can be asked.
    pub(crate) async fn wait_for_leader(&self, deadline: Instant) -> Result<Leader, RequestError> {
        let mut leadership = self.standing().leadership();
        let found = async {
            loop {
                let led = leadership.wait_for(|now| now.leader != NONE).await;
                let id = led.map_err(|_| RequestError::Stopped)?.leader;
                // A member that is new here may know who leads before it knows the members.
                match self.facts().members.get(MemberId(id)) {
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
    pub(crate) async fn while_leading<T>(
        &self,
        leader: u64,
        asking: impl Future<Output = T>,
    ) -> Option<T> {
        let mut leadership = self.standing().leadership();
        tokio::select! {
            biased;
            answer = asking => Some(answer),
            _ = leadership.wait_for(|now| now.leader != leader) => None,
        }
    }

    /// Whether this member leads, as confirmed by a quorum, in one term from before the call until after
    /// the confirmation.
    pub(crate) async fn confirm_leadership(&self) -> bool {
        let asked = self.standing().moment();
        let leadership = self.standing().leadership();
        let before = *leadership.borrow();
        if before.role != Role::Leader {
            return false;
        }
        if let Err(error) = self.read_barrier().await {
            log::warn!(
                "failed to confirm that this member leads",
                "term" = before.term,
                "error" = error.to_string()
            );
            return false;
        }
        let now = *leadership.borrow();
        let leads = now.role == Role::Leader && now.term == before.term;
        if leads {
            self.standing().note_confirmed(asked);
        }
        leads
    }

    /// Whether this member, which believes that it leads, may be trusted in that: time has passed for it as
    /// it should, so that it would know, or a quorum confirms it.
    pub(crate) async fn leads_for_sure(&self) -> bool {
        !self.standing().may_be_deposed() || self.confirm_leadership().await
    }

    /// Hands the lead over, and waits, as long as the caller does, until this member sees the other one lead.
    pub(crate) async fn move_leader(&self, to: u64) -> Result<(), RequestError> {
        if !self.standing().leads() {
            return Err(RequestError::NotLeader);
        }
        if self.facts().members.get(MemberId(to)).is_none_or(|row| row.is_learner) {
            return Err(RequestError::BadLeaderTransferee);
        }
        let started = Instant::now();
        log::info!(
            "leadership transfer starting",
            "local-member-id" = format!("{:x}", self.id()),
            "current-leader-member-id" = format!("{:x}", self.id()),
            "transferee-member-id" = format!("{to:x}")
        );
        let mut leadership = self.standing().leadership();
        let _place = self.take_task()?;
        self.transfer_leadership(to)?;
        let moved = leadership.wait_for(|now| now.leader == to).await;
        moved.map_err(|_| RequestError::Stopped)?;
        log::info!(
            "leadership transfer finished",
            "local-member-id" = format!("{:x}", self.id()),
            "old-leader-member-id" = format!("{:x}", self.id()),
            "new-leader-member-id" = format!("{to:x}"),
            "took" = started.elapsed()
        );
        Ok(())
    }

    /// Before a stop: a leader with other voters gives the lead to the one that has been connected longest,
    /// so that nobody has to wait for an election. Takes no longer than the request timeout.
    pub(crate) async fn hand_over(&self) {
        let own_id = format!("{:x}", self.id());
        if !self.standing().leads() {
            log::info!(
                "skipped leadership transfer; local server is not leader",
                "local-member-id" = own_id,
                "current-leader-member-id" = format!("{:x}", self.standing().leader())
            );
            return;
        }
        let facts = self.facts();
        let voters: Vec<u64> = facts
            .members
            .iter()
            .filter(|member| !member.is_learner)
            .map(|member| member.id.0)
            .collect();
        if voters.len() < 2 {
            log::info!(
                "skipped leadership transfer for single voting member cluster",
                "local-member-id" = own_id,
                "current-leader-member-id" = own_id
            );
            return;
        }
        let others = voters.into_iter().filter(|id| *id != self.id());
        let connected = others.filter_map(|id| Some((self.peers().active_since(id)?, id)));
        let moved = match connected.min() {
            None => Err(RequestError::Unhealthy),
            Some((_, to)) => {
                let moving =
                    tokio::time::timeout(self.limits().request_timeout, self.move_leader(to));
                moving.await.unwrap_or(Err(RequestError::TimeoutMovingLeader))
            }
        };
        if let Err(error) = moved {
            log::warn!(
                "leadership transfer failed",
                "local-member-id" = own_id,
                "error" = error.to_string()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_node::Leadership;

    /// No test waits for it.
    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(5);
    const LED: Leadership = Leadership { leader: 1, term: 2, role: Role::Follower };
    const LEADERLESS: Leadership = Leadership { leader: NONE, ..LED };

    fn standing() -> Standing {
        let standing = Standing::new(0, 0, LONG);
        standing.set_leadership(LED);
        standing
    }

    #[tokio::test]
    async fn a_leader_that_is_gone_is_missed_after_a_while() {
        let standing = standing();
        assert!(!standing.misses_leader(Duration::ZERO));
        assert!(standing.has_leader_within(Duration::ZERO).await);
        standing.set_leadership(LEADERLESS);
        assert!(!standing.misses_leader(LONG));
        assert!(!standing.has_leader_within(SHORT).await, "the wait has an end");
        assert!(standing.misses_leader(SHORT));
        assert!(!standing.has_leader_within(Duration::ZERO).await, "nothing is left to wait for");
    }

    #[tokio::test]
    async fn who_requires_a_leader_gets_its_successor() {
        let standing = standing();
        standing.set_leadership(LEADERLESS);
        let mut waiting = std::pin::pin!(standing.has_leader_within(LONG));
        assert!(now_or_never(waiting.as_mut()).await.is_none());
        standing.set_leadership(Leadership { leader: 3, term: 3, ..LED });
        assert!(waiting.await);
    }

    /// The outcome, if it is there.
    async fn now_or_never<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut future = Some(future);
        std::future::poll_fn(move |cx| {
            let polled = future.take().expect("polled once").poll(cx);
            std::task::Poll::Ready(match polled {
                std::task::Poll::Ready(outcome) => Some(outcome),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
