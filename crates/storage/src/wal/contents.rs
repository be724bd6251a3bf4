//! The content of a log (entries, hard state and snapshot marks), built from its records.
//!
//! Reading never changes a file and takes no lock, so a log can be read while its member is running. The module `open`,
//! which opens logs for writing, builds on this one.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::error::WalError;
use super::record::{
    Entry, HardState, SnapshotMark, decode_entry, decode_mark, decode_state, kind,
};
use super::scan::{Found, Scanner};
use super::segment::{Segment, list, select};
use crate::disk::{Disk, OpenMode};

/// The content of a log.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The member's identity (`etcdserverpb.Metadata`). Missing only if the log has lost its head.
    pub metadata: Option<Bytes>,
    /// The latest hard state. Empty if none was saved.
    ///
    /// The commit index in it may be lower than the applied index (see `Wal::append`).
    pub hard_state: HardState,
    /// The entries after the start snapshot, without gaps and without overwritten entries.
    pub entries: Vec<Entry>,
    /// Whether the log has a mark for the start snapshot.
    pub start_marked: bool,
    /// The index of the last entry record or snapshot mark, whichever is higher. A mark beyond the
    /// commit index belongs to a snapshot whose installation never finished, and is ignored.
    pub last_index: u64,
    /// The torn end that was cut off. Always `None` when the log is opened for reading only.
    pub repaired: Option<Repair>,
}

/// The repair of a torn end, which was cut off when the log was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The path of the repaired segment.
    pub path: PathBuf,
    /// The offset of the torn record, which is now the segment's length.
    pub offset: u64,
    /// The segment's length before the repair, in bytes.
    pub bytes_before: u64,
    /// The path of a copy made before the repair, or `None` if there was no room for a copy.
    pub backup: Option<PathBuf>,
}

/// Collects records into [`Contents`].
pub(super) struct Collector {
    start_index: u64,
    start_term: u64,
    /// The indexes of all marks. Which of them are valid is known only after the last hard state is
    /// read.
    marked_indexes: Vec<u64>,
    contents: Contents,
}

impl Collector {
    pub(super) fn new(start: &SnapshotMark) -> Self {
        let contents = Contents::default();
        let marked_indexes = Vec::new();
        Self { start_index: start.index, start_term: start.term, marked_indexes, contents }
    }

    /// Returns the content after all records have been added.
    pub(super) fn finish(mut self) -> Contents {
        self.drop_replaced();
        let commit = self.contents.hard_state.commit;
        let counting = self.marked_indexes.into_iter().filter(|index| *index <= commit);
        self.contents.last_index = counting.fold(self.contents.last_index, u64::max);
        self.contents
    }

    /// Drops entries that were in the log before a leader's snapshot replaced it. Their records precede the mark from
    /// which the log is read, but their indexes are above the mark's index.
    ///
    /// The terms of the replaced entries are lower than the snapshot's, because terms never decrease along a log, and a
    /// log that agrees with the snapshot is not replaced. Entries appended after the mark begin at the index after the
    /// mark's index and overwrite the old ones. So once the whole log is read, either all remaining entries are old, or
    /// all are new.
    fn drop_replaced(&mut self) {
        let contents = &mut self.contents;
        if contents.entries.first().is_some_and(|first| first.term < self.start_term) {
            contents.entries.clear();
            contents.last_index = self.start_index;
        }
    }

    fn take(&mut self, found: &Found<'_, '_>) -> Result<(), WalError> {
        let Found { record, path, offset } = *found;
        let malformed = |what| WalError::Malformed { what, path: path.to_path_buf(), offset };
        match record.kind {
            kind::CRC => {}
            kind::METADATA => {
                if self.contents.metadata.as_ref().is_some_and(|known| *known != record.data) {
                    let path = path.to_path_buf();
                    return Err(WalError::MetadataConflict { path, offset });
                }
                self.contents.metadata = Some(Bytes::copy_from_slice(record.data));
            }
            kind::ENTRY => {
                let entry = decode_entry(record.data).ok_or_else(|| malformed("Entry"))?;
                let data = Bytes::copy_from_slice(entry.data);
                let (index, term, kind) = (entry.index, entry.term, entry.kind);
                self.place(Entry { index, term, kind, data })?;
                if let Some(before) = self.term_before_last().filter(|before| *before > term) {
                    let path = path.to_path_buf();
                    return Err(WalError::TermFalls { index, term, before, path, offset });
                }
            }
            kind::STATE => {
                let state = decode_state(record.data).ok_or_else(|| malformed("HardState"))?;
                self.contents.hard_state = state;
            }
            kind::SNAPSHOT => {
                let mark = decode_mark(record.data).ok_or_else(|| malformed("Snapshot"))?;
                self.check_mark(&mark)?;
            }
            other => {
                let path = path.to_path_buf();
                return Err(WalError::UnexpectedKind { kind: other, path, offset });
            }
        }
        Ok(())
    }

