//! Determines which snapshot a received image belongs to.
//!
//! A Quorate leader sends an image that contains exactly the entries of its snapshot. An etcd
//! leader does too, except after a restart. After a restart, etcd counts entries as applied again
//! although its backend file already contains them, and may send that file with a snapshot that is
//! a few entries older. Refusing the image until the leader has caught up is not possible, because
//! the leader may need the receiver's vote to make progress.
//!
//! # Invariants
//!
//! * Snapshot and image agree in index, term and membership. Consensus does not apply a membership
//!   change that the image already contains: the state machine would not validate it again.
//! * An image that is older than its snapshot, or that has no index, is refused.

use std::path::PathBuf;

use super::{RecoverError, stored_members};
use crate::backend::{BackendView, Fault, ImageFault};
use crate::schema::{Bucket, meta};
use crate::versions::{StorageVersionError, are_members_complete, detect_storage_version};

/// The position of a snapshot, and the members at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPosition {
    /// The last entry that the snapshot contains.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// Voters, ascending.
    pub voters: Vec<u64>,
    /// Learners, ascending.
    pub learners: Vec<u64>,
}

/// Why an image is refused.
#[derive(Debug, thiserror::Error)]
pub enum ReceivedFault {
    /// The file is not a valid image, or it contains other entries than the snapshot.
    #[error(transparent)]
    Image(#[from] ImageFault),
    /// The image cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Fault),
    /// The members in the image cannot be read.
    #[error("the members cannot be read: {0}")]
    Members(#[from] RecoverError),
    /// The version in the image cannot be read.
    #[error(transparent)]
    Version(#[from] StorageVersionError),
    /// The image is newer than the snapshot, and of a version that does not store all membership
    /// changes.
    #[error(
        "database file ({} index {index}) is newer than its snapshot (index {snapshot}), and its members are not \
         complete before version 3.6; it is accepted once the leader has applied the entries in between",
        path.display()
    )]
    MembersUnknown {
        /// The path of the image.
        path: PathBuf,
        /// The last entry that it contains.
        index: u64,
        /// The last entry that the snapshot contains.
        snapshot: u64,
    },
}

/// Returns the position of the snapshot that this image belongs to, if it is newer than `named`,
/// the index and term that the sender names. Returns `None` if they agree.
pub fn newer_position(
    image: &BackendView,
    named: (u64, u64),
) -> Result<Option<SnapshotPosition>, ReceivedFault> {
    let (index, term) = image.consistent_index()?;
    if index == named.0 {
        return Ok(None);
    }
    let path = || image.path().to_path_buf();
    if index <= named.0 || term < named.1 {
        return Err(ImageFault::Mismatch { path: path(), index, snapshot: named.0 }.into());
    }
    let version = image.get(Bucket::Meta, meta::STORAGE_VERSION)?;
    let version = detect_storage_version(version.as_deref(), term)?;
    if !are_members_complete(version) {
        return Err(ReceivedFault::MembersUnknown { path: path(), index, snapshot: named.0 });
    }
    let state = stored_members(image)?.conf_state();
    Ok(Some(SnapshotPosition { index, term, voters: state.voters, learners: state.learners }))
}
