//! `etcd grpc-proxy`: the behaviour that its clients observe, the reduced load on the members, and the loss of members
//! or of the proxy.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use quorate_api::etcdserverpb as pb;
use quorate_tests::pki::Leaf;
use quorate_tests::{
    Client, Cluster, Kind, Options, Proxy, Server, TIMEOUT, Tool, Watch, bytes, delete, eventually,
    eventually_ok, eventually_within, from_key, key, on_both_servers, on_quorate, op, prefix, put,
    put_leased, put_op, range, refused, txn, watch_key, watch_prefix, within,
};
use tonic::Code;

use crate::tls::{Files, ctl};

on_both_servers! {
    alone:
    the_proxy_forwards_requests_and_streams,
    unsupported_calls_are_refused_with_a_reason,
    a_namespace_isolates_its_keys,
    serializable_ranges_are_cached,
    watches_of_one_range_share_one_watch_of_the_member,
    watches_of_many_keys_share_streams_to_the_member,
    leases_are_renewed_and_expire_through_the_proxy,
    the_proxies_are_listed_in_place_of_the_members,
    the_proxy_serves_the_health_and_metrics_of_itself_and_of_a_member,
    a_restarted_proxy_serves_again,
    the_proxy_supports_tls_on_both_sides,
}

on_quorate! {
    alone:
    watchers_added_at_any_time_get_every_event_exactly_once,
    progress_is_sent_after_all_events,
    a_slow_watcher_uses_bounded_memory_and_loses_no_events,
    large_responses_are_forwarded_at_the_pace_of_their_clients,
    users_do_not_share_watches_or_cached_ranges,
    requests_are_sent_to_another_member_when_a_member_is_lost,
    watches_continue_through_another_member,
    watchers_receive_every_event_while_members_are_killed,
    messages_are_logged_without_secrets,
}

async fn the_proxy_forwards_requests_and_streams(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let client = proxy.client();
    client.write("a", "1").await;
    let request = txn(vec![put_op("b", "2"), op(pb::request_op::Request::RequestRange(key("a")))]);
    let answer = client.txn(request).await.unwrap();
    assert!(answer.succeeded);
    assert_eq!(client.read("b").await.as_deref(), Some(&b"2"[..]));
    assert_eq!(client.delete_range(delete("a", "")).await.unwrap().deleted, 1);
    let compacted = client.revision().await;
    client.compact_to(compacted).await;
    let past = pb::RangeRequest { revision: 1, ..key("a") };
    let text = "etcdserver: mvcc: required revision has been compacted";
    refused(client.range(past).await, code(kind, Code::OutOfRange), text);
    let text = "etcdserver: key is not provided";
    refused(client.put(put("", "x")).await, code(kind, Code::InvalidArgument), text);
    let pieces = client.snapshot().await.unwrap();
    assert!(pieces.iter().map(|piece| piece.blob.len()).sum::<usize>() > 10_000);
    client.status(pb::StatusRequest::default()).await.unwrap();
    client.hash_kv(pb::HashKvRequest::default()).await.unwrap();
    client.defragment(pb::DefragmentRequest {}).await.unwrap();
    client.user_add(pb::AuthUserAddRequest { name: "u".into(), ..Default::default() }).await.ok();
    assert!(client.user_list(pb::AuthUserListRequest {}).await.is_ok());
    let name = bytes("lock");
    let lock = pb_lock(name.clone());
    let held = within("a lock", client.lock(lock)).await.unwrap();
    client.unlock(quorate_api::v3lockpb::UnlockRequest { key: held.key }).await.unwrap();
}

/// Returns the code with which a proxy forwards a member's refusal. etcd's proxy loses the member's code in its client
/// library.
fn code(kind: Kind, of_member: Code) -> Code {
    if kind == Kind::Etcd { Code::Unknown } else { of_member }
}

fn pb_lock(name: bytes::Bytes) -> quorate_api::v3lockpb::LockRequest {
    quorate_api::v3lockpb::LockRequest { name, lease: 0 }
}

fn run(kind: Kind, flags: &[&str]) -> Output {
    let mut command = Command::new(kind.program());
    command.args(["grpc-proxy", "start", "--listen-addr=127.0.0.1:0"]).args(flags);
    command.output().unwrap()
}

