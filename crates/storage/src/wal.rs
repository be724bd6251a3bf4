//! The write-ahead log: etcd's, byte for byte.
//!
//! A log is a directory of segments. Each segment is a sequence of records (`record`), whose data
//! is chained by one running checksum. [`Wal`] appends to the log. [`Wal::open`] reads it, repairs
//! a torn end and continues it. [`read`] and [`snapshot_marks`] read without changing anything. One
//! thread owns the log; it appends entries and hard states, and acts only on those that were
//! reported as synced.
//!
//! # Guarantees
//!
//! * Everything that [`Wal::sync`] (or [`Wal::save`] with `synced`) has acknowledged survives a
//!   power cut, in order, unless bytes decay on the medium. Decayed bytes are reported, never
//!   repaired silently.
//! * A power cut at any point leaves a log that opens: complete, or with a torn end that is cut
//!   off.
//! * After a failed write or sync the log refuses everything: the kernel may have dropped the bytes
//!   that it could not write, and a retry would acknowledge bytes that are not on the disk.
//! * A commit index alone is never synced; it stays in memory until the next sync, as in etcd.
//! * Space is reserved ahead if the disk has plenty. If not, the log continues in the space that
//!   there is, and only a record for which there is no room stops it.
//!
//! # Not here
//!
//! The meaning of entries. Whether the log reaches as far as the backend has applied: the caller
//! compares [`Contents::last_index`] with the backend's consistent index and refuses to start a
//! member whose log lost entries. The timing of syncs.
//!
//! # Tests
//!
//! `wal/tests/`: bytes written by etcd, every kind of damage at every byte, power cuts at every
//! operation, random operations against a list.

mod contents;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod inspect;
mod open;
mod record;
mod scan;
mod segment;
mod tail;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

pub use self::contents::{Contents, Repair, read, snapshot_marks};
pub use self::error::WalError;
pub use self::open::exists;
pub use self::record::{Entry, EntryRef, HardState, SnapshotMark};
pub(crate) use self::segment::parse_hex;
pub use self::segment::{Listing, SegmentName, list};

use self::record::RecordEncoder;
use self::segment::{Segment, lock};
use self::tail::Tail;
use crate::disk::{Disk, OpenMode, is_no_room};
use crate::sync_failure;

/// Permission bits of segments.
const FILE_MODE: u32 = 0o600;

/// The size up to which records that need no sync stay in memory.
const UNSYNCED_BYTES_MAX: usize = 128 * 1024;

/// Options of writing a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size at which a segment is closed. The same size is reserved for a segment.
    pub segment_bytes: u64,
    /// Whether anything is synced; `false` with `--unsafe-no-fsync`.
    pub sync: bool,
    /// Zeros written together with records that have reached the end of the zeros ahead of the log.
    pub zero_step_bytes: u64,
    /// How far ahead of the log [`Wal::prepare`] keeps zeros.
    pub zero_lead_bytes: u64,
    /// Bytes that must stay free, for the backend file and other programs, when a whole segment is
    /// reserved.
    pub kept_free_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64_000_000,
            sync: true,
            zero_step_bytes: 256 * 1024,
            zero_lead_bytes: 8 * 1024 * 1024,
            kept_free_bytes: 16 * 1024 * 1024,
        }
    }
}

/// The result of [`Wal::append`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Size of the records.
    pub bytes: u64,
    /// Whether the caller must wait for a sync before it acts on the records.
    pub sync_needed: bool,
}

/// The result of [`Wal::sync`] or [`Wal::save`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Size of the records added by this call.
    pub bytes: u64,
    /// Whether a sync was made, so that everything added so far is durable.
    pub synced: bool,
    /// The new segment, if the last one was full.
    pub new_segment: Option<PathBuf>,
}

/// A segment for which less space is reserved than planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The segment.
    pub path: PathBuf,
    /// Space that was planned.
    pub wanted_bytes: u64,
    /// Space that is reserved.
    pub reserved_bytes: u64,
}

/// A log open for writing.
#[derive(Debug)]
pub struct Wal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: Options,
    metadata: Option<Bytes>,
    hard_state: HardState,
    last_index: u64,
    /// Records not yet passed to the system.
    encoder: RecordEncoder,
    /// Whether records were passed to the system since the last sync.
    written_unsynced: bool,
    /// A commit index that is certainly on disk. When the log is opened, snapshot marks beyond the commit index are
    /// ignored.
    durable_commit: u64,
    /// The locked segments in order; the last one belongs to `tail`.
    held: Vec<Segment>,
    /// The index up to which segments are unlocked once `durable_commit` reaches it; 0 for none.
    release_index: u64,
    tail: Tail,
    /// The next segment under its temporary name.
    next: Option<NextSegment>,
    /// The number of temporary names used so far. Two names alternate, so that the next name is not the
    /// one just renamed.
    next_count: u64,
    /// The newest segment whose shortage was reported.
    shortage_reported: Option<SegmentName>,
    poisoned: bool,
}

