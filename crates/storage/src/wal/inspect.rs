//! Visits a log record by record, with positions, for tools that display or verify it.
//!
//! The records are not collected, so visiting needs little memory however long the log is. The log
//! is neither locked nor changed.

use std::path::{Path, PathBuf};

use super::contents::open_all;
use super::error::WalError;
use super::record::{
    EntryRef, HardState, SnapshotMark, decode_entry, decode_mark, decode_state, kind,
};
use super::scan::Scanner;
use super::segment::list;
use crate::disk::Disk;

/// The position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPosition<'a> {
    /// The path of the segment.
    pub path: &'a Path,
    /// The offset of the record in the segment.
    pub offset: u64,
}

/// The decoded content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The running checksum at the head of a segment.
    Checksum(u32),
    /// The member's identity (`etcdserverpb.Metadata`).
    Metadata(&'a [u8]),
    /// An entry of the raft log.
    Entry(EntryRef<'a>),
    /// The term, vote and commit index that the member must remember.
    State(HardState),
    /// A mark for a snapshot that was taken or received.
    Mark(SnapshotMark),
}

/// The end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The path of the last segment of the log.
    pub path: PathBuf,
    /// The offset after the last complete record.
    pub offset: u64,
    /// Whether the last record is incomplete. Opening the log for writing cuts off such a record.
    pub is_torn: bool,
}

/// Visits every record of a log, starting at the first segment after the last gap between segments.
///
/// Checksums are verified. A torn end is not an error, because a member can start with it.
pub fn visit<E: From<WalError>>(
    disk: &dyn Disk,
    dir: &Path,
    mut show: impl FnMut(RecordPosition<'_>, Content<'_>) -> Result<(), E>,
) -> Result<Ending, E> {
    let names = list(disk, dir)?.segments;
    let gap = names.windows(2).rposition(|pair| !pair[0].precedes(&pair[1]));
    let segments = open_all(disk, dir, &names[gap.map_or(0, |position| position + 1)..])?;
    let mut scanner = Scanner::new(&segments)?;
    loop {
        let found = match scanner.next() {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(WalError::Torn { path, offset }) if is_last(&segments, &path) => {
                return Ok(Ending { path, offset, is_torn: true });
            }
            Err(error) => return Err(error.into()),
        };
        let (path, offset) = (found.path, found.offset);
        let malformed = |what| WalError::Malformed { what, path: path.to_path_buf(), offset };
        let data = found.record.data;
        let content = match found.record.kind {
            kind::CRC => Content::Checksum(found.record.crc),
            kind::METADATA => Content::Metadata(data),
            kind::ENTRY => Content::Entry(decode_entry(data).ok_or_else(|| malformed("Entry"))?),
            kind::STATE => {
                Content::State(decode_state(data).ok_or_else(|| malformed("HardState"))?)
            }
            kind::SNAPSHOT => {
                Content::Mark(decode_mark(data).ok_or_else(|| malformed("Snapshot"))?)
            }
            kind => {
                let path = path.to_path_buf();
                return Err(WalError::UnexpectedKind { kind, path, offset }.into());
            }
        };
        show(RecordPosition { path, offset }, content)?;
    }
    let path = segments.last().map(|segment| segment.path.clone()).unwrap_or_default();
    Ok(Ending { path, offset: scanner.offset(), is_torn: false })
}

/// Returns whether this is the last segment. Only the last segment may end within a record. An incomplete record in any
/// other segment is followed by acknowledged records.
fn is_last(segments: &[super::Segment], path: &Path) -> bool {
    segments.last().is_some_and(|last| last.path == path)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Entry, Options, Wal};
    use super::*;
    use crate::disk::RealDisk;

    /// Returns every record of a log as text, and the end of the log.
    fn seen(dir: &Path) -> Result<(Vec<String>, Ending), WalError> {
        let mut seen = Vec::new();
        let ending = visit(&RealDisk, dir, |place, content| -> Result<(), WalError> {
            assert_eq!(place.offset % 8, 0);
            seen.push(match content {
                Content::Checksum(_) => "checksum".to_owned(),
                Content::Metadata(data) => format!("metadata {}", data.escape_ascii()),
                Content::Entry(entry) => format!("entry {}/{}", entry.term, entry.index),
                Content::State(state) => format!("state {}", state.commit),
                Content::Mark(mark) => format!("mark {}", mark.index),
            });
            Ok(())
        })?;
        Ok((seen, ending))
    }

    #[test]
    fn every_record_before_a_torn_end_is_visited() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("wal");
        let options = Options { segment_bytes: 400, ..Options::default() };
        let mut wal = Wal::create(Arc::new(RealDisk), &dir, "m".into(), options).unwrap();
        for index in 1..=3 {
            let entry = Entry { index, term: 2, kind: 0, data: vec![b'x'; 150].into() };
            let state = HardState { term: 2, vote: 1, commit: index };
            wal.save(Some(&state), &[entry]).unwrap();
        }
        wal.close().unwrap();
        let (records, ending) = seen(&dir).unwrap();
        let first = ["checksum", "metadata m", "mark 0", "entry 2/1", "state 1", "entry 2/2"];
        let second = ["state 2", "checksum", "metadata m", "state 2", "entry 2/3", "state 3"];
        assert_eq!(records, [first, second].concat());
        assert!(!ending.is_torn && ending.path.ends_with("0000000000000001-0000000000000003.wal"));
        let last = std::fs::OpenOptions::new().write(true).open(&ending.path).unwrap();
        last.set_len(ending.offset - 1).unwrap();
        let (records, cut) = seen(&dir).unwrap();
        assert_eq!((records.len(), cut.is_torn), (11, true));
        assert!(cut.offset < ending.offset);
    }

    #[test]
    fn damage_before_the_log_end_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("wal");
        let wal =
            Wal::create(Arc::new(RealDisk), &dir, "member".into(), Options::default()).unwrap();
        wal.close().unwrap();
        let path = dir.join("0000000000000000-0000000000000000.wal");
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(6).position(|window| window == b"member").unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(seen(&dir), Err(WalError::CrcMismatch { .. })));
    }
}
