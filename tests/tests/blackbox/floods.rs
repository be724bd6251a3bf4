//! Floods: clients request more than a server can execute. The server's memory must stay bounded, and it must continue
//! to serve.
//!
//! Most tests print the peak resident memory under load. A long run produces the table in `docs/performance.md`: `cargo
//! xtask test --long floods -- --nocapture --test-threads=1`.

use std::time::Duration;

use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::v3lockpb::LockRequest;
use quorate_tests::{
    Client, ClusterOptions, Kind, Options, RawHttp2, Server, Syncing, Syncs, Watch, call_head,
    eventually, eventually_within, framed, is_long, key, literal, on_both_servers, on_quorate,
    prefix, put, put_op, range, txn, watch_key, watch_prefix,
};
use tokio::task::JoinSet;

use super::auth::{guard, log_in, options};

on_both_servers! {
    alone:
    thousands_of_idle_connections_do_not_stop_the_member,
    thousands_of_idle_streams_do_not_stop_the_member,
    many_incomplete_requests_do_not_stop_the_member,
    unread_lists_do_not_stop_the_member,
    watchers_without_readers_use_bounded_memory,
    large_puts_during_a_disk_stall_do_not_stop_the_member,
    many_large_transactions_do_not_stop_the_member,
    many_reads_without_a_leader_do_not_stop_the_member,
    watchers_of_many_keys_do_not_stop_the_member,
    watchers_of_large_keys_do_not_stop_the_member,
    many_calls_with_invented_tokens_do_not_stop_the_member,
    many_waiters_for_a_lock_do_not_stop_the_member,
}

on_quorate! {
    alone:
    incomplete_requests_are_refused_while_small_requests_are_served,
    streams_beyond_the_total_limit_are_refused,
    streams_without_credentials_leave_capacity_for_users_and_logins,
    watchers_that_are_read_continue_despite_unread_watchers,
}

const MIB: usize = 1 << 20;

/// Returns the first number in a short run and the second number in a long run.
fn form(short: usize, long: usize) -> usize {
    if is_long() { long } else { short }
}

#[expect(clippy::print_stdout, reason = "the test prints a measured figure")]
fn show(flood: &str, kind: Kind, before: u64, server: &Server) {
    let peak = server.memory("VmHWM").max(server.memory("VmRSS"));
    println!(
        "flood: {flood} | {kind:?} | {} MiB before | {} MiB at most",
        before >> 20,
        peak >> 20
    );
}

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// Maximum time that a busy machine takes to execute the accepted requests, which amount to half a gigabyte.
const BUSY_MAX: Duration = Duration::from_secs(120);

/// Checks that the server answers as usual.
async fn still_serves(server: &Server) {
    let client = server.client();
    let write = async || client.put(put("after", b"v")).await.ok();
    eventually_within(BUSY_MAX, "a write", write).await;
}

async fn thousands_of_idle_connections_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let (before, count) = (server.memory("VmRSS"), form(200, 8_000));
    let held: Vec<RawHttp2> = (0..count).map(|_| RawHttp2::connect(server.port())).collect();
    still_serves(&server).await;
    show(&format!("{count} idle connections"), kind, before, &server);
    drop(held);
}

async fn thousands_of_idle_streams_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let before = server.memory("VmRSS");
    let (connections, streams) = (form(4, 10), form(100, 8_000));
    let mut held: Vec<RawHttp2> =
        (0..connections).map(|_| RawHttp2::connect(server.port())).collect();
    let head = call_head(KEEP_ALIVE);
    for connection in &mut held {
        (0..streams).for_each(|_| _ = connection.open(&head));
    }
    // The server reads frames in order, so a response to the last call on each connection shows that the server has
    // read the other calls.
    for connection in &mut held {
        let id = connection.open(&call_head(RANGE));
        connection.send_body(id, &framed(&range("k", "").encode_to_vec()), true);
        connection.read_answer(id);
    }
    still_serves(&server).await;
    show(&format!("{connections} x {streams} idle streams"), kind, before, &server);
}

/// Sends incomplete puts. Returns the connections.
fn send_halves(server: &Server, connections: usize, puts: usize) -> Vec<RawHttp2> {
    let body = framed(&put("k", vec![b'v'; MIB]).encode_to_vec());
    let (head, part) = (call_head(PUT), &body[..body.len() - 1]);
    let mut held = Vec::new();
    for _ in 0..connections {
        let mut connection = RawHttp2::connect(server.port());
        for _ in 0..puts {
            let id = connection.open(&head);
            // Most bytes of a request are in transit before the answer arrives, even if the request is refused.
            connection.send_body_within_windows(id, part);
        }
        held.push(connection);
    }
    held
}

