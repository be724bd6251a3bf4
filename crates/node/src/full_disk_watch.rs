//! Decides when a leader transfers leadership and when it refuses writes because its disk has no space for the backend
//! file.
//!
//! The log can still be written in this state, so a follower can continue for a long time. A leader
//! cannot: when its queue of changes for the backend file is full, it stops applying entries, and
//! all clients' writes wait. So a leader without space offers leadership to one voter after another
//! until one accepts. A member without space does not accept leadership. If no voter accepts, the
//! leader refuses writes (the NOSPACE alarm) until it has space again, is no longer the leader, or
//! can transfer leadership to another voter.
//!
//! # Not here
//!
//! A log whose writes stall (`disk_watch`); a log that cannot grow, which stops the member (`storage::wal`); and
//! raising the alarm, which is an ordinary request by the caller.
//!
//! See decision record 0026.

use std::collections::VecDeque;

use quorate_raft::{MemberId, NONE, Status};

use crate::disk_watch::successor;

/// Number of election timeouts after which a leader that refuses writes offers leadership again to a voter that has
/// declined.
const OFFERED_AGAIN_AFTER: u64 = 30;

/// An action of a leader without space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Transfer leadership to this voter.
    HandOver(MemberId),
    /// Refuse writes, because no other voter can lead.
    RefuseWrites,
    /// Accept writes again.
    TakeWrites,
}

/// Decides when a leader without space transfers leadership and when it refuses writes.
#[derive(Debug)]
pub(crate) struct FullDiskWatch {
    election_ticks: u64,
    is_short: bool,
    /// The voter to which leadership was last offered.
    asked: Option<MemberId>,
    /// Voters that did not accept leadership, in the order in which it was offered to them.
    declined: VecDeque<MemberId>,
    /// Number of consecutive ticks in which there was no voter to offer leadership to.
    ticks_alone: u64,
    refuses_writes: bool,
}

impl FullDiskWatch {
    pub(crate) const fn new(election_ticks: u32) -> Self {
        Self {
            election_ticks: election_ticks as u64,
            is_short: false,
            asked: None,
            declined: VecDeque::new(),
            ticks_alone: 0,
            refuses_writes: false,
        }
    }

    /// Records whether the backend file is waiting for disk space.
    pub(crate) const fn note(&mut self, is_short: bool) {
        self.is_short = is_short;
    }

    /// Returns whether the backend file is waiting for disk space.
    pub(crate) const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Advances one tick. `status` is this member's status if it leads; `transferee` is the voter
    /// to which it is transferring leadership. Returns the leader's next step, if any.
    pub(crate) fn tick(&mut self, status: Option<&Status>, transferee: MemberId) -> Option<Step> {
        let Some(status) = status.filter(|_| self.is_short) else {
            self.asked = None;
            self.declined.clear();
            self.ticks_alone = 0;
            return std::mem::take(&mut self.refuses_writes).then_some(Step::TakeWrites);
        };
        if transferee != NONE {
            return None;
        }
        self.declined.extend(self.asked.take());
        if let Some(to) = successor(status, |id| !self.declined.contains(&id)) {
            self.asked = Some(to);
            self.ticks_alone = 0;
            return Some(Step::HandOver(to));
        }
        self.ticks_alone += 1;
        if self.refuses_writes {
            if self.ticks_alone.is_multiple_of(self.election_ticks * OFFERED_AGAIN_AFTER) {
                self.declined.pop_front();
            }
            return None;
        }
        // A working voter may look inactive, because it may not have answered since the leader last reset the activity
        // flags. So wait for an election timeout before refusing writes.
        let has_others = status.progress.iter().any(|(id, it)| *id != status.id && !it.is_learner);
        if has_others && self.ticks_alone < self.election_ticks {
            return None;
        }
        self.refuses_writes = true;
        Some(Step::RefuseWrites)
    }
}

#[cfg(test)]
mod tests {
    use quorate_raft::{Configuration, HardState, Inflights, LogIndex, Progress, Role, SoftState};

    use super::*;

    const ELECTION_TICKS: u32 = 3;

    /// Returns the status of member 1 as leader. `others` contains each other member and whether it
    /// is active.
    fn leader(others: &[(MemberId, bool)]) -> Status {
        let progress = |is_recently_active| {
            let mut progress = Progress::new(LogIndex(1), Inflights::new(1, 0));
            progress.is_recently_active = is_recently_active;
            progress
        };
        let all = others.iter().copied().chain([(1, true)]);
        Status {
            id: 1,
            hard_state: HardState::default(),
            soft_state: SoftState { role: Role::Leader, leader: 1 },
            applied: LogIndex(0),
            transferee: NONE,
            config: Configuration::default(),
            progress: all.map(|(id, is_active)| (id, progress(is_active))).collect(),
        }
    }

    fn steps(watch: &mut FullDiskWatch, status: &Status, count: usize) -> Vec<Step> {
        (0..count).filter_map(|_| watch.tick(Some(status), NONE)).collect()
    }

    #[test]
    fn leadership_is_offered_to_each_voter_before_writes_are_refused() {
        let (mut watch, status) =
            (FullDiskWatch::new(ELECTION_TICKS), leader(&[(2, true), (3, true)]));
        assert_eq!(steps(&mut watch, &status, 9), [], "the disk has free space");
        watch.note(true);
        assert_eq!(watch.tick(Some(&status), NONE), Some(Step::HandOver(2)));
        assert_eq!(watch.tick(Some(&status), 2), None, "the transfer is in progress");
        assert_eq!(watch.tick(Some(&status), NONE), Some(Step::HandOver(3)));
        assert_eq!(steps(&mut watch, &status, 9), [Step::RefuseWrites]);
        watch.note(false);
        assert_eq!(steps(&mut watch, &status, 9), [Step::TakeWrites]);
    }

    #[test]
    fn leadership_is_offered_to_a_returning_voter_while_writes_are_refused() {
        let mut watch = FullDiskWatch::new(ELECTION_TICKS);
        watch.note(true);
        let silent = leader(&[(2, false)]);
        assert_eq!(steps(&mut watch, &silent, 2), []);
        assert_eq!(steps(&mut watch, &silent, 50), [Step::RefuseWrites]);
        let back = leader(&[(2, true)]);
        assert_eq!(watch.tick(Some(&back), NONE), Some(Step::HandOver(2)));
        assert_eq!(watch.tick(None, NONE), Some(Step::TakeWrites), "the member no longer leads");
    }

    #[test]
    fn leadership_is_offered_again_to_voters_that_have_declined() {
        let (mut watch, status) = (FullDiskWatch::new(ELECTION_TICKS), leader(&[(2, true)]));
        watch.note(true);
        let expected = [Step::HandOver(2), Step::RefuseWrites, Step::HandOver(2)];
        assert_eq!(steps(&mut watch, &status, 100), expected);
    }

    #[test]
    fn a_sole_voter_without_disk_space_refuses_writes_at_once() {
        let mut watch = FullDiskWatch::new(ELECTION_TICKS);
        watch.note(true);
        assert_eq!(watch.tick(Some(&leader(&[])), NONE), Some(Step::RefuseWrites));
    }
}
