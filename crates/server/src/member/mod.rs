//! The member as the services see it: propose, read, wait, and look up.
//!
//! Everything here may be called from any connection runtime. Nothing blocks: what takes long is awaited,
//! and what the core threads own is reached by messages or read from published views.
//!
//! # Not here
//!
//! gRPC (`grpc`), HTTP (`http`), what the member does by itself (`housekeeping`), and what it does as one of
//! several: `membership`, `leadership`, `lease_holder` and `versions` add to [`Member`].

mod error;
mod limits;
mod stream_ends;
mod timeout;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message;
use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmType, InternalRaftRequest, RequestHeader, ResponseHeader, alarm_request,
};
use quorate_api::record::KeyValue;
use quorate_core::Defragmented;
use quorate_node::Proposal;
use quorate_raft::{ConfChange, Status};
use quorate_state::apply::{self, Facts, Readers, Refusal, Response};
use quorate_state::backend::Backend;
use quorate_state::lease::Leases;
use quorate_state::mvcc::{MvccError, RangeQuery, RangeResult, SortOrder, SortTarget, View};
use quorate_state::units::{MemberId, Millis};
use quorate_state::versions::Version;
use quorate_state::watch::{HistoryFault, Hub};
use tokio::sync::oneshot;

pub(crate) use self::error::RequestError;
pub(crate) use self::limits::Limits;
pub(crate) use self::stream_ends::StreamEnd;
use self::stream_ends::StreamEnds;
use self::timeout::{Lead, TimedOut};
use crate::admission::{Admission, Bound, Room};
use crate::answer::Answer;
use crate::applier::Job;
use crate::clock::Clock;
use crate::committer::{Done, Order};
use crate::driver::{DriverHandle, Input};
use crate::fatal::FaultReports;
use crate::identity::Identity;
use crate::inbox;
use crate::limit_notices::warn_of_full_store;
use crate::mailbox::{self, DeskCell};
use crate::metrics::{Metrics, RequestKind};
use crate::peer::Peers;
use crate::peer::pool::ConnectionPool;
use crate::release::reported_version;
use crate::request_id::RequestIds;
use crate::runtime::blocking;
use crate::standing::Standing;
use crate::waiters::{Load, Waiters};

thread_local! {
    /// The requests of this connection runtime that wait; its postman runs in `server`.
    pub(crate) static DESK: DeskCell<Answer> = const { DeskCell::new() };
}

/// How long a membership change is waited for when the caller sets no bound. etcd waits for ever.
const CONF_CHANGE_PATIENCE: Duration = Duration::from_secs(3600);

/// The references of a list to its records are counted from here on, before it is read.
const LONG_LIST_RECORDS: usize = 16 * 1024;

/// Reading so many keys takes milliseconds, for which other requests of a connection thread should not wait.
const LONG_WALK_KEYS: usize = 32 * 1024;

/// What it takes to answer a read.
#[derive(Debug)]
pub(crate) struct Weight {
    /// Whether the read is for other threads than those of the connections.
    pub(crate) is_long: bool,
    /// The room that was reserved for what it returns.
    pub(crate) room: Option<Room>,
}

/// Everything a [`Member`] is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) driver: DriverHandle,
    pub(crate) peers: Arc<Peers>,
    pub(crate) applier: inbox::Sender<Job>,
    pub(crate) backend_orders: crossbeam_channel::Sender<Order>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) readers: Readers,
    pub(crate) backend: Backend,
    pub(crate) faults: FaultReports,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) request_ids: Arc<RequestIds>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Member {
    parts: Parts,
    /// When this member last became leader.
    led_since: Mutex<Option<Instant>>,
    stream_ends: StreamEnds,
    admission: Admission,
    /// For what the leader is asked on behalf of clients.
    to_leader: ConnectionPool,
    /// Defragmentations that somebody waits for.
    defragmentation_count: Mutex<usize>,
    /// What the health service says.
    serving: tokio::sync::watch::Sender<bool>,
}

