//! The limits that protect a member from its clients and peers: requests beyond a limit are refused, other requests
//! continue, and every permit is released.
//!
//! `docs/bounds.md` lists the limits. `floods` tests the limits on whole requests, calls and watch events, and
//! `resources` tests the limits on file descriptors.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use prost::Message;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::raftpb;
use quorate_tests::{
    Client, ClusterOptions, Held, Kind, Options, RawAnswer, RawHttp2, Server, Shim, Watch,
    call_head, compare, eventually_within, framed, key, literal, on_quorate, op, postgres, prefix,
    put, put_op, range, refused, request_with, skipped, txn, txn_when, watch_prefix, within,
};
use tokio::task::JoinSet;
use tonic::Code;

use super::auth::{DENIED, NOBODY, guard, log_in, options};

on_quorate! {
    alone:
    connections_beyond_the_limit_on_large_windows_get_small_windows,
    headers_beyond_the_byte_limit_are_refused,
    streams_beyond_the_limit_of_a_connection_are_refused,
    proposals_beyond_the_maximum_number_are_refused,
    proposals_beyond_the_byte_limit_are_refused,
    tasks_beyond_the_maximum_number_are_refused,
    lists_wait_or_are_refused_while_slowly_read_responses_use_up_the_limit,
    unread_responses_are_dropped_when_another_list_needs_memory,
    memory_for_record_references_of_slowly_read_lists_is_bounded,
    memory_for_slowly_read_lists_of_a_database_is_bounded,
    lists_in_transactions_that_write_are_bounded,
    the_previous_records_of_a_deletion_count_as_a_list,
    transactions_that_would_delay_other_writes_are_refused,
    a_refused_write_reveals_nothing_about_the_keys_in_its_ranges,
    a_deletion_without_credentials_reserves_no_memory_for_records,
    watchers_beyond_the_memory_limit_are_refused,
    events_queued_for_a_slow_watch_client_are_bounded,
    no_requests_are_read_from_a_watch_client_that_does_not_read_responses,
    changes_not_yet_in_the_backend_file_are_bounded,
    the_number_of_remembered_unknown_peers_is_bounded,
    only_a_few_large_bodies_on_the_peer_port_are_read_at_a_time,
}

const MIB: usize = 1 << 20;
const MIB_FLOAT: f64 = 1_048_576.0;
const TOO_MANY: &str = "etcdserver: too many requests";

/// Maximum time that a busy machine takes to transfer and execute requests of hundreds of megabytes.
const FLOOD_TIME: Duration = Duration::from_secs(60);

fn metric(server: &Server, series: &str) -> f64 {
    server.metric(series).unwrap_or_else(|| panic!("the metrics do not contain {series}"))
}

async fn reaches(server: &Server, series: &str, least: f64) {
    eventually_within(FLOOD_TIME, series, async || (metric(server, series) >= least).then_some(()))
        .await;
}

async fn drops_to_zero(server: &Server, series: &str) {
    eventually_within(FLOOD_TIME, series, async || (metric(server, series) == 0.0).then_some(()))
        .await;
}

/// Starts a server whose disk syncs can be blocked.
async fn with_holdable_disk(kind: Kind) -> Option<(Shim, Server)> {
    let shim = Shim::build()?;
    let server = shim.prepare(Options::new(kind)).start().await;
    server.client().write("before", "v").await;
    Some((shim, server))
}

/// Results of many requests.
#[derive(Debug, Default)]
struct Counts {
    done: usize,
    refused: usize,
    /// Requests that timed out but may still be executed.
    late: usize,
}

/// Sends all requests over several connections without waiting for the answers.
fn ask_all<T: Send + 'static, F>(
    server: &Server,
    count: usize,
    ask: impl Fn(Client, usize) -> F,
) -> JoinSet<Result<T, tonic::Status>>
where
    F: Future<Output = Result<T, tonic::Status>> + Send + 'static,
{
    let clients: Vec<Client> = (0..16).map(|_| server.client()).collect();
    let mut asking = JoinSet::new();
    for number in 0..count {
        asking.spawn(ask(clients[number % clients.len()].clone(), number));
    }
    asking
}

