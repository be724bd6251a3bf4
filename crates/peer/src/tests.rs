//! Tests with members that communicate over loopback: messages in both directions over every kind of connection, and
//! refused senders.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc as blocking_mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use quorate_api::deep_txn;
use quorate_api::etcdserverpb::{
    AuthUserAddRequest, InternalRaftRequest, PutRequest, RequestHeader,
};
use quorate_core::incoming::Sender;
use quorate_net::listen::IncomingBody;
use quorate_raft::{
    ConfState, Entry, EntryKind, LogIndex, MemberId, Message, MessageKind, Snapshot,
    SnapshotMetadata, SnapshotOutcome, Term,
};
use quorate_state::members::{Member, Members};
use quorate_state::units;
use quorate_storage::bolt::{Db, Options};
use quorate_storage::disk::{Disk, RealDisk};
use quorate_storage::snap::database_path;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

mod direct_writes;
mod newer_image;
mod refusals;
mod stream_responses;
mod tls_reasons;

use super::*;
use crate::backlog::WAITING_BYTES_MAX;
use crate::call::Call;
use crate::dialer::Dialer;
use quorate_net::listen::{
    Activity, ConnectionKind, ConnectionLimits, ConnectionPermits, ConnectionTimeouts, Ends,
    Http2Service, Listener, Reuse, Services,
};
use quorate_net::runtime::{Runtimes, Threads};
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::metrics::MetricsLevel;

const CLUSTER: u64 = 0xc1;

/// A report from a transport to its member.
#[derive(Debug)]
enum Report {
    Received(Received),
    Unreachable(MemberId),
    Gone(MemberId),
    Snapshot {
        to: MemberId,
        outcome: SnapshotOutcome,
    },
    Removal,
    /// Marks the end of the earlier reports. Sent by the test.
    End,
}

/// Passes reports to the test.
#[derive(Clone, Debug)]
struct Reports(blocking_mpsc::Sender<Report>);

impl Reports {
    fn add(&self, report: Report) {
        // The send may fail, because a test may end while its members are still sending messages.
        drop(self.0.send(report));
    }
}

impl Consensus for Reports {
    fn report_other_origin(&self, conflict: OtherOrigin) {
        panic!("the members have different origins: {conflict}");
    }

    fn receive(&self, received: Received) {
        self.add(Report::Received(received));
    }

    fn report_unreachable(&self, peer: MemberId) {
        self.add(Report::Unreachable(peer));
    }

    fn report_gone(&self, peer: MemberId) {
        self.add(Report::Gone(peer));
    }

    fn report_snapshot(&self, to: MemberId, outcome: SnapshotOutcome) {
        self.add(Report::Snapshot { to, outcome });
    }

    fn report_removal(&self) {
        self.add(Report::Removal);
    }
}

/// A transport with a listener, but without the other parts of a member.
struct TestMember {
    id: MemberId,
    url: String,
    peers: Arc<Peers>,
    reports: Reports,
    reported: blocking_mpsc::Receiver<Report>,
    dir: TempDir,
    metrics: Arc<Metrics>,
    _runtimes: Arc<Runtimes>,
    _stop: watch::Sender<bool>,
}

/// Serves the transport and a member list of two members.
#[derive(Clone)]
struct TestService(Arc<Peers>);

impl quorate_net::listen::Http1Service for TestService {
    const ANSWERS_HALF_CLOSED: bool = false;
}

impl Http2Service for TestService {
    fn for_connection(&self, _: Ends) -> Self {
        self.clone()
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }
}

impl hyper::service::Service<Request<IncomingBody>> for TestService {
    type Response = Response<PeerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let peers = Arc::clone(&self.0);
        Box::pin(async move {
            if request.uri().path() == "/members" {
                let members = http_body_util::Full::from(r#"[{"id":1,"name":"a"},{"id":2}]"#);
                let members =
                    PeerBody::new(http_body_util::BodyExt::map_err(
                        members,
                        |never| match never {},
                    ));
                let cluster = &peers.local.introduction.cluster;
                return Ok(Response::builder()
                    .header("x-etcd-cluster-id", cluster)
                    .body(members)
                    .unwrap());
            }
            Ok(peers.handle(request).await)
        })
    }
}

