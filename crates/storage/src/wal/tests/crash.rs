//! Tests with power cuts at every operation, full disks and failing syncs.

use super::*;
use crate::disk::{Fault, Faults, Operation};
use crate::purge::purge;

/// The progress of a member's run. `offered` contains the entries that the log has once the save in progress is
/// finished.
#[derive(Clone, Default)]
struct Progress {
    acknowledged: Vec<Entry>,
    offered: Vec<Entry>,
    state: HardState,
    mark: u64,
    created: bool,
}

/// Runs a member until it finishes or the power is cut. Returns its progress.
fn live(disk: &FaultyDisk, dir: &Path) -> Progress {
    let mut done = Progress::default();
    drop(try_live(disk, dir, &mut done));
    done
}

fn try_live(disk: &FaultyDisk, dir: &Path, done: &mut Progress) -> Result<(), WalError> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let options = Options { segment_bytes: 6000, kept_free_bytes: 1 << 20, ..small_options() };
    let mut wal = Wal::create(Arc::clone(&shared), dir, metadata(), options.clone())?;
    done.created = true;
    for round in 1..=9u64 {
        let count = round % 3 + 1;
        let size = [40, 700, 1500][round as usize % 3];
        let from = done.acknowledged.len() as u64;
        // Every fourth round overwrites the previous entry, as a new leader does.
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

#[test]
fn a_log_can_be_opened_even_if_its_parent_directory_is_unreadable() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("above").join("wal");
    fs::create_dir_all(dir.parent().unwrap()).unwrap();
    let mut wal = create(&dir);
    wal.save(Some(&state(1, 1, 0)), &[entry(1, 1, b"a")]).unwrap();
    drop(wal);
    let open = |errno, of: &str| {
        let disk = FaultyDisk::new(home.path()).unwrap();
        disk.inject(Fault::nth(Operation::SyncDir, 0, errno).on(of));
        Wal::open(Arc::new(disk), &dir, &SnapshotMark::default(), small_options())
    };
    let (denied, broken) = (13, 5);
    assert_eq!(open(denied, "above").unwrap().1.last_index, 1);
    assert!(open(denied, "wal").is_err(), "the segment names must be durable");
    assert!(open(broken, "above").is_err());
}

#[test]
fn opening_a_log_syncs_the_segment_names_that_an_earlier_process_left_unsynced() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let disk = FaultyDisk::new(root.path()).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut wal = Wal::create(Arc::clone(&shared), &dir, metadata(), small_options()).unwrap();
    disk.inject(Fault::nth(Operation::SyncDir, 0, 5).on("wal"));
    let large = vec![7; 1500];
    let mut last = 0;
    while wal.save(None, &[entry(last + 1, 1, &large)]).is_ok() {
        last += 1;
    }
    drop(wal);
    let start = SnapshotMark::default();
    let (mut wal, found) = Wal::open(shared, &dir, &start, small_options()).unwrap();
    let next = found.last_index + 1;
    assert!(wal.save(None, &[entry(next, 1, b"acknowledged")]).unwrap().synced);
    let after = tempfile::tempdir().unwrap();
    disk.crash(0, after.path()).unwrap();
    let (_, survived) = open(&after.path().join("wal")).unwrap();
    assert_eq!(survived.last_index, next);
}

