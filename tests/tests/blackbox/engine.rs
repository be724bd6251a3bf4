//! Servers whose data is in a PostgreSQL database (`--engine`).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    DEADLINE, Kind, Options, Server, Utl, Watch, bytes, delete, eventually, eventually_ok, get,
    key, on_both_servers, on_quorate, postgres, put_leased, refused, skipped, watch_key, within,
};
use tokio::task::JoinSet;
use tonic::Code;

on_quorate! {
    alone:
    servers_on_one_database_serve_the_same_keys,
    another_server_takes_over_when_the_sequencer_is_killed,
    an_unreachable_database_is_reported_without_its_password,
    requests_from_a_sender_without_the_secret_are_refused,
    the_health_of_a_server_depends_on_its_database,
    a_server_on_a_database_reports_its_commits_and_forwarded_requests,
    few_hashes_and_snapshots_of_a_database_are_computed_at_a_time_and_cancelled_ones_end,
}

on_both_servers! {
    alone:
    a_snapshot_of_a_member_is_imported_into_a_database,
}

/// Starts this many servers on one new database. Returns `None` if PostgreSQL is not installed.
async fn start(count: usize) -> Option<Vec<Server>> {
    let Some(url) = postgres::try_new_url() else {
        skipped("tests on a database (PostgreSQL is missing: set POSTGRES_BIN_DIR)");
        return None;
    };
    let mut servers = Vec::new();
    for number in 0..count {
        let name = format!("server{number}");
        let options = Options::new(Kind::Quorate).unguarded().on_database(&url).name(&name);
        servers.push(options.start().await);
    }
    Some(servers)
}

async fn servers_on_one_database_serve_the_same_keys(_: Kind) {
    let Some(servers) = start(2).await else { return };
    let [one, other] = [&servers[0], &servers[1]].map(Server::client);
    let mut watch = Watch::open(&one);
    watch.create(watch_key("k")).await;
    let written = other.write("k", "v").await;
    assert_eq!(one.read("k").await, Some(b"v".to_vec()));
    let event = watch.events(1).await.remove(0);
    assert_eq!(event.kv.unwrap().fields().mod_revision, written);
    let list = pb::MemberListRequest { linearizable: true };
    let members = other.member_list(list).await.unwrap().members;
    let mut names: Vec<_> = members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["server0", "server1"]);
    let add = pb::MemberAddRequest {
        peer_urls: vec!["http://127.0.0.1:1".to_owned()],
        is_learner: false,
    };
    let text = "changing members (a server is a member while it runs on the same database) is not possible with --engine";
    refused(one.member_add(add).await, Code::Unimplemented, text);
    // The sequencer refuses a long key, whichever server receives it.
    let key = bytes("k".repeat(3_000));
    let put = pb::PutRequest { key, ..pb::PutRequest::default() };
    for client in [&one, &other] {
        let text = "a key is 3000 bytes long, but the database can index at most 2048";
        refused(client.put(put.clone()).await, Code::InvalidArgument, text);
    }
}

async fn another_server_takes_over_when_the_sequencer_is_killed(_: Kind) {
    let Some(mut servers) = start(2).await else { return };
    let other = servers[1].client();
    let first = other.write("k", "1").await;
    servers[0].kill();
    let put = pb::PutRequest { key: bytes("k"), value: bytes("2"), ..pb::PutRequest::default() };
    let second =
        eventually_ok(DEADLINE, "a write succeeds", async || other.put(put.clone()).await).await;
    assert!(second.header.unwrap().revision > first);
    assert_eq!(other.read("k").await, Some(b"2".to_vec()));
}

async fn an_unreachable_database_is_reported_without_its_password(_: Kind) {
    let url = "postgres://user:SECRET@127.0.0.1:1/none?sslmode=disable";
    let exit =
        Options::new(Kind::Quorate).unguarded().on_database(url).try_start().await.unwrap_err();
    assert!(exit.log.contains("--engine: "), "{exit}");
    assert!(!exit.log.contains("SECRET"), "{exit}");
}

/// Reads until the server closes the connection. Returns false if the connection stays open.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        // The server has closed the connection without reading the frame.
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Opens the connection on which servers forward requests.
fn open_forwarding(server: &Server) -> TcpStream {
    let address = server.peer_url().replace("http://", "");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
        .write_all(b"GET /quorate/engine HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: quorate-engine-1\r\n\r\n")
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    stream
}

