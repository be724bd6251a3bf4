//! Leases: granted lifetimes that keys attach to, and the clock that ends them.
//!
//! Two halves share one short lock. [`Lessor`] belongs to the applier: it grants, revokes, checkpoints
//! and attaches, as the log says. [`Leases`] is what everybody else holds: renewals, lookups and the
//! expiry scan of the leader, none of which are log entries and none of which wait for the applier.
//!
//! # Invariants
//!
//! * What is replicated (ids, granted and checkpointed lifetimes, attached keys) depends on the log
//!   alone. Expiry times exist only on the primary, which is the leader, and decide nothing but when it
//!   proposes a revoke.
//! * A key is attached to at most one lease, and only to one that exists.
//! * A lease that has expired on the primary is never renewed: it goes, or the primary changes.
//!
//! # Not here
//!
//! Deleting the keys of a revoked lease, and writing leases down: `apply` does both, in one batch. Who
//! may do what with a lease: `auth`.
//!
//! # Tests
//!
//! `tests.rs`: the rules one by one, and the expiry queue against a model that looks at every lease.
#![expect(
    clippy::disallowed_types,
    reason = "attached keys are looked up one by one, and never gone through"
)]

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

/// Why a lease request was turned down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// There is no lease of that id.
    #[error("etcdserver: requested lease not found")]
    NotFound,
    /// The id is taken.
    #[error("etcdserver: lease already exists")]
    Exists,
    /// The lifetime is above [`TTL_SECS_MAX`].
    #[error("etcdserver: too large lease TTL")]
    TtlTooLarge,
}

/// What a lessor is told once, at start.
#[derive(Clone, Copy, Debug)]
pub struct LessorOptions {
    /// Shorter lifetimes are raised to this, in seconds.
    pub ttl_secs_min: i64,
    /// Whether the primary proposes checkpoints of long leases.
    pub checkpoints: bool,
    /// How often it does, per lease, in seconds.
    pub checkpoint_interval_secs: u64,
    /// How long after an expired lease was handed out for revocation it is handed out again, if it is
    /// still there.
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

/// The applier's half: the leases themselves and the keys attached to them.
#[derive(Debug)]
pub struct Lessor {
    leases: Leases,
    /// The lease of every attached key.
    attached: HashMap<Arc<[u8]>, LeaseId>,
    options: LessorOptions,
}

impl Lessor {
    /// Rebuilds the leases from what is stored. Nothing expires until [`Leases::promote`].
    ///
    /// `attachments` are the keys of live records with the leases they name; one that names no stored
    /// lease is left alone, as it was when it was written.
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

    /// Replaces everything by what a received store holds. Handles stay valid; the clocks are stopped.
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

    /// The handle for everybody else.
    #[must_use]
    pub fn reader(&self) -> Leases {
        self.leases.clone()
    }

    /// Creates a lease. The record is to be stored; its lifetime is the effective one.
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

    /// Whether the lease exists.
    #[must_use]
    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains(id)
    }

    /// The keys attached to a lease, ascending, or `None` without such a lease. Every member deletes
    /// them in this order.
    #[must_use]
    pub fn keys(&self, id: LeaseId) -> Option<Vec<Arc<[u8]>>> {
        self.leases.keys(id)
    }

    /// Removes a lease, after its keys have been deleted. Says whether it was there.
    pub fn revoke(&mut self, id: LeaseId) -> bool {
        let Some(keys) = self.leases.remove(id) else { return false };
        for key in keys {
            self.attached.remove(&key);
        }
        true
    }

    /// Takes over a checkpoint. Returns the record, which is to be stored if checkpoints are, or `None`
    /// for an unknown lease, which is ignored.
    pub fn checkpoint(
        &mut self,
        id: LeaseId,
        remaining_secs: i64,
        now: Millis,
    ) -> Option<LeaseRecord> {
        self.leases.checkpoint(id, remaining_secs, now)
    }

    /// The lease a key is attached to, or [`LeaseId::NONE`].
    #[must_use]
    pub fn lease_of(&self, key: &[u8]) -> LeaseId {
        self.attached.get(key).copied().unwrap_or_default()
    }

    /// Notes that `key` was put with lease `id` ([`LeaseId::NONE`] for none): it leaves any other lease.
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

    /// Notes that `key` was deleted, or put without a lease.
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
