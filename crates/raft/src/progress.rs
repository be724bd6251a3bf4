//! A leader's record of one follower's progress: which entries the follower has, and which may be
//! sent next.
//!
//! ```text
//!            acknowledged an append               needs compacted entries
//!   Probe ───────────────────────────► Replicate ─────────────► Snapshot
//!     ▲  ◄───── refused / unreachable ────┘         (from Probe too)  │
//!     └────────────── snapshot reported, or log reachable again ──────┘
//! ```
//!
//! * **Probe**: the leader does not know where the logs agree. It sends one append per heartbeat to
//!   find out.
//! * **Replicate**: the leader knows where the logs agree. It sends further appends before earlier ones are
//!   acknowledged, within the window of [`Inflights`].
//! * **Snapshot**: the leader is sending a snapshot and sends no entries.
//!
//! # Invariants
//!
//! * `match_index < next_index`.
//! * In Replicate, all entries in `(match_index, next_index)` are in flight. In Snapshot, an
//!   in-flight snapshot covers them.
//! * `pending_snapshot` is zero except in Snapshot; the window is empty except in Replicate.
//!
//! # Not here
//!
//! Sending (`replication`, `snapshot`). This module only records progress.

use std::fmt;

use crate::inflights::Inflights;
use crate::log_index::LogIndex;

/// How a leader sends entries to a follower. The module documentation describes each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressState {
    /// Finds the last index at which the logs agree.
    #[default]
    Probe,
    /// Streams entries.
    Replicate,
    /// Waits until a snapshot is installed.
    Snapshot,
}

impl fmt::Display for ProgressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State{self:?}")
    }
}

/// The leader's record of one member's replication progress. The leader also keeps a record for itself.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Highest index up to which the follower's log is known to equal the leader's log.
    pub match_index: LogIndex,
    /// Index of the first entry of the next append.
    pub next_index: LogIndex,
    /// How the leader sends entries to the follower.
    pub state: ProgressState,
    /// Index of the in-flight snapshot; zero outside [`ProgressState::Snapshot`].
    pub pending_snapshot: LogIndex,
    /// Whether the follower has responded since the leader last checked its quorum.
    pub is_recently_active: bool,
    /// Ticks since the follower's last response, or `u32::MAX` if it has not responded to this leader.
    silent_ticks: u32,
    /// Whether appends wait for the next acknowledgement or heartbeat response.
    pub is_flow_paused: bool,
    /// Whether the member has no vote.
    pub is_learner: bool,
    /// Unacknowledged appends.
    pub inflights: Inflights,
    /// The highest commit index sent to the follower.
    sent_commit: LogIndex,
}

impl Progress {
    /// Creates the progress of a member whose log is unknown and is to be probed from `next_index`.
    #[must_use]
    pub fn new(next_index: LogIndex, inflights: Inflights) -> Self {
        Self {
            match_index: LogIndex::ZERO,
            next_index,
            state: ProgressState::Probe,
            pending_snapshot: LogIndex::ZERO,
            is_recently_active: false,
            silent_ticks: u32::MAX,
            is_flow_paused: false,
            is_learner: false,
            inflights,
            sent_commit: LogIndex::ZERO,
        }
    }

    /// Resets the progress for a new term: the follower's log is unknown, and probing starts after
    /// `last_index`.
    pub(crate) fn reset(&mut self, last_index: LogIndex, is_self: bool) {
        self.enter(ProgressState::Probe);
        self.match_index = if is_self { last_index } else { LogIndex::ZERO };
        self.next_index = last_index + 1;
        self.is_recently_active = false;
        self.silent_ticks = u32::MAX;
        self.sent_commit = LogIndex::ZERO;
    }

    /// Records that the follower has responded.
    pub(crate) fn note_response(&mut self) {
        self.is_recently_active = true;
        self.silent_ticks = 0;
    }

    /// Counts a tick of the leader.
    pub(crate) fn tick(&mut self) {
        self.silent_ticks = self.silent_ticks.saturating_add(1);
    }

    /// Returns whether the follower has responded to this leader within the last `ticks` ticks. Unlike
    /// [`Self::is_recently_active`], the result does not depend on when the leader last checked its quorum, and a new
    /// member does not count before its first response.
    #[must_use]
    pub const fn has_responded_within(&self, ticks: u32) -> bool {
        self.silent_ticks <= ticks && self.silent_ticks < u32::MAX
    }

    fn enter(&mut self, state: ProgressState) {
        self.state = state;
        self.is_flow_paused = false;
        self.pending_snapshot = LogIndex::ZERO;
        self.inflights.clear();
    }

