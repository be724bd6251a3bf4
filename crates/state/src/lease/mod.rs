//! Leases, to which keys are attached, and the clocks that determine when leases expire.
//!
//! The lessor has two halves that share one lock, which is held only briefly. [`Lessor`] belongs to
//! the applier: it grants, revokes and checkpoints leases and attaches keys, as log entries
//! require. [`Leases`] is a handle for all other threads, for renewals, lookups and the leader's
//! scan for expired leases. These operations are not log entries, and none of them waits for the
//! applier.
//!
//! # Invariants
//!
//! * Replicated facts (ids, granted and checkpointed lifetimes, attached keys) depend only on the log. Expiry times
//!   exist only on the primary, which is the leader. They determine only when the primary proposes a revocation.
//! * A key is attached to at most one lease, and only to a lease that exists.
//! * A lease that has expired on the primary is never renewed there, not even by a request that read the clock before
//!   the scan that found the lease. Either the lease is revoked, or another member becomes primary.
//!
//! # Not here
//!
//! Deleting the keys of a revoked lease and storing lease records, both in one batch (`apply`), and
//! checking the permission to use a lease (`apply::permission`).
//!
//! # Tests
//!
//! `tests.rs` tests each rule separately, and compares the expiry queue with a model that scans
//! every lease.
#![expect(clippy::disallowed_types, reason = "keys are only looked up, never iterated")]

mod deadlines;
mod record;
mod shared;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

pub use self::record::LeaseRecord;
pub use self::shared::{Checkpoint, Leases, Renewal, TimeToLive};
use crate::units::{LeaseId, Millis};

/// The longest lifetime that can be granted, in seconds.
pub const TTL_SECS_MAX: i64 = 9_000_000_000;

/// Why a lease request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// No lease has this id.
    #[error("etcdserver: requested lease not found")]
    NotFound,
    /// A lease with this id already exists.
    #[error("etcdserver: lease already exists")]
    Exists,
    /// The requested lifetime is above [`TTL_SECS_MAX`].
    #[error("etcdserver: too large lease TTL")]
    TtlTooLarge,
}

/// Options of a lessor, set once at start.
#[derive(Clone, Copy, Debug)]
pub struct LessorOptions {
    /// The minimum lifetime, in seconds. Shorter requested lifetimes are raised to it.
    pub ttl_secs_min: i64,
    /// Whether the primary proposes checkpoints for long leases.
    pub checkpoints: bool,
    /// The interval between two checkpoints of one lease, in seconds.
    pub checkpoint_interval_secs: u64,
    /// The time in milliseconds after which [`Leases::expired`] returns the same lease again, if the lease still
    /// exists.
    pub resubmit_millis: u64,
}

impl Default for LessorOptions {
    fn default() -> Self {
        Self {
            ttl_secs_min: 2,
            checkpoints: false,
            checkpoint_interval_secs: 300,
            resubmit_millis: 7_000,
        }
    }
}

/// The applier's half of the lessor: the leases and the keys attached to them.
#[derive(Debug)]
pub struct Lessor {
    leases: Leases,
    /// The lease of every attached key.
    attached: HashMap<Arc<[u8]>, LeaseId>,
    options: LessorOptions,
}

impl Lessor {
    /// Rebuilds the leases from stored records. No lease expires before [`Leases::promote`] is called.
    ///
    /// `attachments` are the keys of live records that name a lease, each with that lease. An
    /// attachment to a lease that is not stored is ignored, as it was when the record was written.
    pub fn recover(
        records: impl IntoIterator<Item = LeaseRecord>,
        attachments: impl IntoIterator<Item = (impl AsRef<[u8]>, LeaseId)>,
        options: LessorOptions,
    ) -> Self {
        let mut lessor = Self { leases: Leases::new(options), attached: HashMap::new(), options };
        lessor.leases.load(records.into_iter().map(|record| lessor.raised(record)));
        for (key, id) in attachments {
            lessor.attach(key.as_ref(), id);
        }
        lessor
    }

