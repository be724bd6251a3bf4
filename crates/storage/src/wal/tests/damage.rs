//! Tests of damage at every byte of the last record. The outcome is the same as with etcd's reader.

use proptest::prelude::*;

use super::*;

/// The outcome of opening a damaged log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// All entries are present, and nothing was repaired.
    Whole,
    /// The last entry is missing, and nothing was repaired.
    Gone,
    /// The last entry was cut off.
    Repaired,
    Crc,
    Malformed,
    Kind,
}

const RECORD_BYTES: usize = 1856;

/// A log with three entries. The record of the last entry is `RECORD_BYTES` long, and the entry's data contains no zero
/// byte.
struct Sample {
    root: tempfile::TempDir,
    bytes: Vec<u8>,
    start: usize,
}

impl Sample {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("wal");
        let options = Options { sync: false, ..small_options() };
        let mut wal = Wal::create(real(), &dir, metadata(), options).unwrap();
        wal.save(Some(&state(2, 9, 1)), &[entry(1, 2, b"one"), entry(2, 2, &[7; 900])]).unwrap();
        let start = wal.tail.written() as usize;
        let _ = wal.save(None, &[entry(3, 2, &[0x55; 1828])]).unwrap();
        assert_eq!(wal.tail.written() as usize - start, RECORD_BYTES);
        wal.close().unwrap();
        let bytes = fs::read(last_segment(&dir)).unwrap();
        // The record spans several sectors and ends in padding.
        assert_eq!(bytes[start + 7], 0x82);
        Self { root, bytes, start }
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("wal")
    }

    /// Opens the log with these bytes. If this succeeds, the log must also accept an entry and remain readable.
    fn outcome(&self, bytes: &[u8]) -> Outcome {
        let dir = self.dir();
        let path = last_segment(&dir);
        fs::write(&path, bytes).unwrap();
        let backup = PathBuf::from(format!("{}.broken", path.display()));
        drop(fs::remove_file(&backup));
        let options = Options { sync: false, ..small_options() };
        let reopen = || Wal::open(real(), &dir, &SnapshotMark::default(), options.clone());
        let (mut wal, contents) = match reopen() {
            Ok(opened) => opened,
            Err(WalError::CrcMismatch { .. }) => return Outcome::Crc,
            Err(WalError::Malformed { .. }) => return Outcome::Malformed,
            Err(WalError::UnexpectedKind { .. }) => return Outcome::Kind,
            Err(other) => panic!("{other}"),
        };
        let count = contents.entries.len();
        let outcome = match (&contents.repaired, count) {
            (None, 3) => Outcome::Whole,
            (None, 2) => Outcome::Gone,
            (Some(repair), 2) => {
                assert_eq!(repair.offset as usize, self.start);
                assert_eq!(fs::read(repair.backup.as_ref().unwrap()).unwrap(), bytes);
                Outcome::Repaired
            }
            _ => panic!("{contents:?}"),
        };
        assert_eq!(backup.exists(), outcome == Outcome::Repaired);
        wal.save(None, &[entry(count as u64 + 1, 3, b"next")]).unwrap();
        drop(wal);
        let again = reopen().unwrap().1;
        assert_eq!((again.entries.len(), again.repaired), (count + 1, None));
        assert_eq!(again.entries[..count], contents.entries);
        outcome
    }

    fn with(&self, change: impl FnOnce(&mut Vec<u8>)) -> Outcome {
        let mut bytes = self.bytes.clone();
        change(&mut bytes);
        self.outcome(&bytes)
    }
}

#[test]
fn a_last_record_truncated_at_any_byte_is_cut_off() {
    let sample = Sample::new();
    for kept in 0..=RECORD_BYTES {
        let expected = match kept {
            0 => Outcome::Gone,
            RECORD_BYTES => Outcome::Whole,
            _ => Outcome::Repaired,
        };
        assert_eq!(sample.with(|b| b.truncate(sample.start + kept)), expected, "kept {kept}");
    }
}

