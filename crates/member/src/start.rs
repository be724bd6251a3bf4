//! Starts and stops a member's threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_api::deep_txn;
use quorate_core::bootstrap::Identity;
use quorate_core::start::storage_version;
use quorate_core::{
    BackendWriter, Intervals, Log, ORDERS_QUEUED_MAX, Pace, StateMachine, StopStep,
};
use quorate_node::{COMMIT_NOTICE_INTERVAL, Node};
use quorate_peer::Peers;
use quorate_raft::{LogIndex, Term};
use quorate_state::apply::State;
use quorate_state::backend::Backend;
use quorate_state::units::MemberId;
use quorate_storage::disk::Disk;
use quorate_storage::wal::Wal;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::threads;

use crate::handles::{Handles, Parts};
use crate::threads::accepted_compactions::AcceptedCompactions;
use crate::threads::applier::{self, Applier, SharedApplier};
use crate::threads::channels::{
    ApplierHandle, DriverHandle, DriverInputs, Input, Job, Order, SnapshotNotice,
};
use crate::threads::clock::Clock;
use crate::threads::committer::Committer;
use crate::threads::driver::{Driver, Neighbours, SharedDriver};
use crate::threads::fatal::FaultReports;
use crate::threads::member_status::MemberStatus;
use crate::threads::memory_lock::MemoryLock;
use crate::threads::pending_proposals::PendingProposals;
use crate::threads::persist::LogWriter;
use crate::threads::reports::Reports;
use crate::threads::request_id::RequestIds;
use crate::threads::timed_disk::DiskTimes;
use quorate_requests::Limits;
use quorate_requests::access::Provider;

/// The input channels of a member. They are created before the member, because the transport sends its reports to these
/// channels, and the member needs the transport.
#[derive(Debug)]
pub struct MemberInputs {
    handle: DriverHandle,
    inputs: DriverInputs,
    faults: FaultReports,
}

impl MemberInputs {
    /// Creates the channels of one member. The member's faults are reported to `faults`.
    #[must_use]
    pub fn new(faults: FaultReports) -> Self {
        let (handle, inputs) = DriverHandle::channel();
        Self { handle, inputs, faults }
    }

    /// Returns the handle for the transport's reports.
    #[must_use]
    pub fn reports(&self) -> Reports {
        Reports { driver: self.handle.clone(), faults: self.faults.clone() }
    }
}

/// The parts from which a member is started.
#[expect(
    missing_debug_implementations,
    reason = "the debug output of a state machine is not useful"
)]
pub struct Start {
    /// The ids and the name of the member.
    pub identity: Identity,
    /// The limits on requests.
    pub limits: Limits,
    /// The interval of commits to the backend file, and the pace of compactions.
    pub pace: Pace,
    /// The interval between ticks of consensus.
    pub heartbeat: Duration,
    /// The disk that contains the member's files.
    pub disk: Arc<dyn Disk>,
    /// The time spent on writes and syncs of the member's files.
    pub disk_times: DiskTimes,
    /// The directory of snapshot files.
    pub snap_dir: PathBuf,
    /// The write-ahead log.
    pub wal: Wal,
    /// The backend file.
    pub backend: Backend,
    /// The state in the backend file.
    pub state: State,
    /// The consensus node.
    pub node: Node,
    /// The transport to the other members.
    pub peers: Arc<Peers>,
    /// The metrics of the member.
    pub metrics: Arc<Metrics>,
    /// The provider of clients' tokens.
    pub provider: Provider,
    /// Locks the backend file in memory, if `--memory-mlock` is set.
    pub memory_lock: Option<MemoryLock>,
}

/// The running threads of a member.
#[derive(Debug)]
pub struct Running {
    /// The handles for other crates.
    pub handles: Arc<Handles>,
    driver: DriverHandle,
    applier: ApplierHandle,
    backend_orders: crossbeam_channel::Sender<Order>,
    /// Ends the backend thread's wait for disk space.
    backend_ending: crossbeam_channel::Sender<()>,
    threads: [JoinHandle<()>; 3],
}