/// Returns a frame that puts key `k` as user `root`, as a server would send it, without a valid authentication code.
fn forged_frame() -> Vec<u8> {
    let put =
        pb::PutRequest { key: bytes("k"), value: bytes("forged"), ..pb::PutRequest::default() };
    let header = pb::RequestHeader { username: "root".into(), ..pb::RequestHeader::default() };
    let request = pb::InternalRaftRequest {
        header: Some(header),
        put: Some(put),
        ..pb::InternalRaftRequest::default()
    };
    let request = request.encode_to_vec();
    let mut payload = vec![10];
    prost::encode_length_delimiter(request.len(), &mut payload).unwrap();
    payload.extend(request);
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
    frame.extend([0; 8]);
    frame.extend(payload);
    frame.extend([0; 32]);
    frame
}

async fn requests_from_a_sender_without_the_secret_are_refused(_: Kind) {
    let Some(servers) = start(1).await else { return };
    let client = servers[0].client();
    client.write("k", "own").await;
    // Neither a frame without a valid proof nor a frame after a forged proof reaches the engine.
    let mut early = open_forwarding(&servers[0]);
    early.write_all(&[&[1; 32][..], &forged_frame()].concat()).unwrap();
    let mut forging = open_forwarding(&servers[0]);
    forging.write_all(&[1; 32]).unwrap();
    let mut answer = [0; 64];
    forging.read_exact(&mut answer).unwrap();
    // The sender sends the server's own proof back, but the server expects a different proof from the sender.
    forging.write_all(&[&answer[32..], &forged_frame()].concat()).unwrap();
    assert!(is_closed(&mut forging) && is_closed(&mut early));
    eventually("the refusal is logged", async || {
        servers[0].log().contains("the sender does not know the secret").then_some(())
    })
    .await;
    assert_eq!(client.read("k").await, Some(b"own".to_vec()));
    // Paths for raft members are not served, and a request without an upgrade is refused.
    let port = servers[0].peer_url().rsplit_once(':').unwrap().1.parse().unwrap();
    assert_eq!(get(port, "/members").status, 404);
    assert_eq!(get(port, "/quorate/engine").status, 426);
}

async fn the_health_of_a_server_depends_on_its_database(_: Kind) {
    let Some(mut database) = postgres::Database::start() else {
        return skipped("tests on a database (PostgreSQL is missing: set POSTGRES_BIN_DIR)");
    };
    let options = Options::new(Kind::Quorate).unguarded().on_database(&database.url());
    let server = options.start().await;
    let client = server.client();
    client.write("k", "1").await;
    assert_eq!((server.get("/readyz").status, server.get("/health").status), (200, 200));
    database.stop();
    eventually("the server is not ready", async || {
        let ready = server.get("/readyz");
        (ready.status == 503 && ready.text().contains("[-]linearizable_read")).then_some(())
    })
    .await;
    assert_eq!(server.get("/health").status, 503);
    assert_eq!(server.get("/livez").status, 200, "a restart of the server would not help");
    database.start_again();
    eventually("the server is ready again", async || {
        (server.get("/readyz").status == 200).then_some(())
    })
    .await;
    assert_eq!(client.read("k").await, Some(b"1".to_vec()));
}

async fn a_server_on_a_database_reports_its_commits_and_forwarded_requests(_: Kind) {
    let Some(servers) = start(2).await else { return };
    servers[1].client().write("k", "1").await;
    assert_eq!(servers[1].metric("quorate_engine_forwarded_total"), Some(1.0));
    let of_sequencer = |name| servers[0].metric(name).unwrap();
    assert_eq!(of_sequencer("etcd_server_is_leader"), 1.0);
    assert!(of_sequencer("quorate_engine_epoch") >= 1.0);
    assert!(of_sequencer("quorate_engine_batch_requests_total") >= 1.0);
    assert!(of_sequencer("quorate_engine_commit_duration_seconds_count") >= 1.0);
    assert_eq!(of_sequencer("etcd_mvcc_put_total"), 1.0);
}

