//! Members that come to life from what is on the disk.

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