impl TestMember {
    fn start(id: MemberId) -> Self {
        Self::start_in(id, CLUSTER, Duration::from_secs(5), Dialer::default())
    }

    fn start_in(id: MemberId, cluster_id: u64, timeout: Duration, dialer: Dialer) -> Self {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), Reuse::default()).unwrap();
        let url = format!("http://{listener}");
        let threads = Threads { name: "peers", count: 1, stack_bytes: deep_txn::STACK_BYTES };
        let runtimes = Runtimes::start(threads, |_| std::future::pending()).unwrap();
        let (sender, reported) = blocking_mpsc::channel();
        let (reports, dir) = (Reports(sender), TempDir::new().unwrap());
        let metrics = Arc::new(Metrics::new(&[], MetricsLevel::default()));
        let peers = Peers::new(Parts {
            dialer,
            member_id: id,
            cluster_id,
            peer_urls: vec![url.clone()],
            server_version: quorate_version::ETCD_VERSION.to_owned(),
            shared_settings: vec![("max-learners", "1".to_owned())],
            announced_settings: Vec::new(),
            election_timeout: Duration::from_secs(1),
            read_timeout: timeout,
            write_timeout: timeout,
            consensus: Arc::new(reports.clone()),
            disk: Arc::new(RealDisk),
            snap_dir: dir.path().to_owned(),
            metrics: Arc::clone(&metrics),
            runtime: runtimes.first().clone(),
        });
        let (stop, stopping) = watch::channel(false);
        let services =
            Services { grpc: None::<TestService>, http: Some(TestService(Arc::clone(&peers))) };
        let limits = ConnectionLimits {
            max_concurrent_streams: None,
            timeouts: ConnectionTimeouts::FOR_CLIENTS,
            permits: Arc::new(ConnectionPermits::new(ConnectionKind::Peer, 100)),
            per_address: None,
            keepalive: None,
            ping_floor: Some(Duration::ZERO),
        };
        let (alive, _) = mpsc::channel(1);
        let runtimes = Arc::new(runtimes);
        listener.spawn(&runtimes, services, &limits, &stopping, &alive);
        let (_runtimes, _stop) = (runtimes, stop);
        Self { id, url, peers, reports, reported, dir, metrics, _runtimes, _stop }
    }

    /// Waits for a report.
    fn next_report(&self) -> Report {
        let timeout = Duration::from_secs(30);
        self.reported.recv_timeout(timeout).expect("a report arrives in time")
    }

    /// Skips reports until `wanted` returns a value.
    fn wait_for<T>(&self, mut wanted: impl FnMut(Report) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.next_report()) {
                return found;
            }
        }
    }

    /// Waits until this many messages are received.
    fn receive(&self, count: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        while messages.len() < count {
            messages.extend(self.wait_for(|report| match report {
                Report::Received(received) => Some(received.into_messages()),
                _ => None,
            }));
        }
        assert_eq!(messages.len(), count);
        messages
    }

    /// Waits until this many messages other than heartbeats are received.
    fn receive_answers_and_appends(&self, count: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        while messages.len() < count {
            let received = self.wait_for(|report| match report {
                Report::Received(received) => Some(received.into_messages()),
                _ => None,
            });
            messages.extend(received.into_iter().filter(|one| !is_heartbeat(one)));
        }
        messages
    }

    /// Waits until the other member has opened both streams to this member.
    fn wait_for_streams_of(&self, other: &Self) {
        wait_until(|| {
            let peer = self.peers.table.peer(other.id).expect("the other member is a peer");
            peer.has_streams()
        });
    }

    /// Sends heartbeats to another member until it accepts them.
    fn introduce_to(&self, other: &Self) {
        let known = &other.peers.local.known_members;
        self.peers.send(vec![heartbeat(self.id, other.id)]);
        wait_until(|| {
            // The other member itself probes only when it receives a message, so the test repeats the probe.
            other.peers.table.probe_identity(self.id);
            known.of(self.id) == Sender::Member
        });
    }

    fn ask(&self, method: Method, path: &str, headers: &[(&'static str, &str)]) -> (u16, String) {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let call = Call { method, headers, ..Call::get(&self.url, path, Duration::from_secs(10)) };
        let answer = block_on(call.send(&Dialer::default())).unwrap();
        (answer.status().as_u16(), String::from_utf8(answer.into_body().to_vec()).unwrap())
    }
}

impl Drop for TestMember {
    fn drop(&mut self) {
        self.peers.stop();
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "the condition was not met in time");
        std::thread::yield_now();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(30), future)
            .await
            .expect("the future completes in time")
    })
}

