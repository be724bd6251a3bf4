//! Clients: their requests, their choice of a member, their timeouts, and the history of their operations.
//!
//! A client has at most one request in flight. The history records every operation, with or without a response, except
//! operations that certainly had no effect.

mod kv;
mod lease;
mod watch;

use quorate_history_checker::{
    Moment, Operation, Outcome, Refusal as RecordedRefusal, Request, Response as RecordedResponse,
};
use quorate_state::apply::{Refusal, Response};
use quorate_state::lease::LeaseRefusal;

pub(super) use self::lease::KnownLease;
pub(super) use self::watch::WatchClient;
use super::hosts::RESUMED_TURNS;
use super::{Event, World};
use crate::clock::{MILLI, Micros};
use crate::member::{ClientRequest, Failure, OpId, ROOT, Reply};
use crate::translate;

/// The users on whose behalf clients send requests.
pub(super) const USERS: [&str; 3] = [ROOT, "ann", "bob"];

/// A client.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The newest revision in any response that the client has received.
    pub(super) revision: i64,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requester {
    Client(usize),
    /// The operator of the cluster.
    Operator,
    Probe,
}

impl Requester {
    /// Returns the user of the request, which matters once authentication is enabled.
    const fn user(self) -> &'static str {
        match self {
            Self::Client(client) => USERS[client % USERS.len()],
            Self::Operator | Self::Probe => ROOT,
        }
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) requester: Requester,
    pub(super) host: usize,
    /// The sequence number of the process that received the request; 0 until the request has arrived.
    pub(super) life: u64,
    called: Moment,
    /// The form of the request in the history, if the request is recorded.
    recorded: Option<Request>,
    request: ClientRequest,
    deadline: Micros,
    /// Whether the member has sent the reply.
    is_answered: bool,
}

impl World {
    /// Sends the next request of a client.
    pub(super) fn send_next_request(&mut self, client: usize) {
        if self.ending.clients_stopped {
            return;
        }
        let running: Vec<usize> =
            (0..self.hosts.len()).filter(|at| self.hosts[*at].process.is_some()).collect();
        if running.is_empty() {
            return self.schedule_next_request(client);
        }
        let host = running[self.rng.position(running.len())];
        let recorded = self.draw_request(client);
        let request = request_of(&recorded);
        self.send_request(Requester::Client(client), host, request, Some(recorded));
    }

    /// Sends a request to a host. Returns the id of the operation.
    pub(super) fn send_request(
        &mut self,
        requester: Requester,
        host: usize,
        request: ClientRequest,
        recorded: Option<Request>,
    ) -> OpId {
        let id = self.new_number();
        let client_timeout = self.plan.client_timeout;
        let deadline = self.now + client_timeout;
        let op = Op {
            requester,
            host,
            life: 0,
            called: self.moment(),
            recorded,
            request: request.clone(),
            deadline,
            is_answered: false,
        };
        self.ops.insert(id, op);
        let at = self.now + 20 + self.rng.below(MILLI);
        self.queue.push(at, Event::Request { op: id, request: Box::new(request) });
        // Some requests have a shorter timeout.
        let client_timeout =
            if self.one_in(30) { self.rng.below(client_timeout) } else { client_timeout };
        self.queue.push(self.now + client_timeout, Event::GiveUp(id));
        id
    }

    fn schedule_next_request(&mut self, client: usize) {
        let pause = 1 + self.rng.below(self.plan.think_max);
        self.queue.push(self.now + pause, Event::Client(client));
    }