async fn unsupported_calls_are_refused_with_a_reason(kind: Kind) {
    for (flags, said) in [
        (&["--resolver-prefix=a"][..], "invalid resolver-ttl 0\n"),
        (&["--resolver-ttl=1"], "invalid resolver-prefix \"\"\n"),
        (&["--none"], "unknown flag: --none"),
    ] {
        let output = run(kind, flags);
        assert_eq!(output.status.code(), Some(1), "{flags:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains(said), "{flags:?}: {errors}");
    }
    let help = Command::new(kind.program()).arg("grpc-proxy").output().unwrap();
    assert!(help.status.success());
    assert!(String::from_utf8_lossy(&help.stdout).contains("start"), "{help:?}");
}

async fn a_namespace_isolates_its_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &["--namespace=n/"]).await;
    let (inside, outside) = (proxy.client(), server.client());
    outside.write("a", "outside").await;
    outside.write("n0", "after").await;
    assert_eq!(inside.read("a").await, None);
    let mut watch = Watch::open(&inside);
    watch.create(pb::WatchCreateRequest { prev_kv: true, ..watch_prefix("") }).await;
    let mut everything = Watch::open(&inside);
    let all =
        pb::WatchCreateRequest { key: bytes("\0"), range_end: bytes("\0"), ..Default::default() };
    everything.create(all).await;
    inside.write("a", "1").await;
    let lease = inside.grant(0, 100).await;
    inside.put(put_leased("b", "2", lease)).await.unwrap();
    assert_eq!(outside.read("n/a").await.as_deref(), Some(&b"1"[..]));
    let keys = |answer: pb::RangeResponse| -> Vec<Vec<u8>> {
        answer.kvs.iter().map(|record| record.key().to_vec()).collect()
    };
    assert_eq!(keys(inside.range(from_key("\0")).await.unwrap()), [b"a", b"b"]);
    assert_eq!(keys(inside.range(range("a", "b")).await.unwrap()), [b"a"]);
    assert_eq!(keys(inside.range(prefix("b")).await.unwrap()), [b"b"]);
    let seen: Vec<_> = everything.events(2).await;
    assert_eq!(seen[0].kv.as_ref().unwrap().key(), b"a");
    let asked = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
    assert_eq!(inside.lease_time_to_live(asked).await.unwrap().keys, [&b"b"[..]]);
    let inner = txn(vec![
        put_op("a", "3"),
        op(pb::request_op::Request::RequestRange(from_key("\0"))),
        op(pb::request_op::Request::RequestDeleteRange(pb::DeleteRangeRequest {
            prev_kv: true,
            ..delete("b", "\0")
        })),
    ]);
    let answer = inside.txn(inner).await.unwrap();
    let Some(pb::response_op::Response::ResponseRange(found)) =
        answer.responses[1].response.clone()
    else {
        panic!("{answer:?}");
    };
    assert_eq!(keys(found), [b"a", b"b"]);
    let Some(pb::response_op::Response::ResponseDeleteRange(deleted)) =
        answer.responses[2].response.clone()
    else {
        panic!("{answer:?}");
    };
    assert_eq!(deleted.prev_kvs[0].key(), b"b");
    assert_eq!(inside.delete_range(delete("\0", "\0")).await.unwrap().deleted, 1);
    assert_eq!(outside.read("a").await.as_deref(), Some(&b"outside"[..]));
    assert_eq!(outside.read("n0").await.as_deref(), Some(&b"after"[..]));
    let text = "etcdserver: key is not provided";
    refused(inside.put(put("", "x")).await, code(kind, Code::InvalidArgument), text);
}

async fn serializable_ranges_are_cached(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let client = proxy.client();
    client.write("a", "1").await;
    let old = || pb::RangeRequest { serializable: true, ..key("a") };
    let value = |answer: pb::RangeResponse| answer.kvs[0].value().to_vec();
    let hits = || proxy.metric("etcd_grpc_proxy_cache_hits_total").unwrap();
    let before = hits();
    for _ in 0..3 {
        assert_eq!(value(client.range(old()).await.unwrap()), b"1");
    }
    assert!((hits() - before - 2.0).abs() < 0.1, "{} {before}", hits());
    // The response to a linearizable read is cached as well, for later serializable reads.
    client.write("a", "2").await;
    assert_eq!(value(client.range(key("a")).await.unwrap()), b"2");
    let before = hits();
    assert_eq!(value(client.range(old()).await.unwrap()), b"2");
    assert!((hits() - before - 1.0).abs() < 0.1);
    // A transaction also invalidates the cached read.
    client.txn(txn(vec![put_op("a", "3")])).await.unwrap();
    assert_eq!(value(client.range(old()).await.unwrap()), b"3");
    assert!(proxy.metric("etcd_grpc_proxy_cache_keys_total").unwrap() >= 1.0);
    assert!(proxy.metric("etcd_grpc_proxy_cache_misses_total").unwrap() >= 2.0);
}

