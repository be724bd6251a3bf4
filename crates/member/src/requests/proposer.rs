//! Proposes requests: sends them through the log and returns their outcomes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmType, InternalRaftRequest, RequestHeader, TxnRequest,
};
use quorate_core::request::{Ask, Course, QuotaHeadroom, Ready, Step, encode, no_space_alarm};
use quorate_node::Proposal;
use quorate_raft::{ConfChange, Term};
use quorate_state::alarm::Cause;
use quorate_state::apply::{PublishedState, Refusal, Response, check_overlap};
use quorate_state::backend::Backend;

use crate::error::RequestError;
use crate::requests::access::{AccessControl, Author, Client};
use crate::requests::compaction_point;
use crate::requests::member_info::MemberInfo;
use crate::requests::reader::Reader;
use crate::requests::slow::{self, Trace, TracedWrites};
use crate::requests::timeout::{Lead, TimedOut};
use crate::threads::channels::{DriverHandle, Input};
use crate::threads::completion;
use crate::threads::limit_notices::warn_of_full_store;
use crate::threads::outcome::{AWAITING, Answer, Outcome};
use crate::threads::pending_proposals::{Load, PendingProposals};
use crate::threads::request_id::RequestIds;
use crate::threads::write_stages::Stages;
use quorate_net::runtime::blocking;
use quorate_peer::Peers;
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;
use quorate_telemetry::trace::CallTrace;

/// Maximum wait for a membership change if the caller sets no deadline. etcd waits without a limit.
const CONF_CHANGE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Maximum number of operations of a transaction that are compared with each other on a connection thread. This takes
/// less than a millisecond.
const COMPARED_INLINE_MAX: usize = 1_024;

/// Proposes requests to the log and returns their outcomes.
#[derive(Debug)]
pub struct Proposer {
    pub(crate) info: Arc<MemberInfo>,
    pub(crate) access_control: Arc<AccessControl>,
    pub(crate) reader: Arc<Reader>,
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
    /// Returns the number and the bytes of the proposals in progress.
    pub fn load(&self) -> Load {
        self.pending.load()
    }

    /// Chooses the id of a lease for a client that provides none.
    pub fn next_lease_id(&self) -> i64 {
        self.request_ids.next_lease()
    }

    /// Checks a client's request before it is proposed or read.
    pub async fn prepare(&self, client: &Client, ask: Ask<'_>) -> Result<Ready, RequestError> {
        let mut course = Course::new(self.info.limits().txn_ops_max);
        loop {
            match course.step(ask)? {
                Step::Credentials => self.check_credentials(client).await?,
                Step::Quota { cost } => self.check_room(client, cost).await?,
                Step::Compare { operation_count } => {
                    if let Ask::Txn(txn) = ask {
                        compare(txn, operation_count).await?;
                    }
                }
                Step::Ready(ready) => return Ok(ready),
            }
        }
    }

    /// Sends a client's request through the log and waits for its outcome. Permissions are checked when the entry is
    /// applied. A client without credentials, or with an invalid token, is refused before its request is proposed, so
    /// that the request takes no space in the log.
    pub async fn propose_for(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        self.propose_by(Input::Propose, Author::Client(client), request, kind, None).await
    }

    /// Like [`Proposer::propose_for`], but also sets `kept` to the encoded request, for the log line about a slow
    /// request. `kept` shares its memory with the log.
    pub async fn propose_and_keep(
        &self,
        client: &Client,
        request: InternalRaftRequest,
        kind: RequestKind,
        kept: &mut Bytes,
    ) -> Result<Response, RequestError> {
        self.propose_by(Input::Propose, Author::Client(client), request, kind, Some(kept)).await
    }

    /// Proposes a request of the member itself, which needs no permission.
    pub async fn propose_as_member(
        &self,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        self.propose_by(Input::Propose, Author::Member, request, kind, None).await
    }

