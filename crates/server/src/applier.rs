//! The apply thread: it owns the state machine and carries committed entries out, in order.
//!
//! Entries come in batches. After a batch the new view is published, everybody who waited for an index is
//! released, and all answers leave together. Changes collect in a backend batch that goes to the backend
//! thread every so often; reading them back does not have to wait for that.
//!
//! Compactions are worked off here too, a step at a time between batches, so that a write never waits for
//! more than a step.
//!
//! # Bound
//!
//! Committed entries that wait are bounded by the consensus core, in bytes. When the backend thread is
//! behind by [`committer::ORDERS_QUEUED_MAX`] batches, the open batch grows up to
//! [`BATCH_GROWTH_MAX`] times its limit, in changes or bytes; then the applier waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::Sender;
use prost::Message as _;
use quorate_api::etcdserverpb::response_op::Response as Operation;
use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmType, InternalRaftRequest, RequestHeader, ResponseOp, alarm_request,
};
use quorate_api::raftpb;
use quorate_node::Proposal;
use quorate_raft::{Entry, EntryKind, Message, Role, Snapshot};
use quorate_state::apply::{
    Applied, AuthCommand, ClusterCommand, Command, EntryMeta, Fault, Notice, RecoverError, Request,
    RequestFault, Response, State,
};
use quorate_state::backend::{Backend, Committed};
use quorate_state::members::{MemberChange, MembershipRefusal, V2Error, V2Membership};
use quorate_state::units::MemberId;
use quorate_state::versions::{Version, follow_cluster_version};

use crate::answer::Answer;
use crate::bootstrap::{FIRST_COMPLETE, storage_version};
use crate::committer::{Done, Order, Then};
use crate::driver::{DriverHandle, Input};
use crate::fatal::FaultReports;
use crate::inbox::{Nothing, Receiver};
use crate::limit_notices::warn_of_full_store;
use crate::log;
use crate::mailbox::{Address, Outbox};
use crate::member::{Clock, Identity};
use crate::metrics::{Metrics, RequestKind};
use crate::peer::Peers;
use crate::request_id::RequestIds;
use crate::snapshots::SnapshotOrder;
use crate::standing::Standing;
use crate::waiters::Waiters;

/// Jobs from which on a sender that can wait does. Entries come by a way that never waits, and are bounded
/// by the core.
pub(crate) const JOBS_QUEUED_MAX: usize = 1024;

/// How far the open batch may outgrow its limit before the applier waits for the backend thread.
const BATCH_GROWTH_MAX: usize = 8;

/// How soon a batch is offered again to a busy backend thread.
const OFFER_AGAIN: Duration = Duration::from_millis(2);

/// What the applier is told.
pub(crate) enum Job {
    /// Carry these out.
    Apply(Vec<Entry>),
    /// Take a snapshot of what is applied.
    TakeSnapshot,
    /// This member leads no longer.
    LostLeadership,
    /// Send a peer a snapshot of what is applied, by this message.
    SendSnapshot(Message),
    /// Put the image of this snapshot in place of the state.
    InstallSnapshot(Snapshot),
    /// The backend thread has committed a batch to the file of this generation.
    Committed { committed: Committed, generation: u64 },
    /// Bring the storage version in line with the cluster's.
    FollowClusterVersion,
    /// Tell when everything applied so far is in the backend file.
    Commit(Done<()>),
    /// Tell when every compaction accepted so far is done and in the backend file.
    AwaitCompactions(Done<()>),
    /// Commit what there is, and end.
    Stop,
}

/// How often batches are committed, and how compactions are paced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) batch_interval: Duration,
    pub(crate) batch_ops_max: usize,
    pub(crate) compaction_step: usize,
    pub(crate) compaction_pause: Duration,
    /// Applying an entry for longer is worth a warning.
    pub(crate) slow_apply: Duration,
    /// Added to every lease when this member becomes leader.
    pub(crate) lease_extension_millis: u64,
}

