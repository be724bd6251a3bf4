//! Tests of reclaiming space. The file becomes as small as its content, readers and writers are not
//! affected, and pages that readers still see stay in the file.

use bytes::Bytes;

use super::*;

const BUCKET: &[u8] = b"key";

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn fill(db: &Db, numbers: impl Iterator<Item = u64>, len: impl Fn(u64) -> usize) {
    let mut tx = db.write().unwrap();
    tx.create_bucket_if_missing(BUCKET).unwrap();
    tx.create_bucket_if_missing(b"meta").unwrap();
    for number in numbers {
        let value = Bytes::from(vec![number as u8; len(number)]);
        tx.put(BUCKET, &key(number), value).unwrap();
    }
    tx.commit().unwrap();
}

fn delete(db: &Db, numbers: impl Iterator<Item = u64>) {
    let mut tx = db.write().unwrap();
    let keys: Vec<_> = numbers.map(key).collect();
    assert_eq!(tx.delete_sorted(BUCKET, &keys).unwrap(), keys.len() as u64);
    tx.commit().unwrap();
}

/// Reclaims space until there is nothing more to reclaim. Returns the number of truncated bytes.
fn reclaim_all(db: &Db, budget: u64) -> u64 {
    let (mut steps, mut truncated) = (0, 0);
    loop {
        let step = db.reclaim(budget).unwrap();
        assert_sound(db, "between steps");
        steps += 1;
        assert!(
            step.moved_pages <= budget + 200,
            "a step with a budget of {budget} pages moved too many pages: {step:?}"
        );
        truncated += step.truncated_bytes;
        assert!(steps < 500, "the reclamation has not ended after {steps} steps");
        if step.done {
            return truncated;
        }
    }
}

fn live_bytes(view: &ReadTx) -> u64 {
    let bucket = view.bucket(BUCKET).unwrap().unwrap();
    let mut cursor = bucket.cursor();
    let mut bytes = 0;
    while let Some(entry) = cursor.next().unwrap() {
        assert!(entry.value.iter().all(|byte| *byte == entry.key[7]));
        bytes += 16 + entry.key.len() as u64 + entry.value.len() as u64;
    }
    bytes
}

/// Returns the size of a new file into which the same entries are written in one transaction.
fn ideal_bytes(db: &Db) -> u64 {
    let place = TestDir::new();
    let copy = place.open();
    let view = db.read();
    let mut tx = copy.write().unwrap();
    tx.create_bucket_if_missing(BUCKET).unwrap();
    let mut scan = view.scan(BUCKET).unwrap();
    while let Some(entry) = scan.next().unwrap() {
        tx.put(BUCKET, entry.key, Bytes::copy_from_slice(entry.value)).unwrap();
    }
    tx.commit().unwrap();
    // Both files have two meta pages and a root bucket, so their sizes can be compared.
    copy.stats().in_use_bytes
}

fn assert_small(db: &Db) {
    let (stats, ideal) = (db.stats(), ideal_bytes(db));
    assert!(stats.file_bytes <= ideal * 105 / 100, "{stats:?}, ideal size {ideal}");
    assert_eq!(stats.file_bytes, stats.size_bytes);
}

#[test]
fn reclaim_shrinks_the_file_to_its_content() {
    let place = TestDir::new();
    let db = place.open();
    for batch in 0..20 {
        fill(&db, batch * 500..(batch + 1) * 500, |n| 60 + (n % 50) as usize);
    }
    // Delete all entries in the first half, and two thirds of the entries after it.
    delete(&db, 0..5000);
    delete(&db, (5000..10_000).filter(|n| n % 3 != 0));
    let before = db.stats();
    let truncated = reclaim_all(&db, 40);
    let after = db.stats();
    assert_eq!(before.file_bytes - truncated, after.file_bytes);
    assert_eq!(after.file_bytes, after.size_bytes);
    assert_eq!(std::fs::metadata(place.path()).unwrap().len(), after.file_bytes);
    assert_small(&db);
    assert_eq!(db.reclaim(1000).unwrap().truncated_bytes, 0, "no page is left to reclaim");
    // The file can grow again and be reopened like any other file.
    fill(&db, 20_000..21_000, |_| 100);
    assert_sound(&db, "after the file has grown again");
    let live = live_bytes(&db.read());
    drop(db);
    assert_eq!(live_bytes(&place.open().read()), live);
}

#[test]
fn reclaim_merges_sparse_leaves() {
    let place = TestDir::new();
    let db = place.open();
    fill(&db, 0..4000, |_| 100);
    // A leaf has eight entries. First, half of the entries in every other leaf are deleted, then half of the entries in
    // each remaining leaf. So no transaction rewrites two neighbours, and no leaf becomes small enough to be joined
    // immediately.
    for parity in 0..2 {
        delete(&db, (0..4000).filter(|n| n / 8 % 2 == parity && n % 8 < 4));
    }
    assert!(db.stats().in_use_bytes > ideal_bytes(&db) * 17 / 10);
    reclaim_all(&db, 50);
    assert_small(&db);
}

#[test]
fn reclaim_moves_large_values() {
    let place = TestDir::new();
    let db = place.open();
    let len = |n: u64| if n.is_multiple_of(5) { 30_000 } else { 200 };
    for batch in 0..10 {
        fill(&db, batch * 100..(batch + 1) * 100, len);
    }
    delete(&db, (0..1000).filter(|n| n % 4 != 0));
    reclaim_all(&db, 100);
    assert_small(&db);
}