fn members(members: &[&TestMember]) -> Members {
    let member =
        |member: &&TestMember| Member::new(units::MemberId(member.id), vec![member.url.clone()]);
    Members::new(members.iter().map(member), [])
}

fn pair() -> (TestMember, TestMember) {
    let (one, two) = (TestMember::start(1), TestMember::start(2));
    let both = members(&[&one, &two]);
    one.peers.set_members(&both);
    two.peers.set_members(&both);
    one.wait_for_streams_of(&two);
    two.wait_for_streams_of(&one);
    (one, two)
}

fn append(from: MemberId, to: MemberId, index: u64, payload: usize) -> Message {
    let data = vec![u8::try_from(index % 251).unwrap(); payload].into();
    let index = LogIndex(index);
    let entry = Entry { term: Term(3), index: index + 1, data, ..Entry::default() };
    Message {
        from,
        term: Term(3),
        log_term: Term(3),
        index,
        commit: index,
        entries: vec![entry],
        ..Message::new(MessageKind::Append, to)
    }
}

fn answer(from: MemberId, to: MemberId, index: u64) -> Message {
    Message {
        from,
        term: Term(3),
        index: LogIndex(index),
        ..Message::new(MessageKind::AppendResponse, to)
    }
}

fn heartbeat(from: MemberId, to: MemberId) -> Message {
    Message { from, term: Term(3), ..Message::new(MessageKind::Heartbeat, to) }
}

fn is_heartbeat(message: &Message) -> bool {
    message.kind == MessageKind::Heartbeat
}

const GREETING: [(&str, &str); 5] = [
    ("x-server-from", "2"),
    ("x-server-version", "3.5.16"),
    ("x-min-cluster-version", "3.0.0"),
    ("x-etcd-cluster-id", "c1"),
    ("x-raft-to", "1"),
];

#[test]
fn messages_arrive_in_both_directions_and_in_order() {
    let (one, two) = pair();
    let appends: Vec<Message> = (0..1000)
        .map(|index| append(1, 2, index, if index == 500 { 3 << 20 } else { 100 }))
        .collect();
    for batch in appends.chunks(7) {
        one.peers.send(batch.to_vec());
    }
    assert!(two.receive(1000) == appends);
    let answers: Vec<Message> = (0..100).map(|index| answer(2, 1, index)).collect();
    two.peers.send(answers.clone());
    assert_eq!(one.receive(100), answers);
    assert!(one.peers.active_since(2).is_some() && two.peers.active_since(1).is_some());
    assert!(one.metrics.network.peer_sent_bytes.with(&["2"]).value() > 3 << 20);
    assert!(two.metrics.network.peer_received_bytes.with(&["1"]).value() > 3 << 20);
}

#[test]
fn an_unresponsive_peer_is_reported_before_its_next_probe() {
    let one = TestMember::start(1);
    let local = Arc::clone(&one.peers.local);
    // No process accepts connections at this address, so the probe neither succeeds nor fails.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let contact = Arc::new(contact::Contact::new(&local, 2, &[url]));
    let hour = Duration::from_secs(3_600);
    let pace = probe::Pace { probe: hour, healthy: hour, unhealthy: Duration::from_millis(10) };
    let prober = probe::keep_probing(Arc::clone(&local), contact, pace);
    let task = local.runtime.spawn(prober);
    // The first report marks the peer as unhealthy, so the second report follows after the shorter interval. Each
    // report has two lines and two observations, one for each of etcd's probes.
    wait_until(|| one.metrics.network.peer_round_trip_time.with(&["2"]).count() > 2);
    task.abort();
}

