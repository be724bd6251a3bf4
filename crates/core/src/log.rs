//! The write-ahead log at work: what is appended, synced, marked and released, in which order.
//!
//! # Invariants
//!
//! * A token is reported only after everything ordered up to it is on disk.
//! * A snapshot's mark never outlives a hard state that covers it: without one a start would pass over the
//!   mark. What lies before a mark is given up only when both are on disk.
//! * After a failed write or sync nothing is reported any more, and the member stops: what the medium
//!   holds then is unknown until the log is read again.
//!
//! # Not here
//!
//! When to sync: whoever owns the log appends all that waits, and syncs once.

use std::path::PathBuf;
use std::sync::Arc;

use quorate_node::Persist;
use quorate_raft::{Entry, HardState, LogIndex, Snapshot};
use quorate_storage::disk::Disk;
use quorate_storage::snap::SnapError;
use quorate_storage::wal::{self, Shortage, SnapshotMark, Wal, WalError};

use crate::snapshot;

/// Bytes of the log prepared at a time, when there is nothing else to do.
const PREPARE_BYTES: u64 = 1 << 20;

/// Why the log cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log itself.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The file of a leader's snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
}

/// What a sync has made of what was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Everything ordered up to here is on disk.
    pub token: u64,
    /// The segment that was begun.
    pub new_segment: Option<PathBuf>,
    /// The newest segment has not all the space it should have. Told once for each.
    pub shortage: Option<Shortage>,
}

/// What marking a snapshot has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// What had been appended before, and is on disk now.
    pub synced: Option<Synced>,
    /// The snapshot's last entry.
    pub index: LogIndex,
}

/// The open log, with what has been appended and not yet synced.
#[derive(Debug)]
pub struct Log {
    wal: Wal,
    disk: Arc<dyn Disk>,
    snap_dir: PathBuf,
    /// Where the newest snapshot stands that the log was told of.
    marked: LogIndex,
    /// The newest order appended and not yet synced.
    unsynced: Option<u64>,
}

impl Log {
    /// A log that goes on where it was opened.
    #[must_use]
    pub const fn new(wal: Wal, disk: Arc<dyn Disk>, snap_dir: PathBuf) -> Self {
        Self { wal, disk, snap_dir, marked: LogIndex::ZERO, unsynced: None }
    }

    /// Takes in what consensus wants made durable, and says how many bytes that is. Nothing is durable before the next
    /// [`Log::sync`].
    pub fn append(&mut self, persist: &Persist) -> Result<u64, LogError> {
        let is_next = self.unsynced.is_none_or(|before| before < persist.token);
        assert!(
            is_next,
            "orders to persist come in order: otherwise one sync would acknowledge an order that is not written"
        );
        if let Some(snapshot) = &persist.snapshot {
            self.begin_at(snapshot)?;
        }
        let hard_state = persist.hard_state.map(to_wal_state);
        assert!(
            hard_state.as_ref().is_none_or(|state| state.commit >= self.wal.hard_state().commit),
            "the commit index never falls: a start would pass over the newest snapshot, whose log is released"
        );
        let entries = persist.entries.iter().map(to_wal_entry);
        let appended = self.wal.append(hard_state.as_ref(), entries)?;
        self.unsynced = Some(persist.token);
        Ok(appended.bytes)
    }

    /// Makes everything appended durable, if there is anything.
    pub fn sync(&mut self) -> Result<Option<Synced>, LogError> {
        let Some(token) = self.unsynced.take() else { return Ok(None) };
        let new_segment = self.wal.sync()?.new_segment;
        let shortage = self.wal.take_shortage();
        Ok(Some(Synced { token, new_segment, shortage }))
    }

    /// Whether there is anything to sync.
    #[must_use]
    pub const fn is_synced(&self) -> bool {
        self.unsynced.is_none()
    }

    /// Notes a leader's snapshot, whose image has arrived: first its file, then the log's mark, so that a
    /// crash in between leaves a file that nobody looks at. The hard state that makes the mark count comes
    /// with the same order, behind it: the other way round a crash would leave a commit index beyond the
    /// log.
    ///
    /// Images of earlier snapshots stay: they may still wait to be installed.
    fn begin_at(&mut self, snapshot: &Snapshot) -> Result<(), LogError> {
        let file = snapshot::file_of(snapshot);
        let mark = snapshot::save(&*self.disk, &self.snap_dir, &file)?;
        Ok(self.write_mark(&mark)?)
    }

    /// Records that a snapshot of this member's own is on disk; segments below it may then be purged. What
    /// was appended before is synced first.
    pub fn mark(&mut self, mark: &SnapshotMark) -> Result<Marked, LogError> {
        let marked = Marked { synced: self.sync()?, index: LogIndex(mark.index) };
        // It may be ready only after a leader's newer one came in, and a start goes by the last mark.
        if marked.index <= self.marked {
            return Ok(marked);
        }
        let known = self.wal.hard_state();
        if known.commit < mark.index {
            // It was taken of what is applied, which is committed, though no write has said so yet.
            self.wal.append(Some(&wal::HardState { commit: mark.index, ..known }), [])?;
        }
        self.write_mark(mark)?;
        Ok(marked)
    }

    fn write_mark(&mut self, mark: &SnapshotMark) -> Result<(), WalError> {
        assert!(
            LogIndex(mark.index) > self.marked,
            "marks of snapshots rise: a start goes by the last one and would need segments that are purged"
        );
        self.wal.save_snapshot(mark)?;
        self.wal.release_to(mark.index);
        self.marked = LogIndex(mark.index);
        Ok(())
    }

    /// Prepares space ahead of the log, so that a sync does not have to update the file's metadata. Says
    /// whether there is more to prepare.
    pub fn prepare(&mut self) -> Result<bool, LogError> {
        Ok(self.wal.prepare(PREPARE_BYTES)?)
    }

    /// Writes a last hard state, if there is one, and closes the log.
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
