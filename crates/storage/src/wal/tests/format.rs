//! Tests of the bytes on disk, and of a log's ordinary behaviour.

use super::*;

#[test]
fn a_new_log_is_encoded_as_in_etcd() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = Wal::create(real(), &dir, metadata(), Options::default()).unwrap();
    let saved = wal.save(
        Some(&state(1, 0, 1)),
        &[Entry { kind: 1, ..entry(1, 1, b"conf") }, entry(2, 2, b"")],
    );
    assert!(saved.unwrap().synced);
    let path = dir.join("0000000000000000-0000000000000000.wal");
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 64_000_000);

    // The checksums are computed over the data fields in order: metadata, snapshot, entries, state.
    let mut crc = 0;
    let mut expected = Vec::new();
    expected.extend(b"\x04\0\0\0\0\0\0\x84\x08\x04\x10\x00\0\0\0\0");
    let mut record = |kind: u8, data: &[u8]| {
        crc = crate::checksum::crc32c_extend(crc, data);
        let mut body = vec![0x08, kind, 0x10];
        let mut rest = crc;
        while rest >= 0x80 {
            body.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        body.push(rest as u8);
        body.extend([0x1a, data.len() as u8]);
        body.extend(data);
        let pad = (8 - body.len() % 8) % 8;
        expected.extend((body.len() as u32).to_le_bytes());
        expected.extend([0, 0, 0, if pad == 0 { 0 } else { 0x80 | pad as u8 }]);
        expected.extend(body);
        expected.extend(vec![0; pad]);
    };
    record(1, b"\x08\x2a\x10\x2b");
    record(5, b"\x08\x00\x10\x00");
    record(2, b"\x08\x01\x10\x01\x18\x01\x22\x04conf");
    record(2, b"\x10\x02\x18\x02");
    record(3, b"\x08\x01\x10\x00\x18\x01");
    assert_eq!(bytes[..expected.len()], expected);
    assert!(bytes[expected.len()..].iter().all(|byte| *byte == 0));

    let mode = |path: &Path| RealDisk.metadata(path).unwrap().unwrap().mode;
    assert_eq!((mode(&dir), mode(&path)), (0o700, 0o600));
    assert!(!root.path().join("wal.tmp").exists());
    wal.close().unwrap();
}

#[test]
fn a_log_is_not_created_over_an_existing_log() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    assert!(!exists(&RealDisk, &dir).unwrap());
    fs::create_dir_all(dir.join("rubbish")).unwrap();
    fs::create_dir_all(root.path().join("wal.tmp/0000000000000000-0000000000000000.wal")).unwrap();
    assert!(!exists(&RealDisk, &dir).unwrap());
    create(&dir).close().unwrap();
    assert!(exists(&RealDisk, &dir).unwrap());
    assert!(!dir.join("rubbish").exists());
    let again = Wal::create(real(), &dir, metadata(), small_options());
    assert!(matches!(again, Err(WalError::AlreadyExists { .. })));
}

#[test]
fn a_new_segment_can_be_read_without_the_earlier_segments() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    let mut segments = Vec::new();
    for index in 1..=60 {
        // The state is saved only in the first segment. Later segments repeat it.
        let state = (index < 10).then(|| state(3, 7, index - 1));
        let saved = wal.save(state.as_ref(), &[entry(index, 3, &[b'x'; 1000])]).unwrap();
        if let Some(path) = saved.new_segment {
            segments.push((index, path));
        }
    }
    assert_eq!(segments.len(), 3);
    let closed_bytes =
        fs::metadata(dir.join("0000000000000000-0000000000000000.wal")).unwrap().len();
    assert!((16 * 1024..18 * 1024).contains(&closed_bytes), "{closed_bytes}");
    let (index, path) = &segments[2];
    assert!(path.ends_with(format!("{:016x}-{:016x}.wal", 3, index + 1)));
    wal.save_snapshot(&mark(55, 3)).unwrap();
    wal.close().unwrap();

    // Only the last segment is left, as after a purge.
    for (_, old) in &segments[..2] {
        fs::remove_file(old).unwrap();
    }
    fs::remove_file(dir.join("0000000000000000-0000000000000000.wal")).unwrap();
    let (wal, contents) = Wal::open(real(), &dir, &mark(55, 3), small_options()).unwrap();
    assert_eq!(contents.metadata, Some(metadata()));
    assert_eq!(contents.hard_state, state(3, 7, 8));
    assert_eq!(contents.entries.len(), 5);
    assert_eq!((contents.last_index, wal.last_index()), (60, 60));
    assert!(contents.start_marked);
    drop(wal);
    let missing = open(&dir).unwrap_err();
    assert_eq!(missing.to_string(), "wal: file not found which matches the snapshot index '0'");
}