async fn count_all<T: 'static>(mut asking: JoinSet<Result<T, tonic::Status>>) -> Counts {
    let mut counts = Counts::default();
    while let Some(answer) = asking.join_next().await {
        match answer.unwrap() {
            Ok(_) => counts.done += 1,
            Err(status) if status.message() == TOO_MANY => counts.refused += 1,
            Err(status) if status.message().contains("timed out") => counts.late += 1,
            Err(status) => panic!("{status}"),
        }
    }
    counts
}

async fn connections_beyond_the_limit_on_large_windows_get_small_windows(kind: Kind) {
    let server = Server::start(kind).await;
    let series = "quorate_large_receive_windows";
    let mut held: Vec<RawHttp2> = Vec::new();
    for _ in 0..300 {
        held.push(RawHttp2::connect(server.port()));
    }
    let windows: Vec<i64> = held.iter_mut().map(RawHttp2::stream_window).collect();
    let large = windows.iter().filter(|window| **window == 1 << 20).count();
    let small = windows.iter().filter(|window| **window == (1 << 16) - 1).count();
    // The total of 1 GiB allows 256 windows of 4 MiB.
    assert_eq!((large, small), (256, 44), "{windows:?}");
    assert!(metric(&server, series) <= 256.0);
    let line = "the limit on large receive windows is reached";
    server.wait_for_log(line).await;
    let log = server.log();
    assert_eq!(log.matches(line).count(), 1, "{log}");
    // A request that is larger than its connection's window arrives in several parts.
    let last = held.last_mut().unwrap();
    let id = last.open(&call_head("/etcdserverpb.KV/Put"));
    let body = framed(&put("k", vec![b'v'; MIB]).encode_to_vec());
    assert!(last.send_body_within_windows(id, &body), "the server reads the whole request");
    last.send_body(id, b"", true);
    let answer = last.read_answer(id);
    assert_eq!(answer.summary(), "200 0");
    held.clear();
    drops_to_zero(&server, series).await;
    assert_eq!(RawHttp2::connect(server.port()).stream_window(), 1 << 20);
}

async fn headers_beyond_the_byte_limit_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let mut connection = RawHttp2::connect(server.port());
    let body = framed(&range("k", "").encode_to_vec());
    let mut ask = |bytes: usize| {
        let filler = literal(b"x-filler", &vec![b'x'; bytes]);
        let block = [call_head("/etcdserverpb.KV/Range"), filler].concat();
        connection.ask_block(&block, &body).summary()
    };
    assert_eq!(ask(200_000), "200 0");
    let refused = ask(300_000);
    assert!(refused.starts_with("431"), "{refused}");
    assert_eq!(ask(200_000), "200 0", "the connection continues");
}

async fn streams_beyond_the_limit_of_a_connection_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let mut connection = RawHttp2::connect(server.port());
    let head = call_head("/etcdserverpb.Lease/LeaseKeepAlive");
    for _ in 0..1 << 15 {
        connection.open(&head);
    }
    let one_more = connection.open(&head);
    // The error code "refused stream" means that nothing was executed and the request may be retried.
    assert_eq!(connection.read_answer(one_more), RawAnswer::Reset(7));
    let calls = metric(&server, "quorate_calls_in_progress");
    assert!(calls <= 32_768.0, "{calls}");
    within("a write by another client", server.client().write("k", "v")).await;
    drop(connection);
    drops_to_zero(&server, "quorate_calls_in_progress").await;
}

