//! Tests of power cuts while a member takes a snapshot of its own and receives two snapshots from a leader, the second
//! before the first is installed. After a power cut at any operation, the member must start with everything that it has
//! acknowledged.

use std::error::Error;
use std::path::PathBuf;

use quorate_core::{BackendWriter, Log, Order, Purger, Report, SnapshotOrder, Then};
use quorate_node::Persist;
use quorate_raft::{HardState, Term};
use quorate_state::backend::Batch;
use quorate_storage::disk::FaultyDisk;
use quorate_storage::snap::{IncomingDatabase, database_path};

use super::restart::{config, create_used_directory};
use super::*;

/// Index of the last entry in the member's own state. This index is beyond the commit index in the member's log.
const OWN: u64 = 5;
/// The indexes of the leader's snapshots.
const FIRST: u64 = 20;
const SECOND: u64 = 40;

/// Options for segments that contain only a few entries.
fn small_segments() -> wal::Options {
    wal::Options {
        segment_bytes: 1000,
        zero_lead_bytes: 0,
        zero_step_bytes: 0,
        ..Default::default()
    }
}

/// Creates a member as [`create_used_directory`] does, but with its whole log applied and with the smallest possible
/// files.
pub(super) fn prepare(config: &Config) {
    create_used_directory(config, &[]);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let contents = log_of(config);
    assert_eq!((contents.hard_state.commit, contents.last_index), (3, OWN));
    std::fs::remove_dir_all(dirs.wal()).unwrap();
    let metadata = contents.metadata.unwrap();
    let mut wal = Wal::create(real_disk(), dirs.wal(), metadata, small_segments()).unwrap();
    wal.save(Some(&contents.hard_state), &contents.entries).unwrap();
    wal.close().unwrap();
    let image = image_at(config, OWN);
    std::fs::write(dirs.backend(), image).unwrap();
}

/// Returns the member's state after applying the log up to `index`.
fn image_at(config: &Config, index: u64) -> Vec<u8> {
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("db");
    std::fs::copy(dirs.backend(), &copy).unwrap();
    let backend = Backend::open(&real_disk(), &copy, bolt::Options::default()).unwrap();
    let mut state = State::recover(&backend, state_options(config)).unwrap();
    state.batch_mut().set_consistent_index(index, 2);
    backend.commit(&state.take_batch()).unwrap();
    let len = usize::try_from(backend.db().read().image_len()).unwrap();
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes.truncate(len);
    bytes
}

/// The indexes that were acknowledged before the power cut.
#[derive(Debug, Default)]
struct Promised {
    /// The index of the last entry in the log or in a snapshot.
    log: u64,
    /// The index of the newest valid snapshot mark.
    mark: u64,
}

struct Life<'a> {
    disk: &'a Arc<dyn Disk>,
    snap_dir: PathBuf,
    log: Log,
    purger: Purger,
    promised: &'a mut Promised,
}

impl Life<'_> {
    /// Removes obsolete files, as the purging thread may do at any time.
    fn purge(&self) {
        drop(self.purger.run(|_| ()));
    }

    /// Receives the image of a leader's snapshot that the core has accepted.
    fn take_in(&mut self, order: SnapshotOrder, image: &[u8]) -> Result<(), Box<dyn Error>> {
        let snapshot = order.into_raft();
        let commit = snapshot.metadata.index;
        let index = commit.get();
        let mut file = IncomingDatabase::create(Arc::clone(self.disk), &self.snap_dir, index)?;
        file.write(image)?;
        file.finish(index)?;
        let hard_state = Some(HardState { term: Term(2), vote: 0, commit });
        let persist =
            Persist { token: index, snapshot: Some(snapshot), hard_state, ..Persist::default() };
        self.log.append(&persist)?;
        self.purge();
        self.log.sync()?;
        *self.promised = Promised { log: index, mark: index };
        self.purge();
        Ok(())
    }
}

