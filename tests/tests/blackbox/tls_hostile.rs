//! Hostile input on a TLS port: other clients are still served, memory stays bounded, and the log contains each reason
//! without being flooded.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

use quorate_tests::pki::{Credentials, Leaf};
use quorate_tests::{
    DEADLINE, Kind, Options, Random, Server, eventually, is_long, on_both_servers, on_quorate,
};
use quorate_tls::{Allowed, Connector, ConnectorSettings, Pair, Protocols, ServerCheck, Trust};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::tls::{Files, ctl, tools};

on_both_servers! {
    alone:
    invalid_client_certificates_are_refused,
    peers_must_connect_from_an_address_in_their_certificate,
    a_refused_certificate_causes_the_same_tls_alert_as_in_go_and_a_log_line,
    invalid_handshakes_do_not_delay_other_clients,
    half_open_handshakes_do_not_delay_other_clients,
}

on_quorate! {
    alone:
    incomplete_handshakes_and_headers_are_aborted,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Start of a handshake that is never completed.
const BEGUN: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

/// Returns client certificates that every server must refuse, with the reasons.
fn not_in_order(files: &Files) -> Vec<(&'static str, Credentials)> {
    let now = SystemTime::now();
    let client = || Leaf::new("someone");
    let sign = |leaf: Leaf| files.authority.sign(&leaf);
    vec![
        ("expired", sign(Leaf { from: now - DAY * 2, until: now - DAY, ..client() })),
        ("not valid yet", sign(Leaf { from: now + DAY, ..client() })),
        ("for servers only", sign(Leaf { for_clients: false, ..client() })),
        ("self-signed", client().self_signed()),
        ("of an unknown authority", Files::new().authority.sign(&client())),
        ("revoked", sign(Leaf { serial: 7, ..client() })),
    ]
}

/// Returns the number of refused connections that have their own log lines, and the number of refused connections that
/// the log only counts.
fn rejections(server: &Server) -> (usize, u64) {
    let log = server.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("rejected connection")).collect();
    let left_out = lines.iter().filter_map(|line| {
        let (_, rest) = line.split_once("\"lines-left-out\":")?;
        rest.split(|char: char| !char.is_ascii_digit()).next()?.parse::<u64>().ok()
    });
    (lines.len(), left_out.sum())
}

async fn invalid_client_certificates_are_refused(kind: Kind) {
    let files = Files::new();
    std::fs::write(files.path("list"), files.authority.revoke(&[7])).unwrap();
    let crl = format!("--client-crl-file={}", files.text("list"));
    let server = files.closed(kind).flag(crl).start().await;
    let cases = not_in_order(&files);
    for tool in tools() {
        let put = |name: &str, timeouts: &[&str]| {
            let [ca, cert, key] = files.shown(name);
            let words = [timeouts, &[&ca, &cert, &key, "put", "k", "v"]].concat();
            ctl(tool, &server.url(), &words)
        };
        for (why, credentials) in &cases {
            credentials.write(&files.path(""), "bad");
            // A refused tool retries until its timeout.
            let refused = put("bad", &["--command-timeout=1s", "--dial-timeout=1s"]);
            assert_ne!(refused.code, Some(0), "{why}: {refused:?}");
            assert_eq!(put("client", &[]).success(), "OK\n", "{why}");
        }
    }
    let (logged, left_out) = rejections(&server);
    assert!(logged > 0, "{}", server.log());
    if kind == Kind::Quorate {
        // Each refusal is logged or counted. Clients retry until their timeout.
        let refused = cases.len() * tools().len();
        assert!(
            logged as u64 + left_out + 1 >= refused as u64,
            "{logged} refusals were logged, {left_out} were omitted"
        );
    }
    assert!(!server.log().contains("PRIVATE KEY"));
}

async fn a_refused_certificate_causes_the_same_tls_alert_as_in_go_and_a_log_line(kind: Kind) {
    let files = Files::new();
    let named = "--client-cert-allowed-hostname=elsewhere.example";
    let mut server = files.closed(kind).flag(named).prepare();
    server.launch();
    let (cert, key) = files.authority.sign(&Leaf::new("someone")).write(&files.path(""), "shown");
    let connector = Connector::new(ConnectorSettings {
        pair: Some(Pair::new(cert, key)),
        protocols: Protocols::default(),
        check: ServerCheck::Verify(Trust::File(files.path("ca"))),
        allowed: Allowed::All,
        http2: false,
        server_name: Some("localhost".to_owned()),
    })
    .unwrap();
    let error = eventually("a refusal", async || {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.ok()?;
        match connector.connect(Some("localhost"), stream).await {
            Err(error) => Some(error.to_string()),
            Ok(mut stream) => Some(stream.read_u8().await.unwrap_err().to_string()),
        }
    })
    .await;
    assert!(error.contains("BadCertificate") || error.contains("bad certificate"), "{error}");
    let line = eventually("a log line about the refused connection", async || {
        let log = server.log();
        let mut lines = log.lines().filter(|line| line.contains("rejected connection"));
        lines
            .find(|line| line.contains("client certificate authentication failed"))
            .map(str::to_owned)
    })
    .await;
    for shown in [
        r#""server-name":"localhost""#,
        r#""ip-addresses":["127.0.0.1"]"#,
        r#""dns-names":["localhost"]"#,
    ] {
        assert!(line.contains(shown), "{line}");
    }
}