/// Returns the number of watchers on the member.
fn watchers(server: &Server) -> f64 {
    server.metric("etcd_debugging_mvcc_watcher_total").unwrap()
}

async fn watches_of_one_range_share_one_watch_of_the_member(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    // etcd's proxy watches a key of its own, and that watch may start after this point.
    let own = if kind == Kind::Etcd { 1.0 } else { 0.0 };
    let before = watchers(&server).max(own);
    let mut watches = Vec::new();
    for _ in 0..10 {
        let mut watch = Watch::open(&proxy.client());
        watch.create(watch_prefix("a")).await;
        watches.push(watch);
    }
    let client = proxy.client();
    let mut seen = 0;
    eventually("the proxy has merged the watches", async || {
        client.write("a", seen.to_string()).await;
        seen += 1;
        for watch in &mut watches {
            watch.events(1).await;
        }
        let few = watchers(&server) - before;
        (few <= 2.0).then_some(())
    })
    .await;
    let coalescing = proxy.metric("etcd_grpc_proxy_watchers_coalescing_total").unwrap();
    // etcd's proxy coalesces only clients that join at the same time.
    assert!(coalescing >= 8.0 || kind == Kind::Etcd, "{coalescing}");
    assert!(proxy.metric("etcd_grpc_proxy_events_coalescing_total").unwrap() >= 1.0);
    drop(watches);
    if kind == Kind::Etcd {
        // The removal of watches is not checked here, because etcd's proxy kept a watch beyond the deadline in a run on
        // a busy machine.
        return;
    }
    eventually("watches of disconnected clients are removed", async || {
        (watchers(&server) <= before).then_some(())
    })
    .await;
}

async fn watches_of_many_keys_share_streams_to_the_member(kind: Kind) {
    const KEYS: usize = 200;
    let server = Options::new(kind).flag("--max-concurrent-streams=40").start().await;
    // Quorate's proxy is tested in front of members of both kinds.
    let proxy = Proxy::start(Kind::Quorate, &[server.port()], &[]).await;
    let streams = || server.metric("etcd_debugging_mvcc_watch_stream_total").unwrap();
    let (writer, client) = (server.client(), proxy.client());
    let name = |number: usize| format!("k/{number:03}");
    let mut watches = Vec::new();
    for number in 0..KEYS {
        let first = writer.write(&name(number), "0").await;
        // Every second watch starts at a past revision, like the watch of a client that has first read a list.
        let start_revision = if number % 2 == 0 { first } else { 0 };
        let mut watch = Watch::open(&client);
        watch.create(pb::WatchCreateRequest { start_revision, ..watch_key(name(number)) }).await;
        watches.push(watch);
    }
    for watch in watches.iter_mut().step_by(2) {
        watch.events(1).await;
    }
    eventually("few streams to the member remain", async || (streams() <= 3.0).then_some(())).await;
    let revision = writer.write("other", "x").await;
    for watch in &mut watches {
        watch.progress().await;
        let received = watch.next().await;
        assert_eq!((received.watch_id, received.header.unwrap().revision), (-1, revision));
    }
    for number in (0..KEYS).rev() {
        writer.write(&name(number), "1").await;
    }
    for (number, watch) in watches.iter_mut().enumerate() {
        let event = watch.events(1).await.remove(0);
        assert_eq!(event.kv.unwrap().key(), name(number).as_bytes());
    }
    // Some watches end, and the others continue.
    watches.truncate(KEYS / 2);
    eventually("watches end", async || (watchers(&server) <= KEYS as f64 / 2.0).then_some(()))
        .await;
    writer.write(&name(0), "2").await;
    watches[0].events(1).await;
}

