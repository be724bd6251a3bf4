//! A member's timeouts for silent peers, and for the discovery service while the member founds a cluster.
//!
//! Each test compares two members, or two clusters, that differ in one flag: one has a short timeout, the other a long
//! one. When the short timeout has expired, the other member or cluster must still be waiting.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use quorate_tests::{ClusterOptions, DEADLINE, Kind, Options, Server, eventually, on_quorate, put};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

on_quorate! {
    alone:
    silent_peers_are_disconnected_after_the_read_timeout,
    peers_that_do_not_read_are_disconnected_after_the_write_timeout,
    discovery_requests_time_out,
    discovery_connections_time_out,
    a_discovery_service_that_does_not_answer_pings_is_disconnected,
}

/// A timeout that is longer than any test.
const LONG: &str = "1h";

/// Starts a founding member whose other peer has this address.
fn founder_with_peer(kind: Kind, peer: &str, flag: &str) -> Server {
    let mut server = Options::new(kind).name("a").flag(flag).prepare();
    let own = server.peer_url();
    server.set_cluster(format!("a={own},b=http://{peer}"), false);
    server.launch();
    server
}

/// Starts a founding member that uses a discovery service at this address.
fn founder_at(kind: Kind, registry: &str, flags: &[&str]) -> Server {
    let times = ["dial-timeout", "request-timeout", "keepalive-time", "keepalive-timeout"];
    let mut options = Options::new(kind)
        .unguarded()
        .flag("--initial-cluster=")
        .flag(format!("--discovery-endpoints={registry}"))
        .flag("--discovery-token=t");
    for time in times {
        let flag = format!("--discovery-{time}=");
        let given = flags.iter().find(|given| given.starts_with(&flag));
        options = options.flag(given.map_or(format!("{flag}{LONG}"), |given| (*given).to_owned()));
    }
    let mut server = options.prepare();
    server.launch();
    server
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Returns the first connection that starts with these bytes.
fn accept(listener: &TcpListener, first: &[u8]) -> TcpStream {
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut bytes = vec![0; first.len()];
        if stream.read_exact(&mut bytes).is_ok() && bytes == first {
            return stream;
        }
    }
}

/// Reads until the peer closes the connection.
fn read_to_its_end(stream: &mut TcpStream) {
    let mut piece = [0; 4096];
    // A reset connection counts as closed, too.
    while stream.read(&mut piece).is_ok_and(|count| count > 0) {}
}

/// Returns whether the peer keeps the connection open.
fn stays_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Waits until one member logs this line, and checks that the other member has not logged it.
async fn only_the_first_logs(one: &Server, other: &Server, what: &str) {
    eventually(what, async || one.log().contains(what).then_some(())).await;
    let log = other.log();
    assert!(!log.contains(what), "{log}");
}

async fn silent_peers_are_disconnected_after_the_read_timeout(kind: Kind) {
    const STREAM: &[u8] = b"GET /raft/stream/";
    let ((short_peer, short), (long_peer, long)) = (listener(), listener());
    let _patient = founder_with_peer(kind, &long, &format!("--raft-read-timeout={LONG}"));
    let mut long_stream = accept(&long_peer, STREAM);
    let begun = Instant::now();
    let _short = founder_with_peer(kind, &short, "--raft-read-timeout=5s");
    let mut short_stream = accept(&short_peer, STREAM);
    read_to_its_end(&mut short_stream);
    assert!(begun.elapsed() >= Duration::from_secs(5));
    assert!(stays_open(&mut long_stream));
}

