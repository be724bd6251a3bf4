//! The load of Kubernetes API servers: objects are read, updated by optimistic transactions, and listed page by page at
//! one revision. Nodes send heartbeats, and events expire with a lease. Once per interval, the API server that wins a
//! transaction compacts the history.
//!
//! # Invariants
//!
//! * An update is based on the object as it was read, because the transaction compares the object's revision. After a
//!   conflict, the update is retried on the object that the transaction returned. After `ATTEMPTS_MAX` conflicts, it is
//!   abandoned.
//! * All pages of a list are read at the revision of the first page.
//! * Every value written under the prefix begins with the time of the write, and every successful write under the
//!   prefix is counted, so that the run can wait until watchers have received all events (`watch`). The mark that
//!   compactors write is outside the prefix.
//!
//! # Not here
//!
//! Watchers (`watch`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prost::Message;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    CompactionRequest, Compare, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use quorate_seeded_random::SplitMix64;

use super::path;
use super::watch::{Board, STAMP_BYTES};
use crate::engine::{Ask, Dialogue};
use crate::error::BenchError;
use crate::template::{KeySpace, Values};

/// The kinds under which calls are recorded.
pub(crate) const KINDS: [&str; 8] =
    ["get", "list page", "update", "conflict", "heartbeat", "lease", "event", "compact"];

const GET: usize = 0;
const LIST_PAGE: usize = 1;
const UPDATE: usize = 2;
const CONFLICT: usize = 3;
const HEARTBEAT: usize = 4;
const LEASE: usize = 5;
const EVENT: usize = 6;
const COMPACT: usize = 7;

/// The shares of reads, updates, heartbeats and lists in percent. All other operations are events.
const READS: usize = 40;
const UPDATES: usize = 30;
const HEARTBEATS: usize = 20;
const LISTS: usize = 1;
/// The number of conflicts after which an update is abandoned.
const ATTEMPTS_MAX: u32 = 5;
/// The maximum number of events that share a lease.
const LEASE_EVENTS_MAX: u32 = 1000;
const LEASE_TTL_SECS: i64 = 3600;
/// The number of objects per node. Nodes send heartbeats.
const OBJECTS_A_NODE: u64 = 30;
/// The number of digits in a key.
const DIGITS: usize = 10;

/// The parameters and counters shared by all connections.
#[derive(Debug)]
pub(crate) struct Shape {
    objects: KeySpace,
    nodes: KeySpace,
    events: KeySpace,
    values: Values,
    page_keys: i64,
    compact_every: Duration,
    mark: String,
    board: Arc<Board>,
    events_begun: AtomicU64,
    /// The number of successful writes.
    written: AtomicU64,
}

