//! Power cuts at every operation, full disks and failing syncs.

use super::*;
use crate::disk::{Fault, Operation};
use crate::purge::purge;

/// What a log has acknowledged, and what it was asked to take beyond.
#[derive(Clone, Default)]
struct Progress {
    acknowledged: Vec<Entry>,
    offered: Vec<Entry>,
    state: HardState,
    mark: u64,
    created: bool,
}

/// Runs a member's life until the power goes or it is over; returns what it was promised.
fn live(disk: &FaultyDisk, dir: &Path) -> Progress {
    let mut done = Progress::default();
    drop(try_live(disk, dir, &mut done));
    done
}

fn try_live(disk: &FaultyDisk, dir: &Path, done: &mut Progress) -> Result<(), WalError> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let options = Options { segment_bytes: 6000, ..small_options() };
    let mut wal = Wal::create(Arc::clone(&shared), dir, metadata(), options.clone())?;
    done.created = true;
    for round in 1..=9u64 {
        let count = round % 3 + 1;
        let size = [40, 700, 1500][round as usize % 3];
        let from = done.acknowledged.len() as u64;
        // Every fourth round overwrites the entry before, as a new leader does.
        let from = if round % 4 == 0 { from - 1 } else { from };
        let batch: Vec<Entry> =
            (1..=count).map(|n| entry(from + n, round, &vec![round as u8; size])).collect();
        let state = state(round, 1, from);
        done.offered.truncate(from as usize);
        done.offered.extend(batch.iter().cloned());
        let saved = wal.save(Some(&state), &batch)?;
        assert!(saved.synced);
        done.acknowledged.clone_from(&done.offered);
        done.state = state;
        wal.save(Some(&HardState { commit: from + count, ..state }), &[])?;
        if round % 2 == 0 {
            wal.prepare(4096)?;
        }
        if round == 5 {
            wal.save_snapshot(&mark(from, round))?;
            done.mark = from;
        }
        if round == 6 {
            drop(wal);
            wal = Wal::open(Arc::clone(&shared), dir, &SnapshotMark::default(), options.clone())?.0;
        }
    }
    wal.close()
}

