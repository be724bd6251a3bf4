//! Tests of the thread that processes a proposal while this member is the only voter.

use std::path::Path;
use std::thread::JoinHandle;

use bytes::Bytes;
use quorate_core::Log as CoreLog;
use quorate_node::{COMMIT_NOTICE_INTERVAL, Config, Proposal, SnapshotPolicy};
use quorate_peer::{Dialer, Parts};
use quorate_raft::{ConfState, HardState, LogIndex, NONE, Term};
use quorate_storage::disk::{Disk, Fault, FaultyDisk, IO_ERROR, Operation};
use quorate_storage::wal::{self, Wal};
use quorate_telemetry::metrics::MetricsLevel;

use super::*;
use crate::threads::batch_queue::Receiver;
use crate::threads::channels::ProcessedBy;
use crate::threads::fatal::End;
use crate::threads::reports::Reports;

/// Timeout for something that should happen immediately.
const DEADLINE: Duration = Duration::from_secs(20);

/// The driver of a single voter, on its own thread, which sleeps unless it is woken. The applier does not run.
struct Fixture {
    disk: FaultyDisk,
    shared: Arc<SharedDriver>,
    handle: DriverHandle,
    jobs: Receiver<Job>,
    faults: FaultReports,
    last_request: u64,
    thread: JoinHandle<()>,
    _runtime: tokio::runtime::Runtime,
}

fn node() -> Node {
    let conf_state = ConfState { voters: vec![1], ..ConfState::default() };
    let config = Config {
        id: 1,
        election_ticks: 10,
        pre_vote: false,
        initial_tick_advance: true,
        seed: 1,
        first_read_request_id: 1,
        proposal_ticks_max: 70,
        fences_stalled_disk: true,
        checks_reconfigurations: true,
        snapshot_policy: SnapshotPolicy::default(),
        flow_limits: quorate_node::FlowLimits::default(),
        hard_state: HardState::default(),
        conf_state,
        snapshot_index: LogIndex(0),
        snapshot_term: Term(0),
        entries: Vec::new(),
        applied: LogIndex(0),
    };
    Node::new(config).unwrap()
}

impl Fixture {
    fn start() -> Self {
        let disk = FaultyDisk::default();
        let files: Arc<dyn Disk> = Arc::new(disk.clone());
        let dir = Path::new("/data");
        files.create_dir_all(dir, 0o700).unwrap();
        let options = wal::Options { segment_bytes: 1 << 20, ..wal::Options::default() };
        let wal = Wal::create(Arc::clone(&files), &dir.join("wal"), Bytes::new(), options).unwrap();
        let metrics = Arc::new(Metrics::new(&[], MetricsLevel::Basic));
        let log = CoreLog::new(wal, Arc::clone(&files), dir.join("snap"));
        let writer = LogWriter::new(log, Arc::clone(&metrics), Arc::default());
        let (handle, inputs) = DriverHandle::channel();
        let (applier, jobs) = ApplierHandle::channel();
        let (faults, clock) = (FaultReports::new(), Clock::start());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let peers = Peers::new(Parts {
            member_id: 1,
            cluster_id: 1,
            peer_urls: Vec::new(),
            server_version: quorate_version::ETCD_VERSION.to_owned(),
            shared_settings: Vec::new(),
            announced_settings: Vec::new(),
            dialer: Dialer::default(),
            election_timeout: DEADLINE,
            read_timeout: DEADLINE,
            write_timeout: DEADLINE,
            consensus: Arc::new(Reports { driver: handle.clone(), faults: faults.clone() }),
            disk: files,
            snap_dir: dir.join("snap"),
            metrics: Arc::clone(&metrics),
            runtime: runtime.handle().clone(),
        });
        let neighbours = Neighbours {
            peers,
            applier,
            snapshots: SnapshotNotice::default(),
            pending: Arc::default(),
            member_status: Arc::new(MemberStatus::new(LogIndex(0), Term(0), clock)),
            faults: faults.clone(),
            metrics,
            clock,
        };
        // Ticks are so rare that none comes during a test.
        let heartbeat = Duration::from_secs(3_600);
        let intervals = Intervals {
            tick: heartbeat,
            election_timeout: 10 * heartbeat,
            commit_notice: COMMIT_NOTICE_INTERVAL,
        };
        let driver = Driver::new(node(), writer, handle.clone(), neighbours, intervals);
        let shared = SharedDriver::new(driver, inputs);
        let run = Arc::clone(&shared);
        let thread = std::thread::spawn(move || run.run());
        let fixture =
            Self { disk, shared, handle, jobs, faults, last_request: 0, thread, _runtime: runtime };
        fixture.await_entry(|data| data.is_empty());
        fixture
    }

