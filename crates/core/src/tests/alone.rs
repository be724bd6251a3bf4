//! Tests of a cluster of one member whose disk loses power, in each run at a different operation. Whichever unsynced
//! writes survive, the member must restart with everything that it had acknowledged.

use std::sync::Arc;

use quorate_raft::LogIndex;
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::State;
use quorate_state::backend::Backend;
use quorate_storage::disk::{Disk, FaultyDisk, RealDisk};
use quorate_storage::wal;

use super::member::{Input, Outcome, TURNS, Turn, bolt_options, small_segments, state_options};
use super::{Client, Folder, Member};

const WRITES: u64 = 24;

/// The maximum number of turns until the member is idle.
const TURNS_MAX: u64 = 100_000;

/// Makes this many writes and runs the machines in turns, until all writes are acknowledged and the member is idle.
fn run_workload(
    member: &mut Member,
    client: &mut Client,
    writes: u64,
    draw: &mut SplitMix64,
) -> Outcome {
    let until = client.asked + writes;
    let mut waiting = writes;
    for turn in 0.. {
        assert!(turn < TURNS_MAX, "the member is not idle after {TURNS_MAX} turns: {client:?}");
        if waiting > 0 && draw.below(4) == 0 {
            waiting -= 1;
            member.inputs.push_back(Input::Ask);
        }
        if draw.below(20) == 0 {
            member.inputs.push_back(Input::Read);
        }
        member.take_turn(TURNS[draw.position(TURNS.len())], client, draw)?;
        if client.acknowledged >= until && member.is_idle() {
            return Ok(());
        }
    }
    unreachable!("the loop asserts that it ends within TURNS_MAX turns")
}

/// Runs the machines in turns until all entries of the log are applied.
fn settle(member: &mut Member, client: &mut Client, draw: &mut SplitMix64) -> Outcome {
    for _ in 0..TURNS_MAX {
        member.take_turn(TURNS[draw.position(TURNS.len())], client, draw)?;
        if member.leads() && member.is_idle() {
            return Ok(());
        }
    }
    panic!("the member is not idle after {TURNS_MAX} turns: {client:?}");
}

fn begin(folder: &Folder, stop: Option<u64>) -> (FaultyDisk, Outcome<Member>) {
    let disk = FaultyDisk::new(folder.path()).unwrap();
    if let Some(stop) = stop {
        disk.stop_at(stop);
    }
    (disk.clone(), Member::start(1, folder, disk, small_segments()))
}

/// Founds a cluster of one member and runs the member until the power fails or the workload is done. Returns its
/// directory and disk, the client, and the index of the newest snapshot mark that the member must not lose.
fn run_until_power_cut(seed: u64, stop: Option<u64>) -> (Folder, FaultyDisk, Client, LogIndex) {
    let folder = Folder::new();
    folder.found(&[1], small_segments());
    let (mut client, mut draw) = (Client::default(), SplitMix64::new(seed));
    let (disk, started) = begin(&folder, stop);
    let Ok(mut member) = started else { return (folder, disk, client, LogIndex::ZERO) };
    let result = run_workload(&mut member, &mut client, WRITES, &mut draw);
    let mark = member.promised.mark;
    let ended = result.and_then(|()| {
        assert!(member.reads_done() > 0, "reads are answered");
        client.check(member.machine.state(), "at the end");
        member.stop(&mut client)
    });
    assert_eq!(ended.is_ok(), stop.is_none(), "{ended:?}");
    (folder, disk, client, mark)
}

/// Checks that, after a crash, the backend file contains a prefix of the log.
fn check_backend(folder: &Folder, client: &Client, what: &str) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut options = bolt_options();
    options.no_sync = true;
    let backend = Backend::open(&disk, &folder.dirs().backend(), options)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    client.check(&State::recover(&backend, state_options()).unwrap(), what);
}

#[test]
fn a_power_cut_at_any_operation_loses_no_acknowledged_write() {
    for seed in 0..2 {
        let (_folder, disk, client, mark) = run_until_power_cut(seed, None);
        assert!(mark > LogIndex::ZERO, "snapshots are taken");
        assert!(client.acknowledged == WRITES, "{client:?}");
        let total = disk.operation_count();
        assert!(total > 150, "{total}");
        for stop in (seed..total).step_by(2) {
            let (_folder, disk, client, mark) = run_until_power_cut(seed, Some(stop));
            for image_seed in [stop / 2 % 2, 1000 + stop] {
                let what = format!("seed {seed}, stop {stop} of {total}, image {image_seed}");
                restart_and_check(&disk, image_seed, client.clone(), mark, &what);
            }
        }
    }
}

/// Restarts the member from its disk after a power cut, and makes further writes.
fn restart_and_check(
    disk: &FaultyDisk,
    image_seed: u64,
    mut client: Client,
    mark: LogIndex,
    what: &str,
) {
    let folder = Folder::new();
    disk.crash(image_seed, folder.path()).unwrap();
    check_backend(&folder, &client, what);
    let marks = wal::snapshot_marks(&RealDisk, folder.dirs().wal()).unwrap();
    assert!(LogIndex(marks.last().unwrap().index) >= mark, "{what}: only {marks:?}");
    let (_, started) = begin(&folder, None);
    let mut member = started.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut draw = SplitMix64::new(image_seed);
    // The log may or may not contain unacknowledged writes.
    settle(&mut member, &mut client, &mut draw).unwrap();
    let written = client.check(member.machine.state(), what);
    assert!(written >= client.acknowledged, "{what}: {written} of {} writes", client.acknowledged);
    client.asked = written;
    run_workload(&mut member, &mut client, 5, &mut draw).unwrap();
    assert_eq!(client.check(member.machine.state(), what), written + 5);
    member.take_turn(Turn::Purge, &mut client, &mut draw).unwrap();
}
