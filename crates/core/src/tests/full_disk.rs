//! Tests of a member whose disk is full. The writer of the backend file waits for space, and the log keeps the changes
//! that the file lacks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_raft::{Entry, LogIndex, Term};
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::{Refusal, Request, Response, State};
use quorate_state::auth::View;
use quorate_state::backend::{Backend, Batch};
use quorate_state::schema::Bucket;
use quorate_state::units::{MemberId, Millis};
use quorate_storage::disk::{Disk, Fault, FaultyDisk, Operation, RealDisk};
use quorate_storage::wal;

use super::client::{compaction, proposal};
use super::member::{Input, TURNS, bolt_options, pace, state_options};
use super::order::{Files, image_at};
use super::{Client, Folder, Member};
use crate::{Begun, Job, Now, Order, Outlet, Output, Report, StateMachine, Then};

const NO_SPACE: i32 = 28;
const IO_ERROR: i32 = 5;

/// Returns options for segments that have space for all entries of these tests.
fn large_segments() -> wal::Options {
    wal::Options { segment_bytes: 4 << 20, ..wal::Options::default() }
}

struct Life {
    folder: Folder,
    disk: FaultyDisk,
    member: Member,
    client: Client,
    draw: SplitMix64,
}

impl Life {
    fn new() -> Self {
        let folder = Folder::new();
        folder.found(&[1], large_segments());
        let disk = FaultyDisk::new(folder.path()).unwrap();
        let member = Member::start(1, &folder, disk.clone(), large_segments()).unwrap();
        let (client, draw) = (Client::default(), SplitMix64::new(7));
        let mut life = Self { folder, disk, member, client, draw };
        life.run_until(Member::leads);
        life
    }

    fn run_until(&mut self, is_done: impl Fn(&Member) -> bool) {
        for _ in 0..50_000 {
            if is_done(&self.member) {
                return;
            }
            let turn = TURNS[self.draw.position(TURNS.len())];
            self.member.take_turn(turn, &mut self.client, &mut self.draw).unwrap();
        }
        panic!("the condition was not met within 50000 turns");
    }

    fn write(&mut self, count: u64) {
        let until = self.client.acknowledged + count;
        (0..count).for_each(|_| self.member.inputs.push_back(Input::Ask));
        for _ in 0..50_000 {
            if self.client.acknowledged >= until {
                return;
            }
            let turn = TURNS[self.draw.position(TURNS.len())];
            self.member.take_turn(turn, &mut self.client, &mut self.draw).unwrap();
        }
        panic!("a full disk delayed a write for which the log had space");
    }
}

/// Returns the index of the last entry in the backend file.
fn committed(member: &Member) -> LogIndex {
    LogIndex(member.writer.backend().read().consistent_index().unwrap().0)
}

#[test]
fn a_full_disk_delays_backend_commits_but_not_client_writes() {
    let mut life = Life::new();
    life.write(6);
    life.disk.limit_growth(Some(0));
    life.write(20);
    life.run_until(|member| member.writer.lacks_space() && member.outputs.alarms > 0);
    let stuck_at = committed(&life.member);
    life.write(5);
    assert_eq!(committed(&life.member), stuck_at);
    assert_eq!(life.member.outputs.alarms, 1, "the alarm is requested once");
    // After a power cut, the member restarts with all entries, because the log still contains them.
    let folder = Folder::new();
    life.disk.crash(0, folder.path()).unwrap();
    let disk = FaultyDisk::new(folder.path()).unwrap();
    let member = Member::start(1, &folder, disk.clone(), large_segments()).unwrap();
    let client = life.client.clone();
    let mut other = Life { folder, disk, member, client, draw: SplitMix64::new(8) };
    other.run_until(|member| member.leads() && member.is_idle());
    assert_eq!(other.client.check(other.member.machine.state(), "after the power cut"), 31);
    // Once there is free space again, the backend file catches up and writes continue.
    life.disk.limit_growth(None);
    life.run_until(|member| committed(member) == member.applied() && member.is_idle());
    assert!(!life.member.writer.lacks_space());
    life.write(3);
    assert_eq!(
        life.client.check(life.member.machine.state(), "after the disk has space again"),
        34
    );
}

