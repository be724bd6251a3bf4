//! Tests of reclaiming space from files with large values. Free runs are often too short for the pages of a large
//! value, so the values above them have to move to the end of the file first.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::*;
use crate::disk::FaultyDisk;

type Model = BTreeMap<u64, (u8, usize)>;

const BUCKET: &[u8] = b"key";
const STEP_PAGES: u64 = 256;

fn options() -> Options {
    Options { page_bytes_new: 4096, ..small() }
}

fn put(db: &Db, model: &mut Model, number: u64, len: usize) {
    let byte = (number % 251) as u8;
    let mut tx = db.write().unwrap();
    tx.create_bucket_if_missing(BUCKET).unwrap();
    tx.put(BUCKET, &number.to_be_bytes(), Bytes::from(vec![byte; len])).unwrap();
    tx.commit().unwrap();
    model.insert(number, (byte, len));
}

fn delete(db: &Db, model: &mut Model, numbers: &[u64]) {
    let keys: Vec<_> = numbers.iter().map(|number| number.to_be_bytes()).collect();
    let mut tx = db.write().unwrap();
    assert_eq!(tx.delete_sorted(BUCKET, &keys).unwrap(), keys.len() as u64);
    tx.commit().unwrap();
    model.retain(|number, _| !numbers.contains(number));
}

fn assert_shows(view: &ReadTx, model: &Model) {
    let mut scan = view.scan(BUCKET).unwrap();
    for (number, (byte, len)) in model {
        let entry = scan.next().unwrap().unwrap();
        assert_eq!((entry.key, entry.value.len()), (&number.to_be_bytes()[..], *len));
        assert!(entry.value.iter().all(|found| found == byte), "the value of {number} has changed");
    }
    assert_eq!(scan.next().unwrap(), None);
}

/// The work of a complete reclamation.
#[derive(Debug, Default)]
struct Effort {
    moved_pages: u64,
    steps: u64,
    size_bytes_max: u64,
}

/// Reclaims space in rounds, as a member does, until a round has no effect.
fn reclaim_all(db: &Db) -> Effort {
    let mut effort = Effort::default();
    for _ in 0..8 {
        db.restart_reclaim();
        let mut has_gained = false;
        loop {
            let step = db.reclaim(STEP_PAGES).unwrap();
            has_gained |= step.moved_pages > 0 || step.truncated_bytes > 0;
            effort.moved_pages += step.moved_pages;
            effort.steps += 1;
            effort.size_bytes_max = effort.size_bytes_max.max(db.stats().size_bytes);
            assert!(effort.steps < 3000, "the reclamation does not end");
            if step.done {
                break;
            }
        }
        if !has_gained {
            break;
        }
    }
    effort
}

/// Asserts that at most one percent of the file, or a few pages, are free.
fn assert_full(db: &Db, context: &str) {
    let stats = db.stats();
    let unused = stats.file_bytes - stats.in_use_bytes;
    let allowed = (stats.file_bytes / 100).max(16 * u64::from(stats.page_bytes));
    assert!(unused <= allowed, "{context}: {unused} bytes are unused: {stats:?}");
}

#[test]
fn a_value_that_fits_into_no_free_run_is_moved() {
    let place = TestDir::new();
    let db = place.open_with(options());
    let mut model = Model::new();
    // The second commit moves the first value, because both values are in the same leaf. The hole is too small for the
    // second value.
    put(&db, &mut model, 1, 1_200_000);
    put(&db, &mut model, 2, 1_400_000);
    reclaim_all(&db);
    assert_sound(&db, "after the reclamation");
    assert_shows(&db.read(), &model);
    assert_full(&db, "two values");
}

/// Fills a file with values of these lengths, and deletes some of them.
fn fill(
    db: &Db,
    draw: &mut SplitMix64,
    count: u64,
    len: impl Fn(&mut SplitMix64) -> usize,
) -> Model {
    let mut model = Model::new();
    for number in 0..count {
        let len = len(draw);
        put(db, &mut model, number, len);
        if number % 10 == 9 {
            let doomed: Vec<_> = model.keys().copied().filter(|_| draw.below(10) < 2).collect();
            delete(db, &mut model, &doomed);
        }
    }
    model
}

/// Returns a random length between 10 bytes and 1.5 MB. Small values are more likely.
fn mixed_len(draw: &mut SplitMix64) -> usize {
    let max = [100, 3000, 20_000, 150_000, 600_000, 1_500_000][draw.position(6)];
    10 + draw.position(max)
}

#[test]
fn at_most_one_percent_is_free_for_any_mix_of_lengths() {
    let uniform =
        |min: usize, max: usize| move |draw: &mut SplitMix64| min + draw.position(max - min);
    for seed in 0..8 {
        let place = TestDir::new();
        let db = place.open_with(options());
        let mut draw = SplitMix64::new(seed);
        let model = match seed % 4 {
            0 => fill(&db, &mut draw, 100, uniform(50_000, 150_000)),
            1 => fill(&db, &mut draw, 40, uniform(900_000, 1_400_000)),
            _ => fill(&db, &mut draw, 150, mixed_len),
        };
        let before = db.stats();
        let effort = reclaim_all(&db);
        let context = format!("seed {seed}, {effort:?}");
        assert_sound(&db, &context);
        assert_shows(&db.read(), &model);
        assert_full(&db, &context);
        let file_pages = before.size_bytes / 4096;
        assert!(effort.moved_pages <= 2 * file_pages, "{context}, {file_pages} pages");
        // A window and a value may be in the file three times: in their old place, and twice at the end.
        let extra = 2 * ((STEP_PAGES * 4096).max(before.size_bytes / 128) + 1_600_000);
        assert!(effort.size_bytes_max <= before.size_bytes + extra, "{context}, {before:?}");
        drop(db);
        assert_shows(&place.open().read(), &model);
    }
}