impl Member {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            parts,
            led_since: Mutex::new(None),
            stream_ends: StreamEnds::default(),
            admission: Admission::default(),
            to_leader: ConnectionPool::default(),
            defragmentation_count: Mutex::new(0),
            serving: tokio::sync::watch::Sender::new(true),
        }
    }

    /// The bounds on what clients may ask for at one time.
    pub(crate) const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// What the proposals in progress come to.
    pub(crate) fn proposals_load(&self) -> Load {
        self.parts.waiters.load()
    }

    pub(crate) const fn to_leader(&self) -> &ConnectionPool {
        &self.to_leader
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.parts.identity
    }

    pub(crate) const fn limits(&self) -> &Limits {
        &self.parts.limits
    }

    pub(crate) const fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.metrics
    }

    pub(crate) const fn standing(&self) -> &Arc<Standing> {
        &self.parts.standing
    }

    pub(crate) const fn backend(&self) -> &Backend {
        &self.parts.backend
    }

    pub(crate) const fn hub(&self) -> &Hub {
        &self.parts.readers.hub
    }

    pub(crate) const fn leases(&self) -> &Leases {
        &self.parts.readers.leases
    }

    pub(crate) fn now(&self) -> Millis {
        self.parts.clock.now()
    }

    /// The newest published view of the keyspace.
    pub(crate) fn view(&self) -> Arc<View> {
        self.parts.readers.view()
    }

    /// What is known of members, alarms and versions.
    pub(crate) fn facts(&self) -> Arc<Facts> {
        self.parts.readers.facts()
    }

    pub(crate) const fn cluster_id(&self) -> u64 {
        self.parts.identity.cluster_id
    }

    pub(crate) const fn id(&self) -> u64 {
        self.parts.identity.member_id
    }

    pub(crate) fn applied_term(&self) -> u64 {
        self.parts.standing.applied_term()
    }

    pub(crate) fn is_learner(&self) -> bool {
        let own = MemberId(self.id());
        self.parts
            .readers
            .look(|facts| facts.members.get(own).is_some_and(|member| member.is_learner))
    }

    /// The version that this member counts as in its cluster.
    pub(crate) fn version(&self) -> Version {
        self.parts.limits.held_version.unwrap_or(Version::OWN)
    }

    /// That version as clients and peers are told it.
    pub(crate) fn version_text(&self) -> String {
        reported_version(self.parts.limits.held_version)
    }

    pub(crate) fn has_leader(&self) -> bool {
        self.parts.standing.leader() != quorate_raft::NONE
    }

    pub(crate) fn next_lease_id(&self) -> i64 {
        self.parts.request_ids.next_lease()
    }

    /// The header of a response at a store revision.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.parts.identity.cluster_id,
            member_id: self.parts.identity.member_id,
            revision,
            raft_term: self.parts.standing.applied_term(),
        }
    }

    /// The header of a response at the current revision.
    pub(crate) fn current_header(&self) -> ResponseHeader {
        self.header(self.view().current_revision())
    }

    /// Fills in what the state machine leaves to the member.
    pub(crate) fn complete(&self, header: Option<ResponseHeader>) -> Option<ResponseHeader> {
        Some(self.header(header.map_or(0, |header| header.revision)))
    }

    /// Sends a request through the log and waits for its outcome.
    pub(crate) async fn propose(
        &self,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        self.propose_by(Input::Propose, request, kind).await
    }

    /// The same for what a leader finds out by its own clocks: fails unless it leads in that term still when
    /// the request reaches the log. Another leader's clocks may say otherwise.
    pub(crate) async fn propose_as_leader(
        &self,
        term: u64,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        let input = |proposal| Input::ProposeAsLeader { term, proposal };
        self.propose_by(input, request, kind).await
    }

    async fn propose_by(
        &self,
        input: impl FnOnce(Proposal) -> Input,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        let standing = &self.parts.standing;
        let first = kind == RequestKind::LeaseRevoke && self.parts.limits.revocations_first;
        if standing.is_overloaded(first) {
            return Err(RequestError::TooManyRequests);
        }
        let request_id = self.parts.request_ids.next();
        let header = RequestHeader { id: request_id, ..RequestHeader::default() };
        let data = InternalRaftRequest { header: Some(header), ..request }.encode_to_vec();
        if data.len() > self.parts.limits.request_bytes_max {
            return Err(RequestError::TooLarge);
        }
        let started = Instant::now();
        let deadline = started + self.parts.limits.request_timeout;
        let (address, waiting) = mailbox::wait(&DESK, deadline).ok_or(RequestError::Stopped)?;
        self.parts.waiters.add(request_id, address, data.len())?;
        let ticket = Ticket::new(self, request_id, kind, started);
        let proposal = Proposal { request_id, data: data.into() };
        if let Err(full) = self.parts.driver.request(input(proposal)) {
            drop(self.parts.waiters.take(request_id));
            return Err(full.into());
        }
        match waiting.await {
            Some(Answer::Applied(outcome)) => {
                ticket.succeed();
                (*outcome).map_err(RequestError::from)
            }
            Some(Answer::ProposalFailed(failure)) => Err(failure.into()),
            Some(Answer::BarrierFailed(_) | Answer::Ready | Answer::ConfChange(_)) => {
                unreachable!("a proposal's slot gets a proposal's answer")
            }
            None => Err(self.explain_timeout(started)),
        }
    }

    /// Sends a membership change through the log and waits until it is in force, or refused, as long as the
    /// caller waits. The change's id is filled in here.
    pub(crate) async fn propose_conf_change(
        &self,
        mut change: ConfChange,
    ) -> Result<(), RequestError> {
        change.id = self.parts.request_ids.next();
        let request_id = change.id;
        let (address, waiting) = mailbox::wait(&DESK, Instant::now() + CONF_CHANGE_PATIENCE)
            .ok_or(RequestError::Stopped)?;
        self.parts.waiters.add(request_id, address, change.context.len())?;
        let _withdrawal = Withdrawal { waiters: &self.parts.waiters, request_id };
        self.parts.driver.request(Input::ProposeConfChange(change))?;
        match waiting.await {
            Some(Answer::ConfChange(outcome)) => outcome.map_err(RequestError::Membership),
            Some(Answer::ProposalFailed(failure)) => Err(failure.into()),
            Some(Answer::Applied(_) | Answer::BarrierFailed(_) | Answer::Ready) => {
                unreachable!("a membership change's slot gets its answer")
            }
            None => Err(RequestError::Timeout),
        }
    }

    /// What consensus knows of the group.
    pub(crate) async fn raft_status(&self) -> Result<Status, RequestError> {
        let (done, told) = oneshot::channel();
        let place = self.take_task()?;
        let done: Done<Status> = Box::new(move |status| {
            _ = done.send(status);
            drop(place);
        });
        self.parts.driver.request(Input::AskStatus(done))?;
        told.await.map_err(|_| RequestError::Stopped)
    }

    /// Asks consensus to hand the lead over. Whether it does shows in who leads.
    pub(crate) fn transfer_leadership(&self, to: u64) -> Result<(), RequestError> {
        Ok(self.parts.driver.request(Input::TransferLeadership(to))?)
    }

    /// Takes a place for a question or an order to a core thread.
    pub(crate) fn take_task(&self) -> Result<Room, RequestError> {
        Ok(Bound::take_owned(&self.admission.tasks, 1)?)
    }

    /// The other members.
    pub(crate) const fn peers(&self) -> &Arc<Peers> {
        &self.parts.peers
    }

    /// Waits until a read of the newest view is not stale.
    pub(crate) async fn read_barrier(&self) -> Result<(), RequestError> {
        if self.parts.standing.reads_need_no_barrier() {
            return Ok(());
        }
        let _place = self.admission.reads.take(1)?;
        let deadline = Instant::now() + self.parts.limits.request_timeout;
        let (address, waiting) = mailbox::wait(&DESK, deadline).ok_or(RequestError::Stopped)?;
        self.parts.driver.request(Input::ReadBarrier(address))?;
        match waiting.await {
            Some(Answer::Ready) => Ok(()),
            Some(Answer::BarrierFailed(failure)) => {
                self.parts.metrics.server.read_indexes_failed.inc();
                Err(failure.into())
            }
            Some(Answer::Applied(_) | Answer::ProposalFailed(_) | Answer::ConfChange(_)) => {
                unreachable!("a barrier's slot gets a barrier's answer")
            }
            None => {
                self.parts.metrics.server.slow_read_indexes.inc();
                Err(RequestError::Timeout)
            }
        }
    }

    /// Waits, for a short while, until everything known to be committed is applied.
    pub(crate) async fn wait_applied(&self) -> Result<(), RequestError> {
        let standing = &self.parts.standing;
        let committed = standing.committed();
        if standing.applied() >= committed {
            return Ok(());
        }
        let _place = self.admission.reads.take(1)?;
        let deadline = Instant::now() + self.parts.limits.apply_timeout;
        let (address, waiting) = mailbox::wait(&DESK, deadline).ok_or(RequestError::Stopped)?;
        standing.when_applied(committed, address);
        waiting.await.map(drop).ok_or(RequestError::TimeoutWaitingForApply)
    }

    /// Says what it takes to answer these queries, and waits for room for what they return, if that is
    /// long. How long is told by the newest revision, which for an older one is near enough.
    pub(crate) async fn weigh<'a>(
        &self,
        queries: impl IntoIterator<Item = &'a RangeQuery>,
    ) -> Result<Weight, RequestError> {
        let (mut returned, mut walked) = (0_usize, 0_usize);
        for query in queries {
            if query.range_end.is_empty() {
                continue;
            }
            let view = self.view();
            let counting = RangeQuery { count_only: true, revision: 0, ..query.clone() };
            let count = view.range(&counting).map_err(|error| self.read_error(error))?.count;
            let bound = if query.count_only {
                0
            } else if query.limit > 0 && limits_the_work(query) {
                query.limit
            } else {
                i64::MAX
            };
            let is_historic = query.revision > 0 && query.revision < view.current_revision();
            let walked_bound = if is_historic { i64::MAX } else { bound };
            let at_most = |bound: i64| usize::try_from(count.min(bound)).unwrap_or(usize::MAX);
            returned = returned.saturating_add(at_most(bound));
            walked = walked.saturating_add(at_most(walked_bound));
        }
        let room = if returned < LONG_LIST_RECORDS {
            None
        } else {
            let bytes = returned.saturating_mul(size_of::<KeyValue>()) as u64;
            let patience = self.parts.limits.request_timeout;
            Some(Bound::take_within(&self.admission.lists, bytes, patience).await?)
        };
        Ok(Weight { is_long: room.is_some() || walked >= LONG_WALK_KEYS, room })
    }

    /// Reads a range from the newest view.
    pub(crate) fn range(&self, query: &RangeQuery) -> Result<RangeResult, RequestError> {
        self.parts.metrics.mvcc.range.inc();
        let started = Instant::now();
        let result = self.view().range(query);
        let success = if result.is_ok() { "true" } else { "false" };
        self.parts.metrics.server.range_duration.with(&[success]).observe(started.elapsed());
        result.map_err(|error| self.read_error(error))
    }

    /// Tells a refusal from a failure of this machine, which also stops the member.
    pub(crate) fn read_error(&self, error: MvccError) -> RequestError {
        match error {
            MvccError::Refusal(refusal) => RequestError::Refused(refusal.into()),
            MvccError::Fault(fault) => self.fault(fault),
        }
    }

    /// The answer of a read that the state machine has evaluated.
    pub(crate) fn answer<T>(
        &self,
        answer: Result<Result<T, Refusal>, apply::Fault>,
    ) -> Result<T, RequestError> {
        match answer {
            Ok(outcome) => outcome.map_err(RequestError::Refused),
            Err(fault) => Err(self.fault(fault)),
        }
    }

    /// Reports that this machine has failed; the member stops.
    pub(crate) fn fault(
        &self,
        fault: impl std::error::Error + Send + Sync + 'static,
    ) -> RequestError {
        let text = Arc::from(fault.to_string());
        self.parts.faults.report("reading the backend file", fault);
        RequestError::Fault(text)
    }

    /// Refuses a write for which there is no room, and has everybody told.
    pub(crate) async fn check_quota(&self, cost: u64) -> Result<(), RequestError> {
        let (quota, size_bytes) = (self.parts.readers.quota, self.parts.backend.size_bytes());
        if quota.allows(size_bytes, cost) {
            return Ok(());
        }
        // Once is enough: as long as the alarm is raised, every write comes by here.
        if !self.facts().alarms.is_out_of_space() {
            warn_of_full_store(quota, size_bytes);
        }
        let alarm = AlarmRequest {
            action: alarm_request::AlarmAction::Activate.into(),
            member_id: self.id(),
            alarm: AlarmType::Nospace.into(),
        };
        let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        // Whether or not that works out, there is no room.
        drop(self.propose(request, RequestKind::Alarm).await);
        Err(RequestError::Refused(Refusal::NoSpace))
    }

    /// Waits until everything applied so far is in the backend file.
    pub(crate) async fn commit_backend(&self) -> Result<(), RequestError> {
        self.ask_applier(Job::Commit).await
    }

    /// Waits until the compactions accepted so far have removed what they had to.
    pub(crate) async fn wait_compacted(&self) -> Result<(), RequestError> {
        self.ask_applier(Job::AwaitCompactions).await
    }

    async fn ask_applier(&self, job: impl FnOnce(Done<()>) -> Job) -> Result<(), RequestError> {
        let (done, told) = oneshot::channel();
        let place = self.take_task()?;
        // Nobody is told when the request is gone.
        let done: Done<()> = Box::new(move |()| {
            _ = done.send(());
            drop(place);
        });
        self.parts.applier.send(job(done)).map_err(|_| RequestError::Stopped)?;
        told.await.map_err(|_| RequestError::Stopped)
    }

    /// Whether the health service says that this member serves.
    pub(crate) fn serving(&self) -> tokio::sync::watch::Receiver<bool> {
        self.serving.subscribe()
    }

    /// Notes that a defragmentation begins or ends.
    fn count_defragmentations(&self, change: impl FnOnce(&mut usize)) {
        let mut count = self.defragmentation_count.lock();
        change(&mut count);
        self.parts.metrics.disk.defrag_inflight.set(i64::from(*count > 0));
        if self.parts.limits.unhealthy_on_defragmentation {
            self.serving.send_replace(*count == 0);
        }
    }

    /// Gives free space of the backend file back.
    pub(crate) async fn defragment(&self) -> Result<Defragmented, RequestError> {
        let _defragmenting = Defragmenting::begin(self);
        self.commit_backend().await?;
        let (done, told) = oneshot::channel();
        let place = self.take_task()?;
        let done: Done<Defragmented> = Box::new(move |result| {
            _ = done.send(result);
            drop(place);
        });
        let orders = self.parts.backend_orders.clone();
        // The queue may be full for as long as a commit takes.
        let sent = blocking(move || orders.send(Order::Defragment(done)).is_ok()).await;
        if !sent {
            return Err(RequestError::Stopped);
        }
        told.await.map_err(|_| RequestError::Stopped)
    }

    /// Tells the applier something, if it is still there.
    pub(crate) fn tell_applier(&self, job: Job) {
        _ = self.parts.applier.send(job);
    }

    /// The status of a stream that cannot go on because the store cannot be read; the member stops.
    pub(crate) fn fail_reading(&self, fault: HistoryFault) -> tonic::Status {
        let status = tonic::Status::unknown(fault.to_string());
        self.parts.faults.report("reading history for watchers", ReadingHistory(fault));
        status
    }

    /// Ends when a stream that begins now has to: when this member stops, or, if the stream requires a leader,
    /// when that has been missing for too long.
    pub(crate) fn stream_end(&self, requires_leader: bool) -> StreamEnd {
        self.stream_ends.wait(requires_leader)
    }

    /// Ends all streams that are open, and those that begin from now on. For the member's stop.
    pub(crate) fn end_streams(&self) {
        self.stream_ends.stop();
    }

    /// Called by housekeeping when no leader was found several times in a row.
    pub(crate) fn report_leader_loss(&self) {
        self.stream_ends.lose_leader();
    }

    /// Called by housekeeping when this member becomes leader.
    pub(crate) fn note_leading(&self) {
        *self.led_since.lock() = Some(Instant::now());
    }

    /// Why a request got no answer in time.
    fn explain_timeout(&self, started: Instant) -> RequestError {
        let (standing, peers) = (&self.parts.standing, &self.parts.peers);
        // Without a leader it was never proposed: what ended it is its own time.
        if standing.had_no_leader_since(started) {
            return RequestError::DeadlineExceeded;
        }
        let lead = match standing.leader() {
            quorate_raft::NONE => Lead::Nobody,
            id if id == self.id() => self.parts.readers.look(|facts| Lead::Own {
                member_count: facts.members.iter().len(),
                connected_since: facts
                    .members
                    .iter()
                    .filter(|member| member.id.0 != id)
                    .filter_map(|member| peers.active_since(member.id.0))
                    .collect(),
            }),
            id => Lead::Other { connected_since: peers.active_since(id) },
        };
        let election_timeout = self.parts.limits.election_timeout;
        TimedOut { started, led_since: *self.led_since.lock(), election_timeout, lead }.explain()
    }
}