/// Checks that a log after a power cut opens and holds what was promised.
fn check_survivor(dir: &Path, done: &Progress, what: &str) {
    if !exists(&RealDisk, dir) {
        assert!(!done.created, "{what}: the log is gone");
        return;
    }
    let marks = snapshot_marks(&RealDisk, dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(marks.iter().all(|mark| mark.index <= done.offered.len() as u64));
    let (mut wal, contents) = open(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(contents.metadata, Some(metadata()), "{what}");
    // The entries acknowledged, unless a later save was under way that overwrites or continues them.
    let found = &contents.entries;
    let agrees = |list: &[Entry]| found.iter().zip(list).all(|(a, b)| a == b);
    let is_acknowledged = agrees(&done.acknowledged) && found.len() >= done.acknowledged.len();
    let is_offered = agrees(&done.offered) && found.len() <= done.offered.len();
    assert!(is_acknowledged || is_offered, "{what}: {} entries", found.len());
    let common = done.acknowledged.iter().zip(&done.offered).take_while(|(a, b)| a == b).count();
    assert!(found.len() >= common, "{what}: {} of {common} entries", found.len());
    assert!(contents.hard_state.term >= done.state.term, "{what}");
    assert!(contents.hard_state.commit >= done.state.commit, "{what}");
    if contents.hard_state.commit >= done.mark {
        assert!(marks.iter().any(|mark| mark.index == done.mark), "{what}");
    }
    let next = found.len() as u64 + 1;
    wal.save(None, &[entry(next, 99, b"after")]).unwrap();
    drop(wal);
    assert_eq!(open(dir).unwrap().1.entries.len() as u64, next, "{what}");
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    let total = {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let done = live(&disk, &root.path().join("wal"));
        assert_eq!(done.acknowledged.len(), 16);
        disk.operation_count()
    };
    assert!(total > 60, "{total}");
    for stop in 0..total {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        disk.stop_at(stop);
        let done = live(&disk, &root.path().join("wal"));
        for seed in 0..8 {
            let image = tempfile::tempdir().unwrap();
            disk.crash(seed * 1000 + if seed > 1 { stop } else { 0 }, image.path()).unwrap();
            check_survivor(&image.path().join("wal"), &done, &format!("stop {stop} seed {seed}"));
        }
    }
}

#[test]
fn a_power_cut_during_repair_leaves_a_log_that_can_be_repaired() {
    let prepare = |root: &Path| {
        let dir = root.join("wal");
        let mut wal = create(&dir);
        let _ = wal.save(None, &[entry(1, 1, &[1; 3000])]).unwrap();
        let _ = wal.save(None, &[entry(2, 1, &[2; 3000])]).unwrap();
        let end = wal.tail.written() as usize;
        wal.close().unwrap();
        let mut bytes = fs::read(last_segment(&dir)).unwrap();
        bytes[end - 2000..end].fill(0);
        fs::write(last_segment(&dir), bytes).unwrap();
        dir
    };
    for stop in 0..20 {
        let root = tempfile::tempdir().unwrap();
        let dir = prepare(root.path());
        let original = fs::read(last_segment(&dir)).unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        disk.stop_at(stop);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let opened = Wal::open(shared, &dir, &SnapshotMark::default(), small_options());
        let mut acknowledged = 1;
        if let Ok((mut wal, contents)) = opened {
            assert!(contents.repaired.is_some());
            if wal.save(None, &[entry(2, 2, b"new")]).is_ok() {
                acknowledged = 2;
            }
        }
        for seed in 0..6 {
            let image = tempfile::tempdir().unwrap();
            disk.crash(seed, image.path()).unwrap();
            let dir = image.path().join("wal");
            let damaged = fs::read(last_segment(&dir)).unwrap();
            if damaged != original {
                let backup = format!("{}.broken", last_segment(&dir).display());
                assert_eq!(fs::read(backup).unwrap(), original, "stop {stop} seed {seed}");
            }
            let (_, contents) = open(&dir).unwrap();
            assert!(contents.entries.len() >= acknowledged, "stop {stop} seed {seed}");
        }
    }
}

#[test]
fn what_stands_behind_the_end_never_comes_back() {
    for seed in 0..40 {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("wal");
        let wal = create(&dir);
        let end = wal.tail.written() as usize;
        wal.close().unwrap();
        let mut bytes = fs::read(last_segment(&dir)).unwrap();
        // Where the second of the records to come will end: lengths that fit, of junk.
        for place in bytes[end + 2112..end + 9000].as_chunks_mut().0 {
            *place = 64u64.to_le_bytes();
        }
        fs::write(last_segment(&dir), bytes).unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let options = Options { zero_step_bytes: 0, ..small_options() };
        let opened = Wal::open(Arc::new(disk.clone()), &dir, &SnapshotMark::default(), options);
        let (mut wal, _) = opened.unwrap();
        disk.inject(Fault::nth(Operation::Sync, 0, 5));
        let two = [1, 2].map(|index| entry(index, 1, &[1; 1024]));
        assert!(wal.save(None, &two).is_err());
        assert_eq!(wal.tail.written() as usize, end + 2112);
        let image = tempfile::tempdir().unwrap();
        disk.crash(seed, image.path()).unwrap();
        assert!(open(&image.path().join("wal")).is_ok(), "seed {seed}");
    }
}

fn poisoned_by(fault: Fault) -> WalError {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("wal");
    let mut wal = Wal::create(Arc::new(disk.clone()), &dir, metadata(), small_options()).unwrap();
    wal.save(None, &[entry(1, 1, b"kept")]).unwrap();
    disk.inject(fault);
    let error = wal.save(None, &[entry(2, 1, b"lost")]).unwrap_err();
    assert!(matches!(wal.save(None, &[entry(2, 1, b"again")]), Err(WalError::Poisoned { .. })));
    assert!(matches!(wal.sync(), Err(WalError::Poisoned { .. })));
    assert!(matches!(wal.save_snapshot(&mark(1, 1)), Err(WalError::Poisoned { .. })));
    assert!(matches!(wal.prepare(4096), Err(WalError::Poisoned { .. })));
    wal.close().unwrap();
    let image = tempfile::tempdir().unwrap();
    disk.crash(0, image.path()).unwrap();
    assert_eq!(open(&image.path().join("wal")).unwrap().1.entries, [entry(1, 1, b"kept")]);
    error
}

#[test]
fn a_failed_write_or_sync_ends_the_log() {
    let sync = poisoned_by(Fault::nth(Operation::Sync, 0, 5)).to_string();
    assert!(sync.contains("failed to sync") && sync.contains("00000.wal"), "{sync}");
    let write = Fault { bytes_written: 20, ..Fault::nth(Operation::Write, 0, 5) };
    assert!(poisoned_by(write).to_string().contains("failed to write"));
    let full = poisoned_by(Fault { fail_count: 9, ..Fault::nth(Operation::Write, 0, 28) });
    assert!(matches!(full, WalError::Io { action: "write", .. }));
}

#[test]
fn a_full_disk_is_met_when_reserving_and_not_halfway() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("wal");
    let mut wal = Wal::create(Arc::new(disk.clone()), &dir, metadata(), small_options()).unwrap();
    disk.limit_growth(Some(1000));
    // The next segment cannot be reserved; the log goes on as long as this one has room.
    assert!(wal.prepare(4096).is_err());
    let mut count = 0;
    let error = loop {
        match wal.save(None, &[entry(count + 1, 1, &[1; 1000])]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WalError::Io { action: "allocate", .. }), "{error}");
    assert_eq!(count, 15);
    wal.close().unwrap();
    disk.limit_growth(None);
    let (mut wal, contents) = open(&dir).unwrap();
    // The last save had been synced before room for the next segment was sought.
    assert_eq!(contents.entries.len(), 16);
    assert!(wal.save(None, &[entry(17, 1, b"x")]).unwrap().new_segment.is_some());
}

#[test]
fn a_short_segment_grows_without_room_for_zeros() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("wal");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let wal = Wal::create(Arc::clone(&shared), &dir, metadata(), small_options()).unwrap();
    let end = wal.tail.written();
    wal.close().unwrap();
    shared.open(&last_segment(&dir), OpenMode::ReadWrite).unwrap().set_len(end).unwrap();
    let (mut wal, _) = Wal::open(shared, &dir, &SnapshotMark::default(), small_options()).unwrap();
    disk.limit_growth(Some(2000));
    assert!(wal.save(None, &[entry(1, 1, &[1; 1000])]).unwrap().synced);
    assert!(wal.save(None, &[entry(2, 1, &[1; 1000])]).is_err());
}