async fn watchers_added_at_any_time_get_every_event_exactly_once(kind: Kind) {
    const WRITES: i64 = 400;
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let writer = server.client();
    let first = writer.write("a/0", "0").await;
    let writing = tokio::task::spawn_local(async move {
        for number in 1..=WRITES {
            let request = txn(vec![put_op("a/1", number.to_string()), put_op("a/2", "x")]);
            writer.txn(request).await.unwrap();
            if number % 3 == 0 {
                // These revisions contain no events for the watchers.
                writer.write("other", "x").await;
            }
        }
        writer.write("a/end", "end").await
    });
    let mut watching = Vec::new();
    for number in 0..24 {
        let client = proxy.client();
        watching.push(tokio::task::spawn_local(async move {
            let mut watch = Watch::open(&client);
            // Watches start at the first revision, at the current revision or at a future revision.
            let start = match number % 4 {
                0 => first,
                1 => 0,
                2 => client.revision().await + 1,
                _ => client.revision().await + 50,
            };
            let request = pb::WatchCreateRequest {
                start_revision: start,
                prev_kv: number % 8 > 3,
                ..watch_prefix("a/")
            };
            let created = watch.create(request).await;
            let start = if start == 0 { created.header.unwrap().revision + 1 } else { start };
            let mut seen: BTreeMap<i64, usize> = BTreeMap::new();
            loop {
                for event in watch.next().await.events {
                    let record = event.kv.unwrap();
                    let revision = record.fields().mod_revision;
                    assert!(revision >= start, "revision {revision} is below start {start}");
                    let last = seen.last_key_value().map_or(0, |(last, _)| *last);
                    assert!(revision >= last, "revision {revision} arrived after {last}");
                    *seen.entry(revision).or_default() += 1;
                    if record.key() == b"a/end" {
                        return (start, seen);
                    }
                }
            }
        }));
        // The watches start at different times during the writes.
        tokio::task::yield_now().await;
        let asking = proxy.client();
        asking.revision().await;
    }
    let end = within("the end of all writes", writing).await.unwrap();
    let mut expected: BTreeMap<i64, usize> = BTreeMap::new();
    let mut history = Watch::open(&server.client());
    history.create(pb::WatchCreateRequest { start_revision: first, ..watch_prefix("a/") }).await;
    while expected.last_key_value().is_none_or(|(last, _)| *last < end) {
        for event in history.next().await.events {
            *expected.entry(event.kv.unwrap().fields().mod_revision).or_default() += 1;
        }
    }
    for watching in watching {
        let (start, seen) = within("a watcher", watching).await.unwrap();
        let due: BTreeMap<i64, usize> = expected.range(start..).map(|(r, n)| (*r, *n)).collect();
        assert_eq!(seen, due, "from {start}");
    }
    // By now the clients share a few watches of at most three kinds: one for each of the two sets of options, and one
    // that lags behind.
    eventually("few watches remain", async || (watchers(&server) <= 4.0).then_some(())).await;
}

async fn progress_is_sent_after_all_events(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let client = proxy.client();
    let mut watch = Watch::open(&client);
    // A progress request is not answered while there are no watchers.
    watch.progress().await;
    watch.create(watch_key("a")).await;
    watch.create(watch_key("b")).await;
    client.write("a", "1").await;
    watch.events(1).await;
    let revision = client.write("other", "1").await;
    watch.progress().await;
    let received = watch.next().await;
    assert_eq!((received.watch_id, received.header.unwrap().revision), (-1, revision));
    watch.cancel(0).await;
    assert!(watch.next().await.canceled);
    let revision = client.write("b", "1").await;
    watch.events(1).await;
    watch.progress().await;
    let received = watch.next().await;
    assert_eq!((received.watch_id, received.header.unwrap().revision), (-1, revision));
}