    fn propose(&mut self, by: ProcessedBy) -> Bytes {
        self.last_request += 1;
        let data = Bytes::from(self.last_request.to_be_bytes().to_vec());
        let proposal = Proposal { request_id: self.last_request, data: data.clone() };
        self.handle.request(Input::Propose(proposal, Instant::now()), by).unwrap();
        data
    }

    /// Returns the data of the entries that are queued for the applier.
    fn committed(&self) -> Vec<Bytes> {
        let mut jobs = Vec::new();
        self.jobs.take(&mut jobs);
        let entries = jobs.into_iter().flat_map(|job| match job {
            Job::Apply(entries) => entries,
            _ => Vec::new(),
        });
        entries.map(|entry| entry.data).collect()
    }

    /// Waits until an entry is committed, and the driver's thread has released the driver.
    fn await_entry(&self, is_wanted: impl Fn(&Bytes) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !self.committed().iter().any(&is_wanted) {
            assert_eq!(self.jobs.wait(Some(deadline)), Ok(()), "the entry is not committed");
        }
        drop(self.shared.driver.lock());
    }

    /// Writes entries until the recent syncs were quick.
    fn become_quick(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while !self.shared.driver.lock().as_ref().unwrap().may_sync_inline() {
            assert!(Instant::now() < deadline, "no 16 quick syncs in a row");
            let data = self.propose(ProcessedBy::Caller);
            self.await_entry(|other| *other == data);
        }
    }

    fn stop(self) {
        self.handle.report(Input::CloseLog);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_thread_that_may_sync_has_committed_its_proposal_when_the_request_returns() {
    let mut fixture = Fixture::start();
    fixture.become_quick();
    let data = fixture.propose(ProcessedBy::CallerWithSync);
    assert_eq!(fixture.committed(), [data]);
    fixture.stop();
}

#[test]
fn a_thread_that_may_not_sync_leaves_its_proposal_to_the_thread_of_the_driver() {
    let mut fixture = Fixture::start();
    fixture.become_quick();
    // While the driver is locked, its thread cannot process the proposal, and no other thread may wait for it.
    let shared = Arc::clone(&fixture.shared);
    let running = shared.driver.lock();
    let data = fixture.propose(ProcessedBy::CallerWithSync);
    assert!(fixture.committed().is_empty());
    drop(running);
    fixture.await_entry(|other| *other == data);
    fixture.stop();
}

#[test]
fn a_failed_sync_on_another_thread_commits_nothing_and_ends_the_driver() {
    let mut fixture = Fixture::start();
    fixture.become_quick();
    fixture.disk.inject(Fault::nth(Operation::Sync, 0, IO_ERROR).on("wal"));
    fixture.propose(ProcessedBy::CallerWithSync);
    assert!(fixture.committed().is_empty());
    let Some(End::Fault(fault)) = fixture.faults.so_far() else { panic!("no fault is reported") };
    assert_eq!(fault.task, "writing the write-ahead log");
    fixture.thread.join().unwrap();
}

#[test]
fn a_leader_that_is_lost_and_elected_again_is_counted_twice() {
    let fixture = Fixture::start();
    let mut driver = fixture.shared.driver.lock();
    let driver_now = driver.as_mut().unwrap();
    let counter = &driver_now.neighbours.metrics.clone().server.leader_changes_seen;
    let before = counter.value();
    for (leader, term, count) in [(2, 2, 1), (NONE, 2, 1), (2, 3, 2), (NONE, 4, 2), (3, 4, 3)] {
        let role = Role::Follower;
        driver_now.change_leadership(Leadership { leader, term: Term(term), role });
        assert_eq!(counter.value() - before, count, "leader {leader:x} at term {term}");
    }
    drop(driver);
    fixture.stop();
}

#[test]
fn the_state_of_consensus_is_read_without_waiting_for_the_driver() {
    let mut fixture = Fixture::start();
    let data = fixture.propose(ProcessedBy::DriverThread);
    fixture.await_entry(|other| *other == data);
    // The driver is locked, as it is while it waits for the disk.
    let mut driver = fixture.shared.driver.lock();
    let member_status = Arc::clone(&driver.as_ref().unwrap().neighbours.member_status);
    let consensus = || quorate_requests::Status::consensus(&*member_status);
    let elected = consensus();
    assert_eq!((elected.term, elected.vote, elected.leader), (1, 1, 1));
    assert_eq!(elected.role, "StateLeader");
    assert_eq!(elected.committed, member_status.committed().get());
    // The progress of the members is published with each tick.
    driver.as_mut().unwrap().note_ticks(Duration::ZERO);
    let status = consensus();
    assert_eq!(status.progress.len(), 1);
    assert_eq!(status.progress[0].match_index, status.committed);
    drop(driver);
    fixture.stop();
}