async fn few_hashes_and_snapshots_of_a_database_are_computed_at_a_time_and_cancelled_ones_end(
    _: Kind,
) {
    let Some(database) = postgres::Database::start() else {
        skipped("tests on a database (PostgreSQL is missing: set POSTGRES_BIN_DIR)");
        return;
    };
    let options = Options::new(Kind::Quorate).unguarded().on_database(&database.url());
    let server = options.start().await;
    let client = server.client();
    client.write("k", "v").await;
    // Otherwise, the statement that writes the version would wait for the lock, too.
    let is_written = async || (database.row_count("versions") == 1).then_some(());
    eventually("the version is in its table", is_written).await;
    // Hashes and snapshots wait for this lock after they have got their permits.
    let lock = database.lock("versions");
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let (one, other) = (client.clone(), client.clone());
        calls.spawn(async move { one.snapshot().await.map(drop) });
        calls.spawn(async move { other.hash_kv(pb::HashKvRequest::default()).await.map(drop) });
    }
    for _ in 0..4 {
        let answer = within("a refusal", calls.join_next()).await.unwrap().unwrap();
        refused(answer, Code::Unknown, "etcdserver: too many requests");
    }
    eventually("two calls wait", async || (database.waiting_for_locks() == 2).then_some(())).await;
    calls.shutdown().await;
    eventually("both have ended", async || (database.waiting_for_locks() == 0).then_some(())).await;
    database.unlock(lock);
    client.hash_kv(pb::HashKvRequest::default()).await.unwrap();
    assert!(!client.snapshot().await.unwrap().is_empty());
}

async fn a_snapshot_of_a_member_is_imported_into_a_database(kind: Kind) {
    let Some(url) = postgres::try_new_url() else {
        skipped("tests on a database (PostgreSQL is missing: set POSTGRES_BIN_DIR)");
        return;
    };
    let member = Options::new(kind).unguarded().start().await;
    let client = member.client();
    client.grant(77, 600).await;
    client.write("a", "old").await;
    let written = client.write("a", "new").await;
    client.put(put_leased("leased", "v", 77)).await.unwrap();
    client.write("deleted", "v").await;
    let last = client.delete_range(delete("deleted", "")).await.unwrap().header.unwrap().revision;
    let pieces = client.snapshot().await.unwrap();
    let snapshot: Vec<u8> = pieces.iter().flat_map(|piece| piece.blob.to_vec()).collect();
    let file = member.scratch().join("snapshot.db");
    let import = |flags: &[&str]| {
        let args = [&["import", file.to_str().unwrap(), url.as_str()], flags].concat();
        Utl::Quorate.run(&args)
    };
    // A changed or shortened snapshot is refused before anything is written.
    let mut damaged = snapshot.clone();
    damaged[5000] ^= 1;
    std::fs::write(&file, &damaged).unwrap();
    let finished = import(&[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("Error: expected sha256 ["), "{finished:?}");
    std::fs::write(&file, &snapshot[..snapshot.len() - 32]).unwrap();
    let finished = import(&[]);
    assert!(finished.stderr.contains("Error: snapshot missing hash"), "{finished:?}");
    std::fs::write(&file, &snapshot[..8192]).unwrap();
    assert_eq!(import(&["--skip-hash-check"]).code, Some(1));

    std::fs::write(&file, &snapshot).unwrap();
    let finished = import(&[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stderr.contains("imported snapshot"), "{finished:?}");
    let server = Options::new(Kind::Quorate).unguarded().on_database(&url).start().await;
    let imported = server.client();
    let answer = imported.range(key("a")).await.unwrap();
    let fields = answer.kvs[0].fields();
    assert_eq!((fields.value, fields.mod_revision, fields.version), (&b"new"[..], written, 2));
    assert_eq!(answer.header.unwrap().revision, last);
    assert_eq!(imported.read("deleted").await, None);
    let request = pb::LeaseTimeToLiveRequest { id: 77, keys: true };
    let lease = imported.lease_time_to_live(request).await.unwrap();
    assert_eq!((lease.granted_ttl, lease.keys), (600, vec![bytes("leased")]));
    assert_eq!(imported.write("b", "v").await, last + 1, "revisions continue");
    // A keyspace in use is never changed.
    let finished = import(&[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("the keyspace is not empty"), "{finished:?}");
}