impl Shape {
    /// Creates the keys of `count` objects and their nodes under a prefix.
    pub(crate) fn new(
        (prefix, count): (&str, u64),
        values: Values,
        page_keys: u32,
        compact_every: Duration,
        board: Arc<Board>,
    ) -> Result<Self, BenchError> {
        let space = |kind: &str, count| {
            let prefix = format!("{prefix}{kind}/");
            KeySpace::new(&prefix, prefix.len() + DIGITS, count)
        };
        Ok(Self {
            objects: space("pods", count)?,
            nodes: space("leases", count.div_ceil(OBJECTS_A_NODE))?,
            events: space("events", u64::from(u32::MAX))?,
            values,
            page_keys: page_keys.into(),
            compact_every,
            mark: format!("compact_rev_key/{prefix}"),
            board,
            events_begun: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    /// Returns the number of successful writes.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

/// The state needed to process a reply.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Read,
    ReadToChange { object: u64 },
    Page { revision: i64 },
    Changed { key: Vec<u8>, node: Option<u64>, attempts: u32 },
    Granted,
    Event,
    Marked,
    Compacted,
}

/// The API server that one connection simulates.
pub(crate) struct Server {
    shape: Arc<Shape>,
    random: SplitMix64,
    /// The index of the connection; no two connections share nodes.
    index: u64,
    connections: u64,
    /// The last known revision of each node object.
    nodes: HashMap<u64, i64>,
    /// The current lease for events, and the number of events that use it.
    lease: Option<(i64, u32)>,
    compactor: Compactor,
}

/// The state of compaction. `version` is the expected version of the mark key, and `revision` is the revision of the
/// next compaction.
struct Compactor {
    due: Instant,
    version: i64,
    revision: i64,
}

impl Server {
    /// Creates the API server for a connection, with its own seed.
    pub(crate) fn new(shape: Arc<Shape>, (index, connections): (usize, usize), seed: u64) -> Self {
        // The compactors of different connections start at different times, because they compete for the same mark.
        let offset = shape.compact_every.mul_f64(1.0 / (index + 1) as f64);
        let compactor = Compactor { due: Instant::now() + offset, version: 0, revision: 0 };
        let random = SplitMix64::new(seed ^ (index as u64 + 1) << 32);
        let (index, connections) = (index as u64, connections.max(1) as u64);
        let nodes = HashMap::new();
        Self { shape, random, index, connections, nodes, lease: None, compactor }
    }

    fn value(&mut self) -> Vec<u8> {
        let mut value = self.shape.values.choose(&mut self.random).to_vec();
        value[..STAMP_BYTES].copy_from_slice(&self.shape.board.nanos().to_le_bytes());
        value
    }

    /// Writes a key if its revision is still `revision` (0 for a missing key), and otherwise reads it.
    fn change(&mut self, kind: usize, key: Vec<u8>, revision: i64, state: State) -> Ask<State> {
        let lease = match (kind, self.lease) {
            (EVENT, Some((lease, _))) => lease,
            _ => 0,
        };
        let put = PutRequest {
            key: key.clone().into(),
            value: self.value().into(),
            lease,
            ..Default::default()
        };
        let compared = (CompareTarget::Mod, TargetUnion::ModRevision(revision));
        let message = txn(key, compared, put).encode_to_vec();
        Ask { path: path::TXN, kind, message, state }
    }

    fn page(&self, key: Vec<u8>, revision: i64) -> Ask<State> {
        let request = RangeRequest {
            key: key.into(),
            range_end: self.shape.objects.end().into(),
            limit: self.shape.page_keys,
            revision,
            ..Default::default()
        };
        let (message, state) = (request.encode_to_vec(), State::Page { revision });
        Ask { path: path::RANGE, kind: LIST_PAGE, message, state }
    }

    fn event(&mut self) -> Ask<State> {
        let lease = match &mut self.lease {
            Some((lease, events)) if *events < LEASE_EVENTS_MAX => {
                *events += 1;
                *lease
            }
            _ => {
                let message = LeaseGrantRequest { ttl: LEASE_TTL_SECS, id: 0 }.encode_to_vec();
                return Ask {
                    path: path::LEASE_GRANT,
                    kind: LEASE,
                    message,
                    state: State::Granted,
                };
            }
        };
        let number = self.shape.events_begun.fetch_add(1, Ordering::Relaxed);
        // The lease id distinguishes the keys of this run from those of other runs, even if the seed is the same.
        let key = [self.shape.events.key(number), format!("-{lease:x}").into()];
        self.change(EVENT, key.concat(), 0, State::Event)
    }

    /// Tries to become the compactor: the API server whose transaction finds the mark unchanged performs the next
    /// compaction.
    fn mark(&mut self) -> Ask<State> {
        self.compactor.due = Instant::now() + self.shape.compact_every;
        let key = self.shape.mark.clone().into_bytes();
        let value = self.compactor.revision.to_string().into_bytes();
        let put = PutRequest { key: key.clone().into(), value: value.into(), ..Default::default() };
        let compared = (CompareTarget::Version, TargetUnion::Version(self.compactor.version));
        let message = txn(key, compared, put).encode_to_vec();
        Ask { path: path::TXN, kind: COMPACT, message, state: State::Marked }
    }

    fn marked(&mut self, answer: &TxnResponse) -> Option<Ask<State>> {
        let now = revision(answer);
        let before = std::mem::replace(&mut self.compactor.revision, now);
        if !answer.succeeded {
            self.compactor.version = found(answer).version;
            return None;
        }
        self.compactor.version += 1;
        let request = CompactionRequest { revision: before, physical: false };
        let (message, state) = (request.encode_to_vec(), State::Compacted);
        (before > 0).then_some(Ask { path: path::COMPACT, kind: COMPACT, message, state })
    }

    fn changed(
        &mut self,
        answer: &TxnResponse,
        key: Vec<u8>,
        node: Option<u64>,
        attempts: u32,
    ) -> Option<Ask<State>> {
        let now = if answer.succeeded { revision(answer) } else { found(answer).revision };
        if let Some(node) = node {
            self.nodes.insert(node, now);
        }
        if answer.succeeded {
            self.shape.written.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let attempts = attempts + 1;
        let state = State::Changed { key: key.clone(), node, attempts };
        (attempts < ATTEMPTS_MAX).then(|| self.change(CONFLICT, key, now, state))
    }
}

impl Dialogue for Server {
    type State = State;

    fn begin(&mut self, _number: u64) -> Ask<State> {
        if Instant::now() >= self.compactor.due {
            return self.mark();
        }
        let draw = self.random.position(100);
        let object = self.random.below(self.shape.objects.count);
        let read = |kind, state| {
            let key = self.shape.objects.key(object).into();
            let message = RangeRequest { key, ..Default::default() }.encode_to_vec();
            Ask { path: path::RANGE, kind, message, state }
        };
        if draw < READS {
            return read(GET, State::Read);
        }
        if draw < READS + UPDATES {
            return read(GET, State::ReadToChange { object });
        }
        if draw < READS + UPDATES + HEARTBEATS {
            let own = self.shape.nodes.count.div_ceil(self.connections);
            let node = self.random.below(own) * self.connections + self.index;
            let key = self.shape.nodes.key(node);
            let state = State::Changed { key: key.clone(), node: Some(node), attempts: 0 };
            let known = self.nodes.get(&node).copied().unwrap_or_default();
            return self.change(HEARTBEAT, key, known, state);
        }
        if draw < READS + UPDATES + HEARTBEATS + LISTS {
            return self.page(self.shape.objects.key(0), 0);
        }
        self.event()
    }

    fn answered(&mut self, state: State, answer: &[u8]) -> Option<Ask<State>> {
        // An operation ends if its reply cannot be parsed.
        match state {
            State::Read | State::Compacted => None,
            State::ReadToChange { object } => {
                let answer = RangeResponse::decode(answer).ok()?;
                let revision = answer.kvs.first().map_or(0, |kv| kv.fields().mod_revision);
                let key = self.shape.objects.key(object);
                let state = State::Changed { key: key.clone(), node: None, attempts: 0 };
                Some(self.change(UPDATE, key, revision, state))
            }
            State::Page { revision } => {
                let answer = RangeResponse::decode(answer).ok()?;
                let last = answer.kvs.last().filter(|_| answer.more)?;
                let first = answer.header.as_ref().map_or(0, |header| header.revision);
                let revision = if revision == 0 { first } else { revision };
                Some(self.page([last.key(), &[0]].concat(), revision))
            }
            State::Changed { key, node, attempts } => {
                let answer = TxnResponse::decode(answer).ok()?;
                self.changed(&answer, key, node, attempts)
            }
            State::Granted => {
                let answer = LeaseGrantResponse::decode(answer).ok()?;
                self.lease = Some((answer.id, 0));
                Some(self.event())
            }
            State::Event => {
                let happened = TxnResponse::decode(answer).ok()?.succeeded;
                self.shape.written.fetch_add(u64::from(happened), Ordering::Relaxed);
                None
            }
            State::Marked => self.marked(&TxnResponse::decode(answer).ok()?),
        }
    }
}

/// Writes a key if a condition holds, and otherwise reads it.
fn txn(key: Vec<u8>, (target, value): (CompareTarget, TargetUnion), put: PutRequest) -> TxnRequest {
    let get = RangeRequest { key: key.clone().into(), ..Default::default() };
    let operation = |request| vec![RequestOp { request: Some(request) }];
    TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal as i32,
            target: target as i32,
            key: key.into(),
            target_union: Some(value),
            ..Default::default()
        }],
        success: operation(Request::RequestPut(put)),
        failure: operation(Request::RequestRange(get)),
    }
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// The current state of a key, as returned by a transaction whose condition did not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Other {
    revision: i64,
    version: i64,
}

fn found(answer: &TxnResponse) -> Other {
    let response = answer.responses.first().and_then(|operation| operation.response.as_ref());
    let Some(Response::ResponseRange(range)) = response else { return Other::default() };
    range.kvs.first().map_or_else(Other::default, |kv| {
        let fields = kv.fields();
        Other { revision: fields.mod_revision, version: fields.version }
    })
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{ResponseHeader, ResponseOp};
    use quorate_api::record::{Fields, KeyValue};

    use super::*;

    fn server(compact_every: Duration) -> Server {
        let board = Arc::new(Board::new());
        let shape = Shape::new(("b/", 100), Values::new(16, 1), 2, compact_every, board).unwrap();
        Server::new(Arc::new(shape), (0, 1), 1)
    }

    fn kv(key: &[u8], mod_revision: i64, version: i64) -> KeyValue {
        KeyValue::new(&Fields { key, mod_revision, version, ..Fields::default() })
    }

    fn header(revision: i64) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision, ..Default::default() })
    }

    fn sent(ask: &Ask<State>) -> TxnRequest {
        assert_eq!(ask.path, path::TXN);
        TxnRequest::decode(&*ask.message).unwrap()
    }

    fn compared(ask: &Ask<State>) -> Option<TargetUnion> {
        sent(ask).compare[0].target_union.clone()
    }

    fn lost(key: KeyValue) -> TxnResponse {
        let range = RangeResponse { kvs: vec![key], ..Default::default() };
        let response = Some(Response::ResponseRange(range));
        TxnResponse { responses: vec![ResponseOp { response }], ..Default::default() }
    }

    #[test]
    fn a_conflicting_update_is_retried_at_the_returned_revision() {
        let mut server = server(Duration::MAX / 4);
        let read = RangeResponse { kvs: vec![kv(b"k", 7, 1)], ..Default::default() };
        let state = State::ReadToChange { object: 5 };
        let ask = server.answered(state, &read.encode_to_vec()).unwrap();
        assert_eq!((ask.kind, compared(&ask)), (UPDATE, Some(TargetUnion::ModRevision(7))));
        let again = server.answered(ask.state, &lost(kv(b"k", 9, 2)).encode_to_vec()).unwrap();
        assert_eq!((again.kind, compared(&again)), (CONFLICT, Some(TargetUnion::ModRevision(9))));
        assert_eq!(
            sent(&again).compare[0].key,
            sent(&again)
                .success
                .first()
                .map(|operation| {
                    let Some(Request::RequestPut(put)) = &operation.request else {
                        panic!("expected a put")
                    };
                    put.key.clone()
                })
                .unwrap()
        );
        let won = TxnResponse { succeeded: true, header: header(12), ..Default::default() };
        assert!(server.answered(again.state, &won.encode_to_vec()).is_none());
        assert_eq!(server.shape.written(), 1);
    }

    #[test]
    fn an_update_is_abandoned_after_repeated_conflicts() {
        let mut server = server(Duration::MAX / 4);
        let mut state = Some(State::Changed { key: b"k".to_vec(), node: Some(3), attempts: 0 });
        let mut asked = 0;
        while let Some(now) = state {
            state =
                server.answered(now, &lost(kv(b"k", 9, 2)).encode_to_vec()).map(|ask| ask.state);
            asked += 1;
        }
        assert_eq!((asked, server.nodes[&3], server.shape.written()), (ATTEMPTS_MAX, 9, 0));
    }

    #[test]
    fn all_pages_are_read_at_the_revision_of_the_first_page() {
        let mut server = server(Duration::MAX / 4);
        let mut state = State::Page { revision: 0 };
        for revision in [40, 50] {
            let kvs = vec![kv(b"a", 1, 1), kv(b"b", 1, 1)];
            let page =
                RangeResponse { kvs, more: true, header: header(revision), ..Default::default() };
            let ask = server.answered(state, &page.encode_to_vec()).unwrap();
            let request = RangeRequest::decode(&*ask.message).unwrap();
            assert_eq!((&request.key[..], request.revision, request.limit), (&b"b\0"[..], 40, 2));
            state = ask.state;
        }
        let end = RangeResponse { kvs: vec![kv(b"c", 1, 1)], ..Default::default() };
        assert!(server.answered(state, &end.encode_to_vec()).is_none());
    }

    #[test]
    fn runs_with_the_same_seed_create_different_events() {
        let first_event = |lease| {
            let granted = LeaseGrantResponse { id: lease, ..Default::default() };
            let mut server = server(Duration::MAX / 4);
            let ask = server.answered(State::Granted, &granted.encode_to_vec()).unwrap();
            assert_eq!((ask.kind, compared(&ask)), (EVENT, Some(TargetUnion::ModRevision(0))));
            sent(&ask).compare[0].key.clone()
        };
        assert_ne!(first_event(7), first_event(8));
    }

    #[test]
    fn the_winning_api_server_compacts_to_the_revision_seen_in_its_previous_attempt() {
        let mut server = server(Duration::ZERO);
        let ask = server.begin(0);
        assert_eq!(compared(&ask), Some(TargetUnion::Version(0)));
        // Another client has written the mark first.
        let other = TxnResponse { header: header(20), ..lost(kv(b"m", 15, 4)) };
        assert!(server.answered(ask.state, &other.encode_to_vec()).is_none());
        let ask = server.begin(1);
        assert_eq!(compared(&ask), Some(TargetUnion::Version(4)));
        let won = TxnResponse { succeeded: true, header: header(30), ..Default::default() };
        let compaction = server.answered(ask.state, &won.encode_to_vec()).unwrap();
        assert_eq!(compaction.path, path::COMPACT);
        assert_eq!(CompactionRequest::decode(&*compaction.message).unwrap().revision, 20);
        assert_eq!(compared(&server.begin(2)), Some(TargetUnion::Version(5)));
    }
}
