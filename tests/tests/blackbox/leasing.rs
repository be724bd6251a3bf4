//! `--experimental-leasing-prefix`: Quorate's proxies, which share the ownership of keys with each other and with
//! etcd's proxies.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_tests::linear::{Action, Answer, Operation, Operations};
use quorate_tests::{
    Client, Kind, Options, Proxy, Random, Server, TIMEOUT, Watch, bytes, compare, delete,
    eventually, eventually_ok, eventually_within, from_key, get_op, key, on_both_servers,
    on_quorate, prefix, put, put_leased, put_op, refused, txn, txn_when, watch_key, within,
    write_op,
};
use tokio::task::JoinSet;
use tonic::Code;

on_both_servers! {
    alone:
    a_proxy_reads_the_writes_of_other_proxies,
    ownership_keys_are_inside_the_namespace_of_the_proxies,
    responses_of_leasing_proxies_are_linearizable,
    a_proxy_releases_a_key_that_another_client_writes_after_a_member_restart,
    a_write_waits_at_most_one_lease_ttl_for_a_lost_or_paused_owner,
}

on_quorate! {
    alone:
    owned_keys_are_served_without_members,
    keys_stay_owned_after_a_transaction_writes_them,
    owned_reads_never_return_an_older_header_revision,
    keys_with_leases_are_not_owned,
    owned_keys_are_released_on_shutdown,
    users_get_the_same_responses_from_a_leasing_proxy_as_from_members,
    owned_keys_are_soon_released_after_authentication_is_enabled_elsewhere,
    transactions_on_many_keys_are_executed_and_release_owned_keys,
    reads_of_lock_keys_are_never_stale,
}

const OWN: &str = "--experimental-leasing-prefix=own/";

async fn owner(kind: Kind, server: &Server) -> Proxy {
    let proxy = Proxy::start(kind, &[server.port()], &[OWN]).await;
    // Once the proxy has a session, it owns every key that it reads and that no other client writes.
    let client = proxy.client();
    let own = format!("probe/{}", proxy.port());
    eventually("a session", async || {
        client.range(key(&own)).await.unwrap();
        server.client().read(format!("own/{own}")).await
    })
    .await;
    proxy
}

/// Makes a proxy own a key by reading the key through it, and checks that the owner's key exists. Returns the value of
/// the key.
async fn own(server: &Server, by: &Client, name: &str) -> Option<Vec<u8>> {
    let value = by.read(name).await;
    assert!(server.client().read(format!("own/{name}")).await.is_some(), "{name} is owned");
    value
}

fn text(value: &str) -> Option<Vec<u8>> {
    Some(value.as_bytes().to_vec())
}

/// Writes a key whose current value is `old`, by one of several methods. Returns the value after the write.
async fn write_by_method(way: usize, by: &Client, name: &str) -> Option<Vec<u8>> {
    let is_old = || compare(name, CompareResult::Equal, TargetUnion::Value(bytes("old")));
    match way {
        0 => {
            by.write(name, "put").await;
            text("put")
        }
        1 => {
            // etcd's proxy writes twice if the key has no owner, and returns the second result.
            by.delete_range(delete(name, "")).await.unwrap();
            None
        }
        2 => {
            let request = txn_when(vec![is_old()], vec![put_op(name, "then")], vec![]);
            assert!(by.txn(request).await.unwrap().succeeded);
            text("then")
        }
        3 => {
            let end = format!("{name}~");
            assert_eq!(by.delete_range(delete(name, end)).await.unwrap().deleted, 1);
            None
        }
        _ => {
            let inner = txn_when(vec![is_old()], vec![write_op(delete(name, ""))], vec![]);
            let inner = pb::request_op::Request::RequestTxn(inner);
            let answer = by.txn(txn(vec![quorate_tests::op(inner)])).await.unwrap();
            assert!(answer.succeeded);
            None
        }
    }
}

const WAYS: usize = 5;