#[test]
fn a_new_commit_index_without_entries_is_not_synced_immediately() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    assert!(wal.save(Some(&state(1, 2, 0)), &[entry(1, 1, b"a")]).unwrap().synced);
    assert!(!wal.save(Some(&state(1, 2, 1)), &[]).unwrap().synced);
    assert_eq!(wal.save(None, &[]).unwrap(), Saved::default());
    assert_eq!(wal.save(Some(&HardState::default()), &[]).unwrap(), Saved::default());
    // A killed process loses the commit index.
    let seen = read(&RealDisk, &dir, &SnapshotMark::default()).unwrap();
    assert_eq!(seen.hard_state, state(1, 2, 0));
    // The commit index is written when a vote is saved and when the log is closed.
    assert!(wal.save(Some(&state(2, 3, 1)), &[]).unwrap().synced);
    assert!(!wal.save(Some(&state(2, 3, 4)), &[]).unwrap().synced);
    wal.close().unwrap();
    let (mut wal, contents) = open(&dir).unwrap();
    assert_eq!(contents.hard_state, state(2, 3, 4));
    // The hard state that was read when the log was opened is not written again.
    assert!(!wal.save(Some(&state(2, 3, 5)), &[]).unwrap().synced);
    // Saved commit indexes do not accumulate in memory.
    for commit in 0..10_000 {
        wal.save(Some(&state(2, 3, commit)), &[]).unwrap();
    }
    assert!(read(&RealDisk, &dir, &SnapshotMark::default()).unwrap().hard_state.commit > 3000);
}

#[test]
fn only_segments_before_a_durable_snapshot_mark_are_unlocked() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    for index in 1..=80 {
        let _ = wal.save(None, &[entry(index, 1, &[1; 1000])]).unwrap();
    }
    let names = list(&RealDisk, &dir).unwrap().segments;
    assert!(names.len() >= 5);
    assert!(matches!(open(&dir), Err(WalError::Locked { .. })));
    let is_free = |name: &SegmentName| {
        let file = RealDisk.open(&dir.join(name.file_name()), OpenMode::ReadWrite).unwrap();
        file.try_lock(crate::disk::LockKind::OfdExclusive).unwrap()
    };
    // No segment is released before a hard state on disk covers the mark, because until then a restarted member may
    // need the segment.
    wal.release_to(names[2].index);
    wal.append(Some(&state(1, 1, u64::MAX)), []).unwrap();
    assert!(!names.iter().any(is_free));
    // Segments begin at 16, 31, and so on. The segment before the first segment that begins at or after the index stays
    // locked.
    wal.sync().unwrap();
    assert_eq!(names.iter().map(is_free).collect::<Vec<_>>()[..3], [true, false, false]);
    wal.release_to(names[2].index + 1);
    assert_eq!(names.iter().map(is_free).collect::<Vec<_>>()[..4], [true, true, false, false]);
    wal.release_to(u64::MAX);
    assert_eq!(names.iter().filter(|name| !is_free(name)).count(), 1);
    wal.release_to(u64::MAX);
    drop(wal);
    assert!(open(&dir).is_ok());
}

#[test]
fn preparing_a_segment_ends_after_a_bounded_number_of_steps() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    fs::write(dir.join("0.tmp"), [9; 100]).unwrap();
    let mut steps = 0;
    while wal.prepare(4096).unwrap() {
        steps += 1;
        assert!(steps < 20);
    }
    assert_eq!(fs::read(dir.join("0.tmp")).unwrap(), vec![0; 16 * 1024]);
    for index in 1..=200 {
        let _ = wal.save(None, &[entry(index, 1, &[1; 500])]).unwrap();
        wal.prepare(4096).unwrap();
    }
    wal.close().unwrap();
    assert!(!dir.join("0.tmp").exists() && !dir.join("1.tmp").exists());
    assert_eq!(open(&dir).unwrap().1.entries.len(), 200);
}