#[test]
fn a_partly_zeroed_last_record_is_cut_off_only_if_a_whole_sector_is_zero() {
    let sample = Sample::new();
    let start = sample.start;
    // The two padding bytes are zero in any case.
    let data_end = RECORD_BYTES - 2;
    for kept in 0..=RECORD_BYTES {
        // A sector of the record's body is entirely zero if it begins at or after the cut.
        let body = start + 8..start + RECORD_BYTES;
        let whole_sector_zero = {
            let cut = start + kept;
            let mut begin = body.start;
            let mut found = false;
            while begin < body.end {
                found |= cut <= begin;
                begin = (begin / 512 + 1) * 512;
            }
            found
        };
        let expected = match kept {
            0 => Outcome::Gone,
            _ if kept >= data_end => Outcome::Whole,
            _ if whole_sector_zero => Outcome::Repaired,
            // Only a part of the last sector is zero.
            _ => Outcome::Crc,
        };
        let got = sample.with(|b| b[start + kept..start + RECORD_BYTES].fill(0));
        assert_eq!(got, expected, "kept {kept}");
    }
}

#[test]
fn a_changed_record_byte_is_detected_unless_it_only_affects_padding() {
    let sample = Sample::new();
    let start = sample.start;
    for at in 0..RECORD_BYTES {
        let got = sample.with(|b| b[start + at] ^= 0x5a);
        let fine = match at {
            // The length is wrong but plausible, or the record reaches beyond the end of the file.
            0..=6 => matches!(got, Outcome::Crc | Outcome::Malformed | Outcome::Repaired),
            // The byte contains the number of padding bytes, which the checksum does not cover.
            7 => got != Outcome::Gone,
            9 => got == Outcome::Kind,
            _ if at >= RECORD_BYTES - 2 => got == Outcome::Whole,
            _ => matches!(got, Outcome::Crc | Outcome::Malformed | Outcome::Kind),
        };
        assert!(fine, "byte {at}: {got:?}");
    }
}

#[test]
fn the_log_is_cut_off_at_a_record_length_that_exceeds_the_file() {
    let sample = Sample::new();
    let got = sample.with(|b| b[sample.start + 6] = 1);
    assert_eq!(got, Outcome::Repaired);
    // The length of the second entry's record is damaged. The third entry is cut off as well,
    // although it is undamaged.
    let mut bytes = sample.bytes.clone();
    let second = bytes.windows(8).rposition(|w| w[1..] == [3, 0, 0, 0, 0, 0, 0x80 | w[7] & 7]);
    let second = second.expect("the log contains the length field of the second entry's record");
    bytes[second + 5] = 0xff;
    fs::write(last_segment(&sample.dir()), &bytes).unwrap();
    let (_, contents) = open(&sample.dir()).unwrap();
    assert_eq!(contents.entries.len(), 1);
    assert_eq!(contents.repaired.unwrap().offset as usize, second);
    assert_eq!(contents.last_index, 1);
}

#[test]
fn bytes_after_the_log_end_are_classified_as_ignored_torn_or_malformed() {
    let sample = Sample::new();
    let end = sample.start + RECORD_BYTES;
    // Bytes after a zero length are ignored.
    assert_eq!(sample.with(|b| b[end + 8..end + 12_000].fill(0xee)), Outcome::Whole);
    // A record whose length reaches beyond the end of the file is torn.
    let mut bytes = sample.bytes.clone();
    bytes[end..end + 8].fill(0x7e);
    fs::write(last_segment(&sample.dir()), &bytes).unwrap();
    let (_, contents) = open(&sample.dir()).unwrap();
    assert_eq!((contents.entries.len(), contents.repaired.unwrap().offset), (3, end as u64));
    // A record with a plausible length and wrong bytes is neither ignored nor torn.
    let got = sample.with(|b| {
        b[end] = 0x40;
        b[end + 8..end + 80].fill(0xee);
    });
    assert_eq!(got, Outcome::Malformed);
}

#[test]
fn a_last_segment_without_its_head_is_continued() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    // Offsets 16 and 40 are the ends of the checksum record and of the metadata record.
    for head_bytes in [0usize, 5, 16, 20, 40] {
        drop(fs::remove_dir_all(&dir));
        let mut wal = create(&dir);
        for index in 1..=16 {
            let _ = wal.save(Some(&state(1, 1, 1)), &[entry(index, 1, &[1; 1000])]).unwrap();
        }
        assert_eq!(wal.held.len(), 2);
        wal.close().unwrap();
        let last = last_segment(&dir);
        let mut bytes = fs::read(&last).unwrap();
        bytes.truncate(head_bytes);
        fs::write(&last, &bytes).unwrap();
        let (mut wal, contents) = open(&dir).unwrap();
        assert_eq!(contents.entries.len(), 16);
        assert_eq!(contents.repaired.is_some(), ![0, 16, 40].contains(&head_bytes));
        wal.save(None, &[entry(17, 1, b"x")]).unwrap();
        wal.close().unwrap();
        assert_eq!(open(&dir).unwrap().1.entries.len(), 17, "{head_bytes}");
    }
    // A log whose only segment contains only zeros is read as an empty log. The log's owner must
    // detect this.
    drop(fs::remove_dir_all(&dir));
    create(&dir).close().unwrap();
    fs::write(last_segment(&dir), vec![0; 4096]).unwrap();
    let (mut wal, contents) = open(&dir).unwrap();
    assert_eq!((contents.metadata, contents.entries.len()), (None, 0));
    wal.save(None, &[entry(1, 1, b"x")]).unwrap();
    wal.close().unwrap();
    assert_eq!(open(&dir).unwrap().1.entries.len(), 1);
}