fn run_until_power_cut(
    config: &Config,
    disk: &Arc<dyn Disk>,
    images: &[Vec<u8>; 2],
    promised: &mut Promised,
) -> Result<(), Box<dyn Error>> {
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let snap_dir = dirs.snap();
    let backend = open_backend(config, disk, &dirs)?;
    let state = State::recover(&backend, state_options(config))?;
    let order = |index| SnapshotOrder::new(index, Term(2), state.members(), state.versions());
    let start = SnapshotMark::default();
    let (mut wal, _) = Wal::open(Arc::clone(disk), dirs.wal(), &start, small_segments())?;
    // Fills segments that the snapshots make obsolete.
    for index in OWN + 1..OWN + 4 {
        let entry = wal::Entry { index, term: 2, kind: 0, data: vec![7; 800].into() };
        wal.save(None, &[entry])?;
    }
    promised.log = OWN;
    let purger = Purger {
        disk: Arc::clone(disk),
        snap_dir: snap_dir.clone(),
        wal_dir: dirs.wal().to_path_buf(),
        snapshots_max: 1,
        segments_max: 1,
    };
    let log = Log::new(wal, Arc::clone(disk), snap_dir.clone());
    let mut life = Life { disk, snap_dir: snap_dir.clone(), log, purger, promised };

    let mut writer: BackendWriter<(), ()> =
        BackendWriter::new(backend, Arc::clone(disk), snap_dir.clone());
    let then = vec![Then::Snapshot(order(LogIndex(OWN)))];
    writer.take(Order::Commit { batch: Batch::new(), then }, Instant::now());
    let Some(Report::SnapshotSaved(mark)) = writer.step()? else {
        panic!("no snapshot mark was reported")
    };
    life.log.mark(&mark)?;
    life.promised.mark = OWN;
    life.purge();

    life.take_in(order(LogIndex(FIRST)), &images[0])?;
    life.take_in(order(LogIndex(SECOND)), &images[1])?;
    let first = disk.metadata(&database_path(&snap_dir, FIRST))?;
    assert!(first.is_some(), "the first snapshot is not installed yet");
    for index in [FIRST, SECOND] {
        writer.take(Order::Install { index: LogIndex(index), completion: () }, Instant::now());
        writer.step()?;
        life.purge();
    }
    life.log.close(None)?;
    Ok(())
}

#[test]
fn a_member_starts_after_a_power_cut_while_it_takes_or_receives_a_snapshot() {
    let original = tempfile::tempdir().unwrap();
    prepare(&config(&original));
    let images = [FIRST, SECOND].map(|index| image_at(&config(&original), index));
    let run = |stop: Option<u64>| {
        let disk = FaultyDisk::new(original.path()).unwrap();
        if let Some(stop) = stop {
            disk.stop_at(stop);
        }
        let mut promised = Promised::default();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let ended = run_until_power_cut(&config(&original), &shared, &images, &mut promised);
        assert!(ended.is_err() == stop.is_some(), "{ended:?}");
        (disk, promised)
    };
    let (disk, promised) = run(None);
    assert_eq!(promised.mark, SECOND);
    let total = disk.operation_count();
    assert!(total > 50, "{total}");
    for stop in 0..total {
        let (disk, promised) = run(Some(stop));
        for seed in 0..4 {
            let what = format!("stop {stop} of {total}, seed {seed}, {promised:?}");
            let image = tempfile::tempdir().unwrap();
            disk.crash(seed * 1000 + if seed > 1 { stop } else { 0 }, image.path()).unwrap();
            let config = config(&image);
            let booted = boot_with(&config, &real_disk(), &NoNames);
            let booted = booted.unwrap_or_else(|e| panic!("{what}: {}", log::error_chain(&e)));
            let applied = booted.state.applied().0;
            assert!([OWN, FIRST, SECOND].contains(&applied), "{what}: {applied}");
            assert!(applied >= promised.mark, "{what}: {applied}");
            let dirs = DataDir::new(Path::new(&config.data_dir), None);
            let marks = wal::snapshot_marks(&RealDisk, dirs.wal()).unwrap();
            assert!(marks.last().unwrap().index >= promised.mark, "{what}: {marks:?}");
            let contents = wal::read(&RealDisk, dirs.wal(), marks.last().unwrap()).unwrap();
            assert!(contents.last_index >= promised.log, "{what}: {}", contents.last_index);
        }
    }
}