#[test]
fn snapshot_marks_beyond_the_commit_index_are_ignored() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    let three = [1, 2, 3].map(|index| entry(index, 1, b""));
    wal.save(Some(&state(1, 1, 3)), &three).unwrap();
    wal.save_snapshot(&mark(2, 1)).unwrap();
    wal.save_snapshot(&mark(50, 2)).unwrap();
    assert_eq!(wal.last_index(), 50);
    let bare = SnapshotMark { conf_state: None, ..mark(3, 1) };
    assert!(matches!(wal.save_snapshot(&bare), Err(WalError::MarkWithoutConfState { .. })));
    let marks = snapshot_marks(&RealDisk, &dir).unwrap();
    assert_eq!(marks, [SnapshotMark::default(), mark(2, 1)]);
    drop(wal);
    // If reading starts at a snapshot, the entries that the snapshot contains are left out. There
    // need not be a mark at the start index, but if there is one, its term must match.
    let at = |index, term| Wal::open(real(), &dir, &mark(index, term), small_options());
    assert_eq!(at(2, 1).unwrap().1.entries, [entry(3, 1, b"")]);
    let mismatch = at(2, 9).unwrap_err().to_string();
    assert!(mismatch.starts_with("wal: snapshot mismatch"), "{mismatch}");
    let unmarked = at(1, 1).unwrap().1;
    assert!(!unmarked.start_marked && unmarked.entries.len() == 2);
    assert_eq!(at(2, 1).unwrap().1.last_index, 3, "the log ends with its last entry");
    let (mut wal, _) = at(2, 1).unwrap();
    wal.save(Some(&state(2, 1, 50)), &[]).unwrap();
    drop(wal);
    assert_eq!(at(2, 1).unwrap().1.last_index, 50, "the mark at the commit index was ignored");
}

#[test]
fn index_gaps_and_segments_of_other_members_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    wal.save(None, &[entry(1, 1, b"")]).unwrap();
    // Encodes the entry directly, to bypass the check that refuses it.
    wal.encoder.push_entry(EntryRef::from(&entry(3, 1, b"")));
    wal.close().unwrap();
    assert_eq!(
        open(&dir).unwrap_err().to_string(),
        "wal: slice bounds out of range, snapshot[Index: 0, Term: 0], current entry[Index: 3, Term: 1], len(ents): 1"
    );
    // A segment of another member follows.
    let other = root.path().join("other");
    let foreign = Wal::create(real(), &other, Bytes::from_static(b"\x08\x01"), small_options());
    foreign.unwrap().close().unwrap();
    fs::copy(last_segment(&other), dir.join("0000000000000001-0000000000000004.wal")).unwrap();
    assert!(matches!(
        read(&RealDisk, &dir, &mark(3, 1)),
        Err(WalError::CrcMismatch { .. } | WalError::MetadataConflict { .. })
    ));
    fs::write(dir.join("notes.txt"), b"").unwrap();
    fs::write(dir.join("1.tmp"), b"").unwrap();
    assert_eq!(list(&RealDisk, &dir).unwrap().ignored, ["notes.txt"]);
}

#[test]
fn overwritten_entries_do_not_reappear_after_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wal");
    let mut wal = create(&dir);
    let old: Vec<Entry> = (1..=5).map(|index| entry(index, 1, b"old")).collect();
    wal.save(Some(&state(1, 0, 3)), &old).unwrap();
    wal.save(Some(&state(2, 0, 4)), &[entry(4, 2, b"new")]).unwrap();
    wal.save_snapshot(&mark(4, 2)).unwrap();
    drop(wal);
    let (_, contents) = Wal::open(real(), &dir, &mark(4, 2), small_options()).unwrap();
    assert_eq!((contents.last_index, contents.entries), (4, Vec::new()));
}

#[test]
fn entries_replaced_by_a_leaders_snapshot_are_not_read() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    // Entries of a deposed leader. Only the first entry was committed.
    let old: Vec<_> = (1..=5).map(|index| entry(index, 1, b"of the old leader")).collect();
    wal.save(Some(&state(1, 0, 1)), &old).unwrap();
    let snapshot = mark(3, 2);
    wal.save_snapshot(&snapshot).unwrap();
    wal.save(Some(&state(2, 0, 3)), &[]).unwrap();
    drop(wal);
    let contents = read(&RealDisk, &dir, &snapshot).unwrap();
    assert_eq!((&contents.entries[..], contents.last_index), (&[][..], 3));
    let (mut wal, contents) = Wal::open(real(), &dir, &snapshot, small_options()).unwrap();
    assert_eq!(contents.last_index, 3);
    wal.save(None, &[entry(4, 2, b"of the new leader")]).unwrap();
    drop(wal);
    let contents = read(&RealDisk, &dir, &snapshot).unwrap();
    assert_eq!(contents.entries, [entry(4, 2, b"of the new leader")]);
    // A snapshot of the member's own state does not replace entries.
    let whole = read(&RealDisk, &dir, &SnapshotMark::default()).unwrap();
    assert_eq!(whole.entries.len(), 4);
}
