//! Tests of the simulated disk: the state of its files after a process ends, after a power cut, and after a fault.

use std::fs;

use super::*;
use crate::disk::RealDisk;

fn root() -> &'static Path {
    Path::new("/root")
}

fn disk() -> (FaultyDisk, PathBuf) {
    let disk = FaultyDisk::default();
    disk.create_dir_all(root(), 0o700).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    (disk, root().join("f"))
}

fn image(disk: &FaultyDisk, seed: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    disk.crash(seed, dir.path()).unwrap();
    dir
}

fn bytes_of(disk: &FaultyDisk, path: &Path) -> Vec<u8> {
    read(disk, path).expect("the file can be read")
}

fn read(disk: &FaultyDisk, path: &Path) -> Option<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

#[test]
fn only_synced_changes_are_certain_to_survive_a_power_cut() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    file.write_all_at(&[1; 2000], 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(&[2; 2000], 0).unwrap();
    disk.cut_power(Surviving::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path), None, "the directory was not synced");
    assert!(file.write_all_at(&[3], 0).is_err(), "the process has ended");

    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    file.write_all_at(&[1; 2000], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(root()).unwrap();
    file.write_all_at(&[2; 2000], 0).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let copy = FaultyDisk::default();
        let mut draw = SplitMix64::new(seed);
        let mut fate = Fate { mercy: Surviving::Drawn, draw: &mut draw };
        copy.world.lock().tree = disk.world.lock().tree.after_power_cut(&mut fate);
        found.insert(read(&copy, &path).unwrap());
    }
    assert!(found.contains(&vec![1; 2000]) && found.contains(&vec![2; 2000]));
    assert!(found.len() > 5, "only {} different results, although writes may be torn", found.len());
}

#[test]
fn later_writes_appear_in_a_mapping_and_survive_a_process_exit() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    let map = file.map(1 << 20).unwrap();
    file.write_all_at(b"xyz", 3).unwrap();
    map.refresh().unwrap();
    assert_eq!(&map[..], b"abcxyz");
    assert!(file.try_lock(LockKind::FlockExclusive).unwrap());
    let other = disk.open(&path, OpenMode::ReadWrite).unwrap();
    assert!(!other.try_lock(LockKind::FlockExclusive).unwrap(), "the first handle holds the lock");
    disk.end_process();
    assert_eq!(read(&disk, &path).unwrap(), b"abcxyz");
    let other = disk.open(&path, OpenMode::ReadWrite).unwrap();
    assert!(other.try_lock(LockKind::FlockExclusive).unwrap());
}

#[test]
fn no_operation_succeeds_after_a_power_cut() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(root()).unwrap();
    disk.set_faults(Faults { power_cut_after: Some(1), ..Faults::default() });
    file.write_all_at(b"a", 0).unwrap();
    assert!(file.sync_data().is_err() && file.write_all_at(b"b", 1).is_err());
    assert!(disk.take_faults_hit().power_cut);
    disk.cut_power(Surviving::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path).unwrap(), b"");
}

#[test]
fn the_changes_of_a_killed_process_are_kept_until_a_power_cut() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(root()).unwrap();
    disk.set_faults(Faults { kill_after: Some(2), ..Faults::default() });
    file.write_all_at(b"a", 0).unwrap();
    let renamed = root().join("g");
    disk.rename(&path, &renamed).unwrap();
    assert!(file.sync_data().is_err() && disk.sync_dir(root()).is_err());
    assert!(disk.take_faults_hit().killed);
    disk.end_process();
    // The next process can still sync the bytes, because no sync of them has failed.
    let file = disk.open(&renamed, OpenMode::ReadWrite).unwrap();
    file.sync_data().unwrap();
    disk.cut_power(Surviving::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path).unwrap(), b"a", "the rename was not synced");
}

#[test]
fn a_full_disk_refuses_writes_until_space_is_freed() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.set_faults(Faults { room: Some(10), ..Faults::default() });
    file.write_all_at(&[1; 8], 0).unwrap();
    let error = file.write_all_at(&[1; 8], 8).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    file.set_len(0).unwrap();
    file.write_all_at(&[1; 4], 0).unwrap();
    file.set_len(1_000).unwrap();
    assert_eq!(file.free_bytes().unwrap(), Some(6), "a hole takes no disk space");
    file.allocate(10).unwrap();
    assert_eq!((file.len().unwrap(), file.free_bytes().unwrap()), (1_000, Some(0)));
    file.write_all_at(&[1; 10], 0).unwrap();
    assert!(file.write_all_at(&[1], 10).is_err());
}

#[test]
fn a_later_sync_does_not_make_writes_of_a_failed_sync_durable() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(root()).unwrap();
    file.write_all_at(b"a", 0).unwrap();
    disk.inject(Fault::nth(Operation::Sync, 0, IO_ERROR));
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    disk.cut_power(Surviving::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path).unwrap(), [0]);
}

#[test]
fn writes_repeated_after_a_failed_sync_become_durable() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(root()).unwrap();
    file.write_all_at(b"abcd", 0).unwrap();
    disk.inject(Fault::nth(Operation::Sync, 0, IO_ERROR));
    assert!(file.sync_data().is_err());
    file.write_all_at(b"bc", 1).unwrap();
    file.sync_data().unwrap();
    disk.cut_power(Surviving::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path).unwrap(), b"\0bc\0");
}

#[test]
fn a_power_cut_may_lose_or_tear_unsynced_writes_but_no_synced_writes() {
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
    assert_eq!(kept, bytes_of(&disk, &root.path().join("f")));

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
    // Each of the first write's two sectors is kept or lost, and the file has one of three lengths.
    assert!(seen.len() >= 8, "{seen:?}");
    file.sync_data().unwrap();
    assert_eq!(fs::read(image(&disk, 0).path().join("f")).unwrap(), kept);
}

#[test]
fn a_power_cut_may_lose_unsynced_file_names() {
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
fn injected_faults_hit_the_selected_operations() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    let file = disk.open(&root.path().join("f"), OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(root.path()).unwrap();
    disk.inject(Fault { bytes_written: 3, ..Fault::nth(Operation::Write, 1, 5).on("f") });
    file.write_all_at(b"first", 0).unwrap();
    assert_eq!(file.write_all_at(b"second", 5).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(bytes_of(&disk, &root.path().join("f")), b"firstsec");
    disk.inject(Fault::nth(Operation::Sync, 0, 5));
    assert!(file.sync_data().is_err());
    // A later sync does not repair the failed one.
    file.sync_data().unwrap();
    assert_eq!(fs::read(image(&disk, 0).path().join("f")).unwrap(), [0; 8]);
    // Bytes that are written again and synced are durable, whatever happens to the other bytes.
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
    assert_eq!(&fs::read(image(&disk, 1).path().join("f")).unwrap()[..3], b"FGr");
}
