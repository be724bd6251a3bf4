//! Clients: their requests, the members that they choose, their timeouts, and the history of their operations.
//!
//! A client has one request at a time. The history records every response, and every missing response.

mod kv;
mod lease;
mod watch;

use quorate_history_checker::{
    Moment, Operation, Outcome, Refusal as RecordedRefusal, Request, Response as RecordedResponse,
};
use quorate_state::apply::{Refusal, Response};
use quorate_state::lease::LeaseRefusal;

pub(super) use self::lease::KnownLease;
pub(super) use self::watch::Watching;
use super::{Event, World};
use crate::clock::{MILLI, Micros};
use crate::member::{Ask, Failure, OpId, ROOT, Reply};
use crate::translate;

/// As whom clients ask.
pub(super) const USERS: [&str; 3] = [ROOT, "ann", "bob"];

/// A client.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The newest revision that it was told.
    pub(super) revision: i64,
}

/// Who has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Client(usize),
    /// The operator, or the end of the run.
    Operator,
    Probe,
}

impl Asker {
    /// As whom it asks, where that is asked for.
    const fn user(self) -> &'static str {
        match self {
            Self::Client(client) => USERS[client % USERS.len()],
            Self::Operator | Self::Probe => ROOT,
        }
    }
}

/// A question under way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) asker: Asker,
    pub(super) host: usize,
    /// Of the process that it was asked of, once it is there.
    pub(super) life: u64,
    called: Moment,
    /// What is written down, if anything is.
    request: Option<Request>,
    ask: Ask,
    deadline: Micros,
    /// Whether an answer is on its way.
    is_answered: bool,
}

impl World {
    /// A client does the next thing.
    pub(super) fn act(&mut self, client: usize) {
        if self.ending.is_settling {
            return;
        }
        let up: Vec<usize> =
            (0..self.hosts.len()).filter(|at| self.hosts[*at].process.is_some()).collect();
        if up.is_empty() {
            return self.think(client);
        }
        let host = up[self.draw.position(up.len())];
        let request = self.draw_request(client);
        let ask = ask_of(&request);
        self.question(Asker::Client(client), host, ask, Some(request));
    }

    /// Takes a question on its way to a host. Its name is returned.
    pub(super) fn question(
        &mut self,
        asker: Asker,
        host: usize,
        ask: Ask,
        request: Option<Request>,
    ) -> OpId {
        let id = self.number();
        let patience = self.plan.patience;
        let deadline = self.now + patience;
        let op = Op {
            asker,
            host,
            life: 0,
            called: self.moment(),
            request,
            ask: ask.clone(),
            deadline,
            is_answered: false,
        };
        self.ops.insert(id, op);
        let at = self.now + 20 + self.draw.below(MILLI);
        self.queue.put(at, Event::Ask { op: id, ask: Box::new(ask) });
        // Some have less patience.
        let patience = if self.one_in(30) { self.draw.below(patience) } else { patience };
        self.queue.put(self.now + patience, Event::GiveUp(id));
        id
    }

    fn think(&mut self, client: usize) {
        let pause = 1 + self.draw.below(self.plan.think_max);
        self.queue.put(self.now + pause, Event::Client(client));
    }