async fn a_slow_watcher_uses_bounded_memory_and_loses_no_events(kind: Kind) {
    const WRITES: usize = 300;
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let (slow, quick) = (proxy.client(), proxy.client());
    let mut slow = Watch::open(&slow);
    slow.create(watch_key("a")).await;
    let mut quick = Watch::open(&quick);
    quick.create(watch_key("a")).await;
    let before = proxy.memory("VmRSS");
    let writer = server.client();
    for number in 0..WRITES {
        // The values amount to 300 MB, but the proxy holds only a few values at a time.
        let mut value = vec![0; 1 << 20];
        value[..8].copy_from_slice(&number.to_be_bytes());
        writer.write("a", value).await;
        let events = quick.events(1).await;
        assert_eq!(events[0].kv.as_ref().unwrap().value()[..8], number.to_be_bytes());
    }
    let grown = proxy.memory("VmRSS").saturating_sub(before);
    assert!(grown < 100 << 20, "memory grew by {} MiB", grown >> 20);
    assert!(proxy.metric("quorate_grpc_proxy_watchers_behind_total").unwrap() >= 1.0);
    for number in 0..WRITES {
        let events = slow.events(1).await;
        assert_eq!(events[0].kv.as_ref().unwrap().value()[..8], number.to_be_bytes());
    }
}

async fn large_responses_are_forwarded_at_the_pace_of_their_clients(kind: Kind) {
    const CLIENTS: usize = 24;
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    for number in 0..40 {
        server.client().write(format!("large/{number}"), vec![number; 1 << 20]).await;
    }
    let before = proxy.memory("VmRSS");
    // The clients stop reading. Of the 40 MB, each client therefore receives only the bytes that were already in
    // transit.
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = proxy.client();
        let request = client.signed(pb::SnapshotRequest {});
        let mut pieces = client.maintenance().snapshot(request).await.unwrap().into_inner();
        pieces.message().await.unwrap().expect("the stream contains a first piece");
        clients.push((client, pieces));
    }
    // Other clients receive complete answers as usual.
    let listed = proxy.client().range(prefix("large/")).await.unwrap();
    assert_eq!(listed.kvs.len(), 40);
    proxy.client().write("a", "1").await;
    let grown = proxy.memory("VmRSS").saturating_sub(before);
    assert!(grown < 100 << 20, "memory grew by {} MiB", grown >> 20);
    for (_, mut pieces) in clients {
        let mut bytes = 0;
        while let Some(piece) = pieces.message().await.unwrap() {
            bytes += piece.blob.len();
        }
        assert!(bytes > 35 << 20, "{bytes}");
    }
}

async fn leases_are_renewed_and_expire_through_the_proxy(kind: Kind) {
    let server = Options::new(kind).start().await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let clients = [proxy.client(), proxy.client(), proxy.client()];
    let lease = clients[0].grant(0, 2).await;
    clients[0].put(put_leased("a", "1", lease)).await.unwrap();
    // The lease is renewed for longer than its TTL.
    let start = std::time::Instant::now();
    while start.elapsed().as_secs() < 4 {
        for client in &clients {
            assert_eq!(renew(client, lease).await.unwrap(), 2);
        }
    }
    assert!(clients[0].read("a").await.is_some());
    eventually("the lease ends", async || {
        let asked = pb::LeaseTimeToLiveRequest { id: lease, keys: false };
        let left = clients[0].lease_time_to_live(asked).await.unwrap();
        (left.ttl < 0).then_some(())
    })
    .await;
    let left = renew(&clients[1], lease).await.unwrap();
    assert!(left <= 0, "{left}");
    eventually("the key of the lease is deleted", async || {
        clients[0].read("a").await.is_none().then_some(())
    })
    .await;
    let revoked = clients[0].grant(0, 100).await;
    clients[1].lease_revoke(pb::LeaseRevokeRequest { id: revoked }).await.unwrap();
    let text = "etcdserver: requested lease not found";
    let again = pb::LeaseRevokeRequest { id: revoked };
    refused(clients[2].lease_revoke(again).await, code(kind, Code::NotFound), text);
}

/// Renews a lease once, on a stream that the client keeps open, because etcd's proxy does not answer requests on a
/// closed stream.
async fn renew(client: &Client, id: i64) -> Result<i64, tonic::Status> {
    let (requests, receiver) = tokio::sync::mpsc::channel(1);
    requests.send(pb::LeaseKeepAliveRequest { id }).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let request = client.signed(stream);
    let mut answers = client.lease().lease_keep_alive(request).await?.into_inner();
    let answer = answers.message().await?.expect("the stream contains an answer");
    Ok(answer.ttl)
}

