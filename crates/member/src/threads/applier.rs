//! The applier. It owns the state machine and delivers its outputs to the other threads.
//!
//! The applier has its own thread. While that thread is idle, the thread that runs the driver applies brief batches of
//! entries itself ([`RunInline`]), because waking the applier's thread would cost more than applying them. All other
//! work, including handing batches to the backend thread, is left to the applier's thread, so no other thread waits for
//! the backend. A lock allows only one thread at a time to run the applier, and every job is taken from the queue under
//! that lock, so jobs are carried out in order.
//!
//! After each batch of entries the applier publishes the new view, releases the requests that wait for an index in the
//! batch, and sends all responses of the batch together.
//!
//! # Bound
//!
//! The consensus core bounds the total size of the committed entries that wait for the applier. When
//! [`quorate_core::ORDERS_QUEUED_MAX`] batches wait for the backend thread, the open batch grows to its
//! maximum size, and then the applier blocks.
//!
//! # Not here
//!
//! The steps in which an entry is applied, in order: [`quorate_core::StateMachine`].

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{AlarmMember, RequestHeader};
use quorate_core::bootstrap::Identity;
use quorate_core::request::{encode, no_space_alarm};
use quorate_core::{ApplyError, Begun, Next, Now, Outlet, Output, StateMachine};
use quorate_raft::{Entry, LogIndex, Snapshot, Term};
use quorate_state::alarm::Cause;
use quorate_state::apply::{AuthCommand, ClusterCommand, Command, Refusal, Request, Response};
use quorate_state::auth::View;
use quorate_state::backend::Batch;
use quorate_state::members::Members;
use quorate_state::mvcc::Tally;
use quorate_state::quota::Quota;
use quorate_state::versions::Version;

use crate::threads::accepted_compactions::AcceptedCompactions;
use crate::threads::batch_queue::{ReceiveError, Receiver};
use crate::threads::change_lines::{line_about, log_member_change};
use crate::threads::channels::{
    ApplierHandle, Done, DriverHandle, Input, Job, Order, ProcessedBy, RunInline,
};
use crate::threads::clock::Clock;
use crate::threads::completion::{Completer, CompletionBatch};
use crate::threads::fatal::FaultReports;
use crate::threads::limit_notices::warn_of_full_store;
use crate::threads::member_status::MemberStatus;
use crate::threads::outcome::{Answer, Outcome};
use crate::threads::pending_proposals::PendingProposals;
use crate::threads::request_id::RequestIds;
use quorate_peer::Peers;
use quorate_requests::request_text::{self, OfEntry};
use quorate_requests::slow_apply::Slow;
use quorate_telemetry::log::{self, Line};
use quorate_telemetry::metrics::{Metrics, RequestKind};

/// The channels and shared state that the applier uses.
pub(crate) struct Neighbours {
    pub(crate) driver: DriverHandle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) committer: Sender<Order>,
    pub(crate) pending: Arc<PendingProposals>,
    pub(crate) member_status: Arc<MemberStatus>,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) compactions: AcceptedCompactions,
}

/// Maximum number of jobs that another thread carries out each time it runs the applier.
const BRIEF_JOBS_MAX: usize = 4;

/// The applier, which its own thread and other threads run in turn.
pub(crate) struct SharedApplier {
    jobs: Receiver<Job>,
    handle: ApplierHandle,
    /// Empty while a thread other than the applier's own runs the applier, and after the applier has ended.
    applier: Mutex<Option<Box<Applier>>>,
}

impl SharedApplier {
    /// Shares the applier between threads. `handle` is the sending end of `jobs`.
    pub(crate) fn new(applier: Applier, handle: ApplierHandle, jobs: Receiver<Job>) -> Arc<Self> {
        let shared = Arc::new(Self { jobs, handle, applier: Mutex::new(Some(Box::new(applier))) });
        let runner: Weak<Self> = Arc::downgrade(&shared);
        shared.handle.set_runner(runner);
        shared
    }

    /// Runs on the applier's thread until the stop job, or until the state machine fails.
    pub(crate) fn run(&self) {
        let mut next = self.take_turn(|applier| applier.next_turn());
        while let Turn::At(wake_at) = next {
            if self.jobs.wait(wake_at) == Err(ReceiveError::Closed) {
                break;
            }
            next = self.take_turn(|applier| applier.run_all(&self.jobs));
        }
        self.jobs.close();
        drop(self.applier.lock().take());
    }

