//! A model of a cluster: one store with its history, expiring leases, and lost responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use quorate_api::mvccpb::Event;
use quorate_api::mvccpb::event::EventType;
use quorate_api::record::{Fields, KeyValue};
use quorate_seeded_random::SplitMix64;
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::leasing::answer::{Known, holds};
use crate::leasing::members::Store;
use crate::span::Span;

/// The model, shared by all proxies.
#[derive(Debug)]
pub(super) struct Model {
    start: Instant,
    pub(super) random: Mutex<SplitMix64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    revision: i64,
    records: BTreeMap<Bytes, KeyValue>,
    /// The successive states of each key, each with the revision at which the state began.
    history: BTreeMap<Bytes, Vec<(i64, Known)>>,
    events: Vec<Event>,
    /// The time at which each lease expires.
    leases: BTreeMap<i64, Duration>,
}

impl Model {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let (random, state) = (SplitMix64::new(seed), State { revision: 1, ..State::default() });
        Arc::new(Self {
            start: Instant::now(),
            random: Mutex::new(random),
            state: Mutex::new(state),
        })
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.random.lock().below(bound)
    }

    /// Waits for a random time.
    pub(super) async fn pause(&self, millis_max: u64) {
        let millis = self.below(millis_max);
        sleep(Duration::from_millis(millis)).await;
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn revision(&self) -> i64 {
        self.state.lock().revision
    }

    /// Returns whether a key had this state at that revision.
    pub(super) fn was(&self, key: &Bytes, known: &Known, revision: i64) -> bool {
        let state = self.state.lock();
        let versions = state.history.get(key).map_or(&[][..], Vec::as_slice);
        let at = versions.iter().rev().find(|(since, _)| *since <= revision);
        at.map_or(known.is_none(), |(_, was)| was == known)
    }

    pub(super) fn grant(&self, until: Duration) -> i64 {
        let mut state = self.state.lock();
        let lease = 1000 + i64::try_from(state.leases.len()).unwrap();
        state.leases.insert(lease, until);
        lease
    }

    /// Renews a lease, if it exists.
    pub(super) fn renew(&self, lease: i64, until: Duration) -> bool {
        let mut state = self.state.lock();
        let Some(end) = state.leases.get_mut(&lease).filter(|end| **end > Duration::ZERO) else {
            return false;
        };
        *end = until;
        true
    }

    /// Ends the leases that have expired and returns their number.
    pub(super) fn expire(&self) -> usize {
        let now = self.now();
        let mut state = self.state.lock();
        let is_over = |end: Duration| end > Duration::ZERO && end < now;
        let over: Vec<i64> = state
            .leases
            .iter()
            .filter(|(_, end)| is_over(**end))
            .map(|(lease, _)| *lease)
            .collect();
        for lease in &over {
            // The id stays in the map, so that it is not granted again.
            state.leases.insert(*lease, Duration::ZERO);
            state.end(*lease);
        }
        over.len()
    }

    /// Ends a lease of the test clients.
    pub(super) fn end(&self, lease: i64) {
        self.state.lock().end(lease);
    }

    /// Returns all events starting at index `from`.
    pub(super) fn events(&self, from: usize) -> Vec<Event> {
        self.state.lock().events.get(from..).unwrap_or_default().to_vec()
    }

    pub(super) fn apply(&self, request: &TxnRequest) -> TxnResponse {
        let mut state = self.state.lock();
        let revision = state.revision + 1;
        let before = state.events.len();
        let mut answer = state.txn(request, revision);
        state.revision += i64::from(state.events.len() > before);
        let revision = state.revision;
        answer.header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        answer
    }
}

impl State {
    /// Deletes the keys attached to a lease.
    fn end(&mut self, lease: i64) {
        let of = |(key, record): (&Bytes, &KeyValue)| {
            (record.fields().lease == lease).then(|| key.clone())
        };
        let keys: Vec<Bytes> = self.records.iter().filter_map(of).collect();
        let revision = self.revision + 1;
        for key in &keys {
            self.remove(key, revision);
        }
        self.revision += i64::from(!keys.is_empty());
    }

