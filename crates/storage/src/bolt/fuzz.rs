//! Fuzz target: a backend file with arbitrary bytes.
//!
//! Every operation returns a result for any bytes. If the check finds no problem, no write reports damage, and after
//! successful writes the file contains both the old content and the written entries.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::meta::{CHECKED_BYTES, META_END, is_page_size};
use super::page::HEADER_BYTES;
use super::*;
use crate::checksum::fnv1a_64;
use crate::disk::{Disk, RealDisk};

/// The bucket that receives the writes.
const BUCKET: &[u8] = b"key";

/// The maximum number of entries that are read, because iterating over a damaged tree may take a
/// very long time.
const ENTRIES_MAX: usize = 5000;

/// The content of a file, by bucket and key.
type Content = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Opens arbitrary bytes as a file, and reads and writes it. The first byte selects how the file is
/// opened, and whether the checksums of its meta pages are corrected. The remaining bytes are the
/// file.
pub fn file(folder: &Path, data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if first & 1 != 0 {
        seal(&mut bytes);
    }
    let path = folder.join("db");
    std::fs::write(&path, bytes).expect("the fuzzer's folder is writable");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let options = Options {
        flat: first & 2 != 0,
        no_sync: true,
        growth_bytes: 64 << 10,
        map_bytes_min: 1 << 20,
        page_bytes_new: 1024,
        ..Options::default()
    };
    if let Ok(db) = Db::open(&disk, &path, options) {
        exercise(&db);
    }
}

/// Corrects the checksums of both meta pages.
fn seal(bytes: &mut [u8]) {
    let field = bytes.get(HEADER_BYTES + 8..HEADER_BYTES + 12).and_then(<[u8]>::first_chunk);
    let named = field.map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
    let page_bytes = if is_page_size(named) { named } else { 1024 };
    for start in [0, page_bytes] {
        let body = start + HEADER_BYTES;
        if let Some(meta) = bytes.get_mut(body..start + META_END) {
            let sum = fnv1a_64(&meta[..CHECKED_BYTES]);
            meta[CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

fn exercise(db: &Db) {
    let view = db.read();
    let problems = view.check();
    let before = content(&view);
    if !problems.is_empty() {
        // These calls may fail, but they must return.
        drop((before, write(db)));
        return;
    }
    let mut expected = before.expect("a sound file can be read");
    let written = write(db);
    let is_writable = match &written {
        // A write may be refused, because the bucket's name may be in use as a key or the file may
        // have run out of page numbers. But no page of a sound file may be reported as corrupt, and
        // I/O does not fail here.
        Err(BoltError::Corrupt { .. } | BoltError::Io { .. }) => {
            panic!("cannot write to a sound file: {written:?}")
        }
        Err(_) => false,
        Ok(()) => true,
    };
    if is_writable {
        let bucket = expected.entry(BUCKET.to_vec()).or_default();
        bucket.insert(b"added".to_vec(), b"value".to_vec());
        bucket.insert(b"longer".to_vec(), vec![7; 3000]);
        let view = db.read();
        assert_eq!(view.check(), [], "a sound file stays sound");
        assert!(content(&view).expect("the written state can be read") == expected);
    }
}

fn write(db: &Db) -> Result<()> {
    let mut tx = db.write()?;
    tx.create_bucket_if_missing(BUCKET)?;
    tx.put(BUCKET, b"added", Bytes::from_static(b"value"))?;
    tx.put(BUCKET, b"gone", Bytes::from_static(b"soon"))?;
    tx.commit()?;
    let mut tx = db.write()?;
    tx.put(BUCKET, b"longer", vec![7; 3000].into())?;
    tx.delete(BUCKET, b"gone")?;
    tx.commit()?;
    for _ in 0..4 {
        if db.reclaim(50)?.done {
            break;
        }
    }
    Ok(())
}

/// Reads all entries with every read method.
fn content(view: &ReadTx) -> Result<Content> {
    let mut image = vec![0; 3000];
    view.read_image_at(100, &mut image)?;
    let mut content = Content::new();
    for name in view.bucket_names()? {
        let Some(bucket) = view.bucket(name)? else { continue };
        let mut entries = BTreeMap::new();
        let mut cursor = bucket.cursor();
        let mut entry = cursor.first()?;
        for _ in 0..ENTRIES_MAX {
            let Some(found) = entry else { break };
            if !found.is_bucket {
                let shared = view.bytes(found.value);
                entries.insert(found.key.to_vec(), shared.to_vec());
                bucket.get(found.key)?;
            }
            entry = cursor.next()?;
        }
        cursor.last()?;
        cursor.prev()?;
        let mut scan = view.scan(name)?;
        for _ in 0..ENTRIES_MAX {
            if scan.next()?.is_none() {
                break;
            }
        }
        content.insert(name.to_vec(), entries);
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    use super::*;

    /// Returns a file with two levels of branches, a value that spans several pages, inline buckets
    /// and free pages.
    fn sample() -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let options = Options {
            no_sync: true,
            growth_bytes: 4 << 10,
            map_bytes_min: 1 << 20,
            page_bytes_new: 1024,
            ..Options::default()
        };
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let db = Db::open(&disk, &path, options).unwrap();
        let mut tx = db.write().unwrap();
        for name in [BUCKET, b"lease", b"meta"] {
            tx.create_bucket_if_missing(name).unwrap();
        }
        for number in 0..60_u32 {
            let len = if number == 30 { 2000 } else { 80 };
            tx.put(BUCKET, &number.to_be_bytes(), Bytes::from(vec![1; len])).unwrap();
        }
        tx.put(b"meta", b"consistent_index", Bytes::from_static(&[0; 8])).unwrap();
        tx.commit().unwrap();
        let mut tx = db.write().unwrap();
        for number in 10..20_u32 {
            tx.delete(BUCKET, &number.to_be_bytes()).unwrap();
        }
        tx.commit().unwrap();
        let len = usize::try_from(db.stats().size_bytes).unwrap();
        drop(db);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn any_backend_file_is_opened_or_refused_without_a_panic() {
        let folder = tempfile::tempdir().unwrap();
        let opened = |how: u8| [vec![how], sample()].concat();
        let samples = [("flat", opened(3)), ("nested", opened(1)), ("unsealed", opened(0))];
        bounded("bolt_file", &samples, 600, |data| file(folder.path(), data));
    }
}