    fn take_turn(&self, run: impl FnOnce(&mut Applier) -> Turn) -> Turn {
        let mut slot = self.applier.lock();
        run(slot.as_mut().expect("no thread has panicked while it ran the applier"))
    }
}

impl RunInline for SharedApplier {
    fn run_queued(&self) -> bool {
        let Some(mut slot) = self.applier.try_lock() else { return false };
        // The server aborts on a panic. If panics unwind instead, as in a test, the process may survive a panic of the
        // applier here. The slot then stays empty, because no thread may use an applier whose state is unknown.
        let Some(mut applier) = slot.take() else { return false };
        let (before, was_full) = (applier.next_turn(), applier.machine.has_full_batch());
        applier.run_brief(&self.jobs);
        // The applier's thread must wake if jobs remain, if there is now a full batch to hand over, or if the next
        // deadline is earlier than the deadline until which the thread sleeps.
        let has_to_wake = !applier.queued.is_empty()
            || applier.next_turn().is_before(before)
            || !was_full && applier.machine.has_full_batch();
        *slot = Some(applier);
        drop(slot);
        if has_to_wake {
            self.handle.interrupt();
        }
        true
    }
}

/// When the applier's thread runs next.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The applier has ended, so its thread does not run again.
    End,
    /// When a job is queued, or at this time if no job is queued earlier.
    At(Option<Instant>),
}

impl Turn {
    fn is_before(self, other: Self) -> bool {
        match (self, other) {
            (Self::At(Some(at)), Self::At(Some(other))) => at < other,
            (Self::End, Self::At(_)) | (Self::At(Some(_)), Self::At(None)) => true,
            (_, Self::End) | (Self::At(None), Self::At(_)) => false,
        }
    }
}

/// The applier with its state machine and its queued jobs.
pub(crate) struct Applier {
    machine: StateMachine<Done<()>>,
    carrier: Carrier,
    /// Jobs that were taken from the queue and are still to be carried out.
    queued: VecDeque<Job>,
    /// An empty buffer for taking jobs from the queue.
    taken: Vec<Job>,
    /// Whether the origin of this member's state has been published to the other members.
    has_origin: bool,
    has_ended: bool,
}

/// Context of a request while it is being applied.
struct Ticket {
    kind: RequestKind,
    /// The amount by which the request changes the counter of each affected alarm.
    alarm_step: i64,
    /// The line to log if the request is not refused.
    line: Option<Box<Line>>,
    completer: Option<Completer<Outcome>>,
}

/// Delivers the outputs of the state machine to the other threads.
struct Carrier {
    identity: Identity,
    clock: Clock,
    /// Threshold above which the time to apply an entry is logged as a warning.
    slow_apply: Duration,
    quota: Quota,
    neighbours: Neighbours,
    completions: CompletionBatch<Outcome>,
    /// Time at which the last entry was applied, or at which the current job began.
    finished: Instant,
    /// Receives a value when the backend thread has installed the image of the leader's snapshot.
    installed: Option<crossbeam_channel::Receiver<()>>,
    /// Size of the open batch in bytes, as last reported to the metrics.
    open_bytes: i64,
}

impl Applier {
    pub(crate) fn new(
        machine: StateMachine<Done<()>>,
        identity: Identity,
        clock: Clock,
        slow_apply: Duration,
        neighbours: Neighbours,
    ) -> Self {
        let carrier = Carrier {
            identity,
            clock,
            slow_apply,
            quota: machine.state().published().quota,
            neighbours,
            completions: CompletionBatch::new(),
            finished: Instant::now(),
            installed: None,
            open_bytes: 0,
        };
        let has_origin = carrier.neighbours.peers.has_origin();
        let (queued, taken) = (VecDeque::new(), Vec::new());
        Self { machine, carrier, queued, taken, has_origin, has_ended: false }
    }

    /// Returns the next turn of the applier's thread.
    fn next_turn(&self) -> Turn {
        if self.has_ended { Turn::End } else { Turn::At(self.machine.wake_at()) }
    }