async fn a_proxy_reads_the_writes_of_other_proxies(kind: Kind) {
    let server = Server::start(kind).await;
    let (ours, other) = (owner(Kind::Quorate, &server).await, owner(kind, &server).await);
    for (way, (owner, writer)) in
        (0..WAYS).flat_map(|way| [(way, (&ours, &other)), (way, (&other, &ours))])
    {
        let name = format!("{way}/{}", owner.port());
        let (by_owner, by_writer) = (owner.client(), writer.client());
        by_writer.write(&name, "old").await;
        assert_eq!(own(&server, &by_owner, &name).await, text("old"));
        let written = within("a write", write_by_method(way, &by_writer, &name)).await;
        for client in [&by_owner, &by_writer, &server.client()] {
            assert_eq!(client.read(&name).await, written, "{name}");
        }
    }
}

async fn ownership_keys_are_inside_the_namespace_of_the_proxies(kind: Kind) {
    let server = Server::start(kind).await;
    let flags = ["--namespace=n/", OWN];
    let ours = Proxy::start(Kind::Quorate, &[server.port()], &flags).await;
    let other = Proxy::start(kind, &[server.port()], &flags).await;
    let (by_ours, by_other) = (ours.client(), other.client());
    for round in 0..3 {
        let name = format!("a{round}");
        by_other.write(&name, "1").await;
        eventually("the key is owned", async || {
            by_ours.range(key(&name)).await.unwrap();
            server.client().read(format!("n/own/{name}")).await
        })
        .await;
        by_other.write(&name, "2").await;
        assert_eq!(by_ours.read(&name).await, text("2"));
        assert_eq!(server.client().read(format!("n/{name}")).await, text("2"));
    }
    let deleted = by_other.delete_range(delete("\0", "\0")).await.unwrap().deleted;
    assert!(deleted >= 3, "{deleted}");
    assert_eq!(by_ours.read("a0").await, None);
}

/// Runs one client of the random test. Returns its operations and their answers. If the answers of a client are not
/// checked, the client only reads.
async fn client(
    client: Client,
    (number, is_checked): (usize, bool),
    mut random: Random,
    start: Instant,
    end: Duration,
) -> Vec<(String, Operation)> {
    let mut done = Vec::new();
    let mut value = 0;
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap();
    while start.elapsed() < end {
        value += 1;
        let new = value * 100 + u64::try_from(number).unwrap();
        let name = format!("k{}", random.below(3));
        let called = now();
        let timeout = Duration::from_secs(5);
        let choice = if is_checked { random.below(10) } else { 0 };
        let (action, answered) = match choice {
            0..6 => {
                let answered = tokio::time::timeout(timeout, client.range(key(&name))).await;
                let value = |answer: pb::RangeResponse| {
                    let record = answer.kvs.first()?;
                    Some(String::from_utf8_lossy(record.value()).parse().unwrap())
                };
                let answered = answered.ok().and_then(Result::ok);
                (Action::Read, answered.map(|answer| Answer::Found(value(answer))))
            }
            6..9 => {
                let request = put(&name, new.to_string());
                let answered = tokio::time::timeout(timeout, client.put(request)).await;
                (Action::Write(new), answered.ok().and_then(Result::ok).map(|_| Answer::Done))
            }
            _ => {
                let request = delete(&name, if random.below(2) == 0 { "" } else { "k9" });
                // The request may also delete other keys, which count as separate operations.
                let others = !request.range_end.is_empty();
                let answered = tokio::time::timeout(timeout, client.delete_range(request)).await;
                let answered = answered.ok().and_then(Result::ok).map(|_| Answer::Done);
                let answer = answered.map(|answered| (now(), answered));
                for other in (0..3).map(|number| format!("k{number}")) {
                    if others && other > name {
                        let operation =
                            Operation { client: number, action: Action::Delete, called, answer };
                        done.push((other, operation));
                    }
                }
                (Action::Delete, answered)
            }
        };
        let answer = answered.map(|answered| (now(), answered));
        if action != Action::Read || (is_checked && answer.is_some()) {
            done.push((name, Operation { client: number, action, called, answer }));
        }
        tokio::time::sleep(random.millis_below(30)).await;
    }
    done
}

