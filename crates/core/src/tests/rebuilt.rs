//! Tests of a follower with a corrupt backend file, which takes over another member's state and keeps its own log. The
//! follower's disk loses power during the takeover, in each run at a different operation. A second attempt must then
//! install the state, and the follower must have kept everything that it had acknowledged, and catch up.

use std::sync::Arc;

use quorate_raft::{LogIndex, Term};
use quorate_state::apply::State;
use quorate_state::backend::Backend;
use quorate_storage::disk::{Disk, FaultyDisk, RealDisk};
use quorate_storage::snap::IncomingDatabase;
use quorate_storage::wal;

use super::Folder;
use super::cluster::{Cluster, LEADER, VICTIM};
use super::member::{Outcome, Promised, bolt_options, small_segments, state_options};
use crate::SnapshotOrder;
use crate::start;

/// The writes that the follower missed while it was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missed {
    Nothing,
    Writes,
}

/// Returns a cluster whose follower has stopped, the follower's promises, and its directory with an unreadable backend
/// file.
fn stopped(missed: Missed) -> (Cluster, Promised, Folder) {
    let (mut cluster, disk, started) = Cluster::found(7, None);
    started.and_then(|()| cluster.elect()).unwrap();
    cluster.write(12).and_then(|()| cluster.settle()).unwrap();
    if missed == Missed::Writes {
        cluster.is_cut_off = true;
        cluster.write(12).and_then(|()| cluster.settle()).unwrap();
    }
    let promised = cluster.take_victim().unwrap().promised;
    let folder = Folder::new();
    disk.crash(0, folder.path()).unwrap();
    std::fs::write(folder.dirs().backend(), vec![0xff; 40_000]).unwrap();
    (cluster, promised, folder)
}

/// Replaces the directory's backend file with another member's backend file.
fn take_over(disk: &Arc<dyn Disk>, folder: &Folder, image: &[u8]) -> Outcome<LogIndex> {
    let dirs = folder.dirs();
    let marks = wal::snapshot_marks(&**disk, dirs.wal())?;
    let mark = marks.last().cloned().unwrap_or_default();
    let (wal, contents) = start::open_log(disk, &dirs, &mark, small_segments())?;
    quorate_storage::snap::clean_up(&**disk, &dirs.snap())?;
    let mut file = IncomingDatabase::create(Arc::clone(disk), &dirs.snap(), 0)?;
    file.write(image)?;
    let order = {
        let backend = Backend::open(disk, file.path(), bolt_options())?;
        let state = State::recover(&backend, state_options())?;
        let (index, term) = state.applied();
        SnapshotOrder::new(LogIndex(index), Term(term), state.members(), state.versions())
    };
    let index = order.index();
    file.finish(index.get())?;
    start::take_over(disk, &dirs, (wal, &contents, &mark), order)?;
    Ok(index)
}

/// Starts the follower, checks that it has kept its promises, and waits until it has caught up with the other members.
fn restart_and_check(
    mut cluster: Cluster,
    promised: Promised,
    folder: Folder,
    index: LogIndex,
    what: &str,
) {
    let marks = wal::snapshot_marks(&RealDisk, folder.dirs().wal()).unwrap();
    let mark = marks.last().cloned().unwrap_or_default();
    let contents = wal::read(&RealDisk, folder.dirs().wal(), &mark).unwrap();
    let last = LogIndex(contents.entries.last().map_or(mark.index, |last| last.index));
    assert!(
        last >= promised.log.max(index),
        "{what}: the log ends at {last}, despite {promised:?}"
    );
    assert!(Term(contents.hard_state.term) >= promised.term, "{what}: lower term, {promised:?}");
    cluster.bring_back(folder, what);
    assert!(LogIndex(cluster.member(VICTIM).machine.state().applied().0) >= index, "{what}");
    cluster.is_cut_off = false;
    let went_on = cluster.elect().and_then(|()| cluster.write(3)).and_then(|()| cluster.settle());
    went_on.unwrap();
    let client = cluster.client.clone();
    let written = client.check(cluster.member(VICTIM).machine.state(), what);
    assert!(written >= client.acknowledged, "{what}");
}

#[test]
fn a_rebuild_succeeds_on_retry_after_a_power_cut_at_any_operation() {
    for missed in [Missed::Nothing, Missed::Writes] {
        let (cluster, promised, folder) = stopped(missed);
        let image = cluster.backend_file(LEADER);
        let disk = FaultyDisk::new(folder.path()).unwrap();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let index = take_over(&shared, &folder, &image).unwrap();
        let is_behind = index > promised.log;
        assert_eq!(is_behind, missed == Missed::Writes, "{index}, {promised:?}");
        let total = disk.operation_count();
        assert!(total > 10, "{total}");
        drop(shared);
        let after = Folder::new();
        disk.crash(1, after.path()).unwrap();
        restart_and_check(
            cluster,
            promised,
            after,
            index,
            &format!("{missed:?}, without a power cut"),
        );
        for stop in (missed as u64..total).step_by(2) {
            let what = format!("{missed:?}, stop {stop} of {total}");
            let (cluster, promised, folder) = stopped(missed);
            let image = cluster.backend_file(LEADER);
            let disk = FaultyDisk::new(folder.path()).unwrap();
            disk.stop_at(stop);
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            assert!(take_over(&shared, &folder, &image).is_err(), "{what}");
            let after = Folder::new();
            disk.crash(stop % 3, after.path()).unwrap();
            let real: Arc<dyn Disk> = Arc::new(RealDisk);
            let index = take_over(&real, &after, &image).unwrap_or_else(|e| panic!("{what}: {e}"));
            restart_and_check(cluster, promised, after, index, &what);
        }
    }
}
