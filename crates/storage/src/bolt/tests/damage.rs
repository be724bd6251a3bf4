//! Tests of damaged files. Every operation returns a result, and a fault names the file.

use bytes::Bytes;

use super::*;

const BUCKET: &[u8] = b"key";

/// Returns a file with all features: two levels of branches, long leaves, inline buckets and free
/// pages.
fn sound_file() -> Vec<u8> {
    let place = TestDir::new();
    let db = place.open();
    let mut tx = db.write().unwrap();
    for name in [BUCKET, b"lease", b"meta", b"empty"] {
        tx.create_bucket_if_missing(name).unwrap();
    }
    for number in 0..1500_u32 {
        let len = if number % 100 == 0 { 3000 } else { 40 };
        tx.put(BUCKET, &number.to_be_bytes(), Bytes::from(vec![1; len])).unwrap();
    }
    tx.put(b"meta", b"consistent_index", Bytes::from_static(&[0; 8])).unwrap();
    tx.put(b"lease", b"12345678", Bytes::from_static(b"granted")).unwrap();
    tx.commit().unwrap();
    let mut tx = db.write().unwrap();
    for number in 300..400_u32 {
        tx.delete(BUCKET, &number.to_be_bytes()).unwrap();
    }
    tx.commit().unwrap();
    let len = db.stats().size_bytes as usize;
    drop(db);
    let mut bytes = std::fs::read(place.path()).unwrap();
    bytes.truncate(len);
    bytes
}

/// Runs every operation on the file and returns the first fault, if any.
fn exercise(place: &TestDir, flat: bool) -> Result<(), BoltError> {
    let options = Options { flat, ..small() };
    let db = Db::open(&place.disk, &place.path(), options)?;
    let view = db.read();
    // Problems that the check finds do not end the test, because the other operations must handle the same damage.
    let problems = view.check();
    for problem in &problems {
        assert!(!problem.to_string().is_empty());
    }
    let read = || -> Result<()> {
        let mut image = vec![0; 5000];
        view.read_image_at(100, &mut image)?;
        for name in view.bucket_names()? {
            let Some(bucket) = view.bucket(name)? else { continue };
            let mut cursor = bucket.cursor();
            let mut left = 20_000;
            let mut entry = cursor.first()?;
            while let Some(found) = entry.filter(|_| left > 0) {
                let _shared = view.bytes(found.value);
                entry = cursor.next()?;
                left -= 1;
            }
            cursor.last()?;
            cursor.prev()?;
            let mut scan = view.scan(name)?;
            for _ in 0..20_000 {
                if scan.next()?.is_none() {
                    break;
                }
            }
            for number in (0..1600_u32).step_by(57) {
                bucket.get(&number.to_be_bytes())?;
                cursor.seek(&number.to_be_bytes())?;
            }
            let many = (0..1600_u32).step_by(23).map(u32::to_be_bytes);
            bucket.get_each(many, |_| Ok::<_, BoltError>(()))?;
        }
        Ok(())
    };
    let read = read();
    let written = write_everywhere(&db);
    read.and(written)
}

fn write_everywhere(db: &Db) -> Result<(), BoltError> {
    let mut tx = db.write()?;
    tx.create_bucket_if_missing(BUCKET)?;
    for number in (0..1600_u32).step_by(97) {
        tx.put(BUCKET, &number.to_be_bytes(), Bytes::from_static(b"new"))?;
    }
    tx.delete(BUCKET, &7_u32.to_be_bytes())?;
    tx.commit()?;
    let mut tx = db.write()?;
    let keys: Vec<_> = (0..1500_u32).step_by(3).map(u32::to_be_bytes).collect();
    tx.delete_sorted(BUCKET, &keys)?;
    tx.commit()?;
    for _ in 0..20 {
        if db.reclaim(50)?.done {
            break;
        }
    }
    let mut tx = db.write()?;
    tx.clear_bucket(BUCKET)?;
    tx.commit()?;
    Ok(())
}

