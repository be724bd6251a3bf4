//! Tests of views. A view does not change during commits, even across threads, and costs only the
//! space of the pages that it pins.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::*;

const BUCKET: &[u8] = b"key";

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Commits `count` entries whose values all contain `generation`.
fn write_generation(db: &Db, count: u64, generation: u64) {
    let mut tx = db.write().unwrap();
    tx.create_bucket_if_missing(BUCKET).unwrap();
    for number in 0..count {
        let value = generation.to_be_bytes().repeat(1 + (number % 20) as usize);
        tx.put(BUCKET, &key(number), Bytes::from(value)).unwrap();
    }
    tx.commit().unwrap();
}

fn assert_generation(view: &ReadTx, count: u64) -> u64 {
    let bucket = view.bucket(BUCKET).unwrap().unwrap();
    let mut cursor = bucket.cursor();
    let mut generation = None;
    for number in 0..count {
        let entry = cursor.next().unwrap().unwrap();
        assert_eq!(entry.key, key(number));
        for word in entry.value.chunks(8) {
            assert_eq!(*generation.get_or_insert(word), word, "a state contains two generations");
        }
    }
    assert_eq!(cursor.next().unwrap(), None);
    u64::from_be_bytes(generation.unwrap().try_into().unwrap())
}

#[test]
fn concurrent_readers_see_only_committed_states() {
    let place = TestDir::new();
    let db = place.open();
    write_generation(&db, 500, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let view = db.read();
                    let generation = assert_generation(&view, 500);
                    assert!(generation >= last, "a later view shows an earlier state");
                    assert_eq!(assert_generation(&view.clone(), 500), generation);
                    last = generation;
                }
            });
        }
        for generation in 2..60 {
            write_generation(&db, 500, generation);
            if generation % 7 == 0 {
                db.reclaim(20).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_sound(&db, "after concurrent reads");
}

#[test]
fn values_outlive_their_transaction_and_pin_their_pages() {
    let place = TestDir::new();
    let db = place.open();
    write_generation(&db, 200, 1);
    let view = db.read();
    let bucket = view.bucket(BUCKET).unwrap().unwrap();
    let kept: Vec<Bytes> =
        (0..200).map(|n| view.bytes(bucket.get(&key(n)).unwrap().unwrap())).collect();
    assert_eq!(view.bytes(b""), Bytes::new());
    drop(view);
    for generation in 2..30 {
        write_generation(&db, 200, generation);
    }
    assert_eq!(db.stats().open_readers, 0);
    assert_eq!(db.stats().pinned_states, 1);
    for (number, value) in kept.iter().enumerate() {
        assert_eq!(value, &1_u64.to_be_bytes().repeat(1 + number % 20));
    }
    drop(kept);
    assert_eq!(db.stats().pinned_states, 0);
}

#[test]
fn a_view_stays_readable_after_its_database_is_dropped() {
    let place = TestDir::new();
    let db = place.open();
    write_generation(&db, 50, 9);
    let view = db.read();
    drop(db);
    let again = Db::open(&place.disk, &place.path(), small());
    assert!(matches!(again, Err(BoltError::Locked { .. })), "the view holds the lock");
    assert_eq!(assert_generation(&view, 50), 9);
    drop(view);
    place.open();
}

#[test]
fn a_file_that_must_be_new_is_never_an_existing_one() {
    let place = TestDir::new();
    let new = Options { must_be_new: true, ..small() };
    let db = place.open_with(new.clone());
    write_generation(&db, 50, 9);
    drop(db);
    let path = place.path();
    let (empty, link) = (path.with_extension("empty"), path.with_extension("link"));
    std::fs::write(&empty, b"").unwrap();
    std::os::unix::fs::symlink("missing", &link).unwrap();
    let before = std::fs::read(&path).unwrap();
    for existing in [&path, &empty, &link] {
        let refused = Db::open(&place.disk, existing, new.clone());
        let is_existing = |source: &std::io::Error| source.kind() == ErrorKind::AlreadyExists;
        assert!(
            matches!(&refused, Err(BoltError::Io { source, .. }) if is_existing(source)),
            "{refused:?}"
        );
    }
    assert!(std::fs::read(&path).unwrap() == before, "a refused file is unchanged");
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0);
    assert_eq!(std::fs::read_dir(place.directory.path()).unwrap().count(), 3);
    assert_eq!(assert_generation(&place.open().read(), 50), 9);
}

