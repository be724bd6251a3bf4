//! Revokes leases that have expired.
//!
//! # Invariants
//!
//! * A lease ends through a committed batch, so a sequencer that was replaced, and does not know it
//!   yet, ends no lease: its batch is not committed.
//! * A new sequencer gives every lease its full lifetime. Its predecessor answers a renewal only after
//!   it has confirmed, by a round of the log, that the term of its successor had not begun. So no
//!   lease ends earlier than a client was promised.

use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_state::lease::Leases;
use tokio::task::JoinSet;

use super::{Author, Jobs};
use crate::error::EngineError;
use crate::replica::Replica;

/// The interval between two scans.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of revocations in flight.
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
                // A lease whose revocation failed for another reason is found again by a later scan.
            }
        }
    }
}