#[test]
fn a_file_with_little_free_space_is_not_rewritten() {
    let place = TestDir::new();
    let db = place.open_with(options());
    let mut model = Model::new();
    for number in 0..60 {
        put(&db, &mut model, number, 300_000);
    }
    reclaim_all(&db);
    assert_full(&db, "values of one length");
    let effort = reclaim_all(&db);
    assert_eq!(effort.moved_pages, 0, "{effort:?}");
}

#[test]
fn readers_of_moved_values_keep_them_and_limit_the_growth_of_the_file() {
    // One reader begins before the reclamation, the other while values are moved.
    for steps_before in [0, 8] {
        let place = TestDir::new();
        let db = place.open_with(options());
        let model = fill(&db, &mut SplitMix64::new(9), 80, |draw| 100_000 + draw.position(900_000));
        let before = db.stats();
        for _ in 0..steps_before {
            assert!(!db.reclaim(STEP_PAGES).unwrap().done);
        }
        let view = db.read();
        let effort = reclaim_all(&db);
        assert_sound(&db, "with a reader");
        assert_shows(&view, &model);
        assert_shows(&db.read(), &model);
        let extra = 2 * (2 * STEP_PAGES * 4096 + 1_000_000);
        let (most, size) = (effort.size_bytes_max, before.size_bytes);
        assert!(most <= size + extra, "{effort:?}, {before:?}");
        drop(view);
        reclaim_all(&db);
        assert_sound(&db, "after the reader");
        assert_shows(&db.read(), &model);
        assert_full(&db, "after the reader");
    }
}

#[test]
fn commits_between_the_steps_do_not_prevent_the_reclamation() {
    let place = TestDir::new();
    let db = place.open_with(options());
    let mut model = fill(&db, &mut SplitMix64::new(3), 60, |draw| 100_000 + draw.position(900_000));
    let mut draw = SplitMix64::new(4);
    let mut steps = 0;
    while !db.reclaim(STEP_PAGES).unwrap().done {
        put(&db, &mut model, draw.below(60), 100 + draw.position(30_000));
        steps += 1;
        assert!(steps < 500, "the reclamation does not end");
    }
    assert_sound(&db, "after commits between the steps");
    assert_shows(&db.read(), &model);
    reclaim_all(&db);
    assert_full(&db, "after commits between the steps");
}

#[test]
fn a_full_disk_ends_the_reclamation_and_does_no_harm() {
    let place = TestDir::new();
    let disk = FaultyDisk::new(place.directory.path()).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let db = Db::open(&shared, &place.path(), Options { growth_bytes: 0, ..options() }).unwrap();
    let mut model = Model::new();
    put(&db, &mut model, 1, 1_200_000);
    put(&db, &mut model, 2, 1_400_000);
    let size_bytes = db.stats().size_bytes;
    disk.limit_growth(Some(64 << 10));
    let error = loop {
        match db.reclaim(STEP_PAGES) {
            Ok(step) => assert!(!step.done, "the value has moved although there was no room"),
            Err(error) => break error,
        }
    };
    assert!(error.is_no_room(), "{error}");
    assert_sound(&db, "on a full disk");
    assert_shows(&db.read(), &model);
    let grown = db.stats().size_bytes - size_bytes;
    assert!(grown <= 4 * 4096, "the file has grown by {grown} bytes");
    disk.limit_growth(None);
    reclaim_all(&db);
    assert_shows(&db.read(), &model);
    assert_full(&db, "after the limit on growth was removed");
}

/// Runs a reclamation that moves values to the end of the file, until it ends or the power is cut.
fn run_with_power_cut(
    disk: &FaultyDisk,
    path: &std::path::Path,
    stop: Option<u64>,
) -> (Model, u64) {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let options = Options { no_sync: false, growth_bytes: 8 << 10, ..small() };
    let db = Db::open(&shared, path, options).unwrap();
    let mut draw = SplitMix64::new(1);
    let model = fill(&db, &mut draw, 19, |draw| 12_000 + draw.position(20_000));
    let before = disk.operation_count();
    if let Some(stop) = stop {
        disk.stop_at(before + stop);
    }
    while let Ok(step) = db.reclaim(8) {
        if step.done {
            assert_full(&db, "small file");
            break;
        }
    }
    (model, disk.operation_count() - before)
}

#[test]
fn a_power_cut_while_values_are_moved_loses_none() {
    let place = TestDir::new();
    let root = |name: String| {
        let root = place.directory.path().join(name);
        std::fs::create_dir_all(&root).unwrap();
        root
    };
    let whole = root("whole".into());
    let disk = FaultyDisk::new(&whole).unwrap();
    let (_, operations) = run_with_power_cut(&disk, &whole.join("db"), None);
    assert!(operations > 40, "only {operations} operations");
    for stop in 0..operations {
        let directory = root(format!("run-{stop}"));
        let disk = FaultyDisk::new(&directory).unwrap();
        let (model, _) = run_with_power_cut(&disk, &directory.join("db"), Some(stop));
        for seed in 0..3 {
            let found = place.directory.path().join(format!("found-{stop}-{seed}"));
            disk.crash(seed + stop * 3 * u64::from(seed > 1), &found).unwrap();
            let db = Db::open(&place.disk, &found.join("db"), small()).unwrap();
            assert_sound(&db, "after a power cut");
            assert_shows(&db.read(), &model);
            std::fs::remove_dir_all(found).unwrap();
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
