//! Revokes expired leases.
//!
//! # Invariants
//!
//! * A lease ends only when a batch that revokes it is committed. A sequencer that has been
//!   replaced cannot commit a batch, so it cannot end a lease, even if it has not noticed its
//!   replacement yet.
//! * A new sequencer gives every lease its full lifetime. A sequencer answers a renewal only after a
//!   round of the follower has confirmed that no later term had begun when the lease was renewed. So no
//!   lease ends earlier than the client was promised.

use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_state::lease::Leases;
use tokio::task::JoinSet;

use super::{Author, Jobs};
use crate::error::EngineError;
use crate::replica::Replica;

/// Interval between two scans for expired leases.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of concurrent revocations.
const IN_FLIGHT_MAX: usize = 1_000;

/// Revokes expired leases.
pub(super) struct Expiry {
    pub(super) leases: Leases,
    pub(super) jobs: Jobs,
    pub(super) replica: Arc<Replica>,
    pub(super) epoch: u64,
}

impl Expiry {
    /// Runs until the term ends.
    pub(super) async fn run(self) -> Result<(), EngineError> {
        loop {
            tokio::time::sleep(SCAN_INTERVAL).await;
            let now = self.replica.clock().now();
            let expired = self.leases.expired(self.epoch, now, IN_FLIGHT_MAX);
            let mut revocations = JoinSet::new();
            for id in expired {
                let jobs = self.jobs.clone();
                revocations.spawn(async move {
                    let request = pb::InternalRaftRequest {
                        lease_revoke: Some(pb::LeaseRevokeRequest { id: id.0 }),
                        ..pb::InternalRaftRequest::default()
                    };
                    jobs.run(request, Author::Sequencer).await
                });
            }
            while let Some(done) = revocations.join_next().await {
                if let Ok(Err(EngineError::SequencerChanged)) = done {
                    return Err(EngineError::SequencerChanged);
                }
                // After any other error, a later scan finds the lease again.
            }
        }
    }
}
