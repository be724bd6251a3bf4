//! Client requests, from their arrival to the reply. `core::request` decides which checks a request needs and for which
//! event it waits. This module executes the checks and waits for the event.
//!
//! # Not here
//!
//! Lease requests that only the leader can answer (`lease_holder`).

use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{InternalRaftRequest, RequestHeader, WatchCreateRequest};
use quorate_core::request::{
    Ask as RequestToCheck, Course, Disarming, QuotaHeadroom, Ready, Step, encode, no_space_alarm,
};
use quorate_core::{Job, LeaseTask};
use quorate_node::Proposal;
use quorate_raft::{ConfChange, LogIndex, Term};
use quorate_state::alarm::Cause;
use quorate_state::apply::{Refusal, Response, check_overlap, read_range, read_txn};
use quorate_state::units::{LeaseId, MemberId};

use super::client_request::{ClientRequest, Failure, OpId, Reply};
use super::input::Input;
use super::outlet::{Outcome, Outputs};
use super::{Out, Process, Reader, Waiter};
use crate::clock::Micros;

/// The user with all permissions.
pub(crate) const ROOT: &str = "root";

impl Process {
    /// Accepts a user's request. The reply follows as an [`Out::Reply`], unless the process ends first.
    pub fn handle_request(&mut self, op: OpId, user: &str, request: ClientRequest, now: Micros) {
        self.now = now;
        if let Err(reply) = self.start_request(op, user, request) {
            self.out.push(Out::Reply(op, reply));
        }
        self.route_outputs();
    }

    fn start_request(&mut self, op: OpId, user: &str, request: ClientRequest) -> Result<(), Reply> {
        self.note_full_file(op, &request);
        let none = InternalRaftRequest::default;
        let request = match request {
            ClientRequest::Range(range) => {
                let ready = self.prepare(RequestToCheck::Range(&range))?;
                let needs_barrier = ready == (Ready::Read { needs_barrier: true });
                self.begin_read(op, needs_barrier, ClientRequest::Range(range));
                return Ok(());
            }
            ClientRequest::Put(put) => {
                self.prepare(RequestToCheck::Put(&put))?;
                InternalRaftRequest { put: Some(put), ..none() }
            }
            ClientRequest::Delete(delete) => {
                self.prepare(RequestToCheck::DeleteRange(&delete))?;
                InternalRaftRequest { delete_range: Some(Box::new(delete)), ..none() }
            }
            ClientRequest::Txn(txn) => match self.prepare(RequestToCheck::Txn(&txn))? {
                Ready::Propose => InternalRaftRequest { txn: Some(txn), ..none() },
                Ready::Read { needs_barrier } => {
                    self.begin_read(op, needs_barrier, ClientRequest::Txn(txn));
                    return Ok(());
                }
            },
            ClientRequest::Compact(compaction) => {
                if compaction.physical {
                    self.waiting_requests.insert(op, ClientRequest::Compact(compaction));
                }
                InternalRaftRequest { compaction: Some(compaction), ..none() }
            }
            ClientRequest::LeaseGrant(mut grant) => {
                self.prepare(RequestToCheck::LeaseGrant)?;
                if grant.id == 0 {
                    grant.id = (self.next_id() & (u64::MAX >> 1)).cast_signed();
                }
                InternalRaftRequest { lease_grant: Some(grant), ..none() }
            }
            ClientRequest::LeaseRevoke(revoke) => {
                InternalRaftRequest { lease_revoke: Some(revoke), ..none() }
            }
            ClientRequest::LeaseKeepAlive(id) => {
                self.begin_renewal(op, LeaseId(id));
                return Ok(());
            }
            ClientRequest::LeaseTimeToLive { id, keys } => {
                self.begin_task(op, LeaseTask::time_to_live(LeaseId(id), keys));
                return Ok(());
            }
            ClientRequest::Change(change) => {
                self.propose_change(op, change);
                return Ok(());
            }
            ClientRequest::Defragment => {
                self.outputs.orders.push_back(super::defragment(op));
                return Ok(());
            }
            ClientRequest::Internal(request) => *request,
            ClientRequest::Watch(create) => {
                self.open_stream(op, create);
                return Ok(());
            }
        };
        let header = Some(self.header_of(user));
        let request = InternalRaftRequest { header, ..request };
        self.propose(request, Waiter::Op(op), Some(op));
        Ok(())
    }