async fn proposals_beyond_the_maximum_number_are_refused(kind: Kind) {
    let Some((shim, server)) = with_holdable_disk(kind).await else { return };
    shim.hold(Held::Everything);
    let count = 18_000;
    let asking = ask_all(&server, count, async |client, number| {
        client.put(put(format!("k{number}"), "v")).await
    });
    reaches(&server, "quorate_proposals_refused_total", 1.0).await;
    let proposals = metric(&server, "quorate_proposals_in_progress");
    // The proposals keep their permits even after their clients have disconnected.
    assert!((16_000.0..=16_384.0).contains(&proposals), "{proposals}");
    // Serializable reads of existing keys do not need the log.
    let reading = pb::RangeRequest { serializable: true, ..range("before", "") };
    assert_eq!(within("a read", server.client().range(reading)).await.unwrap().count, 1);
    shim.hold(Held::Nothing);
    let Counts { done, refused, late } = count_all(asking).await;
    assert_eq!(done + refused + late, count);
    assert!(refused > 0);
    drops_to_zero(&server, "quorate_proposals_in_progress").await;
    let here = server.client().range(pb::RangeRequest { count_only: true, ..prefix("k") }).await;
    // Refused requests have written nothing.
    let here = usize::try_from(here.unwrap().count).unwrap();
    assert!(
        (done..=done + late).contains(&here),
        "{here} keys after {done} acknowledged writes and {late} timeouts"
    );
}

async fn proposals_beyond_the_byte_limit_are_refused(kind: Kind) {
    let Some((shim, server)) = with_holdable_disk(kind).await else { return };
    shim.hold(Held::Everything);
    let bytes = "quorate_proposals_in_progress_bytes";
    // A separate limit, which applies to requests before they become proposals, may refuse some of them. While the disk
    // is blocked, no request is executed. Every request is therefore either refused or cancelled, and the proposal of a
    // cancelled request remains in progress.
    while metric(&server, bytes) < 511.0 * MIB_FLOAT {
        let asking = ask_all(&server, 300, async |client, number| {
            client.put(put(format!("k{number}"), vec![b'v'; MIB])).await
        });
        assert_eq!(count_all(asking).await.done, 0);
    }
    assert!(metric(&server, bytes) <= 514.0 * MIB_FLOAT);
    eventually_within(FLOOD_TIME, "a refusal", async || {
        let refused = server.client().put(put("another", vec![b'v'; MIB])).await;
        refused.is_err_and(|status| status.message() == TOO_MANY).then_some(())
    })
    .await;
    assert!(metric(&server, "quorate_proposals_refused_total") > 0.0);
    shim.hold(Held::Nothing);
    drops_to_zero(&server, bytes).await;
    server.client().write("after", "v").await;
}

async fn tasks_beyond_the_maximum_number_are_refused(kind: Kind) {
    let Some((shim, server)) = with_holdable_disk(kind).await else { return };
    shim.hold(Held::Backend);
    // Each defragmentation request waits until all applied changes are in the backend file.
    let asking = ask_all(&server, 1_100, async |client, _| {
        client.defragment(pb::DefragmentRequest {}).await
    });
    reaches(&server, "quorate_tasks_refused_total", 1.0).await;
    let tasks = metric(&server, "quorate_tasks_in_progress");
    assert!((1_000.0..=1_024.0).contains(&tasks), "{tasks}");
    let refused = server.client().defragment(pb::DefragmentRequest {}).await.unwrap_err();
    assert_eq!(refused.message(), TOO_MANY);
    within("a write", server.client().write("meanwhile", "v")).await;
    // The tasks continue to wait even after their clients have disconnected.
    drop(asking);
    assert!(metric(&server, "quorate_tasks_in_progress") >= 1_000.0);
    shim.hold(Held::Nothing);
    drops_to_zero(&server, "quorate_tasks_in_progress").await;
}

/// Requests lists of all keys, and reads them slowly.
fn lists_read_slowly(server: &Server, count: usize) -> SlowReaders {
    SlowReaders::begin(unread(server, count, "/etcdserverpb.KV/Range", &prefix("k")))
}