/// Connects with or without a certificate and sends bytes. Returns the first bytes of the answer.
pub(crate) async fn ask(
    port: u16,
    files: &Files,
    shown: Option<&Credentials>,
    said: &str,
) -> std::io::Result<Vec<u8>> {
    ask_with(port, files, shown, Protocols::default(), said).await
}

/// Connects and offers only these protocols.
pub(crate) async fn ask_with(
    port: u16,
    files: &Files,
    shown: Option<&Credentials>,
    protocols: Protocols,
    said: &str,
) -> std::io::Result<Vec<u8>> {
    let pair = shown.map(|shown| {
        let (cert, key) = shown.write(&files.path(""), "asking");
        Pair::new(cert, key)
    });
    let connector = Connector::new(ConnectorSettings {
        pair,
        protocols,
        check: ServerCheck::Verify(Trust::File(files.path("ca"))),
        allowed: Allowed::All,
        http2: false,
        server_name: None,
    })
    .unwrap();
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let stream = connector.connect(Some("127.0.0.1"), stream).await;
    let mut stream = stream.map_err(std::io::Error::other)?;
    stream.write_all(said.as_bytes()).await?;
    let mut answer = vec![0; 1024];
    let count = tokio::time::timeout(DEADLINE, stream.read(&mut answer)).await??;
    answer.truncate(count);
    Ok(answer)
}

async fn peers_must_connect_from_an_address_in_their_certificate(kind: Kind) {
    let files = Files::new();
    let server = files.peers(Options::new(kind)).start().await;
    let question = "GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let right = files.authority.sign(&Leaf::new("peer"));
    let elsewhere = Leaf { hosts: vec!["127.0.0.9".to_owned()], ..Leaf::new("peer") };
    let elsewhere = files.authority.sign(&elsewhere);
    let mut cases = not_in_order(&files);
    // No revocation list is configured for peers.
    cases.retain(|(why, _)| *why != "revoked");
    cases.push(("from elsewhere", elsewhere));
    let is_answered = async |shown| {
        let answer = ask(server.peer_port(), &files, shown, question).await;
        answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
    };
    assert!(is_answered(Some(&right)).await);
    assert!(!is_answered(None).await);
    for (why, credentials) in &cases {
        assert!(!is_answered(Some(credentials)).await, "{why}");
        assert!(is_answered(Some(&right)).await, "{why}");
    }
    assert!(rejections(&server).0 > 0, "{}", server.log());
}

/// Returns a complete ClientHello as a library sends it.
async fn hello(files: &Files) -> Vec<u8> {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let connector = Connector::new(ConnectorSettings {
        pair: None,
        protocols: Protocols::default(),
        check: ServerCheck::Verify(Trust::File(files.path("ca"))),
        allowed: Allowed::All,
        http2: true,
        server_name: None,
    })
    .unwrap();
    let mut bytes = vec![0; 1 << 14];
    let read = async {
        let count = far.read(&mut bytes).await.unwrap();
        drop(far);
        count
    };
    let (_, count) = tokio::join!(connector.connect(Some("localhost"), near), read);
    bytes.truncate(count);
    bytes
}

