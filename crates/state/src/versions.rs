//! The version of the cluster, the version of the backend file, and the downgrade in progress.
//!
//! The cluster version is the newest minor version that every member supports, and only the log
//! changes it. The storage version in each member's file follows the cluster version. The supported
//! storage versions form a chain, with a migration step between adjacent versions. A file with any
//! other version is refused.
//!
//! # Not here
//!
//! Deciding when to propose a version (`member::versions`). A downgrade does not check whether the older version can
//! read the write-ahead log, because even the oldest supported version can read every entry that a client's request can
//! create.

use bytes::Bytes;
pub use quorate_version::Version;
use serde::{Deserialize, Serialize};

use crate::backend::Batch;
use crate::schema::{Bucket, cluster, meta};

/// The first version that writes the storage version to the backend file.
const NAMED_IN_FILE: Version = Version::new(3, 6);

/// A downgrade, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downgrade {
    /// The target version; empty if no downgrade is in progress.
    #[serde(rename = "target-version", default)]
    pub target_version: String,
    /// Whether a downgrade is in progress.
    #[serde(default)]
    pub enabled: bool,
}

/// A value in bucket `cluster` is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionsError {
    /// The stored cluster version is not a valid version.
    #[error("bucket cluster: clusterVersion {0:?} is not a valid version")]
    ClusterVersion(String),
    /// The downgrade cannot be decoded.
    #[error("bucket cluster: downgrade cannot be read: {0}")]
    Downgrade(String),
}

/// The cluster version and the downgrade, as set by the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    cluster: Option<Version>,
    downgrade: Downgrade,
}

impl Versions {
    /// Decodes the two values of bucket `cluster`. Either may be absent.
    pub fn load(cluster: Option<&[u8]>, downgrade: Option<&[u8]>) -> Result<Self, VersionsError> {
        let cluster = cluster
            .map(|stored| {
                let text = String::from_utf8_lossy(stored);
                Version::parse(&text).ok_or_else(|| VersionsError::ClusterVersion(text.into()))
            })
            .transpose()?;
        let downgrade = downgrade
            .map(serde_json::from_slice)
            .transpose()
            .map_err(|error| VersionsError::Downgrade(error.to_string()))?
            .unwrap_or_default();
        Ok(Self { cluster, downgrade })
    }

    /// Returns the cluster version, or `None` until the log sets it.
    #[must_use]
    pub const fn cluster(&self) -> Option<Version> {
        self.cluster
    }

    /// Returns the downgrade in progress, or an empty downgrade if there is none.
    #[must_use]
    pub const fn downgrade(&self) -> &Downgrade {
        &self.downgrade
    }

    /// Sets the cluster version. Without a batch, it is set only in memory.
    pub fn set_cluster(&mut self, version: Version, batch: Option<&mut Batch>) {
        self.cluster = Some(version);
        if let Some(batch) = batch {
            batch.put(Bucket::Cluster, cluster::VERSION, version.to_string());
        }
    }

    /// Sets the downgrade. Without a batch, it is set only in memory.
    pub fn set_downgrade(&mut self, downgrade: Downgrade, batch: Option<&mut Batch>) {
        if let Some(batch) = batch {
            let json =
                serde_json::to_vec(&downgrade).expect("two plain fields can always be encoded");
            batch.put(Bucket::Cluster, cluster::DOWNGRADE, json);
        }
        self.downgrade = downgrade;
    }
}

/// The storage version of a file is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageVersionError {
    /// No migration from or to this version exists.
    #[error("version \"{0}\" is not supported")]
    Unsupported(Version),
    /// The major version differs from this server's major version.
    #[error("changing major storage version is not supported")]
    Major,
    /// The stored text is not a valid version.
    #[error("bucket meta: storageVersion {0:?} is not a valid version")]
    Unreadable(String),
}

/// Determines the storage version from bucket `meta`. It is the stored version, or 3.5 if the
/// bucket has a term but no version. Returns `None` if the file is older.
pub fn detect_storage_version(
    named: Option<&[u8]>,
    term: u64,
) -> Result<Option<Version>, StorageVersionError> {
    match named {
        Some(text) => {
            let text = String::from_utf8_lossy(text);
            let version = Version::parse(&text);
            version.map(Some).ok_or_else(|| StorageVersionError::Unreadable(text.into()))
        }
        None => Ok((term > 0).then_some(Version::OLDEST_FILE)),
    }
}

