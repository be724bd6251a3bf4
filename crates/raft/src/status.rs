//! A member's state at a glance, for operators and tests.

use crate::entry::MemberId;
use crate::log_index::LogIndex;
use crate::raft::Raft;
use crate::state::{HardState, Role, SoftState};
use crate::storage::Storage;
use crate::tracker::{Configuration, ProgressMap};

/// A copy of a member's state.
#[derive(Clone, Debug)]
pub struct Status {
    /// The member.
    pub id: MemberId,
    /// Term, vote and commit index.
    pub hard_state: HardState,
    /// Leader and role.
    pub soft_state: SoftState,
    /// The last entry the state machine has applied.
    pub applied: LogIndex,
    /// Whom this leader is handing over to, or [`NONE`](crate::NONE).
    pub transferee: MemberId,
    /// The configuration in force.
    pub config: Configuration,
    /// A leader's books about the members; empty elsewhere.
    pub progress: ProgressMap,
}

impl Status {
    pub(crate) fn of<S: Storage>(raft: &Raft<S>) -> Self {
        let is_leader = raft.role == Role::Leader;
        Self {
            id: raft.config.id,
            hard_state: raft.hard_state(),
            soft_state: raft.soft_state(),
            applied: raft.log.applied(),
            transferee: raft.transferee,
            config: raft.tracker.config.clone(),
            progress: if is_leader { raft.tracker.progress.clone() } else { ProgressMap::new() },
        }
    }
}