async fn the_proxies_are_listed_in_place_of_the_members(kind: Kind) {
    let server = Server::start(kind).await;
    let flags = ["--resolver-prefix=proxies", "--resolver-ttl=2"];
    let first = Proxy::start(kind, &[server.port()], &flags).await;
    // The second proxy is etcd's, if it is installed.
    let other = if Kind::Etcd.is_present() { Kind::Etcd } else { kind };
    let mut second = Proxy::start(other, &[server.port()], &flags).await;
    let urls = async || {
        let listed = first.client().member_list(pb::MemberListRequest::default()).await.unwrap();
        let mut urls: Vec<String> =
            listed.members.into_iter().flat_map(|member| member.client_urls).collect();
        urls.sort();
        urls
    };
    let mut both =
        vec![format!("127.0.0.1:{}", first.port()), format!("127.0.0.1:{}", second.port())];
    both.sort();
    eventually("both proxies are listed", async || (urls().await == both).then_some(())).await;
    second.kill();
    let own = [format!("127.0.0.1:{}", first.port())];
    eventually_within(TIMEOUT, "the stopped proxy is no longer listed", async || {
        (urls().await == own).then_some(())
    })
    .await;
    let plain = Proxy::start(kind, &[server.port()], &[]).await;
    let listed = plain.client().member_list(pb::MemberListRequest::default()).await.unwrap();
    assert_eq!(listed.members[0].client_urls, [format!("127.0.0.1:{}", plain.port())]);
    let passing = Proxy::start(kind, &[server.port()], &["--advertise-client-url="]).await;
    let listed = passing.client().member_list(pb::MemberListRequest::default()).await.unwrap();
    assert_eq!(listed.members[0].client_urls, [server.url()]);
}

async fn the_proxy_serves_the_health_and_metrics_of_itself_and_of_a_member(kind: Kind) {
    let mut server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &["--enable-pprof"]).await;
    for path in ["/health", "/proxy/health"] {
        let answer = proxy.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.text().contains("\"health\":\"true\""), "{path}: {}", answer.text());
    }
    assert!(proxy.get("/metrics").text().contains("etcd_server_has_leader 1"));
    assert!(proxy.get("/proxy/metrics").text().contains("etcd_grpc_proxy_cache_hits_total"));
    // On this page, etcd's proxy also reports the metrics of a member, but with the value zero.
    assert!(!proxy.get("/proxy/metrics").text().contains("etcd_server_has_leader 1"));
    assert_eq!(proxy.get("/debug/pprof/cmdline").status, 200);
    assert_eq!(proxy.get("/nothing").status, 404);
    server.kill();
    eventually("the member is reported as unhealthy", async || {
        let answer = proxy.get("/health");
        (answer.status == 503 && answer.text().contains("\"health\":\"false\"")).then_some(())
    })
    .await;
    server.start_again().await;
    eventually_within(TIMEOUT, "the member is reported as healthy again", async || {
        (proxy.get("/health").status == 200).then_some(())
    })
    .await;
}

async fn a_restarted_proxy_serves_again(kind: Kind) {
    let server = Server::start(kind).await;
    let mut proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let client = proxy.client();
    client.write("a", "1").await;
    let mut watch = Watch::open(&client);
    watch.create(watch_key("a")).await;
    proxy.kill();
    assert!(within("the end of the stream", watch.try_next()).await.is_err());
    proxy.launch_again();
    proxy.ready().await;
    let value =
        eventually_ok(TIMEOUT, "the member responds", async || client.range(key("a")).await).await;
    assert_eq!(value.kvs[0].value(), b"1");
    eventually("earlier watches are removed", async || (watchers(&server) < 3.0).then_some(()))
        .await;
}

