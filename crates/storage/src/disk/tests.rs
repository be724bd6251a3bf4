//! The real disk against the file system's own view, and the faulty disk against its promises.

use std::fs;
use std::io::IoSlice;
use std::path::Path;

use super::*;

fn image(disk: &FaultyDisk, seed: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    disk.crash(seed, dir.path()).unwrap();
    dir
}

#[test]
fn real_files_read_back_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/file");
    RealDisk.create_dir_all(&dir.path().join("a/b"), 0o700).unwrap();
    let file = RealDisk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    assert!(RealDisk.open(&path, OpenMode::CreateNew(0o600)).is_err());
    file.allocate(8192).unwrap();
    assert_eq!(file.len().unwrap(), 8192);
    let many: Vec<Vec<u8>> = (0..1500u32).map(|i| i.to_le_bytes().to_vec()).collect();
    let slices: Vec<IoSlice<'_>> = many.iter().map(|bytes| IoSlice::new(bytes)).collect();
    file.write_all_vectored_at(&slices, 100).unwrap();
    file.sync_data().unwrap();
    let mut back = vec![0; 6000];
    file.read_exact_at(&mut back, 100).unwrap();
    assert_eq!(back, many.concat());
    let facts = RealDisk.metadata(&path).unwrap().unwrap();
    assert_eq!((facts.len, facts.is_dir, facts.is_file, facts.mode), (8192, false, true, 0o600));
    assert_eq!(RealDisk.metadata(&dir.path().join("none")).unwrap(), None);
    RealDisk.open(&path, OpenMode::Truncate(0o600)).unwrap();
    assert!(file.is_empty().unwrap());
    assert!(file.read_exact_at(&mut back, 0).is_err());
}

#[test]
fn locks_exclude_another_open_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for (first, second, granted) in [
        (LockKind::OfdExclusive, LockKind::OfdExclusive, false),
        (LockKind::FlockExclusive, LockKind::FlockShared, false),
        (LockKind::FlockShared, LockKind::FlockShared, true),
    ] {
        let one = RealDisk.open(&path, OpenMode::Create(0o600)).unwrap();
        let two = RealDisk.open(&path, OpenMode::Create(0o600)).unwrap();
        assert!(one.try_lock(first).unwrap());
        assert_eq!(two.try_lock(second).unwrap(), granted);
        drop(one);
        assert!(two.try_lock(second).unwrap());
    }
}

#[test]
fn a_mapping_shows_writes_and_only_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = RealDisk.open(&dir.path().join("file"), OpenMode::Create(0o600)).unwrap();
    let empty = file.map(0).unwrap();
    assert!(empty.is_empty());
    file.write_all_at(b"before", 0).unwrap();
    let map = file.map(1 << 20).unwrap();
    assert_eq!(&*map, b"before");
    file.write_all_at(b"behind", 4096).unwrap();
    assert_eq!(map.len(), 6);
    assert_eq!(map.refresh().unwrap(), 4102);
    assert_eq!(&map[4096..], b"behind");
    assert_eq!(map.capacity(), 1 << 20);
    map.hide_from(6);
    file.set_len(6).unwrap();
    assert_eq!(&*map, b"before");
}

#[test]
fn unsynced_writes_are_undecided_and_synced_ones_are_not() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let file = disk.open(&root.path().join("f"), OpenMode::CreateNew(0o640)).unwrap();
    file.write_all_at(&[1; 2048], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(root.path()).unwrap();
    file.write_all_at(&[2; 1024], 512).unwrap();
    file.write_all_at(&[3; 1024], 4096).unwrap();

    let lost = fs::read(image(&disk, 0).path().join("f")).unwrap();
    assert_eq!(lost, vec![1; 2048]);
    let kept = fs::read(image(&disk, 1).path().join("f")).unwrap();
    assert_eq!(kept, fs::read(root.path().join("f")).unwrap());

    let mut seen = std::collections::BTreeSet::new();
    for seed in 2..200 {
        let drawn = image(&disk, seed);
        let bytes = fs::read(drawn.path().join("f")).unwrap();
        assert_eq!(bytes, fs::read(image(&disk, seed).path().join("f")).unwrap());
        assert_eq!(bytes[..512], [1; 512]);
        assert_eq!(bytes[1536..2048], [1; 512]);
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]));
        }
        seen.insert((bytes.len(), bytes[512], bytes[1024]));
    }
    // Kept, lost, both ways of being torn, and the three lengths in question.
    assert!(seen.len() >= 8, "{seen:?}");
    file.sync_data().unwrap();
    assert_eq!(fs::read(image(&disk, 0).path().join("f")).unwrap(), kept);
}

