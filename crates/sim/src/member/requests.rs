//! What clients ask of a member, from the question to the answer. What is checked, and what a request waits for, says
//! `core::request`; here that is carried out.
//!
//! # Not here
//!
//! Questions about leases that only the leader can answer (`lease_holder`).

use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{InternalRaftRequest, RequestHeader, WatchCreateRequest};
use quorate_core::request::{
    Ask as Asked, Course, QuotaHeadroom, Ready, Step, encode, no_space_alarm,
};
use quorate_core::{Job, LeaseTask};
use quorate_node::Proposal;
use quorate_raft::{ConfChange, LogIndex, Term};
use quorate_state::alarm::Cause;
use quorate_state::apply::{Refusal, Response, check_overlap, read_range, read_txn};
use quorate_state::units::{LeaseId, MemberId};

use super::input::Input;
use super::outlet::{Outcome, Said};
use super::question::{Ask, Failure, OpId, Reply};
use super::{Out, Process, Reader, Waiter};
use crate::clock::Micros;

/// Who may do everything.
pub(crate) const ROOT: &str = "root";

impl Process {
    /// Takes a user's question. Its answer comes out as [`Out::Reply`], or never.
    pub fn ask(&mut self, op: OpId, user: &str, ask: Ask, now: Micros) {
        self.now = now;
        if let Err(reply) = self.begin(op, user, ask) {
            self.out.push(Out::Reply(op, reply));
        }
        self.gather();
    }

    fn begin(&mut self, op: OpId, user: &str, ask: Ask) -> Result<(), Reply> {
        self.note_lack_of_room(op, &ask);
        let none = InternalRaftRequest::default;
        let request = match ask {
            Ask::Range(range) => {
                let ready = self.prepare(Asked::Range(&range))?;
                let needs_barrier = ready == (Ready::Read { needs_barrier: true });
                self.begin_read(op, needs_barrier, Ask::Range(range));
                return Ok(());
            }
            Ask::Put(put) => {
                self.prepare(Asked::Put(&put))?;
                InternalRaftRequest { put: Some(put), ..none() }
            }
            Ask::Delete(delete) => {
                self.prepare(Asked::DeleteRange(&delete))?;
                InternalRaftRequest { delete_range: Some(delete), ..none() }
            }
            Ask::Txn(txn) => match self.prepare(Asked::Txn(&txn))? {
                Ready::Propose => InternalRaftRequest { txn: Some(txn), ..none() },
                Ready::Read { needs_barrier } => {
                    self.begin_read(op, needs_barrier, Ask::Txn(txn));
                    return Ok(());
                }
            },
            Ask::Compact(compaction) => {
                if compaction.physical {
                    self.asked.insert(op, Ask::Compact(compaction));
                }
                InternalRaftRequest { compaction: Some(compaction), ..none() }
            }
            Ask::LeaseGrant(mut grant) => {
                self.prepare(Asked::LeaseGrant)?;
                if grant.id == 0 {
                    grant.id = (self.next_id() & (u64::MAX >> 1)).cast_signed();
                }
                InternalRaftRequest { lease_grant: Some(grant), ..none() }
            }
            Ask::LeaseRevoke(revoke) => {
                InternalRaftRequest { lease_revoke: Some(revoke), ..none() }
            }
            Ask::LeaseKeepAlive(id) => {
                self.begin_task(op, LeaseTask::renew(LeaseId(id), false));
                return Ok(());
            }
            Ask::LeaseTimeToLive { id, keys } => {
                self.begin_task(op, LeaseTask::time_to_live(LeaseId(id), keys));
                return Ok(());
            }
            Ask::Change(change) => {
                self.propose_change(op, change);
                return Ok(());
            }
            Ask::Defragment => {
                self.said.orders.push_back(super::defragment(op));
                return Ok(());
            }
            Ask::Internal(request) => *request,
            Ask::Watch(create) => {
                self.open_stream(op, create);
                return Ok(());
            }
        };
        let header = Some(self.signed_by(user));
        let request = InternalRaftRequest { header, ..request };
        self.propose(request, Waiter::Op(op), Some(op));
        Ok(())
    }

    /// Takes a request through its checks.
    fn prepare(&mut self, ask: Asked<'_>) -> Result<Ready, Reply> {
        let refused = |refusal| Reply::Refused(Refusal::Request(refusal));
        let mut course = Course::new(self.settings.txn_ops_max);
        loop {
            match course.step(ask).map_err(refused)? {
                // Everybody is somebody.
                Step::Credentials => {}
                Step::Quota { cost } => self.find_room(cost)?,
                Step::Compare { .. } => {
                    if let Asked::Txn(txn) = ask {
                        check_overlap(txn).map_err(refused)?;
                    }
                }
                Step::Ready(ready) => return Ok(ready),
            }
        }
    }

