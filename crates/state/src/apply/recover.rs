//! Building the state from what the file holds.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

use super::published::Readers;
use super::{State, StateOptions};
use crate::alarm::Alarms;
use crate::backend::Batch;
use crate::lease::Lessor;
use crate::members::Members;
use crate::mvcc::Store;
use crate::quota::Quota;
use crate::schema::Bucket;
use crate::units::LeaseId;
use crate::versions::Versions;
use crate::watch::Hub;

/// Key of the switch in bucket `auth`.
const AUTH_ENABLED_KEY: &[u8] = b"authEnabled";
/// Key of the revision in bucket `auth`.
const AUTH_REVISION_KEY: &[u8] = b"authRevision";

/// The file cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {}

/// The parts a state is made of.
struct Parts {
    store: Store,
    lessor: Lessor,
    alarms: Alarms,
    members: Members,
    versions: Versions,
    auth_revision: Option<u64>,
    applied: (u64, u64),
}

impl State {
    /// The state before the first entry.
    #[must_use]
    pub fn new(options: StateOptions) -> Self {
        let no_keys: [(Bytes, LeaseId); 0] = [];
        let parts = Parts {
            store: Store::new(options.store),
            lessor: Lessor::recover([], no_keys, options.lessor),
            alarms: Alarms::default(),
            members: Members::default(),
            versions: Versions::default(),
            auth_revision: None,
            applied: (0, 0),
        };
        Self::from_parts(parts, options)
    }

    fn from_parts(parts: Parts, options: StateOptions) -> Self {
        let Parts { store, lessor, alarms, members, versions, auth_revision, applied } = parts;
        let mut batch = Batch::new();
        if auth_revision.is_none() {
            // The first revision is written by whoever opens a file without one.
            batch.put(Bucket::Auth, AUTH_REVISION_KEY, Bytes::copy_from_slice(&1u64.to_be_bytes()));
        }
        let source = Arc::new(store.reader());
        let hub = Hub::new(source, store.current_revision(), options.watch_queue);
        let quota = Quota::new(options.quota_bytes);
        let readers = Readers {
            store: store.reader(),
            leases: lessor.reader(),
            hub: hub.clone(),
            quota,
            facts: Arc::new(ArcSwap::default()),
            applied: Arc::default(),
        };
        let mut state = Self {
            store,
            lessor,
            alarms,
            members,
            versions,
            hub,
            quota,
            auth_revision: auth_revision.unwrap_or(1),
            options,
            applied,
            batch,
            unpublished: Vec::new(),
            facts_changed: true,
            readers,
        };
        state.publish();
        state
    }
}
