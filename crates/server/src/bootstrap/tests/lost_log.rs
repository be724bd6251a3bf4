//! Tests of members whose log is missing, truncated or marked as lost.

use quorate_state::apply::EntryMeta;
use quorate_storage::disk::{Fault, FaultyDisk, Operation};
use quorate_storage::lost_log;

use super::*;

/// Creates the directory of a single member. The founding entry is applied and committed to the backend file.
fn create_used_directory(config: &Config) {
    let mut booted = boot_with(config, &real_disk(), &NoNames).unwrap();
    let founding = log_of(config).entries.remove(0);
    let meta = EntryMeta { index: 1, term: founding.term, ..EntryMeta::default() };
    let change = quorate_api::raftpb::ConfChange::decode(founding.data).unwrap();
    booted.state.apply_conf_change(meta, &change).unwrap();
    booted.backend.commit(&booted.state.take_batch()).unwrap();
}

#[test]
fn a_backend_file_without_its_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let (wal, db) = (dirs.wal().to_path_buf(), dirs.backend());
    let elsewhere = folder.path().join("elsewhere");
    std::fs::rename(&wal, &elsewhere).unwrap();
    let elsewhere = elsewhere.to_str().unwrap().to_owned();
    let peers = "default=http://localhost:2380,other=http://127.0.0.1:9".to_owned();
    for forgetful in [
        config.clone(),
        Config { force_new_cluster: true, ..config.clone() },
        Config { initial_cluster_state: ClusterState::Existing, ..config.clone() },
        Config { initial_cluster: peers, ..config.clone() },
        Config {
            wal_dir: folder.path().join("empty").to_str().unwrap().to_owned(),
            ..config.clone()
        },
    ] {
        let wal = match &forgetful.wal_dir[..] {
            "" => wal.display().to_string(),
            given => given.to_owned(),
        };
        let expected = format!(
            "{} has applied entries up to index 1, but there is no write-ahead log in {wal}: if the log is \
             elsewhere, specify its directory with --wal-dir; if the log is lost, this member must not start; \
             remove this member from the cluster (etcdctl member remove ID), ",
            db.display()
        );
        let refused = refusal(&forgetful);
        assert!(refused.starts_with(&expected), "{refused}");
        assert!(refused.contains("etcdutl snapshot restore"), "{refused}");
        assert!(!dirs.is_initialised(&RealDisk).unwrap(), "no log is created");
    }
    // The log is in a different directory, which `--wal-dir` now names.
    let right = Config { wal_dir: elsewhere, ..config };
    assert_eq!(boot_with(&right, &real_disk(), &NoNames).unwrap().state.applied().0, 1);
}

#[test]
fn an_unreadable_log_is_not_reported_as_a_missing_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let faulty = FaultyDisk::new(folder.path()).unwrap();
    let permission_denied = 13;
    faulty.inject(Fault::nth(Operation::List, 0, permission_denied).on("member/wal"));
    let disk: Arc<dyn Disk> = Arc::new(faulty);
    let refused = boot_with(&config, &disk, &NoNames).unwrap_err().to_string();
    let wal = dirs.wal().display();
    let expected = format!("cannot read WAL directory: {wal}: Permission denied (os error 13)");
    assert_eq!(refused, expected);
    assert_eq!(boot_with(&config, &disk, &NoNames).unwrap().state.applied().0, 1);
}

#[test]
fn a_log_repair_is_logged_before_missing_entries_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config);
    let founding = log_of(&config).entries.remove(0);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let segment = wal::list(&RealDisk, dirs.wal()).unwrap().segments.remove(0);
    let path = dirs.wal().join(segment.file_name());
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(founding.data.len()).position(|part| part == founding.data).unwrap();
    bytes.truncate(at + 1);
    std::fs::write(&path, bytes).unwrap();
    let mut reported = None;
    let report = |repair: &wal::Repair| reported = Some(repair.clone());
    let start = SnapshotMark::default();
    let options = wal::Options::default();
    let refused = own_log::open_log(&real_disk(), &dirs, &start, options, LogIndex(1), report);
    let Err(BootError::LogLost { last_index, applied, .. }) = refused else {
        panic!("a log that ends before the applied index was accepted")
    };
    assert_eq!((last_index, applied), (LogIndex::ZERO, LogIndex(1)));
    let repair = reported.expect("the torn entry was removed");
    assert_eq!(repair.path, path);
    assert!(repair.backup.is_some_and(|copy| copy.exists()));
}

