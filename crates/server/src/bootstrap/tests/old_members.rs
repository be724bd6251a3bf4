//! Tests with directories of etcd 3.5 whose backend files do not list all members.

use std::path::PathBuf;

use quorate_storage::wal::{self, HardState, Wal};

use super::*;

/// Unpacks a directory of etcd 3.5 into the data directory of a configuration. Returns the configuration and what etcd
/// said about the directory, or `None` if there are no files of etcd.
fn unpacked(folder: &TempDir) -> Option<(Config, String)> {
    let Some(golden) = std::env::var_os("QUORATE_GOLDEN").map(PathBuf::from) else {
        let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
        assert!(!required.contains("golden"), "QUORATE_GOLDEN is required but not set");
        println!("skipped: tests with files written by etcd (QUORATE_GOLDEN is not set)");
        return None;
    };
    let unpacked = std::process::Command::new("tar")
        .arg("-xzf")
        .arg(golden.join("etcd-3.5.16.tar.gz"))
        .args(["--exclude=*.tmp", "-C"])
        .arg(folder.path())
        .status();
    assert!(unpacked.unwrap().success());
    let said = std::fs::read_to_string(golden.join("etcd-3.5.16.json")).unwrap();
    Some((config(folder), said))
}

#[test]
fn a_directory_with_data_of_the_v2_api_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some((config, _)) = unpacked(&folder) else { return };
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let newest = dirs.snap().join(&snap::list(&RealDisk, &dirs.snap()).unwrap().snapshots[0]);
    let mut snapshot = snap::read(&RealDisk, &newest).unwrap();
    let mut tree: serde_json::Value = serde_json::from_slice(&snapshot.data).unwrap();
    tree["Root"]["Children"]["1"]["Children"] = serde_json::json!({"foo": {"Value": "bar"}});
    snapshot.data = tree.to_string().into();
    std::fs::remove_file(&newest).unwrap();
    snap::save(&RealDisk, &dirs.snap(), &snapshot).unwrap();
    let refused = refusal(&config);
    assert!(refused.contains("detected disallowed custom content in v2store"), "{refused}");
    assert!(refused.contains("/1/foo"), "{refused}");
}

#[test]
fn a_directory_whose_log_contains_a_change_with_the_v2_api_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some((config, _)) = unpacked(&folder) else { return };
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    for name in snap::list(&RealDisk, &dirs.snap()).unwrap().snapshots {
        std::fs::remove_file(dirs.snap().join(name)).unwrap();
    }
    let (start, options) = (SnapshotMark::default(), wal::Options::default());
    let (mut log, contents) = Wal::open(real_disk(), dirs.wal(), &start, options).unwrap();
    let request = quorate_api::etcdserverpb::Request {
        id: Some(7),
        method: Some("PUT".to_owned()),
        path: Some("/1/foo".to_owned()),
        val: Some("bar".to_owned()),
        ..quorate_api::etcdserverpb::Request::default()
    };
    let (index, term) = (contents.last_index + 1, contents.hard_state.term);
    let entry = wal::Entry { index, term, kind: 0, data: request.encode_to_vec().into() };
    log.save(Some(&HardState { commit: index, ..contents.hard_state }), &[entry]).unwrap();
    log.close().unwrap();
    let refused = refusal(&config);
    assert!(refused.contains("detected disallowed v2 WAL"), "{refused}");
    assert!(refused.contains(&format!("entry {index} changes /1/foo")), "{refused}");
}

/// Compares the members that etcd 3.5 listed with the members in the repaired directory.
#[test]
fn members_missing_from_the_backend_file_of_older_versions_are_restored() {
    let folder = tempfile::tempdir().unwrap();
    let Some((config, said)) = unpacked(&folder) else { return };
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    // Whether the directory contains the newest snapshot file, an older file or no file, the log contains the missing
    // changes.
    let mut snapshots = snap::list(&RealDisk, &dirs.snap()).unwrap().snapshots;
    assert!(snapshots.len() > 2);
    loop {
        let booted = boot(&config, &real_disk(), &Dialer::default()).unwrap();
        let members: Vec<Member> = booted.state.members().iter().cloned().collect();
        let [member] = &members[..] else { panic!("not exactly one member: {members:?}") };
        assert_eq!(member.id.0, booted.identity.member_id);
        assert_eq!(member.name, "m1");
        assert_eq!(member.client_urls, ["http://127.0.0.1:50359"]);
        assert_eq!(member.peer_urls, ["http://127.0.0.1:46055"]);
        for expected in [&member.client_urls[0], &member.peer_urls[0], &member.id.0.to_string()] {
            assert!(said.contains(expected), "etcd did not log {expected}");
        }
        drop(booted);
        let Some(newest) = snapshots.first().cloned() else { break };
        std::fs::remove_file(dirs.snap().join(&newest)).unwrap();
        snapshots.remove(0);
    }
}