async fn many_incomplete_requests_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let before = server.memory("VmRSS");
    let (connections, puts) = (form(4, 40), form(10, 40));
    let _held = send_halves(&server, connections, puts);
    still_serves(&server).await;
    let offered = connections * puts;
    show(&format!("{offered} puts of 1 MiB without their last byte"), kind, before, &server);
}

/// The server refuses a request that is still incomplete after 20 seconds. If sending all requests takes that long, the
/// first requests are refused before the last ones arrive, so the test sends further requests.
async fn incomplete_requests_are_refused_while_small_requests_are_served(kind: Kind) {
    let server = Server::start(kind).await;
    let bytes = || server.metric("quorate_requests_bytes").unwrap();
    let has_room_under = |mebibytes: u64| {
        let most = (mebibytes << 20) as f64;
        assert!(bytes() < 1.01 * most, "{}", bytes());
        bytes() < 0.98 * most
    };
    // The first connection may use up to half of the limit, and every later connection a sixteenth of it.
    let mut held = eventually_within(
        BUSY_MAX,
        "one connection holds as many bytes as permitted",
        async || {
            let held = send_halves(&server, 1, 300);
            (!has_room_under(256)).then_some(held)
        },
    )
    .await;
    eventually_within(BUSY_MAX, "the total limit of bytes is reached", async || {
        held.extend(send_halves(&server, 1, 40));
        (!has_room_under(512)).then_some(())
    })
    .await;
    assert!(server.metric("quorate_requests_refused_total").unwrap() > 0.0);
    let client = server.client();
    let refused = eventually_within(BUSY_MAX, "a large put is refused", async || {
        held.extend(send_halves(&server, 1, 1));
        client.put(put("k", vec![b'v'; MIB])).await.err()
    })
    .await;
    assert_eq!(refused.message(), "etcdserver: too many requests");
    still_serves(&server).await;
    drop(held);
    eventually("the bytes of closed connections are released", async || {
        (bytes() == 0.0).then_some(())
    })
    .await;
    client.put(put("k", vec![b'v'; MIB])).await.unwrap();
}

async fn streams_beyond_the_total_limit_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let calls = || server.metric("quorate_calls_in_progress").unwrap() as usize;
    let head = call_head(KEEP_ALIVE);
    let mut held = Vec::new();
    // About half of the limit is already in use when the last connection requests more than a sixteenth of the limit.
    for streams in [32_000, 32_000, 32_000] {
        let mut connection = RawHttp2::connect(server.port());
        (0..streams).for_each(|_| _ = connection.open(&head));
        held.push(connection);
        eventually("the calls are running or refused", async || {
            let refused = server.metric("quorate_calls_refused_total").unwrap() as usize;
            (calls() + refused >= 32_000 * held.len()).then_some(())
        })
        .await;
    }
    let refused = server.metric("quorate_calls_refused_total").unwrap();
    assert!(refused > 20_000.0, "only {refused} calls were refused");
    assert!(calls() < 75_000, "{} calls", calls());
    still_serves(&server).await;
    drop(held);
    eventually("the calls end", async || (calls() == 0).then_some(())).await;
}

async fn streams_without_credentials_leave_capacity_for_users_and_logins(kind: Kind) {
    let server = options(kind).start().await;
    let root = guard(&server.client()).await;
    let head = call_head(KEEP_ALIVE);
    let mut held = Vec::new();
    // Once half of the permitted calls are in use, each further connection may use a sixteenth of them, so 17
    // connections use all calls that clients without credentials may use.
    for connection in 1..=17 {
        let mut streams = RawHttp2::connect(server.port());
        (0..8_192).for_each(|_| _ = streams.open(&head));
        held.push(streams);
        eventually("the calls are running or refused", async || {
            let metric = |name: &str| server.metric(name).unwrap() as usize;
            let begun = metric("quorate_calls_in_progress") + metric("quorate_calls_refused_total");
            (begun >= 8_192 * connection).then_some(())
        })
        .await;
    }
    let nobody = server.client();
    let refused = nobody.range(key("a1")).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: too many requests");
    root.range(key("a1")).await.unwrap();
    let ann = log_in(&server.client(), "ann").await;
    ann.range(key("a1")).await.unwrap();
    drop(held);
}

/// Writes this number of keys with values of 100 kB.
async fn fill(client: &Client, count: usize) {
    let value = vec![b'v'; 100_000];
    for number in 0..count {
        client.write(format!("k{number:04}"), &value).await;
    }
}

