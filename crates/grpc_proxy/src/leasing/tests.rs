//! Simulates proxies that own keys of a model cluster, in virtual time. Clients read and write through the proxies,
//! responses are lost, watch events are late, and proxies are suspended for longer than their leases. Every response
//! must show a state that the key had between the request and the response, and the revisions that clients receive must
//! never decrease.

mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use quorate_telemetry::metrics::ProxyMetrics;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Status;

use self::store::{DelayedStore, Model};
use super::answer::Known;
use super::follow::Following;
use super::*;

const KEYS: u64 = 4;
const TTL: Duration = Duration::from_secs(2);
/// The lease of the test clients, which ends from time to time.
const LEASE_OF_CLIENTS: i64 = 7;
const RUN: Duration = Duration::from_secs(60);

/// A proxy, with the latest revision that its clients have received.
#[derive(Debug)]
struct Proxy {
    model: Arc<Model>,
    leasing: Leasing<DelayedStore>,
    /// Whether the proxy's tasks are suspended. Clients of a suspended proxy still receive responses.
    is_suspended: AtomicBool,
    /// The latest revision that a client has received.
    seen: AtomicI64,
    sessions: AtomicUsize,
}

impl Proxy {
    fn new(model: &Arc<Model>) -> Arc<Self> {
        let metrics = Arc::new(ProxyMetrics::new(&[]));
        Arc::new(Self {
            leasing: Leasing::over(DelayedStore(Arc::clone(model)), metrics, "own/"),
            model: Arc::clone(model),
            is_suspended: AtomicBool::new(false),
            seen: AtomicI64::new(0),
            sessions: AtomicUsize::new(0),
        })
    }