/// Whether a range reads no more records than it returns. Other sorts and filters look at all of them.
fn limits_the_work(query: &RangeQuery) -> bool {
    let in_key_order = query.sort_order == SortOrder::None || query.sort_target == SortTarget::Key;
    let bounds = [
        query.min_mod_revision,
        query.max_mod_revision,
        query.min_create_revision,
        query.max_create_revision,
    ];
    in_key_order && bounds == [0; 4]
}

/// The store could not be read for watchers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ReadingHistory(pub(crate) HistoryFault);

/// A defragmentation that somebody waits for, however that ends.
struct Defragmenting<'a> {
    member: &'a Member,
}

impl<'a> Defragmenting<'a> {
    fn begin(member: &'a Member) -> Self {
        member.count_defragmentations(|count| *count += 1);
        Self { member }
    }
}

impl Drop for Defragmenting<'_> {
    fn drop(&mut self) {
        self.member.count_defragmentations(|count| *count -= 1);
    }
}

/// Ends a membership change that nobody will ask for any more. It is small, and a leader may make nothing of it.
struct Withdrawal<'a> {
    waiters: &'a Waiters,
    request_id: u64,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        drop(self.waiters.take(self.request_id));
    }
}

/// A proposal in progress. Withdraws its waiter and counts it as failed, unless it succeeded: however the
/// call ends, with an answer, at its deadline, or because the client has gone.
struct Ticket<'a> {
    member: &'a Member,
    request_id: u64,
    kind: RequestKind,
    started: Instant,
    succeeded: bool,
}

impl<'a> Ticket<'a> {
    fn new(member: &'a Member, request_id: u64, kind: RequestKind, started: Instant) -> Self {
        member.parts.metrics.server.proposals_pending.inc();
        Self { member, request_id, kind, started, succeeded: false }
    }

    fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let metrics = &self.member.parts.metrics.server;
        metrics.proposals_pending.dec();
        if !self.succeeded {
            metrics.proposals_failed.inc();
            self.member.parts.waiters.withdraw(self.request_id);
        }
        metrics.request_duration.observe(self.kind, self.succeeded, self.started.elapsed());
    }
}