#[test]
fn streams_are_opened_again_after_a_reconnect() {
    let (one, two) = pair();
    one.peers.reconnect();
    one.wait_for_streams_of(&two);
    two.wait_for_streams_of(&one);
    // Messages that are sent while a stream ends may be lost, but later messages are not.
    let mut index = 0;
    let received = loop {
        index += 1;
        one.peers.send(vec![answer(1, 2, index)]);
        if let Report::Received(received) = two.next_report() {
            break received.into_messages();
        }
    };
    assert!(!received.is_empty());
}

/// Posts a snapshot message followed by part of a file. Returns the head of the response.
async fn post_snapshot(to: &TestMember, from: &str, message: &Message, file: &[u8]) -> String {
    let mut encoded = bytes::BytesMut::new();
    wire::put_message(message, &mut encoded);
    let body = [&(encoded.len() as u64).to_be_bytes()[..], &encoded, file].concat();
    let head = format!(
        "POST /raft/snapshot HTTP/1.1\r\nHost: x\r\nX-Etcd-Cluster-ID: {CLUSTER:x}\r\n\
         X-Server-Version: 3.7.1\r\nX-Min-Cluster-Version: 3.0.0\r\n{from}\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(to.url.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server may refuse the request before it has read the whole body.
    drop(stream.write_all(&body).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn each_message_is_sent_as_a_request_if_there_are_no_streams() {
    let (one, two) = (TestMember::start(1), TestMember::start(2));
    // The second member does not know the first, so it does not open streams to it.
    one.peers.set_members(&members(&[&one, &two]));
    two.peers.set_members(&members(&[&two]));
    // The second member does not accept the first member's messages until the first is confirmed as a member.
    one.introduce_to(&two);
    one.peers.send(vec![append(1, 2, 0, 200_000), answer(1, 2, 7)]);
    let mut received = two.receive_answers_and_appends(2);
    received.sort_by_key(|message| message.index);
    assert_eq!(received, [append(1, 2, 0, 200_000), answer(1, 2, 7)]);
    // The second member has learned the first member's URL from the requests.
    two.peers.send(vec![answer(2, 1, 9)]);
    assert_eq!(one.receive(1), [answer(2, 1, 9)]);
}

#[test]
fn a_snapshot_message_is_received_with_its_backend_file() {
    let (one, two) = pair();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let db = Db::open(&disk, &one.dir.path().join("db"), Options::default()).unwrap();
    let value = Bytes::from(vec![7; 3 << 20]);
    let mut tx = db.write().unwrap();
    tx.create_bucket_if_missing(b"key").unwrap();
    tx.create_bucket_if_missing(b"members").unwrap();
    for id in [1, 2] {
        let row = Member::new(units::MemberId(id), Vec::new()).to_json();
        tx.put(b"members", id.to_string().as_bytes(), Bytes::from(row)).unwrap();
    }
    tx.create_bucket_if_missing(b"meta").unwrap();
    tx.put(b"meta", b"storageVersion", Bytes::from_static(b"3.6.0")).unwrap();
    tx.put(b"meta", b"consistent_index", Bytes::copy_from_slice(&77_u64.to_be_bytes())).unwrap();
    tx.put(b"key", b"large", value.clone()).unwrap();
    tx.commit().unwrap();
    let image = db.read();
    let snapshot = Snapshot {
        data: Bytes::from_static(b"{\"members\":1}"),
        metadata: SnapshotMetadata {
            conf_state: ConfState { voters: vec![1, 2], ..ConfState::default() },
            index: LogIndex(77),
            term: Term(3),
        },
    };
    let message = Message {
        from: 1,
        term: Term(3),
        snapshot: Some(Box::new(snapshot)),
        ..Message::new(MessageKind::Snapshot, 2)
    };
    let outgoing = || OutgoingSnapshot { message: message.clone(), image: image.clone() };
    let outcome = |report| match report {
        Report::Snapshot { to: 2, outcome } => Some(outcome),
        _ => None,
    };
    one.peers.send_snapshot(outgoing());
    assert_eq!(two.receive(1), std::slice::from_ref(&message));
    assert_eq!(one.wait_for(outcome), SnapshotOutcome::Finished);
    let received = database_path(two.dir.path(), 77);
    assert_eq!(std::fs::metadata(&received).unwrap().len(), image.image_len());
    let received = Db::open(&disk, &received, Options::default()).unwrap();
    let stored = received.read();
    let bucket = stored.bucket(b"key").unwrap().unwrap();
    assert!(bucket.get(b"large").unwrap() == Some(&value[..]));
    assert_eq!(std::fs::read_dir(two.dir.path()).unwrap().count(), 1, "no other file exists");
    assert_eq!(two.metrics.network.snapshot_receive_success.with(&["1"]).value(), 1);

    // An image that ends before the snapshot's index is refused.
    let mut old = outgoing();
    old.message.snapshot.as_mut().unwrap().metadata.index = LogIndex(78);
    one.peers.send_snapshot(old);
    assert_eq!(one.wait_for(outcome), SnapshotOutcome::Failed);
    assert_eq!(std::fs::read_dir(two.dir.path()).unwrap().count(), 1, "the file is removed");
    one.peers.send_snapshot(outgoing());
    assert_eq!(two.receive(1), std::slice::from_ref(&message), "no refused message arrived");
    assert_eq!(one.wait_for(outcome), SnapshotOutcome::Finished);

    // If the image cannot be stored, the sender receives an error.
    std::fs::remove_dir_all(two.dir.path()).unwrap();
    one.peers.send_snapshot(outgoing());
    assert_eq!(one.wait_for(outcome), SnapshotOutcome::Failed);
    assert_eq!(one.metrics.network.snapshot_send_failures.with(&["2"]).value(), 2);
    // A snapshot for an unknown recipient is not sent.
    let mut nobodys = outgoing();
    nobodys.message.to = 9;
    one.peers.send_snapshot(nobodys);
    let outcome = one.wait_for(|report| match report {
        Report::Snapshot { to: 9, outcome } => Some(outcome),
        _ => None,
    });
    assert_eq!(outcome, SnapshotOutcome::Failed);
}

const STREAM_REQUEST: &[u8] = b"GET /raft/stream/message/2 HTTP/1.1\r\nHost: x\r\n\
    X-Server-From: 2\r\nX-Server-Version: 3.5.16\r\nX-Etcd-Cluster-ID: c1\r\nX-Raft-To: 1\r\n\r\n";

#[test]
fn a_new_stream_replaces_the_previous_one() {
    let (one, two) = (TestMember::start(1), TestMember::start(2));
    one.peers.set_members(&members(&[&one, &two]));
    let address = one.url.strip_prefix("http://").unwrap().to_owned();
    block_on(async {
        let open = async || {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            stream.write_all(STREAM_REQUEST).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            // The head of the response arrives immediately, before any message.
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains("X-Server-Version: 3.7.1\r\n"), "{head}");
            assert!(head.contains("X-Etcd-Cluster-Id: c1\r\n"), "{head}");
            assert!(head.to_lowercase().contains("transfer-encoding: chunked\r\n"), "{head}");
            stream
        };
        let mut first = open().await;
        let mut second = open().await;
        let mut end = [0; 5];
        first.read_exact(&mut end).await.unwrap();
        assert_eq!(&end, b"0\r\n\r\n");
        one.peers.send(vec![answer(1, 2, 5)]);
        let mut chunk = [0; 20];
        second.read_exact(&mut chunk).await.unwrap();
        // The chunk contains the length of the message and the message.
        assert_eq!(
            &chunk,
            b"12\r\n\0\0\0\0\0\0\0\x0a\x08\x04\x10\x02\x18\x01\x20\x03"[..20].as_ref()
        );
    });
}

#[test]
fn a_silent_peer_is_dialed_again() {
    let two = TestMember::start_in(2, CLUSTER, Duration::from_millis(200), Dialer::default());
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let silent = Member::new(units::MemberId(1), vec![url]);
        two.peers.set_members(&Members::new([silent], []));
        let (mut open, mut dialed) = (Vec::new(), 0);
        // Member 2 requests each of the two streams twice. Other requests may arrive in between.
        while dialed < 4 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let count = stream.read(&mut request).await.unwrap();
            if request[..count].starts_with(b"GET /raft/stream/") {
                dialed += 1;
                let head = b"HTTP/1.1 200 OK\r\nX-Server-Version: 3.7.1\r\nTransfer-Encoding: chunked\r\n\r\n";
                stream.write_all(head).await.unwrap();
            }
            open.push(stream);
        }
    });
}

