//! Where a member stands, as requests see it: what is committed, whether reads need a barrier, and whether a leader may
//! have been deposed without knowing.
//!
//! What is kept is what production's `Standing` keeps, whose threads read and write it. When a leader may answer for
//! leases on its own is decided by `core::lease_rules`.

use quorate_core::lease_rules;
use quorate_raft::{LogIndex, Role, Term};
use quorate_state::units::Millis;

use super::outlet::Said;

/// A leader's question whether it leads, until a quorum has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// When it was asked, by the member's clock.
    pub(super) asked: Millis,
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
    election_timeout_millis: u64,
    confirmed_at: Millis,
}

impl Standing {
    pub(super) const fn new(election_timeout_millis: u64, applied: LogIndex) -> Self {
        Self {
            committed: applied,
            published: applied,
            alone: false,
            alone_from: LogIndex::ZERO,
            election_timeout_millis,
            confirmed_at: Millis(0),
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

    pub(super) fn note_confirmed(&mut self, at: Option<Millis>) {
        self.confirmed_at = self.confirmed_at.max(at.unwrap_or_default());
    }

    /// Whether this member leads and may answer for leases on its own.
    pub(super) fn is_leadership_confirmed(&self, now: Millis, said: &Said) -> bool {
        let timeout_millis = self.election_timeout_millis;
        said.leads() && lease_rules::is_confirmed(self.confirmed_at, now, timeout_millis)
    }

    /// What a leader asks to be sure that it leads; `None` for others.
    pub(super) fn doubt(now: Millis, said: &Said) -> Option<Doubt> {
        let leadership = said.leadership;
        (leadership.role == Role::Leader).then_some(Doubt { asked: now, term: leadership.term })
    }

    /// A quorum has answered; says whether this member leads still, in the same term.
    pub(super) fn confirm(&mut self, doubt: Doubt, said: &Said) -> bool {
        let leads = said.leads() && said.leadership.term == doubt.term;
        if leads {
            self.note_confirmed(Some(doubt.asked));
        }
        leads
    }
}