    /// Carries out all queued jobs and the other work that is due.
    fn run_all(&mut self, jobs: &Receiver<Job>) -> Turn {
        self.take_jobs(jobs);
        while !self.has_ended
            && let Some(job) = self.queued.pop_front()
        {
            self.carry_out_or_end(job);
            self.machine.hand_over_if_due(self.carrier.finished, &mut self.carrier);
        }
        if !self.has_ended {
            self.work_at_compaction();
            self.machine.hand_over_if_due(Instant::now(), &mut self.carrier);
        }
        self.next_turn()
    }

    /// Carries out queued jobs, up to the first one that is not brief.
    fn run_brief(&mut self, jobs: &Receiver<Job>) {
        self.take_jobs(jobs);
        for _ in 0..BRIEF_JOBS_MAX {
            if self.has_ended || !self.has_origin || !self.queued.front().is_some_and(Job::is_brief)
            {
                return;
            }
            if let Some(job) = self.queued.pop_front() {
                self.carry_out_or_end(job);
            }
        }
    }

    fn take_jobs(&mut self, jobs: &Receiver<Job>) {
        jobs.take(&mut self.taken);
        self.queued.extend(self.taken.drain(..));
    }

    /// Carries out a job. The applier ends after the last job, or after a fault, which stops the member.
    fn carry_out_or_end(&mut self, job: Job) {
        match self.carry_out(job).and_then(|goes_on| self.publish_first_origin().map(|()| goes_on))
        {
            Ok(goes_on) => {
                self.has_ended = !goes_on;
                self.carrier.count_open(self.machine.state().pending_batch());
            }
            Err(fault) => {
                self.has_ended = true;
                self.carrier.neighbours.faults.report("applying the log", fault);
            }
        }
    }

    /// Publishes the origin of this member's state after the first applied entry.
    fn publish_first_origin(&mut self) -> Result<(), ApplyError> {
        if !self.has_origin && self.machine.state().applied().0 > 0 {
            self.publish_origin()?;
            self.has_origin = true;
        }
        Ok(())
    }

    /// Carries out a job. Returns false after the last job.
    fn carry_out(&mut self, job: Job) -> Result<bool, ApplyError> {
        if let Job::InstallSnapshot(snapshot) = job {
            return self.install_snapshot(snapshot);
        }
        let now = self.carrier.now();
        self.carrier.finished = now.instant;
        match self.machine.take(job, now, &mut self.carrier)? {
            Next::GoOn => Ok(true),
            Next::AwaitInstall => unreachable!("installation jobs are handled above"),
            Next::End => Ok(false),
        }
    }

    /// Replaces the state with a leader's snapshot. Returns false if the thread has to end.
    fn install_snapshot(&mut self, snapshot: Snapshot) -> Result<bool, ApplyError> {
        let carrier = &mut self.carrier;
        let started = carrier.now();
        log::info!(
            "applying snapshot",
            "current-applied-index" = self.machine.state().applied().0,
            "incoming-leader-snapshot-index" = snapshot.metadata.index.get(),
            "incoming-leader-snapshot-term" = snapshot.metadata.term.get()
        );
        carrier.neighbours.metrics.server.snapshot_apply_in_progress.set(1);
        self.machine.take(Job::InstallSnapshot(snapshot), started, carrier)?;
        if carrier.installed.take().is_none_or(|installed| installed.recv().is_err()) {
            // The backend thread has failed and has reported the fault, or is stopping, so this thread ends too.
            return Ok(false);
        }
        log::info!("applySnapshot: opened snapshot backend");
        let now = carrier.now();
        self.machine.installed(now, carrier)?;
        carrier.neighbours.peers.set_origin(self.machine.restore_mark()?);
        carrier.neighbours.metrics.server.snapshot_apply_in_progress.set(0);
        log::info!(
            "applied snapshot",
            "current-applied-index" = self.machine.state().applied().0,
            "took" = started.instant.elapsed()
        );
        Ok(true)
    }

    /// Sets the origin of this member's state, which is sent to the other members. A member that has applied no entry
    /// has no origin.
    fn publish_origin(&self) -> Result<(), ApplyError> {
        self.carrier.neighbours.peers.set_origin(self.machine.restore_mark()?);
        Ok(())
    }

