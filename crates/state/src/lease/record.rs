//! The record of a lease in bucket `lease`. The key is the id in eight big-endian bytes, and the
//! value is a `leasepb.Lease`.

use bytes::Bytes;
use prost::Message;
use quorate_api::leasepb::Lease;

use crate::units::LeaseId;

/// The replicated facts of one lease, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The lease.
    pub id: LeaseId,
    /// Granted lifetime, in seconds.
    pub ttl_secs: i64,
    /// Checkpointed remaining lifetime, in seconds; 0 if there is no checkpoint.
    pub remaining_secs: i64,
}

impl LeaseRecord {
    /// Returns the stored key of a lease.
    #[must_use]
    pub fn key(id: LeaseId) -> Bytes {
        Bytes::copy_from_slice(&id.0.to_be_bytes())
    }

    /// Returns the id in a stored key. Returns `None` if the key is invalid.
    #[must_use]
    pub fn id_of_key(key: &[u8]) -> Option<LeaseId> {
        Some(LeaseId(i64::from_be_bytes(key.try_into().ok()?)))
    }

    /// Returns the encoded value of the record.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let lease = Lease { id: self.id.0, ttl: self.ttl_secs, remaining_ttl: self.remaining_secs };
        lease.encode_to_vec().into()
    }

    /// Decodes a stored value. Returns `None` if the value is not a valid lease. As in etcd, the id
    /// in the value is used, not the id in the key.
    #[must_use]
    pub fn decode(value: &[u8]) -> Option<Self> {
        let lease = Lease::decode(value).ok()?;
        Some(Self {
            id: LeaseId(lease.id),
            ttl_secs: lease.ttl,
            remaining_secs: lease.remaining_ttl,
        })
    }
}