/// Asserts that a fault names its file, as all errors except refusals do.
fn assert_named(error: &BoltError, place: &TestDir) {
    let refusal = matches!(
        error,
        BoltError::BucketMissing { .. } | BoltError::WrongKind { .. } | BoltError::KeyLength { .. }
    );
    let text = error.to_string();
    assert!(refusal || text.contains(&place.path().display().to_string()), "{text}");
}

fn try_damaged(bytes: &[u8]) -> Option<BoltError> {
    let place = TestDir::new();
    let mut first = None;
    for flat in [false, true] {
        std::fs::write(place.path(), bytes).unwrap();
        if let Err(error) = exercise(&place, flat) {
            assert_named(&error, &place);
            first.get_or_insert(error);
        }
    }
    first
}

#[test]
fn an_undamaged_file_is_read_without_error() {
    let place = TestDir::new();
    std::fs::write(place.path(), sound_file()).unwrap();
    exercise(&place, false).unwrap();
}

#[test]
fn flipped_bits_never_cause_a_panic() {
    let sound = sound_file();
    let mut draw = SplitMix64::new(11);
    let mut noticed = 0;
    for round in 0..100 {
        let mut bytes = sound.clone();
        let page = draw.below(bytes.len() as u64 / 1024) as usize * 1024;
        // Two thirds of the flips hit headers and element tables, which define the structure.
        let within = if round % 3 == 0 { draw.below(1024) } else { draw.below(120) };
        for _ in 0..=draw.below(3) {
            bytes[page + within as usize] ^= 1 << draw.below(8);
        }
        noticed += usize::from(try_damaged(&bytes).is_some());
    }
    assert!(noticed > 20, "only {noticed} damaged files were detected");
}

#[test]
fn zeroed_and_swapped_pages_never_cause_a_panic() {
    let sound = sound_file();
    let pages = sound.len() / 1024;
    let mut draw = SplitMix64::new(12);
    for _ in 0..60 {
        let mut bytes = sound.clone();
        let at = draw.below(pages as u64) as usize * 1024;
        let from = draw.below(pages as u64) as usize * 1024;
        let copied =
            if draw.below(2) == 0 { vec![0; 1024] } else { sound[from..][..1024].to_vec() };
        bytes[at..at + 1024].copy_from_slice(&copied);
        if from != at && at >= 2048 && draw.below(2) == 0 {
            // The copied page is given the page number of its new position.
            bytes[at..at + 8].copy_from_slice(&(at as u64 / 1024).to_le_bytes());
        }
        try_damaged(&bytes);
    }
}

#[test]
fn a_truncated_backend_file_is_refused() {
    let sound = sound_file();
    for len in [1, 16, 79, 80, 1023, 1024, 1100, 2047, 2048, 5000, sound.len() - 1] {
        let error = try_damaged(&sound[..len]).expect("the truncation is detected");
        let expected = match error {
            BoltError::CutOff { len: found, .. } => found == len as u64,
            BoltError::NotABackend { .. } => len < 1104,
            _ => false,
        };
        assert!(expected, "cut at {len}: {error}");
    }
}

#[test]
fn files_of_other_programs_are_refused() {
    for bytes in [vec![0; 65_536], b"#!/bin/sh\n".repeat(1000), vec![0xFF; 10_000]] {
        let error = try_damaged(&bytes).expect("a file of another program is detected");
        assert!(matches!(error, BoltError::NotABackend { .. }), "{error}");
    }
}

