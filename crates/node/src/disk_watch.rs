//! Detects a stalled disk and chooses a successor for the leader.
//!
//! In etcd, a leader that cannot write its log continues to send heartbeats, so it keeps its leadership while its disk
//! is stalled, and no request succeeds. Here, once a write has taken longer than an election timeout, a follower does
//! not campaign until the write is done, and a leader transfers leadership to the voter with the longest log. The
//! leader then sends no heartbeats, so that the other members elect a leader even if the transfer message was lost.
//!
//! A leader transfers leadership only if the other members can elect a leader: the other voters that have answered
//! recently and have acknowledged the entries that this member cannot write must form a quorum. Those voters have
//! written the entries, so their disks work. Therefore the leader does not change if all members share one slow disk,
//! or if the cluster has only two members.
//!
//! See decision record 0008.

use quorate_raft::quorum::VoteResult;
use quorate_raft::{LogIndex, MemberId, Role, Status};

/// A change of the disk's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A write is taking too long.
    Stalled,
    /// Writes complete in time again.
    Recovered,
}

/// Monitors the disk by the age of the oldest pending write.
#[derive(Debug)]
pub(crate) struct DiskWatch {
    /// Maximum duration of a write in ticks; `None` disables the check.
    ticks_max: Option<u64>,
    is_stalled: bool,
}

impl DiskWatch {
    pub(crate) const fn new(ticks_max: Option<u64>) -> Self {
        Self { ticks_max, is_stalled: false }
    }

    /// Checks the age of the oldest pending write. If the disk has stalled or recovered since the last check, returns
    /// that change.
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

/// Returns the voter to which a leader transfers leadership: the voter with the longest log among the eligible voters
/// that have answered recently.
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

/// Returns the voter to which a leader transfers leadership because its disk has not written the log up to `stuck`.
/// Only voters that have written the log up to `stuck` are eligible. Returns `None` unless these voters form a quorum.
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
    fn a_stalled_write_and_the_recovery_are_each_reported_once() {
        let mut watch = DiskWatch::new(Some(10));
        let changes = [9, 10, 11, 0, 0].map(|age| watch.look(age));
        assert_eq!(changes, [None, Some(Change::Stalled), None, Some(Change::Recovered), None]);
        assert_eq!(DiskWatch::new(None).look(1000), None);
    }
}
