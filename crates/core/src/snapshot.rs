//! Snapshots of the state at an index. A starting member reads the log from the newest snapshot on.
//!
//! A snapshot consists of a small file (`.snap`) with the membership, and a mark in the log. The state itself is in the
//! backend file, which is committed first. Files and segments that are no longer needed to restart the member are
//! removed later, oldest first.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use quorate_api::raftpb::ConfState;
use quorate_raft::{LogIndex, SnapshotMetadata, Term};
use quorate_state::members::{Members, V2Membership};
use quorate_state::versions::Versions;
use quorate_storage::disk::Disk;
use quorate_storage::purge::{PurgeError, purge};
use quorate_storage::snap::{self, SnapError};
use quorate_storage::wal::SnapshotMark;

/// The contents of a snapshot, taken from the state at the snapshot's index.
#[derive(Clone, Debug)]
pub struct SnapshotOrder(quorate_raft::Snapshot);

impl SnapshotOrder {
    /// Creates a snapshot of a state that has applied all entries up to `index` and has these members and
    /// versions.
    #[must_use]
    pub fn new(index: LogIndex, term: Term, members: &Members, versions: &Versions) -> Self {
        let membership =
            V2Membership { members: members.clone(), cluster_version: versions.cluster() };
        assert!(
            index > LogIndex::ZERO,
            "the index of a snapshot is above 0: otherwise its receiver would treat the snapshot as missing"
        );
        let metadata = SnapshotMetadata { conf_state: configuration_of(members), index, term };
        Self(quorate_raft::Snapshot { data: membership.to_json().into(), metadata })
    }

    /// Returns the index of the last entry that the snapshot contains.
    pub(crate) const fn index(&self) -> LogIndex {
        self.0.metadata.index
    }

    /// Converts the snapshot into the form that consensus sends to a peer.
    #[must_use]
    pub fn into_raft(self) -> quorate_raft::Snapshot {
        self.0
    }

    /// Converts the snapshot into the contents of its file.
    pub(crate) fn to_file(&self) -> snap::Snapshot {
        file_of(&self.0)
    }
}

/// Returns the raft configuration of these members. Consensus starts with it and then follows the applied membership
/// changes.
#[must_use]
pub fn configuration_of(members: &Members) -> quorate_raft::ConfState {
    let ConfState { voters, learners, .. } = members.conf_state();
    quorate_raft::ConfState { voters, learners, ..quorate_raft::ConfState::default() }
}

/// Corrects the members of an image to match the members that consensus counts, if the image lists all of them.
#[must_use]
pub(crate) fn as_counted(members: Members, counted: &quorate_raft::ConfState) -> Members {
    members.counted_as(&counted.voters, &counted.learners).unwrap_or(members)
}

/// Converts a snapshot from consensus into the contents of its file.
pub(crate) fn file_of(snapshot: &quorate_raft::Snapshot) -> snap::Snapshot {
    let metadata = &snapshot.metadata;
    snap::Snapshot {
        index: metadata.index.get(),
        term: metadata.term.get(),
        conf_state: encode_conf_state(&metadata.conf_state),
        data: snapshot.data.clone(),
    }
}

/// Returns the log's mark for a snapshot that is on disk.
pub(crate) fn mark_of(file: &snap::Snapshot) -> SnapshotMark {
    let conf_state = Some(file.conf_state.clone());
    SnapshotMark { index: file.index, term: file.term, conf_state }
}

/// Encodes a raft configuration for files and messages.
fn encode_conf_state(state: &quorate_raft::ConfState) -> Bytes {
    let state = ConfState {
        voters: state.voters.clone(),
        learners: state.learners.clone(),
        voters_outgoing: state.voters_outgoing.clone(),
        learners_next: state.learners_next.clone(),
        // etcd writes this field explicitly, even if it is false.
        auto_leave: Some(state.auto_leave),
    };
    state.encode_to_vec().into()
}

/// Removes old snapshot files and segments of the log.
#[derive(Clone, Debug)]
pub struct Purger {
    /// The disk that contains both directories.
    pub disk: Arc<dyn Disk>,
    /// The directory of `.snap` files.
    pub snap_dir: PathBuf,
    /// The directory of the log's segments.
    pub wal_dir: PathBuf,
    /// The number of `.snap` files to keep.
    pub snapshots_max: usize,
    /// The number of segments to keep. Segments that the log may still need are always kept.
    pub segments_max: usize,
}

impl Purger {
    /// Removes old files that are not needed, and calls `removed` for each. Images of a leader's snapshots are not
    /// removed here, because they may not be installed yet. Each image is removed after its installation.
    pub fn run(&self, mut removed: impl FnMut(&Path)) -> Result<(), PurgeError> {
        let disk = &*self.disk;
        let kinds = [
            (&self.snap_dir, ".snap", self.snapshots_max, false),
            (&self.wal_dir, ".wal", self.segments_max, true),
        ];
        for (dir, suffix, keep, locked) in kinds {
            purge(disk, dir, suffix, keep, locked)?.removed.iter().for_each(|path| removed(path));
        }
        Ok(())
    }
}

/// Writes the snapshot's file durably, and returns the mark for the log.
pub(crate) fn save(
    disk: &dyn Disk,
    dir: &Path,
    file: &snap::Snapshot,
) -> Result<SnapshotMark, SnapError> {
    snap::save(disk, dir, file)?;
    Ok(mark_of(file))
}