async fn invalid_handshakes_do_not_delay_other_clients(kind: Kind) {
    let files = Files::new();
    let server = files.closed(kind).start().await;
    let (hello, mut random) = (hello(&files).await, Random::by_chance());
    let mut said: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        vec![0; 4096],
        // These records are an alert, application data, and a record of unknown type, all before any handshake.
        b"\x15\x03\x03\x00\x02\x02\x28".to_vec(),
        b"\x17\x03\x03\x00\x01\x00".to_vec(),
        b"\xff\x03\x03\x00\x01\x00".to_vec(),
        // The longest record, and a handshake message of 16 MiB.
        [&b"\x16\x03\x01\xff\xff"[..], &[1; 70_000]].concat(),
        [&b"\x16\x03\x01\x40\x00\x01\xff\xff\xff"[..], &[0; 16_380]].concat(),
        // These are ClientHello messages of SSL 2 and TLS 1.0.
        b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10".to_vec(),
        [&b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x01"[..], &[7; 34]].concat(),
    ];
    for _ in 0..if is_long() { 5_000 } else { 200 } {
        let mut bytes = hello.clone();
        for _ in 0..=random.below(3) {
            let place = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[place] ^= 1 << random.below(8);
        }
        said.push(bytes);
    }
    for bytes in &said {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        // A client that is refused early cannot send the rest.
        drop(stream.write_all(bytes));
    }
    let [ca, cert, key] = files.shown("client");
    for tool in tools() {
        let put = || ctl(tool, &server.url(), &[&ca, &cert, &key, "put", "k", "v"]);
        // The server may take a while to process everything.
        eventually("a write", async || (put().code == Some(0)).then_some(())).await;
    }
    eventually("a log line about the refused connection", async || {
        (rejections(&server).0 > 0).then_some(())
    })
    .await;
    let log = server.log();
    assert!(!log.contains("panicked at"), "{log}");
    if kind == Kind::Quorate {
        assert!(rejections(&server).0 < said.len() / 2, "the log is flooded: {log}");
    }
}

/// Opens connections with an incomplete handshake.
fn open_incomplete_handshakes(server: &Server, count: usize) -> Vec<TcpStream> {
    (0..count)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            stream.write_all(BEGUN).unwrap();
            stream
        })
        .collect()
}

async fn half_open_handshakes_do_not_delay_other_clients(kind: Kind) {
    let files = Files::new();
    let server = files.closed(kind).start().await;
    let [ca, cert, key] = files.shown("client");
    let before = server.memory("VmRSS");
    let count = if is_long() { 10_000 } else { 1_000 };
    let held = open_incomplete_handshakes(&server, count);
    let mut longest = Duration::ZERO;
    for tool in tools() {
        let start = Instant::now();
        let put = ctl(tool, &server.url(), &[&ca, &cert, &key, "put", "k", "v"]);
        assert_eq!(put.success(), "OK\n");
        longest = longest.max(start.elapsed());
    }
    let grown = server.memory("VmRSS").saturating_sub(before);
    show(&format!("{count} half-open handshakes, {kind:?}: {} MiB, {longest:?}", grown >> 20));
    if kind == Kind::Quorate {
        let bound = count as u64 * (48 << 10) + (16 << 20);
        assert!(grown < bound, "memory grew by {grown} bytes for {count} connections");
    }
    drop(held);
}

#[expect(clippy::print_stdout, reason = "the test prints a measured figure")]
fn show(text: &str) {
    println!("{text}");
}

/// Waits until a server closes a connection.
async fn end_of(mut stream: impl tokio::io::AsyncRead + Unpin) {
    let mut answer = [0; 256];
    let ended = tokio::time::timeout(DEADLINE, async {
        while stream.read(&mut answer).await.is_ok_and(|count| count > 0) {}
    });
    assert!(ended.await.is_ok(), "the connection remains open");
}

async fn incomplete_handshakes_and_headers_are_aborted(kind: Kind) {
    let files = Files::new();
    let server = files.server(kind).start().await;
    let mut slow = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mut stream =
            tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
        slow.spawn_local(async move {
            // Sending one byte at a time does not extend the timeout.
            for byte in BEGUN {
                if stream.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            end_of(stream).await;
        });
    }
    for said in ["G", "GET /version HTTP/1.1\r\nHost: x\r\nX: "] {
        let connector = Connector::new(ConnectorSettings {
            pair: None,
            protocols: Protocols::default(),
            check: ServerCheck::Verify(Trust::File(files.path("ca"))),
            allowed: Allowed::All,
            http2: false,
            server_name: None,
        })
        .unwrap();
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
        let mut stream = connector.connect(Some("127.0.0.1"), stream).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        slow.spawn_local(end_of(stream));
    }
    let ca = format!("--cacert={}", files.text("ca"));
    for tool in tools() {
        assert_eq!(ctl(tool, &server.url(), &[&ca, "put", "k", "v"]).success(), "OK\n");
    }
    while let Some(ended) = slow.join_next().await {
        ended.unwrap();
    }
    let (logged, left_out) = rejections(&server);
    // Connections that are closed together share a log line, which contains the number of omitted lines.
    assert!(
        (1..=50).contains(&logged),
        "{logged} refusals were logged, {left_out} were omitted: {}",
        server.log()
    );
    server.wait_for_log("the handshake took longer than 10 s").await;
}
