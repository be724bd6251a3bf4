//! The leader's periodic work on leases: proposing to revoke expired leases, and checkpointing the remaining time of
//! long leases.
//!
//! # Invariants
//!
//! * A revocation is proposed only after a quorum has answered a read barrier round that began after the lease was
//!   found to be expired, because a suspended leader may have been deposed and its successor may have renewed the
//!   lease.
//! * Expiry is determined by the lease clock of the leader's own term. Proposals carry the term, so they fail if
//!   another member has become the leader.
//! * A revocation ends only the lease that the check has found, not a later lease with the same id.
//!
//! # Not here
//!
//! How often the leader checks its leases, and the number of in-flight revocations (`member::housekeeping`).

use quorate_api::etcdserverpb::{InternalRaftRequest, LeaseCheckpoint, LeaseRevokeRequest};
use quorate_raft::Term;
use quorate_state::lease::Leases;
use quorate_state::units::{LeaseId, Millis};

use crate::lease_task::{LeaseView, checkpoints};

/// The maximum number of expired leases that one check returns.
const EXPIRED_PER_SCAN: usize = 500;

/// The maximum number of checkpoints in one log entry.
const CHECKPOINTS_PER_ENTRY: usize = 1000;

/// One check of the leader's leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseCare {
    term: Term,
    looked_at: Millis,
    expired: Vec<LeaseId>,
}

/// The proposals that result from one check. Only the leader of `term` may make them.
#[derive(Clone, Debug)]
pub struct LeaseProposals {
    /// The term in which this member led during the check.
    pub term: Term,
    /// Revocations. If a revocation fails, a later check finds the lease again.
    pub ends: Vec<Revocation>,
    /// Checkpoints of remaining TTLs.
    pub checkpoints: Option<InternalRaftRequest>,
}

/// The revocation of a lease that has expired on the leader of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revocation {
    term: Term,
    id: LeaseId,
}

impl Revocation {
    /// Returns the lease's id.
    #[must_use]
    pub const fn id(&self) -> LeaseId {
        self.id
    }

    /// Returns the request to propose. The caller calls this directly before the proposal, because revocations may have
    /// to wait for each other. Returns `None` if the lease was revoked in the meantime, even if a lease with the same
    /// id was granted again.
    #[must_use]
    pub fn request(&self, leases: &Leases) -> Option<InternalRaftRequest> {
        leases.has_expired(self.id, self.term.get()).then(|| InternalRaftRequest {
            lease_revoke: Some(LeaseRevokeRequest { id: self.id.0 }),
            ..InternalRaftRequest::default()
        })
    }
}

impl LeaseCare {
    /// Collects the expired leases. Returns `None` if this member does not lead.
    pub fn look(view: &impl LeaseView) -> Option<Self> {
        let (state, looked_at) = (view.leadership(), view.now());
        let term = state.leadership.term;
        let expired = || view.leases().expired(term.get(), looked_at, EXPIRED_PER_SCAN);
        state.leads().then(|| Self { term, looked_at, expired: expired() })
    }

    /// Returns whether a quorum must confirm the leadership before [`Self::proposals`] is called.
    #[must_use]
    pub const fn needs_quorum(&self) -> bool {
        !self.expired.is_empty()
    }

    /// Returns the proposals, or `None` if this member no longer leads or no quorum has answered since the check.
    pub fn proposals(self, view: &impl LeaseView) -> Option<LeaseProposals> {
        let (state, term) = (view.leadership(), self.term);
        let is_sure = !self.needs_quorum() || state.is_confirmed_since(self.looked_at);
        if !state.leads_in(term) || !is_sure {
            return None;
        }
        let ends = self.expired.into_iter().map(|id| Revocation { term, id }).collect();
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