#[test]
fn a_peer_whose_process_has_ended_is_reported() {
    let (one, two) = pair();
    drop(two);
    let gone = one.wait_for(|report| match report {
        Report::Gone(peer) => Some(peer),
        _ => None,
    });
    assert_eq!(gone, 2);
}

/// Reads one request with its body. Returns `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
        match stream.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => return None,
        }
    }
}

/// Returns the next connection that posts a message, and the message. Connections for streams and probes are dropped.
async fn next_post(listener: &TcpListener) -> (TcpStream, String) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        match read_request(&mut stream).await {
            Some(request) if request.starts_with("POST /raft ") => return (stream, request),
            _ => {}
        }
    }
}

#[test]
fn no_message_is_lost_when_the_peer_closes_a_reused_connection() {
    let two = TestMember::start(2);
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let other = Member::new(units::MemberId(1), vec![url]);
        two.peers.set_members(&Members::new([other], []));
        two.peers.send(vec![answer(2, 1, 1)]);
        let (mut stream, request) = next_post(&listener).await;
        assert!(request.contains("x-server-from: 2\r\n"), "{request}");
        assert!(request.contains("x-etcd-cluster-id: c1\r\n"), "{request}");
        assert!(request.contains("content-type: application/protobuf\r\n"), "{request}");
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        // The workers take turns, so the worker of the first connection receives another message eventually.
        let (mut others, mut sent) = (Vec::new(), 1);
        let again = loop {
            two.peers.send(vec![answer(2, 1, 2)]);
            sent += 1;
            tokio::select! {
                again = read_request(&mut stream) => break again.unwrap(),
                (mut other, _) = next_post(&listener) => {
                    other.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                    others.push(other);
                }
            }
        };
        assert!(again.starts_with("POST /raft "), "{again}");
        // The connection is closed during the request, so the message is sent again on a new one.
        drop(stream);
        let (mut stream, _) = next_post(&listener).await;
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        let bytes = sent * wire::message_len(&answer(2, 1, 1)) as u64;
        wait_until(|| two.metrics.network.peer_sent_bytes.with(&["1"]).value() == bytes);
    });
    // Checks that no message was reported as lost.
    two.peers.stop();
    two.reports.add(Report::End);
    let lost = two.wait_for(|report| match report {
        Report::Unreachable(_) => Some(true),
        Report::End => Some(false),
        _ => None,
    });
    assert!(!lost);
}

