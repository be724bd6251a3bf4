//! Disk snapshots: marking a point from which the log alone suffices, and purging what lies before it.
//!
//! A snapshot is a small file (`.snap`) with the membership, and a mark in the log. The state itself is in
//! the backend file, which is committed first. Files and segments that no start could need are removed
//! later, by age.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use quorate_api::raftpb::ConfState;
use quorate_state::members::{Members, V2Membership};
use quorate_state::versions::Versions;
use quorate_storage::disk::Disk;
use quorate_storage::purge::{PurgeError, purge};
use quorate_storage::snap::{self, SnapError, Snapshot};
use quorate_storage::wal::SnapshotMark;

use crate::driver::{DriverHandle, Input};
use crate::log;
use crate::metrics::Metrics;

/// What a snapshot says, gathered by the applier at the snapshot's index.
#[derive(Debug)]
pub(crate) struct SnapshotOrder {
    index: u64,
    term: u64,
    conf_state: ConfState,
    data: Bytes,
}

impl SnapshotOrder {
    pub(crate) fn new(index: u64, term: u64, members: &Members, versions: &Versions) -> Self {
        let membership =
            V2Membership { members: members.clone(), cluster_version: versions.cluster() };
        let data = membership.to_json().into();
        // As etcd writes it, with the flag spelled out.
        let conf_state = ConfState { auto_leave: Some(false), ..members.conf_state() };
        Self { index, term, conf_state, data }
    }

    /// The same for consensus, to be sent to a peer.
    pub(crate) fn into_raft(self) -> quorate_raft::Snapshot {
        let ConfState { voters, learners, .. } = self.conf_state;
        let conf_state =
            quorate_raft::ConfState { voters, learners, ..quorate_raft::ConfState::default() };
        let metadata =
            quorate_raft::SnapshotMetadata { conf_state, index: self.index, term: self.term };
        quorate_raft::Snapshot { data: self.data, metadata }
    }
}

/// A configuration of consensus as files and messages hold it.
pub(crate) fn encode_conf_state(state: &quorate_raft::ConfState) -> Bytes {
    let state = ConfState {
        voters: state.voters.clone(),
        learners: state.learners.clone(),
        voters_outgoing: state.voters_outgoing.clone(),
        learners_next: state.learners_next.clone(),
        auto_leave: Some(state.auto_leave),
    };
    state.encode_to_vec().into()
}

/// Writes snapshots; belongs to the backend thread.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) driver: DriverHandle,
    pub(crate) metrics: Arc<Metrics>,
}

impl Writer {
    /// Writes the snapshot file, then has the log marked. The backend file holds at least as much.
    pub(crate) fn take(&self, order: &SnapshotOrder) -> Result<(), SnapError> {
        let started = Instant::now();
        let conf_state = Bytes::from(order.conf_state.encode_to_vec());
        let snapshot = Snapshot {
            index: order.index,
            term: order.term,
            conf_state: conf_state.clone(),
            data: order.data.clone(),
        };
        self.metrics.snapshot.marshalling.observe(started.elapsed());
        snap::save(&*self.disk, &self.dir, &snapshot)?;
        self.metrics.snapshot.fsync.observe(started.elapsed());
        self.metrics.snapshot.save.observe(started.elapsed());
        snap::release_databases(&*self.disk, &self.dir, order.index)?;
        let mark =
            SnapshotMark { index: order.index, term: order.term, conf_state: Some(conf_state) };
        self.driver.report(Input::MarkSnapshot(mark));
        log::info!("saved snapshot", "snapshot-index" = order.index);
        log::info!("saved snapshot to disk", "snapshot-index" = order.index);
        Ok(())
    }
}

/// What is kept of old files.
#[derive(Clone, Debug)]
pub(crate) struct Purger {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) snap_dir: PathBuf,
    pub(crate) wal_dir: PathBuf,
    pub(crate) snapshots_max: usize,
    pub(crate) segments_max: usize,
}

impl Purger {
    /// Removes what is old and not needed. Images of a leader's snapshots are not counted: they may wait for their
    /// turn, and go when that has passed.
    pub(crate) fn run(&self) -> Result<(), PurgeError> {
        let disk = &*self.disk;
        let kinds = [
            (&self.snap_dir, ".snap", self.snapshots_max, false),
            (&self.wal_dir, ".wal", self.segments_max, true),
        ];
        for (dir, suffix, keep, locked) in kinds {
            let purged = purge(disk, dir, suffix, keep, locked)?;
            for path in purged.removed {
                log::info!("purged", "path" = path.display().to_string());
            }
        }
        Ok(())
    }
}