    /// Proposes a request that depends on the clocks of this leader. The proposal fails unless the member still leads
    /// in that term when the request reaches the log, because the clocks of another leader may differ.
    pub async fn propose_as_leader(
        &self,
        term: Term,
        request: InternalRaftRequest,
        kind: RequestKind,
    ) -> Result<Response, RequestError> {
        let input = |proposal| Input::ProposeAsLeader { term, proposal };
        self.propose_by(input, Author::Member, request, kind, None).await
    }

    async fn propose_by(
        &self,
        input: impl FnOnce(Proposal) -> Input,
        author: Author<'_>,
        request: InternalRaftRequest,
        kind: RequestKind,
        kept: Option<&mut Bytes>,
    ) -> Result<Response, RequestError> {
        let member_status = self.info.member_status();
        let first = kind == RequestKind::LeaseRevoke && self.info.limits().revocations_first;
        if member_status.is_overloaded(first) {
            return Err(RequestError::TooManyRequests);
        }
        if let Author::Client(client) = author
            && needs_user(kind)
        {
            self.check_credentials(client).await?;
        }
        let request_id = self.request_ids.next();
        let (username, auth_revision) = self.access_control.sign(author)?;
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
        if let Err(full) = self.driver.request(input(proposal), is_alone) {
            drop(self.pending.take(request_id));
            return Err(full.into());
        }
        match waiting.await {
            Some(Outcome::Applied(answer)) => {
                ticket.succeed();
                if let Author::Client(Client { trace: Some(trace), .. }) = author {
                    self.trace_stages(trace, started, &answer);
                }
                if self.traced.wants(answer.applied.saturating_duration_since(started)) {
                    self.trace(request_id, kind, started, &answer);
                }
                answer.outcome.map_err(RequestError::from)
            }
            Some(Outcome::ProposalFailed(failure)) => Err(failure.into()),
            Some(Outcome::BarrierFailed(_) | Outcome::Ready | Outcome::ConfChange(_)) => {
                unreachable!("the slot of a proposal receives its outcome")
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
            for (name, start, end) in slow::spans_of_write(stages, started, (applied, answered)) {
                trace.stage(parent, name, start, end);
            }
        };
        // If the driver is overloaded, these stages are not reported.
        _ = self.driver.request(Input::AskStages { index, done: Box::new(done) }, false);
    }

    /// Logs the steps of a slow write.
    #[cold]
    fn trace(&self, request_id: u64, kind: RequestKind, started: Instant, answer: &Answer) {
        let Answer { index, applied, .. } = *answer;
        let answered = Instant::now();
        let done = move |stages: Option<Stages>| {
            let detail = [("index", index.get().to_string())];
            let (id, operation) = (Some(request_id), slow::operation(kind));
            let steps = slow::steps_of_write(stages, applied, answered);
            Trace { id, operation, detail: &detail, started, steps: &steps }.log();
        };
        // If the driver is overloaded, these stages are not reported.
        _ = self.driver.request(Input::AskStages { index, done: Box::new(done) }, false);
    }

    /// Proposes a membership change and waits until it takes effect or is refused, but at most until the deadline. Sets
    /// the id of the change.
    pub async fn propose_conf_change(&self, mut change: ConfChange) -> Result<(), RequestError> {
        change.id = self.request_ids.next();
        let request_id = change.id;
        let (completer, waiting) =
            completion::wait(&AWAITING, Instant::now() + CONF_CHANGE_TIMEOUT)
                .ok_or(RequestError::Stopped)?;
        self.pending.add(request_id, completer, change.context.len())?;
        let _withdrawal = Withdrawal { pending: &self.pending, request_id };
        self.driver.request(Input::ProposeConfChange(change), false)?;
        match waiting.await {
            Some(Outcome::ConfChange(outcome)) => outcome.map_err(RequestError::Membership),
            Some(Outcome::ProposalFailed(failure)) => Err(failure.into()),
            Some(Outcome::Applied(_) | Outcome::BarrierFailed(_) | Outcome::Ready) => {
                unreachable!("the slot of a membership change receives its outcome")
            }
            None => Err(RequestError::Timeout),
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

    /// Refuses a client without credentials if authentication is enabled. Another member may have disabled it a moment
    /// ago, so the check is repeated after a read barrier before the client is refused.
    async fn check_credentials(&self, client: &Client) -> Result<(), RequestError> {
        if self.access_control.check_user(&client.credentials).is_ok() {
            return Ok(());
        }
        self.reader.read_barrier().await?;
        self.access_control.check_user(&client.credentials)
    }

    /// Refuses a client's write that exceeds the quota, and raises the alarm. The client's credentials are checked first,
    /// because the alarm is a proposal.
    async fn check_room(&self, client: &Client, cost: u64) -> Result<(), RequestError> {
        let (quota, size_bytes) = (self.published.quota, self.backend.size_bytes());
        let headroom = QuotaHeadroom { quota, headroom_bytes: self.info.limits().quota_headroom };
        if headroom.allows(size_bytes, cost) {
            return Ok(());
        }
        self.check_credentials(client).await?;
        // The excess is logged only once. Until the alarm is disarmed, every refused write reaches this line.
        if !self.info.facts().alarms.is_out_of_space() {
            warn_of_full_store(quota, size_bytes);
        }
        // The write is refused even if raising the alarm fails.
        drop(self.raise_no_space(Cause::Other).await);
        Err(RequestError::Refused(Refusal::NoSpace))
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
        // If the records cannot be read, the revision is unchanged. Applying the compaction then refuses it or stops
        // the member.
        let point =
            compaction_point::harmless(&self.published.view(), revision).unwrap_or(revision);
        if point != revision {
            log::info!(
                "compacting one revision earlier: etcd members would lose a key that was deleted and written again \
                 at the requested revision",
                "requested-revision" = revision,
                "revision" = point
            );
        }
        point
    }

    fn has_members_of_etcd(&self) -> bool {
        let (own, facts) = (self.info.id(), self.info.facts());
        let gate = quorate_config::FeatureGate::CompactHashCheck.name();
        let mut others = facts.members.iter().filter(|member| member.id.0 != own);
        others.any(|member| self.peers.setting_of(member.id.0, gate).is_none())
    }

    /// Records the time at which this member became leader. Called by housekeeping.
    pub fn note_leading(&self) {
        *self.led_since.lock() = Some(Instant::now());
    }

    /// Returns the probable reason why a request has timed out.
    fn explain_timeout(&self, started: Instant) -> RequestError {
        let (member_status, peers) = (self.info.member_status(), &self.peers);
        // Without a leader, the request was never proposed, so the error is that its own deadline has passed.
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

/// Checks that no two operations of a transaction conflict. Large transactions are checked on a blocking thread.
async fn compare(txn: &TxnRequest, operation_count: usize) -> Result<(), RequestError> {
    if operation_count <= COMPARED_INLINE_MAX {
        return Ok(check_overlap(txn)?);
    }
    let txn = txn.clone();
    Ok(blocking(move || check_overlap(&txn)).await?)
}

/// Returns whether requests of this kind are refused without credentials.
const fn needs_user(kind: RequestKind) -> bool {
    !matches!(kind, RequestKind::Authenticate | RequestKind::AuthStatus)
}

/// Withdraws a membership change when its caller no longer waits. It is removed immediately, because the change may
/// never be applied and occupies little memory in the log.
struct Withdrawal<'a> {
    pending: &'a PendingProposals,
    request_id: u64,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        drop(self.pending.take(self.request_id));
    }
}

/// A proposal in progress. Unless the proposal has succeeded, dropping this value withdraws it and counts it as failed,
/// whether the call ended with an error, at its deadline, or because the client went away.
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
            self.proposer.pending.withdraw(self.request_id);
        }
        metrics.request_duration.observe(self.kind, self.succeeded, self.started.elapsed());
    }
}