#[test]
fn damage_before_the_last_segment_is_not_repaired() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    for index in 1..=16 {
        let _ = wal.save(None, &[entry(index, 1, &[1; 1000])]).unwrap();
    }
    wal.close().unwrap();
    let first = dir.join(SegmentName { sequence: 0, index: 0 }.file_name());
    let good = fs::read(&first).unwrap();
    let damaged = |bytes: &[u8]| {
        fs::write(&first, bytes).unwrap();
        open(&dir).map(|(_, contents)| contents.entries.len())
    };
    // An incomplete record in an earlier segment is classified as torn, but cannot be repaired.
    let error = damaged(&good[..good.len() - 3]).unwrap_err();
    assert!(error.to_string().starts_with("failed to read WAL, cannot be repaired"), "{error}");
    // Zeroed sectors in an earlier segment are not torn.
    let mut zeroed = good.clone();
    let end = zeroed.len();
    zeroed[end - 600..].fill(0);
    assert!(matches!(damaged(&zeroed), Err(WalError::CrcMismatch { .. })));
    // Bytes after a zero length are not read.
    assert_eq!(damaged(&[&good[..], &[0; 8], &[0xee; 90]].concat()).unwrap(), 16);
    // The earlier segment is empty, so all records before the next segment's head are missing.
    assert!(matches!(
        damaged(&good[..0]),
        Ok(_) | Err(WalError::CrcMismatch { .. } | WalError::Hole { .. })
    ));
    assert_eq!(damaged(&good).unwrap(), 16);
}

#[test]
fn the_checksum_error_contains_the_file_and_the_position() {
    let sample = Sample::new();
    let mut bytes = sample.bytes.clone();
    bytes[sample.start + 40] ^= 1;
    let path = last_segment(&sample.dir());
    fs::write(&path, &bytes).unwrap();
    let text = open(&sample.dir()).unwrap_err().to_string();
    assert!(text.starts_with("walpb: crc mismatch: expected: "), "{text}");
    let tail = format!(": in file '{}' at position: {}", path.display(), sample.start);
    assert!(text.ends_with(&tail), "{text}");
    assert_eq!(snapshot_marks(&RealDisk, &sample.dir()).unwrap_err().to_string(), text);
}

#[test]
fn opening_accepts_only_logs_that_reading_accepts() {
    let sample = Sample::new();
    let changes = proptest::collection::vec((0usize..3000, any::<u8>()), 1..12);
    proptest!(ProptestConfig::with_cases(400), |(changes in changes, kept in 100usize..6000)| {
        let mut bytes = sample.bytes.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(kept);
        fs::write(last_segment(&sample.dir()), &bytes).unwrap();
        drop(snapshot_marks(&RealDisk, &sample.dir()));
        let seen = read(&RealDisk, &sample.dir(), &SnapshotMark::default());
        // A log that can be opened for writing can also be read, with the same content.
        if let Ok((_, contents)) = open(&sample.dir()) {
            prop_assert_eq!(contents.entries, seen.unwrap().entries);
        }
    });
}

#[test]
fn a_log_with_decreasing_terms_is_refused_with_path_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wal");
    let mut wal = create(&dir);
    wal.save(Some(&state(3, 1, 1)), &[entry(1, 3, b"a")]).unwrap();
    let offset = wal.tail.written();
    wal.save(None, &[entry(2, 2, b"b")]).unwrap();
    wal.close().unwrap();
    let refused = read(&RealDisk, &dir, &SnapshotMark::default()).unwrap_err();
    let path = last_segment(&dir);
    assert_eq!(
        refused.to_string(),
        format!(
            "wal: the entry at index 2 has term 2, lower than term 3 of the previous entry: in file '{}' at \
             position: {offset}",
            path.display()
        )
    );
    assert!(open(&dir).is_err());
}
