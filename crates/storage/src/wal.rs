//! The write-ahead log, byte for byte in etcd's format.
//!
//! A log is a directory of segments. Each segment is a sequence of records (`record`), whose data is chained by one
//! running checksum. [`Wal`] appends to the log. [`Wal::open`] reads the log, cuts off a torn end, and opens the log
//! for appending. [`read`] and [`snapshot_marks`] read it without changing anything. A single thread owns the log. It
//! appends entries and hard states, and must not acknowledge them before they are reported as synced.
//!
//! # Guarantees
//!
//! * All records that [`Wal::sync`] (or [`Wal::save`] with `synced`) has acknowledged survive a power cut, in order,
//!   unless [`Options::sync`] is off or bytes decay on the medium. Decayed bytes are reported, never repaired silently.
//! * After a power cut at any point the log can be opened. The log is then either complete, or ends in a torn record,
//!   which is cut off.
//! * After a failed write or sync of records the log refuses all operations. The kernel may have dropped the bytes that
//!   it could not write, so a retry would acknowledge bytes that are not on the disk.
//! * If only the commit index changes, no sync is needed. The change may stay in memory until the next sync, as in
//!   etcd.
//! * Space for the log is reserved in advance if the disk has enough free space. Otherwise, the log uses the remaining
//!   space, and stops only at a record for which there is no room. If there is no room for the next segment, or for its
//!   name, the current segment becomes longer than planned.
//!
//! # Not here
//!
//! The meaning of entries, and the timing of syncs. The check that the log reaches the backend's applied index: the
//! caller compares [`Contents::last_index`] with the backend's consistent index, and refuses to start a member whose
//! log has lost entries.
//!
//! # Tests
//!
//! `wal/tests/` covers bytes written by etcd, every kind of damage at every byte, power cuts at every operation, and
//! random operations compared with a list.

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
pub use self::open::{exists, remove_unused, sync_records};
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

/// The maximum size, in bytes, of the records that are kept in memory because they need no sync.
const UNSYNCED_BYTES_MAX: usize = 128 * 1024;

/// Options for writing a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size at which a segment is closed, in bytes. The same amount of space is reserved for a new segment.
    pub segment_bytes: u64,
    /// Whether the log is synced at all. `false` if `--unsafe-no-fsync` is set.
    pub sync: bool,
    /// When records use up the zeros ahead of the log, this many new zero bytes are written in the same call as the
    /// records.
    pub zero_step_bytes: u64,
    /// The number of zero bytes that [`Wal::prepare`] keeps ahead of the log.
    pub zero_lead_bytes: u64,
    /// The number of bytes that must stay free for the backend file and other programs when a whole segment is
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
    /// Size of the encoded records, in bytes.
    pub bytes: u64,
    /// Whether the caller must wait for a sync before it acknowledges the records.
    pub sync_needed: bool,
}

/// The result of [`Wal::sync`] or [`Wal::save`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Size of the records added by this call, in bytes.
    pub bytes: u64,
    /// Whether the log was synced, so that all records added so far are durable.
    pub synced: bool,
    /// The new segment, if the previous one was full.
    pub new_segment: Option<PathBuf>,
}

/// A segment with less reserved space than planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The path of the segment.
    pub path: PathBuf,
    /// The planned space, in bytes.
    pub wanted_bytes: u64,
    /// The reserved space, in bytes.
    pub reserved_bytes: u64,
}

/// A step of the preparation for later saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preparation {
    /// Create and reserve the next segment.
    Reserve,
    /// Write zeros after the end of the log.
    ZeroTail { bytes: u64 },
    /// Write zeros into the next segment.
    ZeroNext { bytes: u64 },
}

/// A log that is open for writing.
#[derive(Debug)]
pub struct Wal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: Options,
    metadata: Option<Bytes>,
    hard_state: HardState,
    last_index: u64,
    /// Records that have not been passed to the system yet.
    encoder: RecordEncoder,
    /// Whether records have been passed to the system since the last sync.
    written_unsynced: bool,
    /// The highest commit index known to be on disk. When the log is opened, snapshot marks beyond the commit index are
    /// ignored.
    durable_commit: u64,
    /// The locked segments in order. The last one belongs to `tail`.
    held: Vec<Segment>,
    /// The index up to which segments are unlocked once `durable_commit` reaches it; 0 if no segments are to be
    /// unlocked.
    release_index: u64,
    tail: Tail,
    /// The next segment, under its temporary name.
    next: Option<NextSegment>,
    /// Whether the last attempt to create or begin the next segment failed for lack of room. The next attempt is made
    /// when the current segment is full, not in advance.
    next_lacked_room: bool,
    /// The number of temporary names used so far. Two names alternate, so that a new segment never reuses the name that
    /// was just renamed.
    next_count: u64,
    /// The newest segment whose shortage was reported.
    shortage_reported: Option<SegmentName>,
    poisoned: bool,
}