    /// Puts an entry at its index. It replaces the entry at that index and all later ones.
    fn place(&mut self, entry: Entry) -> Result<(), WalError> {
        self.contents.last_index = entry.index;
        let Some(position) =
            entry.index.checked_sub(self.start_index).and_then(|n| n.checked_sub(1))
        else {
            // The snapshot covers this entry, so the entry itself is not kept, but it still replaces all later entries.
            self.contents.entries.clear();
            return Ok(());
        };
        let entries = &mut self.contents.entries;
        match usize::try_from(position) {
            Ok(position) if position <= entries.len() => {
                entries.truncate(position);
                entries.push(entry);
                Ok(())
            }
            _ => Err(WalError::Hole {
                start_index: self.start_index,
                start_term: self.start_term,
                index: entry.index,
                term: entry.term,
                count: entries.len(),
            }),
        }
    }

    /// Returns the term of the entry before the last entry.
    fn term_before_last(&self) -> Option<u64> {
        let entries = &self.contents.entries;
        let before = entries.len().checked_sub(2)?;
        entries.get(before).map(|entry| entry.term)
    }

    fn check_mark(&mut self, mark: &SnapshotMark) -> Result<(), WalError> {
        self.marked_indexes.push(mark.index);
        if mark.index == self.start_index {
            if mark.term != self.start_term {
                return Err(WalError::SnapshotMismatch {
                    index: mark.index,
                    wanted: self.start_term,
                    found: mark.term,
                });
            }
            self.contents.start_marked = true;
        }
        Ok(())
    }
}

/// The end of a log, at which it can be continued.
pub(super) struct End {
    pub(super) offset: u64,
    pub(super) crc: u32,
}

/// Reads all records of open segments. A torn end is an error here.
pub(super) fn collect(segments: &[Segment], collector: &mut Collector) -> Result<End, WalError> {
    let mut scanner = Scanner::new(segments)?;
    while let Some(found) = scanner.next()? {
        collector.take(&found)?;
    }
    Ok(End { offset: scanner.offset(), crc: scanner.crc() })
}

/// Reads a log, starting at the snapshot `start`, without changing the log. A torn end is not an error.
pub fn read(disk: &dyn Disk, dir: &Path, start: &SnapshotMark) -> Result<Contents, WalError> {
    let names = select(dir, &list(disk, dir)?.segments, start.index)?;
    let segments = open_all(disk, dir, &names)?;
    let mut collector = Collector::new(start);
    match collect(&segments, &mut collector) {
        Ok(_) => Ok(collector.finish()),
        Err(error) if error.is_torn() => Ok(collector.finish()),
        Err(error) => Err(error),
    }
}

/// Returns a log's snapshot marks, except marks beyond the last commit index.
///
/// A member may start from the snapshot of any returned mark. Only the segments after the last gap are read, because a
/// crash while etcd purged segments may have left a segment before a gap. A mark beyond the commit index belongs to a
/// snapshot whose installation never finished.
pub fn snapshot_marks(disk: &dyn Disk, dir: &Path) -> Result<Vec<SnapshotMark>, WalError> {
    let names = list(disk, dir)?.segments;
    let gap = names.windows(2).rposition(|pair| !pair[0].precedes(&pair[1]));
    let segments = open_all(disk, dir, &names[gap.map_or(0, |position| position + 1)..])?;
    let mut scanner = Scanner::new(&segments)?;
    let mut marks = Vec::new();
    let mut state = HardState::default();
    loop {
        let Found { record, path, offset } = match scanner.next() {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(error) if error.is_torn() => break,
            Err(error) => return Err(error),
        };
        let malformed = |what| WalError::Malformed { what, path: path.to_path_buf(), offset };
        if record.kind == kind::SNAPSHOT {
            marks.push(decode_mark(record.data).ok_or_else(|| malformed("Snapshot"))?);
        } else if record.kind == kind::STATE {
            state = decode_state(record.data).ok_or_else(|| malformed("HardState"))?;
        }
    }
    marks.retain(|mark| mark.index <= state.commit);
    Ok(marks)
}

pub(super) fn open_all(
    disk: &dyn Disk,
    dir: &Path,
    names: &[super::SegmentName],
) -> Result<Vec<Segment>, WalError> {
    names.iter().map(|name| Segment::open(disk, dir, *name, OpenMode::Read)).collect()
}