async fn responses_of_leasing_proxies_are_linearizable(kind: Kind) {
    let server = Server::start(kind).await;
    let proxies = [
        owner(Kind::Quorate, &server).await,
        owner(Kind::Quorate, &server).await,
        owner(kind, &server).await,
    ];
    let (start, end) = (Instant::now(), Duration::from_secs(12));
    let mut clients = JoinSet::new();
    for (number, proxy) in proxies.iter().cycle().take(6).enumerate() {
        // etcd's own proxy may return an old value, and may apply a write a second time after other clients have
        // written. Therefore the clients of etcd's proxy only serve to make that proxy the owner of keys.
        let is_checked = number % 3 < 2 || kind == Kind::Quorate;
        let client = client(proxy.client(), (number, is_checked), Random::by_chance(), start, end);
        clients.spawn_local(client);
    }
    // Quorate's proxies are paused in turn.
    let mut random = Random::by_chance();
    while start.elapsed() + Duration::from_secs(3) < end {
        let chosen = &proxies[usize::try_from(random.below(2)).unwrap()];
        chosen.pause().await;
        tokio::time::sleep(random.millis_below(1500)).await;
        chosen.resume();
        tokio::time::sleep(random.millis_below(1500)).await;
    }
    let mut operations = Operations::default();
    while let Some(done) = clients.join_next().await {
        for (name, operation) in done.unwrap() {
            operations.push(&name, operation);
        }
    }
    assert!(operations.len() > 500, "only {} operations", operations.len());
    let reads = |proxy: &Proxy| proxy.metric("quorate_grpc_proxy_owned_reads_total").unwrap();
    // etcd's proxy does not count the reads that it answers as the owner. The counts of all other proxies are added,
    // because any one of them may own most keys.
    let ours = if kind == Kind::Quorate { &proxies[..] } else { &proxies[..2] };
    let owned: f64 = ours.iter().map(reads).sum();
    assert!(owned > 10.0, "only {owned} reads were answered by the owner of a key");
    operations.check(Duration::from_secs(30));
}

async fn a_proxy_releases_a_key_that_another_client_writes_after_a_member_restart(kind: Kind) {
    let mut server = Server::start(kind).await;
    let (ours, other) = (owner(Kind::Quorate, &server).await, owner(kind, &server).await);
    let (by_ours, by_other) = (ours.client(), other.client());
    by_other.write("a", "1").await;
    own(&server, &by_ours, "a").await;
    server.kill();
    assert_eq!(by_ours.read("a").await, text("1"), "the lease is alive");
    server.start_again().await;
    // The compaction removes the revision at which the owner's watch would have to resume.
    let direct = server.client();
    let last = direct.write("other", "2").await;
    direct.compact_to(last).await;
    let request = || put("a", "2");
    eventually_ok(TIMEOUT, "a write", async || by_other.put(request()).await).await;
    assert_eq!(by_ours.read("a").await, text("2"));
}

async fn a_write_waits_at_most_one_lease_ttl_for_a_lost_or_paused_owner(kind: Kind) {
    let server = Server::start(kind).await;
    let (mut gone, still) =
        (owner(Kind::Quorate, &server).await, owner(Kind::Quorate, &server).await);
    let writer = owner(kind, &server).await;
    let (of_gone, of_still) = (gone.client(), still.client());
    server.client().write("a", "1").await;
    server.client().write("b", "1").await;
    own(&server, &of_gone, "a").await;
    assert_eq!(own(&server, &of_still, "b").await, text("1"));
    gone.kill();
    still.pause().await;
    let start = Instant::now();
    let by_writer = writer.client();
    let timeout = Duration::from_secs(90);
    let write = async |name: &str| {
        eventually_ok(timeout, "a write", async || by_writer.put(put(name, "2")).await).await;
        start.elapsed()
    };
    // The paused proxy answers this request after its pause, with current data.
    let asked = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        of_still.read("b").await
    };
    let answered = async {
        let waited = tokio::join!(write("a"), write("b"));
        still.resume();
        waited
    };
    let (read, (a, b)) = tokio::join!(asked, answered);
    assert_eq!(read, text("2"));
    for waited in [a, b] {
        // The writes wait until the leases of the killed and of the paused proxy have expired. The exact time varies,
        // because the leases were last renewed some time earlier, and members check for expired leases periodically.
        let secs = waited.as_secs();
        assert!((20..80).contains(&secs), "{waited:?}");
    }
    assert_eq!(of_still.read("b").await, text("2"));
    assert_eq!(writer.client().read("a").await, text("2"));
}