    fn work_at_compaction(&mut self) {
        let started = Instant::now();
        if let Some(deleted_count) = self.machine.compact(started, &mut self.carrier) {
            let (metrics, took) = (&self.carrier.neighbours.metrics.mvcc, started.elapsed());
            // One step deletes from both the index and the backend, so both metrics record the same time.
            metrics.index_compaction_pause.observe(took);
            metrics.compaction_pause.observe(took);
            metrics.compaction_keys.add(deleted_count as u64);
        }
    }
}

impl Outlet for Carrier {
    type Ticket = Ticket;
    type Completion = Done<()>;

    fn begin(&mut self, request: &Request, auth: &View) -> Begun<Self::Ticket> {
        let kind = kind_of(request);
        let line = if let Command::Auth(command) = &request.command {
            line_about(command, auth).map(Box::new)
        } else {
            None
        };
        let completer = self.neighbours.pending.take(request.id);
        let reply_wanted = completer.is_some();
        let alarm_step = alarm_step(&request.command);
        let ticket = Ticket { kind, alarm_step, line, completer };
        Begun { ticket, reply_wanted, kind: kind.name() }
    }

    fn finish(
        &mut self,
        Ticket { kind, alarm_step, line, completer }: Ticket,
        entry: &Entry,
        outcome: Option<Result<Response, Refusal>>,
    ) {
        let started = std::mem::replace(&mut self.finished, Instant::now());
        self.account(kind, entry, outcome.as_ref(), self.finished - started);
        if let Some(Ok(Response::Alarm(response))) = &outcome
            && alarm_step != 0
        {
            self.count_alarms(&response.alarms, alarm_step);
        }
        if let (Some(line), Some(Ok(_))) = (line, &outcome) {
            line.emit();
        }
        if let (Some(outcome), Some(completer)) = (outcome, completer) {
            let answer = Answer { outcome, index: entry.index, applied: self.finished };
            self.completions.push(completer, Outcome::Applied(Box::new(answer)));
        }
    }

    fn leads_in(&self, term: Term) -> bool {
        self.neighbours.member_status.state().leads_in(term)
    }

    fn is_backend_behind(&self) -> bool {
        self.neighbours.committer.is_full()
    }

    fn put(&mut self, output: Output<Done<()>>) {
        match output {
            Output::Decided(decision) => {
                self.neighbours.driver.report(Input::ConfChangeDecided(decision));
            }
            Output::Members(members) => self.set_members(&members),
            Output::Changed { change, member } => {
                log_member_change(&self.identity, &change, &member);
            }
            Output::ChangeRefused(refusal) => {
                log::warn!("rejected a membership change", "error" = refusal.to_string());
            }
            Output::Removed => self.neighbours.faults.report_removal(),
            Output::ChangeAnswered { request_id, outcome } => {
                if let Some(completer) = self.neighbours.pending.take(request_id) {
                    self.completions.push(completer, Outcome::ConfChange(outcome));
                }
            }
            Output::Published { index, term, members_changed, tally } => {
                self.count(&tally);
                self.publish(index, term, members_changed);
            }
            Output::CompactionAccepted { compaction, view } => {
                self.neighbours.compactions.offer(compaction, view);
            }
            Output::ClusterVersion { from, to } => self.log_cluster_version(from, to),
            Output::StorageVersion { version, is_written } => {
                self.neighbours.member_status.set_storage_version(version);
                if is_written {
                    log::info!(
                        "updated storage version",
                        "new-storage-version" = version.map_or_else(String::new, |v| v.to_string())
                    );
                }
            }
            Output::StorageVersionStays(error) => {
                log::warn!("failed to update storage version", "error" = error.to_string());
            }
            Output::OverQuota { file_bytes } => {
                warn_of_full_store(self.quota, file_bytes);
                self.raise_no_space();
            }
            Output::TakingSnapshot { index } => log::info!(
                "triggering snapshot",
                "local-member-id" = format!("{:x}", self.identity.member_id),
                "local-member-applied-index" = index.get()
            ),
            // The send fails only if the backend thread has ended after a fault. The fault report then stops the
            // member.
            Output::Commit { batch, then } => {
                // The bytes of the batch stay in the metric. The backend thread subtracts them after the commit.
                self.count_open(&batch);
                self.open_bytes = 0;
                drop(self.neighbours.committer.send(Order::Commit { batch, then }));
            }
            Output::Install { index } => self.order_install(index),
            Output::Installed { index, term } => {
                self.neighbours.peers.reconnect();
                self.publish(index, term, true);
            }
            Output::Complete(completion) => completion(()),
        }
    }
}