#[test]
fn a_first_start_interrupted_after_creating_the_backend_file_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    std::fs::remove_dir_all(dirs.wal()).unwrap();
    assert!(dirs.backend().exists());
    drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
    assert_eq!(log_of(&config).entries.len(), 1);
}

/// Marks the log as lost and checks that the member refuses to start.
fn check_marked(config: &Config) {
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    lost_log::mark(&RealDisk, &dirs, "the reason").unwrap();
    let refused = refusal(config);
    let expected = format!(
        "{}: this member has found that its log has lost entries, and must not vote again (the reason); \
         remove this member",
        lost_log::path(&dirs).display()
    );
    assert!(refused.starts_with(&expected), "{refused}");
    assert!(refused.contains("use --force-new-cluster to start the member with the longest log"));
    assert!(lost_log::reason(&RealDisk, &dirs).unwrap().is_some());
}

#[test]
fn a_member_with_a_lost_log_mark_starts_only_with_force_new_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let config = restart::config(&folder);
    restart::create_used_directory(&config, &[]);
    check_marked(&config);
    let alone = Config { force_new_cluster: true, ..config.clone() };
    drop(boot_with(&alone, &real_disk(), &NoNames).unwrap());
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    assert_eq!(lost_log::reason(&RealDisk, &dirs).unwrap(), None);
    // The other members stay removed, even without `--force-new-cluster`.
    let booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
    assert_eq!((booted.state.applied().0, booted.node.commit_index()), (3, LogIndex(5)));
}

#[test]
fn the_lost_log_mark_survives_power_cuts_until_the_other_members_are_removed() {
    let original = tempfile::tempdir().unwrap();
    let config = restart::config(&original);
    power_cuts::prepare(&config);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    lost_log::mark(&RealDisk, &dirs, "the reason").unwrap();
    for stop in 0.. {
        let disk = FaultyDisk::new(original.path()).unwrap();
        disk.stop_at(stop);
        let alone = Config { force_new_cluster: true, ..restart::config(&original) };
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let is_done = boot_with(&alone, &shared, &NoNames).is_ok();
        for seed in 0..2 {
            let image = tempfile::tempdir().unwrap();
            disk.crash(seed, image.path()).unwrap();
            let config = restart::config(&image);
            let dirs = DataDir::new(Path::new(&config.data_dir), None);
            let is_marked = lost_log::reason(&RealDisk, &dirs).unwrap().is_some();
            let commit = log_of(&config).hard_state.commit;
            assert!(is_marked || commit == 7, "stop {stop}, seed {seed}: {commit}");
            assert!(!(is_done && is_marked), "stop {stop}, seed {seed}");
        }
        if is_done {
            return;
        }
    }
}

#[test]
fn a_member_marked_as_having_lost_its_log_does_not_start_without_a_usable_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { force_new_cluster: true, ..config(&folder) };
    DataDir::new(Path::new(&config.data_dir), None).prepare(&RealDisk).unwrap();
    check_marked(&config);
    begin_log(&config, 1, 5);
    check_marked(&config);
}

#[test]
fn an_impossibly_high_term_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let (start, options) = (SnapshotMark::default(), wal_options(&config));
    let (mut wal, _) = Wal::open(real_disk(), dirs.wal(), &start, options).unwrap();
    let term = (1 << 63) - 2;
    wal.save(Some(&wal::HardState { term, vote: 0, commit: 1 }), &[]).unwrap();
    drop(wal);
    let refused = refusal(&config);
    let expected =
        "the write-ahead log contains term 9223372036854775806, which is impossibly high";
    assert!(refused.starts_with(expected), "{refused}");
    assert!(refused.contains("etcdutl snapshot restore"), "{refused}");
}