    /// A question comes to its host.
    pub(super) fn ask(&mut self, id: OpId, ask: Ask) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let at = op.host;
        let host = &mut self.hosts[at];
        if host.paused_until > self.now {
            let event = Event::Ask { op: id, ask: Box::new(ask) };
            return self.queue.put(host.paused_until, event);
        }
        let Some(process) = host.process.as_mut() else {
            return self.reply(id, Reply::Failed(Failure::Never("the connection is refused")));
        };
        op.life = host.life;
        process.ask(id, op.asker.user(), ask, self.now);
        self.after_step(at, Ok(()));
    }

    /// A member has given an answer, which is on its way now.
    pub(super) fn reply(&mut self, id: OpId, reply: Reply) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        if op.is_answered {
            return;
        }
        if matches!(reply, Reply::NotLeader) {
            return self.take_to_leader(id);
        }
        op.is_answered = true;
        let at = self.now + 20 + self.draw.below(MILLI);
        self.queue.put(at, Event::Answer { op: id, reply: Box::new(reply) });
    }

    /// Takes a question to whoever leads, as a member does that is asked for what only the leader can answer.
    fn take_to_leader(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        let leader = self.hosts[op.host].process.as_ref().map(|one| one.leadership().leader);
        if let Some(host) = leader.and_then(|leader| self.places.get(&leader))
            && self.network.is_open(op.host, *host)
        {
            op.host = *host;
        }
        op.life = 0;
        let ask = op.ask.clone();
        if self.now < op.deadline {
            let at = self.now + 50 * MILLI;
            self.queue.put(at, Event::Ask { op: id, ask: Box::new(ask) });
        }
    }

    /// An answer comes to its client.
    pub(super) fn answer(&mut self, id: OpId, reply: Reply) {
        let Some(op) = self.ops.remove(&id) else { return };
        self.trace.count(id);
        self.tell(|| format!("op {id} of {:?} at h{}: {reply:?}", op.asker, op.host));
        match op.asker {
            Asker::Client(client) => self.write_down(client, op, reply),
            Asker::Operator => self.note_operated(id, &reply),
            Asker::Probe => self.note_probe(op.host, &reply),
        }
    }

    /// A client waits no longer.
    pub(super) fn give_up(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else { return };
        let host = &mut self.hosts[op.host];
        if op.life == host.life
            && let Some(process) = host.process.as_mut()
        {
            process.give_up(id);
        }
        self.tell(|| format!("op {id} of {:?} at h{}: given up", op.asker, op.host));
        let reply = Reply::Failed(Failure::Unknown("given up"));
        match op.asker {
            Asker::Client(client) => self.write_down(client, op, reply),
            Asker::Operator => self.note_operated(id, &reply),
            Asker::Probe => {}
        }
    }

    /// At the end: what has no answer by now never has one.
    pub(super) fn finish_ops(&mut self) {
        for id in self.ops.keys().copied().collect::<Vec<_>>() {
            self.give_up(id);
        }
    }

    fn write_down(&mut self, client: usize, op: Op, reply: Reply) {
        self.think(client);
        let Some(request) = op.request else { return };
        let at = self.moment();
        if matches!(reply, Reply::Refused(Refusal::Auth(_))) {
            self.seen.note("a client may not do what it asks for");
        }
        let outcome = match told(&request, reply) {
            Said::Answer(revision, answer) => {
                if let Some(revision) = revision {
                    let known = &mut self.clients[client].revision;
                    *known = (*known).max(revision);
                }
                self.note_answer(&request, &answer, op.called);
                Outcome::Succeeded { at, revision, response: answer }
            }
            Said::Refusal(refusal) => {
                match (&request, refusal) {
                    (_, RecordedRefusal::Compacted) => {
                        self.seen.note("a read is refused: compacted");
                    }
                    (Request::LeaseKeepAlive { .. }, _) => {
                        self.seen.note("a renewal finds no lease");
                    }
                    _ => {}
                }
                Outcome::Refused { at, refusal }
            }
            Said::Nothing => return,
            Said::Unknown => {
                self.seen.note("an operation has no answer");
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

    fn note_answer(&mut self, request: &Request, response: &RecordedResponse, called: Moment) {
        match (request, response) {
            (Request::Kv(quorate_history_checker::KvRequest::Put(_)), _) => {
                self.seen.note("a client's write is acknowledged");
                if self.judge.members().iter().len() == 1 {
                    self.seen.note("a cluster of one serves");
                }
            }
            (_, RecordedResponse::LeaseGranted { id, ttl_secs }) => {
                self.leases.push(KnownLease::granted(*id, *ttl_secs, called));
            }
            (Request::LeaseKeepAlive { id }, RecordedResponse::LeaseKeptAlive { .. }) => {
                self.note_renewed(*id, called);
                self.seen.note("a lease is kept alive");
            }
            _ => {}
        }
    }
}

/// What is asked of a member.
fn ask_of(request: &Request) -> Ask {
    use quorate_api::etcdserverpb::{CompactionRequest, LeaseGrantRequest, LeaseRevokeRequest};
    use quorate_history_checker::KvRequest;
    match request {
        Request::Kv(KvRequest::Put(put)) => Ask::Put(translate::put(put)),
        Request::Kv(KvRequest::Delete(delete)) => Ask::Delete(translate::delete(delete)),
        Request::Kv(KvRequest::Range(range)) => Ask::Range(translate::range(range)),
        Request::Kv(KvRequest::Txn(txn)) => Ask::Txn(translate::txn(txn)),
        Request::Compact { revision } => {
            let physical = revision % 3 == 0;
            Ask::Compact(CompactionRequest { revision: *revision, physical })
        }
        Request::LeaseGrant { id, ttl_secs } => {
            Ask::LeaseGrant(LeaseGrantRequest { id: *id, ttl: *ttl_secs })
        }
        Request::LeaseRevoke { id } => Ask::LeaseRevoke(LeaseRevokeRequest { id: *id }),
        Request::LeaseKeepAlive { id } => Ask::LeaseKeepAlive(*id),
        Request::LeaseTimeToLive { id, keys } => Ask::LeaseTimeToLive { id: *id, keys: *keys },
    }
}

/// What a client makes of a reply.
enum Said {
    Answer(Option<i64>, RecordedResponse),
    Refusal(RecordedRefusal),
    /// Certainly nothing was done.
    Nothing,
    Unknown,
}

fn told(request: &Request, reply: Reply) -> Said {
    let revision = |header: &Option<quorate_api::etcdserverpb::ResponseHeader>| {
        header.as_ref().map(|header| header.revision).filter(|revision| *revision > 0)
    };
    match reply {
        Reply::Range(response) => Said::Answer(
            revision(&response.header),
            RecordedResponse::Kv(translate::read(&response)),
        ),
        Reply::Txn(response) => Said::Answer(
            revision(&response.header),
            RecordedResponse::Kv(translate::done(&response)),
        ),
        Reply::Done(response) => match response {
            Response::Put(put) => {
                Said::Answer(revision(&put.header), RecordedResponse::Kv(translate::stored(&put)))
            }
            Response::DeleteRange(delete) => Said::Answer(
                revision(&delete.header),
                RecordedResponse::Kv(translate::deleted(&delete)),
            ),
            Response::Txn(txn) => {
                Said::Answer(revision(&txn.header), RecordedResponse::Kv(translate::done(&txn)))
            }
            Response::Range(range) => {
                Said::Answer(revision(&range.header), RecordedResponse::Kv(translate::read(&range)))
            }
            Response::Compaction(_) => Said::Answer(None, RecordedResponse::Compacted),
            // What is physical is told only that it is done.
            Response::Empty if matches!(request, Request::Compact { .. }) => {
                Said::Answer(None, RecordedResponse::Compacted)
            }
            Response::LeaseGrant(grant) => Said::Answer(
                None,
                RecordedResponse::LeaseGranted { id: grant.id, ttl_secs: grant.ttl },
            ),
            Response::LeaseRevoke(_) => Said::Answer(None, RecordedResponse::LeaseRevoked),
            Response::LeaseCheckpoint(_)
            | Response::Alarm(_)
            | Response::AuthStatus(_)
            | Response::Authenticated { .. }
            | Response::AuthUserGet(_)
            | Response::AuthUserList(_)
            | Response::AuthRoleGet(_)
            | Response::AuthRoleList(_)
            | Response::AuthDone(_)
            | Response::Empty => Said::Unknown,
        },
        Reply::Renewed(ttl_secs) => {
            Said::Answer(None, RecordedResponse::LeaseKeptAlive { ttl_secs })
        }
        Reply::TimeToLive { ttl, granted_ttl, keys } => {
            let asked = matches!(request, Request::LeaseTimeToLive { keys: true, .. });
            let keys = asked.then(|| keys.into_iter().map(Into::into).collect());
            let (ttl_secs, granted_ttl_secs) = (ttl, granted_ttl);
            Said::Answer(
                None,
                RecordedResponse::LeaseTimeToLive { ttl_secs, granted_ttl_secs, keys },
            )
        }
        Reply::NoLease => Said::Refusal(RecordedRefusal::LeaseNotFound),
        Reply::Refused(refusal) => refused(refusal),
        Reply::Failed(Failure::Never(_)) => Said::Nothing,
        Reply::Failed(Failure::Unknown(_)) | Reply::Changed | Reply::NotLeader => Said::Unknown,
    }
}

fn refused(refusal: Refusal) -> Said {
    match refusal {
        Refusal::Compacted => Said::Refusal(RecordedRefusal::Compacted),
        Refusal::FutureRevision => Said::Refusal(RecordedRefusal::FutureRevision),
        Refusal::KeyNotFound => Said::Refusal(RecordedRefusal::KeyNotFound),
        Refusal::Lease(LeaseRefusal::NotFound) => Said::Refusal(RecordedRefusal::LeaseNotFound),
        Refusal::Lease(LeaseRefusal::Exists) => Said::Refusal(RecordedRefusal::LeaseExists),
        Refusal::Request(_) | Refusal::Lease(LeaseRefusal::TtlTooLarge) => Said::Nothing,
        Refusal::Auth(_) => Said::Nothing,
        Refusal::NoSpace | Refusal::Corrupt => Said::Unknown,
    }
}