async fn unread_lists_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let keys = form(50, 300);
    fill(&server.client(), keys).await;
    let (before, readers) = (server.memory("VmRSS"), form(10, 30));
    let (head, body) = (call_head(RANGE), framed(&prefix("k").encode_to_vec()));
    let mut held = Vec::new();
    for _ in 0..readers {
        let mut connection = RawHttp2::connect(server.port());
        let id = connection.open(&head);
        connection.send_body(id, &body, true);
        // Part of the answer has arrived, and the rest waits until the client extends its window.
        connection.read_body(id, 10_000);
        held.push(connection);
    }
    still_serves(&server).await;
    let moved = keys * readers / 10;
    show(&format!("{readers} unread lists of {} MB", keys / 10), kind, before, &server);
    if kind == Kind::Quorate {
        let grown = (server.memory("VmHWM") - before) as usize / MIB;
        assert!(grown < moved / 2 + 64, "memory grew by {grown} MiB for {moved} MB of lists");
    }
}

/// Opens this number of watches on this number of keys, and reads only the beginning of each watch stream.
fn watch_unread(server: &Server, watchers: usize, keys: usize) -> Vec<RawHttp2> {
    let head = call_head(WATCH);
    let open = |number| {
        let mut connection = RawHttp2::connect(server.port());
        let id = connection.open(&head);
        // The watches start at different revisions.
        let start_revision = 2 + i64::try_from(number % keys).unwrap();
        let create = pb::WatchCreateRequest { start_revision, ..watch_prefix("k") };
        let request = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        connection.send_body(id, &framed(&request.encode_to_vec()), false);
        connection.read_body(id, 10);
        connection
    };
    (0..watchers).map(open).collect()
}

async fn watchers_without_readers_use_bounded_memory(kind: Kind) {
    let server = Server::start(kind).await;
    let keys = form(50, 300);
    fill(&server.client(), keys).await;
    let (before, watchers) = (server.memory("VmRSS"), form(20, 300));
    let _held = watch_unread(&server, watchers, keys);
    fill(&server.client(), keys / 5).await;
    still_serves(&server).await;
    show(&format!("{watchers} unread watchers of {} MB", keys / 10), kind, before, &server);
    if kind == Kind::Quorate {
        let held = eventually("events are held for the watchers", async || {
            server.metric("quorate_watch_events_bytes").filter(|held| *held > 0.0)
        })
        .await;
        // Beyond the limit, each watcher has one queued revision and one revision in flight.
        let most = (256 << 20) + watchers * 300_000;
        assert!(held < most as f64, "{held}");
    }
}

async fn watchers_that_are_read_continue_despite_unread_watchers(kind: Kind) {
    let server = Server::start(kind).await;
    let (client, keys) = (server.client(), 50);
    fill(&client, keys).await;
    // The queue of one stream holds about 2 MiB. Streams near the end of the history hold less, and each of these
    // streams has passed a response to its connection.
    let _held = watch_unread(&server, 320, keys);
    eventually("the limit of held events is reached", async || {
        let held = server.metric("quorate_watch_events_bytes").unwrap();
        (held >= f64::from(256 << 20)).then_some(())
    })
    .await;
    let mut watch = Watch::open(&client);
    watch.create(pb::WatchCreateRequest { start_revision: 2, ..watch_prefix("k") }).await;
    let mut events = watch.events(keys).await;
    for _ in 0..20 {
        fill(&client, 3).await;
        events.extend(watch.events(3).await);
    }
    let revisions = events.iter().map(|event| event.kv.as_ref().unwrap().fields().mod_revision);
    assert!(revisions.eq(2..112));
    watch.progress().await;
    assert_eq!(watch.next().await.watch_id, -1);
}

/// Sends all requests at once over several connections. Returns the number of executed requests.
async fn ask_all<F: Future<Output = bool> + 'static>(
    server: &Server,
    count: usize,
    ask: impl Fn(Client, usize) -> F,
) -> usize {
    let clients: Vec<Client> = (0..16).map(|_| server.client()).collect();
    let mut asking = JoinSet::new();
    for number in 0..count {
        asking.spawn_local(ask(clients[number % clients.len()].clone(), number));
    }
    let mut done = 0;
    while let Some(one) = asking.join_next().await {
        done += usize::from(one.unwrap());
    }
    done
}

async fn large_puts_during_a_disk_stall_do_not_stop_the_member(kind: Kind) {
    let Some(mut syncing) = Syncing::of(kind) else { return };
    let server = syncing.prepare(Options::new(kind)).start().await;
    let (before, count) = (server.memory("VmRSS"), form(100, 1_200));
    syncing.set(&server, Syncs::Take(Duration::from_secs(3)));
    let done = ask_all(&server, count, |client, number| async move {
        client.put(put(format!("k{number}"), vec![b'v'; MIB])).await.is_ok()
    })
    .await;
    show(&format!("{count} puts of 1 MiB, syncs take 3 s, {done} done"), kind, before, &server);
    syncing.set(&server, Syncs::Work);
    still_serves(&server).await;
}

