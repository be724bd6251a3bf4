//! Where a member stands, as requests see it: what is committed, whether reads need a barrier, and whether a leader may
//! have been deposed without knowing.
//!
//! The rules are those of production's `Standing`, whose threads read and write it.

use quorate_raft::{LogIndex, Role, Term};

use super::outlet::Said;
use crate::clock::Micros;

/// A leader's question whether it leads, until a quorum has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// When it was asked, by the member's clock.
    pub(super) asked: Micros,
    /// In which term it led then.
    pub(super) term: Term,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) committed: LogIndex,
    pub(super) published: LogIndex,
    alone: bool,
    alone_from: LogIndex,
    silence_max: Micros,
    ticked: Micros,
    resumed: Micros,
    confirmed: Micros,
}

impl Standing {
    pub(super) const fn new(silence_max: Micros, applied: LogIndex) -> Self {
        Self {
            committed: applied,
            published: applied,
            alone: false,
            alone_from: LogIndex::ZERO,
            silence_max,
            ticked: 0,
            resumed: 0,
            confirmed: 0,
        }
    }

    pub(super) fn set_committed(&mut self, index: LogIndex) {
        self.committed = self.committed.max(index);
    }

    pub(super) fn set_alone(&mut self, is_alone: bool, commit: LogIndex, said: &Said) {
        self.alone = is_alone && said.leads();
        self.alone_from = commit;
    }

    /// Whether whatever is acknowledged can be read here.
    pub(super) fn reads_need_no_barrier(&self, said: &Said) -> bool {
        let has_caught_up = said.published >= self.alone_from;
        self.alone && said.published_term == said.leadership.term && has_caught_up
    }

    pub(super) const fn note_tick(&mut self, local: Micros) {
        if local.saturating_sub(self.ticked) > self.silence_max {
            self.resumed = local;
        }
        self.ticked = local;
    }

    pub(super) const fn may_be_deposed(&self, local: Micros) -> bool {
        local.saturating_sub(self.ticked) > self.silence_max || self.resumed > self.confirmed
    }

    /// What a leader asks to be sure that it leads; `None` for others.
    pub(super) fn doubt(local: Micros, said: &Said) -> Option<Doubt> {
        let leadership = said.leadership;
        (leadership.role == Role::Leader).then_some(Doubt { asked: local, term: leadership.term })
    }

    /// A quorum has answered; says whether this member leads still, in the same term.
    pub(super) fn confirm(&mut self, doubt: Doubt, said: &Said) -> bool {
        let leads = said.leads() && said.leadership.term == doubt.term;
        if leads {
            self.confirmed = self.confirmed.max(doubt.asked);
        }
        leads
    }
}