    /// Runs the checks of a request.
    fn prepare(&mut self, request: RequestToCheck<'_>) -> Result<Ready, Reply> {
        let refused = |refusal| Reply::Refused(Refusal::Request(refusal));
        let mut course = Course::new(self.settings.txn_ops_max);
        loop {
            match course.step(request).map_err(refused)? {
                // The user of a simulated request is always known, so the credentials need no check.
                Step::Credentials => {}
                Step::Quota { cost } => self.check_quota(cost)?,
                Step::Compare { .. } => {
                    if let RequestToCheck::Txn(txn) = request {
                        check_overlap(txn).map_err(refused)?;
                    }
                }
                Step::Ready(ready) => return Ok(ready),
            }
        }
    }

    fn headroom(&self) -> QuotaHeadroom {
        let headroom_bytes = self.settings.quota_headroom_bytes;
        QuotaHeadroom { quota: self.published_state.quota, headroom_bytes }
    }

    /// Refuses a write that exceeds the quota, and raises the NOSPACE alarm.
    fn check_quota(&mut self, cost: u64) -> Result<(), Reply> {
        if self.headroom().allows(self.backend.size_bytes(), cost) {
            return Ok(());
        }
        self.out.push(Out::RareState("a write exceeds the quota"));
        let alarm = no_space_alarm(self.id, AlarmAction::Activate, Cause::Other);
        self.propose(alarm, Waiter::Internal, None);
        Err(Reply::Failed(Failure::Never("no space")))
    }

    /// Records a put that arrived while the backend file was at its maximum size.
    fn note_full_file(&mut self, op: OpId, request: &ClientRequest) {
        let file_bytes = self.backend.size_bytes();
        let used = file_bytes.saturating_add(self.settings.quota_headroom_bytes);
        let is_full = self.published_state.quota.bytes_max().is_some_and(|most| used >= most);
        if is_full && matches!(request, ClientRequest::Put(_)) {
            self.puts_without_room.insert(op);
        }
    }

    /// Returns a request header with the user and the revision of the users and roles, both of which production reads
    /// from the token.
    fn header_of(&self, user: &str) -> RequestHeader {
        let view = self.published_state.auth.view();
        match view.is_enabled() {
            true => {
                RequestHeader { id: 0, username: user.to_owned(), auth_revision: view.revision() }
            }
            false => RequestHeader::default(),
        }
    }

