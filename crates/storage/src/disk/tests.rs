//! Tests that compare the real disk with `std::fs`.

use std::io::IoSlice;

use super::*;

#[test]
fn real_files_return_the_written_bytes_and_metadata() {
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
fn an_exclusive_file_lock_excludes_locks_by_other_handles() {
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
fn a_mapping_shows_later_writes_and_ends_at_the_file_end() {
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
fn an_unnamed_file_can_be_mapped() {
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
