//! Decides whether a leader announces each commit at once, or only with its next append.
//!
//! A commit that no append follows costs an additional message to each follower, which has to wake up for it. If the next
//! append comes soon, it can carry the commit index instead. A leader defers its notices while commits follow each other
//! quickly: as long as at least one entry is committed in each interval of [`COMMIT_NOTICE_INTERVAL`]. At the end of each
//! interval, it announces its commit index to the followers to which no append has carried the commit index of the
//! beginning of the interval. A period of deferral begins after a commit, so a commit without another one shortly before
//! it is announced at once.
//!
//! The caller must pass [`Event::CommitInterval`](crate::Event::CommitInterval) after each interval in such a period, for
//! which its thread may have to wake up. Therefore a leader whose periods end after one interval tries again only after
//! an increasing number of commits, up to [`COMMITS_MAX`].
//!
//! # Guarantees
//!
//! * A follower learns a commit index at most two intervals later than with notices that are sent at once.
//! * No notice is deferred while a membership change is pending, because a removed member receives no later append, or
//!   if another member has forwarded a request in the last [`QUIET_TICKS`] ticks, because that member's client waits
//!   until the member has applied an entry.

use std::time::Duration;

use quorate_raft::LogIndex;

/// The interval in which another entry must be committed, so that a leader continues to defer its notices.
pub const COMMIT_NOTICE_INTERVAL: Duration = Duration::from_millis(2);

/// The maximum number of commits that are announced at once before a leader tries again to defer notices.
const COMMITS_MAX: u32 = 256;

/// The number of ticks without a forwarded request after which a leader may defer notices.
const QUIET_TICKS: u32 = 10;

/// The state of a leader's commit notices.
#[derive(Debug)]
pub(crate) struct CommitNotices {
    /// The highest commit index that was observed.
    commit: LogIndex,
    period: Option<Period>,
    /// The number of commits to announce at once before the next period.
    at_once: u32,
    /// The value of `at_once` after the last period.
    pause: u32,
    /// Ticks since another member forwarded a request.
    quiet_ticks: u32,
}

/// A period in which notices are deferred.
#[derive(Clone, Copy, Debug)]
struct Period {
    /// The commit index at the beginning of the current interval.
    commit: LogIndex,
    is_first_interval: bool,
}

impl Default for CommitNotices {
    fn default() -> Self {
        Self { commit: LogIndex::ZERO, period: None, at_once: 1, pause: 0, quiet_ticks: 0 }
    }
}

impl CommitNotices {
    /// Returns whether notices are deferred.
    pub(crate) const fn are_deferred(&self) -> bool {
        self.period.is_some()
    }

    pub(crate) fn tick(&mut self) {
        self.quiet_ticks = self.quiet_ticks.saturating_add(1);
    }

    /// Records that another member has forwarded a request.
    pub(crate) const fn note_forwarded(&mut self) {
        self.quiet_ticks = 0;
    }

    /// Records the commit index. `may_defer` is whether this member is a leader with followers and without a pending
    /// membership change.
    pub(crate) fn observe(&mut self, commit: LogIndex, may_defer: bool) {
        if !may_defer || self.quiet_ticks < QUIET_TICKS {
            self.period = None;
        } else if commit > self.commit && self.period.is_none() {
            self.at_once = self.at_once.saturating_sub(1);
            if self.at_once == 0 {
                self.period = Some(Period { commit, is_first_interval: true });
            }
        }
        self.commit = commit;
    }

    /// Ends an interval, and the period if no entry was committed in the interval. Returns the commit index that every
    /// follower must know now.
    pub(crate) fn end_interval(&mut self) -> Option<LogIndex> {
        let period = self.period?;
        if self.commit > period.commit {
            self.period = Some(Period { commit: self.commit, is_first_interval: false });
            return Some(period.commit);
        }
        self.pause =
            if period.is_first_interval { (2 * self.pause).clamp(1, COMMITS_MAX) } else { 0 };
        self.at_once = self.pause.max(1);
        self.period = None;
        Some(period.commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> CommitNotices {
        CommitNotices { quiet_ticks: QUIET_TICKS, ..CommitNotices::default() }
    }

    #[test]
    fn notices_are_deferred_while_each_interval_has_a_commit() {
        let mut notices = quiet();
        for commit in 1..=5 {
            notices.observe(LogIndex(commit), true);
            assert!(notices.are_deferred());
            if commit > 1 {
                notices.end_interval();
            }
        }
        notices.end_interval();
        assert!(!notices.are_deferred());
        notices.observe(LogIndex(5), true);
        assert!(!notices.are_deferred(), "nothing was committed");
        notices.observe(LogIndex(6), true);
        assert!(notices.are_deferred(), "the last period was useful");
    }

    #[test]
    fn separate_commits_are_rarely_followed_by_a_period() {
        let mut notices = quiet();
        let mut periods = 0;
        for commit in 1..=2_000 {
            notices.observe(LogIndex(commit), true);
            periods += usize::from(notices.are_deferred());
            notices.end_interval();
        }
        // After commits 1, 2, 4, …, 256, and then after each 256 commits.
        assert_eq!(periods, 9 + (2_000 - 256) / 256);
    }

    #[test]
    fn a_period_ends_when_another_member_forwards_a_request() {
        let mut notices = quiet();
        notices.observe(LogIndex(1), true);
        notices.note_forwarded();
        notices.observe(LogIndex(2), true);
        assert!(!notices.are_deferred());
        for commit in 3..3 + u64::from(QUIET_TICKS) {
            notices.tick();
            notices.observe(LogIndex(commit), true);
        }
        assert!(notices.are_deferred());
        notices.observe(LogIndex(20), false);
        assert!(!notices.are_deferred());
    }
}
