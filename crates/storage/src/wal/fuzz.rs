//! Fuzz targets: a log with arbitrary bytes, and a log of well-formed records with arbitrary
//! content.
//!
//! Checks that opening a log for writing returns the same content as reading it, that the log
//! accepts more entries, and that it contains all entries afterwards.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::record::{RecordEncoder, kind};
use super::*;
use crate::disk::RealDisk;

/// The segment size, in bytes. One saved entry fills a segment.
const SEGMENT_BYTES: u64 = 2048;

/// A byte in the input of [`records`] that starts another segment.
const NEXT_SEGMENT: u8 = 0xff;

/// Treats the input as a log with one segment.
pub fn bytes(folder: &Path, data: &[u8]) {
    with_log(folder, &[data.to_vec()], check_log);
}

/// Treats the input as a list of records, each with its type, length and content. Checksums and
/// lengths are corrected, so that the content is decoded.
pub fn records(folder: &Path, data: &[u8]) {
    let mut encoder = RecordEncoder::new(0);
    encoder.push_crc();
    let mut segments = Vec::new();
    let mut rest = data;
    while let [kind, len, tail @ ..] = rest {
        if *kind == NEXT_SEGMENT {
            segments.push(std::mem::take(&mut encoder.buffer));
            encoder.push_crc();
            rest = &rest[1..];
            continue;
        }
        let (record, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        match i64::from(*kind) {
            kind::CRC => encoder.push_crc(),
            kind => encoder.push(kind, [record, &[]]),
        }
        rest = tail;
    }
    segments.push(encoder.buffer);
    with_log(folder, &segments, check_log);
}

/// Writes the segments as a log, and removes the log afterwards.
fn with_log(folder: &Path, segments: &[Vec<u8>], check_log: impl FnOnce(&Path)) {
    let dir = folder.join("wal");
    RealDisk.create_dir_all(&dir, 0o700).expect("the fuzzer's folder is writable");
    for (sequence, bytes) in (0..).zip(segments) {
        // The index of the first segment is 0, so reading from the beginning selects every segment.
        let name = SegmentName { sequence, index: sequence };
        std::fs::write(dir.join(name.file_name()), bytes).expect("a segment can be written");
    }
    check_log(&dir);
    RealDisk.remove_dir_all(&dir).expect("the log can be removed");
}

fn check_log(dir: &Path) {
    let start = SnapshotMark::default();
    let seen = read(&RealDisk, dir, &start);
    let marks = snapshot_marks(&RealDisk, dir);
    if let Ok(mark) = &marks
        && let Some(mark) = mark.last()
    {
        drop(read(&RealDisk, dir, mark));
    }
    let shown = inspect::visit(&RealDisk, dir, |_, _| Ok::<(), WalError>(()));
    let Ok((mut wal, contents)) = open(dir) else { return };
    let seen = seen.expect("a log that can be opened can be read");
    shown.expect("a log that can be opened can be visited");
    assert_eq!(contents.entries, seen.entries);
    assert_eq!(contents.hard_state, seen.hard_state);
    let index = contents.entries.len() as u64 + 1;
    let data = Bytes::from(vec![0x5a; SEGMENT_BYTES as usize]);
    // Terms never decrease along a log. A log with decreasing terms is refused.
    let term = contents.entries.last().map_or(0, |last| last.term).max(contents.hard_state.term);
    let added = Entry { index, term, kind: 0, data };
    let saved = wal.save(Some(&contents.hard_state), std::slice::from_ref(&added));
    assert!(saved.expect("an opened log accepts an entry").synced);
    wal.close().expect("an open log can be closed");
    let (_, again) = open(dir).expect("the records of the log can be read again");
    assert_eq!(again.repaired, None, "a closed log is not torn");
    assert_eq!(again.entries[..contents.entries.len()], contents.entries);
    assert_eq!(again.entries.last(), Some(&added));
    assert_eq!(again.hard_state, contents.hard_state);
    let marks_again = snapshot_marks(&RealDisk, dir).expect("the marks can be read");
    assert_eq!(marks_again, marks.expect("the marks of a sound log can be read"));
}

fn open(dir: &Path) -> Result<(Wal, Contents), WalError> {
    let options = Options {
        segment_bytes: SEGMENT_BYTES,
        sync: false,
        zero_step_bytes: 512,
        zero_lead_bytes: 512,
        ..Options::default()
    };
    Wal::open(Arc::new(RealDisk), dir, &SnapshotMark::default(), options)
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    use super::*;

    /// Returns a log that contains every kind of record.
    fn sample() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("wal");
        let options = Options { segment_bytes: 1 << 20, sync: false, ..Options::default() };
        let metadata = Bytes::from_static(b"\x08\x2a\x10\x2b");
        let mut wal = Wal::create(Arc::new(RealDisk), &dir, metadata, options).unwrap();
        let entry = |index, term, bytes: usize| Entry {
            index,
            term,
            kind: u8::from(index == 1),
            data: vec![b'x'; bytes].into(),
        };
        let state = |term, commit| HardState { term, vote: 7, commit };
        wal.save(Some(&state(1, 1)), &[entry(1, 1, 9), entry(2, 1, 700)]).unwrap();
        let conf_state = Some(Bytes::from_static(b"\x08\x2a\x28\x00"));
        wal.save_snapshot(&SnapshotMark { index: 2, term: 1, conf_state }).unwrap();
        wal.save(Some(&state(2, 2)), &[entry(2, 2, 0), entry(3, 2, 300)]).unwrap();
        wal.close().unwrap();
        let name = SegmentName { sequence: 0, index: 0 };
        let mut bytes = std::fs::read(dir.join(name.file_name())).unwrap();
        bytes.truncate(2048);
        bytes
    }

    #[test]
    fn any_log_bytes_are_read_or_refused_without_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let samples = [("log", sample()), ("cut", sample()[..1000].to_vec())];
        bounded("wal_bytes", &samples, 1000, |data| bytes(folder.path(), data));
    }

    #[test]
    fn well_formed_records_with_any_content_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let records = [
            &b"\x01\x04\x08\x2a\x10\x2b\x05\x04\x08\x00\x10\x00"[..],
            b"\x02\x06\x10\x01\x18\x01\x22\x00\x02\x07\x10\x01\x18\x02\x22\x01x",
            b"\x03\x06\x08\x01\x10\x07\x18\x02\x05\x0a\x08\x02\x10\x01\x1a\x04\x08\x2a\x28\x00",
            b"\xff\x01\x04\x08\x2a\x10\x2b\x03\x06\x08\x01\x10\x07\x18\x02",
            b"\x02\x09\x08\x01\x10\x02\x18\x02\x22\x01y\x02\x0d\x10\x02\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x03\x06\x08\x02\x10\x00\x18\x03",
        ]
        .concat();
        let beyond = b"\x05\x0d\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x01\x03\x06\x08\x01\x10\x07\x18\x02";
        let samples = [("all", records), ("beyond", beyond.to_vec())];
        bounded("wal_records", &samples, 1000, |data| super::records(folder.path(), data));
    }
}