/// Takes snapshots, a leader's (odd rounds) and its own, and purges whenever it may; returns the index up to
/// which everything was promised.
fn live_with_snapshots(disk: &FaultyDisk, dir: &Path) -> u64 {
    let mut promised = 0;
    let mut try_live = || -> Result<(), WalError> {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let options = Options { segment_bytes: 3000, ..small_options() };
        let mut wal = Wal::create(shared, dir, metadata(), options)?;
        // The purger has a thread of its own.
        let purge = || drop(purge(disk, dir, ".wal", 1, true));
        let mut committed = HardState::default();
        for round in 1..=4 {
            for _ in 0..3 {
                let next = entry(promised + 1, 1, &[1; 1500]);
                // What is committed meanwhile is not written.
                wal.save(Some(&state(1, 1, committed.commit)), &[next])?;
                promised += 1;
                purge();
            }
            committed = state(1, 1, if round % 2 == 1 { promised + 100 } else { promised });
            if round % 2 == 1 {
                wal.save_snapshot(&mark(committed.commit, 1))?;
                wal.release_to(committed.commit);
                purge();
                wal.append(Some(&committed), [])?;
            } else {
                wal.append(Some(&committed), [])?;
                wal.save_snapshot(&mark(committed.commit, 1))?;
                wal.release_to(committed.commit);
            }
            purge();
            wal.sync()?;
            purge();
            promised = committed.commit;
        }
        wal.close()
    };
    drop(try_live());
    promised
}

#[test]
fn a_power_cut_finds_all_segments_behind_the_newest_mark_that_counts() {
    let total = {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let dir = root.path().join("wal");
        assert_eq!(live_with_snapshots(&disk, &dir), 212);
        assert!(list(&RealDisk, &dir).unwrap().segments.len() < 3, "segments were purged");
        disk.operation_count()
    };
    for stop in 0..total {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        disk.stop_at(stop);
        let promised = live_with_snapshots(&disk, &root.path().join("wal"));
        for seed in 0..6 {
            let what = format!("stop {stop} seed {seed}");
            let image = tempfile::tempdir().unwrap();
            disk.crash(seed * 1000 + if seed > 1 { stop } else { 0 }, image.path()).unwrap();
            let dir = image.path().join("wal");
            if !exists(&RealDisk, &dir) {
                assert_eq!(promised, 0, "{what}");
                continue;
            }
            let marks = snapshot_marks(&RealDisk, &dir).unwrap_or_else(|e| panic!("{what}: {e}"));
            let start = marks.last().cloned().unwrap_or_default();
            let contents = read(&RealDisk, &dir, &start);
            let contents = contents.unwrap_or_else(|e| panic!("{what}, from {}: {e}", start.index));
            assert!(contents.start_marked, "{what}");
            assert!(contents.last_index >= promised, "{what}");
        }
    }
}