#[test]
fn a_snapshot_waits_for_disk_space() {
    let mut life = Life::new();
    let fault = Fault { fail_count: 3, ..Fault::nth(Operation::Write, 0, NO_SPACE).on(".snap") };
    life.disk.inject(fault);
    life.write(20);
    life.run_until(|member| member.writer.lacks_space());
    assert_eq!(life.member.promised.mark, LogIndex::ZERO);
    let snaps = || life.disk.read_dir(&life.folder.dirs().snap()).unwrap().len();
    assert_eq!(snaps(), 1, "the folder contains only the backend file");
    life.run_until(|member| member.promised.mark > LogIndex::ZERO);
    assert!(!life.member.writer.lacks_space());
}

#[test]
fn backend_file_errors_stop_the_member_unless_an_allocation_finds_the_disk_full() {
    for (operation, errno) in
        [(Operation::Sync, NO_SPACE), (Operation::Write, NO_SPACE), (Operation::Allocate, IO_ERROR)]
    {
        let mut life = Life::new();
        life.disk.inject(Fault::nth(operation, 0, errno).on("snap/db"));
        (0..20).for_each(|_| life.member.inputs.push_back(Input::Ask));
        let failed = (0..50_000).find_map(|_| {
            let turn = TURNS[life.draw.position(TURNS.len())];
            life.member.take_turn(turn, &mut life.client, &mut life.draw).err()
        });
        assert!(failed.is_some(), "{operation:?} {errno}");
    }
}

#[test]
fn shutdown_does_not_wait_for_disk_space() {
    let mut life = Life::new();
    life.disk.limit_growth(Some(0));
    life.write(20);
    life.run_until(|member| member.writer.lacks_space());
    let writer = &mut life.member.writer;
    writer.give_up();
    assert!(writer.step().unwrap().is_none());
    for order in [Order::Commit { batch: Batch::new(), then: Vec::new() }, Order::Stop] {
        writer.take(order, Instant::now());
    }
    assert!(matches!(writer.step().unwrap(), Some(Report::Ended)));
}

/// Returns an order to write a batch that advances the file to `index`, and to report the commit.
fn large_batch(index: u64) -> Order<(), ()> {
    let mut batch = Batch::new();
    batch.put(Bucket::Lease, index.to_be_bytes().to_vec(), vec![7; 200_000]);
    batch.set_consistent_index(index, 2);
    Order::Commit { batch, then: vec![Then::Complete(())] }
}

#[test]
fn a_leaders_snapshot_replaces_batches_that_wait_for_disk_space() {
    let mut files = Files::new();
    files.receive(20, &image_at(20));
    files.receive(40, &image_at(40));
    files.faulty.limit_growth(Some(0));
    files.writer.take(large_batch(10), Instant::now());
    assert!(matches!(files.writer.step().unwrap(), Some(Report::NoRoom(_))));
    assert!(files.writer.supersede(LogIndex(40)).unwrap());
    let is_dropped = |files: &mut Files| {
        matches!(files.writer.step().unwrap(), Some(Report::Superseded))
            && files.writer.step().unwrap().is_none()
    };
    assert!(is_dropped(&mut files), "the batch is dropped, and the caller waits for the image");
    assert!(!files.writer.lacks_space());
    // There is space again, but an earlier batch was dropped, so these batches must not be written.
    files.faulty.limit_growth(None);
    for index in [15, 30] {
        files.writer.take(large_batch(index), Instant::now());
        assert!(is_dropped(&mut files));
        assert!(files.applied() <= 20, "{index}");
        if index == 15 {
            files
                .writer
                .take(Order::Install { index: LogIndex(20), completion: () }, Instant::now());
            assert!(matches!(files.writer.step().unwrap(), Some(Report::Installed { .. })));
            assert!(files.writer.step().unwrap().is_none());
            assert_eq!(files.applied(), 20);
        }
    }
    files.writer.take(Order::Install { index: LogIndex(40), completion: () }, Instant::now());
    assert!(matches!(files.writer.step().unwrap(), Some(Report::Installed { .. })));
    assert!(matches!(files.writer.step().unwrap(), Some(Report::RoomAgain)));
    for _ in 0..3 {
        assert!(matches!(files.writer.step().unwrap(), Some(Report::Complete(()))));
    }
    assert!(files.writer.step().unwrap().is_none());
    files.writer.take(large_batch(50), Instant::now());
    assert!(matches!(files.writer.step().unwrap(), Some(Report::Committed { .. })));
    assert_eq!(files.applied(), 50, "batches after the snapshot are written");
}

