//! `verify`'s checks of the backend file: its pages are sound, its buckets can be read, and its references are valid.

use std::collections::HashSet;

use quorate_state::alarm::Alarms;
use quorate_state::backend::{Backend, BackendView};
use quorate_state::lease::LeaseRecord;
use quorate_state::members::Members;
use quorate_state::mvcc::{Recovered, Store, StoreOptions};
use quorate_state::schema::{Bucket, cluster, meta};
use quorate_state::versions::{Version, Versions};

use super::findings::Findings;
use crate::failure::Failure;
use crate::soundness::check_pages;

const PART: &str = "backend";

/// Values read from the backend file.
#[derive(Debug)]
pub(crate) struct BackendFacts {
    /// Applied index of the file.
    pub(crate) applied: u64,
    /// Newest revision, if the keyspace can be read.
    pub(crate) revision: Option<i64>,
    /// Members, if they can be read.
    pub(crate) members: Option<Members>,
    /// Cluster version, if it can be read and the members have agreed on one.
    pub(crate) cluster_version: Option<Version>,
}

impl BackendFacts {
    /// Returns whether a member could start with the file.
    pub(crate) const fn is_readable(&self) -> bool {
        self.revision.is_some() && self.members.is_some()
    }
}

/// Reads the whole file. Returns `None` if its applied index cannot be read.
pub(crate) fn examine(backend: &Backend, findings: &mut Findings) -> Option<BackendFacts> {
    let view = backend.read();
    if let Err(error) = check_pages(&view.transaction().check()) {
        // No further checks are made, because values read from unsound pages are meaningless.
        findings.damaged(PART, error.to_string().replace('\n', "; "));
        return None;
    }
    findings.sound(PART, "every page is referenced once, well-formed and sorted");
    let mut revision = None;
    match keyspace(backend, &view) {
        Ok(keyspace) => {
            revision = Some(keyspace.revision);
            findings.sound(PART, keyspace.says);
            if keyspace.dangling > 0 {
                let dangling = keyspace.dangling;
                findings.notable(
                    PART,
                    format!("{dangling} keys are attached to leases that do not exist"),
                );
            }
        }
        Err(failure) => findings.damaged(PART, failure.to_string()),
    }
    let members = match members(&view) {
        Ok(members) => {
            findings.sound(PART, format!("{} members", members.iter().len()));
            Some(members)
        }
        Err(problem) => {
            findings.damaged(PART, problem);
            None
        }
    };
    let cluster_version = cluster_version(&view).unwrap_or_else(|problem| {
        findings.damaged(PART, problem);
        None
    });
    match view.consistent_index() {
        Ok((applied, _)) => Some(BackendFacts { applied, revision, members, cluster_version }),
        Err(fault) => {
            findings.damaged(PART, fault.to_string());
            None
        }
    }
}

/// Results of reading the keyspace.
struct Keyspace {
    says: String,
    revision: i64,
    /// Number of keys attached to leases that do not exist.
    dangling: usize,
}

fn keyspace(backend: &Backend, view: &BackendView) -> Result<Keyspace, Failure> {
    let mut leases = HashSet::new();
    for (position, (key, value)) in view.entries(Bucket::Lease)?.into_iter().enumerate() {
        let lease = LeaseRecord::decode(&value).ok_or_else(|| {
            view.corrupt(Bucket::Lease, position as u64, &key, "the value is not a lease")
        })?;
        leases.insert(lease.id.0);
    }
    let alarms = view.entries(Bucket::Alarm)?;
    Alarms::load(alarms.iter().map(|(key, value)| (&key[..], &value[..])))
        .map_err(|key| view.corrupt(Bucket::Alarm, None, key, "the key is not an alarm"))?;
    let options = StoreOptions { window_bytes_max: 0, recovered_bytes_max: 0 };
    let (store, Recovered { leases: attached, .. }) = Store::recover(backend, options)?;
    let hash = store.reader().view().hash_kv(0)?;
    let dangling = attached.iter().filter(|(_, lease)| !leases.contains(lease)).count();
    let named = view.get(Bucket::Meta, meta::STORAGE_VERSION)?;
    let version = named.map_or_else(
        || "3.5 or older".to_owned(),
        |name| String::from_utf8_lossy(&name).into_owned(),
    );
    let says = format!(
        "revision {}, compacted at {}, HashKV {}, {} leases, storage version {version}",
        hash.hash_revision,
        hash.compact_revision,
        hash.hash,
        leases.len()
    );
    Ok(Keyspace { says, revision: hash.hash_revision, dangling })
}

/// Reads the cluster version. Returns `None` if the members have not agreed on a version yet.
fn cluster_version(view: &BackendView) -> Result<Option<Version>, String> {
    let stored = view.get(Bucket::Cluster, cluster::VERSION).map_err(|fault| fault.to_string())?;
    let versions = Versions::load(stored.as_deref(), None).map_err(|error| error.to_string())?;
    Ok(versions.cluster())
}

fn members(view: &BackendView) -> Result<Members, String> {
    let entries = |bucket| view.entries(bucket).map_err(|fault| fault.to_string());
    let (members, removed) = (entries(Bucket::Members)?, entries(Bucket::MembersRemoved)?);
    let loaded = Members::load(
        members.iter().map(|(key, value)| (&key[..], &value[..])),
        removed.iter().map(|(key, _)| &key[..]),
    );
    loaded.map_err(|fault| fault.to_string())
}