#[test]
fn a_stream_with_invalid_bytes_is_counted_and_reopened() {
    let two = TestMember::start(2);
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let other = Member::new(units::MemberId(1), vec![url]);
        two.peers.set_members(&Members::new([other], []));
        let mut answered = 0;
        while answered < 2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await.unwrap_or_default();
            if request.starts_with("GET /raft/stream/msgapp/2 ") {
                let head = b"HTTP/1.1 200 OK\r\nX-Server-Version: 3.5.16\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
                // Sends a frame of an unknown type.
                stream.write_all(&[&head[..], b"1\r\n\x07\r\n"].concat()).await.unwrap();
                answered += 1;
            }
        }
    });
    let failures = two.metrics.network.peer_received_failures.with(&["1"]);
    wait_until(|| failures.value() == 2);
}

#[test]
fn a_response_can_report_the_removal_of_this_member() {
    let two = TestMember::start(2);
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let other = Member::new(units::MemberId(1), vec![url]);
        two.peers.set_members(&Members::new([other], []));
        two.peers.send(vec![answer(2, 1, 1)]);
        let (mut stream, _) = next_post(&listener).await;
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    });
    two.wait_for(|report| matches!(report, Report::Removal).then_some(()));
}

#[test]
fn a_remote_that_is_added_to_the_cluster_becomes_a_peer() {
    let (one, two) = (TestMember::start(1), TestMember::start(2));
    two.peers.table.add_remote(1, std::slice::from_ref(&one.url), Instant::now());
    two.introduce_to(&one);
    two.peers.send(vec![answer(2, 1, 1)]);
    assert_eq!(one.receive_answers_and_appends(1), [answer(2, 1, 1)]);
    wait_until(|| two.metrics.network.active_peers.with(&["2", "1"]).value() == 1);
    two.peers.set_members(&members(&[&two]));
    assert_eq!(
        two.peers.table.remote_count(),
        1,
        "the sender is not in the applied membership yet"
    );
    two.peers.set_members(&members(&[&one, &two]));
    assert_eq!(two.peers.table.remote_count(), 0);
    one.peers.set_members(&members(&[&one, &two]));
    one.wait_for_streams_of(&two);
    wait_until(|| two.metrics.network.active_peers.with(&["2", "1"]).value() == 1);
}