async fn the_proxy_supports_tls_on_both_sides(kind: Kind) {
    let files = Files::new();
    files.write("nameless", &Leaf::new(""));
    let server = files.closed(kind).start().await;
    let flag = |name: &str, file: &str| format!("--{name}={}", files.text(file));
    let to_member = [flag("cacert", "ca"), flag("cert", "nameless"), flag("key", "nameless.key")];
    let to_clients = [
        flag("cert-file", "server"),
        flag("key-file", "server.key"),
        flag("trusted-ca-file", "ca"),
    ];
    let flags: Vec<&str> = to_member.iter().chain(&to_clients).map(String::as_str).collect();
    let proxy = Proxy::launch(kind, &[server.port()], &flags);
    let ask = |endpoint: String, flags: &[String], words: &[&str]| {
        let args: Vec<&str> =
            flags.iter().map(String::as_str).chain(words.iter().copied()).collect();
        ctl(Tool::QuorateCtl, &endpoint, &args)
    };
    let by_proxy = format!("127.0.0.1:{}", proxy.port());
    eventually("a write with a certificate", async || {
        let ended = ask(by_proxy.clone(), &files.shown("client"), &["put", "a", "1"]);
        (ended.code == Some(0)).then_some(())
    })
    .await;
    let direct = format!("127.0.0.1:{}", server.port());
    let read = ask(direct, &files.shown("client"), &["get", "a", "--print-value-only"]).success();
    assert_eq!(read.trim(), "1");
    let without = [flag("cacert", "ca")];
    let words = ["get", "a", "--command-timeout=1s", "--dial-timeout=1s"];
    assert_ne!(
        ask(by_proxy, &without, &words).code,
        Some(0),
        "a client without a certificate is refused"
    );
    // The proxy refuses a certificate with a common name, because a member would treat all clients of the proxy as the
    // user with this name.
    let named = [flag("cacert", "ca"), flag("cert", "client"), flag("key", "client.key")];
    let refused = run(kind, &named.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("cert has non empty Common Name (someone)"), "{text}");

    let plain = Server::start(kind).await;
    let own = Proxy::launch(kind, &[plain.port()], &["--auto-tls"]);
    let by_own = format!("https://127.0.0.1:{}", own.port());
    let trusting = ["--insecure-skip-tls-verify".to_owned()];
    eventually("a write with a certificate that the proxy generated", async || {
        let ended = ask(by_own.clone(), &trusting, &["put", "a", "2"]);
        (ended.code == Some(0)).then_some(())
    })
    .await;
    assert_eq!(plain.client().read("a").await.as_deref(), Some(&b"2"[..]));
}

async fn users_do_not_share_watches_or_cached_ranges(kind: Kind) {
    let server = Options::new(kind).unguarded().start().await;
    let proxy = Proxy::start(kind, &[server.port()], &[]).await;
    let client = server.client();
    client.write("secret", "1").await;
    for name in ["root", "other"] {
        let user = pb::AuthUserAddRequest {
            name: name.into(),
            password: "p".into(),
            ..Default::default()
        };
        client.user_add(user).await.unwrap();
    }
    let root = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    client.role_add(pb::AuthRoleAddRequest { name: "root".into() }).await.ok();
    client.user_grant_role(root).await.unwrap();
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    let nobody = proxy.client();
    let root = proxy.client().log_in("root", "p").await.unwrap();
    let other = proxy.client().log_in("other", "p").await.unwrap();
    let old = || pb::RangeRequest { serializable: true, ..key("secret") };
    for _ in 0..2 {
        assert_eq!(root.range(old()).await.unwrap().kvs[0].value(), b"1");
    }
    let text = "etcdserver: permission denied";
    refused(other.range(old()).await, Code::PermissionDenied, text);
    assert!(nobody.range(old()).await.is_err());
    let mut of_root = Watch::open(&root);
    of_root.create(watch_key("secret")).await;
    let mut of_other = Watch::open(&other);
    let received = of_other.create(watch_key("secret")).await;
    assert!(
        received.canceled && received.cancel_reason.contains("permission denied"),
        "{received:?}"
    );
    root.write("secret", "2").await;
    of_root.events(1).await;
    // A health check counts as answered even if the member refuses it.
    assert_ne!(proxy.get("/proxy/metrics").status, 404);
}

async fn requests_are_sent_to_another_member_when_a_member_is_lost(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    let ports: Vec<u16> = (0..3).map(|member| cluster.server(member).port()).collect();
    let proxy = Proxy::start(kind, &ports, &[]).await;
    let client = proxy.client();
    for round in 0..3 {
        client.write("a", round.to_string()).await;
        cluster.kill(round);
        eventually_ok(TIMEOUT, "a write without a member", async || {
            client.put(put("a", "x")).await
        })
        .await;
        // Once the write has succeeded, the proxy also sends range requests to the remaining members, without any
        // action by the client.
        for _ in 0..10 {
            client.range(pb::RangeRequest { serializable: true, ..key("a") }).await.unwrap();
        }
        cluster.restart(round).await;
    }
}