#[test]
fn a_file_with_one_damaged_meta_page_opens_with_every_page_size() {
    for page_bytes in [1 << 10, 1 << 12, 1 << 14, 1 << 16] {
        let place = TestDir::new();
        let options = || Options { page_bytes_new: page_bytes, ..small() };
        let db = place.open_with(options());
        let mut tx = db.write().unwrap();
        tx.create_bucket_if_missing(BUCKET).unwrap();
        tx.put(BUCKET, b"first", Bytes::from_static(b"1")).unwrap();
        tx.commit().unwrap();
        let before = db.read().txid();
        let mut tx = db.write().unwrap();
        tx.put(BUCKET, b"second", Bytes::from_static(b"2")).unwrap();
        let last = tx.commit().unwrap().txid;
        drop(db);
        let sound = std::fs::read(place.path()).unwrap();
        for slot in 0..2 {
            let mut bytes = sound.clone();
            bytes[slot * page_bytes + 50] ^= 1;
            std::fs::write(place.path(), &bytes).unwrap();
            let db = place.open();
            let expected = if slot as u64 == last % 2 { before } else { last };
            assert_eq!(db.read().txid(), expected);
            assert_eq!(db.stats().page_bytes as usize, page_bytes);
            assert_sound(&db, "with one damaged meta page");
            let view = db.read();
            let bucket = view.bucket(BUCKET).unwrap().unwrap();
            assert_eq!(bucket.get(b"first").unwrap(), Some(&b"1"[..]));
        }
        let mut bytes = sound;
        bytes[50] ^= 1;
        bytes[page_bytes + 50] ^= 1;
        let error = try_damaged(&bytes).expect("the damage is detected");
        assert!(matches!(error, BoltError::NotABackend { .. }), "{error}");
    }
}

#[test]
fn a_page_whose_overflow_is_too_large_is_reported_before_it_is_freed() {
    let sound = sound_file();
    let place = TestDir::new();
    let damaged = |page: usize| {
        let mut bytes = sound.clone();
        bytes[page * 1024 + 12] = 2;
        std::fs::write(place.path(), bytes).unwrap();
    };
    let is_leaf = |page: usize| sound[page * 1024 + 8] == 2 && sound[page * 1024 + 12] == 0;
    // The damaged leaf claims other pages as its overflow. Opening the file detects this if all leaves are read.
    let claims = |page: usize| {
        damaged(page);
        matches!(exercise(&place, false), Err(BoltError::Corrupt { reason, .. }) if reason.contains("twice"))
    };
    let pages = sound.len() / 1024;
    let leaves: Vec<_> = (2..pages).filter(|page| is_leaf(*page) && claims(*page)).collect();
    assert!(leaves.len() > 10, "{leaves:?}");
    for leaf in leaves {
        damaged(leaf);
        let error =
            exercise(&place, true).expect_err("the damage is detected before a page is freed");
        assert!(matches!(error, BoltError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn a_branch_that_disagrees_with_its_leaf_is_reported() {
    const PAGE_BYTES: usize = 1024;
    const ELEMENT_BYTES: usize = 16;
    let mut bytes = sound_file();
    let last = 1499_u32.to_be_bytes();
    // Raises the last separator of the branch at the end of the bucket above all keys of its leaf.
    let number =
        |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut raised = 0;
    for page in (0..bytes.len()).step_by(PAGE_BYTES) {
        let is_branch = bytes[page + 8..page + 10] == [1, 0];
        let count = usize::from(u16::from_le_bytes([bytes[page + 10], bytes[page + 11]]));
        if !is_branch || count < 2 {
            continue;
        }
        let element = page + ELEMENT_BYTES + (count - 1) * ELEMENT_BYTES;
        let (at, len) = (number(&bytes, element) as usize, number(&bytes, element + 4));
        let key = element + at;
        if len == 4 && bytes[key..key + 4] > 1400_u32.to_be_bytes()[..] {
            bytes[key..key + 4].copy_from_slice(&last);
            raised += 1;
        }
    }
    assert!(raised > 0, "no separator was found");
    let place = TestDir::new();
    std::fs::write(place.path(), &bytes).unwrap();
    let db = place.open();
    let mut tx = db.write().unwrap();
    let error = (1500..3000_u32)
        .find_map(|number| tx.put(BUCKET, &number.to_be_bytes(), Bytes::from_static(b"v")).err())
        .expect("the damage is found");
    assert!(matches!(error, BoltError::Corrupt { .. }), "{error}");
    assert_named(&error, &place);
}
