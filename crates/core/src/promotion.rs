//! Decides whether a learner has caught up with the leader, so that it can be promoted to a voter.

use quorate_raft::{LogIndex, Role, Status};

/// Why a learner cannot be promoted now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PromotionRefusal {
    /// Only the leader knows how far the learner has caught up.
    #[error("this member does not lead")]
    NotLeader,
    /// The leader does not replicate to a member with this id.
    #[error("the member does not exist")]
    UnknownMember,
    /// The learner lacks more than a tenth of the leader's log.
    #[error("the learner has entries up to index {learner}, and the leader up to index {leader}")]
    NotReady {
        /// The last entry that the learner is known to have.
        learner: LogIndex,
        /// The last entry that the leader has.
        leader: LogIndex,
    },
}

/// Checks that a learner has caught up with the leader: its match index is at least nine tenths of the leader's, as in
/// etcd.
pub fn check_has_caught_up(leader: &Status, learner: u64) -> Result<(), PromotionRefusal> {
    if leader.soft_state.role != Role::Leader {
        return Err(PromotionRefusal::NotLeader);
    }
    let match_of = |id| leader.progress.get(&id).map(|progress| progress.match_index);
    let learner = match_of(learner).ok_or(PromotionRefusal::UnknownMember)?;
    let leader = match_of(leader.id).unwrap_or_default();
    if !is_in_sync(learner, leader) {
        return Err(PromotionRefusal::NotReady { learner, leader });
    }
    Ok(())
}

fn is_in_sync(learner: LogIndex, leader: LogIndex) -> bool {
    u128::from(learner.get()) * 10 >= u128::from(leader.get()) * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learner_is_in_sync_at_nine_tenths_of_the_leaders_log() {
        let is_in_sync = |learner, leader| is_in_sync(LogIndex(learner), LogIndex(leader));
        assert!(is_in_sync(90, 100) && is_in_sync(9, 10) && is_in_sync(0, 0));
        assert!(!is_in_sync(89, 100) && !is_in_sync(0, 1));
        assert!(is_in_sync(u64::MAX, u64::MAX) && !is_in_sync(u64::MAX / 2, u64::MAX));
    }
}