async fn watches_continue_through_another_member(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    let ports: Vec<u16> = (0..3).map(|member| cluster.server(member).port()).collect();
    let proxy = Proxy::start(kind, &ports, &[]).await;
    let mut watch = Watch::open(&proxy.client());
    watch.create(watch_key("a")).await;
    for round in 0..3 {
        cluster.kill(round);
        let everyone = cluster.everyone();
        let wanted = format!("round {round}");
        everyone.ask("a write", async |client| client.put(put("a", &wanted)).await).await;
        loop {
            let event = watch.next().await.events.pop();
            if event.is_some_and(|event| event.kv.unwrap().value() == wanted.as_bytes()) {
                break;
            }
        }
        cluster.restart(round).await;
    }
}

async fn watchers_receive_every_event_while_members_are_killed(kind: Kind) {
    const KEYS: usize = 8;
    let mut cluster = Cluster::start(kind, 3).await;
    let ports: Vec<u16> = (0..3).map(|member| cluster.server(member).port()).collect();
    let proxy = Proxy::start(kind, &ports, &[]).await;
    let everyone = cluster.everyone();
    let write = async |key: usize, value: String| {
        let request = put(format!("k/{key}"), value);
        let answer = everyone.ask("a write", async |client| client.put(request.clone()).await);
        answer.await.header.unwrap().revision
    };
    let first = write(0, "first".to_owned()).await;
    let mut watching = Vec::new();
    for number in 0..3 * KEYS {
        let wanted = match number % 3 {
            0 => watch_prefix("k/"),
            _ => watch_key(format!("k/{}", number % KEYS)),
        };
        // Half of the watches start in the past, the others at the current revision.
        let start_revision = if number % 2 == 0 { first } else { 0 };
        let mut watch = Watch::open(&proxy.client());
        let request = pb::WatchCreateRequest { start_revision, ..wanted.clone() };
        let created = watch.create(request).await.header.unwrap().revision;
        let start = if start_revision == 0 { created + 1 } else { start_revision };
        watching.push(tokio::task::spawn_local(async move {
            let wanted = pb::WatchCreateRequest { start_revision: start, ..wanted };
            (wanted, until_the_end(watch).await)
        }));
    }
    for round in 0..3 {
        for number in 0..20 {
            write(number % KEYS, format!("{round} {number}")).await;
        }
        cluster.kill(round);
        for number in 0..20 {
            write(number % KEYS, format!("{round} {number} again")).await;
        }
        cluster.restart(round).await;
    }
    let all = (0..KEYS).map(|key| put_op(format!("k/{key}"), "end")).collect::<Vec<_>>();
    everyone.ask("the final values", async |client| client.txn(txn(all.clone())).await).await;
    for watching in watching {
        let (wanted, received) = within("a watcher", watching).await.unwrap();
        let mut directly = Watch::open(&cluster.server(0).client());
        directly.create(wanted).await;
        assert_eq!(received, until_the_end(directly).await);
    }
}

/// Returns the revisions and keys of a watch's events, up to the value `end`.
async fn until_the_end(mut watch: Watch) -> Vec<(i64, Vec<u8>)> {
    let mut received = Vec::new();
    loop {
        let response = watch.next().await;
        assert!(!response.canceled, "{response:?}");
        for event in response.events {
            let record = event.kv.unwrap();
            received.push((record.fields().mod_revision, record.key().to_vec()));
            if record.value() == b"end" {
                return received;
            }
        }
    }
}

async fn messages_are_logged_without_secrets(kind: Kind) {
    let server = Server::start(kind).await;
    let flags = ["--experimental-enable-grpc-logging"];
    let proxy = Proxy::start(kind, &[server.port()], &flags).await;
    let client = proxy.client();
    client.write("a", "1").await;
    let name = "somebody".to_owned();
    let request = pb::AuthenticateRequest { name, password: "swordfish".to_owned() };
    client
        .authenticate(request)
        .await
        .expect_err("a login must fail while authentication is disabled");
    eventually("messages are logged", async || {
        let log = proxy.log();
        let is_there = log.contains(r#""grpc.method":"Put""#)
            && log.contains("grpc.response.content")
            && log.contains(r#""grpc.method":"Authenticate""#);
        is_there.then_some(())
    })
    .await;
    assert!(!proxy.log().contains("swordfish"));
}
