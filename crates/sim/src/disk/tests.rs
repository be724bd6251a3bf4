//! The disk against its promises.

use quorate_random::SplitMix64;

use super::*;

fn disk() -> (SimDisk, PathBuf) {
    let disk = SimDisk::default();
    disk.create_dir_all(&root(), 0o700).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    (disk, root().join("f"))
}

fn read(disk: &SimDisk, path: &Path) -> Option<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

#[test]
fn what_is_synced_survives_a_power_cut_and_nothing_else_need() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    file.write_all_at(&[1; 2000], 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(&[2; 2000], 0).unwrap();
    disk.cut_power(Mercy::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path), None, "nobody has synced the directory");
    assert!(file.write_all_at(&[3], 0).is_err(), "the process is gone");

    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    file.write_all_at(&[1; 2000], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(&root()).unwrap();
    file.write_all_at(&[2; 2000], 0).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let copy = SimDisk { world: Arc::new(Mutex::new(World::default())) };
        let mut draw = SplitMix64::new(seed);
        let mut fate = content::Fate { mercy: Mercy::Drawn, draw: &mut draw };
        copy.world.lock().tree = disk.world.lock().tree.after_power_cut(&mut fate);
        found.insert(read(&copy, &path).unwrap());
    }
    assert!(found.contains(&vec![1; 2000]) && found.contains(&vec![2; 2000]));
    assert!(found.len() > 5, "torn writes too: {}", found.len());
}

#[test]
fn a_map_shows_later_writes_and_the_end_of_a_process_loses_nothing() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    let map = file.map(1 << 20).unwrap();
    file.write_all_at(b"xyz", 3).unwrap();
    map.refresh().unwrap();
    assert_eq!(&map[..], b"abcxyz");
    assert!(file.try_lock(LockKind::FlockExclusive).unwrap());
    let other = disk.open(&path, OpenMode::ReadWrite).unwrap();
    assert!(!other.try_lock(LockKind::FlockExclusive).unwrap(), "started twice");
    disk.end_process();
    assert_eq!(read(&disk, &path).unwrap(), b"abcxyz");
    let other = disk.open(&path, OpenMode::ReadWrite).unwrap();
    assert!(other.try_lock(LockKind::FlockExclusive).unwrap());
}

#[test]
fn the_operation_at_which_the_power_goes_is_the_last() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(&root()).unwrap();
    disk.set_faults(Faults { power_cut_after: Some(1), ..Faults::default() });
    file.write_all_at(b"a", 0).unwrap();
    assert!(file.sync_data().is_err() && file.write_all_at(b"b", 1).is_err());
    assert!(disk.take_struck().power_cut);
    disk.cut_power(Mercy::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path).unwrap(), b"");
}

#[test]
fn room_runs_out_and_comes_back() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.set_faults(Faults { room: Some(10), ..Faults::default() });
    file.write_all_at(&[1; 8], 0).unwrap();
    let error = file.write_all_at(&[1; 8], 8).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    file.set_len(0).unwrap();
    file.write_all_at(&[1; 10], 0).unwrap();
    assert_eq!(file.free_bytes().unwrap(), Some(0));
}

#[test]
fn a_failed_sync_leaves_its_writes_undecided_for_good() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(&root()).unwrap();
    file.write_all_at(b"a", 0).unwrap();
    disk.set_faults(Faults { fails: Some((Operation::Sync, 0)), ..Faults::default() });
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    disk.cut_power(Mercy::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path).unwrap(), [0]);
}

#[test]
fn what_is_written_once_more_after_a_failed_sync_can_be_made_durable() {
    let (disk, path) = disk();
    let file = disk.open(&path, OpenMode::CreateNew(0o600)).unwrap();
    disk.sync_dir(&root()).unwrap();
    file.write_all_at(b"abcd", 0).unwrap();
    disk.set_faults(Faults { fails: Some((Operation::Sync, 0)), ..Faults::default() });
    assert!(file.sync_data().is_err());
    file.write_all_at(b"bc", 1).unwrap();
    file.sync_data().unwrap();
    disk.cut_power(Mercy::None, &mut SplitMix64::new(1));
    assert_eq!(read(&disk, &path).unwrap(), b"\0bc\0");
}