#[test]
fn pages_of_live_readers_stay_in_the_file() {
    let place = TestDir::new();
    let db = place.open();
    for batch in 0..10 {
        fill(&db, batch * 300..(batch + 1) * 300, |_| 120);
    }
    let view = db.read();
    let before = db.stats();
    let seen = live_bytes(&view);
    let last = view.bucket(BUCKET).unwrap().unwrap().get(&key(2999)).unwrap().unwrap();
    let last = view.bytes(last);
    delete(&db, 0..2900);
    reclaim_all(&db, 30);
    assert!(db.stats().file_bytes >= before.size_bytes, "the reader needs the tail");
    assert_eq!(live_bytes(&view), seen);
    drop(view);
    reclaim_all(&db, 30);
    assert!(
        db.stats().file_bytes >= before.size_bytes / 2,
        "one value pins all pages of its state"
    );
    assert_eq!(*last, [2999_u64 as u8; 120]);
    drop(last);
    reclaim_all(&db, 30);
    assert!(db.stats().file_bytes < before.size_bytes / 10, "{:?}", db.stats());
}

#[test]
fn the_file_is_truncated_once_the_last_reader_of_its_tail_has_ended() {
    for tail_is_free in [true, false] {
        let place = TestDir::new();
        let db = place.open();
        for batch in 0..10 {
            fill(&db, batch * 300..(batch + 1) * 300, |_| 120);
        }
        delete(&db, 300..1500);
        fill(&db, 0..300, |_| 120);
        // In the state that the reader sees, the tail is either in use, or free although no commit has lowered the
        // high-water mark.
        let early = (!tail_is_free).then(|| db.read());
        delete(&db, 1500..3000);
        let view = early.unwrap_or_else(|| db.read());
        let before = db.stats();
        reclaim_all(&db, 500);
        let after = db.stats();
        assert_eq!(after.size_bytes < before.size_bytes / 4, tail_is_free, "{after:?}");
        assert!(after.file_bytes >= before.size_bytes, "the reader may still use the tail");
        fill(&db, 0..1, |_| 120);
        assert!(db.stats().file_bytes >= before.size_bytes);
        drop(view);
        for _ in 0..3 {
            fill(&db, 0..1, |_| 120);
        }
        let after = db.stats();
        assert!(after.file_bytes < before.size_bytes / 4, "{after:?}");
        assert!(!db.shared.writer.lock().awaits_truncation);
        assert_sound(&db, "truncated before a transaction");
    }
}

#[test]
fn commits_between_reclaim_steps_leave_the_file_valid_and_small() {
    let place = TestDir::new();
    let db = place.open();
    fill(&db, 0..3000, |_| 150);
    delete(&db, (0..3000).filter(|n| n % 4 != 0));
    let mut number = 10_000;
    let mut steps = 0;
    while !db.reclaim(15).unwrap().done {
        fill(&db, number..number + 3, |_| 150);
        number += 3;
        steps += 1;
        assert_sound(&db, "between a step and a commit");
        assert!(steps < 500, "the reclamation has not ended after {steps} steps");
    }
    reclaim_all(&db, 100);
    assert_small(&db);
}

#[test]
fn a_file_without_entries_shrinks_to_its_first_pages() {
    let place = TestDir::new();
    let db = place.open();
    fill(&db, 0..2000, |_| 500);
    let mut tx = db.write().unwrap();
    tx.clear_bucket(BUCKET).unwrap();
    tx.commit().unwrap();
    reclaim_all(&db, 100);
    assert_eq!(db.stats().file_bytes, 3 * 1024);
    assert_sound(&db, "emptied");
}

#[test]
fn space_freed_during_a_reclaim_round_is_reclaimed() {
    let place = TestDir::new();
    let db = place.open();
    for batch in 0..8 {
        fill(&db, batch * 500..(batch + 1) * 500, |n| if n % 50 == 0 { 9000 } else { 120 });
        delete(&db, (batch * 500..(batch + 1) * 500).filter(|n| n % 2 == 1));
        assert!(!db.reclaim(5).unwrap().done);
    }
    for start in 0..8 {
        delete(&db, (start * 500..(start + 1) * 500).filter(|n| n % 2 == 0 && n % 100 > 10));
    }
    reclaim_all(&db, 50);
    let stats = db.stats();
    // The pages that the last step moved are in the file twice until the next commit.
    let held_bytes = stats.in_use_bytes + stats.pending_pages * u64::from(stats.page_bytes);
    assert!(stats.file_bytes * 98 < held_bytes * 100, "{stats:?}");
    db.restart_reclaim();
    reclaim_all(&db, 50);
    assert_small(&db);
}

#[test]
fn a_file_allocates_little_more_disk_space_than_its_pages_need() {
    use std::os::unix::fs::MetadataExt as _;

    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("db");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let db = Db::open(&disk, &path, Options { growth_bytes: 16 << 20, ..small() }).unwrap();
    for number in 0..20_u8 {
        let mut tx = db.write().unwrap();
        tx.create_bucket_if_missing(b"key").unwrap();
        tx.put(b"key", &[number], Bytes::from(vec![number; 100_000])).unwrap();
        tx.commit().unwrap();
        let facts = std::fs::metadata(&path).unwrap();
        let (taken, pages) = (facts.blocks() * 512, db.stats().size_bytes);
        assert!(
            facts.len() > 15 << 20,
            "the file has grown to only {} bytes, not in large steps",
            facts.len()
        );
        assert!(taken >= pages, "only {taken} bytes are reserved for {pages} bytes of pages");
        assert!(
            taken < pages + (512 << 10),
            "{taken} bytes are reserved for only {pages} bytes of pages"
        );
    }
}