    /// Delivers a request to its host.
    pub(super) fn deliver_request(&mut self, id: OpId, request: ClientRequest) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let at = op.host;
        let host = &mut self.hosts[at];
        if host.paused_until > self.now {
            let event = Event::Request { op: id, request: Box::new(request) };
            // A resumed process may read its connections in any order, so the request arrives at a random time.
            let until = host.paused_until + self.rng.below(RESUMED_TURNS * self.plan.step_max);
            return self.queue.push(until, event);
        }
        let Some(process) = host.process.as_mut() else {
            return self.send_reply(id, Reply::Failed(Failure::Never("the connection is refused")));
        };
        op.life = host.life;
        process.handle_request(id, op.requester.user(), request, self.now);
        self.after_step(at, Ok(()));
    }

    /// Sends a member's reply to the client.
    pub(super) fn send_reply(&mut self, id: OpId, reply: Reply) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        if op.is_answered {
            return;
        }
        if matches!(reply, Reply::NotLeader) {
            return self.forward_to_leader(id);
        }
        op.is_answered = true;
        let at = self.now + 20 + self.rng.below(MILLI);
        self.queue.push(at, Event::Reply { op: id, reply: Box::new(reply) });
    }

    /// Forwards a leader-only request to the leader, as a member does in production.
    fn forward_to_leader(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let leader = self.hosts[op.host].process.as_ref().map(|one| one.leadership().leader);
        if let Some(host) = leader.and_then(|leader| self.member_hosts.get(&leader))
            && self.network.is_open(op.host, *host)
        {
            op.host = *host;
        }
        op.life = 0;
        let request = op.request.clone();
        if self.now < op.deadline {
            let at = self.now + 50 * MILLI;
            self.queue.push(at, Event::Request { op: id, request: Box::new(request) });
        }
    }

    /// Delivers a reply to its client.
    pub(super) fn deliver_reply(&mut self, id: OpId, reply: Reply) {
        let Some(op) = self.ops.remove(&id) else { return };
        self.trace.add(id);
        self.log(|| format!("op {id} of {:?} at h{}: {reply:?}", op.requester, op.host));
        match op.requester {
            Requester::Client(client) => self.record_operation(client, op, reply),
            Requester::Operator => self.note_operator_reply(id, &reply),
            Requester::Probe => self.note_probe(op.host, &reply),
        }
    }

    /// Abandons a request after its timeout.
    pub(super) fn give_up(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else { return };
        let host = &mut self.hosts[op.host];
        if op.life == host.life
            && let Some(process) = host.process.as_mut()
        {
            process.give_up(id);
        }
        self.log(|| format!("op {id} of {:?} at h{}: given up", op.requester, op.host));
        let reply = Reply::Failed(Failure::Unknown("given up"));
        match op.requester {
            Requester::Client(client) => self.record_operation(client, op, reply),
            Requester::Operator => self.note_operator_reply(id, &reply),
            Requester::Probe => {}
        }
    }

    /// Abandons all pending requests at the end of the run.
    pub(super) fn finish_ops(&mut self) {
        for id in self.ops.keys().copied().collect::<Vec<_>>() {
            self.give_up(id);
        }
    }

    fn record_operation(&mut self, client: usize, op: Op, reply: Reply) {
        self.schedule_next_request(client);
        let Some(request) = op.recorded else { return };
        let at = self.moment();
        if matches!(reply, Reply::Refused(Refusal::Auth(_))) {
            self.rare_states.note("a client's request is denied");
        }
        let outcome = match op_result(&request, reply) {
            OpResult::Response(revision, answer) => {
                if let Some(revision) = revision {
                    let known = &mut self.clients[client].revision;
                    *known = (*known).max(revision);
                }
                self.note_success(&request, &answer, op.called);
                Outcome::Succeeded { at, revision, response: answer }
            }
            OpResult::Refusal(refusal) => {
                match (&request, refusal) {
                    (_, RecordedRefusal::Compacted) => {
                        self.rare_states.note("a read of a compacted revision is refused");
                    }
                    (Request::LeaseKeepAlive { .. }, _) => {
                        self.rare_states.note("a lease to renew does not exist");
                    }
                    _ => {}
                }
                Outcome::Refused { at, refusal }
            }
            OpResult::NotApplied => return,
            OpResult::Unknown => {
                self.rare_states.note("an operation has no response");
                Outcome::Unknown
            }
        };
        let operation = Operation {
            client: client as u64,
            member: op.host as u64,
            called: op.called,
            request,
            outcome,
        };
        self.judge.history.operations.push(operation);
    }

    fn note_success(&mut self, request: &Request, response: &RecordedResponse, called: Moment) {
        match (request, response) {
            (Request::Kv(quorate_history_checker::KvRequest::Put(_)), _) => {
                self.rare_states.note("a client's write is acknowledged");
                if self.judge.members().iter().len() == 1 {
                    self.rare_states.note("a one-member cluster acknowledges a write");
                }
            }
            (_, RecordedResponse::LeaseGranted { id, ttl_secs }) => {
                self.leases.push(KnownLease::granted(*id, *ttl_secs, called));
            }
            (Request::LeaseKeepAlive { id }, RecordedResponse::LeaseKeptAlive { .. }) => {
                self.note_renewed(*id, called);
                self.rare_states.note("a lease is renewed");
            }
            _ => {}
        }
    }
}

/// Returns the API request for a recorded request.
fn request_of(request: &Request) -> ClientRequest {
    use quorate_api::etcdserverpb::{CompactionRequest, LeaseGrantRequest, LeaseRevokeRequest};
    use quorate_history_checker::KvRequest;
    match request {
        Request::Kv(KvRequest::Put(put)) => ClientRequest::Put(translate::put(put)),
        Request::Kv(KvRequest::Delete(delete)) => ClientRequest::Delete(translate::delete(delete)),
        Request::Kv(KvRequest::Range(range)) => ClientRequest::Range(translate::range(range)),
        Request::Kv(KvRequest::Txn(txn)) => ClientRequest::Txn(translate::txn(txn)),
        Request::Compact { revision } => {
            let physical = revision % 3 == 0;
            ClientRequest::Compact(CompactionRequest { revision: *revision, physical })
        }
        Request::LeaseGrant { id, ttl_secs } => {
            ClientRequest::LeaseGrant(LeaseGrantRequest { id: *id, ttl: *ttl_secs })
        }
        Request::LeaseRevoke { id } => ClientRequest::LeaseRevoke(LeaseRevokeRequest { id: *id }),
        Request::LeaseKeepAlive { id } => ClientRequest::LeaseKeepAlive(*id),
        Request::LeaseTimeToLive { id, keys } => {
            ClientRequest::LeaseTimeToLive { id: *id, keys: *keys }
        }
    }
}