async fn owned_keys_are_served_without_members(kind: Kind) {
    let mut server = Server::start(kind).await;
    let proxy = owner(kind, &server).await;
    let client = proxy.client();
    client.write("a", "1").await;
    own(&server, &client, "a").await;
    own(&server, &client, "none").await;
    // A key stays owned when its owner writes it.
    let written = client.write("a", "2").await;
    let whole = server.client().range(key("a")).await.unwrap();
    server.kill();
    let answered = client.range(key("a")).await.unwrap();
    assert_eq!(answered, whole);
    assert_eq!(answered.kvs[0].fields().mod_revision, written);
    assert_eq!(answered.kvs[0].fields().version, 2);
    let ask = async |request: pb::RangeRequest| client.range(request).await.unwrap();
    assert_eq!(ask(pb::RangeRequest { keys_only: true, ..key("a") }).await.kvs[0].value(), b"");
    assert_eq!(ask(pb::RangeRequest { count_only: true, ..key("a") }).await.count, 1);
    assert_eq!(ask(pb::RangeRequest { serializable: true, ..key("a") }).await, whole);
    assert_eq!(ask(key("none")).await.count, 0);
    let is_two = compare("a", CompareResult::Equal, TargetUnion::Value(bytes("2")));
    let request = txn_when(vec![is_two], vec![get_op("a"), get_op("none")], vec![get_op("other")]);
    let answer = client.txn(request).await.unwrap();
    assert!(answer.succeeded);
    assert_eq!(answer.responses.len(), 2);
    for request in [prefix("a"), key("other"), pb::RangeRequest { revision: 1, ..key("a") }] {
        assert_eq!(client.range(request).await.unwrap_err().code(), Code::Unavailable);
    }
    assert_eq!(client.put(put("a", "3")).await.unwrap_err().code(), Code::Unavailable);
    // The write was not executed, but its outcome is unknown to the proxy, which does not serve the key until the
    // outcome is certain.
    assert_eq!(client.range(key("a")).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(ask(key("none")).await.count, 0);
    server.start_again().await;
    eventually_ok(TIMEOUT, "a write", async || client.put(put("a", "4")).await).await;
    assert_eq!(client.read("a").await, text("4"));
}

async fn keys_stay_owned_after_a_transaction_writes_them(kind: Kind) {
    let mut server = Server::start(kind).await;
    let proxy = owner(kind, &server).await;
    let client = proxy.client();
    for name in ["a", "b", "c"] {
        client.write(name, "1").await;
        own(&server, &client, name).await;
    }
    let is_one = compare("a", CompareResult::Equal, TargetUnion::Value(bytes("1")));
    let success = vec![put_op("a", "2"), write_op(delete("b", ""))];
    let failure = vec![put_op("c", "2")];
    let answer = client.txn(txn_when(vec![is_one], success, failure)).await.unwrap();
    assert!(answer.succeeded);
    let revision = answer.header.unwrap().revision;
    server.kill();
    assert_eq!(client.range(key("a")).await.unwrap().kvs[0].fields().mod_revision, revision);
    assert_eq!(client.read("a").await, text("2"));
    assert_eq!(client.read("b").await, None);
    assert_eq!(client.read("c").await, text("1"));
}

async fn owned_reads_never_return_an_older_header_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let (proxy, other) = (owner(kind, &server).await, owner(kind, &server).await);
    let client = proxy.client();
    client.write("a", "1").await;
    own(&server, &client, "a").await;
    let mut watch = Watch::open(&client);
    watch.create(watch_key("b")).await;
    let answered = async || client.range(key("a")).await.unwrap().header.unwrap().revision;
    for round in 0..4 {
        let seen = match round {
            0 => client.write("b", "1").await,
            1 => {
                server.client().write("c", "1").await;
                client.range(from_key("\0")).await.unwrap().header.unwrap().revision
            }
            2 => {
                let written = other.client().write("b", "2").await;
                while watch.next().await.header.unwrap().revision < written {}
                written
            }
            _ => client.txn(txn(vec![get_op("x")])).await.unwrap().header.unwrap().revision,
        };
        assert!(answered().await >= seen, "{round}: {} {seen}", answered().await);
    }
}

