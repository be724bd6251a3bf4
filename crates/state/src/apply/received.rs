//! Determines which snapshot a received image belongs to.
//!
//! A Quorate leader sends an image that contains exactly the entries of its snapshot. So does an etcd leader, except
//! after a restart. After a restart, etcd applies entries again although its backend file already contains them, and it
//! may send that file with a snapshot that is a few entries older. The receiver cannot simply refuse the image until
//! the leader has caught up, because the leader may need the receiver in the quorum that commits the entries in
//! question.
//!
//! # Invariants
//!
//! * If the image is newer than its snapshot, the image's index, term and members replace the snapshot's. Consensus
//!   then skips the membership changes that the image already contains. If it did not skip them, it would apply them a
//!   second time, without validation by the state machine.
//! * An image that is older than its snapshot, or that has no index, is refused.

use std::path::PathBuf;

use super::{RecoverError, stored_members};
use crate::backend::{BackendView, Fault, ImageFault};
use crate::members::{Members, V2Error, V2Membership};
use crate::schema::{Bucket, meta};
use crate::versions::{StorageVersionError, are_members_complete, detect_storage_version};

/// The position of a snapshot, and the members at that position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPosition {
    /// The last entry that the snapshot contains.
    pub index: u64,
    /// The term of the last entry that the snapshot contains.
    pub term: u64,
    /// The members in the state after the image is installed.
    pub members: Members,
}

/// Why an image is refused.
#[derive(Debug, thiserror::Error)]
pub enum ReceivedFault {
    /// The file is not a valid image, or it does not contain the same entries as the snapshot.
    #[error(transparent)]
    Image(#[from] ImageFault),
    /// The image cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Fault),
    /// The members in the image cannot be read.
    #[error("the members in the database file cannot be read: {0}")]
    Members(#[from] RecoverError),
    /// The members in the snapshot cannot be read.
    #[error("the members in the snapshot cannot be read: {0}")]
    Tree(#[from] V2Error),
    /// The version in the image cannot be read.
    #[error(transparent)]
    Version(#[from] StorageVersionError),
    /// The image is newer than the snapshot, and its version does not store all membership changes.
    #[error(
        "database file ({} index {index}) is newer than its snapshot (index {snapshot}), and a file written by etcd \
         before 3.6 may lack membership changes; the leader must apply the entries up to index {index} and send \
         another snapshot",
        path.display()
    )]
    MembersUnknown {
        /// The path of the image.
        path: PathBuf,
        /// The last entry that the image contains.
        index: u64,
        /// The last entry that the snapshot contains.
        snapshot: u64,
    },
}

/// Returns the position of the snapshot that this image belongs to. The position is `named` (the index and term that
/// the sender names) unless the image is newer than `named`. `tree` is the snapshot's own data, from which the members
/// in an image written by etcd 3.5 are corrected.
pub fn snapshot_position(
    image: &BackendView,
    named: (u64, u64),
    tree: &[u8],
) -> Result<SnapshotPosition, ReceivedFault> {
    let (index, term) = image.consistent_index()?;
    let path = || image.path().to_path_buf();
    let is_newer = index > named.0 && term >= named.1;
    if !is_newer && index != named.0 {
        return Err(ImageFault::Mismatch { path: path(), index, snapshot: named.0 }.into());
    }
    let version = image.get(Bucket::Meta, meta::STORAGE_VERSION)?;
    let version = detect_storage_version(version.as_deref(), term)?;
    let mut members = stored_members(image)?;
    if !are_members_complete(version) {
        if is_newer {
            return Err(ReceivedFault::MembersUnknown { path: path(), index, snapshot: named.0 });
        }
        members = members.reconciled(&V2Membership::from_json(tree)?.members);
    }
    Ok(SnapshotPosition { index, term: if is_newer { term } else { named.1 }, members })
}
