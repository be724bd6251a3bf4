//! Proposes requests: sends them through the log and returns their outcomes.
//!
//! # Not here
//!
//! The checks of a client's request before it is proposed (`requests::writer`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest, RequestHeader};
use quorate_core::request::{QuotaHeadroom, encode, no_space_alarm};
use quorate_net::runtime::{blocking, may_wait};
use quorate_node::reconfiguration::Danger;
use quorate_node::{Proposal, ProposalFailure};
use quorate_peer::Peers;
use quorate_raft::{ConfChange, Term};
use quorate_requests::access::AccessControl;
use quorate_requests::slow::Trace;
use quorate_requests::{RequestError, StoreFuture, StoreResult, Write, WriteFuture};
use quorate_state::alarm::Cause;
use quorate_state::apply::{Command, PublishedState, Request, Response};
use quorate_state::backend::Backend;
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;
use quorate_telemetry::trace::CallTrace;

use crate::requests::compaction_point;
use crate::requests::member_info::MemberInfo;
use crate::requests::slow_writes::{self, TracedWrites};
use crate::requests::timeout::{Lead, TimedOut};
use crate::requests::weight::Weight;
use crate::threads::channels::{DriverHandle, Input, ProcessedBy};
use crate::threads::completion::{self, Waiting};
use crate::threads::limit_notices::warn_of_full_store;
use crate::threads::outcome::{AWAITING, Answer, Outcome};
use crate::threads::pending_proposals::{Load, PendingProposals};
use crate::threads::request_id::RequestIds;
use crate::threads::write_stages::Stages;

/// Maximum wait for a membership change. A caller with a deadline stops waiting earlier. etcd waits without a limit.
const CONF_CHANGE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Proposes requests to the log and returns their outcomes.
#[derive(Debug)]
pub struct Proposer {
    pub(crate) info: Arc<MemberInfo>,
    pub(crate) access_control: Arc<AccessControl>,
    pub(crate) driver: DriverHandle,
    pub(crate) pending: Arc<PendingProposals>,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) published: PublishedState,
    pub(crate) backend: Backend,
    pub(crate) peers: Arc<Peers>,
    pub(crate) traced: TracedWrites,
    /// The time at which this member last became leader.
    pub(crate) led_since: Mutex<Option<Instant>>,
}

impl Proposer {
    /// Returns the number and the total size of the proposals in progress.
    pub fn load(&self) -> Load {
        self.pending.load()
    }

    /// Chooses the id of a lease for a client that provides none.
    pub fn next_lease_id(&self) -> i64 {
        self.request_ids.next_lease()
    }

    /// Refuses a request if too many entries wait for the applier.
    pub(crate) fn check_load(&self, kind: RequestKind) -> Result<(), RequestError> {
        let first = kind == RequestKind::LeaseRevoke && self.info.limits().revocations_first;
        if self.info.member_status().is_overloaded(first) {
            return Err(RequestError::TooManyRequests);
        }
        Ok(())
    }

