//! Tests that snapshot files have the same bytes as etcd's, that damage to them is detected, and that received backend
//! files survive crashes.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use super::*;
use crate::disk::{Fault, FaultyDisk, Operation, RealDisk};

fn sample(term: u64, index: u64) -> Snapshot {
    Snapshot {
        index,
        term,
        conf_state: Bytes::from_static(b"\x08\x2a\x28\x00"),
        data: Bytes::from_static(b"{\"Root\":{},\"CurrentVersion\":2}"),
    }
}

fn mark(term: u64, index: u64) -> SnapshotMark {
    SnapshotMark { index, term, conf_state: None }
}

#[expect(clippy::disallowed_methods, reason = "an environment variable names the test data folder")]
#[test]
fn snapshot_files_of_etcd_are_re_encoded_byte_for_byte() {
    let Some(folder) = std::env::var_os("QUORATE_GOLDEN").map(PathBuf::from) else {
        let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
        assert!(!required.contains("golden"), "QUORATE_GOLDEN is required but not set");
        println!("skipped: tests with files written by etcd (QUORATE_GOLDEN is not set)");
        return;
    };
    for archive in RealDisk.read_dir(&folder).unwrap() {
        if !has_suffix(&archive, ".tar.gz") {
            continue;
        }
        let root = tempfile::tempdir().unwrap();
        let status = Command::new("tar")
            .args(["-xzf".as_ref(), folder.join(&archive).as_os_str()])
            .args(["-C".as_ref(), root.path().as_os_str(), "data/member/snap".as_ref()])
            .status()
            .unwrap();
        assert!(status.success());
        let dir = root.path().join("data/member/snap");
        let names = list(&RealDisk, &dir).unwrap().snapshots;
        assert!(names.len() > 3, "{archive:?}: {names:?}");
        for name in &names {
            let original = fs::read(dir.join(name)).unwrap();
            let snapshot = read(&RealDisk, &dir.join(name)).unwrap();
            assert_eq!(snapshot.file_name(), *name.to_str().unwrap());
            let copy = save(&RealDisk, root.path(), &snapshot).unwrap();
            assert_eq!(fs::read(copy).unwrap(), original, "{archive:?} {name:?}");
        }
        let (newest, broken) = load_newest(&RealDisk, &dir, None).unwrap();
        assert_eq!(newest.unwrap().file_name(), *names[0].to_str().unwrap());
        assert!(broken.is_empty());
    }
}

#[test]
fn the_newest_marked_and_readable_snapshot_is_chosen() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    for (term, index) in [(1, 100), (2, 50), (2, 60), (2, 70), (3, 1)] {
        save(&RealDisk, dir, &sample(term, index)).unwrap();
    }
    fs::write(dir.join("db"), b"").unwrap();
    fs::write(dir.join("rubbish"), b"").unwrap();
    let marks = [mark(1, 100), mark(2, 50), mark(2, 60), mark(3, 2)];
    let (found, broken) = load_newest(&RealDisk, dir, Some(&marks)).unwrap();
    assert_eq!((found, broken.len()), (Some(sample(2, 60)), 0));
    assert_eq!(load_newest(&RealDisk, dir, None).unwrap().0, Some(sample(3, 1)));
    fs::write(dir.join(sample(2, 60).file_name()), b"").unwrap();
    let (found, broken) = load_newest(&RealDisk, dir, Some(&marks)).unwrap();
    assert_eq!(found, Some(sample(2, 50)));
    let moved = dir.join("0000000000000002-000000000000003c.snap.broken");
    assert_eq!(broken[0].path, moved);
    assert!(matches!(broken[0].error, SnapError::Empty { .. }) && moved.exists());
    let listing = list(&RealDisk, dir).unwrap();
    assert_eq!(listing.snapshots.len(), 4);
    assert_eq!(listing.ignored.len(), 2);
    assert_eq!(load_newest(&RealDisk, dir, Some(&[])).unwrap().0, None);
}

#[test]
fn damage_at_any_byte_of_a_snapshot_file_is_detected() {
    let root = tempfile::tempdir().unwrap();
    let path = save(&RealDisk, root.path(), &sample(2, 60)).unwrap();
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x11;
        fs::write(&path, &bytes).unwrap();
        assert!(read(&RealDisk, &path).is_err(), "byte {at}");
        fs::write(&path, &good[..at]).unwrap();
        assert!(read(&RealDisk, &path).is_err(), "length {at}");
    }
    fs::write(&path, good).unwrap();
    assert_eq!(read(&RealDisk, &path).unwrap(), sample(2, 60));
}