async fn many_large_transactions_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let (before, count) = (server.memory("VmRSS"), form(50, 1_000));
    let done = ask_all(&server, count, |client, number| async move {
        let value = vec![b'v'; 10_000];
        let puts = (0..100).map(|key| put_op(format!("k{number}/{key}"), &value)).collect();
        client.txn(txn(puts)).await.is_ok()
    })
    .await;
    still_serves(&server).await;
    show(
        &format!("{count} transactions of 100 puts of 10 kB at once, {done} done"),
        kind,
        before,
        &server,
    );
}

async fn many_reads_without_a_leader_do_not_stop_the_member(kind: Kind) {
    // Requests wait for at least twice the election timeout.
    let mut cluster = ClusterOptions::new(kind, 3).timing(100, 2_000).start().await;
    let last = cluster.follower().await;
    for member in cluster.running().into_iter().filter(|member| *member != last) {
        cluster.kill(member);
    }
    let server = cluster.server(last);
    let (before, count) = (server.memory("VmRSS"), form(1_000, 40_000));
    let done = ask_all(server, count, |client, number| async move {
        let key = [vec![b'k'; 1_000], number.to_string().into_bytes()].concat();
        client.range(range(key, "")).await.is_ok()
    })
    .await;
    assert_eq!(done, 0, "there is no leader");
    show(&format!("{count} linearizable reads at once, without a leader"), kind, before, server);
}

async fn watchers_of_many_keys_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let (before, watchers) = (server.memory("VmRSS"), form(1_000, 20_000));
    let mut held = Vec::new();
    for stream in 0..10 {
        let mut watch = Watch::open(&server.client());
        for number in 0..watchers {
            watch.create(watch_key(format!("k{stream}/{number}"))).await;
        }
        held.push(watch);
    }
    still_serves(&server).await;
    show(&format!("10 x {watchers} watchers of a key each"), kind, before, &server);
}

async fn watchers_of_large_keys_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let (before, watchers) = (server.memory("VmRSS"), form(20, 800));
    let mut watch = Watch::open(&server.client());
    let mut created = 0;
    for number in 0..watchers {
        let key = [number.to_string().into_bytes(), vec![b'k'; MIB]].concat();
        watch.send(RequestUnion::CreateRequest(watch_key(key))).await;
        created += usize::from(!watch.next().await.canceled);
    }
    still_serves(&server).await;
    show(
        &format!("{watchers} watchers of keys of 1 MiB, {created} created"),
        kind,
        before,
        &server,
    );
}

async fn many_calls_with_invented_tokens_do_not_stop_the_member(kind: Kind) {
    let server = options(kind).start().await;
    let root = guard(&server.client()).await;
    let (before, calls) = (server.memory("VmRSS"), form(200, 2_000));
    let body = framed(&range("k", "").encode_to_vec());
    let mut held: Vec<RawHttp2> = (0..10).map(|_| RawHttp2::connect(server.port())).collect();
    for (connection, number) in held.iter_mut().zip(0_u64..) {
        for call in 0..calls as u64 {
            // The token looks as if a future log entry had issued it.
            let token = format!("nobodygavethisout.{}", (1_u64 << 40) + number * 10_000 + call);
            let id =
                connection.open(&[call_head(RANGE), literal(b"token", token.as_bytes())].concat());
            connection.send_body(id, &body, true);
        }
    }
    // A response to a request without a token shows that the server has read the other requests.
    for connection in &mut held {
        let id = connection.open(&call_head(RANGE));
        connection.send_body(id, &body, true);
        connection.read_answer(id);
    }
    eventually("a write", async || root.put(put("after", b"v")).await.ok()).await;
    show(&format!("10 x {calls} reads with made-up tokens"), kind, before, &server);
}

async fn many_waiters_for_a_lock_do_not_stop_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let (before, count) = (server.memory("VmRSS"), form(100, 1_000));
    let mut granting = JoinSet::new();
    for first in 0..16 {
        let client = server.client();
        granting.spawn(async move {
            for number in (first..count).step_by(16) {
                client.grant(i64::try_from(number).unwrap() + 1, 3_600).await;
            }
        });
    }
    granting.join_all().await;
    let mut held: Vec<RawHttp2> = (0..10).map(|_| RawHttp2::connect(server.port())).collect();
    for number in 0..count {
        let connection = &mut held[number % 10];
        let id = connection.open(&call_head("/v3lockpb.Lock/Lock"));
        let lease = i64::try_from(number).unwrap() + 1;
        let request = LockRequest { name: b"l".to_vec().into(), lease };
        connection.send_body(id, &framed(&request.encode_to_vec()), true);
    }
    let client = server.client();
    eventually_within(BUSY_MAX, "all clients wait", async || {
        let keys = pb::RangeRequest { count_only: true, ..prefix("l/") };
        let waiting = client.range(keys).await.unwrap().count;
        (waiting == i64::try_from(count).unwrap()).then_some(())
    })
    .await;
    still_serves(&server).await;
    show(&format!("{count} wait for a lock"), kind, before, &server);
}