    /// Sends a client's request through the log. The returned future waits for the outcome. Permissions are checked
    /// when the entry is applied. `kept` receives the encoded request, which shares its memory with the log.
    pub(crate) fn propose_for<'a>(
        &'a self,
        Write { request, kind, user, trace }: Write<'a>,
        kept: Option<&mut Bytes>,
    ) -> WriteFuture<'a, Result<Response, RequestError>> {
        match self.send(Input::Propose, user, request, kind, kept) {
            Ok(sent) => WriteFuture::from(self.outcome_of(sent, trace)),
            Err(error) => WriteFuture::from(std::future::ready(Err(error))),
        }
    }

    /// Proposes a request of the member itself, which needs no permission.
    pub async fn propose_as_member(
        &self,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        self.propose_own(Input::Propose, request, kind).await
    }

    /// Proposes a request that depends on the clocks of this leader. The proposal fails unless the member still leads
    /// in `term` when the request reaches the log, because the clocks of another leader may differ.
    pub async fn propose_as_leader(
        &self,
        term: Term,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        let input = |proposal, accepted| Input::ProposeAsLeader { term, proposal, accepted };
        self.propose_own(input, request, kind).await
    }

    async fn propose_own(
        &self,
        input: impl FnOnce(Proposal, Instant) -> Input,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        self.check_load(kind)?;
        let user = self.access_control.user_for_own_write();
        let sent = self.send(input, user, request, kind, None)?;
        self.outcome_of(sent, None).await
    }

    /// Encodes a request and sends it to the driver.
    fn send(
        &self,
        input: impl FnOnce(Proposal, Instant) -> Input,
        (username, auth_revision): (String, u64),
        request: InternalRaftRequest,
        kind: RequestKind,
        kept: Option<&mut Bytes>,
    ) -> Result<Sent<'_>, RequestError> {
        let request_id = self.request_ids.next();
        let header = RequestHeader { id: request_id, username, auth_revision };
        let bytes_max = self.info.limits().request_bytes_max;
        let proposal = encode(header, request, bytes_max).ok_or(RequestError::TooLarge)?;
        let started = Instant::now();
        let deadline = started + self.info.limits().request_timeout;
        let (completer, waiting) =
            completion::wait(&AWAITING, deadline).ok_or(RequestError::Stopped)?;
        let is_alone = self.pending.add(request_id, completer, proposal.data.len())? == 1;
        let ticket = Ticket::new(self, request_id, kind, started);
        if let Some(kept) = kept {
            *kept = proposal.data.clone();
        }
        let disk_wait = if is_alone { may_wait() } else { None };
        let by = match disk_wait {
            Some(_) => ProcessedBy::CallerWithSync,
            None if is_alone => ProcessedBy::Caller,
            None => ProcessedBy::DriverThread,
        };
        let requested = self.driver.request(input(proposal, started), by);
        drop(disk_wait);
        if let Err(full) = requested {
            drop(self.pending.take(request_id));
            return Err(full.into());
        }
        Ok(Sent { waiting, ticket })
    }

    /// Waits for the outcome of a request that was sent.
    async fn outcome_of(
        &self,
        Sent { waiting, ticket }: Sent<'_>,
        trace: Option<&Arc<CallTrace>>,
    ) -> Result<Response, RequestError> {
        let Ticket { request_id, kind, started, .. } = ticket;
        match waiting.await {
            Some(Outcome::Applied(answer)) => {
                ticket.succeed();
                if let Some(trace) = trace {
                    self.trace_stages(trace, started, &answer);
                }
                if self.traced.wants(answer.applied.saturating_duration_since(started)) {
                    self.trace(request_id, kind, started, &answer);
                }
                answer.outcome.map_err(RequestError::from)
            }
            Some(Outcome::ProposalFailed(failure)) => Err(proposal_error(failure)),
            Some(Outcome::BarrierFailed(_) | Outcome::Ready | Outcome::ConfChange(_)) => {
                unreachable!("the slot of a proposal receives only the outcome of that proposal")
            }
            None => Err(self.explain_timeout(started)),
        }
    }

    /// Adds the stages of a write to the trace of its call.
    #[cold]
    fn trace_stages(&self, trace: &Arc<CallTrace>, started: Instant, answer: &Answer) {
        let Answer { index, applied, .. } = *answer;
        let answered = Instant::now();
        trace.note_event("Send raft proposal", started);
        trace.note_event("Receive raft result", answered);
        let (trace, parent) = (Arc::clone(trace), trace.current());
        let done = move |stages: Option<Stages>| {
            for (name, start, end) in
                slow_writes::spans_of_write(stages, started, (applied, answered))
            {
                trace.stage(parent, name, start, end);
            }
        };
        // If the driver is overloaded, these stages are not reported.
        _ = self
            .driver
            .request(Input::AskStages { index, done: Box::new(done) }, ProcessedBy::DriverThread);
    }

    /// Logs the steps of a slow write.
    #[cold]
    fn trace(&self, request_id: u64, kind: RequestKind, started: Instant, answer: &Answer) {
        let Answer { index, applied, .. } = *answer;
        let answered = Instant::now();
        let done = move |stages: Option<Stages>| {
            let detail = [("index", index.get().to_string())];
            let (id, operation) = (Some(request_id), slow_writes::operation(kind));
            let steps = slow_writes::steps_of_write(stages, applied, answered);
            Trace { id, operation, detail: &detail, started, steps: &steps }.log();
        };
        // If the driver is overloaded, these stages are not reported.
        _ = self
            .driver
            .request(Input::AskStages { index, done: Box::new(done) }, ProcessedBy::DriverThread);
    }

    /// Proposes a membership change and waits until it takes effect or is refused, but at most for
    /// [`CONF_CHANGE_TIMEOUT`]. Sets the id of the change.
    pub async fn propose_conf_change(&self, mut change: ConfChange) -> Result<(), RequestError> {
        change.id = self.request_ids.next();
        let request_id = change.id;
        let (completer, waiting) =
            completion::wait(&AWAITING, Instant::now() + CONF_CHANGE_TIMEOUT)
                .ok_or(RequestError::Stopped)?;
        self.pending.add_change(request_id, completer, change.context.len())?;
        let _withdrawal = Withdrawal { proposer: self, request_id };
        self.driver.request(Input::ProposeConfChange(change), ProcessedBy::DriverThread)?;
        match waiting.await {
            Some(Outcome::ConfChange(outcome)) => outcome.map_err(RequestError::Membership),
            Some(Outcome::ProposalFailed(failure)) => Err(proposal_error(failure)),
            Some(Outcome::Applied(_) | Outcome::BarrierFailed(_) | Outcome::Ready) => {
                unreachable!(
                    "the slot of a membership change receives only the outcome of that change"
                )
            }
            None => Err(RequestError::Timeout),
        }
    }

    /// Withdraws a proposal whose client no longer waits.
    fn withdraw(&self, request_id: u64) {
        if let Some(event) = self.pending.withdraw(request_id) {
            self.driver.report(Input::Event(event));
        }
    }

    /// Returns the quota of the backend file, if there is one.
    pub(crate) const fn quota_bytes(&self) -> Option<u64> {
        self.published.quota.bytes_max()
    }

    /// Returns the size of the backend file, and how much of it is in use.
    pub(crate) fn backend_bytes(&self) -> (u64, u64) {
        let stats = self.backend.stats();
        (stats.size_bytes, stats.in_use_bytes)
    }

    /// Returns whether the quota allows the backend file to grow by `cost` bytes.
    pub(crate) fn has_room(&self, cost: u64) -> bool {
        let (quota, size_bytes) = (self.published.quota, self.backend.size_bytes());
        let headroom = QuotaHeadroom { quota, headroom_bytes: self.info.limits().quota_headroom };
        headroom.allows(size_bytes, cost)
    }

    /// Logs that a client's write exceeds the quota, and raises the alarm.
    pub(crate) async fn refuse_growth(&self) {
        // Every refused write reaches this line until the alarm is disarmed, but the excess is logged only while the
        // alarm is not active yet.
        if !self.info.facts().alarms.is_out_of_space() {
            warn_of_full_store(self.published.quota, self.backend.size_bytes());
        }
        // The write is refused even if raising the alarm fails.
        drop(self.raise_no_space(Cause::Other).await);
    }

    /// Raises the CORRUPT alarm for a member, or for member id 0 if the corrupt member is unknown.
    pub(crate) async fn raise_corrupt(&self, member_id: u64) -> Result<(), RequestError> {
        let (action, alarm) = (AlarmAction::Activate.into(), AlarmType::Corrupt.into());
        let alarm = AlarmRequest { action, member_id, alarm };
        let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        self.propose_as_member(request, RequestKind::Alarm).await.map(drop)
    }

    /// Raises the NOSPACE alarm of this member. While it is active, all members refuse requests that add data.
    pub(crate) async fn raise_no_space(&self, cause: Cause) -> Result<(), RequestError> {
        let request = no_space_alarm(self.info.id(), AlarmAction::Activate, cause);
        self.propose_as_member(request, RequestKind::Alarm).await.map(drop)
    }

    /// Returns the revision at which a requested compaction is proposed.
    pub fn compaction_point(&self, revision: i64) -> i64 {
        if !self.has_members_of_etcd() {
            return revision;
        }
        // If the records cannot be read, the revision is unchanged. The compaction is then refused when it is applied,
        // or applying it stops the member.
        let point =
            compaction_point::harmless(&self.published.view(), revision).unwrap_or(revision);
        if point != revision {
            log::info!(
                "compacting one revision earlier than requested: etcd members would lose a key that was deleted and \
                 written again at the requested revision",
                "requested-revision" = revision,
                "revision" = point
            );
        }
        point
    }

    /// Refuses a client's write that this member refuses when it applies the write, if the cluster has members that run
    /// etcd. Commands that add a user or a role are checked in every cluster, because a name that is too long must never
    /// enter the log ([`AuthCommand::check_new_name`](quorate_state::apply::AuthCommand::check_new_name)).
    ///
    /// Many versions of etcd do not check every part of a write when they apply it: a member that did not receive a
    /// transaction from the client drops the ranges before the checks, older versions do not check the permissions for
    /// nested operations, etcd 3.5 checks no permissions while NOSPACE is active, and etcd up to 3.5.7 grants
    /// permissions for invalid ranges. These members would execute a write that Quorate members refuse. A write that is
    /// proposed here is still refused by Quorate members alone if the state changes between this check and the write's
    /// entry.
    pub(crate) fn check_for_etcd(&self, write: &Write<'_>) -> StoreResult<'_, ()> {
        let has_new_name =
            write.request.auth_user_add.is_some() || write.request.auth_role_add.is_some();
        if !has_new_name && !self.has_members_of_etcd() {
            return StoreFuture::ready(Ok(()));
        }
        let (username, auth_revision) = write.user.clone();
        let header = RequestHeader { id: 0, username, auth_revision };
        let request = InternalRaftRequest { header: Some(header), ..write.request.clone() };
        // A request without a command cannot be executed by any member.
        let Ok(request) = Request::from_message(request) else {
            return StoreFuture::ready(Ok(()));
        };
        let is_large = |txn| !Weight::of_txn(txn, &self.published.view()).is_small();
        let is_small = !matches!(&request.command, Command::Txn(txn) if is_large(txn));
        let published = self.published.clone();
        // If the records cannot be read, the write is proposed. Applying it then stops the member.
        let check = move || published.check(&request).unwrap_or(Ok(())).map_err(RequestError::from);
        if is_small {
            return StoreFuture::ready(check());
        }
        StoreFuture::pending(blocking(check))
    }

    /// Returns whether one of the other members runs etcd. A member that has not connected to this member yet counts as
    /// a member that runs etcd.
    fn has_members_of_etcd(&self) -> bool {
        self.published.look(|facts| {
            let mut others = facts.members.iter().filter(|member| member.id.0 != self.info.id());
            others.any(|member| !self.peers.announces_settings(member.id.0))
        })
    }

    /// Records the time at which this member became leader. Called by housekeeping.
    pub fn note_leading(&self) {
        *self.led_since.lock() = Some(Instant::now());
    }

    /// Returns the probable reason why a request has timed out.
    fn explain_timeout(&self, started: Instant) -> RequestError {
        let (member_status, peers) = (self.info.member_status(), &self.peers);
        // Without a leader, the request was never proposed, so the error reports that the request's own deadline has
        // passed.
        if member_status.had_no_leader_since(started) {
            return RequestError::DeadlineExceeded;
        }
        let lead = match member_status.leader() {
            quorate_raft::NONE => Lead::Nobody,
            id if id == self.info.id() => self.published.look(|facts| Lead::Own {
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
        let election_timeout = self.info.limits().election_timeout;
        TimedOut { started, led_since: *self.led_since.lock(), election_timeout, lead }.explain()
    }
}

fn proposal_error(failure: ProposalFailure) -> RequestError {
    match failure {
        ProposalFailure::Dropped => RequestError::ProposalDropped,
        ProposalFailure::QueueFull => RequestError::TooManyRequests,
        ProposalFailure::Expired => RequestError::Timeout,
        ProposalFailure::UnsafeChange(danger) => danger_error(danger),
    }
}

/// Returns the error for a membership change that would endanger the quorum.
pub(crate) const fn danger_error(danger: Danger) -> RequestError {
    match danger {
        Danger::NotEnoughStarted => RequestError::NotEnoughStartedMembers,
        Danger::Unhealthy => RequestError::Unhealthy,
    }
}

/// A request on its way through the log.
struct Sent<'a> {
    waiting: Waiting<Outcome>,
    ticket: Ticket<'a>,
}

/// Withdraws a membership change when its caller no longer waits.
struct Withdrawal<'a> {
    proposer: &'a Proposer,
    request_id: u64,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        self.proposer.withdraw(self.request_id);
    }
}

/// A proposal in progress. Unless the proposal has succeeded, dropping this value withdraws the proposal and counts it
/// as failed, whether the call ended with an error, at its deadline, or because the client disconnected.
struct Ticket<'a> {
    proposer: &'a Proposer,
    request_id: u64,
    kind: RequestKind,
    started: Instant,
    succeeded: bool,
}

impl<'a> Ticket<'a> {
    fn new(proposer: &'a Proposer, request_id: u64, kind: RequestKind, started: Instant) -> Self {
        proposer.info.metrics().server.proposals_pending.inc();
        Self { proposer, request_id, kind, started, succeeded: false }
    }

    fn succeed(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let metrics = &self.proposer.info.metrics().server;
        metrics.proposals_pending.dec();
        if !self.succeeded {
            metrics.proposals_failed.inc();
            self.proposer.withdraw(self.request_id);
        }
        metrics.request_duration.observe(self.kind, self.succeeded, self.started.elapsed());
    }
}
