//! A summary of a member's state, for operators and tests.

use crate::entry::MemberId;
use crate::log_index::LogIndex;
use crate::raft::Raft;
use crate::state::{HardState, Role, SoftState};
use crate::storage::Storage;
use crate::tracker::{Configuration, ProgressMap};

/// A copy of a member's state.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The member's id.
    pub id: MemberId,
    /// The member's term, vote and commit index.
    pub hard_state: HardState,
    /// The known leader and the member's role.
    pub soft_state: SoftState,
    /// Index of the last entry that the state machine has applied.
    pub applied: LogIndex,
    /// The member to which this leader is transferring leadership, or [`NONE`](crate::NONE).
    pub transferee: MemberId,
    /// The configuration in effect.
    pub config: Configuration,
    /// Every member's replication progress if this member leads; otherwise empty.
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