#[test]
fn unsynced_names_are_undecided() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("old"), b"old").unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let file = disk.open(&root.path().join("new"), OpenMode::CreateNew(0o600)).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    file.sync_all().unwrap();
    disk.rename(&root.path().join("new"), &root.path().join("old")).unwrap();
    disk.create_dir_all(&root.path().join("d/e"), 0o700).unwrap();

    let listing = |dir: &Path| RealDisk.read_dir(dir).unwrap();
    let lost = image(&disk, 0);
    assert_eq!(listing(lost.path()), ["old"]);
    assert_eq!(fs::read(lost.path().join("old")).unwrap(), b"old");
    let kept = image(&disk, 1);
    assert_eq!(listing(kept.path()), ["d", "old"]);
    assert_eq!(fs::read(kept.path().join("old")).unwrap(), b"new");
    for seed in 2..50 {
        let drawn = image(&disk, seed);
        let bytes = fs::read(drawn.path().join("old")).unwrap();
        assert!(bytes == b"old" || bytes == b"new");
    }
    disk.remove_file(&root.path().join("old")).unwrap();
    assert_eq!(fs::read(image(&disk, 0).path().join("old")).unwrap(), b"old");
    disk.sync_dir(root.path()).unwrap();
    assert_eq!(listing(image(&disk, 0).path()), ["d"]);
    assert!(listing(&image(&disk, 0).path().join("d")).is_empty());
}

#[test]
fn faults_strike_where_they_were_armed() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let file = disk.open(&root.path().join("f"), OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(root.path()).unwrap();
    disk.inject(Fault { bytes_written: 3, ..Fault::nth(Operation::Write, 1, 5).on("f") });
    file.write_all_at(b"first", 0).unwrap();
    assert_eq!(file.write_all_at(b"second", 5).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::read(root.path().join("f")).unwrap(), b"firstsec");
    disk.inject(Fault::nth(Operation::Sync, 0, 5));
    assert!(file.sync_data().is_err());
    // The failed sync is not repaired by a later one.
    file.sync_data().unwrap();
    assert_eq!(fs::read(image(&disk, 0).path().join("f")).unwrap(), [0; 8]);
    // What is written once more and synced is there, whatever else becomes of the rest.
    file.write_all_at(b"rst", 2).unwrap();
    file.sync_data().unwrap();
    assert_eq!(fs::read(image(&disk, 0).path().join("f")).unwrap(), b"\0\0rst\0\0\0");
    disk.limit_growth(Some(10));
    file.write_all_at(b"0123456789", 8).unwrap();
    assert_eq!(file.write_all_at(b"x", 18).unwrap_err().raw_os_error(), Some(28));
    disk.stop_at(disk.operation_count() + 1);
    file.write_all_at(b"F", 0).unwrap();
    assert!(file.write_all_at(b"G", 1).is_err());
    assert!(file.write_all_at(b"H", 2).is_err());
    assert!(disk.metadata(&root.path().join("f")).unwrap().is_some());
    assert_eq!(&fs::read(root.path().join("f")).unwrap()[..3], b"FGr");
}

#[test]
fn a_file_without_a_name_is_mapped_as_any_other() {
    let file = unnamed_file().unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    let map = file.map(8192).unwrap();
    assert_eq!(&map[..], b"abc");
    file.write_all_at(b"xyz", 2).unwrap();
    map.refresh().unwrap();
    assert_eq!(&map[..], b"abxyz");
    file.set_len(1).unwrap();
    assert_eq!(file.len().unwrap(), 1);
}
