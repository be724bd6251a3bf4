//! Members that come to life from what is on the disk.

use std::path::PathBuf;

use quorate_state::members::Member;
use quorate_storage::disk::RealDisk;
use tempfile::TempDir;

use super::*;

fn config(folder: &TempDir) -> Config {
    let data_dir = folder.path().join("data").to_str().unwrap().to_owned();
    Config { data_dir, ..Config::default() }
}

fn real_disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// A data directory as a crash leaves it between the creation of the log and its first entries.
fn begin_log(config: &Config) -> Identity {
    let identity = Founding::new(config).unwrap().identity;
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    dirs.prepare(&RealDisk).unwrap();
    let metadata =
        Metadata { node_id: Some(identity.member_id), cluster_id: Some(identity.cluster_id) };
    let metadata = metadata.encode_to_vec().into();
    Wal::create(real_disk(), dirs.wal(), metadata, wal_options(config)).unwrap();
    identity
}

fn log_of(config: &Config) -> wal::Contents {
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    wal::read(&RealDisk, dirs.wal(), &SnapshotMark::default()).unwrap()
}

#[test]
fn a_founding_that_was_interrupted_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    let identity = begin_log(&config);
    assert_eq!(log_of(&config).entries, []);
    let booted = boot(&config, &real_disk()).unwrap();
    assert_eq!(booted.identity.member_id, identity.member_id);
    drop(booted);
    let log = log_of(&config);
    assert_eq!((log.entries.len(), log.hard_state.commit), (1, 1));
    drop(boot(&config, &real_disk()).unwrap());
    assert_eq!(log_of(&config).entries, log.entries);
}

#[test]
fn a_founding_that_was_interrupted_is_not_finished_as_another() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    begin_log(&config);
    let other = Config { initial_cluster_token: "other".to_owned(), ..config };
    let error = boot(&other, &real_disk()).unwrap_err();
    assert!(matches!(error, BootError::OtherFounding { .. }), "{error}");
    assert_eq!(log_of(&other).entries, []);
}

/// The members that etcd 3.5 itself listed, and those that its directory has become here.
#[test]
fn members_that_older_versions_did_not_store_are_repaired() {
    let Some(golden) = std::env::var_os("QUORATE_GOLDEN").map(PathBuf::from) else {
        println!("QUORATE_GOLDEN is unset: nothing to compare with");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let unpacked = std::process::Command::new("tar")
        .arg("-xzf")
        .arg(golden.join("etcd-3.5.16.tar.gz"))
        .args(["--exclude=*.tmp", "-C"])
        .arg(folder.path())
        .status();
    assert!(unpacked.unwrap().success());
    let said = std::fs::read_to_string(golden.join("etcd-3.5.16.json")).unwrap();
    let config = config(&folder);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    // Whether the newest snapshot file is there, an older one, or none, the log knows the rest.
    let mut snapshots = snap::list(&RealDisk, &dirs.snap()).unwrap().snapshots;
    assert!(snapshots.len() > 2);
    loop {
        let booted = boot(&config, &real_disk()).unwrap();
        let members: Vec<Member> = booted.state.members().iter().cloned().collect();
        let [member] = &members[..] else { panic!("{members:?}") };
        assert_eq!(member.id.0, booted.identity.member_id);
        assert_eq!(member.name, "m1");
        assert_eq!(member.client_urls, ["http://127.0.0.1:50359"]);
        assert_eq!(member.peer_urls, ["http://127.0.0.1:46055"]);
        for told in [&member.client_urls[0], &member.peer_urls[0], &member.id.0.to_string()] {
            assert!(said.contains(told), "etcd said nothing of {told}");
        }
        drop(booted);
        let Some(newest) = snapshots.first().cloned() else { break };
        std::fs::remove_file(dirs.snap().join(&newest)).unwrap();
        snapshots.remove(0);
    }
}
