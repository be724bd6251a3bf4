//! Tests with files written by etcd. The files can be read and edited without a fault, and the image of a snapshot file
//! is the same as the file.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;

use super::*;

/// The buckets in etcd's file.
const BUCKETS: [&str; 10] = [
    "alarm",
    "auth",
    "authRoles",
    "authUsers",
    "cluster",
    "key",
    "lease",
    "members",
    "members_removed",
    "meta",
];

/// Unpacks every archive of the golden data and calls `check` with the directory of its files.
#[expect(clippy::disallowed_methods, reason = "an environment variable names the test data folder")]
fn for_each_golden(check: impl Fn(&Path, &str)) {
    let Some(folder) = std::env::var_os("QUORATE_GOLDEN") else {
        let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
        assert!(!required.contains("golden"), "QUORATE_GOLDEN is required but not set");
        println!("skipped: tests with files written by etcd (QUORATE_GOLDEN is not set)");
        return;
    };
    let mut archives: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    archives.retain(|path| path.to_string_lossy().ends_with(".tar.gz"));
    archives.sort();
    assert!(!archives.is_empty(), "the golden folder contains archives");
    for archive in archives {
        let into = tempfile::tempdir().unwrap();
        let status =
            Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(into.path()).status();
        assert!(status.unwrap().success(), "cannot unpack {}", archive.display());
        check(into.path(), &archive.file_name().unwrap().to_string_lossy());
    }
}

/// Returns every entry of every bucket, in order.
fn content(view: &ReadTx) -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for name in view.bucket_names().unwrap() {
        let mut scan = view.scan(name).unwrap();
        while let Some(entry) = scan.next().unwrap() {
            all.push((name.to_vec(), entry.key.to_vec(), entry.value.to_vec()));
        }
    }
    all
}

fn real(path: &Path, read_only: bool) -> Db {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    Db::open(&disk, path, Options { read_only, ..Options::default() }).unwrap()
}

#[test]
fn etcd_files_can_be_read_and_pass_the_check() {
    for_each_golden(|directory, name| {
        for file in ["data/member/snap/db", "snapshot.db"] {
            let db = real(&directory.join(file), true);
            let view = db.read();
            assert_eq!(view.check(), [], "{name}: {file}");
            let names: Vec<_> =
                view.bucket_names().unwrap().into_iter().map(String::from_utf8_lossy).collect();
            assert_eq!(names, BUCKETS, "{name}: {file}");
            let keys = view.bucket(b"key").unwrap().unwrap();
            let mut cursor = keys.cursor();
            let mut count = 0;
            while let Some(entry) = cursor.next().unwrap() {
                assert!(matches!(entry.key.len(), 17 | 18) && entry.key[8] == b'_');
                assert_eq!(keys.get(entry.key).unwrap(), Some(entry.value));
                count += 1;
            }
            assert!(count > 50, "{name}: {file} contains only {count} revisions");
        }
    });
}

#[test]
fn the_image_of_a_snapshot_file_equals_the_file() {
    for_each_golden(|directory, name| {
        let path = directory.join("snapshot.db");
        let original = std::fs::read(&path).unwrap();
        let view = real(&path, true).read();
        let mut image = vec![0; view.image_len() as usize];
        assert_eq!(view.read_image_at(0, &mut image).unwrap(), image.len());
        assert_eq!(
            original.len(),
            image.len() + 32,
            "{name}: the snapshot is not 32 bytes (a SHA-256 digest) longer than the image"
        );
        assert!(original.starts_with(&image), "{name}: the image differs from bbolt's own copy");
    });
}

#[test]
fn an_etcd_file_can_be_modified() {
    for_each_golden(|directory, name| {
        let path = directory.join("data/member/snap/db");
        let db = real(&path, false);
        assert_sound(&db, name);
        let mut expected = content(&db.read());
        let keys: Vec<_> = expected
            .iter()
            .filter(|(bucket, _, _)| bucket == b"key")
            .map(|(_, key, _)| key.clone())
            .step_by(3)
            .collect();
        for group in keys.chunks(20) {
            let mut tx = db.write().unwrap();
            assert_eq!(tx.delete_sorted(b"key", group).unwrap(), group.len() as u64);
            tx.put(b"meta", b"term", Bytes::from_static(&[7; 8])).unwrap();
            tx.commit().unwrap();
            assert_sound(&db, name);
        }
        expected.retain(|(bucket, key, _)| bucket != b"key" || keys.binary_search(key).is_err());
        for (bucket, key, value) in &mut expected {
            if bucket == b"meta" && key == b"term" {
                *value = vec![7; 8];
            }
        }
        assert_eq!(content(&db.read()), expected, "{name}");
        while !db.reclaim(100).unwrap().done {}
        assert_sound(&db, name);
        drop(db);
        assert_eq!(content(&real(&path, true).read()), expected, "{name}");
    });
}