impl Carrier {
    fn now(&self) -> Now {
        Now { instant: Instant::now(), millis: self.clock.now() }
    }

    /// Updates the metric for the bytes of the open batch.
    fn count_open(&mut self, batch: &Batch) {
        let bytes = i64::try_from(batch.byte_count()).unwrap_or(i64::MAX);
        let more = bytes - std::mem::replace(&mut self.open_bytes, bytes);
        self.neighbours.metrics.disk.backend_pending.add(more);
    }

    fn set_members(&self, members: &Members) {
        self.neighbours.peers.set_members(members);
    }

    /// Releases the requests that wait for this index, and sends all gathered responses.
    fn publish(&mut self, index: LogIndex, term: Term, wakes_driver: bool) {
        self.neighbours.member_status.set_applied(index, term, &mut self.completions);
        self.completions.send();
        if wakes_driver {
            self.neighbours.driver.report(Input::Wake);
        }
    }

    fn order_install(&mut self, index: LogIndex) {
        let (done, installed) = crossbeam_channel::bounded(1);
        let completion: Done<()> = Box::new(move |()| _ = done.send(()));
        drop(self.neighbours.committer.send(Order::Install { index, completion }));
        self.installed = Some(installed);
    }

    fn log_cluster_version(&self, from: Option<Version>, to: Version) {
        let version = format!("{}.{}", to.major, to.minor);
        match from {
            None => log::info!(
                "set initial cluster version",
                "cluster-id" = format!("{:x}", self.identity.cluster_id),
                "local-member-id" = format!("{:x}", self.identity.member_id),
                "cluster-version" = version
            ),
            Some(from) => log::info!(
                "updated cluster version",
                "cluster-id" = format!("{:x}", self.identity.cluster_id),
                "local-member-id" = format!("{:x}", self.identity.member_id),
                "from" = format!("{}.{}", from.major, from.minor),
                "to" = version
            ),
        }
        log::info!("cluster version is updated", "cluster-version" = version);
    }

    fn account(
        &self,
        kind: RequestKind,
        entry: &Entry,
        outcome: Option<&Result<Response, Refusal>>,
        took: Duration,
    ) {
        let metrics = &self.neighbours.metrics;
        let refusal = outcome.and_then(|outcome| outcome.as_ref().err());
        metrics.server.apply_duration.observe(kind, refusal.is_none(), took);
        if took > self.slow_apply {
            let response = outcome.and_then(|outcome| outcome.as_ref().ok());
            let slow = Slow {
                took,
                prefix: "",
                request: OfEntry(&entry.data).to_string(),
                response: response.map_or_else(String::new, request_text::size_of),
                error: refusal.map(ToString::to_string),
            };
            slow.log(self.slow_apply, metrics);
        }
        if let Some(refusal) = refusal
            && *refusal != Refusal::Compacted
        {
            Self::log_refusal(entry, refusal, took);
        }
    }

    #[cold]
    fn log_refusal(entry: &Entry, refusal: &Refusal, took: Duration) {
        // The text is formatted only if the logger accepts the line, because the logger limits how many of these lines
        // it accepts per second.
        log::warn!(
            "failed to apply request",
            "took" = took,
            "request" = log::Shown(OfEntry(&entry.data)),
            "response" = "",
            "error" = log::Shown(refusal)
        );
    }

    /// Adds the operations on the keyspace and on leases to the metrics.
    fn count(&self, tally: &Tally) {
        let metrics = &self.neighbours.metrics.mvcc;
        metrics.range.add(tally.ranges);
        metrics.put.add(tally.puts);
        metrics.delete.add(tally.deletes);
        metrics.txn.add(tally.txns);
        metrics.put_size.add(i64::try_from(tally.put_bytes).unwrap_or(i64::MAX));
        self.neighbours.metrics.lease.count(&tally.lease_ttls, tally.leases_revoked);
    }