/// A preallocated segment that is not yet part of the sequence.
#[derive(Debug)]
struct NextSegment {
    path: PathBuf,
    file: Arc<dyn crate::disk::DiskFile>,
    tail: Tail,
}

impl Wal {
    /// Adds entries and then a hard state to the log's buffer.
    ///
    /// Nothing is durable before the next [`Wal::sync`], and if `sync_needed` is set, nothing may
    /// be acknowledged before it. A hard state that differs only in its commit index needs no sync:
    /// after a crash the commit index may be lower than the applied index.
    pub fn append<'e>(
        &mut self,
        hard_state: Option<&HardState>,
        entries: impl IntoIterator<Item = EntryRef<'e>>,
    ) -> Result<Appended, WalError> {
        self.check_usable()?;
        let bytes_before = self.encoder.buffer.len();
        let mut sync_needed = false;
        for entry in entries {
            // A log without its beginning does not know its last index.
            let last = self.last_index;
            let follows = last == 0 || entry.index <= last.saturating_add(1);
            assert!(
                follows,
                "an entry follows the last one or replaces an entry: otherwise the log has a hole and cannot be read"
            );
            self.encoder.push_entry(entry);
            self.last_index = entry.index;
            sync_needed = true;
        }
        if let Some(state) = hard_state.filter(|state| !state.is_empty()) {
            let known = self.hard_state;
            assert!(
                state.term >= known.term,
                "the term never falls: after a restart the member could vote again in a term in which it voted"
            );
            sync_needed |= state.vote != known.vote || state.term != known.term;
            self.encoder.push_state(state);
            self.hard_state = *state;
        }
        let bytes = (self.encoder.buffer.len() - bytes_before) as u64;
        if !sync_needed && self.encoder.buffer.len() > UNSYNCED_BYTES_MAX {
            self.poison_on_error(Self::write_out)?;
        }
        Ok(Appended { bytes, sync_needed })
    }

    /// Makes everything added so far durable, and begins a new segment if this one is full.
    pub fn sync(&mut self) -> Result<Saved, WalError> {
        self.check_usable()?;
        self.poison_on_error(|wal| {
            wal.write_out()?;
            let new_segment = if wal.tail.is_full() { wal.cut()? } else { None };
            // Cutting has synced both segments.
            wal.sync_tail()?;
            Ok(Saved { bytes: 0, synced: true, new_segment })
        })
    }

    /// Adds entries and a hard state, and syncs if they need it.
    pub fn save(
        &mut self,
        hard_state: Option<&HardState>,
        entries: &[Entry],
    ) -> Result<Saved, WalError> {
        let appended = self.append(hard_state, entries.iter().map(EntryRef::from))?;
        if !appended.sync_needed {
            return Ok(Saved { bytes: appended.bytes, ..Saved::default() });
        }
        Ok(Saved { bytes: appended.bytes, ..self.sync()? })
    }

    /// Records that a snapshot exists, and syncs everything added so far.
    ///
    /// The snapshot itself must be durable before: a mark without its snapshot stops a member. The
    /// mark takes effect once a hard state whose commit index covers it is durable too.
    pub fn save_snapshot(&mut self, mark: &SnapshotMark) -> Result<(), WalError> {
        self.check_usable()?;
        if mark.index > 0 && mark.conf_state.is_none() {
            return Err(WalError::MarkWithoutConfState { index: mark.index, term: mark.term });
        }
        self.encoder.push_mark(mark);
        self.last_index = self.last_index.max(mark.index);
        self.poison_on_error(|wal| {
            wal.write_out()?;
            wal.sync_tail()
        })
    }

    /// Unlocks the segments that a member with its latest snapshot at `index` does not need, so
    /// that they can be purged. This happens as soon as a hard state on disk covers the snapshot:
    /// until then a start would skip the snapshot's mark and need the segments.
    ///
    /// The last segment that begins before `index` stays locked, and everything after it.
    pub fn release_to(&mut self, index: u64) {
        self.release_index = self.release_index.max(index);
        self.release_covered();
    }

    fn release_covered(&mut self) {
        if self.release_index > self.durable_commit {
            return;
        }
        let index = std::mem::take(&mut self.release_index);
        let keep_from = self
            .held
            .iter()
            .position(|segment| segment.name.index >= index)
            .map_or(self.held.len() - 1, |position| position.saturating_sub(1));
        self.held.drain(..keep_from);
        assert!(
            !self.held.is_empty(),
            "the last segment stays locked: otherwise it could be purged while it is written"
        );
    }

    /// Does part of the work that later saves would have to wait for: reserves the next segment,
    /// writes zeros ahead of the log. Returns whether there is more to do.
    ///
    /// The owner calls this when it is idle. Each call writes and syncs at most `bytes_max` zeros,
    /// and nothing while fewer are missing.
    pub fn prepare(&mut self, bytes_max: u64) -> Result<bool, WalError> {
        self.check_usable()?;
        if self.next.is_none() && self.has_room_for_next()? {
            let next = self.create_next()?;
            self.next = Some(next);
            return Ok(true);
        }
        assert!(
            self.tail.written() <= self.tail.reserved_to(),
            "records lie in reserved space: otherwise a full disk would be noticed in the middle of a record"
        );
        let lead = self.options.zero_lead_bytes;
        let step = bytes_max.max(1);
        let wanted = self.tail.zeros_wanted(lead);
        if wanted > 0 && (wanted >= step || self.tail.written() + lead >= self.tail.reserved_to()) {
            self.poison_on_error(|wal| {
                wal.tail.write_zeros(wanted.min(step)).map_err(|e| wal.tail_error("write", e))?;
                wal.written_unsynced = true;
                wal.sync_tail()
            })?;
            return Ok(true);
        }
        if self.tail.written() + lead < self.options.segment_bytes {
            return Ok(false);
        }
        self.prepare_next(step)
    }

    /// Writes zeros into the next segment, which the log will soon need.
    fn prepare_next(&mut self, step: u64) -> Result<bool, WalError> {
        let Some(mut next) = self.next.take() else { return Ok(false) };
        let wanted = next.tail.zeros_wanted(self.options.zero_lead_bytes);
        if wanted > 0 {
            // On failure the segment is dropped, and reserved again when it is needed.
            next.tail.write_zeros(wanted.min(step)).map_err(WalError::io("write", &next.path))?;
            if self.options.sync {
                next.file.sync_data().map_err(WalError::io("sync", &next.path))?;
            }
        }
        self.next = Some(next);
        Ok(wanted > step)
    }

    /// Returns the newest segment if less space is reserved for it than planned, once for each
    /// segment.
    ///
    /// The log is correct without that space, but slower: each sync must also update the file's
    /// length.
    pub fn take_shortage(&mut self) -> Option<Shortage> {
        let segment = self.tail_segment();
        let name = segment.name;
        if self.tail.is_reserved() || self.shortage_reported == Some(name) {
            return None;
        }
        let shortage = Shortage {
            path: segment.path.clone(),
            wanted_bytes: self.options.segment_bytes,
            reserved_bytes: self.tail.reserved_to(),
        };
        self.shortage_reported = Some(name);
        Some(shortage)
    }

    /// Syncs the remaining records, removes the preallocated segment and unlocks everything.
    pub fn close(mut self) -> Result<(), WalError> {
        if let Some(next) = self.next.take() {
            // If the removal fails, only space is lost.
            drop(self.disk.remove_file(&next.path));
        }
        if self.poisoned {
            return Ok(());
        }
        self.write_out()?;
        self.sync_tail()
    }

    /// Returns the index of the last entry or snapshot mark added.
    #[must_use]
    pub const fn last_index(&self) -> u64 {
        self.last_index
    }

    /// Returns the last hard state added.
    #[must_use]
    pub const fn hard_state(&self) -> HardState {
        self.hard_state
    }

    /// Returns the log's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn check_usable(&self) -> Result<(), WalError> {
        if self.poisoned { Err(WalError::Poisoned { dir: self.dir.clone() }) } else { Ok(()) }
    }

    /// Runs a step after whose failure the state of the files is unknown.
    fn poison_on_error<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, WalError>,
    ) -> Result<T, WalError> {
        let result = step(self);
        if result.is_err() {
            self.poisoned = true;
            sync_failure::note(&*self.disk, &open::failure_mark(&self.dir));
        }
        result
    }

    /// Passes buffered records to the system.
    fn write_out(&mut self) -> Result<(), WalError> {
        if self.encoder.buffer.is_empty() {
            return Ok(());
        }
        let step = self.options.zero_step_bytes;
        let result = self.tail.append(&self.encoder.buffer, step);
        result.map_err(|e| self.tail_error("write", e))?;
        self.encoder.clear();
        self.written_unsynced = true;
        Ok(())
    }

    fn sync_tail(&mut self) -> Result<(), WalError> {
        if self.written_unsynced && self.options.sync {
            self.tail.file().sync_data().map_err(|e| self.tail_error("sync", e))?;
        }
        if self.written_unsynced && self.encoder.buffer.is_empty() {
            self.durable_commit = self.hard_state.commit;
            self.release_covered();
        }
        self.written_unsynced = false;
        Ok(())
    }

    fn tail_error(&self, action: &'static str, source: std::io::Error) -> WalError {
        WalError::Io { action, path: self.tail_segment().path.clone(), source }
    }

    fn tail_segment(&self) -> &Segment {
        self.held.last().expect("a log holds at least its last segment")
    }

    /// Ends this segment and begins the next one. Returns the new path, or `None` if the disk has
    /// no room for another segment: then this one becomes longer than planned.
    ///
    /// The new segment gets its name only when its head is durable. The head repeats what a reader
    /// needs to begin there: checksum, metadata, hard state.
    fn cut(&mut self) -> Result<Option<PathBuf>, WalError> {
        assert!(
            self.encoder.buffer.is_empty(),
            "a segment ends with whole records: buffered ones would stand before the head of the next segment"
        );
        let end = self.tail.written();
        self.tail.file().set_len(end).map_err(|e| self.tail_error("truncate", e))?;
        self.written_unsynced = true;
        self.sync_tail()?;

        let Some(next) = self.begin_next()? else { return Ok(None) };
        if self.options.sync {
            next.file.sync_data().map_err(WalError::io("sync", &next.path))?;
        }

        let sequence = self.tail_segment().name.sequence + 1;
        let name = SegmentName { sequence, index: self.last_index.saturating_add(1) };
        let path = self.dir.join(name.file_name());
        self.disk.rename(&next.path, &path).map_err(WalError::io("rename", &next.path))?;
        if self.options.sync {
            self.disk.sync_dir(&self.dir).map_err(WalError::io("sync", &self.dir))?;
        }
        assert!(
            self.tail_segment().name.precedes(&name),
            "segments are numbered without a gap: otherwise the next start refuses the log"
        );
        self.held.push(Segment { name, path: path.clone(), file: next.file });
        self.tail = next.tail;
        Ok(Some(path))
    }

    /// Writes the head of the next segment, if there is room for it.
    fn begin_next(&mut self) -> Result<Option<NextSegment>, WalError> {
        let created = self.next.take().map_or_else(|| self.create_next(), Ok);
        let mut next = match created {
            Ok(next) => next,
            Err(WalError::Io { source, .. }) if is_no_room(&source) => return Ok(None),
            Err(error) => return Err(error),
        };
        let crc_before = self.encoder.crc;
        self.push_head();
        let step = self.options.zero_step_bytes;
        let written = next.tail.append(&self.encoder.buffer, step);
        self.encoder.clear();
        match written {
            Ok(()) => Ok(Some(next)),
            Err(error) if is_no_room(&error) => {
                // The next records continue the checksum of the current segment, which stays in
                // use.
                self.encoder.crc = crc_before;
                Ok(None)
            }
            Err(error) => Err(WalError::io("write", &next.path)(error)),
        }
    }

    /// Buffers the records with which every segment but the first begins.
    fn push_head(&mut self) {
        self.encoder.push_crc();
        if let Some(metadata) = &self.metadata {
            self.encoder.push_metadata(metadata);
        }
        if !self.hard_state.is_empty() {
            self.encoder.push_state(&self.hard_state);
        }
    }

    /// Whether the disk has room to reserve a whole segment, which may not be needed for long.
    fn has_room_for_next(&self) -> Result<bool, WalError> {
        let free = self.tail.file().free_bytes().map_err(|e| self.tail_error("inspect", e))?;
        let wanted = self.options.segment_bytes.saturating_add(self.options.kept_free_bytes);
        Ok(free.is_none_or(|free| free >= wanted))
    }

    /// Creates the next segment under a temporary name, locked and empty, and reserves space for it
    /// as far as the disk has room.
    fn create_next(&mut self) -> Result<NextSegment, WalError> {
        let path = self.dir.join(format!("{}.tmp", self.next_count % 2));
        let file = self.disk.open(&path, OpenMode::Create(FILE_MODE));
        let file = file.map_err(WalError::io("create", &path))?;
        lock(&*file, &path)?;
        // Bytes that an earlier process left must not be read after our records.
        file.set_len(0).map_err(WalError::io("truncate", &path))?;
        let tail = Tail::new(Arc::clone(&file), 0, &self.options);
        let mut tail = tail.map_err(WalError::io("inspect", &path))?;
        tail.reserve().map_err(WalError::io("allocate", &path))?;
        self.next_count += 1;
        Ok(NextSegment { path, file, tail })
    }
}
