//! Tests of failing disks, and of power cuts at every operation of a workload. Regardless of which
//! unsynced writes survive, the file opens with exactly the last committed state, or with exactly
//! the state of the commit in progress.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;

use super::*;
use crate::disk::{Fault, FaultyDisk, OpenMode, Operation};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const BUCKET: &[u8] = b"key";
const TRANSACTIONS: u64 = 14;

fn durable() -> Options {
    Options { no_sync: false, growth_bytes: 8 << 10, ..small() }
}

struct Edits {
    after: Model,
    deletes: Vec<Vec<u8>>,
    puts: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Returns the edits that transaction `number` makes to a state.
fn edits(number: u64, state: &Model) -> Edits {
    let mut draw = SplitMix64::new(number + 1);
    let mut after = state.clone();
    let mut deletes: Vec<_> =
        state.keys().filter(|_| draw.below(10) < number % 5 * 2).cloned().collect();
    if number == 9 {
        deletes = state.keys().cloned().collect();
    }
    let mut puts = Vec::new();
    for _ in 0..draw.below(60) {
        let key = (number * 40 + draw.below(80)).to_be_bytes().to_vec();
        let len = if draw.below(20) == 0 { 5000 } else { draw.below(120) };
        puts.push((key, vec![number as u8; len as usize]));
    }
    for key in &deletes {
        after.remove(key);
    }
    after.extend(puts.iter().cloned());
    Edits { after, deletes, puts }
}

fn commit(db: &Db, number: u64, state: &Model) -> Result<Model> {
    let Edits { after, deletes, puts } = edits(number, state);
    let mut tx = db.write()?;
    tx.create_bucket_if_missing(BUCKET)?;
    tx.delete_sorted(BUCKET, &deletes)?;
    for (key, value) in puts {
        tx.put(BUCKET, &key, Bytes::from(value))?;
    }
    tx.put(BUCKET, b"transaction", Bytes::from(number.to_be_bytes().to_vec()))?;
    tx.commit()?;
    Ok(after)
}

/// Runs the workload until it ends or the power is cut. Returns the states that the file may
/// contain afterwards.
fn run(disk: &Arc<dyn Disk>, path: &Path) -> Vec<Model> {
    let mut state = Model::new();
    let Ok(db) = Db::open(disk, path, durable()) else { return vec![state] };
    for number in 0..TRANSACTIONS {
        match commit(&db, number, &state) {
            Ok(after) => state = after,
            Err(_) => {
                let after = edits(number, &state).after;
                assert_refuses(&db);
                return vec![state, after];
            }
        }
        // Reclaiming moves pages and truncates the file, but does not change its content.
        let mut done = number % 4 != 3;
        while !done {
            match db.reclaim(10) {
                Ok(step) => done = step.done,
                Err(_) => return vec![state],
            }
        }
    }
    vec![state]
}

/// Asserts that no further commit succeeds after a fault, and that the content is unchanged.
fn assert_refuses(db: &Db) {
    let before = db.read().txid();
    if let Ok(mut tx) = db.write() {
        // The fault occurred before anything was written, so the writer still accepts edits, but the disk makes the
        // commit fail.
        tx.create_bucket_if_missing(b"more").unwrap();
        tx.commit().unwrap_err();
    }
    assert_eq!(db.read().txid(), before);
}

fn content(db: &Db) -> Model {
    let view = db.read();
    let mut scan = view.scan(BUCKET).unwrap();
    let mut model = Model::new();
    while let Some(entry) = scan.next().unwrap() {
        if entry.key != b"transaction" {
            model.insert(entry.key.to_vec(), entry.value.to_vec());
        }
    }
    model
}

#[test]
fn a_power_cut_at_any_operation_loses_no_committed_transaction() {
    let place = TestDir::new();
    let root = |name: String| {
        let root = place.directory.path().join(name);
        std::fs::create_dir_all(&root).unwrap();
        root
    };
    let whole = root("whole".into());
    let disk = FaultyDisk::new(&whole).unwrap();
    let last = run(&(Arc::new(disk.clone()) as Arc<dyn Disk>), &whole.join("db"));
    let operations = disk.operation_count();
    assert!(operations > 80, "only {operations} operations");
    assert!(last[0].len() > 20);
    for stop in 0..operations {
        let directory = root(format!("run-{stop}"));
        let disk = FaultyDisk::new(&directory).unwrap();
        disk.stop_at(stop);
        let allowed = run(&(Arc::new(disk.clone()) as Arc<dyn Disk>), &directory.join("db"));
        for seed in 0..4 {
            let found = place.directory.path().join(format!("found-{stop}-{seed}"));
            disk.crash(seed + stop * 4 * u64::from(seed > 1), &found).unwrap();
            let db = Db::open(&place.disk, &found.join("db"), small()).unwrap();
            let state = content(&db);
            assert!(allowed.contains(&state), "cut at {stop}, seed {seed}: unexpected state");
            assert_sound(&db, "after a power cut");
            commit(&db, 99, &state).unwrap();
            assert_sound(&db, "after another commit");
            std::fs::remove_dir_all(found).unwrap();
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// Commits two transactions, then makes the third one fail.
fn fail_third(fault: impl Fn(&FaultyDisk)) -> (TestDir, FaultyDisk, Db, Model, BoltError) {
    let place = TestDir::new();
    let disk = FaultyDisk::new(place.directory.path()).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let db = Db::open(&shared, &place.path(), durable()).unwrap();
    let mut state = Model::new();
    for number in 0..2 {
        state = commit(&db, number, &state).unwrap();
    }
    fault(&disk);
    let mut tx = db.write().unwrap();
    tx.put(BUCKET, b"third", Bytes::from(vec![3; 20_000])).unwrap();
    let error = tx.commit().unwrap_err();
    (place, disk, db, state, error)
}

#[test]
fn a_failed_write_or_sync_poisons_the_writer_but_not_readers() {
    const EIO: i32 = 5;
    for (operation, skip) in [
        (Operation::Write, 0),
        (Operation::Write, 1),
        (Operation::Sync, 0),
        (Operation::Sync, 1),
        (Operation::Sync, 2),
    ] {
        let fault = Fault::nth(operation, skip, EIO);
        let (place, disk, db, state, error) = fail_third(|disk| disk.inject(fault.clone()));
        assert!(matches!(error, BoltError::Io { .. }), "{operation:?} {skip}: {error}");
        assert!(error.to_string().contains("db"), "{error}");
        let refused = db.write().unwrap_err();
        assert!(matches!(refused, BoltError::Poisoned { .. }), "{refused}");
        assert!(
            refused.to_string().contains(&error.to_string()),
            "the error does not contain its cause: {refused}"
        );
        assert_eq!(content(&db), state);
        drop(db);
        for seed in 0..6 {
            let found = place.directory.path().join(format!("found-{seed}"));
            disk.crash(seed, &found).unwrap();
            let db = Db::open(&place.disk, &found.join("db"), small()).unwrap();
            assert_sound(&db, "after a failed commit");
            let mut found = content(&db);
            found.remove(&b"third"[..]);
            assert_eq!(found, state);
        }
    }
}

#[test]
fn opening_after_a_failed_sync_uses_a_durable_state() {
    const EIO: i32 = 5;
    for (skip, cut_after) in (0..3).flat_map(|skip| (0..12).map(move |after| (skip, after))) {
        let fault = Fault::nth(Operation::Sync, skip, EIO);
        let (place, disk, db, _, _) = fail_third(|disk| disk.inject(fault.clone()));
        drop(db);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let db = Db::open(&shared, &place.path(), durable()).unwrap();
        let state = content(&db);
        disk.stop_at(disk.operation_count() + cut_after);
        let allowed = match commit(&db, 4, &state) {
            Ok(after) => vec![after],
            Err(_) => vec![edits(4, &state).after, state],
        };
        drop(db);
        for seed in 0..6 {
            let found = place.directory.path().join(format!("found-{seed}"));
            disk.crash(seed, &found).unwrap();
            let db = Db::open(&place.disk, &found.join("db"), small()).unwrap();
            assert_sound(&db, "after a failed sync and a power cut");
            assert!(
                allowed.contains(&content(&db)),
                "failed sync {skip}, cut after {cut_after}, seed {seed}"
            );
        }
    }
}

/// Makes one write fail after `skip` successful writes. Returns whether the failure occurs while the file is opened. If
/// it does not, the first commit after opening the file must fail.
fn writes_at_open(disk: &FaultyDisk, path: &Path, skip: u64) -> bool {
    const EIO: i32 = 5;
    disk.inject(Fault::nth(Operation::Write, skip, EIO));
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    match Db::open(&shared, path, durable()) {
        Err(error) => {
            assert!(error.to_string().contains("write the meta page"), "{error}");
            true
        }
        Ok(db) => {
            let mut tx = db.write().unwrap();
            tx.put(BUCKET, b"more", Bytes::from_static(b"value")).unwrap();
            tx.commit().expect_err("the injected fault fails the first write");
            false
        }
    }
}

#[test]
fn opening_rewrites_a_meta_page_only_if_its_sync_has_failed() {
    const EIO: i32 = 5;
    // A commit syncs three times: after growing the file, after writing pages, and after writing the meta page.
    for (failed, is_of_meta) in [(0, false), (1, false), (2, true)] {
        let fault = Fault::nth(Operation::Sync, failed, EIO);
        let (place, disk, db, _, _) = fail_third(|disk| disk.inject(fault.clone()));
        drop(db);
        assert_eq!(writes_at_open(&disk, &place.path(), 0), is_of_meta, "sync {failed}");
        if is_of_meta {
            assert!(!writes_at_open(&disk, &place.path(), 1), "the other meta page is untouched");
        }
    }
}

#[test]
fn a_full_disk_fails_only_the_commit_that_needs_space() {
    let (_place, disk, db, state, error) = fail_third(|disk| disk.limit_growth(Some(4096)));
    assert!(matches!(error, BoltError::NoRoom { .. }), "{error}");
    assert_eq!(content(&db), state);
    assert_sound(&db, "on a full disk");
    // A commit that fits in the free pages still succeeds.
    let mut tx = db.write().unwrap();
    tx.put(BUCKET, b"transaction", Bytes::from_static(b"small")).unwrap();
    tx.commit().unwrap();
    disk.limit_growth(None);
    let after = commit(&db, 5, &state).unwrap();
    assert_eq!(content(&db), after);
    assert_sound(&db, "after the limit on growth was removed");
}

#[test]
fn a_file_grows_in_small_steps_on_a_nearly_full_disk() {
    let root = tempfile::tempdir().unwrap();
    let faulty = FaultyDisk::new(root.path()).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(faulty.clone());
    let path = root.path().join("db");
    faulty.limit_growth(Some(400 << 10));
    let db = Db::open(&disk, &path, Options { growth_bytes: 16 << 20, ..small() }).unwrap();
    let mut tx = db.write().unwrap();
    tx.create_bucket_if_missing(BUCKET).unwrap();
    tx.put(BUCKET, b"key", Bytes::from(vec![1; 10_000])).unwrap();
    tx.commit().unwrap();
    let left = disk.open(&path, OpenMode::Read).unwrap().free_bytes().unwrap().unwrap();
    assert!(left > 300 << 10, "only {left} bytes are left for other files");
    assert_sound(&db, "on a small disk");
}