    fn room(&self) -> QuotaHeadroom {
        let headroom_bytes = self.settings.quota_headroom_bytes;
        QuotaHeadroom { quota: self.readers.quota, headroom_bytes }
    }

    /// Refuses a write for which there is no room, and has everybody told.
    fn find_room(&mut self, cost: u64) -> Result<(), Reply> {
        if self.room().allows(self.backend.size_bytes(), cost) {
            return Ok(());
        }
        self.out.push(Out::Seen("a write finds the quota exceeded"));
        let alarm = no_space_alarm(self.id, AlarmAction::Activate, Cause::Other);
        self.propose(alarm, Waiter::Nobody, None);
        Err(Reply::Failed(Failure::Never("no space")))
    }

    /// Remembers of a store that it came when the file was as large as it may be.
    fn note_lack_of_room(&mut self, op: OpId, ask: &Ask) {
        let file_bytes = self.backend.size_bytes();
        let used = file_bytes.saturating_add(self.settings.quota_headroom_bytes);
        let is_full = self.readers.quota.bytes_max().is_some_and(|most| used >= most);
        if is_full && matches!(ask, Ask::Put(_)) {
            self.without_room.insert(op);
        }
    }

    /// Who asks, and as of which users and roles: what production reads off a token.
    fn signed_by(&self, user: &str) -> RequestHeader {
        let view = self.readers.auth.view();
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

    /// Sends a request through the log; its outcome goes to the waiter.
    pub(super) fn propose(
        &mut self,
        request: InternalRaftRequest,
        waiter: Waiter,
        op: Option<OpId>,
    ) {
        let Some(proposal) = self.proposal(request, waiter, op) else { return };
        self.inputs.push_back(Input::Propose(proposal));
    }

    /// The same for what only the leader of a term may want.
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
        // What a member does by itself, it may.
        let header = request.header.clone().unwrap_or_else(|| self.signed_by(ROOT));
        let header = RequestHeader { id: request_id, ..header };
        let Some(proposal) = encode(header, request, self.settings.request_bytes_max) else {
            self.fail_waiter(waiter, Failure::Never("request is too large"));
            return None;
        };
        self.await_outcome(request_id, waiter, proposal.data.len());
        if let Some(op) = op {
            self.proposed.insert(op, request_id);
        }
        Some(proposal)
    }

    fn await_outcome(&mut self, request_id: u64, waiter: Waiter, bytes: usize) {
        let is_taken = self.said.pending.add(request_id, waiter, bytes);
        assert!(is_taken, "there is no bound on proposals here");
    }

    fn propose_change(&mut self, op: OpId, change: ConfChange) {
        let id = self.next_id();
        self.await_outcome(id, Waiter::Op(op), change.context.len());
        self.proposed.insert(op, id);
        self.inputs.push_back(Input::Change(ConfChange { id, ..change }));
    }

    fn begin_read(&mut self, op: OpId, needs_barrier: bool, ask: Ask) {
        self.asked.insert(op, ask);
        if needs_barrier {
            self.begin_barrier(Reader::Op(op));
        } else {
            self.answer_read(op);
        }
    }

    /// Has somebody wait until a read is not stale, which may be now.
    pub(super) fn begin_barrier(&mut self, reader: Reader) {
        let Said { state, published, published_term, .. } = &self.said;
        if state.reads_need_no_barrier(*published, *published_term) {
            self.release(reader);
        } else {
            self.inputs.push_back(Input::Barrier(reader));
        }
    }

    /// Reads what is published now.
    fn answer_read(&mut self, op: OpId) {
        let view = self.readers.view();
        let reply = match self.asked.remove(&op) {
            Some(Ask::Range(range)) => match read_range(&view, &range) {
                Ok(Ok(mut response)) => {
                    let header = response.header.get_or_insert_default();
                    header.revision = view.current_revision();
                    Reply::Range(response)
                }
                Ok(Err(refusal)) => Reply::Refused(refusal),
                Err(_) => Reply::Failed(Failure::Never("a fault of the disk")),
            },
            Some(Ask::Txn(txn)) => match read_txn(&view, &txn) {
                Ok((Ok(response), _)) => Reply::Txn(response),
                Ok((Err(refusal), _)) => Reply::Refused(refusal),
                Err(_) => Reply::Failed(Failure::Never("a fault of the disk")),
            },
            Some(_) | None => return,
        };
        self.out.push(Out::Reply(op, reply));
    }

    pub(super) fn when_applied(&mut self, index: LogIndex, reader: Reader) {
        if let Some(reader) = self.waiting.wait(reader, index, self.said.published) {
            self.release(reader);
        }
    }

    /// Lets those go on whose index can be read.
    pub(super) fn release_readers(&mut self) {
        while let Some(readers) = self.waiting.take_released(self.said.published) {
            readers.into_iter().for_each(|reader| self.release(reader));
        }
    }