    fn next_id(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// Proposes a request, whose outcome is delivered to the waiter.
    pub(super) fn propose(
        &mut self,
        request: InternalRaftRequest,
        waiter: Waiter,
        op: Option<OpId>,
    ) {
        let Some(proposal) = self.proposal(request, waiter, op) else { return };
        self.inputs.push_back(Input::Propose(proposal));
    }

    /// Proposes a request that is valid only while the member leads in this term.
    pub(super) fn propose_as_leader(
        &mut self,
        term: Term,
        request: InternalRaftRequest,
        waiter: Waiter,
    ) {
        let Some(proposal) = self.proposal(request, waiter, None) else { return };
        self.inputs.push_back(Input::ProposeAsLeader { term, proposal });
    }

    fn proposal(
        &mut self,
        request: InternalRaftRequest,
        waiter: Waiter,
        op: Option<OpId>,
    ) -> Option<Proposal> {
        let request_id = self.next_id();
        // The member's own requests have all permissions.
        let header = request.header.clone().unwrap_or_else(|| self.header_of(ROOT));
        let header = RequestHeader { id: request_id, ..header };
        let Some(proposal) = encode(header, request, self.settings.request_bytes_max) else {
            self.fail_waiter(waiter, Failure::Never("the request is too large"));
            return None;
        };
        let is_added = self.outputs.pending.add(request_id, waiter, proposal.data.len());
        assert!(is_added, "a simulated member accepts any number of pending proposals");
        if let Some(op) = op {
            self.proposed.insert(op, request_id);
        }
        Some(proposal)
    }

    fn propose_change(&mut self, op: OpId, change: ConfChange) {
        let id = self.next_id();
        let bytes = change.context.len();
        let is_added = self.outputs.pending.add_change(id, Waiter::Op(op), bytes);
        assert!(is_added, "a simulated member accepts any number of pending proposals");
        self.proposed.insert(op, id);
        self.changes.insert(id);
        self.inputs.push_back(Input::Change(ConfChange { id, ..change }));
    }

    fn begin_read(&mut self, op: OpId, needs_barrier: bool, request: ClientRequest) {
        self.waiting_requests.insert(op, request);
        if needs_barrier {
            self.begin_barrier(Reader::Op(op));
        } else {
            self.answer_read(op);
        }
    }

    /// Makes a reader wait for a read barrier, or resumes the reader at once if its read needs no barrier.
    pub(super) fn begin_barrier(&mut self, reader: Reader) {
        let Outputs { state, published, published_term, .. } = &self.outputs;
        if state.reads_need_no_barrier(*published, *published_term) {
            self.release(reader);
        } else {
            self.inputs.push_back(Input::Barrier(reader));
        }
    }

    /// Answers a read with data from the published state.
    fn answer_read(&mut self, op: OpId) {
        let view = self.published_state.view();
        let reply = match self.waiting_requests.remove(&op) {
            Some(ClientRequest::Range(range)) => match read_range(&view, &range) {
                Ok(Ok(mut response)) => {
                    let header = response.header.get_or_insert_default();
                    header.revision = view.current_revision();
                    Reply::Range(response)
                }
                Ok(Err(refusal)) => Reply::Refused(refusal),
                Err(_) => Reply::Failed(Failure::Never("the disk has failed")),
            },
            Some(ClientRequest::Txn(txn)) => match read_txn(&view, &txn) {
                Ok((Ok(response), _)) => Reply::Txn(response),
                Ok((Err(refusal), _)) => Reply::Refused(refusal),
                Err(_) => Reply::Failed(Failure::Never("the disk has failed")),
            },
            Some(_) | None => return,
        };
        self.out.push(Out::Reply(op, reply));
    }

    pub(super) fn await_applied(&mut self, index: LogIndex, reader: Reader) {
        if let Some(reader) = self.applied_waits.wait(reader, index, self.outputs.published) {
            self.release(reader);
        }
    }

    /// Resumes the readers whose index is published.
    pub(super) fn release_readers(&mut self) {
        while let Some(readers) = self.applied_waits.take_released(self.outputs.published) {
            readers.into_iter().for_each(|reader| self.release(reader));
        }
    }

    fn release(&mut self, reader: Reader) {
        match reader {
            Reader::Op(op) => self.answer_read(op),
            Reader::Task(op) => self.resume_task(op, true),
            Reader::Care(care) => self.propose_lease_changes(care),
        }
    }

    pub(super) fn fail_reader(&mut self, reader: &Reader) {
        match reader {
            Reader::Op(op) => {
                self.waiting_requests.remove(op);
                let failure = Failure::Never("the leader has changed");
                self.out.push(Out::Reply(*op, Reply::Failed(failure)));
            }
            Reader::Task(op) => self.resume_task(*op, false),
            Reader::Care(_) => {}
        }
    }

    pub(super) fn fail_waiter(&mut self, waiter: Waiter, failure: Failure) {
        match waiter {
            Waiter::Op(op) => self.out.push(Out::Reply(op, Reply::Failed(failure))),
            Waiter::Task(op) => self.resume_task(op, false),
            Waiter::Internal => {}
        }
    }

    /// Delivers published outcomes and completed jobs.
    pub(super) fn deliver_outcomes(&mut self) {
        for (waiter, outcome) in std::mem::take(&mut self.outputs.outcomes) {
            match waiter {
                Waiter::Op(op) => self.deliver_outcome(op, outcome),
                Waiter::Task(op) => {
                    let is_done = matches!(outcome, Outcome::Applied(Ok(_)));
                    self.resume_task(op, is_done);
                }
                Waiter::Internal => {}
            }
        }
        for op in std::mem::take(&mut self.outputs.completed) {
            if op != 0 {
                self.out.push(Out::Reply(op, Reply::Done(Response::Empty)));
            }
        }
    }

    fn deliver_outcome(&mut self, op: OpId, outcome: Outcome) {
        self.proposed.remove(&op);
        let had_no_room = self.puts_without_room.remove(&op);
        assert!(
            !(had_no_room && matches!(outcome, Outcome::Applied(Ok(_)))),
            "a put that arrived while the backend file was full was applied"
        );
        let reply = match outcome {
            // The reply to a physical compaction is sent after the compacted records are removed.
            Outcome::Applied(Ok(Response::Compaction(_)))
                if self.waiting_requests.remove(&op).is_some() =>
            {
                self.jobs.push_back(Job::AwaitCompactions(op));
                return;
            }
            Outcome::Applied(Ok(response)) => Reply::Done(response),
            Outcome::Applied(Err(Refusal::NoSpace)) => Reply::Failed(Failure::Unknown("no space")),
            Outcome::Applied(Err(refusal)) => Reply::Refused(refusal),
            Outcome::Changed(Ok(())) => Reply::Changed,
            Outcome::Changed(Err(_)) => {
                Reply::Failed(Failure::Never("the membership change was refused"))
            }
        };
        self.out.push(Out::Reply(op, reply));
    }

    /// Records that the client has abandoned the request.
    pub fn give_up(&mut self, op: OpId) {
        self.waiting_requests.remove(&op);
        self.puts_without_room.remove(&op);
        self.tasks.remove(&op);
        self.streams.remove(&op);
        if let Some(request) = self.proposed.remove(&op) {
            let withdrawn = self.outputs.pending.withdraw(request);
            self.inputs.extend(withdrawn.map(Input::Event));
            if self.changes.contains(&request) {
                self.inputs.push_back(Input::ChangeGivenUp(request));
            }
        }
    }

    fn open_stream(&mut self, op: OpId, create: WatchCreateRequest) {
        let mut stream = self.published_state.hub.open_stream(self.settings.fragment_bytes_max);
        stream.create(create, |_, _| Ok(()));
        self.streams.insert(op, stream);
    }

    /// Starts or stops refusing writes. A leader refuses writes while its backend file has no room to grow and no other
    /// member can lead.
    pub(super) fn refuse_writes(&mut self, refuses: bool) {
        self.refuses_writes = refuses;
        self.out.push(Out::RareState("a leader without room starts or stops refusing writes"));
        self.update_disk_alarm();
    }

    /// Raises or disarms the alarm for a full disk. As in production, this also happens after a restart.
    fn update_disk_alarm(&mut self) {
        let due = self
            .published_state
            .facts()
            .alarms
            .due_for_disk(MemberId(self.id), self.refuses_writes);
        let Some(action) = due else { return };
        let is_allowed = match action {
            AlarmAction::Deactivate => match self.decide_disarming() {
                Disarming::Allowed => true,
                Disarming::IfWritten => !self.writer.lacks_space(),
                Disarming::Refused => false,
            },
            AlarmAction::Activate | AlarmAction::Get => true,
        };
        if is_allowed {
            self.outputs.change_no_space(action, Cause::FullDisk);
        }
    }

    fn decide_disarming(&self) -> Disarming {
        let state = &self.outputs.state;
        let leads = state.has_leader().then(|| state.leads());
        let file_bytes = self.backend.size_bytes();
        Disarming::decide(leads, file_bytes, self.published_state.quota.bytes_max())
    }

    /// Publishes the name of this member unless it has been published already, sets the first cluster version, and
    /// updates the alarm for a full disk.
    pub fn run_housekeeping(&mut self, name: &str, version: &str, now: Micros) {
        use quorate_api::membershippb::{
            Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
        };
        self.now = now;
        let facts = self.published_state.facts();
        if !self.outputs.state.has_leader() {
            return;
        }
        let is_quiet = !self.outputs.pending.waiters().any(|waiter| *waiter == Waiter::Internal);
        let own = facts.members.get(MemberId(self.id));
        if is_quiet && own.is_some_and(|own| own.client_urls.is_empty()) {
            let attributes = Attributes {
                name: name.to_owned(),
                client_urls: vec![format!("http://{name}:2379")],
            };
            let set = ClusterMemberAttrSetRequest {
                member_id: self.id,
                member_attributes: Some(attributes),
            };
            let request = InternalRaftRequest {
                cluster_member_attr_set: Some(Box::new(set)),
                ..InternalRaftRequest::default()
            };
            self.propose(request, Waiter::Internal, None);
        }
        if is_quiet && self.outputs.state.leads() && facts.versions.cluster().is_none() {
            let set = ClusterVersionSetRequest { ver: version.to_owned() };
            let request = InternalRaftRequest {
                cluster_version_set: Some(Box::new(set)),
                ..InternalRaftRequest::default()
            };
            self.propose(request, Waiter::Internal, None);
        }
        // The alarm is checked periodically, because an operator may have disarmed it, or replayed entries may have
        // changed it.
        if is_quiet {
            self.update_disk_alarm();
        }
        self.jobs.push_back(Job::FollowClusterVersion);
        self.route_outputs();
    }
}