/// Clients that read just fast enough to keep their responses. They disconnect when this value is dropped.
struct SlowReaders {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SlowReaders {
    /// Each connection has one call, on its first stream.
    fn begin(mut connections: Vec<RawHttp2>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // A member with little free memory for responses requires 256 KiB in three seconds.
            while stopped.recv_timeout(Duration::from_millis(250)) == Err(RecvTimeoutError::Timeout)
            {
                connections.iter_mut().for_each(|connection| connection.grant(1, 32 << 10));
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for SlowReaders {
    fn drop(&mut self) {
        drop(self.stop.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Sends this call on many connections, and reads only the beginning of each response.
fn unread(server: &Server, count: usize, path: &str, request: &impl Message) -> Vec<RawHttp2> {
    let (head, body) = (call_head(path), framed(&request.encode_to_vec()));
    let open = |_| {
        let mut connection = RawHttp2::connect(server.port());
        let id = connection.open(&head);
        connection.send_body(id, &body, true);
        connection
    };
    (0..count).map(open).collect()
}

async fn lists_wait_or_are_refused_while_slowly_read_responses_use_up_the_limit(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..300 {
        client.write(format!("k{number:03}"), vec![b'v'; 100_000]).await;
    }
    let before = server.memory("RssAnon");
    // 1 GiB has room for 35 lists and part of another list. That list is accepted and counted in full, so the total may
    // exceed 1 GiB.
    let held = lists_read_slowly(&server, 40);
    let series = "quorate_replies_bytes";
    reaches(&server, series, 1024.0 * MIB_FLOAT).await;
    reaches(&server, "quorate_replies_refused_total", 1.0).await;
    assert!(metric(&server, series) <= (1024.0 + 30.0) * MIB_FLOAT);
    let refused = client.range(prefix("k")).await.unwrap_err();
    assert_eq!(refused.message(), TOO_MANY);
    within("a write", client.write("a", "v")).await;
    assert_eq!(within("a small read", client.read("a")).await.unwrap(), b"v");
    // The replies refer to the store's records instead of copying them.
    let grown = server.memory("RssAnon").saturating_sub(before) as usize / MIB;
    assert!(grown < 256, "memory grew by {grown} MiB");
    drop(held);
    drops_to_zero(&server, series).await;
    assert_eq!(client.range(prefix("k")).await.unwrap().kvs.len(), 300);
}

async fn unread_responses_are_dropped_when_another_list_needs_memory(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..300 {
        client.write(format!("k{number:03}"), vec![b'v'; 100_000]).await;
    }
    let (head, body) = (call_head("/etcdserverpb.KV/Range"), framed(&prefix("k").encode_to_vec()));
    let mut held = RawHttp2::connect(server.port());
    for _ in 0..40 {
        let id = held.open(&head);
        held.send_body(id, &body, true);
    }
    reaches(&server, "quorate_replies_bytes", 1024.0 * MIB_FLOAT).await;
    let answer = client.range(prefix("k")).await;
    assert_eq!(answer.unwrap().kvs.len(), 300, "a list waits until unread responses are dropped");
    assert!(held.ping().is_ok(), "the connection of the unread responses stays open");
}

/// The number of keys that [`put_many`] writes.
const MANY: usize = 100_000;

async fn put_many(client: &Client) {
    for first in (0..MANY).step_by(125) {
        let puts = (first..first + 125).map(|number| put_op(format!("k{number:06}"), ""));
        client.txn(txn(puts.collect())).await.unwrap();
    }
}

fn list_op() -> pb::RequestOp {
    op(Request::RequestRange(prefix("k")))
}

async fn lists_in_transactions_that_write_are_bounded(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    put_many(&client).await;
    let request = txn(vec![put_op("written", ""), list_op()]);
    let held = SlowReaders::begin(unread(&server, 160, "/etcdserverpb.KV/Txn", &request));
    let series = "quorate_lists_reference_bytes";
    reaches(&server, "quorate_lists_refused_total", 1.0).await;
    let bytes = metric(&server, series);
    // The last accepted list may exceed the limit.
    assert!((250.0..=262.0).contains(&(bytes / MIB_FLOAT)), "{bytes}");
    assert_eq!(client.txn(request).await.unwrap_err().message(), TOO_MANY);
    within("a write", client.txn(txn(vec![put_op("written", "")]))).await.unwrap();
    drop(held);
    drops_to_zero(&server, series).await;
}

async fn the_previous_records_of_a_deletion_count_as_a_list(kind: Kind) {
    let server = Server::start(kind).await;
    put_many(&server.client()).await;
    let request = pb::DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let (held, series) = (
        unread(&server, 1, "/etcdserverpb.KV/DeleteRange", &request),
        "quorate_lists_reference_bytes",
    );
    let count = pb::RangeRequest { count_only: true, ..prefix("k") };
    eventually_within(FLOOD_TIME, "the keys are deleted", async || {
        (server.client().range(count.clone()).await.unwrap().count == 0).then_some(())
    })
    .await;
    let bytes = metric(&server, series);
    assert!(bytes >= (MANY * 16) as f64, "{bytes}");
    drop(held);
    drops_to_zero(&server, series).await;
}

async fn transactions_that_would_delay_other_writes_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    put_many(&client).await;
    let text = "etcdserver: too many operations in txn request";
    let nested = |lists: usize| {
        let inner = op(Request::RequestTxn(txn(vec![list_op(); lists])));
        client.txn(txn(vec![inner, op(Request::RequestTxn(txn(vec![list_op()])))]))
    };
    refused(nested(41).await, Code::InvalidArgument, text);
    assert!(nested(2).await.unwrap().succeeded);
    let is_written = compare("k", CompareResult::Greater, TargetUnion::Version(0));
    let conditions = vec![pb::Compare { range_end: "l".into(), ..is_written }; 42];
    let compared = |operations| client.txn(txn_when(conditions.clone(), operations, vec![]));
    refused(compared(vec![put_op("written", "")]).await, Code::InvalidArgument, text);
    assert!(compared(vec![]).await.unwrap().succeeded, "a transaction that only reads delays none");
}

async fn a_refused_write_reveals_nothing_about_the_keys_in_its_ranges(kind: Kind) {
    let server = options(kind).unguarded().start().await;
    let root = server.client();
    put_many(&root).await;
    guard(&root).await;
    let eve = log_in(&server.client(), "eve").await;
    for (key, end) in [("k", "l"), ("m", "n")] {
        let is_written = compare(key, CompareResult::Greater, TargetUnion::Version(0));
        let conditions = vec![pb::Compare { range_end: end.into(), ..is_written }; 42];
        let request = txn_when(conditions, vec![put_op("written", "")], vec![]);
        refused(eve.txn(request).await, Code::PermissionDenied, DENIED);
        let lists = vec![op(Request::RequestRange(range(key, end))); 42];
        let request = txn([lists, vec![put_op("written", "")]].concat());
        refused(eve.txn(request).await, Code::PermissionDenied, DENIED);
    }
}

async fn a_deletion_without_credentials_reserves_no_memory_for_records(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).flag("--bcrypt-cost=4").start().await;
    let (leader, member) = (cluster.leader().await, cluster.follower().await);
    put_many(&cluster.client(leader)).await;
    guard(&cluster.client(leader)).await;
    let follower = cluster.client(member);
    eventually_within(FLOOD_TIME, "the follower knows the users", async || {
        let enabled = follower.range(key("k")).await.unwrap_err().message() == NOBODY;
        enabled.then_some(())
    })
    .await;
    for other in cluster.members() {
        if other != member {
            cluster.kill(other);
        }
    }
    let request = pb::DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: true };
    let deletion = tokio::spawn(async move { follower.delete_range(request).await });
    eventually_within(FLOOD_TIME, "the deletion is refused", async || {
        let held = metric(cluster.server(member), "quorate_lists_reference_bytes");
        assert_eq!(held, 0.0, "a client without credentials holds memory for a list");
        deletion.is_finished().then_some(())
    })
    .await;
    deletion.await.unwrap().unwrap_err();
}

async fn memory_for_record_references_of_slowly_read_lists_is_bounded(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    put_many(&client).await;
    let (held, series) = (lists_read_slowly(&server, 160), "quorate_lists_reference_bytes");
    reaches(&server, "quorate_lists_refused_total", 1.0).await;
    let bytes = metric(&server, series);
    // The last accepted list may exceed the limit.
    assert!((250.0..=262.0).contains(&(bytes / MIB_FLOAT)), "{bytes}");
    let refused = client.range(prefix("k")).await.unwrap_err();
    assert_eq!(refused.message(), TOO_MANY);
    let page = pb::RangeRequest { limit: 100, ..prefix("k") };
    assert_eq!(within("a page", client.range(page)).await.unwrap().kvs.len(), 100);
    drop(held);
    drops_to_zero(&server, series).await;
    assert_eq!(client.range(prefix("k")).await.unwrap().kvs.len(), MANY);
}

async fn memory_for_slowly_read_lists_of_a_database_is_bounded(_: Kind) {
    let Some(url) = postgres::try_new_url() else {
        skipped("tests on a database (PostgreSQL is missing: set POSTGRES_BIN_DIR)");
        return;
    };
    let server = Options::new(Kind::Quorate).unguarded().on_database(&url).start().await;
    let client = server.client();
    for number in 0..100 {
        client.write(format!("k{number:03}"), vec![b'v'; 100_000]).await;
    }
    let before = server.memory("RssAnon");
    // Each transaction lists 40 MB.
    let list = || op(Request::RequestRange(prefix("k")));
    let transaction = txn(vec![list(), list(), list(), list()]);
    let transactions = |count| unread(&server, count, "/etcdserverpb.KV/Txn", &transaction);
    let series = "quorate_lists_reference_bytes";
    // Reads that run at the same time would drop their rows once the limit is reached, and begin again. On a busy machine
    // they would then exceed the request timeout. Therefore, each list is read before the next one, and a list of 10 MB
    // is the one that reaches the limit.
    let mut held = Vec::new();
    for number in 1..=6 {
        held.push(SlowReaders::begin(transactions(1)));
        reaches(&server, series, f64::from(number) * 40_000_000.0).await;
    }
    for number in 25..=27 {
        held.push(lists_read_slowly(&server, 1));
        reaches(&server, series, f64::from(number) * 10_000_000.0).await;
    }
    let waiting = transactions(13);
    reaches(&server, "quorate_lists_refused_total", 1.0).await;
    let grown = server.memory("RssAnon").saturating_sub(before) as usize / MIB;
    assert!(grown < 512, "memory grew by {grown} MiB");
    refused(client.range(prefix("k")).await, Code::Unknown, TOO_MANY);
    assert_eq!(within("a short list", client.range(prefix("k00"))).await.unwrap().kvs.len(), 10);
    drop((held, waiting));
    drops_to_zero(&server, series).await;
    assert_eq!(client.range(prefix("k")).await.unwrap().kvs.len(), 100);
}

async fn watchers_beyond_the_memory_limit_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    // 512 MiB has room for 511 watchers, each of which takes slightly more memory than its key.
    let large = |number: usize| {
        let key = [number.to_string().into_bytes(), vec![b'k'; MIB]].concat();
        pb::WatchCreateRequest { key: key.into(), ..pb::WatchCreateRequest::default() }
    };
    let mut created = 0;
    let refused = loop {
        watch.send(RequestUnion::CreateRequest(large(created))).await;
        let answer = watch.next().await;
        if answer.canceled {
            break answer;
        }
        created += 1;
    };
    assert_eq!((refused.cancel_reason.as_str(), created), (TOO_MANY, 511));
    let bytes = metric(&server, "quorate_watchers_bytes");
    assert!((511.0..=512.0).contains(&(bytes / MIB_FLOAT)), "{bytes}");
    assert_eq!(metric(&server, "quorate_watchers_refused_total"), 1.0);
    // Small watchers still fit, and existing watchers continue.
    let mut small = Watch::open(&client);
    assert!(small.create(watch_prefix("s")).await.created);
    client.write("s", "v").await;
    assert_eq!(small.events(1).await.len(), 1);
    watch.cancel(0).await;
    assert!(watch.next().await.canceled);
    assert!(
        watch.create(large(created)).await.created,
        "the memory of a cancelled watcher is free again"
    );
    drop((watch, small));
    drops_to_zero(&server, "quorate_watchers_bytes").await;
}

async fn events_queued_for_a_slow_watch_client_are_bounded(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut connection = RawHttp2::connect(server.port());
    let id = connection.open(&call_head("/etcdserverpb.Watch/Watch"));
    let create = RequestUnion::CreateRequest(watch_prefix("k"));
    let request = pb::WatchRequest { request_union: Some(create) };
    connection.send_body(id, &framed(&request.encode_to_vec()), false);
    connection.read_body(id, 10);
    for number in 0..300 {
        client.write(format!("k{number}"), vec![b'v'; 100_000]).await;
        // The metric includes bytes that wait on the watcher's stream and in the transport.
        let owed = metric(&server, "quorate_watch_events_bytes");
        assert!(owed < 3.0 * MIB_FLOAT, "{owed} bytes of events are queued after {number} writes");
    }
    assert_eq!(metric(&server, "etcd_debugging_mvcc_slow_watcher_total"), 1.0);
    assert!(metric(&server, "quorate_watch_events_bytes") > 0.0);
    drop(connection);
    drops_to_zero(&server, "quorate_watch_events_bytes").await;
}

async fn no_requests_are_read_from_a_watch_client_that_does_not_read_responses(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut connection = RawHttp2::connect(server.port());
    connection.stream_window();
    let id = connection.open(&call_head("/etcdserverpb.Watch/Watch"));
    let create = RequestUnion::CreateRequest(watch_prefix("k"));
    let request = pb::WatchRequest { request_union: Some(create) };
    let one = framed(&request.encode_to_vec());
    // Up to 1 MiB of requests may be in transit.
    let count = MIB / one.len();
    assert!(count > 60_000, "{count}");
    assert!(connection.send_body_within_windows(id, &one.repeat(count)));
    let series = "etcd_debugging_mvcc_watcher_total";
    reaches(&server, series, 1.0).await;
    let (mut watchers, mut looks) = (0.0, 0);
    while looks < 20 {
        client.write("a", "v").await;
        let now = metric(&server, series);
        looks = if now > watchers { 0 } else { looks + 1 };
        watchers = now;
    }
    // The server stops creating watchers once the client's window, the buffer of encoded replies and the queue of
    // waiting replies are full.
    assert!(watchers < 40_000.0, "{watchers} of {count} watchers were created");
    drop(connection);
    drops_to_zero(&server, series).await;
}

async fn changes_not_yet_in_the_backend_file_are_bounded(kind: Kind) {
    let Some((shim, mut server)) = with_holdable_disk(kind).await else { return };
    let series = "quorate_backend_pending_bytes";
    drops_to_zero(&server, series).await;
    shim.hold(Held::Backend);
    let count = 600;
    let asking = ask_all(&server, count, async |client, number| {
        client.put(put(format!("k{number:03}"), vec![b'v'; MIB])).await
    });
    // The open batch grows to 128 MiB while two batches are queued and one is being written. Then the applier blocks,
    // and committed entries stay in the log.
    reaches(&server, series, 128.0 * MIB_FLOAT).await;
    reaches(&server, "quorate_log_uncommitted_bytes", MIB_FLOAT).await;
    let reading = pb::RangeRequest { serializable: true, ..range("before", "") };
    assert_eq!(within("a read", server.client().range(reading)).await.unwrap().count, 1);
    eventually_within(FLOOD_TIME, "requests are refused", async || {
        server.client().put(put("another", "v")).await.is_err().then_some(())
    })
    .await;
    let pending = metric(&server, series);
    // Each of the four batches has at most 128 MiB.
    assert!(pending <= 512.0 * MIB_FLOAT, "{pending}");
    shim.hold(Held::Nothing);
    let Counts { done, refused, late } = count_all(asking).await;
    assert_eq!(done + refused + late, count);
    drops_to_zero(&server, series).await;
    // Requests that timed out are still executed, because they were in the log.
    let written = i64::try_from(done + late).unwrap();
    let keys = pb::RangeRequest { count_only: true, ..prefix("k") };
    eventually_within(FLOOD_TIME, "all writes are applied", async || {
        (server.client().range(keys.clone()).await.unwrap().count == written).then_some(())
    })
    .await;
    server.kill();
    server.start_again().await;
    assert_eq!(server.client().range(keys).await.unwrap().count, written);
}

/// Returns the header fields of a member's message, which identify its sender.
async fn greeting(server: &Server) -> [(&'static str, String); 3] {
    let status = server.client().status(pb::StatusRequest {}).await.unwrap();
    [
        ("X-Etcd-Cluster-ID", format!("{:x}", status.header.unwrap().cluster_id)),
        ("X-Server-Version", "3.7.1".to_owned()),
        ("X-Min-Cluster-Version", "3.0.0".to_owned()),
    ]
}

/// Sends a heartbeat that claims to come from the member with this id, and returns the status of the answer.
fn call_as(server: &Server, greeting: &[(&'static str, String)], id: u64) -> u16 {
    const HEARTBEAT: i32 = 8;
    let message = raftpb::Message {
        r#type: Some(HEARTBEAT),
        from: Some(id),
        term: Some(1),
        ..raftpb::Message::default()
    };
    let name = format!("{id:x}");
    let mut headers: Vec<(&str, &str)> =
        greeting.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.extend([("X-Server-From", &*name), ("X-PeerURLs", "http://127.0.0.1:9")]);
    let port = server.peer_port();
    request_with(port, "POST", "/raft", &headers, &message.encode_to_vec()).status
}

async fn the_number_of_remembered_unknown_peers_is_bounded(kind: Kind) {
    let server = Server::start(kind).await;
    let greeting = greeting(&server).await;
    assert_eq!(metric(&server, "quorate_peer_remotes"), 0.0);
    for id in 100..180 {
        // The message is not addressed to a member of this cluster.
        assert_eq!(call_as(&server, &greeting, id), 500);
    }
    assert_eq!(metric(&server, "quorate_peer_remotes"), 64.0);
    assert_eq!(metric(&server, "quorate_peer_confirmed_senders"), 0.0);
    server.client().write("k", "v").await;
}

async fn only_a_few_large_bodies_on_the_peer_port_are_read_at_a_time(kind: Kind) {
    let server = Server::start(kind).await;
    let greeting = greeting(&server).await;
    let fields: String =
        greeting.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let begin = || {
        let mut stream = TcpStream::connect(("127.0.0.1", server.peer_port())).unwrap();
        let head =
            format!("POST /raft HTTP/1.1\r\nHost: x\r\nContent-Length: {MIB}\r\n{fields}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&[7; MIB / 10]).unwrap();
        stream
    };
    let held: Vec<TcpStream> = (0..6).map(|_| begin()).collect();
    reaches(&server, "quorate_peer_large_bodies", 4.0).await;
    assert!(metric(&server, "quorate_peer_large_bodies") <= 4.0);
    // Small messages are still read. This message is refused because it is addressed to another member.
    assert_eq!(call_as(&server, &greeting, 7), 500);
    drop(held);
    drops_to_zero(&server, "quorate_peer_large_bodies").await;
}