/// Asserts that a log can be opened after a power cut, and contains all acknowledged entries.
fn check_survivor(dir: &Path, done: &Progress, what: &str) {
    if !exists(&RealDisk, dir).unwrap() {
        assert!(!done.created, "{what}: the created log is missing");
        return;
    }
    let marks = snapshot_marks(&RealDisk, dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(marks.iter().all(|mark| mark.index <= done.offered.len() as u64));
    let (mut wal, contents) = open(dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(contents.metadata, Some(metadata()), "{what}");
    // The log begins with the acknowledged entries, unless a save that was in progress replaced some of them.
    let found = &contents.entries;
    let agrees = |list: &[Entry]| found.iter().zip(list).all(|(a, b)| a == b);
    let is_acknowledged = agrees(&done.acknowledged) && found.len() >= done.acknowledged.len();
    let is_offered = agrees(&done.offered) && found.len() <= done.offered.len();
    assert!(is_acknowledged || is_offered, "{what}: unexpected log with {} entries", found.len());
    let common = done.acknowledged.iter().zip(&done.offered).take_while(|(a, b)| a == b).count();
    assert!(found.len() >= common, "{what}: only {} of {common} entries remain", found.len());
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

/// Cuts the power at every operation of a member's run, on a disk whose files may grow by at most
/// `room` bytes.
fn check_power_cuts_at_every_operation(room: Option<u64>) {
    let disk_of = |root: &Path| {
        let disk = FaultyDisk::new(root).unwrap();
        disk.limit_growth(room);
        disk
    };
    let total = {
        let root = tempfile::tempdir().unwrap();
        let disk = disk_of(root.path());
        let done = live(&disk, &root.path().join("wal"));
        assert_eq!(done.acknowledged.len(), 16);
        disk.operation_count()
    };
    assert!(total > 50, "{total}");
    for stop in 0..total {
        let root = tempfile::tempdir().unwrap();
        let disk = disk_of(root.path());
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
fn a_power_cut_at_any_operation_loses_no_acknowledged_entry() {
    check_power_cuts_at_every_operation(None);
}

#[test]
fn a_power_cut_on_a_nearly_full_disk_loses_no_acknowledged_entry() {
    check_power_cuts_at_every_operation(Some(400_000));
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
fn old_bytes_after_the_log_end_are_never_read_as_records() {
    for seed in 0..40 {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("wal");
        let wal = create(&dir);
        let end = wal.tail.written() as usize;
        wal.close().unwrap();
        let mut bytes = fs::read(last_segment(&dir)).unwrap();
        // The old bytes contain valid lengths at the offset at which the second new record will
        // end.
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
fn records_read_after_a_failed_sync_are_made_durable() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("wal");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut wal = Wal::create(Arc::clone(&shared), &dir, metadata(), small_options()).unwrap();
    wal.save(None, &[entry(1, 1, b"kept")]).unwrap();
    disk.inject(Fault::nth(Operation::Sync, 0, 5));
    wal.save(None, &[entry(2, 1, &[2; 1500])]).unwrap_err();
    drop(wal);
    let start = SnapshotMark::default();
    let (mut wal, found) = Wal::open(shared, &dir, &start, small_options()).unwrap();
    assert_eq!(found.last_index, 2, "the system returns data that it has not written to the disk");
    let survivors = |seed| {
        let image = tempfile::tempdir().unwrap();
        disk.crash(seed, image.path()).unwrap();
        open(&image.path().join("wal")).unwrap().1.last_index
    };
    assert_eq!(survivors(0), 2, "opening the log makes the records durable");
    wal.save(None, &[entry(3, 1, b"acknowledged")]).unwrap();
    for seed in 0..20 {
        assert_eq!(survivors(seed), 3);
    }
}

#[test]
fn opening_a_log_rewrites_records_only_after_a_failed_sync() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("wal");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut wal = Wal::create(Arc::clone(&shared), &dir, metadata(), small_options()).unwrap();
    wal.save(None, &[entry(1, 1, b"acknowledged")]).unwrap();
    // Dropping the log simulates a killed process.
    drop(wal);
    let start = SnapshotMark::default();
    let reopen = || {
        let opened = Wal::open(Arc::clone(&shared), &dir, &start, small_options());
        opened.map(|(wal, found)| (wal, found.last_index))
    };
    disk.inject(Fault::nth(Operation::Write, 0, 5));
    let (mut wal, last_index) = reopen().expect("reopening an intact log writes nothing");
    assert_eq!(last_index, 1);
    wal.save(None, &[entry(2, 1, b"fails")]).expect_err("the injected fault fails this write");
    drop(wal);
    // After a failed write, the records are written again the first time the log is opened
    // successfully, but not later.
    disk.inject(Fault::nth(Operation::Write, 0, 5));
    assert!(reopen().unwrap_err().to_string().contains("write"));
    drop(reopen().unwrap());
    disk.inject(Fault::nth(Operation::Write, 0, 5));
    drop(reopen().expect("reopening an intact log writes nothing"));
}

#[test]
fn a_failed_write_or_sync_poisons_the_log() {
    let sync = poisoned_by(Fault::nth(Operation::Sync, 0, 5)).to_string();
    assert!(sync.contains("failed to sync") && sync.contains("00000.wal"), "{sync}");
    let write = Fault { bytes_written: 20, ..Fault::nth(Operation::Write, 0, 5) };
    assert!(poisoned_by(write).to_string().contains("failed to write"));
    let full = poisoned_by(Fault { fail_count: 9, ..Fault::nth(Operation::Write, 0, 28) });
    assert!(matches!(full, WalError::Io { action: "write", .. }));
}

#[test]
fn a_log_without_space_to_reserve_uses_the_remaining_disk_space() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("wal");
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut wal = Wal::create(Arc::clone(&shared), &dir, metadata(), small_options()).unwrap();
    assert_eq!(wal.take_shortage(), None);
    disk.limit_growth(Some(40_000));
    // No segment is reserved in advance, because the remaining space is needed for other writes.
    while wal.prepare(1 << 20).unwrap() {}
    assert_eq!(disk.metadata(&dir.join("0.tmp")).unwrap(), None);
    let (mut count, mut segments, mut shortages) = (0, 0, 0);
    let error = loop {
        match wal.save(None, &[entry(count + 1, 1, &[1; 1000])]) {
            Ok(saved) => {
                count += 1;
                segments += usize::from(saved.new_segment.is_some());
            }
            Err(error) => break error,
        }
        shortages += usize::from(wal.take_shortage().is_some());
        while wal.prepare(1 << 20).unwrap() {}
    };
    assert!(matches!(error, WalError::Io { action: "write", .. }), "{error}");
    // The entries fill the reserved segment and all remaining space after it.
    assert_eq!((count, segments, shortages), (54, 3, 3));
    drop(wal);
    // All acknowledged entries are present, no repair is needed, and opening the log requires no space.
    disk.limit_growth(Some(0));
    let begin = SnapshotMark::default();
    let (_, contents) = Wal::open(Arc::clone(&shared), &dir, &begin, small_options()).unwrap();
    assert_eq!(contents.repaired, None);
    assert_eq!(contents.entries.len() as u64, count);
    disk.limit_growth(None);
    let (mut wal, _) = Wal::open(shared, &dir, &begin, small_options()).unwrap();
    assert_eq!(wal.take_shortage(), None, "the rest of the segment is reserved now");
    assert!(wal.save(None, &[entry(count + 1, 1, b"x")]).unwrap().synced);
}

#[test]
fn a_log_is_created_on_a_disk_without_space_for_a_segment() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("wal");
    disk.limit_growth(Some(2000));
    let options = Options::default();
    let shared: Arc<dyn Disk> = Arc::new(disk);
    let mut wal = Wal::create(Arc::clone(&shared), &dir, metadata(), options.clone()).unwrap();
    let shortage = wal.take_shortage().unwrap();
    let segments = list(&*shared, &dir).unwrap().segments;
    assert_eq!(shortage.path, dir.join(segments[0].file_name()));
    assert_eq!(shortage.wanted_bytes, options.segment_bytes);
    assert!(shortage.reserved_bytes < 1000, "{shortage:?}");
    assert_eq!(wal.take_shortage(), None, "the shortage is reported once");
    wal.save(None, &[entry(1, 1, b"one")]).unwrap();
    wal.save(None, &[entry(2, 1, b"two")]).unwrap();
    drop(wal);
    let (_, contents) = Wal::open(shared, &dir, &SnapshotMark::default(), options).unwrap();
    assert_eq!(contents.entries, [entry(1, 1, b"one"), entry(2, 1, b"two")]);
}

#[test]
fn a_full_segment_stays_in_use_if_there_is_no_disk_space_for_the_next_one() {
    // A file system can have free bytes but no inode for a new file, or no block for a longer name. It may also detect
    // only at a sync that it has no room.
    let without_zeros = Options { zero_step_bytes: 0, zero_lead_bytes: 0, ..small_options() };
    let with_zeros = Options { zero_lead_bytes: 1 << 20, ..without_zeros };
    for (operation, options) in [
        (Operation::Open, &without_zeros),
        (Operation::Write, &without_zeros),
        (Operation::Sync, &without_zeros),
        (Operation::Rename, &without_zeros),
        (Operation::Sync, &with_zeros),
    ] {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let dir = root.path().join("wal");
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let mut wal = Wal::create(Arc::clone(&shared), &dir, metadata(), options.clone()).unwrap();
        for name in ["/0.tmp", "/1.tmp"] {
            let full = Fault::nth(operation, 0, 28).on(name);
            disk.inject(Fault { fail_count: u64::MAX, ..full });
        }
        let mut shortages = Vec::new();
        for index in 1..=20 {
            let saved = wal.save(None, &[entry(index, 1, &[1; 1000])]).unwrap();
            assert_eq!(saved.new_segment, None, "{operation:?}");
            let has_ended = (0..3).any(|_| !wal.prepare(1 << 20).unwrap());
            assert!(has_ended, "{operation:?}: preparation is not repeated");
            shortages.extend(wal.take_shortage());
        }
        assert_eq!(shortages.len(), 1, "{operation:?}: {shortages:?}");
        let count = |disk: &dyn Disk, dir: &Path| {
            let opened = read(disk, dir, &SnapshotMark::default());
            opened.unwrap_or_else(|error| panic!("{operation:?}: {error}")).entries.len()
        };
        let image = tempfile::tempdir().unwrap();
        disk.crash(0, image.path()).unwrap();
        assert_eq!(count(&RealDisk, &image.path().join("wal")), 20, "{operation:?}");
        // As soon as there is space, the next segment is started.
        disk.set_faults(Faults::default());
        assert!(wal.save(None, &[entry(21, 1, b"x")]).unwrap().new_segment.is_some());
        wal.save(None, &[entry(22, 1, b"x")]).unwrap();
        wal.close().unwrap();
        assert_eq!(count(&*shared, &dir), 22, "{operation:?}");
    }
}

#[test]
fn the_missing_parents_of_a_new_log_are_durable() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let dir = root.path().join("a/b/wal");
    Wal::create(Arc::new(disk.clone()), &dir, metadata(), small_options()).unwrap();
    let image = tempfile::tempdir().unwrap();
    disk.crash(0, image.path()).unwrap();
    assert!(exists(&RealDisk, &image.path().join("a/b/wal")).unwrap());
}

#[test]
fn a_torn_end_is_cut_off_even_without_disk_space_for_a_backup() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    wal.save(None, &[entry(1, 1, &[1; 3000])]).unwrap();
    wal.save(None, &[entry(2, 1, &[2; 3000])]).unwrap();
    let end = wal.tail.written();
    drop(wal);
    let file = fs::OpenOptions::new().write(true).open(last_segment(&dir)).unwrap();
    file.set_len(end - 2000).unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    disk.limit_growth(Some(1000));
    let opened = Wal::open(Arc::new(disk.clone()), &dir, &SnapshotMark::default(), small_options());
    let (mut wal, contents) = opened.unwrap();
    assert_eq!(contents.repaired.unwrap().backup, None);
    assert_eq!(contents.entries.len(), 1);
    let names = disk.read_dir(&dir).unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    // Cutting off the torn end has freed space.
    assert!(wal.save(None, &[entry(2, 2, &[2; 1500])]).unwrap().synced);
}

#[test]
fn segments_reserved_by_an_earlier_process_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("wal");
    let mut wal = create(&dir);
    assert!(wal.prepare(4096).unwrap());
    drop(wal);
    assert!(dir.join("0.tmp").exists());
    let _opened = open(&dir).unwrap();
    assert!(!dir.join("0.tmp").exists());
}

/// Takes snapshots (a leader's in odd rounds, the member's own in even rounds) and purges whenever
/// possible. Returns the index up to which all entries were acknowledged.
fn run_with_snapshots(disk: &FaultyDisk, dir: &Path) -> u64 {
    let mut promised = 0;
    let mut try_live = || -> Result<(), WalError> {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let options = Options { segment_bytes: 3000, ..small_options() };
        let mut wal = Wal::create(shared, dir, metadata(), options)?;
        // Purging does not go through the log, so this run continues after a failed purge, although a member would
        // stop.
        let purge = || drop(purge(disk, dir, ".wal", 1, true));
        let mut committed = HardState::default();
        for round in 1..=4 {
            for _ in 0..3 {
                let next = entry(promised + 1, 1, &[1; 1500]);
                // The commit index has not changed since the previous round.
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
fn all_segments_after_the_newest_valid_mark_survive_purges_and_power_cuts() {
    let total = {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let dir = root.path().join("wal");
        assert_eq!(run_with_snapshots(&disk, &dir), 212);
        assert!(list(&disk, &dir).unwrap().segments.len() < 3, "segments were purged");
        disk.operation_count()
    };
    for stop in 0..total {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        disk.stop_at(stop);
        let promised = run_with_snapshots(&disk, &root.path().join("wal"));
        for seed in 0..6 {
            let what = format!("stop {stop} seed {seed}");
            let image = tempfile::tempdir().unwrap();
            disk.crash(seed * 1000 + if seed > 1 { stop } else { 0 }, image.path()).unwrap();
            let dir = image.path().join("wal");
            if !exists(&RealDisk, &dir).unwrap() {
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
