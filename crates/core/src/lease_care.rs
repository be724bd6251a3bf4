//! How a leader looks after leases: it proposes the end of those whose time is up, and writes down what is left of long
//! ones.
//!
//! # Invariants
//!
//! * The end of a lease is proposed only after a quorum has answered what the leader sent after it had found the lease to
//!   be expired. A leader that was suspended may have been deposed, and its leases renewed elsewhere.
//! * It is the clock of the leader's own term that says so, and what is proposed carries the term: it fails where another
//!   leads by then.
//!
//! # Not here
//!
//! How often the leader looks, and how many ends are on their way at a time (`member::housekeeping`).

use quorate_api::etcdserverpb::{InternalRaftRequest, LeaseCheckpoint, LeaseRevokeRequest};
use quorate_raft::Term;
use quorate_state::units::{LeaseId, Millis};

use crate::lease_task::{LeaseView, checkpoints};

/// Expired leases that one look takes.
const EXPIRED_PER_SCAN: usize = 500;

/// Checkpoints in one entry of the log.
const CHECKPOINTS_PER_ENTRY: usize = 1000;

/// One look of the leader after its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseCare {
    term: Term,
    looked_at: Millis,
    expired: Vec<LeaseId>,
}

/// What a look leads to, to be proposed as the leader of this term.
#[derive(Clone, Debug)]
pub struct LeaseProposals {
    /// The term.
    pub term: Term,
    /// The ends of leases. One that fails comes up again at a later look.
    pub ends: Vec<(LeaseId, InternalRaftRequest)>,
    /// What is left of leases.
    pub checkpoints: Option<InternalRaftRequest>,
}

impl LeaseCare {
    /// Looks for leases whose time is up. `None` for a member that does not lead.
    pub fn look(view: &impl LeaseView) -> Option<Self> {
        let (state, looked_at) = (view.leadership(), view.now());
        let term = state.leadership.term;
        let expired = || view.leases().expired(term.get(), looked_at, EXPIRED_PER_SCAN);
        state.leads().then(|| Self { term, looked_at, expired: expired() })
    }

    /// Whether a quorum has to be asked before [`Self::proposals`].
    #[must_use]
    pub const fn needs_quorum(&self) -> bool {
        !self.expired.is_empty()
    }

    /// What is to be proposed. `None` where this member leads no longer, or no quorum has answered since the look.
    pub fn proposals(self, view: &impl LeaseView) -> Option<LeaseProposals> {
        let (state, term) = (view.leadership(), self.term);
        let is_sure = !self.needs_quorum() || state.is_confirmed_since(self.looked_at);
        if !state.leads_in(term) || !is_sure {
            return None;
        }
        let ends = self.expired.into_iter().map(|id| (id, end_of(id))).collect();
        let due = view.leases().due_checkpoints(term.get(), view.now(), CHECKPOINTS_PER_ENTRY);
        let checkpoints = (!due.is_empty()).then(|| {
            let due = due.into_iter();
            let due =
                due.map(|due| LeaseCheckpoint { id: due.id.0, remaining_ttl: due.remaining_secs });
            checkpoints(due.collect())
        });
        Some(LeaseProposals { term, ends, checkpoints })
    }
}

fn end_of(id: LeaseId) -> InternalRaftRequest {
    InternalRaftRequest {
        lease_revoke: Some(LeaseRevokeRequest { id: id.0 }),
        ..InternalRaftRequest::default()
    }
}