    fn txn(&mut self, request: &TxnRequest, revision: i64) -> TxnResponse {
        let succeeded = request.compare.iter().all(|compare| {
            let span = Span::new(&compare.key, &compare.range_end);
            let found = self.within(&span);
            match found.as_slice() {
                [] => holds(compare, None).unwrap(),
                found => found.iter().all(|record| holds(compare, Some(record)).unwrap()),
            }
        });
        let chosen = if succeeded { &request.success } else { &request.failure };
        let run = |RequestOp { request }: &RequestOp| {
            let response = match request.as_ref().unwrap() {
                Request::RequestRange(it) => Response::ResponseRange(self.range(it)),
                Request::RequestPut(it) => Response::ResponsePut(self.put(it, revision)),
                Request::RequestDeleteRange(it) => {
                    Response::ResponseDeleteRange(self.delete(it, revision))
                }
                Request::RequestTxn(it) => Response::ResponseTxn(self.txn(it, revision)),
            };
            ResponseOp { response: Some(response) }
        };
        let responses = chosen.iter().map(run).collect();
        TxnResponse { header: None, succeeded, responses }
    }

    fn within(&self, span: &Span) -> Vec<KeyValue> {
        let records = self.records.iter().filter(|(key, _)| span.has(key));
        records.map(|(_, record)| record.clone()).collect()
    }

    fn range(&self, request: &RangeRequest) -> RangeResponse {
        let kvs = self.within(&Span::new(&request.key, &request.range_end));
        RangeResponse { count: i64::try_from(kvs.len()).unwrap(), kvs, ..RangeResponse::default() }
    }

    fn put(&mut self, request: &PutRequest, revision: i64) -> PutResponse {
        let old = self.records.get(&request.key).cloned();
        let old = old.as_ref().map(KeyValue::fields).unwrap_or_default();
        let record = KeyValue::new(&Fields {
            key: &request.key,
            create_revision: if old.version == 0 { revision } else { old.create_revision },
            mod_revision: revision,
            version: old.version + 1,
            value: &request.value,
            lease: if request.ignore_lease { old.lease } else { request.lease },
        });
        self.records.insert(request.key.clone(), record.clone());
        let history = self.history.entry(request.key.clone()).or_default();
        history.push((revision, Some(record.clone())));
        self.events.push(Event { kv: Some(record), ..Event::default() });
        PutResponse::default()
    }

    fn delete(&mut self, request: &DeleteRangeRequest, revision: i64) -> DeleteRangeResponse {
        let span = Span::new(&request.key, &request.range_end);
        let keys: Vec<Bytes> = self.records.keys().filter(|key| span.has(key)).cloned().collect();
        for key in &keys {
            self.remove(key, revision);
        }
        let deleted = i64::try_from(keys.len()).unwrap();
        DeleteRangeResponse { deleted, ..DeleteRangeResponse::default() }
    }

    fn remove(&mut self, key: &Bytes, revision: i64) {
        self.records.remove(key);
        self.history.entry(key.clone()).or_default().push((revision, None));
        let fields = Fields { key, mod_revision: revision, ..Fields::default() };
        let kv = Some(KeyValue::new(&fields));
        self.events.push(Event { kv, r#type: EventType::Delete as i32, ..Event::default() });
    }
}

/// The network between a proxy and the model. Requests and responses take time, and some of them are lost.
#[derive(Debug)]
pub(super) struct DelayedStore(pub(super) Arc<Model>);

const TRIP_MILLIS_MAX: u64 = 30;

impl Store for DelayedStore {
    async fn txn(&self, _: HeaderMap, request: TxnRequest) -> Result<TxnResponse, Status> {
        let lost = || Err(Status::unavailable("lost"));
        self.0.pause(TRIP_MILLIS_MAX).await;
        let chance = self.0.below(100);
        if chance < 3 {
            return lost();
        }
        if chance < 6 {
            // The request may arrive after the sender has stopped waiting for it.
            let model = Arc::clone(&self.0);
            tokio::spawn(async move {
                model.pause(200).await;
                model.apply(&request);
            });
            return lost();
        }
        let answer = self.0.apply(&request);
        self.0.pause(TRIP_MILLIS_MAX).await;
        if chance < 9 { lost() } else { Ok(answer) }
    }

    fn now(&self) -> Duration {
        self.0.now()
    }
}