#[test]
fn a_saved_snapshot_survives_a_power_cut_and_a_failed_save_leaves_no_file() {
    let root = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new(root.path()).unwrap();
    save(&disk, root.path(), &sample(1, 1)).unwrap();
    disk.inject(Fault::nth(Operation::Sync, 0, 5));
    assert!(save(&disk, root.path(), &sample(2, 2)).is_err());
    let failed = root.path().join(sample(2, 2).file_name());
    assert_eq!(disk.metadata(&failed).unwrap(), None);
    for seed in 0..10 {
        let image = tempfile::tempdir().unwrap();
        disk.crash(seed, image.path()).unwrap();
        let marks = [mark(1, 1)];
        let (found, _) = load_newest(&RealDisk, image.path(), Some(&marks)).unwrap();
        assert_eq!(found, Some(sample(1, 1)), "seed {seed}");
    }
}

#[test]
fn a_received_backend_is_installed_whole_or_not_at_all() {
    let receive = |disk: &FaultyDisk, dir: &Path| -> Result<(), SnapError> {
        let mut incoming = IncomingDatabase::create(Arc::new(disk.clone()), dir, 77)?;
        incoming.write(&[1; 3000])?;
        incoming.write(&[2; 3000])?;
        assert_eq!(incoming.bytes(), 6000);
        let path = incoming.finish(0x1f)?;
        assert_eq!(path, database_path(dir, 0x1f));
        install_database(disk, dir, 0x1f)?;
        Ok(())
    };
    for stop in 0..10 {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("db"), [0; 10]).unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        disk.stop_at(stop);
        let done = receive(&disk, root.path()).is_ok();
        assert_eq!(done, stop >= 8, "stop {stop}");
        for seed in 0..10 {
            let image = tempfile::tempdir().unwrap();
            disk.crash(seed, image.path()).unwrap();
            clean_up(&RealDisk, image.path()).unwrap();
            let whole = [vec![1; 3000], vec![2; 3000]].concat();
            let db = fs::read(image.path().join("db")).unwrap();
            assert!(db == whole || (db == [0; 10] && !done), "stop {stop} seed {seed}");
            let waiting = database_path(image.path(), 0x1f);
            assert!(!waiting.exists() || fs::read(waiting).unwrap() == whole);
            assert!(!image.path().join("tmp77").exists());
        }
    }
}

#[test]
fn missing_backends_are_errors_and_only_older_or_incomplete_files_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let missing = install_database(&RealDisk, dir, 5).unwrap_err().to_string();
    let text = "failed to find database snapshot file (snap: snapshot file doesn't exist)";
    assert!(missing.starts_with(text), "{missing}");
    for index in [5, 6, 7] {
        fs::write(database_path(dir, index), b"old").unwrap();
    }
    fs::write(dir.join("strange.snap.db"), b"").unwrap();
    let mut again = IncomingDatabase::create(Arc::new(RealDisk), dir, 1).unwrap();
    again.write(b"new").unwrap();
    again.finish(7).unwrap();
    assert_eq!(fs::read(database_path(dir, 7)).unwrap(), b"new", "the newest file is kept");
    let removed = release_databases(&RealDisk, dir, 7).unwrap();
    assert_eq!(removed, [database_path(dir, 5), database_path(dir, 6)]);
    for name in ["tmp1", "db.tmp.99", "db"] {
        fs::write(dir.join(name), b"").unwrap();
    }
    assert_eq!(clean_up(&RealDisk, dir).unwrap(), [dir.join("db.tmp.99"), dir.join("tmp1")]);
    let left = RealDisk.read_dir(dir).unwrap();
    assert_eq!(left, ["0000000000000007.snap.db", "db", "strange.snap.db"]);
}

#[test]
fn the_documented_layout_of_snapshots_matches_the_encoding() {
    use crate::format_file::{Content, layout, read_message};

    let root = tempfile::tempdir().unwrap();
    let snapshot = sample(5, 9);
    let path = save(&RealDisk, root.path(), &snapshot).unwrap();
    let bytes_of = |content: &Content| match content {
        Content::Bytes(bytes) => bytes.clone(),
        Content::Number(number) => panic!("{number} where bytes are expected"),
    };
    let file = read_message(&layout("file"), &fs::read(path).unwrap());
    let data = bytes_of(&file["data"]);
    assert_eq!(file["crc varint"], Content::Number(crc32c(&data).into()));
    let data = read_message(&layout("data"), &data);
    assert_eq!(data["JSON of the old store"], Content::Bytes(snapshot.data.to_vec()));
    let metadata = read_message(&layout("metadata"), &bytes_of(&data["metadata"]));
    assert_eq!(metadata["ConfState"], Content::Bytes(snapshot.conf_state.to_vec()));
    assert_eq!(metadata["index"], Content::Number(9));
    assert_eq!(metadata["term"], Content::Number(5));
}