    /// Counts each activation of an alarm, even if the alarm is already active, as etcd does.
    fn count_alarms(&self, alarms: &[AlarmMember], step: i64) {
        for alarm in alarms {
            let member = format!("{:x}", alarm.member_id);
            let kind = alarm.alarm().as_str_name();
            self.neighbours.metrics.server.alarms.with(&[kind, &member]).add(step);
        }
    }

    /// Proposes the NOSPACE alarm, which stops writes on all members.
    fn raise_no_space(&self) {
        let header =
            RequestHeader { id: self.neighbours.request_ids.next(), ..RequestHeader::default() };
        let alarm = no_space_alarm(self.identity.member_id, AlarmAction::Activate, Cause::Other);
        let proposal =
            encode(header, alarm, usize::MAX).expect("an alarm is shorter than the size limit");
        // If the queue is full, this proposal is dropped. The next write that finds no space raises the alarm again.
        let _raised = self
            .neighbours
            .driver
            .request(Input::Propose(proposal, Instant::now()), ProcessedBy::DriverThread)
            .is_ok();
    }
}

/// Returns the amount by which a command changes the alarm counters: 1 for an activation, -1 for a deactivation.
fn alarm_step(command: &Command) -> i64 {
    let Command::Alarm(alarm) = command else { return 0 };
    match AlarmAction::try_from(alarm.request.action) {
        Ok(AlarmAction::Activate) => 1,
        Ok(AlarmAction::Deactivate) => -1,
        Ok(AlarmAction::Get) | Err(_) => 0,
    }
}

fn kind_of(request: &Request) -> RequestKind {
    match &request.command {
        Command::Range(_) => RequestKind::Range,
        Command::Put(_) => RequestKind::Put,
        Command::DeleteRange(_) => RequestKind::DeleteRange,
        Command::Txn(_) => RequestKind::Txn,
        Command::Compaction(_) => RequestKind::Compaction,
        Command::LeaseGrant(_) => RequestKind::LeaseGrant,
        Command::LeaseRevoke(_) => RequestKind::LeaseRevoke,
        Command::LeaseCheckpoint(_) => RequestKind::LeaseCheckpoint,
        Command::Alarm(_) => RequestKind::Alarm,
        Command::Auth(command) => match command {
            AuthCommand::Authenticate(_) => RequestKind::Authenticate,
            AuthCommand::Enable => RequestKind::AuthEnable,
            AuthCommand::Disable => RequestKind::AuthDisable,
            AuthCommand::Status => RequestKind::AuthStatus,
            AuthCommand::UserAdd(_) => RequestKind::AuthUserAdd,
            AuthCommand::UserDelete(_) => RequestKind::AuthUserDelete,
            AuthCommand::UserGet(_) => RequestKind::AuthUserGet,
            AuthCommand::UserChangePassword(_) => RequestKind::AuthUserChangePassword,
            AuthCommand::UserGrantRole(_) => RequestKind::AuthUserGrantRole,
            AuthCommand::UserRevokeRole(_) => RequestKind::AuthUserRevokeRole,
            AuthCommand::UserList => RequestKind::AuthUserList,
            AuthCommand::RoleAdd(_) => RequestKind::AuthRoleAdd,
            AuthCommand::RoleDelete(_) => RequestKind::AuthRoleDelete,
            AuthCommand::RoleGet(_) => RequestKind::AuthRoleGet,
            AuthCommand::RoleGrantPermission(_) => RequestKind::AuthRoleGrantPermission,
            AuthCommand::RoleRevokePermission(_) => RequestKind::AuthRoleRevokePermission,
            AuthCommand::RoleList => RequestKind::AuthRoleList,
        },
        Command::Cluster(command) => match command {
            ClusterCommand::VersionSet(_) => RequestKind::ClusterVersionSet,
            ClusterCommand::MemberAttrSet(_) => RequestKind::ClusterMemberAttrSet,
            ClusterCommand::DowngradeInfoSet(_) => RequestKind::DowngradeInfoSet,
        },
        Command::Nothing => RequestKind::Unknown,
    }
}