#[test]
fn waiting_batches_survive_a_snapshot_already_contained_in_the_file() {
    let mut files = Files::new();
    files.writer.take(large_batch(10), Instant::now());
    while files.writer.step().unwrap().is_some() {}
    files.faulty.limit_growth(Some(0));
    files.writer.take(large_batch(20), Instant::now());
    assert!(matches!(files.writer.step().unwrap(), Some(Report::NoRoom(_))));
    assert!(!files.writer.supersede(LogIndex(10)).unwrap());
    files.faulty.limit_growth(None);
    while files.writer.step().unwrap().is_some() {}
    assert_eq!(files.applied(), 20);
}

/// An outlet whose backend accepts no batch while `is_behind` is set, so that handing over a batch would block.
struct Stuck {
    is_behind: bool,
    published: LogIndex,
    completions: Vec<u64>,
    /// The revision of the compaction whose view was hashed on acceptance.
    hashed: Option<i64>,
}

impl Outlet for Stuck {
    type Ticket = ();
    type Completion = u64;

    fn begin(&mut self, _: &Request, _: &View) -> Begun<()> {
        Begun { ticket: (), reply_wanted: true, kind: "request" }
    }

    fn finish(&mut self, (): (), _: &Entry, outcome: Option<Result<Response, Refusal>>) {
        assert!(matches!(outcome, Some(Ok(_))), "every request is valid");
    }

    fn leads_in(&self, _: Term) -> bool {
        true
    }

    fn is_backend_behind(&self) -> bool {
        self.is_behind
    }

    fn put(&mut self, output: Output<u64>) {
        match output {
            Output::Commit { then, .. } => {
                assert!(!self.is_behind, "no caller may wait for the backend");
                self.completions.extend(then.into_iter().filter_map(|then| match then {
                    Then::Complete(completion) => Some(completion),
                    Then::Snapshot(_) | Then::Send(_) | Then::Compacted(_) => None,
                }));
            }
            Output::Published { index, .. } => self.published = index,
            Output::CompactionAccepted { compaction, view } => {
                let hash = view.hash_compaction(&compaction).unwrap();
                self.hashed = hash.map(|hash| hash.hash_revision);
            }
            other => panic!("unexpected output: {other:?}"),
        }
    }
}

#[test]
fn entries_are_applied_while_compactions_and_commits_wait_for_disk_space() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, &folder.path().join("db"), bolt_options()).unwrap();
    let state = State::recover(&backend, state_options()).unwrap();
    let start = Instant::now();
    let mut machine = StateMachine::new(state, backend, MemberId(1), pace(), start);
    let mut outlet =
        Stuck { is_behind: true, published: LogIndex::ZERO, completions: Vec::new(), hashed: None };
    let asked = (1..=5).map(proposal).chain([compaction(5)]);
    let entry =
        |(index, data)| Entry { term: Term(1), index: LogIndex(index), data, ..Entry::default() };
    let entries: Vec<Entry> = (1..).zip(asked.map(|one| one.data)).map(entry).collect();
    let last = entries.last().unwrap().index;
    let mut at = Now { instant: start, millis: Millis(0) };
    for job in [Job::Apply(entries), Job::Commit(7), Job::AwaitCompactions(8)] {
        machine.take(job, at, &mut outlet).unwrap();
        machine.hand_over_if_due(at.instant, &mut outlet);
    }
    assert_eq!(
        (outlet.published, &*outlet.completions),
        (last, &[][..]),
        "entries are applied before they are in the backend file"
    );
    assert_eq!(machine.compact(at.instant, &mut outlet), None);
    assert!(
        machine.wake_at().is_some_and(|wake_at| wake_at > at.instant),
        "the apply thread sleeps between two attempts to compact"
    );
    outlet.is_behind = false;
    while outlet.completions.len() < 2 {
        at.instant = machine.wake_at().expect("a compaction or a commit is still pending")
            + Duration::from_millis(1);
        machine.compact(at.instant, &mut outlet);
        machine.hand_over_if_due(at.instant, &mut outlet);
    }
    outlet.completions.sort_unstable();
    assert_eq!(outlet.completions, [7, 8]);
    assert_eq!(outlet.hashed, Some(2), "the compaction is hashed before its records are removed");
}