/// A preallocated segment that is not part of the sequence yet.
#[derive(Debug)]
struct NextSegment {
    path: PathBuf,
    file: Arc<dyn crate::disk::DiskFile>,
    tail: Tail,
}

impl Wal {
    /// Adds entries, followed by a hard state, to the log's buffer.
    ///
    /// Nothing is durable before the next [`Wal::sync`]. If `sync_needed` is set, the caller must not acknowledge
    /// anything before that sync. A hard state that differs only in its commit index needs no sync, because after a
    /// crash the commit index in the log is allowed to be lower than the applied index.
    pub fn append<'e>(
        &mut self,
        hard_state: Option<&HardState>,
        entries: impl IntoIterator<Item = EntryRef<'e>>,
    ) -> Result<Appended, WalError> {
        self.check_usable()?;
        let bytes_before = self.encoder.buffer.len();
        let mut sync_needed = false;
        for entry in entries {
            // The last index is unknown if the log has lost its beginning.
            let last = self.last_index;
            let follows = last == 0 || entry.index <= last.saturating_add(1);
            assert!(
                follows,
                "an entry follows the last one or replaces an entry: otherwise the log would have a gap and be \
                 unreadable"
            );
            self.encoder.push_entry(entry);
            self.last_index = entry.index;
            sync_needed = true;
        }
        if let Some(state) = hard_state.filter(|state| !state.is_empty()) {
            let known = self.hard_state;
            assert!(
                state.term >= known.term,
                "the term never decreases: otherwise a restarted member could vote twice in the same term"
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

    /// Makes all records added so far durable, and starts a new segment if the current one is full.
    pub fn sync(&mut self) -> Result<Saved, WalError> {
        self.check_usable()?;
        self.poison_on_error(|wal| {
            wal.write_out()?;
            let new_segment = if wal.tail.is_full() { wal.cut()? } else { None };
            // If a new segment was started, `cut` has synced both segments, and this call has no effect.
            wal.sync_tail()?;
            Ok(Saved { bytes: 0, synced: true, new_segment })
        })
    }

    /// Adds entries and a hard state, and syncs if they require it.
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

    /// Adds a mark for an existing snapshot, and syncs all records added so far.
    ///
    /// The snapshot itself must already be durable, because older etcd versions refuse to start if the snapshot of a
    /// mark is missing. The mark takes effect once a hard state whose commit index covers it is also durable.
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

    /// Unlocks the segments that a member whose latest snapshot is at `index` does not need, so that they can be
    /// purged. They are unlocked as soon as a hard state on disk covers the snapshot. Before that, a restarted member
    /// would ignore the snapshot's mark and need the segments.
    ///
    /// The last segment that begins before `index` stays locked, as do all later segments.
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
            "the last segment stays locked: otherwise it could be purged while it is being written"
        );
    }

    /// Prepares for later saves, which would otherwise wait for this work: reserves the next segment, and writes zeros
    /// ahead of the log. Returns whether there is more to do.
    ///
    /// The owner calls this when it is idle. Each call writes and syncs at most `bytes_max` zeros. If fewer than
    /// `bytes_max` zeros are missing, a call writes none, except near the end of a segment.
    pub fn prepare(&mut self, bytes_max: u64) -> Result<bool, WalError> {
        self.check_usable()?;
        let step = bytes_max.max(1);
        let may_reserve = self.next.is_some() || self.has_room_for_next()?;
        match self.preparation(step, may_reserve) {
            None => return Ok(false),
            Some(Preparation::Reserve) => {
                let created = self.create_next();
                self.next = self.unless_no_room(created)?;
            }
            Some(Preparation::ZeroTail { bytes }) => self.poison_on_error(|wal| {
                wal.tail.write_zeros(bytes).map_err(|e| wal.tail_error("write", e))?;
                wal.written_unsynced = true;
                wal.sync_tail()
            })?,
            Some(Preparation::ZeroNext { bytes }) => {
                if let Some(mut next) = self.next.take() {
                    let zeroed = self.zero_next(&mut next, bytes);
                    let kept = self.kept_unless_failed(next, zeroed);
                    self.next = self.unless_no_room(kept)?;
                }
            }
        }
        Ok(self.preparation(step, false).is_some())
    }

    /// Returns whether [`Wal::prepare`] with the same argument has work to do. If not, the owner can sleep. Reads no
    /// file.
    #[must_use]
    pub fn needs_preparation(&self, bytes_max: u64) -> bool {
        self.preparation(bytes_max.max(1), true).is_some()
    }

    /// Returns the next preparation step, which writes at most `step` zeros. The next segment is reserved only if
    /// `may_reserve` is set.
    fn preparation(&self, step: u64, may_reserve: bool) -> Option<Preparation> {
        if self.next.is_none() && may_reserve && !self.next_lacked_room {
            return Some(Preparation::Reserve);
        }
        assert!(
            self.tail.written() <= self.tail.reserved_to(),
            "records are in reserved space: otherwise a full disk would be detected in the middle of a record"
        );
        let lead = self.options.zero_lead_bytes;
        let wanted = self.tail.zeros_wanted(lead);
        if wanted > 0 && (wanted >= step || self.tail.written() + lead >= self.tail.reserved_to()) {
            return Some(Preparation::ZeroTail { bytes: wanted.min(step) });
        }
        if self.tail.written() + lead < self.options.segment_bytes {
            return None;
        }
        let wanted = self.next.as_ref().map_or(0, |next| next.tail.zeros_wanted(lead));
        (wanted > 0).then_some(Preparation::ZeroNext { bytes: wanted.min(step) })
    }

    /// Writes zeros into the next segment, which will be needed soon.
    fn zero_next(&self, next: &mut NextSegment, bytes: u64) -> Result<(), WalError> {
        next.tail.write_zeros(bytes).map_err(WalError::io("write", &next.path))?;
        self.sync_next(next)
    }

    /// Returns the newest segment if less space is reserved for it than planned, or the next segment if there was no
    /// room for it. At most one shortage is returned until another segment is started.
    ///
    /// The log is correct without that space, but slower, because each sync must also update the file's length.
    pub fn take_shortage(&mut self) -> Option<Shortage> {
        let segment = self.tail_segment();
        let name = segment.name;
        let (path, reserved_bytes) = if !self.tail.is_reserved() {
            (segment.path.clone(), self.tail.reserved_to())
        } else if self.next_lacked_room {
            (self.next_path(), 0)
        } else {
            return None;
        };
        if self.shortage_reported.replace(name) == Some(name) {
            return None;
        }
        Some(Shortage { path, wanted_bytes: self.options.segment_bytes, reserved_bytes })
    }

    /// Syncs the remaining records, removes the preallocated segment and unlocks all segments.
    pub fn close(mut self) -> Result<(), WalError> {
        if let Some(next) = self.next.take() {
            // If the removal fails, only disk space is wasted.
            drop(self.disk.remove_file(&next.path));
        }
        if self.poisoned {
            return Ok(());
        }
        self.write_out()?;
        self.sync_tail()
    }

    /// Returns the index of the last added entry or snapshot mark.
    #[must_use]
    pub const fn last_index(&self) -> u64 {
        self.last_index
    }

    /// Returns the last added hard state.
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

    /// Runs an operation. If it fails, the state of the files is unknown, so the log is poisoned.
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

    /// Passes the buffered records to the system.
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
        self.held.last().expect("a log has at least one open segment")
    }

    /// Closes this segment and starts the next one. Returns the path of the new segment, or `None` if the disk has no
    /// room for one. In that case the current segment becomes longer than planned.
    ///
    /// The new segment receives its final name only after its head is durable. The head repeats the data that a reader
    /// needs to start at this segment: checksum, metadata and hard state.
    fn cut(&mut self) -> Result<Option<PathBuf>, WalError> {
        assert!(
            self.encoder.buffer.is_empty(),
            "no records are buffered at a segment's end: otherwise they would precede the head of the next segment"
        );
        let end = self.tail.written();
        self.tail.file().set_len(end).map_err(|e| self.tail_error("truncate", e))?;
        self.written_unsynced = true;
        self.sync_tail()?;

        let sequence = self.tail_segment().name.sequence + 1;
        let name = SegmentName { sequence, index: self.last_index.saturating_add(1) };
        assert!(
            self.tail_segment().name.precedes(&name),
            "segment numbers have no gaps: otherwise the log could not be opened again"
        );
        let path = self.dir.join(name.file_name());
        let begun = self.begin_next(&path);
        let Some(next) = self.unless_no_room(begun)? else { return Ok(None) };
        if self.options.sync {
            self.disk.sync_dir(&self.dir).map_err(WalError::io("sync", &self.dir))?;
        }
        self.held.push(Segment { name, path: path.clone(), file: next.file });
        self.tail = next.tail;
        Ok(Some(path))
    }

    /// Writes the head of the next segment and renames the segment to `path`. If this fails, no segment has that name,
    /// and the checksum is still that of the current segment.
    fn begin_next(&mut self, path: &Path) -> Result<NextSegment, WalError> {
        let mut next = self.next.take().map_or_else(|| self.create_next(), Ok)?;
        let crc_before = self.encoder.crc;
        self.push_head();
        let published = self.publish_next(&mut next, path);
        self.encoder.clear();
        if published.is_err() {
            self.encoder.crc = crc_before;
        }
        self.kept_unless_failed(next, published)
    }

    /// Returns the next segment, or removes its file if an operation on the segment has failed, because the file's state
    /// is then unknown.
    fn kept_unless_failed(
        &self,
        next: NextSegment,
        result: Result<(), WalError>,
    ) -> Result<NextSegment, WalError> {
        if result.is_err() {
            // If the removal fails, only disk space is wasted.
            drop(self.disk.remove_file(&next.path));
        }
        result.map(|()| next)
    }

    /// Writes the buffered head to the segment, makes it durable, and renames the segment.
    fn publish_next(&self, next: &mut NextSegment, path: &Path) -> Result<(), WalError> {
        let written = next.tail.append(&self.encoder.buffer, self.options.zero_step_bytes);
        written.map_err(WalError::io("write", &next.path))?;
        self.sync_next(next)?;
        self.disk.rename(&next.path, path).map_err(WalError::io("rename", &next.path))
    }

    fn sync_next(&self, next: &NextSegment) -> Result<(), WalError> {
        if self.options.sync {
            next.file.sync_data().map_err(WalError::io("sync", &next.path))?;
        }
        Ok(())
    }

    /// Returns `None` instead of an error if there was no room for the next segment. The current segment then stays in
    /// use.
    fn unless_no_room(
        &mut self,
        next: Result<NextSegment, WalError>,
    ) -> Result<Option<NextSegment>, WalError> {
        let lacked_room = matches!(&next, Err(WalError::Io { source, .. }) if is_no_room(source));
        self.next_lacked_room = lacked_room;
        if lacked_room { Ok(None) } else { next.map(Some) }
    }

    /// Buffers the records at the start of a segment: the checksum so far, the metadata, and the
    /// last hard state, if there is one.
    fn push_head(&mut self) {
        self.encoder.push_crc();
        if let Some(metadata) = &self.metadata {
            self.encoder.push_metadata(metadata);
        }
        if !self.hard_state.is_empty() {
            self.encoder.push_state(&self.hard_state);
        }
    }

    /// Returns whether `kept_free_bytes` would stay free on the disk after a whole segment is reserved. Otherwise no
    /// segment is reserved in advance, because it may not be needed for a long time.
    fn has_room_for_next(&self) -> Result<bool, WalError> {
        let free = self.tail.file().free_bytes().map_err(|e| self.tail_error("inspect", e))?;
        let wanted = self.options.segment_bytes.saturating_add(self.options.kept_free_bytes);
        Ok(free.is_none_or(|free| free >= wanted))
    }

    /// Creates the next segment under a temporary name, locked and empty, and reserves as much of its space as the disk
    /// has room for.
    fn create_next(&mut self) -> Result<NextSegment, WalError> {
        let path = self.next_path();
        let file = self.disk.open(&path, OpenMode::Create(FILE_MODE));
        let file = file.map_err(WalError::io("create", &path))?;
        lock(&*file, &path)?;
        // Bytes left by an earlier process must not be read as records of this segment.
        file.set_len(0).map_err(WalError::io("truncate", &path))?;
        let tail = Tail::new(Arc::clone(&file), 0, &self.options);
        let mut tail = tail.map_err(WalError::io("inspect", &path))?;
        tail.reserve().map_err(WalError::io("allocate", &path))?;
        self.next_count += 1;
        Ok(NextSegment { path, file, tail })
    }

    fn next_path(&self) -> PathBuf {
        self.dir.join(format!("{}.tmp", self.next_count % 2))
    }
}
