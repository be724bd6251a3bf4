//! Lease loads: grants, and renewals on streams.

use prost::Message;
use quorate_api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseRevokeRequest,
    LeaseRevokeResponse,
};

use super::path;
use crate::endpoint::Endpoint;
use crate::engine::{Source, calls};
use crate::error::BenchError;
use crate::secret::Secret;

/// Grants one lease per operation. The server chooses the id.
#[derive(Clone, Debug)]
pub(crate) struct Grants {
    message: Vec<u8>,
}

impl Grants {
    pub(crate) fn new(ttl_secs: i64) -> Self {
        Self { message: LeaseGrantRequest { ttl: ttl_secs, id: 0 }.encode_to_vec() }
    }
}

impl Source for Grants {
    fn request(&mut self, _number: u64, message: &mut Vec<u8>) -> (&'static str, usize) {
        message.clone_from(&self.message);
        (path::LEASE_GRANT, 0)
    }
}

/// The leases of a run.
#[derive(Debug)]
pub(crate) struct Leases {
    ids: Vec<i64>,
}

impl Leases {
    pub(crate) fn grant(
        endpoints: &[Endpoint],
        token: Option<Secret>,
        count: usize,
        ttl_secs: i64,
    ) -> Result<Self, BenchError> {
        let requests = vec![LeaseGrantRequest { ttl: ttl_secs, id: 0 }; count];
        let replies: Vec<LeaseGrantResponse> =
            calls(endpoints, token, path::LEASE_GRANT, &requests)?;
        Ok(Self { ids: replies.iter().map(|reply| reply.id).collect() })
    }

    /// Returns the renewal request of each lease.
    pub(crate) fn keep_alive_requests(&self) -> Vec<Vec<u8>> {
        self.ids.iter().map(|id| LeaseKeepAliveRequest { id: *id }.encode_to_vec()).collect()
    }

    pub(crate) fn revoke(
        &self,
        endpoints: &[Endpoint],
        token: Option<Secret>,
    ) -> Result<(), BenchError> {
        let requests: Vec<_> = self.ids.iter().map(|id| LeaseRevokeRequest { id: *id }).collect();
        let _: Vec<LeaseRevokeResponse> = calls(endpoints, token, path::LEASE_REVOKE, &requests)?;
        Ok(())
    }
}
