//! Starts engines for the tests, and creates requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use quorate_api::etcdserverpb as pb;
use quorate_engine::{
    BoxFuture, DatabaseUrl, Destination, Engine, EngineError, EngineOptions, Forward, ForwardError,
    Secret, ServerIdentity,
};
use quorate_state::apply::{Refusal, Response, StateOptions};
use quorate_state::mvcc::{RangeQuery, RangeResult};
use quorate_telemetry::metrics::{Metrics, MetricsLevel};

/// A transport between engines in the same process, which finds an engine by its address.
#[derive(Clone, Default)]
pub(crate) struct Network {
    engines: Arc<Mutex<Vec<(String, Engine)>>>,
}

impl Network {
    pub(crate) fn add(&self, address: &str, engine: &Engine) {
        self.engines.lock().push((address.to_owned(), engine.clone()));
    }

    pub(crate) fn remove(&self, address: &str) {
        self.engines.lock().retain(|(of, _)| of != address);
    }
}

impl Forward for Network {
    fn forward<'a>(
        &'a self,
        to: &'a Destination,
        frame: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, ForwardError>> {
        Box::pin(async move {
            let found = {
                let engines = self.engines.lock();
                engines.iter().find(|(of, _)| *of == to.address).map(|(_, engine)| engine.clone())
            };
            match found {
                Some(engine) => Ok(engine.serve(frame).await),
                None => Err(ForwardError::NotSent),
            }
        })
    }
}

pub(crate) fn options(url: &str, id: u64) -> EngineOptions {
    EngineOptions {
        database: DatabaseUrl::parse(url, |_| None).unwrap(),
        server: ServerIdentity {
            id,
            name: format!("server-{id}"),
            address: format!("address-{id}"),
            secret: Secret::generate().unwrap(),
            client_urls: vec![format!("http://server-{id}:2379")],
        },
        state: StateOptions { quota_bytes: -1, ..StateOptions::default() },
        new_cluster_id: 77,
        metrics: Arc::new(Metrics::new(&[], MetricsLevel::Basic)),
        load_bytes_max: EngineOptions::LOAD_BYTES_MAX,
    }
}

/// Starts a server and adds it to the network.
pub(crate) async fn start(url: &str, id: u64, network: &Network) -> Engine {
    let engine = Engine::start(options(url, id), Arc::new(network.clone())).await.unwrap();
    network.add(&format!("address-{id}"), &engine);
    engine
}

pub(crate) async fn start_one(url: &str) -> Engine {
    start(url, 1, &Network::default()).await
}

pub(crate) fn put(key: &str, value: &str) -> pb::InternalRaftRequest {
    put_request(pb::PutRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        ..pb::PutRequest::default()
    })
}

pub(crate) fn put_request(put: pb::PutRequest) -> pb::InternalRaftRequest {
    pb::InternalRaftRequest { put: Some(put), ..pb::InternalRaftRequest::default() }
}

pub(crate) fn delete(key: &str, range_end: &[u8]) -> pb::InternalRaftRequest {
    let delete = pb::DeleteRangeRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        range_end: Bytes::copy_from_slice(range_end),
        prev_kv: true,
    };
    pb::InternalRaftRequest {
        delete_range: Some(Box::new(delete)),
        ..pb::InternalRaftRequest::default()
    }
}

pub(crate) fn compaction(revision: i64) -> pb::InternalRaftRequest {
    let compaction = pb::CompactionRequest { revision, ..pb::CompactionRequest::default() };
    pb::InternalRaftRequest { compaction: Some(compaction), ..pb::InternalRaftRequest::default() }
}

/// Returns the user of a request while authentication is disabled.
pub(crate) fn nobody() -> (String, u64) {
    (String::new(), 0)
}

/// Proposes a request, which may be refused but must not fail.
pub(crate) async fn propose(
    engine: &Engine,
    request: pb::InternalRaftRequest,
) -> Result<Response, Refusal> {
    engine.propose(request).await.unwrap()
}

/// Puts a key and returns the revision.
pub(crate) async fn put_at(engine: &Engine, key: &str, value: &str) -> i64 {
    match propose(engine, put(key, value)).await {
        Ok(Response::Put(response)) => response.header.unwrap().revision,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn range_of(key: &str, range_end: &[u8]) -> RangeQuery {
    RangeQuery {
        key: Bytes::copy_from_slice(key.as_bytes()),
        range_end: Bytes::copy_from_slice(range_end),
        ..RangeQuery::default()
    }
}

/// Executes a linearizable read.
pub(crate) async fn read(engine: &Engine, query: &RangeQuery) -> Result<RangeResult, Refusal> {
    engine.barrier().await.unwrap();
    engine.range(query, &mut |_| true).await.unwrap()
}

/// Returns `key=value` for each key of a result.
pub(crate) fn shown(result: &RangeResult) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    result.kvs.iter().map(|kv| format!("{}={}", text(kv.key()), text(kv.value()))).collect()
}

/// Repeats a check until it succeeds.
pub(crate) async fn eventually(what: &str, check: impl AsyncFn() -> bool) {
    for _ in 0..600 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("timeout: {what}");
}

/// Returns whether an error tells the client that the request may have been applied.
pub(crate) fn is_unknown(error: &EngineError) -> bool {
    matches!(error, EngineError::OutcomeUnknown)
}
