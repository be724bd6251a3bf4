//! Read barriers: starting, repeating and ending their rounds. [`crate::read_barrier`] keeps the pending rounds.

use quorate_raft::{Note, NoteLevel, ReadState};

use super::Node;
use crate::effect::{BarrierFailure, Effect};
use crate::read_barrier::Round;

impl Node {
    pub(super) fn tick_barriers(&mut self) {
        let (overdue, expired) = self.barriers.tick();
        for (rounds, text) in [
            (&overdue, "waiting for ReadIndex response took too long, retrying"),
            (
                &expired,
                "timed out waiting for read index response (local node might have slow network)",
            ),
        ] {
            if !rounds.is_empty() {
                self.notes.push(Note { level: NoteLevel::Warn, text: text.to_owned() });
            }
        }
        if !overdue.is_empty() {
            self.start_barrier(overdue);
        }
        self.fail_barriers(expired, BarrierFailure::TimedOut);
    }

    pub(super) fn start_barrier(&mut self, rounds: Vec<Round>) {
        match self.barriers.start(rounds) {
            Ok(name) => self.raft.read_index(name),
            Err(rounds) => self.fail_barriers(rounds, BarrierFailure::QueueFull),
        }
    }

    pub(super) fn fail_barriers(&mut self, rounds: Vec<Round>, failure: BarrierFailure) {
        let rounds = rounds.into_iter().map(|round| round.number);
        self.effects.extend(rounds.map(|round| Effect::BarrierFailed { round, failure }));
    }

    /// Repeats read requests once the leader has committed an entry in its term. Before that, the
    /// leader cannot answer read requests and may have dropped them.
    pub(super) fn notice_first_commit(&mut self) {
        if !self.committed_in_term && self.raft.has_committed_in_term() {
            self.committed_in_term = true;
            let rounds = self.barriers.take_all();
            if !rounds.is_empty() {
                self.start_barrier(rounds);
            }
        }
    }

    pub(super) fn pass_barriers(&mut self, read_states: Vec<ReadState>) {
        for state in read_states {
            let rounds = self.barriers.finish(&state.context).into_iter();
            let index = state.index;
            self.effects
                .extend(rounds.map(|round| Effect::BarrierPassed { round: round.number, index }));
        }
    }
}