/// Starts the threads of a member.
///
/// # Errors
///
/// The system cannot create a thread, or cannot provide random bytes.
#[expect(
    clippy::too_many_lines,
    reason = "the parts are created in the order in which data passes through them"
)]
pub fn start(start: Start, entrance: MemberInputs) -> std::io::Result<Running> {
    let MemberInputs { handle: driver_handle, inputs: driver_inputs, faults } = entrance;
    let Start { identity, disk, snap_dir, backend, state, peers, metrics, .. } = start;
    let clock = Clock::start();
    let (applied, applied_term) = state.applied();
    let member_status = Arc::new(MemberStatus::new(LogIndex(applied), Term(applied_term), clock));
    member_status.set_storage_version(storage_version(&backend));
    let pending = Arc::new(PendingProposals::default());
    let request_ids = Arc::new(RequestIds::start(identity.member_id)?);
    let published = state.published();
    let (applier_handle, applier_jobs) = ApplierHandle::channel();
    let (backend_orders, backend_receiver) = crossbeam_channel::bounded(ORDERS_QUEUED_MAX);
    let (backend_ending, ending) = crossbeam_channel::bounded(1);
    let snapshots = SnapshotNotice::default();
    let compactions = AcceptedCompactions::default();

    let driver = Driver::new(
        start.node,
        LogWriter::new(
            Log::new(start.wal, Arc::clone(&disk), snap_dir.clone()),
            Arc::clone(&metrics),
            start.disk_times.log,
        ),
        driver_handle.clone(),
        Neighbours {
            peers: Arc::clone(&peers),
            applier: applier_handle.clone(),
            snapshots: snapshots.clone(),
            pending: Arc::clone(&pending),
            member_status: Arc::clone(&member_status),
            faults: faults.clone(),
            metrics: Arc::clone(&metrics),
            clock,
        },
        Intervals {
            tick: start.heartbeat,
            election_timeout: start.limits.election_timeout,
            commit_notice: COMMIT_NOTICE_INTERVAL,
        },
    );
    let driver = SharedDriver::new(driver, driver_inputs);
    let own_id = MemberId(identity.member_id);
    let machine = StateMachine::new(state, backend.clone(), own_id, start.pace, Instant::now());
    let applier = Applier::new(
        machine,
        identity.clone(),
        clock,
        start.limits.slow_apply,
        applier::Neighbours {
            driver: driver_handle.clone(),
            peers: Arc::clone(&peers),
            committer: backend_orders.clone(),
            pending: Arc::clone(&pending),
            member_status: Arc::clone(&member_status),
            faults: faults.clone(),
            metrics: Arc::clone(&metrics),
            request_ids: Arc::clone(&request_ids),
            compactions: compactions.clone(),
        },
    );
    let applier = SharedApplier::new(applier, applier_handle.clone(), applier_jobs);
    let committer = Committer {
        writer: BackendWriter::new(backend.clone(), disk, snap_dir),
        orders: backend_receiver,
        snapshots,
        ending,
        applier: applier_handle.clone(),
        driver: driver_handle.clone(),
        peers: Arc::clone(&peers),
        faults: faults.clone(),
        metrics: Arc::clone(&metrics),
        disk_times: start.disk_times.backend,
        batch_bytes: 0,
        memory_lock: start.memory_lock,
    };
    let handles = Arc::new(Handles::new(Parts {
        identity,
        limits: start.limits,
        driver: driver_handle.clone(),
        peers,
        applier: applier_handle.clone(),
        backend_orders: backend_orders.clone(),
        pending,
        member_status,
        published,
        backend,
        faults,
        metrics,
        request_ids,
        provider: start.provider,
        compactions,
    }));
    let threads = [
        spawn("raft", move || driver.run())?,
        spawn("apply", move || applier.run())?,
        spawn("backend", move || committer.run())?,
    ];
    Ok(Running {
        handles,
        driver: driver_handle,
        applier: applier_handle,
        backend_orders,
        backend_ending,
        threads,
    })
}

impl Running {
    /// Stops the threads. A thread that has ended early has already reported the reason.
    pub fn stop(self) {
        let [mut raft, mut apply, mut backend] = self.threads.map(Some);
        let join = |thread: &mut Option<JoinHandle<()>>| drop(thread.take().map(JoinHandle::join));
        self.handles.peers.stop();
        _ = self.backend_ending.try_send(());
        for step in StopStep::ORDER {
            match step {
                StopStep::EndConsensus => {
                    let (done, is_done) = crossbeam_channel::bounded(1);
                    self.driver.report(Input::Stop(Box::new(move |()| _ = done.send(()))));
                    _ = is_done.recv();
                }
                StopStep::EndStateMachine => {
                    _ = self.applier.send(Job::Stop);
                    join(&mut apply);
                }
                StopStep::EndBackend => {
                    drop(self.backend_orders.send(Order::Stop));
                    join(&mut backend);
                }
                StopStep::CloseLog => {
                    self.driver.report(Input::CloseLog);
                    join(&mut raft);
                }
            }
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    // Only the applier needs a stack of this size. For the other threads, the size only reserves address space.
    let thread = std::thread::Builder::new().name(name.to_owned());
    threads::spawn(thread.stack_size(deep_txn::STACK_BYTES), run)
}
