//! The progress of one follower, as its leader records it: which entries the follower has, and
//! which may be sent next.
//!
//! ```text
//!            acknowledged an append              needs entries we have dropped
//!   Probe ───────────────────────────► Replicate ─────────────► Snapshot
//!     ▲  ◄───── refused / unreachable ────┘         (from Probe too)  │
//!     └────────────── snapshot reported, or log reachable again ──────┘
//! ```
//!
//! * **Probe**: it is unknown where the logs agree. One append per heartbeat finds out.
//! * **Replicate**: it is known where the logs agree. Appends are sent ahead of acknowledgements,
//!   within the window of [`Inflights`].
//! * **Snapshot**: a snapshot is being sent. No other message with entries is sent.
//!
//! # Invariants
//!
//! * `match_index < next_index`.
//! * All entries in `(match_index, next_index)` are in flight, or covered by a snapshot in flight.
//! * Outside Snapshot there is no `pending_snapshot`; outside Replicate the window is empty.
//!
//! # Not here
//!
//! Sending (`replication`, `snapshot`): this module only records progress.

use std::fmt;

use crate::inflights::Inflights;
use crate::log_index::LogIndex;

/// The way in which a leader sends entries to a follower, as described in the header of the module.
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

/// A leader's progress of one member, including itself.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The follower's log is known to equal the leader's up to here.
    pub match_index: LogIndex,
    /// The first entry not yet sent.
    pub next_index: LogIndex,
    /// How the leader sends to the follower.
    pub state: ProgressState,
    /// The index of the snapshot in flight; zero outside [`ProgressState::Snapshot`].
    pub pending_snapshot: LogIndex,
    /// Whether the follower has answered since the leader last checked its quorum.
    pub is_recently_active: bool,
    /// Whether appends wait for the next heartbeat response.
    pub is_flow_paused: bool,
    /// Whether the member has no vote.
    pub is_learner: bool,
    /// Unacknowledged appends.
    pub inflights: Inflights,
    /// The highest commit index that was sent to the follower.
    sent_commit: LogIndex,
}

impl Progress {
    /// The progress of a member with an unknown log, to be probed from `next_index`.
    #[must_use]
    pub fn new(next_index: LogIndex, inflights: Inflights) -> Self {
        Self {
            match_index: LogIndex::ZERO,
            next_index,
            state: ProgressState::Probe,
            pending_snapshot: LogIndex::ZERO,
            is_recently_active: false,
            is_flow_paused: false,
            is_learner: false,
            inflights,
            sent_commit: LogIndex::ZERO,
        }
    }

    /// Resets the progress for a new term: the log is unknown, probing begins after `last_index`.
    pub(crate) fn reset(&mut self, last_index: LogIndex, is_self: bool) {
        self.enter(ProgressState::Probe);
        self.match_index = if is_self { last_index } else { LogIndex::ZERO };
        self.next_index = last_index + 1;
        self.is_recently_active = false;
        self.sent_commit = LogIndex::ZERO;
    }

    fn enter(&mut self, state: ProgressState) {
        self.state = state;
        self.is_flow_paused = false;
        self.pending_snapshot = LogIndex::ZERO;
        self.inflights.clear();
    }

    /// Returns to probing, after the last acknowledged entry or, if a snapshot was in flight, after
    /// it.
    pub(crate) fn become_probe(&mut self) {
        // Zero, which never wins, unless a snapshot is pending.
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

    /// Checks the invariant: every change of `match_index` or `next_index` ends here.
    fn assert_ordered(&self) {
        assert!(
            self.match_index < self.next_index,
            "match_index {} < next_index {}: otherwise acknowledged entries would be sent again and their refusal \
             would take the acknowledgement back",
            self.match_index,
            self.next_index,
        );
    }

    /// Records that an append with `count` entries from `next_index` on has been sent.
    pub(crate) fn record_sent_entries(&mut self, count: u64, bytes: u64) {
        match self.state {
            ProgressState::Replicate => {
                if count > 0 {
                    self.next_index += count;
                    self.inflights.add(self.next_index.prev(), bytes);
                }
                // With a full window, this was the last append until an acknowledgement arrives.
                self.is_flow_paused = self.inflights.is_full();
            }
            ProgressState::Probe => {
                if count > 0 {
                    self.is_flow_paused = true;
                }
            }
            ProgressState::Snapshot => unreachable!("an append was sent to a member in Snapshot"),
        }
    }

    /// Records that a message carrying `commit` has been sent.
    pub(crate) fn record_sent_commit(&mut self, commit: LogIndex) {
        self.sent_commit = commit;
    }

    /// Whether sending `commit` would let the follower commit entries beyond the commit index that
    /// was already sent: at most the entries that were sent to it.
    pub(crate) fn would_learn_commit(&self, commit: LogIndex) -> bool {
        commit > self.sent_commit && self.sent_commit < self.next_index.prev()
    }

    /// Records an acknowledgement up to `acked`. Returns whether it was new.
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

    /// Steps back after a refusal of the append that followed `rejected`; the logs may agree at
    /// `hint`. Returns whether it stepped back: an outdated refusal is ignored.
    pub(crate) fn step_back(&mut self, rejected: LogIndex, hint: LogIndex) -> bool {
        if self.state == ProgressState::Replicate {
            if rejected <= self.match_index {
                return false;
            }
            self.next_index = self.match_index + 1;
        } else {
            // Only the latest probe counts, and only one is in flight at a time.
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

    /// A follower that lost appends has probably not received the commit index in them.
    fn limit_sent_commit(&mut self) {
        self.sent_commit = self.sent_commit.min(self.next_index.prev());
    }

    /// Whether no entries may be sent now.
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