#[test]
fn members_are_counted_as_known_until_they_are_removed() {
    let (one, two) = (TestMember::start(1), TestMember::start(2));
    one.peers.set_members(&members(&[&one, &two]));
    let known = |id: &str| one.metrics.network.known_peers.with(&["1", id]).value();
    assert_eq!((known("1"), known("2")), (1, 1));
    let left = members(&[&one]).iter().cloned().collect::<Vec<_>>();
    one.peers.set_members(&Members::new(left, [units::MemberId(2)]));
    assert_eq!((known("1"), known("2")), (1, 0));
    assert!(one.peers.table.peer(2).is_none());
    // The removed member is not accepted as a remote either.
    one.peers.table.add_remote(2, std::slice::from_ref(&two.url), Instant::now());
    assert_eq!(one.peers.table.remote_count(), 0);
}

#[test]
fn an_overloaded_member_slows_down_its_peers() {
    let (one, two) = pair();
    let (payload, count) = (1 << 20, 160);
    // Sends more data than both ends together can buffer.
    let mut sent = 0;
    for index in 0..count {
        one.peers.send(vec![append(1, 2, index, payload)]);
        sent += 1;
        let dropped = one.metrics.network.peer_sent_failures.with(&["2"]).value();
        if dropped > 0 {
            break;
        }
    }
    assert!(sent > 64, "messages are accepted while there is space: {sent}");
    let dropped = one.metrics.network.peer_sent_failures.with(&["2"]).value();
    assert!(dropped > 0 || sent == count);
    let received_bytes = || two.metrics.network.peer_received_bytes.with(&["1"]).value();
    assert!(received_bytes() < (64 + 16) << 20);
    let waiting = || two.peers.load().waiting_bytes;
    wait_until(|| (32 << 20..=WAITING_BYTES_MAX).contains(&waiting()));
    // All accepted messages arrive once there is space for them.
    let taken = usize::try_from(sent - dropped).unwrap();
    let received = two.receive(taken);
    assert!(received.iter().zip(0..).all(|(message, index)| message.index == LogIndex(index)));
    wait_until(|| waiting() == 0);
}

#[test]
fn a_large_body_is_counted_while_it_is_read() {
    let one = TestMember::start(1);
    let large = || one.peers.load().large_bodies;
    assert_eq!(large(), 0);
    let head = format!(
        "POST /raft HTTP/1.1\r\nHost: x\r\nX-Etcd-Cluster-ID: {CLUSTER:x}\r\n\
         X-Server-Version: 3.7.1\r\nX-Min-Cluster-Version: 3.0.0\r\nContent-Length: 1000000\r\n\r\n"
    );
    let held = block_on(async {
        let mut stream =
            TcpStream::connect(one.url.strip_prefix("http://").unwrap()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&[7; 100_000]).await.unwrap();
        stream
    });
    wait_until(|| large() == 1);
    drop(held);
    wait_until(|| large() == 0);
}