async fn keys_with_leases_are_not_owned(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = owner(kind, &server).await;
    let client = proxy.client();
    client.write("a", "1").await;
    own(&server, &client, "a").await;
    let lease = client.grant(0, 100).await;
    client.put(put_leased("a", "2", lease)).await.unwrap();
    assert_eq!(client.read("a").await, text("2"));
    client.lease_revoke(pb::LeaseRevokeRequest { id: lease }).await.unwrap();
    assert_eq!(client.read("a").await, None);
    let direct = server.client();
    eventually("the key is no longer owned", async || {
        direct.read("own/a").await.is_none().then_some(())
    })
    .await;
    let lease = client.grant(0, 100).await;
    client.put(put_leased("b", "1", lease)).await.unwrap();
    assert_eq!(client.read("b").await, text("1"));
    assert_eq!(direct.read("own/b").await, None);
}

async fn owned_keys_are_released_on_shutdown(kind: Kind) {
    let server = Server::start(kind).await;
    let (mut proxy, other) = (owner(kind, &server).await, owner(kind, &server).await);
    let client = proxy.client();
    client.write("a", "1").await;
    own(&server, &client, "a").await;
    proxy.signal("TERM");
    let ended = proxy.ended().await;
    assert_eq!(ended.signal(), Some(15), "{ended:?}");
    assert_eq!(server.client().read("own/a").await, None);
    within("a write that need not wait for an owner", other.client().write("a", "2")).await;
}

async fn users_get_the_same_responses_from_a_leasing_proxy_as_from_members(kind: Kind) {
    let server = Options::new(kind).unguarded().start().await;
    let proxy = owner(kind, &server).await;
    let nobody = proxy.client();
    nobody.write("a/secret", "1").await;
    own(&server, &nobody, "a/secret").await;
    for name in ["root", "user"] {
        let user = pb::AuthUserAddRequest {
            name: name.into(),
            password: "p".into(),
            ..Default::default()
        };
        nobody.user_add(user).await.unwrap();
        nobody.role_add(pb::AuthRoleAddRequest { name: name.into() }).await.ok();
        let role = pb::AuthUserGrantRoleRequest { user: name.into(), role: name.into() };
        nobody.user_grant_role(role).await.unwrap();
    }
    let perm = quorate_api::authpb::Permission {
        perm_type: quorate_api::authpb::permission::Type::Readwrite as i32,
        key: bytes("b/"),
        range_end: bytes("b0"),
    };
    let perm = pb::AuthRoleGrantPermissionRequest { name: "user".into(), perm: Some(perm) };
    nobody.role_grant_permission(perm).await.unwrap();
    nobody.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    // From now on, requests without a user are refused.
    assert!(nobody.range(key("a/secret")).await.is_err());
    let root = proxy.client().log_in("root", "p").await.unwrap();
    let user = proxy.client().log_in("user", "p").await.unwrap();
    assert_eq!(root.read("a/secret").await, text("1"));
    let text_of = "etcdserver: permission denied";
    refused(user.range(key("a/secret")).await, Code::PermissionDenied, text_of);
    refused(user.put(put("a/secret", "x")).await, Code::PermissionDenied, text_of);
    // Users need no permission for the leasing keys.
    user.write("b/own", "1").await;
    assert_eq!(user.read("b/own").await, text("1"));
    assert_eq!(user.delete_range(delete("b/", "b0")).await.unwrap().deleted, 1);
    let write = async || root.put(put("a/secret", "2")).await;
    eventually_ok(TIMEOUT, "a write to a key that was owned", write).await;
    assert_eq!(root.read("a/secret").await, text("2"));
    let owned = root.range(prefix("own/")).await.unwrap();
    assert_eq!(owned.count, 0, "{owned:?}");
    root.auth_disable(pb::AuthDisableRequest {}).await.unwrap();
    let direct = server.client();
    eventually_within(TIMEOUT, "keys are owned again", async || {
        nobody.range(key("later")).await.ok()?;
        direct.read("own/later").await
    })
    .await;
}