/// Returns whether a file of this version contains all changes to the member list. Most releases of etcd 3.5 never
/// overwrote a member's row.
#[must_use]
pub fn are_members_complete(version: Option<Version>) -> bool {
    version.is_some_and(|version| version >= Version::new(3, 6))
}

/// Checks whether this server can open a file of this version.
pub const fn check_storage_version(version: Version) -> Result<(), StorageVersionError> {
    if version.major != Version::OWN.major {
        return Err(StorageVersionError::Major);
    }
    if version.minor > Version::OWN.minor || version.minor < Version::OLDEST_FILE.minor {
        return Err(StorageVersionError::Unsupported(version));
    }
    Ok(())
}

/// Updates the storage version to match the cluster version: writes the key, or removes it if the
/// version is below 3.6. Returns whether anything changed.
pub fn follow_cluster_version(
    storage: Version,
    cluster: Option<Version>,
    batch: &mut Batch,
) -> Result<bool, StorageVersionError> {
    let Some(target) = cluster.filter(|cluster| *cluster != Version::MINIMUM) else {
        return Ok(false);
    };
    if target == storage {
        return Ok(false);
    }
    check_storage_version(storage)?;
    check_storage_version(target)?;
    if target >= NAMED_IN_FILE {
        batch.put(Bucket::Meta, meta::STORAGE_VERSION, target.to_string());
    } else {
        batch.delete(Bucket::Meta, Bytes::from_static(meta::STORAGE_VERSION));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_stored_as_in_etcd() {
        let mut versions = Versions::default();
        let mut batch = Batch::new();
        let target = Downgrade { target_version: "3.6.0".into(), enabled: true };
        versions.set_downgrade(target.clone(), Some(&mut batch));
        versions.set_cluster(Version::new(3, 7), None);
        assert_eq!(batch.op_count(), 1);
        let json = serde_json::to_string(&target).unwrap();
        assert_eq!(json, r#"{"target-version":"3.6.0","enabled":true}"#);
        let loaded = Versions::load(Some(b"3.7.0"), Some(json.as_bytes())).unwrap();
        assert_eq!(loaded, versions);
        let none = r#"{"target-version":"","enabled":false}"#;
        assert_eq!(serde_json::to_string(&Downgrade::default()).unwrap(), none);
        assert!(Versions::load(Some(b"three"), None).is_err());
        assert!(Versions::load(None, Some(b"{")).is_err());
    }

    #[test]
    fn the_storage_version_follows_the_cluster_version() {
        assert_eq!(detect_storage_version(None, 0), Ok(None));
        assert_eq!(detect_storage_version(None, 1), Ok(Some(Version::new(3, 5))));
        assert_eq!(detect_storage_version(Some(b"3.6.0"), 1), Ok(Some(Version::new(3, 6))));
        let newer = check_storage_version(Version::new(3, 8)).unwrap_err();
        assert_eq!(newer.to_string(), "version \"3.8.0\" is not supported");
        let follow = |storage, cluster| {
            let mut batch = Batch::new();
            let changed = follow_cluster_version(storage, cluster, &mut batch);
            assert_eq!(changed == Ok(true), batch.op_count() == 1);
            changed
        };
        let [v35, v36, v37] = [5, 6, 7].map(|minor| Version::new(3, minor));
        assert_eq!(follow(v37, None), Ok(false));
        assert_eq!(follow(v37, Some(Version::MINIMUM)), Ok(false));
        assert_eq!(follow(v37, Some(v37)), Ok(false));
        assert_eq!(follow(v35, Some(v37)), Ok(true));
        assert_eq!(follow(v37, Some(v36)), Ok(true));
        assert_eq!(follow(v36, Some(v35)), Ok(true));
        assert_eq!(follow(v36, Some(Version::new(4, 0))), Err(StorageVersionError::Major));
    }
}
