//! Tests several servers: forwarding, watches, and changes of the sequencer.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_engine::{Engine, EngineError};
use quorate_state::apply::{AuthRefusal, Refusal, Response};
use quorate_state::units::LeaseId;
use quorate_state::watch::{Frame, HeaderFields, WatchStream};

use crate::postgres::shared;
use crate::proxy::{Action, Fault, Proxy};
use crate::support::{
    Network, compaction, eventually, nobody, options, propose, put, put_at, put_request, range_of,
    read, shown, start,
};

async fn sequencer_of<'a>(engines: &'a [&'a Engine]) -> &'a Engine {
    eventually("a server is the sequencer", async || {
        engines.iter().all(|engine| engine.status().sequencer_id != 0)
    })
    .await;
    let id = engines[0].status().sequencer_id;
    engines.iter().find(|engine| engine.server_id() == id).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_accepts_writes_and_linearizable_reads() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("three_servers");
    let network = Network::default();
    let engines = [
        start(&url, 1, &network).await,
        start(&url, 2, &network).await,
        start(&url, 3, &network).await,
    ];
    for (number, engine) in engines.iter().cycle().take(30).enumerate() {
        put_at(engine, "k", &number.to_string()).await;
        for reader in &engines {
            let found = read(reader, &range_of("k", b"")).await.unwrap();
            assert_eq!(shown(&found), [format!("k={number}")]);
        }
    }
    eventually("every server lists all servers", async || {
        engines.iter().all(|engine| engine.servers().len() == 3)
    })
    .await;
    for engine in &engines {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_reports_the_size_of_the_stored_data() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("stored_bytes");
    let network = Network::default();
    let engines = [start(&url, 1, &network).await, start(&url, 2, &network).await];
    for number in 0..10 {
        put_at(&engines[1], &format!("k{number}"), &"v".repeat(1_000)).await;
    }
    eventually("both servers report the size", async || {
        let [one, two] = [0, 1].map(|at: usize| engines[at].status().stored_bytes);
        one > 10_000 && one == two
    })
    .await;
    for engine in &engines {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_takes_over_and_keeps_every_acknowledged_write() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("take_over");
    let network = Network::default();
    let one = start(&url, 1, &network).await;
    put_at(&one, "first", "1").await;
    let two = start(&url, 2, &network).await;
    let three = start(&url, 3, &network).await;
    for number in 0..20 {
        put_at(&three, &format!("k{number}"), "v").await;
    }
    // The first server stops without giving up the role, as if it were killed.
    network.remove("address-1");
    one.abandon().await;
    let begun = Instant::now();
    eventually("a write succeeds again", async || two.propose(put("after", "1")).await.is_ok())
        .await;
    assert!(begun.elapsed() < Duration::from_secs(20));
    let found = read(&three, &range_of("", &[0])).await.unwrap();
    assert_eq!(found.count, 22);
    let engines = [&two, &three];
    let before = sequencer_of(&engines).await.server_id();
    assert_ne!(before, 1);
    // A server that is stopped cleanly gives up the role immediately.
    let (stopping, other) = if before == 2 { (&two, &three) } else { (&three, &two) };
    network.remove(&format!("address-{before}"));
    stopping.stop().await;
    put_at(other, "last", "1").await;
    assert_eq!(read(other, &range_of("", &[0])).await.unwrap().count, 23);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_sequencer_commits_nothing_in_its_old_term() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("deposed");
    let old = start(&url, 1, &Network::default()).await;
    put_at(&old, "k", "old").await;
    // The second server has the same id, so it takes the role without waiting until the lease on the
    // role expires. The first server still acts as the sequencer.
    let new = Engine::start(options(&url, 1), Arc::new(Network::default())).await.unwrap();
    put_at(&new, "k", "new").await;
    let refused = old.propose(put("k", "stale")).await;
    // The old server has either noticed the new term and refused the put, or taken the role back after
    // the new server had written the value "new".
    if refused.is_ok() {
        let found = read(&old, &range_of("k", b"")).await.unwrap();
        assert_eq!(found.kvs[0].fields().version, 3);
    } else {
        let found = read(&new, &range_of("k", b"")).await.unwrap();
        assert_eq!(shown(&found), ["k=new"]);
    }
    old.stop().await;
    new.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequencer_whose_epoch_has_ended_appends_nothing() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("fenced");
    let engine = start(&url, 1, &Network::default()).await;
    put_at(&engine, "k", "1").await;
    let database = crate::requests::connect(&url).await;
    let raise = "UPDATE fenced.sequencer SET epoch = epoch + 1, holder = 99, \
                 expires = now() + interval '1 hour'";
    database.execute(raise, &[]).await.unwrap();
    // The next position in the log is free, as if a compaction had removed the batch of another
    // sequencer there.
    let refused = engine.propose(put("k", "2")).await.unwrap_err();
    assert!(matches!(refused, EngineError::SequencerChanged), "{refused:?}");
    let last = database.query_one("SELECT max(seq) FROM fenced.log", &[]).await.unwrap();
    assert_eq!(last.get::<_, i64>(0), 2);
    assert_eq!(shown(&read(&engine, &range_of("k", b"")).await.unwrap()), ["k=1"]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_tokens_reach_every_server() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("users");
    let network = Network::default();
    let one = start(&url, 1, &network).await;
    let two = start(&url, 2, &network).await;
    let mut commands = Vec::new();
    for name in ["root", "eve"] {
        let mut add = pb::InternalRaftRequest::default();
        let hashed_password = "aGFzaA==".to_owned();
        let user =
            pb::AuthUserAddRequest { name: name.into(), hashed_password, ..Default::default() };
        add.auth_user_add = Some(Box::new(user));
        commands.push(add);
    }
    let mut grant = pb::InternalRaftRequest::default();
    let (user, role) = ("root".to_owned(), "root".to_owned());
    grant.auth_user_grant_role = Some(Box::new(pb::AuthUserGrantRoleRequest { user, role }));
    let auth_enable = Some(Box::new(pb::AuthEnableRequest::default()));
    let enable = pb::InternalRaftRequest { auth_enable, ..Default::default() };
    commands.extend([grant, enable]);
    for command in commands {
        propose(&two, command).await.unwrap();
    }
    let mut login = pb::InternalRaftRequest::default();
    let (name, simple_token) = ("eve".to_owned(), "secret".to_owned());
    let eve = pb::InternalAuthenticateRequest { name, simple_token, ..Default::default() };
    login.authenticate = Some(Box::new(eve));
    let done = propose(&two, login).await.unwrap();
    let Response::Authenticated { response, .. } = done else { panic!("{done:?}") };
    for engine in [&one, &two] {
        engine.barrier().await.unwrap();
        let auth = &engine.published().auth;
        assert!(auth.view().is_enabled());
        let token = auth.tokens().find(response.token.as_bytes()).unwrap();
        assert_eq!(token.validate(engine.now()).map(|user| &**user), Some("eve"));
    }
    // The sequencer checks permissions, whichever server receives the request.
    let as_user = |name: &str| {
        let auth_revision = two.published().auth.view().revision();
        let header =
            pb::RequestHeader { username: name.into(), auth_revision, ..Default::default() };
        pb::InternalRaftRequest { header: Some(header), ..put("k", "1") }
    };
    let denied = propose(&two, as_user("eve")).await;
    assert_eq!(denied, Err(Refusal::Auth(AuthRefusal::PermissionDenied)));
    propose(&two, as_user("root")).await.unwrap();
    // The sequencer also checks the permissions of a renewal: the user may not write the key that is
    // attached to the lease.
    let of = |name: &str| (name.to_owned(), two.published().auth.view().revision());
    let lease_grant = Some(pb::LeaseGrantRequest { id: 7, ttl: 60 });
    let header = as_user("root").header;
    let granted = pb::InternalRaftRequest { header, lease_grant, ..Default::default() };
    propose(&two, granted).await.unwrap();
    let leased = pb::PutRequest { key: Bytes::from_static(b"l"), lease: 7, ..Default::default() };
    let header = as_user("root").header;
    propose(&two, pb::InternalRaftRequest { header, ..put_request(leased) }).await.unwrap();
    let renewed = two.renew(LeaseId(7), of("eve")).await.unwrap();
    assert_eq!(renewed, Err(Refusal::Auth(AuthRefusal::PermissionDenied)));
    let renewed = two.renew(LeaseId(7), (String::new(), 0)).await.unwrap();
    assert!(matches!(renewed, Err(Refusal::Auth(_))), "{renewed:?}");
    assert_eq!(two.renew(LeaseId(7), of("root")).await.unwrap(), Ok(Some(60)));
    // A deleted user's token is revoked on every server.
    let mut delete =
        pb::InternalRaftRequest { header: as_user("root").header, ..Default::default() };
    delete.auth_user_delete = Some(Box::new(pb::AuthUserDeleteRequest { name: "eve".into() }));
    propose(&one, delete).await.unwrap();
    two.barrier().await.unwrap();
    assert!(matches!(two.renew(LeaseId(7), of("eve")).await.unwrap(), Err(Refusal::Auth(_))));
    assert!(two.published().auth.tokens().find(response.token.as_bytes()).is_none());
    one.stop().await;
    two.stop().await;
}

/// A watch stream, and the events that it has received, in the form `TYPE key=value@revision`.
pub(crate) struct Watcher {
    stream: WatchStream,
    pub(crate) events: Vec<String>,
    /// The compacted revision in the response that cancelled the watcher.
    pub(crate) compacted: Option<i64>,
}

impl Watcher {
    pub(crate) fn open(engine: &Engine, start_revision: i64, prev_kv: bool) -> Self {
        let mut stream = engine.published().hub.open_stream(0);
        let request = pb::WatchCreateRequest {
            key: Bytes::from_static(b"w"),
            range_end: Bytes::from_static(b"x"),
            start_revision,
            prev_kv,
            ..pb::WatchCreateRequest::default()
        };
        assert!(stream.create(request, |_, _| Ok(())).is_some());
        Self { stream, events: Vec::new(), compacted: None }
    }

    /// Delivers history to the engine's watchers that are behind, and takes the events that are ready.
    pub(crate) fn poll(&mut self, engine: &Engine) {
        while tokio::task::block_in_place(|| engine.published().hub.catch_up()).unwrap() {}
        let waker = std::task::Waker::noop();
        let cx = std::task::Context::from_waker(waker);
        let header = HeaderFields::default();
        while let Poll::Ready(frame) = self.stream.poll_next(&cx, &header) {
            self.take(&frame.unwrap());
        }
    }

    fn take(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let response: pb::WatchResponse = prost::Message::decode(&bytes[..]).unwrap();
        if response.canceled {
            self.compacted = Some(response.compact_revision);
        }
        for event in response.events {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let kv = event.kv.unwrap();
            let fields = kv.fields();
            let previous = event.prev_kv.map(|kv| format!(" was {}", text(kv.value())));
            self.events.push(format!(
                "{} {}={}@{}{}",
                if event.r#type == 1 { "DELETE" } else { "PUT" },
                text(fields.key),
                text(fields.value),
                fields.mod_revision,
                previous.unwrap_or_default()
            ));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_on_every_server_receive_each_event_once_and_in_order() {
    let Some(postgres) = shared() else { return };
    let url = postgres.url("watch");
    let network = Network::default();
    let one = start(&url, 1, &network).await;
    let two = start(&url, 2, &network).await;
    let mut expected = Vec::new();
    let mut live = [(&one, Watcher::open(&one, 0, false)), (&two, Watcher::open(&two, 0, false))];
    for number in 0..40 {
        let revision = put_at(&two, "w", &number.to_string()).await;
        expected.push(format!("PUT w={number}@{revision}"));
    }
    propose(&one, crate::support::delete("w", b"")).await.unwrap();
    expected.push("DELETE w=@42".to_owned());
    let deadline = Instant::now() + Duration::from_secs(20);
    for (engine, watcher) in &mut live {
        while watcher.events.len() < expected.len() && Instant::now() < deadline {
            watcher.poll(engine);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(watcher.events, expected);
    }
    // The first server reads history from its tail. The third server was started later, so it reads history from the
    // log.
    let three = start(&url, 3, &network).await;
    for engine in [&one, &three] {
        let mut past = Watcher::open(engine, 30, true);
        while past.events.len() < 13 && Instant::now() < deadline {
            past.poll(engine);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(past.events.len(), 13, "{:?}", past.events);
        assert_eq!(past.events[0], "PUT w=28@30 was 27");
        assert_eq!(past.events[12], "DELETE w=@42 was 39");
    }
    propose(&one, compaction(40)).await.unwrap();
    three.barrier().await.unwrap();
    let mut past = Watcher::open(&three, 41, false);
    while past.events.len() < 2 && Instant::now() < deadline {
        past.poll(&three);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(past.events, ["PUT w=39@41", "DELETE w=@42"]);
    for engine in [&one, &two, &three] {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_whose_history_is_compacted_while_it_is_read_is_cancelled() {
    let Some(postgres) = shared() else { return };
    let one = start(&postgres.url("watch_gap"), 1, &Network::default()).await;
    for number in 0..40 {
        put_at(&one, "w", &number.to_string()).await;
    }
    crate::requests::wait_written(&one).await;
    // The tail of the second server is empty, so the server reads history from the log.
    let proxy = Proxy::start(postgres.port()).await;
    let url = postgres.url_through(proxy.port, "watch_gap");
    let two = start(&url, 2, &Network::default()).await;
    let mut watcher = Watcher::open(&two, 5, false);
    proxy.set_faults(vec![Fault { text: "last_revision >=", action: Action::Hold, period: 1 }]);
    let engine = two.clone();
    let watching = tokio::spawn(async move {
        while watcher.events.len() < 37 && watcher.compacted.is_none() {
            watcher.poll(&engine);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        watcher
    });
    eventually("the history is being read", async || proxy.injected() > 0).await;
    propose(&one, compaction(30)).await.unwrap();
    one.wait_compacted().await.unwrap();
    proxy.set_faults(Vec::new());
    let watcher = tokio::time::timeout(Duration::from_secs(10), watching).await;
    let watcher = watcher.expect("the watcher is cancelled or receives all events").unwrap();
    assert_eq!((watcher.compacted, watcher.events), (Some(30), Vec::new()));
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_missed_large_batches_reads_them_in_parts() {
    let Some(postgres) = shared() else { return };
    let network = Network::default();
    let one = start(&postgres.url("large_batches"), 1, &network).await;
    let proxy = Proxy::start(postgres.port()).await;
    let two = start(&postgres.url_through(proxy.port, "large_batches"), 2, &network).await;
    proxy.set_open(false);
    let value = "v".repeat(2 << 20);
    for number in 0..20 {
        put_at(&one, &format!("k{number}"), &value).await;
    }
    proxy.set_faults(vec![Fault { text: ".log WHERE seq >=", action: Action::Count, period: 1 }]);
    proxy.set_open(true);
    let missed = one.status().log_position;
    eventually("the second server has read the log", async || two.status().log_position >= missed)
        .await;
    // One statement reads at most 8 MiB and the batch that reaches this limit.
    assert!(proxy.injected() >= 4, "{} statements read 40 MiB", proxy.injected());
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_after_missed_batches_returns_every_acknowledged_write() {
    let Some(postgres) = shared() else { return };
    let [near, far] = [Proxy::start(postgres.port()).await, Proxy::start(postgres.port()).await];
    let one = start(&postgres.url_through(near.port, "resumed"), 1, &Network::default()).await;
    put_at(&one, "x", "0").await;
    let two = start(&postgres.url_through(far.port, "resumed"), 2, &Network::default()).await;
    far.set_open(false);
    let mut last = 0;
    for _ in 0..5 {
        last = put_at(&one, "x", "1").await;
    }
    propose(&one, compaction(last)).await.unwrap();
    one.wait_compacted().await.unwrap();
    // The writes to the tables are held, so the next batch is only in the log.
    near.set_faults(vec![Fault { text: ".progress SET written", action: Action::Hold, period: 1 }]);
    put_at(&one, "x", "2").await;
    far.set_open(true);
    let deadline = Instant::now() + Duration::from_secs(10);
    while two.barrier().await.is_err() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let found = two.range(&range_of("x", b""), &mut |_| true).await.unwrap().unwrap();
    assert_eq!(shown(&found), ["x=2"]);
    near.set_faults(Vec::new());
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_forgets_the_last_batch_once_it_is_in_the_tables() {
    let Some(postgres) = shared() else { return };
    let (url, network) = (postgres.url("forgets"), Network::default());
    let one = start(&url, 1, &network).await;
    let two = start(&url, 2, &network).await;
    put_at(&one, "k", "1").await;
    for engine in [&one, &two] {
        engine.barrier().await.unwrap();
        crate::requests::wait_written(engine).await;
        assert_eq!(engine.status().backlog_bytes, 0);
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequencer_that_freezes_while_it_writes_the_tables_is_replaced() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let network = Network::default();
    let one = start(&postgres.url_through(proxy.port, "frozen"), 1, &network).await;
    put_at(&one, "k", "1").await;
    crate::requests::wait_written(&one).await;
    proxy.set_faults(vec![Fault { text: "INTO frozen.versions", action: Action::Hold, period: 1 }]);
    put_at(&one, "k", "2").await;
    eventually("the tables are being written", async || proxy.injected() > 0).await;
    proxy.freeze();
    network.remove("address-1");
    let two = start(&postgres.url("frozen"), 2, &network).await;
    let begun = Instant::now();
    eventually("a write succeeds", async || two.propose(put("k", "3")).await.is_ok()).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(shown(&read(&two, &range_of("k", b"")).await.unwrap()), ["k=3"]);
    one.abandon().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_term_takes_long_to_begin_keeps_the_role() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let url = postgres.url_through(proxy.port, "slow_terms");
    let network = Network::default();
    // Reading the attached keys is the last step before the term begins.
    let text = "SELECT key, lease";
    proxy.set_faults(vec![Fault { text, action: Action::Delay(4_000), period: 1 }]);
    let (one, two) = tokio::join!(start(&url, 1, &network), start(&url, 2, &network));
    let begun = Instant::now();
    eventually("a write succeeds", async || two.propose(put("k", "1")).await.is_ok()).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(two.status().epoch, 1);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_queries_and_renewals_wait_until_a_revocation_is_committed() {
    let Some(postgres) = shared() else { return };
    let proxy = Proxy::start(postgres.port()).await;
    let url = postgres.url_through(proxy.port, "lease_answers");
    let engine = start(&url, 1, &Network::default()).await;
    let lease_grant = Some(pb::LeaseGrantRequest { id: 7, ttl: 600 });
    let grant = pb::InternalRaftRequest { lease_grant, ..Default::default() };
    propose(&engine, grant).await.unwrap();
    proxy.set_faults(vec![Fault { text: ".log (seq", action: Action::Hold, period: 1 }]);
    let revoking = engine.clone();
    let revoked = tokio::spawn(async move {
        let lease_revoke = Some(pb::LeaseRevokeRequest { id: 7 });
        revoking.propose(pb::InternalRaftRequest { lease_revoke, ..Default::default() }).await
    });
    eventually("the revocation is being committed", async || proxy.injected() > 0).await;
    let second = Duration::from_secs(1);
    let looked = tokio::time::timeout(second, engine.time_to_live(LeaseId(7))).await;
    assert!(looked.is_err(), "lease query answered too early: {looked:?}");
    let renewed = tokio::time::timeout(second, engine.renew(LeaseId(7), nobody())).await;
    assert!(renewed.is_err(), "renewal answered too early: {renewed:?}");
    proxy.set_faults(Vec::new());
    revoked.await.unwrap().unwrap().unwrap();
    assert_eq!(engine.time_to_live(LeaseId(7)).await.unwrap(), None);
    engine.stop().await;
}