async fn owned_keys_are_soon_released_after_authentication_is_enabled_elsewhere(kind: Kind) {
    let server = Options::new(kind).unguarded().start().await;
    let proxy = owner(kind, &server).await;
    let nobody = proxy.client();
    nobody.write("secret", "1").await;
    own(&server, &nobody, "secret").await;
    let direct = server.client();
    let user =
        pb::AuthUserAddRequest { name: "root".into(), password: "p".into(), ..Default::default() };
    direct.user_add(user).await.unwrap();
    direct.role_add(pb::AuthRoleAddRequest { name: "root".into() }).await.ok();
    let role = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    direct.user_grant_role(role).await.unwrap();
    direct.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    // The proxy must release the key within 5 seconds, although it renews its session only every 15 seconds.
    eventually_within(Duration::from_secs(5), "a request without a user is refused", async || {
        nobody.range(key("secret")).await.err()
    })
    .await;
}

async fn transactions_on_many_keys_are_executed_and_release_owned_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let (proxy, other) = (owner(kind, &server).await, owner(kind, &server).await);
    let (client, of_other) = (proxy.client(), other.client());
    own(&server, &client, "k/3").await;
    own(&server, &of_other, "k/5").await;
    let puts = |count: usize| -> Vec<pb::RequestOp> {
        (0..count).map(|number| put_op(format!("k/{number}"), "1")).collect()
    };
    assert!(client.txn(txn(puts(128))).await.unwrap().succeeded);
    for reader in [&client, &of_other] {
        for name in ["k/3", "k/5", "k/127"] {
            assert_eq!(reader.read(name).await, text("1"));
        }
    }
    own(&server, &client, "k/8").await;
    own(&server, &of_other, "k/9").await;
    let is_one = || compare("k/0", CompareResult::Equal, TargetUnion::Value(bytes("1")));
    let answer = client.txn(txn_when(vec![is_one()], puts(127), vec![])).await.unwrap();
    assert!(answer.succeeded);
    assert_eq!(answer.responses.len(), 127);
    assert_eq!(client.range(key("k/8")).await.unwrap().kvs[0].fields().version, 2);
    assert_eq!(of_other.range(key("k/9")).await.unwrap().kvs[0].fields().version, 2);
    let text = "etcdserver: too many operations in txn request";
    refused(client.txn(txn(puts(129))).await, Code::InvalidArgument, text);
}

async fn reads_of_lock_keys_are_never_stale(kind: Kind) {
    let server = Server::start(kind).await;
    let (proxy, other) = (owner(kind, &server).await, owner(kind, &server).await);
    let (client, of_other) = (proxy.client(), other.client());
    let lease = client.grant(0, 100).await;
    let name = format!("lock/{lease:x}");
    // Both reads are sent before the key exists.
    assert_eq!(own(&server, &client, &name).await, None);
    assert_eq!(of_other.read(&name).await, None);
    let lock = quorate_api::v3lockpb::LockRequest { name: bytes("lock"), lease };
    let held = within("a lock", client.lock(lock)).await.unwrap();
    assert_eq!(held.key, name.as_bytes());
    assert!(client.range(key(&name)).await.unwrap().count == 1);
    assert!(of_other.range(key(&name)).await.unwrap().count == 1);
    client.unlock(quorate_api::v3lockpb::UnlockRequest { key: held.key }).await.unwrap();
    assert_eq!(client.read(&name).await, None);
    let name = format!("office/{lease:x}");
    assert_eq!(own(&server, &of_other, &name).await, None);
    let campaign = quorate_api::v3electionpb::CampaignRequest {
        name: bytes("office"),
        lease,
        value: bytes("me"),
    };
    within("an election", client.campaign(campaign)).await.unwrap();
    for reader in [&client, &of_other] {
        assert_eq!(reader.read(&name).await, text("me"));
    }
}
