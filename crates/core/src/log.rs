//! The writer of the write-ahead log. It determines the order of appends, syncs, snapshot marks and segment releases.
//!
//! # Invariants
//!
//! * The token of an order is reported only after this order and all earlier orders are on disk.
//! * A snapshot's mark is on disk only together with a hard state that covers it, except after a crash between the two
//!   writes. In that case the mark is ignored when the member restarts. The log before a mark is released only when the
//!   mark and this hard state are on disk.
//! * After a failed write or sync no token is reported, and the member stops, because the content of the disk is
//!   unknown until the log is read again.
//!
//! # Not here
//!
//! Deciding when to sync. The log's owner appends all pending orders and then syncs once.

use std::path::PathBuf;
use std::sync::Arc;

use quorate_node::Persist;
use quorate_raft::{Entry, HardState, LogIndex, Snapshot};
use quorate_storage::disk::Disk;
use quorate_storage::snap::SnapError;
use quorate_storage::wal::{self, Shortage, SnapshotMark, Wal, WalError};

use crate::snapshot;

/// The number of bytes that each step preallocates while the log is idle.
const PREPARE_BYTES: u64 = 1 << 20;

/// Why the log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A write to the log, or a sync of it, failed.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The file of a leader's snapshot cannot be written.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
}

/// The result of a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// All orders up to this token are on disk.
    pub token: u64,
    /// The new segment, if one was started.
    pub new_segment: Option<PathBuf>,
    /// Set if less space than planned could be reserved for the newest segment. Reported once per segment.
    pub shortage: Option<Shortage>,
}

/// The result of marking a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The result of syncing earlier appends, if there were any.
    pub synced: Option<Synced>,
    /// The index of the snapshot's last entry.
    pub index: LogIndex,
}

/// The open log, including appends that are not synced yet.
#[derive(Debug)]
pub struct Log {
    wal: Wal,
    disk: Arc<dyn Disk>,
    snap_dir: PathBuf,
    /// The index of the newest snapshot mark written since the log was opened.
    marked: LogIndex,
    /// The token of the newest appended order that is not synced yet.
    unsynced: Option<u64>,
}

impl Log {
    /// Creates a writer for this open write-ahead log.
    #[must_use]
    pub const fn new(wal: Wal, disk: Arc<dyn Disk>, snap_dir: PathBuf) -> Self {
        Self { wal, disk, snap_dir, marked: LogIndex::ZERO, unsynced: None }
    }

    /// Appends an order from consensus, and returns the number of appended bytes. The order is durable after the next
    /// [`Log::sync`].
    pub fn append(&mut self, persist: &Persist) -> Result<u64, LogError> {
        let is_next = self.unsynced.is_none_or(|before| before < persist.token);
        assert!(
            is_next,
            "requests to persist arrive by ascending token: otherwise a sync would acknowledge an unwritten request"
        );
        let hard_state = persist.hard_state.map(to_wal_state);
        if let Some(snapshot) = &persist.snapshot {
            self.begin_at(snapshot, hard_state)?;
        }
        assert!(
            hard_state.as_ref().is_none_or(|state| state.commit >= self.wal.hard_state().commit),
            "the commit index never decreases: otherwise a restarted member would ignore the newest mark, \
             although the segments before it are released"
        );
        let entries = persist.entries.iter().map(to_wal_entry);
        let appended = self.wal.append(hard_state.as_ref(), entries)?;
        self.unsynced = Some(persist.token);
        Ok(appended.bytes)
    }

    /// Syncs all appended orders, if there are any.
    pub fn sync(&mut self) -> Result<Option<Synced>, LogError> {
        let Some(token) = self.unsynced.take() else { return Ok(None) };
        let new_segment = self.wal.sync()?.new_segment;
        let shortage = self.wal.take_shortage();
        Ok(Some(Synced { token, new_segment, shortage }))
    }

    /// Returns whether all appended orders are synced.
    #[must_use]
    pub const fn is_synced(&self) -> bool {
        self.unsynced.is_none()
    }

    /// Writes a leader's snapshot whose image has been received. The snapshot's file is written before the log's mark,
    /// so that a crash in between leaves an unused file. A hard state that covers the mark follows the mark. If it were
    /// written first, a crash could leave a commit index beyond the end of the log. If the order's entries were written
    /// first, a crash could leave entries after a mark that is ignored, and so a log with a gap.
    ///
    /// Images of earlier snapshots are kept because they may still wait for their installation.
    fn begin_at(
        &mut self,
        snapshot: &Snapshot,
        hard_state: Option<wal::HardState>,
    ) -> Result<(), LogError> {
        let file = snapshot::file_of(snapshot);
        let mark = snapshot::save(&*self.disk, &self.snap_dir, &file)?;
        self.write_mark(&mark)?;
        let known = self.wal.hard_state();
        let commit = known.commit.max(mark.index);
        let covering = wal::HardState { commit, ..hard_state.unwrap_or(known) };
        self.wal.append(Some(&covering), [])?;
        Ok(())
    }

    /// Writes the mark of a snapshot that this member has taken and whose file is on disk. Earlier appends are synced
    /// first. Segments below the snapshot may be purged afterwards.
    pub fn mark(&mut self, mark: &SnapshotMark) -> Result<Marked, LogError> {
        let marked = Marked { synced: self.sync()?, index: LogIndex(mark.index) };
        // A restarting member uses the last mark in the log. If the log already ends with the newer mark of a leader's
        // snapshot, that mark must stay the last one.
        if marked.index <= self.marked {
            return Ok(marked);
        }
        let known = self.wal.hard_state();
        if known.commit < mark.index {
            // The snapshot contains only applied entries, which are committed even though no hard state on disk covers
            // them yet.
            self.wal.append(Some(&wal::HardState { commit: mark.index, ..known }), [])?;
        }
        self.write_mark(mark)?;
        Ok(marked)
    }

    fn write_mark(&mut self, mark: &SnapshotMark) -> Result<(), WalError> {
        assert!(
            LogIndex(mark.index) > self.marked,
            "snapshot marks increase: otherwise a restarted member would use an older mark and need purged segments"
        );
        self.wal.save_snapshot(mark)?;
        self.wal.release_to(mark.index);
        self.marked = LogIndex(mark.index);
        Ok(())
    }

    /// Preallocates space ahead of the log's end, so that a sync does not have to update the file's metadata. Returns
    /// whether there is more to preallocate.
    pub fn prepare(&mut self) -> Result<bool, LogError> {
        Ok(self.wal.prepare(PREPARE_BYTES)?)
    }

    /// Returns whether [`Log::prepare`] has work to do.
    #[must_use]
    pub fn needs_preparation(&self) -> bool {
        self.wal.needs_preparation(PREPARE_BYTES)
    }

    /// Appends the final hard state, if any, and closes the log.
    pub fn close(mut self, hard_state: Option<HardState>) -> Result<(), LogError> {
        if let Some(hard_state) = hard_state {
            self.wal.append(Some(&to_wal_state(hard_state)), [])?;
        }
        Ok(self.wal.close()?)
    }
}

fn to_wal_entry(entry: &Entry) -> wal::EntryRef<'_> {
    let kind = entry.kind as u8;
    wal::EntryRef { index: entry.index.get(), term: entry.term.get(), kind, data: &entry.data }
}

const fn to_wal_state(state: HardState) -> wal::HardState {
    wal::HardState { term: state.term.get(), vote: state.vote, commit: state.commit.get() }
}