    /// Replaces all leases with the leases of a received store. Handles stay valid, and the clocks are stopped.
    pub fn replace(
        &mut self,
        records: impl IntoIterator<Item = LeaseRecord>,
        attachments: impl IntoIterator<Item = (impl AsRef<[u8]>, LeaseId)>,
    ) {
        self.attached.clear();
        let raised: Vec<_> = records.into_iter().map(|record| self.raised(record)).collect();
        self.leases.load(raised);
        for (key, id) in attachments {
            self.attach(key.as_ref(), id);
        }
    }

    /// Returns the handle through which all other threads use the leases.
    #[must_use]
    pub fn reader(&self) -> Leases {
        self.leases.clone()
    }

    /// Creates a lease. The caller stores the returned record, which contains the effective
    /// lifetime.
    pub fn grant(
        &mut self,
        id: LeaseId,
        ttl_secs: i64,
        now: Millis,
    ) -> Result<LeaseRecord, LeaseRefusal> {
        if id.is_none() {
            return Err(LeaseRefusal::NotFound);
        }
        if ttl_secs > TTL_SECS_MAX {
            return Err(LeaseRefusal::TtlTooLarge);
        }
        let record = self.raised(LeaseRecord { id, ttl_secs, remaining_secs: 0 });
        if self.leases.insert(record, now) { Ok(record) } else { Err(LeaseRefusal::Exists) }
    }

    /// Returns whether the lease exists.
    #[must_use]
    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains(id)
    }

    /// Returns the keys attached to a lease, in ascending order, or `None` if the lease does not
    /// exist. Every member deletes them in this order.
    #[must_use]
    pub fn keys(&self, id: LeaseId) -> Option<Vec<Arc<[u8]>>> {
        self.leases.keys(id)
    }

    /// Removes a lease whose keys have been deleted. Returns whether the lease existed.
    pub fn revoke(&mut self, id: LeaseId) -> bool {
        let Some(keys) = self.leases.remove(id) else { return false };
        for key in keys {
            let held = self.attached.remove(&key);
            assert!(
                held == Some(id),
                "a key is attached to the lease that lists it: otherwise revoking one lease would delete keys of another"
            );
        }
        true
    }

    /// Sets the checkpointed lifetime of a lease. Returns the record, which the caller stores if checkpoints are
    /// persisted. Ignores an unknown lease and returns `None`.
    pub fn checkpoint(
        &mut self,
        id: LeaseId,
        remaining_secs: i64,
        now: Millis,
    ) -> Option<LeaseRecord> {
        self.leases.checkpoint(id, remaining_secs, now)
    }

    /// Returns the lease that a key is attached to, or [`LeaseId::NONE`].
    #[cfg(test)]
    #[must_use]
    pub(crate) fn lease_of(&self, key: &[u8]) -> LeaseId {
        self.attached.get(key).copied().unwrap_or_default()
    }

    /// Records that `key` was put with lease `id` ([`LeaseId::NONE`] for no lease). The key is
    /// detached from any other lease.
    pub fn attach(&mut self, key: &[u8], id: LeaseId) {
        if id.is_none() {
            self.detach(key);
            return;
        }
        match self.attached.get_mut(key) {
            Some(held) if *held == id => {}
            Some(held) => {
                let previous = std::mem::replace(held, id);
                let key: Arc<[u8]> = key.into();
                if !self.leases.move_key(&key, previous, id) {
                    self.attached.remove(&key);
                }
            }
            None => {
                let key: Arc<[u8]> = key.into();
                if self.leases.move_key(&key, LeaseId::NONE, id) {
                    self.attached.insert(key, id);
                }
            }
        }
    }

    /// Records that `key` was deleted, or put without a lease.
    pub fn detach(&mut self, key: &[u8]) {
        if self.attached.is_empty() {
            return;
        }
        if let Some((key, id)) = self.attached.remove_entry(key) {
            self.leases.move_key(&key, id, LeaseId::NONE);
        }
    }

    fn raised(&self, record: LeaseRecord) -> LeaseRecord {
        LeaseRecord { ttl_secs: record.ttl_secs.max(self.options.ttl_secs_min), ..record }
    }
}