    async fn run(self: Arc<Self>) {
        loop {
            let asked_at = self.model.now();
            let lease = self.model.grant(asked_at + TTL);
            self.leasing.owned_keys.begin_session(lease, asked_at + TTL);
            let mut following = Following { next: 0, lease };
            tokio::select! {
                () = self.renew(lease) => {}
                () = self.deliver_events(&mut following) => {}
                () = self.leasing.give_up(lease) => {}
            }
            self.leasing.owned_keys.end_session();
            self.sessions.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn renew(&self, lease: i64) {
        loop {
            self.model.pause(1000).await;
            if self.is_suspended.load(Ordering::Relaxed) {
                continue;
            }
            let asked_at = self.model.now();
            self.model.pause(50).await;
            if !self.model.renew(lease, self.model.now() + TTL) {
                return;
            }
            self.model.pause(50).await;
            self.leasing.owned_keys.prolong(asked_at + TTL);
        }
    }

    async fn deliver_events(&self, following: &mut Following) {
        let mut delivered = 0;
        loop {
            self.model.pause(60).await;
            if self.is_suspended.load(Ordering::Relaxed) {
                continue;
            }
            for event in self.model.events(delivered) {
                delivered += 1;
                self.leasing.handle_event(&event, following);
            }
        }
    }

    async fn suspend_repeatedly(self: Arc<Self>) {
        loop {
            self.model.pause(8000).await;
            self.is_suspended.store(true, Ordering::Relaxed);
            self.model.pause(6000).await;
            self.is_suspended.store(false, Ordering::Relaxed);
        }
    }

    /// Reads a key through the proxy, as a client does.
    async fn read(&self, key: &Bytes) {
        let request = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let (from, seen) = (self.model.revision(), self.seen.load(Ordering::SeqCst));
        let none = HeaderMap::new();
        let answer = match self.leasing.range(&none, &request).await {
            Some(answer) => answer,
            None => match self.ask(request).await {
                Some(answer) => answer,
                None => return,
            },
        };
        let known = answer.kvs.into_iter().next();
        let revision = answer.header.unwrap().revision;
        self.check(key, &known, (from, revision, seen));
    }

    /// Sends a range request to a member.
    async fn ask(&self, request: RangeRequest) -> Option<RangeResponse> {
        let get = RequestOp { request: Some(Request::RequestRange(request)) };
        let request = TxnRequest { success: vec![get], ..TxnRequest::default() };
        let answer = self.leasing.members.txn(HeaderMap::new(), request).await.ok()?;
        self.leasing.latest.see(answer.header.as_ref());
        let Some(Response::ResponseRange(range)) = answer.responses.into_iter().next()?.response
        else {
            panic!("the response to a range request is not a range response");
        };
        Some(RangeResponse { header: answer.header, ..range })
    }

    fn check(&self, key: &Bytes, known: &Known, (from, revision, seen): (i64, i64, i64)) {
        let now = self.model.revision();
        assert!(revision <= now, "revision {revision} is later than the current revision {now}");
        assert!(
            revision >= seen,
            "revision {revision} is older than revision {seen}, which a client has received"
        );
        assert!(
            self.model.was(key, known, revision),
            "{key:?} was not {known:?} at revision {revision}"
        );
        let was = (from..=now).any(|moment| self.model.was(key, known, moment));
        assert!(was, "{key:?} was not {known:?} at any revision from {from} to {now}");
        self.seen.fetch_max(revision, Ordering::SeqCst);
    }

    /// Reads two keys in one transaction.
    async fn read_both(&self, keys: [&Bytes; 2]) {
        let get = |key: &Bytes| RequestOp {
            request: Some(Request::RequestRange(RangeRequest {
                key: key.clone(),
                ..RangeRequest::default()
            })),
        };
        let request = TxnRequest { success: keys.map(get).to_vec(), ..TxnRequest::default() };
        let (from, seen) = (self.model.revision(), self.seen.load(Ordering::SeqCst));
        let Some(answer) = self.leasing.txn(&HeaderMap::new(), &request) else { return };
        let revision = answer.header.unwrap().revision;
        for (key, response) in keys.into_iter().zip(answer.responses) {
            let Some(Response::ResponseRange(range)) = response.response else { panic!() };
            self.check(key, &range.kvs.into_iter().next(), (from, revision, seen));
        }
    }

    async fn write(&self, request: Request) {
        let wait = Duration::from_millis(10 + self.model.below(6000));
        let none = HeaderMap::new();
        let writing = self.leasing.write(&none, request);
        if let Ok(Ok(answer)) = timeout(wait, writing).await {
            let header = match answer.expect("the proxy answers the write itself") {
                Response::ResponsePut(it) => it.header,
                Response::ResponseDeleteRange(it) => it.header,
                Response::ResponseTxn(it) => it.header,
                Response::ResponseRange(it) => it.header,
            };
            self.seen.fetch_max(header.unwrap().revision, Ordering::SeqCst);
        }
    }
}

fn key(number: u64) -> Bytes {
    format!("k{number}").into()
}

fn put(key: &Bytes, value: u64, lease: i64) -> Request {
    let value = value.to_string().into();
    Request::RequestPut(PutRequest { key: key.clone(), value, lease, ..PutRequest::default() })
}

fn delete(key: &'static str, end: &'static str) -> Request {
    Request::RequestDeleteRange(DeleteRangeRequest {
        key: Bytes::from_static(key.as_bytes()),
        range_end: Bytes::from_static(end.as_bytes()),
        ..DeleteRangeRequest::default()
    })
}

/// Returns a transaction that writes one key, and also a second key if the first one has a value.
fn txn(keys: [&Bytes; 2], value: u64) -> Request {
    let compare = Compare {
        key: keys[0].clone(),
        target: CompareTarget::Create as i32,
        result: CompareResult::Greater as i32,
        target_union: Some(TargetUnion::CreateRevision(0)),
        ..Compare::default()
    };
    let op = |request| RequestOp { request: Some(request) };
    Request::RequestTxn(TxnRequest {
        compare: vec![compare],
        success: vec![op(put(keys[0], value, 0)), op(put(keys[1], value, 0))],
        failure: vec![op(put(keys[0], value, 0))],
    })
}

async fn client(proxy: Arc<Proxy>) {
    let mut value = 0;
    loop {
        let model = &proxy.model;
        model.pause(40).await;
        value += 1;
        let number = model.below(KEYS);
        let (one, other) = (key(number), key((number + 1) % KEYS));
        match model.below(100) {
            0..60 => {
                let wait = Duration::from_millis(20 + model.below(200));
                // Some clients stop waiting before the response arrives.
                drop(timeout(wait, proxy.read(&one)).await);
            }
            60..70 => proxy.read_both([&one, &other]).await,
            70..85 => proxy.write(put(&one, value, 0)).await,
            85..88 => proxy.write(put(&one, value, LEASE_OF_CLIENTS)).await,
            88..94 => proxy.write(txn([&one, &other], value)).await,
            94..97 => {
                let delete = DeleteRangeRequest { key: one, ..DeleteRangeRequest::default() };
                proxy.write(Request::RequestDeleteRange(delete)).await;
            }
            97 => proxy.write(delete("k1", "k3")).await,
            // Deletes all leasing keys and no other keys.
            98 => proxy.write(delete("l", "\0")).await,
            _ => proxy.write(delete("a", "\0")).await,
        }
    }
}

async fn run(seed: u64) -> (usize, usize, u64) {
    let model = Model::new(seed);
    let proxies = [(); 3].map(|()| Proxy::new(&model));
    let mut tasks = JoinSet::new();
    for proxy in &proxies {
        tasks.spawn(Arc::clone(proxy).run());
        tasks.spawn(Arc::clone(proxy).suspend_repeatedly());
        for _ in 0..3 {
            tasks.spawn(client(Arc::clone(proxy)));
        }
    }
    let (ending, expired) = (Arc::clone(&model), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&expired);
    tasks.spawn(async move {
        loop {
            ending.pause(100).await;
            count.fetch_add(ending.expire(), Ordering::Relaxed);
            if ending.below(10) == 0 {
                ending.end(LEASE_OF_CLIENTS);
            }
        }
    });
    tokio::select! {
        ended = tasks.join_next() => ended.expect("tasks are running").unwrap_or_else(|error| panic!("seed {seed}: {error}")),
        () = sleep(RUN) => {}
    }
    let sessions = proxies.iter().map(|it| it.sessions.load(Ordering::Relaxed)).sum();
    let reads = proxies.iter().map(|it| it.leasing.metrics.owned_reads.value()).sum();
    (expired.load(Ordering::Relaxed), sessions, reads)
}

#[tokio::test(start_paused = true)]
async fn reads_of_owned_keys_return_the_current_record() {
    let (mut expired, mut sessions, mut reads) = (0, 0, 0);
    for seed in 0..20 {
        let ran = run(seed).await;
        (expired, sessions, reads) = (expired + ran.0, sessions + ran.1, reads + ran.2);
    }
    assert!(
        expired > 20 && sessions > 20,
        "only {expired} leases and {sessions} sessions have ended"
    );
    assert!(reads > 5000, "only {reads} reads were answered from owned keys");
}

/// A store that applies every transaction, and then returns the configured error, if any.
#[derive(Debug)]
struct FailAfterApplyStore {
    model: Arc<Model>,
    error: Mutex<Option<Status>>,
}

impl Store for FailAfterApplyStore {
    async fn txn(&self, _: HeaderMap, request: TxnRequest) -> Result<TxnResponse, Status> {
        let answer = self.model.apply(&request);
        self.error.lock().clone().map_or(Ok(answer), Err)
    }

    fn now(&self) -> Duration {
        self.model.now()
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_released_if_its_write_fails_after_being_applied() {
    for text in [
        "grpc: received message larger than max (9 vs. 8)",
        "etcdserver: mvcc: database space exceeded",
    ] {
        let model = Model::new(0);
        let store = FailAfterApplyStore { model: Arc::clone(&model), error: Mutex::default() };
        let leasing = Leasing::over(store, Arc::new(ProxyMetrics::new(&[])), "own/");
        leasing.owned_keys.begin_session(model.grant(TTL), TTL);
        let (none, key) = (HeaderMap::new(), key(0));
        let request = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        leasing.write(&none, put(&key, 1, 0)).await.unwrap();
        leasing.range(&none, &request).await.unwrap();
        assert_eq!(leasing.owned_keys.load().0, 1, "the read acquires the key");
        *leasing.members.error.lock() = Some(Status::resource_exhausted(text));
        leasing.write(&none, put(&key, 2, 0)).await.unwrap_err();
        *leasing.members.error.lock() = None;
        let answer = leasing.range(&none, &request).await.unwrap();
        assert_eq!(answer.kvs[0].fields().value, b"2", "{text}");
    }
}