/// Everything the applier talks to.
pub(crate) struct Neighbours {
    pub(crate) jobs: Receiver<Job>,
    pub(crate) driver: DriverHandle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) committer: Sender<Order>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) request_ids: Arc<RequestIds>,
}

/// The thread's state.
pub(crate) struct Applier {
    state: State,
    backend: Backend,
    identity: Identity,
    clock: Clock,
    pace: Pace,
    neighbours: Neighbours,
    outbox: Outbox<Answer>,
    /// For proposers of membership changes, once the batch is published.
    membership_answers: Vec<(Address<Answer>, Result<(), MembershipRefusal>)>,
    /// When the open batch has to be handed over.
    commit_at: Option<Instant>,
    compaction: Compaction,
    /// How often the backend file was replaced.
    generation: u64,
}

/// Why the applier ends.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    /// The entry is sound, or was once; this member does not know how to go on.
    #[error(
        "log entry {index} of term {term} ({kind}) cannot be carried out by this version: {fault}; the member \
         stops before it, and will again. Start the version that wrote the entry on this data directory; if \
         the entry should not be there, begin a new cluster from a snapshot of before it"
    )]
    Entry { index: u64, term: u64, kind: &'static str, fault: Fault },
    #[error(transparent)]
    Other(Fault),
    #[error("failed to take over a snapshot: {0}")]
    Install(#[from] RecoverError),
    #[error("failed to take over the members of a snapshot: {0}")]
    Members(#[from] V2Error),
}

impl ApplyError {
    /// Tells an entry that is not understood from a store that fails whatever is applied.
    fn of_entry(index: u64, term: u64, kind: &'static str, fault: Fault) -> Self {
        match fault {
            // The second speaks for itself, in words that operators know.
            Fault::Store(_) | Fault::ServerTooOld { .. } => Self::Other(fault),
            Fault::Request(_)
            | Fault::Membership(_)
            | Fault::Auth { .. }
            | Fault::ClusterVersion(_) => Self::Entry { index, term, kind, fault },
        }
    }
}

/// Compactions under way.
#[derive(Default)]
struct Compaction {
    next_step: Option<Instant>,
    started: Option<Instant>,
    removed_count: u64,
    waiting: Vec<Done<()>>,
}

impl Compaction {
    /// Begins anew with the file that was put in place of the old one.
    fn resume_or_end(&mut self, is_under_way: bool) {
        let now = Instant::now();
        self.next_step = is_under_way.then_some(now);
        self.started = is_under_way.then_some(now);
        self.removed_count = 0;
        if !is_under_way {
            for tell in self.waiting.drain(..) {
                tell(());
            }
        }
    }
}

impl Applier {
    pub(crate) fn new(
        state: State,
        backend: Backend,
        identity: Identity,
        clock: Clock,
        pace: Pace,
        neighbours: Neighbours,
    ) -> Self {
        let resumes = !state.store().is_compaction_idle();
        let now = Instant::now();
        let compaction = Compaction {
            next_step: resumes.then_some(now),
            started: resumes.then_some(now),
            ..Compaction::default()
        };
        Self {
            state,
            backend,
            identity,
            clock,
            pace,
            neighbours,
            outbox: Outbox::new(),
            membership_answers: Vec::new(),
            commit_at: None,
            compaction,
            generation: 0,
        }
    }

    /// Runs until told to stop, or until the state machine cannot go on.
    pub(crate) fn run(mut self) {
        if let Err(fault) = self.serve() {
            self.neighbours.faults.report("applying the log", fault);
        }
    }

    fn serve(&mut self) -> Result<(), ApplyError> {
        let mut jobs = Vec::new();
        loop {
            match self.neighbours.jobs.receive_until(&mut jobs, self.wake_at()) {
                Ok(()) | Err(Nothing::Yet) => {}
                Err(Nothing::Ever) => return Ok(()),
            }
            for job in jobs.drain(..) {
                if self.carry_out(job)? {
                    return Ok(());
                }
                self.hand_over_if_due();
            }
            self.work_at_compaction();
            self.hand_over_if_due();
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        [self.commit_at, self.compaction.next_step].into_iter().flatten().min()
    }

    /// Does a job; says whether it was the last.
    fn carry_out(&mut self, job: Job) -> Result<bool, ApplyError> {
        match job {
            Job::Apply(entries) => self.apply(entries)?,
            Job::TakeSnapshot => self.take_snapshot(),
            Job::LostLeadership => self.state.readers().leases.demote(),
            Job::SendSnapshot(message) => self.send_snapshot(message),
            Job::InstallSnapshot(snapshot) => return self.install_snapshot(&snapshot),
            Job::Committed { committed, generation } => {
                // What went to the file that was replaced is no news any more.
                if generation == self.generation {
                    self.state.store_mut().committed(committed);
                    self.state.publish();
                }
            }
            Job::FollowClusterVersion => self.follow_cluster_version(),
            Job::Commit(done) => self.hand_over(vec![Then::Tell(done)]),
            Job::AwaitCompactions(done) => self.await_compactions(done),
            Job::Stop => {
                self.hand_over(Vec::new());
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Result<(), ApplyError> {
        let Some(last) = entries.last() else { return Ok(()) };
        let (last_index, last_term) = (last.index, last.term);
        let file_bytes = self.backend.size_bytes();
        let now = self.clock.now();
        let meta = |entry: &Entry, reply_wanted| EntryMeta {
            index: entry.index,
            term: entry.term,
            now,
            file_bytes,
            reply_wanted,
        };
        let mut finished = Instant::now();
        let mut membership_changed = false;
        for entry in entries {
            let (index, term) = (entry.index, entry.term);
            let unfit = |kind| move |fault| ApplyError::of_entry(index, term, kind, fault);
            match entry.kind {
                EntryKind::Normal if entry.data.is_empty() => {
                    self.state.apply_noop(meta(&entry, false));
                    self.promote_if_leading(entry.term);
                }
                EntryKind::Normal => {
                    let request = Request::decode(entry.data.clone())
                        .map_err(|fault| unfit("a request that cannot be read")(fault.into()))?;
                    let kind = kind_of(&request);
                    let address = self.neighbours.waiters.take(request.id);
                    let meta = meta(&entry, address.is_some());
                    let applied = self.state.apply(meta, request).map_err(unfit(kind.name()))?;
                    let started = std::mem::replace(&mut finished, Instant::now());
                    self.account(kind, &applied, finished - started);
                    self.settle(applied, address);
                }
                EntryKind::ConfChange | EntryKind::ConfChangeV2 => {
                    let meta = meta(&entry, false);
                    let changed = self.apply_conf_change(meta, entry.data);
                    changed.map_err(unfit("a membership change"))?;
                    membership_changed = true;
                }
            }
        }
        self.state.publish();
        // Whoever asks next sees the members as they are now.
        for (address, outcome) in self.membership_answers.drain(..) {
            self.outbox.push(address, Answer::ConfChange(outcome));
        }
        let standing = Arc::clone(&self.neighbours.standing);
        standing.set_applied(last_index, last_term, &mut self.outbox);
        self.outbox.send();
        self.neighbours.metrics.server.proposals_applied.set_unsigned(last_index);
        if membership_changed {
            self.neighbours.driver.report(Input::Applied);
        }
        if self.commit_at.is_none() {
            self.commit_at = Some(finished + self.pace.batch_interval);
        }
        Ok(())
    }

    /// The first entry of a leader's term: what came before it is applied, so the clocks may run.
    fn promote_if_leading(&self, term: u64) {
        let leadership = *self.neighbours.standing.leadership().borrow();
        if leadership.role == Role::Leader && leadership.term == term {
            let extension = self.pace.lease_extension_millis;
            self.state.readers().leases.promote(extension, self.clock.now());
        }
    }

    fn apply_conf_change(&mut self, meta: EntryMeta, data: Bytes) -> Result<(), Fault> {
        let index = meta.index;
        let change = raftpb::ConfChange::decode(data.clone()).map_err(RequestFault::from)?;
        let applied = self.state.apply_conf_change(meta, change)?;
        let decided = match &applied.outcome {
            Some(Ok(change)) => {
                self.neighbours.peers.set_members(self.state.members());
                self.notice_removal(change);
                quorate_raft::confchange::wire::decode_v1(&data).ok()
            }
            Some(Err(refusal)) => {
                log::warn!("rejected a membership change", "error" = refusal.to_string());
                None
            }
            // The core was started with the members that this change has led to.
            None => None,
        };
        self.neighbours.driver.report(Input::ConfChangeDecided { index, change: decided });
        if let Some(address) = self.neighbours.waiters.take(applied.request_id) {
            let outcome = applied.outcome.map_or(Ok(()), |outcome| outcome.map(drop));
            self.membership_answers.push((address, outcome));
        }
        Ok(())
    }

    fn notice_removal(&self, change: &MemberChange) {
        if *change == MemberChange::Remove(MemberId(self.identity.member_id)) {
            self.neighbours.faults.report_removal();
        }
    }

    /// Has a peer sent the state as of the last entry applied.
    fn send_snapshot(&mut self, mut message: Message) {
        let (index, term) = self.state.applied();
        let order = SnapshotOrder::new(index, term, self.state.members(), self.state.versions());
        message.snapshot = Some(Box::new(order.into_raft()));
        self.hand_over(vec![Then::Send(message)]);
    }

    /// Replaces the state by a leader's; says whether that cannot be done because the member is ending.
    fn install_snapshot(&mut self, snapshot: &Snapshot) -> Result<bool, ApplyError> {
        let started = Instant::now();
        let index = snapshot.metadata.index;
        log::info!(
            "applying snapshot",
            "current-applied-index" = self.state.applied().0,
            "incoming-leader-snapshot-index" = index,
            "incoming-leader-snapshot-term" = snapshot.metadata.term
        );
        self.neighbours.metrics.server.snapshot_apply_in_progress.set(1);
        let (done, installed) = crossbeam_channel::bounded(1);
        let done: Done<()> = Box::new(move |()| _ = done.send(()));
        drop(self.neighbours.committer.send(Order::Install { index, done }));
        if installed.recv().is_err() {
            // The backend thread has failed, and said why.
            return Ok(true);
        }
        self.generation += 1;
        self.commit_at = None;
        self.state.install(&self.backend)?;
        self.repair_members(snapshot)?;
        self.compaction.resume_or_end(!self.state.store().is_compaction_idle());
        self.neighbours.peers.set_members(self.state.members());
        self.neighbours.peers.reconnect();
        let standing = Arc::clone(&self.neighbours.standing);
        standing.set_storage_version(storage_version(&self.backend));
        if let Some(version) = self.state.versions().cluster() {
            self.neighbours
                .metrics
                .set_cluster_version(&format!("{}.{}", version.major, version.minor));
        }
        let (index, term) = self.state.applied();
        standing.set_applied(index, term, &mut self.outbox);
        self.outbox.send();
        self.neighbours.metrics.server.proposals_applied.set_unsigned(index);
        self.neighbours.driver.report(Input::Applied);
        log::info!("applied snapshot", "current-applied-index" = index, "took" = started.elapsed());
        Ok(false)
    }

    /// Brings members that a leader of 3.5 did not store up to what its snapshot says of them beside the
    /// file (`bootstrap::old_members` has the reasons).
    fn repair_members(&mut self, snapshot: &Snapshot) -> Result<(), ApplyError> {
        if storage_version(&self.backend).is_some_and(|version| version >= FIRST_COMPLETE) {
            return Ok(());
        }
        let told = V2Membership::from_json(&snapshot.data)?;
        let truth = self.state.members().reconciled(&told.members);
        self.state.repair_members(truth);
        self.state.publish();
        Ok(())
    }

    fn account(&self, kind: RequestKind, applied: &Applied, took: Duration) {
        if let Some(Ok(response)) = &applied.outcome {
            self.count(response);
        }
        let metrics = &self.neighbours.metrics.server;
        let success = !matches!(&applied.outcome, Some(Err(_)));
        metrics.apply_duration.observe(kind, success, took);
        if took > self.pace.slow_apply {
            metrics.slow_apply.inc();
            log::warn!(
                "apply request took too long",
                "took" = took,
                "expected-duration" = self.pace.slow_apply,
                "prefix" = "",
                "request" = kind.name()
            );
        }
    }

    /// Counts what was done to the keyspace.
    fn count(&self, response: &Response) {
        let metrics = &self.neighbours.metrics.mvcc;
        match response {
            Response::Put(_) => metrics.put.inc(),
            Response::DeleteRange(_) => metrics.delete.inc(),
            Response::Range(_) => metrics.range.inc(),
            Response::Txn(txn) => {
                let operation_count = self.count_operations(&txn.responses);
                if operation_count > 1 {
                    metrics.txn.inc();
                }
            }
            Response::Compaction(_)
            | Response::LeaseGrant(_)
            | Response::LeaseRevoke(_)
            | Response::LeaseCheckpoint(_)
            | Response::Alarm(_)
            | Response::AuthStatus(_)
            | Response::Empty => {}
        }
    }

    fn count_operations(&self, operations: &[ResponseOp]) -> usize {
        let metrics = &self.neighbours.metrics.mvcc;
        let mut count = 0;
        for operation in operations {
            count += 1;
            match &operation.response {
                Some(Operation::ResponsePut(_)) => metrics.put.inc(),
                Some(Operation::ResponseDeleteRange(_)) => metrics.delete.inc(),
                Some(Operation::ResponseRange(_)) => metrics.range.inc(),
                Some(Operation::ResponseTxn(txn)) => {
                    count += self.count_operations(&txn.responses);
                    count -= 1;
                }
                None => {}
            }
        }
        count
    }

    /// Answers whoever waits, and looks at what the entry changed for the server.
    fn settle(&mut self, applied: Applied, address: Option<Address<Answer>>) {
        if let (Some(outcome), Some(address)) = (applied.outcome, address) {
            self.outbox.push(address, Answer::Applied(Box::new(outcome)));
        }
        match applied.notice {
            None | Some(Notice::MemberAttributes(_) | Notice::Downgrade) => {}
            Some(Notice::ClusterVersion { from, to }) => {
                let version = format!("{}.{}", to.major, to.minor);
                self.neighbours.metrics.set_cluster_version(&version);
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
                self.follow_cluster_version();
                if from.is_some_and(|from| to < from) {
                    self.take_snapshot();
                }
            }
            Some(Notice::Compaction { .. }) => {
                self.hand_over(Vec::new());
                let now = Instant::now();
                self.compaction.next_step.get_or_insert(now);
                self.compaction.started.get_or_insert(now);
            }
            Some(Notice::OutOfSpace) => self.raise_no_space(),
        }
    }

    /// Proposes the alarm that stops writes everywhere.
    fn raise_no_space(&self) {
        warn_of_full_store(self.state.readers().quota, self.backend.size_bytes());
        let alarm = AlarmRequest {
            action: alarm_request::AlarmAction::Activate.into(),
            member_id: self.identity.member_id,
            alarm: AlarmType::Nospace.into(),
        };
        let request_id = self.neighbours.request_ids.next();
        let request = InternalRaftRequest {
            header: Some(RequestHeader { id: request_id, ..RequestHeader::default() }),
            alarm: Some(alarm),
            ..InternalRaftRequest::default()
        };
        let proposal = Proposal { request_id, data: request.encode_to_vec().into() };
        // If the queue is full the next write over the quota raises it again.
        let _raised = self.neighbours.driver.request(Input::Propose(proposal)).is_ok();
    }

    /// Brings the version that the backend file names in line with the cluster's.
    fn follow_cluster_version(&mut self) {
        let standing = &self.neighbours.standing;
        // A file that names no version and knows no term is of the oldest kind.
        let storage = standing.storage_version().unwrap_or(Version::OLDEST_FILE);
        let cluster = self.state.versions().cluster();
        match follow_cluster_version(storage, cluster, self.state.batch_mut()) {
            Ok(true) => {
                standing.set_storage_version(cluster);
                log::info!(
                    "updated storage version",
                    "new-storage-version" = cluster.map_or_else(String::new, |v| v.to_string())
                );
                self.hand_over(Vec::new());
            }
            // A file that names no version is as old as such a cluster.
            Ok(false) if cluster == Some(storage) => standing.set_storage_version(cluster),
            Ok(false) => {}
            Err(error) => {
                log::warn!("failed to update storage version", "error" = error.to_string());
            }
        }
    }

    fn take_snapshot(&mut self) {
        let (index, term) = self.state.applied();
        log::info!(
            "triggering snapshot",
            "local-member-id" = format!("{:x}", self.identity.member_id),
            "local-member-applied-index" = index
        );
        let order = SnapshotOrder::new(index, term, self.state.members(), self.state.versions());
        self.hand_over(vec![Then::Snapshot(order)]);
    }

    fn await_compactions(&mut self, done: Done<()>) {
        if self.state.store().is_compaction_idle() {
            self.hand_over(vec![Then::Tell(done)]);
        } else {
            self.compaction.waiting.push(done);
        }
    }

    /// Does a step of a compaction if it is time and the backend thread keeps up.
    fn work_at_compaction(&mut self) {
        let now = Instant::now();
        let due = self.compaction.next_step.is_some_and(|at| at <= now);
        if !due || self.neighbours.committer.is_full() {
            return;
        }
        let step = self.state.compaction_step(self.pace.compaction_step);
        self.neighbours.metrics.mvcc.compaction_pause.observe(now.elapsed());
        self.neighbours.metrics.mvcc.compaction_keys.add(step.deleted_count as u64);
        self.compaction.removed_count += step.deleted_count as u64;
        self.compaction.next_step = step.more.then(|| now + self.pace.compaction_pause);
        if let Some(revision) = step.finished {
            self.finish_compaction(revision, now);
        } else if step.deleted_count > 0 {
            self.hand_over(Vec::new());
        }
    }

    fn finish_compaction(&mut self, revision: i64, now: Instant) {
        let took = self.compaction.started.replace(now).map_or(Duration::ZERO, |at| now - at);
        let count = std::mem::take(&mut self.compaction.removed_count);
        let mut then = Vec::new();
        if self.state.store().is_compaction_idle() {
            self.compaction.started = None;
            then = self.compaction.waiting.drain(..).map(Then::Tell).collect();
        }
        let (metrics, backend) = (Arc::clone(&self.neighbours.metrics), self.backend.clone());
        then.push(Then::Tell(Box::new(move |()| {
            metrics.mvcc.compaction_total.observe(took);
            let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            metrics.mvcc.compaction_last.set_unsigned(since_epoch.map_or(0, |at| at.as_secs()));
            log::info!(
                "finished scheduled compaction",
                "compact-revision" = revision,
                "took" = took,
                "number-of-keys-compacted" = count,
                "current-db-size-bytes" = backend.size_bytes(),
                "current-db-size-in-use-bytes" = backend.size_in_use_bytes()
            );
        })));
        self.hand_over(then);
    }

    fn hand_over_if_due(&mut self) {
        let fill = self.state.pending_batch().fill(self.pace.batch_ops_max);
        let is_full = fill > 0;
        let is_due = self.commit_at.is_some_and(|at| at <= Instant::now());
        if !is_full && !is_due {
            return;
        }
        if fill >= BATCH_GROWTH_MAX {
            self.hand_over(Vec::new());
            return;
        }
        if self.neighbours.committer.is_full() {
            self.commit_at = Some(Instant::now() + OFFER_AGAIN);
            return;
        }
        self.hand_over(Vec::new());
    }

    /// Gives the open batch to the backend thread, waiting for a place if need be.
    fn hand_over(&mut self, then: Vec<Then>) {
        self.commit_at = None;
        let batch = self.state.take_batch();
        if batch.is_empty() && then.is_empty() {
            return;
        }
        // The thread is gone only after a fault, which stops this one too.
        drop(self.neighbours.committer.send(Order::Commit { batch, then }));
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