    fn release(&mut self, reader: Reader) {
        match reader {
            Reader::Op(op) => self.answer_read(op),
            Reader::Task(op) => self.resume_task(op, true),
            Reader::Care(care) => self.care_for_leases(care),
        }
    }

    pub(super) fn fail_reader(&mut self, reader: &Reader) {
        match reader {
            Reader::Op(op) => {
                self.asked.remove(op);
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
            Waiter::Nobody => {}
        }
    }

    /// Hands out what is published, and what was waited for.
    pub(super) fn tell_outcomes(&mut self) {
        for (waiter, outcome) in std::mem::take(&mut self.said.outcomes) {
            match waiter {
                Waiter::Op(op) => self.tell_outcome(op, outcome),
                Waiter::Task(op) => {
                    let is_done = matches!(outcome, Outcome::Applied(Ok(_)));
                    self.resume_task(op, is_done);
                }
                Waiter::Nobody => {}
            }
        }
        for op in std::mem::take(&mut self.said.told) {
            if op != 0 {
                self.out.push(Out::Reply(op, Reply::Done(Response::Empty)));
            }
        }
    }

    fn tell_outcome(&mut self, op: OpId, outcome: Outcome) {
        self.proposed.remove(&op);
        let had_no_room = self.without_room.remove(&op);
        assert!(
            !(had_no_room && matches!(outcome, Outcome::Applied(Ok(_)))),
            "a key was stored although the file had no room left when that was asked for"
        );
        let reply = match outcome {
            // What is physical waits for the records to be gone.
            Outcome::Applied(Ok(Response::Compaction(_))) if self.asked.remove(&op).is_some() => {
                self.jobs.push_back(Job::AwaitCompactions(op));
                return;
            }
            Outcome::Applied(Ok(response)) => Reply::Done(response),
            Outcome::Applied(Err(Refusal::NoSpace)) => Reply::Failed(Failure::Unknown("no space")),
            Outcome::Applied(Err(refusal)) => Reply::Refused(refusal),
            Outcome::Changed(Ok(())) => Reply::Changed,
            Outcome::Changed(Err(_)) => Reply::Failed(Failure::Never("refused by the members")),
        };
        self.out.push(Out::Reply(op, reply));
    }

    /// The client waits no more.
    pub fn give_up(&mut self, op: OpId) {
        self.asked.remove(&op);
        self.without_room.remove(&op);
        self.tasks.remove(&op);
        self.streams.remove(&op);
        if let Some(request) = self.proposed.remove(&op) {
            self.said.pending.withdraw(request);
        }
    }

    fn open_stream(&mut self, op: OpId, create: WatchCreateRequest) {
        let mut stream = self.readers.hub.open_stream(self.settings.fragment_bytes_max);
        stream.create(create, |_, _| Ok(()));
        self.streams.insert(op, stream);
    }

    /// Has writes refused, or no longer, because this member leads without room and no other member can lead.
    pub(super) fn refuse_writes(&mut self, refuses: bool) {
        self.refuses_writes = refuses;
        self.out.push(Out::Seen("a leader without room has writes refused, or no longer"));
        self.answer_for_full_disk();
    }

    /// Raises the alarm of a full disk, or takes it back, as production does; also after a restart.
    fn answer_for_full_disk(&mut self) {
        let due = self.readers.facts().alarms.due_for_disk(MemberId(self.id), self.refuses_writes);
        let Some(action) = due else { return };
        if action == AlarmAction::Deactivate && self.said.state.leads() && self.writer.lacks_room()
        {
            return;
        }
        self.said.change_no_space(action, Cause::FullDisk);
    }

    /// Tells the cluster this member's name, unless it knows, and a cluster that has no version its first.
    pub fn keep_house(&mut self, name: &str, version: &str, now: Micros) {
        use quorate_api::membershippb::{
            Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
        };
        self.now = now;
        let facts = self.readers.facts();
        if !self.said.state.has_leader() {
            return;
        }
        let is_quiet = !self.said.pending.waiters().any(|waiter| *waiter == Waiter::Nobody);
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
                cluster_member_attr_set: Some(set),
                ..InternalRaftRequest::default()
            };
            self.propose(request, Waiter::Nobody, None);
        }
        if is_quiet && self.said.state.leads() && facts.versions.cluster().is_none() {
            let set = ClusterVersionSetRequest { ver: version.to_owned() };
            let request = InternalRaftRequest {
                cluster_version_set: Some(set),
                ..InternalRaftRequest::default()
            };
            self.propose(request, Waiter::Nobody, None);
        }
        // An operator may have taken the alarm back, and entries may have been replayed.
        if is_quiet {
            self.answer_for_full_disk();
        }
        self.jobs.push_back(Job::FollowClusterVersion);
        self.gather();
    }
}