#[test]
fn a_long_lived_snapshot_does_not_make_the_file_grow_with_every_commit() {
    let place = TestDir::new();
    let db = place.open();
    write_generation(&db, 1000, 1);
    let view = db.read();
    for generation in 2..6 {
        write_generation(&db, 1000, generation);
    }
    let after_few = db.stats().size_bytes;
    for generation in 6..40 {
        write_generation(&db, 1000, generation);
    }
    // Pages that were both written and replaced after the snapshot was taken are reused.
    assert_eq!(db.stats().size_bytes, after_few);
    assert_eq!(assert_generation(&view, 1000), 1);
    assert_sound(&db, "with a live snapshot");
}

#[test]
fn a_view_can_be_copied_as_a_valid_file_during_commits() {
    let place = TestDir::new();
    let db = place.open();
    write_generation(&db, 800, 1);
    let view = db.read();
    let mut image = vec![0; view.image_len() as usize];
    let mut offset = 0;
    let mut generation = 2;
    // The sizes are odd, so that reads cross the ends of the meta pages and of the image.
    while offset < image.len() {
        let end = (offset + 777).min(image.len());
        let count = view.read_image_at(offset as u64, &mut image[offset..end]).unwrap();
        assert_eq!(count, end - offset);
        offset += count;
        if offset % 10 == 0 {
            write_generation(&db, 800, generation);
            generation += 1;
        }
    }
    assert_eq!(view.read_image_at(offset as u64, &mut [0; 10]).unwrap(), 0);
    let copy = TestDir::new();
    std::fs::write(copy.path(), &image).unwrap();
    let copied = copy.open();
    assert_eq!(copied.read().txid(), view.txid());
    assert_eq!(assert_generation(&copied.read(), 800), 1);
    assert_sound(&copied, "the copied image");
    // The image can be used like any other backend file.
    write_generation(&copied, 800, 77);
    drop(copied);
    assert_eq!(assert_generation(&copy.open().read(), 800), 77);
}

#[test]
fn a_file_open_for_reading_admits_other_readers_but_no_writer() {
    let place = TestDir::new();
    write_generation(&place.open(), 10, 3);
    let read_only = || Options { read_only: true, ..small() };
    let one = place.open_with(read_only());
    let two = place.open_with(read_only());
    assert_eq!(assert_generation(&two.read(), 10), 3);
    assert!(matches!(one.write(), Err(BoltError::ReadOnly { .. })));
    let writer = Db::open(&place.disk, &place.path(), small());
    assert!(matches!(writer, Err(BoltError::Locked { .. })));
}

#[test]
fn a_transaction_stays_usable_after_a_refused_operation() {
    let place = TestDir::new();
    let db = place.open();
    let mut tx = db.write().unwrap();
    tx.create_bucket_if_missing(BUCKET).unwrap();
    let empty = Bytes::new;
    assert!(matches!(tx.put(BUCKET, b"", empty()), Err(BoltError::KeyLength { len: 0 })));
    let long = vec![0; KEY_BYTES_MAX + 1];
    assert!(matches!(tx.put(BUCKET, &long, empty()), Err(BoltError::KeyLength { .. })));
    assert!(matches!(tx.put(b"none", b"k", empty()), Err(BoltError::BucketMissing { .. })));
    assert!(matches!(tx.get(b"none", b"k"), Err(BoltError::BucketMissing { .. })));
    let unsorted = tx.delete_sorted(BUCKET, &[b"b", b"a"]);
    assert!(matches!(unsorted, Err(BoltError::KeysUnsorted { index: 1 })));
    tx.put(BUCKET, &long[1..], Bytes::from_static(b"the longest key")).unwrap();
    tx.commit().unwrap();
    let view = db.read();
    let bucket = view.bucket(BUCKET).unwrap().unwrap();
    assert_eq!(bucket.get(&long[1..]).unwrap(), Some(&b"the longest key"[..]));
    assert!(view.bucket(b"none").unwrap().is_none());
    assert_sound(&db, "after refused operations");
}

#[test]
fn a_commit_without_changes_writes_nothing() {
    let place = TestDir::new();
    let db = place.open();
    write_generation(&db, 10, 1);
    let before = db.stats();
    let mut tx = db.write().unwrap();
    tx.create_bucket_if_missing(BUCKET).unwrap();
    assert!(!tx.delete(BUCKET, b"not there").unwrap());
    let stats = tx.commit().unwrap();
    assert_eq!((stats.pages_written, stats.txid), (0, before.txid));
    assert_eq!(db.stats(), before);
}
