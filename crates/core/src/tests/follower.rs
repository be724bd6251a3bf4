//! Tests of a follower that receives entries from a leader and, after a long disconnection, snapshots. The follower's
//! disk loses power, in each run at a different operation. Whichever unsynced writes survive, the follower must keep
//! everything that it had acknowledged, and catch up.

use quorate_raft::{ConfChangeKind, LogIndex, Term};
use quorate_storage::disk::{FaultyDisk, RealDisk};
use quorate_storage::wal;

use super::Folder;
use super::cluster::{COUNT, Cluster, PowerCut, VICTIM};
use super::member::Promised;

/// Makes writes. Then disconnects the follower twice while a membership change and further writes are made, and each
/// time reconnects the follower and waits until it has caught up.
fn run_workload(cluster: &mut Cluster) -> Result<(), PowerCut> {
    cluster.elect()?;
    cluster.write(6)?;
    cluster.settle()?;
    for kind in [ConfChangeKind::AddLearnerNode, ConfChangeKind::RemoveNode] {
        cluster.is_cut_off = true;
        cluster.change_members(kind);
        cluster.write(12)?;
        cluster.settle()?;
        cluster.is_cut_off = false;
        cluster.write(4)?;
        cluster.settle()?;
    }
    Ok(())
}

fn check(cluster: &mut Cluster, what: &str) {
    for at in 0..COUNT {
        let client = cluster.client.clone();
        let written = client.check(cluster.member(at).machine.state(), what);
        assert!(written >= client.acknowledged, "{what}: member {at} lost writes");
    }
}

#[test]
fn a_power_cut_at_any_operation_loses_no_entry_acknowledged_by_a_follower() {
    for seed in 0..2 {
        let (mut cluster, disk, started) = Cluster::found(seed, None);
        started.and_then(|()| run_workload(&mut cluster)).unwrap();
        check(&mut cluster, "without a power cut");
        assert!(cluster.snapshots >= 2, "{}", cluster.snapshots);
        let total = disk.operation_count();
        assert!(total > 100, "{total}");
        for stop in (seed..total).step_by(3) {
            let (mut cluster, disk, started) = Cluster::found(seed, Some(stop));
            let result = started.and_then(|()| run_workload(&mut cluster));
            assert!(result.is_err(), "the power fails at {stop}");
            let image = [0, 1, stop][usize::try_from(stop / 3 % 3).unwrap()];
            let what = format!("seed {seed}, stop {stop} of {total}, image {image}");
            restart_and_check(&mut cluster, &disk, image, &what);
        }
    }
}

/// Restarts the follower from its disk after a power cut, and waits until it has caught up with the other members,
/// which have continued without it.
fn restart_and_check(cluster: &mut Cluster, disk: &FaultyDisk, image: u64, what: &str) {
    let promised = cluster.take_victim().map_or_else(Promised::default, |victim| victim.promised);
    let folder = Folder::new();
    disk.crash(image, folder.path()).unwrap();
    let marks = wal::snapshot_marks(&RealDisk, folder.dirs().wal()).unwrap();
    let mark = marks.last().unwrap();
    assert!(LogIndex(mark.index) >= promised.mark, "{what}: {mark:?}, despite {promised:?}");
    let contents = wal::read(&RealDisk, folder.dirs().wal(), mark).unwrap();
    let last = LogIndex(contents.entries.last().map_or(mark.index, |last| last.index));
    assert!(last >= promised.log, "{what}: the log ends at {last}, despite {promised:?}");
    assert!(Term(contents.hard_state.term) >= promised.term, "{what}: lower term, {promised:?}");
    cluster.bring_back(folder, what);
    let client = cluster.client.clone();
    client.check(cluster.member(VICTIM).machine.state(), what);
    cluster.is_cut_off = false;
    let went_on = cluster.elect().and_then(|()| cluster.write(3)).and_then(|()| cluster.settle());
    went_on.unwrap();
    check(cluster, what);
}