async fn peers_that_do_not_read_are_disconnected_after_the_write_timeout(kind: Kind) {
    for (timeout, is_given_up) in [("5s", true), (LONG, false)] {
        let mut cluster = ClusterOptions::new(kind, 3)
            .flag(format!("--raft-read-timeout={LONG}"))
            .flag(format!("--raft-write-timeout={timeout}"))
            .start()
            .await;
        let (leader, follower) = (cluster.leader().await, cluster.follower().await);
        cluster.pause(follower).await;
        let paused = Instant::now();
        let value = vec![b'v'; 1 << 20];
        let given_up = "(i/o timeout)";
        let begun = Instant::now();
        // Write more than the system buffers for a peer that does not read.
        while !cluster.server(leader).log().contains(given_up)
            && (is_given_up || begun.elapsed() < Duration::from_secs(8))
        {
            cluster.client(leader).put(put("k", &*value)).await.unwrap();
            assert!(
                begun.elapsed() < DEADLINE,
                "the log does not contain {given_up:?} after {DEADLINE:?}"
            );
        }
        let log = cluster.server(leader).log();
        assert_eq!(log.contains(given_up), is_given_up, "{log}");
        assert!(!is_given_up || paused.elapsed() >= Duration::from_secs(5));
        cluster.resume(follower);
        cluster.settle().await;
    }
}

async fn discovery_requests_time_out(kind: Kind) {
    let (_silent, address) = listener();
    let patient = founder_at(kind, &address, &[]);
    let hasty = founder_at(kind, &address, &["--discovery-request-timeout=300ms"]);
    only_the_first_logs(&hasty, &patient, "retry connecting to discovery service").await;
}

async fn discovery_connections_time_out(kind: Kind) {
    // While the accept queue is full, a new connection is neither accepted nor refused.
    let deaf = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    bind(&deaf, &any).unwrap();
    listen(&deaf, 0).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&deaf).unwrap()).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
    }
    let patient = founder_at(kind, &address.to_string(), &[]);
    let hasty = founder_at(kind, &address.to_string(), &["--discovery-dial-timeout=300ms"]);
    only_the_first_logs(&hasty, &patient, "retry connecting to discovery service").await;
}

/// Reads an HTTP/2 frame, and returns its type and flags.
fn next_frame(stream: &mut TcpStream) -> Option<(u8, u8)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(len).unwrap()];
    stream.read_exact(&mut payload).ok()?;
    Some((head[3], head[4]))
}

async fn a_discovery_service_that_does_not_answer_pings_is_disconnected(kind: Kind) {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const SETTINGS_TAKEN: &[u8] = &[0, 0, 0, 4, 1, 0, 0, 0, 0];
    const PING: (u8, u8) = (6, 0);
    let ((short_registry, short), (long_registry, long)) = (listener(), listener());
    let _patient = founder_at(kind, &long, &["--discovery-keepalive-time=1s"]);
    let mut long_stream = accept(&long_registry, PREFACE);
    long_stream.write_all(&[SETTINGS, SETTINGS_TAKEN].concat()).unwrap();
    let hasty = ["--discovery-keepalive-time=1s", "--discovery-keepalive-timeout=1s"];
    let _hasty = founder_at(kind, &short, &hasty);
    let mut short_stream = accept(&short_registry, PREFACE);
    short_stream.write_all(&[SETTINGS, SETTINGS_TAKEN].concat()).unwrap();
    // The member sends a ping, gets no answer, and closes the connection.
    while next_frame(&mut short_stream)
        .expect("the member sends a ping before it closes the connection")
        != PING
    {}
    read_to_its_end(&mut short_stream);
    while next_frame(&mut long_stream).expect("the member sends a ping on the second connection")
        != PING
    {}
    assert!(stays_open(&mut long_stream));
    // A member with a long keepalive time must not send a ping while the test runs.
    let ((silent_registry, silent), rest) = (listener(), listener());
    let _silent = founder_at(kind, &silent, &[]);
    let mut stream = accept(&silent_registry, PREFACE);
    stream.write_all(&[SETTINGS, SETTINGS_TAKEN].concat()).unwrap();
    let _other = founder_at(kind, &rest.1, &hasty);
    let mut other = accept(&rest.0, PREFACE);
    other.write_all(&[SETTINGS, SETTINGS_TAKEN].concat()).unwrap();
    read_to_its_end(&mut other);
    stream.shutdown(Shutdown::Write).unwrap();
    while let Some(frame) = next_frame(&mut stream) {
        assert_ne!(frame, PING);
    }
}