    /// Returns to probing, starting after the last acknowledged entry or, if a snapshot was in
    /// flight, after that snapshot.
    pub(crate) fn become_probe(&mut self) {
        // This index is zero if no snapshot is pending, so it does not change the maximum below.
        let snapshot = self.pending_snapshot;
        self.enter(ProgressState::Probe);
        self.next_index = self.match_index.max(snapshot) + 1;
        self.limit_sent_commit();
        self.assert_ordered();
    }

    /// Starts streaming after the last acknowledged entry.
    pub(crate) fn become_replicate(&mut self) {
        self.enter(ProgressState::Replicate);
        self.next_index = self.match_index + 1;
        self.assert_ordered();
    }

    /// Stops sending until the transfer of the snapshot at `index` has ended.
    pub(crate) fn become_snapshot(&mut self, index: LogIndex) {
        self.enter(ProgressState::Snapshot);
        self.pending_snapshot = index;
        self.next_index = index + 1;
        self.sent_commit = index;
        self.assert_ordered();
    }

    /// Checks that `match_index` is below `next_index`.
    fn assert_ordered(&self) {
        assert!(
            self.match_index < self.next_index,
            "match_index {} < next_index {}: otherwise the leader would send acknowledged entries again, and a \
             rejection of them would revert the acknowledgement",
            self.match_index,
            self.next_index,
        );
    }

    /// Records that an append of `count` entries, starting at `next_index`, has been sent.
    pub(crate) fn record_sent_entries(&mut self, count: u64, bytes: u64) {
        match self.state {
            ProgressState::Replicate => {
                if count > 0 {
                    self.next_index += count;
                    self.inflights.add(self.next_index.prev(), bytes);
                }
                // If this append filled the window, the next append waits for an acknowledgement.
                self.is_flow_paused = self.inflights.is_full();
            }
            ProgressState::Probe => {
                if count > 0 {
                    self.is_flow_paused = true;
                }
            }
            ProgressState::Snapshot => unreachable!("an append was sent in state Snapshot"),
        }
    }

    /// Records that a message carrying `commit` has been sent.
    pub(crate) fn record_sent_commit(&mut self, commit: LogIndex) {
        self.sent_commit = commit;
    }

    /// Returns whether sending `commit` would allow the follower to commit additional entries. A follower can commit
    /// only entries that were sent to it.
    pub(crate) fn would_learn_commit(&self, commit: LogIndex) -> bool {
        commit > self.sent_commit && self.sent_commit < self.next_index.prev()
    }

    /// Records that the follower acknowledged entries up to `acked`. Returns whether the
    /// acknowledgement is new.
    pub(crate) fn acknowledge(&mut self, acked: LogIndex) -> bool {
        if acked <= self.match_index {
            return false;
        }
        self.match_index = acked;
        self.next_index = self.next_index.max(acked + 1);
        self.assert_ordered();
        self.is_flow_paused = false;
        true
    }

    /// Moves `next_index` back because the follower refused the append that starts after
    /// `rejected`. The logs may agree at `hint`. Returns false, without any effect, if the refusal
    /// is outdated.
    pub(crate) fn step_back(&mut self, rejected: LogIndex, hint: LogIndex) -> bool {
        if self.state == ProgressState::Replicate {
            if rejected <= self.match_index {
                return false;
            }
            self.next_index = self.match_index + 1;
        } else {
            // Only one probe is in flight at a time, so any other refusal is outdated.
            if rejected != self.next_index.prev() {
                return false;
            }
            let resume = rejected.min(hint.saturating_add(1));
            self.next_index = resume.max(self.match_index + 1);
            self.is_flow_paused = false;
        }
        self.limit_sent_commit();
        self.assert_ordered();
        true
    }

    /// Lowers `sent_commit`, because a follower that lost appends has probably not received the
    /// commit index in them either.
    fn limit_sent_commit(&mut self) {
        self.sent_commit = self.sent_commit.min(self.next_index.prev());
    }

    /// Returns whether sending entries to the follower is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        match self.state {
            ProgressState::Probe | ProgressState::Replicate => self.is_flow_paused,
            ProgressState::Snapshot => true,
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} match={} next={}", self.state, self.match_index, self.next_index)?;
        if self.is_learner {
            f.write_str(" learner")?;
        }
        if self.is_paused() {
            f.write_str(" paused")?;
        }
        if self.pending_snapshot > LogIndex::ZERO {
            write!(f, " pendingSnap={}", self.pending_snapshot)?;
        }
        if !self.is_recently_active {
            f.write_str(" inactive")?;
        }
        if self.inflights.count() > 0 {
            write!(f, " inflight={}", self.inflights.count())?;
            if self.inflights.is_full() {
                f.write_str("[full]")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
