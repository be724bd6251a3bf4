//! Builds the state from the backend file, both at start and after a leader's snapshot has replaced the file.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

use super::published::{PublishedFacts, PublishedState};
use super::{State, StateOptions};
use crate::alarm::Alarms;
use crate::auth::{Auth, View as AuthView};
use crate::backend::{Backend, BackendView, Batch, Fault, Rows};
use crate::lease::{LeaseRecord, Lessor};
use crate::members::{Members, MembershipFault, conf_state_json};
use crate::mvcc::Store;
use crate::quota::Quota;
use crate::schema::{Bucket, auth, cluster, meta};
use crate::units::LeaseId;
use crate::versions::{
    StorageVersionError, Version, Versions, VersionsError, check_storage_version,
    detect_storage_version,
};
use crate::watch::Hub;

/// Why the state cannot be recovered from the file.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The file cannot be read.
    #[error(transparent)]
    Store(#[from] Fault),
    /// The members in the file cannot be read.
    #[error(transparent)]
    Members(#[from] MembershipFault),
    /// The versions in the file cannot be read.
    #[error(transparent)]
    Versions(#[from] VersionsError),
    /// The storage version is not supported by this server.
    #[error(transparent)]
    StorageVersion(#[from] StorageVersionError),
    /// The cluster version is above the version of this server.
    #[error(
        "invalid downgrade; server version is lower than determined cluster version: {own} < {cluster}"
    )]
    ServerTooOld {
        /// The version of this server.
        own: Version,
        /// The cluster version.
        cluster: Version,
    },
}

/// The content of a file or database after it is loaded.
pub(super) struct Loaded {
    store: Store,
    leases: Vec<LeaseRecord>,
    /// Keys of live records that name a lease, each with that lease.
    attachments: Vec<(Bytes, LeaseId)>,
    alarms: Alarms,
    members: Members,
    versions: Versions,
    auth: AuthView,
    has_auth_revision: bool,
    applied: (u64, u64),
}

impl Loaded {
    /// Forgets the remaining lifetimes that a member has checkpointed, so that each lease has its full lifetime.
    pub(super) fn forget_checkpoints(&mut self) {
        for lease in &mut self.leases {
            lease.remaining_secs = 0;
        }
    }
}

impl State {
    /// Returns the state before the first entry, which needs no file.
    #[must_use]
    pub fn new(options: StateOptions) -> Self {
        let loaded = Loaded {
            store: Store::new(options.store),
            leases: Vec::new(),
            attachments: Vec::new(),
            alarms: Alarms::default(),
            members: Members::default(),
            versions: Versions::default(),
            auth: AuthView::empty(),
            has_auth_revision: false,
            applied: (0, 0),
        };
        Self::assemble(loaded, options)
    }

    /// Recovers the state from the file. [`State::compaction_step`] continues an interrupted
    /// compaction.
    pub fn recover(backend: &Backend, options: StateOptions) -> Result<Self, RecoverError> {
        Ok(Self::assemble(load(backend, options)?, options))
    }

    /// Switches to the file of a leader's snapshot, which has replaced this member's file. Changes
    /// collected for the old file are dropped. Handles stay valid, watchers continue from their
    /// positions, unless the newest revision of the snapshot is lower, and lease clocks stop.
    pub fn install(&mut self, backend: &Backend) -> Result<(), RecoverError> {
        let loaded = load(backend, self.options)?;
        let before = self.store.current_revision();
        self.replace_content(loaded);
        let (source, revision) = (Arc::new(self.store.reader()), self.store.current_revision());
        if revision < before {
            // This member's history has diverged from the leader's.
            self.hub.replace_history(source, revision);
        } else {
            self.hub.replace_store(source, revision);
        }
        self.publish();
        Ok(())
    }

    /// Replaces the state's content. The caller then replaces the history source of the watchers and publishes the
    /// state.
    pub(super) fn replace_content(&mut self, loaded: Loaded) {
        self.batch = Batch::new();
        self.unpublished.clear();
        self.lessor.replace(loaded.leases, loaded.attachments);
        self.store = loaded.store;
        self.alarms = loaded.alarms;
        self.members = loaded.members;
        self.versions = loaded.versions;
        self.auth.replace(loaded.auth);
        // From here on, readers must not use the new store with the old permissions.
        self.auth.begin_publication();
        self.applied = loaded.applied;
        self.facts_changed = true;
        self.published.store.store(Arc::new(self.store.reader()));
    }

    /// Replaces the stored members with `members`, because an older version did not store every
    /// change.
    pub fn repair_members(&mut self, members: Members) {
        if members != self.members {
            members.rewrite(&self.members, &mut self.batch);
            self.batch.set_conf_state(conf_state_json(&members.conf_state()));
            self.members = members;
            self.facts_changed = true;
        }
    }

    pub(super) fn assemble(loaded: Loaded, options: StateOptions) -> Self {
        let lessor = Lessor::recover(loaded.leases, loaded.attachments, options.lessor);
        let store = loaded.store;
        let mut batch = Batch::new();
        if !loaded.has_auth_revision {
            // A server that opens a file without an auth revision writes the first revision.
            let first = Bytes::copy_from_slice(&loaded.auth.revision().to_be_bytes());
            batch.put(Bucket::Auth, auth::REVISION, first);
        }
        let source = Arc::new(store.reader());
        let hub = Hub::new(source, store.current_revision(), options.watch);
        let quota = Quota::new(options.quota_bytes);
        let auth = Auth::new(loaded.auth, options.token_ttl_millis);
        let published = PublishedState {
            store: Arc::new(ArcSwap::from_pointee(store.reader())),
            leases: lessor.reader(),
            auth: auth.reader(),
            hub: hub.clone(),
            quota,
            facts: PublishedFacts::default(),
            applied: Arc::default(),
        };
        let mut state = Self {
            store,
            lessor,
            alarms: loaded.alarms,
            members: loaded.members,
            versions: loaded.versions,
            hub,
            quota,
            auth,
            options,
            applied: loaded.applied,
            batch,
            unpublished: Vec::new(),
            facts_changed: true,
            published,
        };
        state.publish();
        state
    }
}

/// Reads only the members from a file.
pub fn stored_members(file: &BackendView) -> Result<Members, RecoverError> {
    let members = file.entries(Bucket::Members)?;
    let removed = file.entries(Bucket::MembersRemoved)?;
    Ok(Members::load(
        members.iter().map(|(key, value)| (&key[..], &value[..])),
        removed.iter().map(|(key, _)| &key[..]),
    )?)
}

fn load(backend: &Backend, options: StateOptions) -> Result<Loaded, RecoverError> {
    let file = backend.read();
    let applied = file.consistent_index()?;
    let rows = Rows::of_file(&file)?;
    let versions = load_versions(&rows, applied.1)?;
    let (store, recovered) = Store::recover(backend, options.store)?;
    let attachments =
        recovered.leases.into_iter().map(|(key, lease)| (key, LeaseId(lease))).collect();
    load_rows(&rows, versions, store, attachments, applied)
}

/// Decodes all rows except the versions.
pub(super) fn load_rows(
    rows: &Rows,
    versions: Versions,
    store: Store,
    attachments: Vec<(Bytes, LeaseId)>,
    applied: (u64, u64),
) -> Result<Loaded, RecoverError> {
    let members = Members::load(
        rows.entries(Bucket::Members).map(|(key, value)| as_slices(key, value)),
        rows.entries(Bucket::MembersRemoved).map(|(key, _)| &key[..]),
    )?;
    let alarms = load_alarms(rows)?;
    let leases = load_leases(rows)?;
    let (auth, has_auth_revision) = AuthView::load(rows)?;
    Ok(Loaded {
        store,
        leases,
        attachments,
        alarms,
        members,
        versions,
        auth,
        has_auth_revision,
        applied,
    })
}

pub(super) fn load_alarms(rows: &Rows) -> Result<Alarms, Fault> {
    Alarms::load(rows.entries(Bucket::Alarm).map(|(key, value)| as_slices(key, value)))
        .map_err(|key| rows.corrupt(Bucket::Alarm, None, key, "the key is not an alarm"))
}

fn load_leases(rows: &Rows) -> Result<Vec<LeaseRecord>, Fault> {
    let mut leases = Vec::new();
    for (position, (key, value)) in (0..).zip(rows.entries(Bucket::Lease)) {
        let lease = LeaseRecord::decode(value).ok_or_else(|| {
            rows.corrupt(Bucket::Lease, position, key, "the value is not a lease")
        })?;
        leases.push(lease);
    }
    Ok(leases)
}

fn as_slices<'a>(key: &'a Bytes, value: &'a Bytes) -> (&'a [u8], &'a [u8]) {
    (key, value)
}

pub(super) fn load_versions(rows: &Rows, term: u64) -> Result<Versions, RecoverError> {
    let named = rows.get(Bucket::Meta, meta::STORAGE_VERSION);
    if let Some(storage) = detect_storage_version(named.map(|named| &named[..]), term)? {
        check_storage_version(storage)?;
    }
    let cluster = rows.get(Bucket::Cluster, cluster::VERSION);
    let downgrade = rows.get(Bucket::Cluster, cluster::DOWNGRADE);
    let versions = Versions::load(
        cluster.map(|cluster| &cluster[..]),
        downgrade.map(|downgrade| &downgrade[..]),
    )?;
    match versions.cluster() {
        Some(cluster) if cluster > Version::OWN => {
            Err(RecoverError::ServerTooOld { own: Version::OWN, cluster })
        }
        Some(_) | None => Ok(versions),
    }
}
