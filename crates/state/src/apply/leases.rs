//! Commands about leases.

use quorate_api::etcdserverpb::{
    LeaseCheckpointRequest, LeaseCheckpointResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseRevokeRequest, LeaseRevokeResponse,
};

use super::{EntryMeta, Refusal, Response, State};
use crate::lease::{LeaseRecord, LeaseRefusal};
use crate::mvcc::KeyRange;
use crate::quota::LEASE_COST;
use crate::schema::Bucket;
use crate::units::LeaseId;
use crate::versions::Version;

impl State {
    pub(super) fn lease_grant(
        &mut self,
        entry: &EntryMeta,
        request: &LeaseGrantRequest,
    ) -> Result<Response, Refusal> {
        let fits = self.quota.allows(entry.file_bytes, LEASE_COST);
        let record = self.lessor.grant(LeaseId(request.id), request.ttl, entry.now)?;
        self.batch.put(Bucket::Lease, LeaseRecord::key(record.id), record.encode());
        // The lease exists even if the response is an error.
        self.store.count_lease_granted(record.ttl_secs);
        if !fits {
            return Err(Refusal::NoSpace);
        }
        Ok(Response::LeaseGrant(LeaseGrantResponse {
            header: self.header(),
            id: record.id.0,
            ttl: record.ttl_secs,
            error: String::new(),
        }))
    }

    /// Deletes the lease's keys in ascending order and in one revision, and then the lease.
    pub(super) fn lease_revoke(
        &mut self,
        request: &LeaseRevokeRequest,
    ) -> Result<Response, Refusal> {
        let id = LeaseId(request.id);
        let keys = self.lessor.keys(id).ok_or(LeaseRefusal::NotFound)?;
        let mut txn = self.store.write(&mut self.batch);
        for key in keys {
            txn.delete_range(KeyRange::One(&key));
        }
        self.unpublished.extend(txn.finish());
        self.lessor.revoke(id);
        self.store.count_lease_revoked();
        self.batch.delete(Bucket::Lease, LeaseRecord::key(id));
        Ok(Response::LeaseRevoke(LeaseRevokeResponse { header: self.header() }))
    }

    pub(super) fn lease_checkpoint(
        &mut self,
        entry: &EntryMeta,
        request: &LeaseCheckpointRequest,
    ) -> Response {
        // Members older than etcd 3.6 do not support the remaining lifetime in the stored record of a lease.
        let since = Version::new(3, 6);
        let persist = self.options.checkpoint_persist
            || self.versions.cluster().is_some_and(|version| version >= since);
        for checkpoint in &request.checkpoints {
            let id = LeaseId(checkpoint.id);
            let record = self.lessor.checkpoint(id, checkpoint.remaining_ttl, entry.now);
            if let Some(record) = record.filter(|_| persist) {
                self.batch.put(Bucket::Lease, LeaseRecord::key(id), record.encode());
            }
        }
        Response::LeaseCheckpoint(LeaseCheckpointResponse { header: self.header() })
    }
}
