//! Whether this member's disk lets it take part.
//!
//! A leader whose log cannot be written goes on sending heartbeats: etcd's stays leader while its disk is
//! stuck, and no client gets anything done. Here, a write that has been under way for an election timeout
//! silences the member until it is done. A leader first hands over to the voter that is furthest ahead,
//! and then sends no heartbeats, so that the others elect one of them even if that message was lost. A follower does
//! not stand for election.
//!
//! A leader hands over only where the others can elect: the voters that were heard from lately, and have acknowledged
//! what this member's disk is stuck with, have to be a quorum without it. They have written it, so their disks work.
//! Members that share a slow disk, and clusters of two, keep their leader.
//!
//! See decision record 0008.

use quorate_raft::quorum::VoteResult;
use quorate_raft::{LogIndex, MemberId, Role, Status};

/// What has changed about the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A write takes too long.
    Stalled,
    /// Writes are done in time again.
    Recovered,
}

/// The state of the disk, as far as it shows.
#[derive(Debug)]
pub(crate) struct DiskWatch {
    /// Ticks that a write may take; `None` looks away.
    ticks_max: Option<u64>,
    is_stalled: bool,
}

impl DiskWatch {
    pub(crate) const fn new(ticks_max: Option<u64>) -> Self {
        Self { ticks_max, is_stalled: false }
    }

    /// Looks at the age of the oldest write.
    pub(crate) fn look(&mut self, write_age: u64) -> Option<Change> {
        let is_stalled = self.ticks_max.is_some_and(|ticks_max| write_age >= ticks_max);
        if is_stalled == self.is_stalled {
            return None;
        }
        self.is_stalled = is_stalled;
        Some(if is_stalled { Change::Stalled } else { Change::Recovered })
    }

    pub(crate) const fn is_stalled(&self) -> bool {
        self.is_stalled
    }
}

/// The voter that a leader hands over to: of the eligible ones that were heard from lately, the one with the longest
/// log.
pub(crate) fn successor(
    status: &Status,
    is_eligible: impl Fn(MemberId) -> bool,
) -> Option<MemberId> {
    if status.soft_state.role != Role::Leader {
        return None;
    }
    status
        .progress
        .iter()
        .filter(|(id, progress)| {
            **id != status.id && !progress.is_learner && progress.is_recently_active
        })
        .filter(|(id, _)| is_eligible(**id))
        .max_by_key(|(id, progress)| (progress.match_index, std::cmp::Reverse(**id)))
        .map(|(id, _)| *id)
}

/// The voter that a leader hands over to whose disk has not written the log up to `stuck`: one of those whose disks
/// have. `None` unless they are a quorum.
pub(crate) fn successor_with_disk(status: &Status, stuck: LogIndex) -> Option<MemberId> {
    let is_able = |id: MemberId| {
        let progress = status.progress.get(&id).filter(|_| id != status.id);
        progress.is_some_and(|progress| {
            !progress.is_learner && progress.is_recently_active && progress.match_index >= stuck
        })
    };
    let able = status.config.voters.vote_result(|id| Some(is_able(id)));
    if able == VoteResult::Won { successor(status, is_able) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_write_is_noticed_once_and_its_end_too() {
        let mut watch = DiskWatch::new(Some(10));
        let changes = [9, 10, 11, 0, 0].map(|age| watch.look(age));
        assert_eq!(changes, [None, Some(Change::Stalled), None, Some(Change::Recovered), None]);
        assert_eq!(DiskWatch::new(None).look(1000), None);
    }
}
