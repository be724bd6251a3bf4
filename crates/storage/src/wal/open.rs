//! Creates logs, and opens them for writing. Opening a log repairs a torn end, and positions the
//! log after the last record.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::contents::{Collector, Contents, End, Repair, collect};
use super::error::WalError;
use super::record::{HardState, RecordEncoder, SnapshotMark};
use super::segment::{Segment, SegmentName, list, lock, select};
use super::tail::Tail;
use super::{FILE_MODE, Options, Wal};
use crate::disk::{Disk, DiskFile, OpenMode, create_dir_durably, is_no_room, parent, try_allocate};
use crate::size::in_memory;
use crate::sync_failure;

/// Permission bits of a log's directory.
const DIR_MODE: u32 = 0o700;

/// The number of bytes copied at a time, when a damaged segment is copied or the last segment is
/// rewritten.
const COPY_BYTES: usize = 256 * 1024;

/// Returns whether a directory contains a log, that is, at least one name that ends in `.wal`.
///
/// The result alone determines whether a member has been initialised. A missing directory contains
/// no log, but an unreadable directory is an error.
pub fn exists(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    match disk.read_dir(dir) {
        Ok(names) => Ok(names.iter().any(|name| name.as_encoded_bytes().ends_with(b".wal"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Wal {
    /// Creates a log with `metadata` at the head of every segment.
    ///
    /// The log appears under its name in a single step, complete and durable. Other content of the
    /// directory is removed. An existing log is an error.
    pub fn create(
        disk: Arc<dyn Disk>,
        dir: &Path,
        metadata: Bytes,
        options: Options,
    ) -> Result<Self, WalError> {
        if exists(&*disk, dir).map_err(WalError::io("list", dir))? {
            return Err(WalError::AlreadyExists { dir: dir.to_path_buf() });
        }
        let building = building(dir);
        let segment = create_first(&*disk, &building)?;
        let tail = new_tail(&segment, 0, &options)?;
        let mut wal = Self {
            disk,
            dir: dir.to_path_buf(),
            options,
            metadata: Some(metadata),
            hard_state: HardState::default(),
            last_index: 0,
            encoder: RecordEncoder::new(0),
            written_unsynced: false,
            durable_commit: 0,
            held: vec![segment],
            release_index: 0,
            tail,
            next: None,
            next_lacked_room: false,
            next_count: 0,
            shortage_reported: None,
            poisoned: false,
        };
        wal.push_head();
        wal.save_snapshot(&SnapshotMark::default())?;
        if wal.options.sync {
            wal.disk.sync_dir(&building).map_err(WalError::io("sync", &building))?;
        }
        wal.publish(&building)?;
        wal.held[0].path = dir.join(wal.held[0].name.file_name());
        Ok(wal)
    }

    /// Renames a finished log to its final name.
    fn publish(&self, building: &Path) -> Result<(), WalError> {
        let (disk, dir) = (&*self.disk, self.dir.as_path());
        disk.remove_dir_all(dir).map_err(WalError::io("remove", dir))?;
        disk.rename(building, dir).map_err(WalError::io("rename", building))?;
        if !self.options.sync {
            return Ok(());
        }
        disk.sync_dir(parent(dir)).map_err(|source| {
            // Rename the log back, because a restarted member that found it under its final name would treat itself as
            // initialised.
            drop(disk.rename(dir, building));
            WalError::Io { action: "sync", path: parent(dir).to_path_buf(), source }
        })
    }

    /// Opens a log for writing, and returns its content after the snapshot `start`.
    ///
    /// All segments that are read are locked. If the log ends in a torn record, the last segment is copied to
    /// `<name>.broken` and truncated. Only one such repair is attempted. Other damage is an error. The bytes after the
    /// last record are zeroed, and everything that was read is durable on return.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        start: &SnapshotMark,
        options: Options,
    ) -> Result<(Self, Contents), WalError> {
        let names = select(dir, &list(&*disk, dir)?.segments, start.index)?;
        let mut held = Vec::with_capacity(names.len());
        for name in names {
            let segment = Segment::open(&*disk, dir, name, OpenMode::ReadWrite)?;
            lock(&*segment.file, &segment.path)?;
            held.push(segment);
        }
        remove_reserved(&*disk, dir);
        if options.sync {
            // A process that ended between a rename and its sync may have left a name that is not
            // on the medium.
            for names in [parent(dir), dir] {
                match disk.sync_dir(names) {
                    // Syncing the parent directory requires read permission. Creating a log also syncs the parent
                    // directory, so a user without this permission cannot have created the log and left its name
                    // unsynced.
                    Err(error) if names != dir && error.kind() == ErrorKind::PermissionDenied => {}
                    synced => synced.map_err(WalError::io("sync", names))?,
                }
            }
        }
        let (contents, end) = read_or_repair(&*disk, &held, start, options.sync)?;
        let last = held.last().expect("at least one segment was selected");
        zero_after_end(last, end.offset)?;
        if options.sync {
            make_durable(&*disk, dir, last, end.offset)?;
        }
        let tail = new_tail(last, end.offset, &options)?;
        let mut wal = Self {
            disk,
            dir: dir.to_path_buf(),
            options,
            metadata: contents.metadata.clone(),
            hard_state: contents.hard_state,
            last_index: contents.last_index,
            encoder: RecordEncoder::new(end.crc),
            written_unsynced: false,
            durable_commit: 0,
            held,
            release_index: 0,
            tail,
            next: None,
            next_lacked_room: false,
            next_count: 0,
            shortage_reported: None,
            poisoned: false,
        };
        if end.offset == 0 {
            // The segment has lost its head. Write the head again, so that the segment can be read without the earlier
            // ones.
            wal.push_head();
        }
        Ok((wal, contents))
    }
}

/// Removes a log that has been created, completely or in part, if no member has used it.
pub fn remove_unused(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.remove_dir_all(&building(dir))?;
    disk.remove_dir_all(dir)
}

/// Returns the path at which a log is built.
fn building(dir: &Path) -> PathBuf {
    with_suffix(dir, ".tmp")
}

fn create_first(disk: &dyn Disk, dir: &Path) -> Result<Segment, WalError> {
    create_dir_durably(disk, parent(dir), DIR_MODE).map_err(WalError::io("create", parent(dir)))?;
    disk.remove_dir_all(dir).map_err(WalError::io("remove", dir))?;
    disk.create_dir_all(dir, DIR_MODE).map_err(WalError::io("create", dir))?;
    let name = SegmentName { sequence: 0, index: 0 };
    let segment = Segment::open(disk, dir, name, OpenMode::CreateNew(FILE_MODE))?;
    lock(&*segment.file, &segment.path)?;
    Ok(segment)
}

/// Returns the tail of the segment, with as much space reserved in advance as the disk has room for.
fn new_tail(segment: &Segment, written: u64, options: &Options) -> Result<Tail, WalError> {
    let tail = Tail::new(Arc::clone(&segment.file), written, options);
    let mut tail = tail.map_err(WalError::io("inspect", &segment.path))?;
    tail.reserve().map_err(WalError::io("allocate", &segment.path))?;
    Ok(tail)
}

/// Removes segments that an earlier process reserved but never started, to release their space.
fn remove_reserved(disk: &dyn Disk, dir: &Path) {
    for number in 0..2 {
        // Usually there are no such files. A file that cannot be removed occupies space until it is emptied and reused.
        drop(disk.remove_file(&dir.join(format!("{number}.tmp"))));
    }
}

/// Reads a log. If its end is torn, repairs the last segment and reads the log again.
fn read_or_repair(
    disk: &dyn Disk,
    segments: &[Segment],
    start: &SnapshotMark,
    sync: bool,
) -> Result<(Contents, End), WalError> {
    let mut collector = Collector::new(start);
    let (path, offset) = match collect(segments, &mut collector) {
        Ok(end) => return Ok((collector.finish(), end)),
        Err(WalError::Torn { path, offset }) => (path, offset),
        Err(error) => return Err(error),
    };
    let cannot = |source| WalError::CannotRepair { source: Box::new(source) };
    let last = segments.last().filter(|segment| segment.path == path);
    let Some(last) = last else { return Err(cannot(WalError::Torn { path, offset })) };
    let repair = cut_off(disk, last, offset, sync)?;
    let mut collector = Collector::new(start);
    let end = collect(segments, &mut collector).map_err(cannot)?;
    Ok((Contents { repaired: Some(repair), ..collector.finish() }, end))
}

/// Copies a segment and truncates it to `offset`.
///
/// If there is no room for the copy, the repair continues without it. A torn record was never
/// acknowledged, and a member that cannot start cannot free any space either.
fn cut_off(
    disk: &dyn Disk,
    segment: &Segment,
    offset: u64,
    sync: bool,
) -> Result<Repair, WalError> {
    let path = &segment.path;
    let bytes_before = segment.file.len().map_err(WalError::io("read", path))?;
    let backup = with_suffix(path, ".broken");
    let copied = copy_broken(disk, segment, &backup, sync);
    let backup = match copied {
        Ok(()) => Some(backup),
        Err(WalError::Io { source, .. }) if is_no_room(&source) => {
            // A partial copy is useless and occupies space.
            drop(disk.remove_file(&backup));
            None
        }
        Err(error) => return Err(error),
    };
    segment.file.set_len(offset).map_err(WalError::io("truncate", path))?;
    if sync {
        segment.file.sync_all().map_err(WalError::io("sync", path))?;
    }
    Ok(Repair { path: path.clone(), offset, bytes_before, backup })
}

/// Copies a segment durably, because the copy is the only trace of the bytes that are cut off
/// afterwards.
fn copy_broken(
    disk: &dyn Disk,
    segment: &Segment,
    backup: &Path,
    sync: bool,
) -> Result<(), WalError> {
    let path = &segment.path;
    let copy = disk.open(backup, OpenMode::Truncate(FILE_MODE));
    let copy = copy.map_err(WalError::io("create", backup))?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    loop {
        let count = segment.file.read_at(&mut buffer, at).map_err(WalError::io("read", path))?;
        if count == 0 {
            break;
        }
        copy.write_all_at(&buffer[..count], at).map_err(WalError::io("write", backup))?;
        at += count as u64;
    }
    if sync {
        copy.sync_all().map_err(WalError::io("sync", backup))?;
        disk.sync_dir(parent(path)).map_err(WalError::io("sync", parent(path)))?;
    }
    Ok(())
}

/// Zeroes the bytes after the last record. Keeps the segment's length if there is room for it.
///
/// A zero length ends a segment, but bytes of an unfinished write may follow it. If a later record
/// overwrote only some of these bytes, the remaining bytes would be read as the next record.
fn zero_after_end(segment: &Segment, offset: u64) -> Result<(), WalError> {
    let (file, path): (&dyn DiskFile, _) = (&*segment.file, &segment.path);
    let len = file.len().map_err(WalError::io("read", path))?;
    if len > offset {
        file.set_len(offset).map_err(WalError::io("truncate", path))?;
        try_allocate(file, len).map_err(WalError::io("allocate", path))?;
    }
    Ok(())
}

/// Makes all records of a log durable. A process that ended before a sync may have left records only in the system's
/// memory, so a caller that changes other files because of a record must call this function first. [`Wal::open`] also
/// makes the records durable that it reads.
pub fn sync_records(disk: &dyn Disk, dir: &Path) -> Result<(), WalError> {
    let Some(last) = list(disk, dir)?.segments.pop() else { return Ok(()) };
    let segment = Segment::open(disk, dir, last, OpenMode::ReadWrite)?;
    let len = segment.file.len().map_err(WalError::io("read", &segment.path))?;
    disk.sync_dir(dir).map_err(WalError::io("sync", dir))?;
    make_durable(disk, dir, &segment, len)
}

/// Makes the records and zeros of the last segment durable before anything is appended, because a
/// process that ended before a sync may have left records only in the system's memory.
///
/// After a failed sync, the system treats the records as written, and no later sync would write them. In this case, the
/// records are written again. The earlier segments were synced when this segment was started.
fn make_durable(disk: &dyn Disk, dir: &Path, segment: &Segment, end: u64) -> Result<(), WalError> {
    let mark = failure_mark(dir);
    let has_failed = sync_failure::is_marked(disk, &mark);
    if has_failed {
        write_again(segment, end)?;
    }
    let synced = segment.file.sync_data().map_err(WalError::io("sync", &segment.path));
    match synced {
        Err(_) => sync_failure::note(disk, &mark),
        Ok(()) if has_failed => sync_failure::clear(disk, &mark),
        Ok(()) => {}
    }
    synced
}

fn write_again(segment: &Segment, end: u64) -> Result<(), WalError> {
    let (file, path): (&dyn DiskFile, _) = (&*segment.file, &segment.path);
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < end {
        let count = (end - at).min(COPY_BYTES as u64);
        let part = &mut buffer[..in_memory(count)];
        file.read_exact_at(part, at).map_err(WalError::io("read", path))?;
        match file.write_all_at(part, at) {
            Ok(()) => at += count,
            // On a copy-on-write file system, overwriting may need space. The bytes do not change, so it is safe to
            // continue if there is no space.
            Err(error) if is_no_room(&error) => break,
            Err(error) => return Err(WalError::io("write", path)(error)),
        }
    }
    Ok(())
}

/// Returns the path of the mark for a failed write or sync of this log.
pub(super) fn failure_mark(dir: &Path) -> PathBuf {
    dir.join("sync-failed.tmp")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}