/// The result of an operation, as the history records it.
enum OpResult {
    Response(Option<i64>, RecordedResponse),
    Refusal(RecordedRefusal),
    /// The operation certainly had no effect.
    NotApplied,
    Unknown,
}

fn op_result(request: &Request, reply: Reply) -> OpResult {
    let revision = |header: &Option<quorate_api::etcdserverpb::ResponseHeader>| {
        header.as_ref().map(|header| header.revision).filter(|revision| *revision > 0)
    };
    match reply {
        Reply::Range(response) => OpResult::Response(
            revision(&response.header),
            RecordedResponse::Kv(translate::range_result(&response)),
        ),
        Reply::Txn(response) => OpResult::Response(
            revision(&response.header),
            RecordedResponse::Kv(translate::txn_result(&response)),
        ),
        Reply::Done(response) => match response {
            Response::Put(put) => OpResult::Response(
                revision(&put.header),
                RecordedResponse::Kv(translate::put_result(&put)),
            ),
            Response::DeleteRange(delete) => OpResult::Response(
                revision(&delete.header),
                RecordedResponse::Kv(translate::delete_result(&delete)),
            ),
            Response::Txn(txn) => OpResult::Response(
                revision(&txn.header),
                RecordedResponse::Kv(translate::txn_result(&txn)),
            ),
            Response::Range(range) => OpResult::Response(
                revision(&range.header),
                RecordedResponse::Kv(translate::range_result(&range)),
            ),
            Response::Compaction(_) => OpResult::Response(None, RecordedResponse::Compacted),
            // The reply to a physical compaction is empty.
            Response::Empty if matches!(request, Request::Compact { .. }) => {
                OpResult::Response(None, RecordedResponse::Compacted)
            }
            Response::LeaseGrant(grant) => OpResult::Response(
                None,
                RecordedResponse::LeaseGranted { id: grant.id, ttl_secs: grant.ttl },
            ),
            Response::LeaseRevoke(_) => OpResult::Response(None, RecordedResponse::LeaseRevoked),
            Response::LeaseCheckpoint(_)
            | Response::Alarm(_)
            | Response::AuthStatus(_)
            | Response::Authenticated { .. }
            | Response::AuthUserGet(_)
            | Response::AuthUserList(_)
            | Response::AuthRoleGet(_)
            | Response::AuthRoleList(_)
            | Response::AuthDone(_)
            | Response::Empty => OpResult::Unknown,
        },
        Reply::Renewed(ttl_secs) => {
            OpResult::Response(None, RecordedResponse::LeaseKeptAlive { ttl_secs })
        }
        Reply::TimeToLive { ttl, granted_ttl, keys } => {
            let asked = matches!(request, Request::LeaseTimeToLive { keys: true, .. });
            let keys = asked.then(|| keys.into_iter().map(Into::into).collect());
            let (ttl_secs, granted_ttl_secs) = (ttl, granted_ttl);
            OpResult::Response(
                None,
                RecordedResponse::LeaseTimeToLive { ttl_secs, granted_ttl_secs, keys },
            )
        }
        Reply::NoLease => OpResult::Refusal(RecordedRefusal::LeaseNotFound),
        Reply::Refused(refusal) => refusal_result(refusal),
        Reply::Failed(Failure::Never(_)) => OpResult::NotApplied,
        Reply::Failed(Failure::Unknown(_)) | Reply::Changed | Reply::NotLeader => OpResult::Unknown,
    }
}

fn refusal_result(refusal: Refusal) -> OpResult {
    match refusal {
        Refusal::Compacted => OpResult::Refusal(RecordedRefusal::Compacted),
        Refusal::FutureRevision => OpResult::Refusal(RecordedRefusal::FutureRevision),
        Refusal::KeyNotFound => OpResult::Refusal(RecordedRefusal::KeyNotFound),
        Refusal::Lease(LeaseRefusal::NotFound) => OpResult::Refusal(RecordedRefusal::LeaseNotFound),
        Refusal::Lease(LeaseRefusal::Exists) => OpResult::Refusal(RecordedRefusal::LeaseExists),
        Refusal::Request(_) | Refusal::Lease(LeaseRefusal::TtlTooLarge) => OpResult::NotApplied,
        Refusal::Auth(_) => OpResult::NotApplied,
        Refusal::NoSpace | Refusal::Corrupt => OpResult::Unknown,
    }
}
