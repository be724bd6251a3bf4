//! Effects of flags that no other test covers: listeners for a single purpose, names that certificates must contain,
//! the timing and size of batches, measurements, and log lines.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::pki::{Credentials, Leaf};
use quorate_tests::{
    ClusterOptions, DEADLINE, Kind, Options, RawHttp2, Server, delete, eventually, get, get_op,
    on_both_servers, on_quorate, prefix, put, put_op, txn, within, write_op,
};
use quorate_tls::{Protocols, Suites, Version, Versions};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
use serde_json::Value;

use super::tls::Files;
use super::tls_hostile::{ask, ask_with};

on_both_servers! {
    alone:
    separate_listeners_serve_only_metrics_or_http,
    call_durations_are_measured_with_extensive_metrics,
    slow_calls_are_logged,
    client_certificates_need_an_allowed_name,
    peer_certificates_need_an_allowed_name,
    revoked_peer_certificates_are_refused,
    peers_without_a_certificate_are_refused_if_a_flag_requires_one,
    peers_at_addresses_missing_from_their_certificate_are_accepted_if_a_flag_permits_it,
    members_use_a_separate_client_certificate_for_peers,
    self_signed_certificates_have_the_configured_validity,
    tls_versions_outside_the_limits_are_refused,
    cipher_suites_that_are_not_selected_are_refused,
    heartbeats_are_sent_at_the_configured_interval,
    a_client_that_does_not_answer_pings_is_disconnected,
    a_port_is_shared_with_reuse_port,
    compactions_proceed_in_batches_with_pauses,
    backend_batches_are_committed_at_their_limit_or_interval,
    no_file_is_synced_with_unsafe_no_fsync,
}

on_quorate! {
    alone:
    founding_members_use_a_secured_discovery_service,
}

/// An HTTP/1.1 request that shows whether a listener answers.
const QUESTION: &str = "GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";

/// Returns the name that this kind of server uses for a flag. Some flags have a different name in etcd 3.5.
fn experimental(kind: Kind, flag: &str) -> String {
    match kind {
        Kind::Quorate => format!("--{flag}"),
        Kind::Etcd => format!("--experimental-{flag}"),
    }
}

/// Returns the fields of the first log line with this message.
async fn line(server: &Server, message: &str) -> Value {
    eventually(&format!("a line {message:?}"), async || {
        let log = server.log_of_this_run();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["msg"] == message)
    })
    .await
}

/// Converts a duration in Go's format to milliseconds. Supports only durations below one minute, which have a single
/// unit.
pub(crate) fn millis(text: &str) -> f64 {
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ns" => 1e-6,
        "µs" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        unit => panic!("{unit} in {text}"),
    };
    number.parse::<f64>().unwrap() * factor
}

async fn separate_listeners_serve_only_metrics_or_http(kind: Kind) {
    // These ports are reserved for other servers that never start.
    let [metrics, http] = [(); 2].map(|()| Options::new(kind).prepare());
    let metrics_url = format!("--listen-metrics-urls=http://127.0.0.1:{}", metrics.port());
    let http_url = format!("--listen-client-http-urls=http://127.0.0.1:{}", http.port());
    let server = Options::new(kind).flag(metrics_url).flag(http_url).start().await;
    server.client().put(put("k", "v")).await.unwrap();

    let status = |port: u16, path: &str| get(port, path).status;
    assert_eq!(["/metrics", "/health"].map(|path| status(metrics.port(), path)), [200, 200]);
    assert_eq!(["/version", "/debug/vars"].map(|path| status(metrics.port(), path)), [404, 404]);
    assert_eq!(["/version", "/metrics"].map(|path| status(http.port(), path)), [200, 200]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(QUESTION.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // HTTP is never served on the gRPC port.
    drop(stream.read_to_end(&mut answer));
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
}

async fn slow_calls_are_logged(kind: Kind) {
    // Debian's etcd does not have this flag, but logs all calls at level debug.
    let (flag, level) = match kind {
        Kind::Quorate => ("--warning-unary-request-duration=1ns", "warn"),
        Kind::Etcd => ("--log-level=debug", "debug"),
    };
    let server = Options::new(kind).flag(flag).start().await;
    let client = server.client();
    client.put(put("k", "value")).await.unwrap();
    client.put(put("k2", "value")).await.unwrap();
    client.range(prefix("k")).await.unwrap();
    client.txn(txn(vec![put_op("t", "v"), write_op(delete("u", ""))])).await.unwrap();
    client.txn(txn(vec![get_op("k")])).await.unwrap();
    client.delete_range(delete("k", "l")).await.unwrap();
    client.member_list(pb::MemberListRequest::default()).await.unwrap();
    let lines = eventually("a log line for each call", async || {
        let log = server.log_of_this_run();
        let lines = log.lines().filter(|line| line.contains("request stats"));
        let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        let is_last = |line: &Value| line["response type"] == "/etcdserverpb.Cluster/MemberList";
        lines.iter().any(is_last).then_some(lines)
    })
    .await;
    // Expected numbers of requests and responses, the size of the request, and its logged text, which contains no
    // values.
    let expected = [
        ("KV/Put", 1, 10, 0, "key:\"k\" value_size:5"),
        ("KV/Put", 1, 11, 0, "key:\"k2\" value_size:5"),
        ("KV/Range", 0, 6, 2, "key:\"k\" range_end:\"l\""),
        (
            "KV/Txn",
            2,
            8 + 5,
            0,
            "compare:<> success:<request_put:<key:\"t\" value_size:1 > request_delete_range:<key:\"u\" > > failure:<>",
        ),
        ("KV/Txn", 1, 5, 0, "compare:<> success:<request_range:<key:\"k\" > > failure:<>"),
        ("KV/DeleteRange", 0, 6, 2, "key:\"k\" range_end:\"l\""),
        ("Cluster/MemberList", -1, -1, -1, ""),
    ];
    let squeezed = |text: &Value| text.as_str().unwrap().replace(' ', "");
    for (line, (method, requests, request_bytes, responses, text)) in lines.iter().zip(expected) {
        assert_eq!(line["level"], level, "{line}");
        assert!(millis(line["time spent"].as_str().unwrap()) > 0.0);
        assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert_eq!(line["response type"], format!("/etcdserverpb.{method}"));
        assert_eq!(line["request count"], requests, "{line}");
        assert_eq!(line["request size"], request_bytes, "{line}");
        assert_eq!(line["response count"], responses, "{line}");
        let bytes = line["response size"].as_i64().unwrap();
        assert!(if responses < 0 { bytes == -1 } else { bytes > 10 }, "{line}");
        // Versions of etcd differ only in their use of spaces.
        assert_eq!(squeezed(&line["request content"]), text.replace(' ', ""), "{line}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
}

async fn call_durations_are_measured_with_extensive_metrics(kind: Kind) {
    for (flag, is_there) in [("--metrics=basic", false), ("--metrics=extensive", true)] {
        let server = Options::new(kind).flag(flag).start().await;
        server.client().put(put("k", "v")).await.unwrap();
        let text = server.get("/metrics").text();
        assert_eq!(text.contains("\ngrpc_server_handling_seconds_bucket{"), is_there, "{flag}");
    }
}

/// Returns whether the client or peer port answers a client with this certificate.
async fn is_answered(port: u16, files: &Files, shown: &Credentials) -> bool {
    ask(port, files, Some(shown), QUESTION)
        .await
        .is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
}

async fn client_certificates_need_an_allowed_name(kind: Kind) {
    let files = Files::new();
    let flag = "--client-cert-allowed-hostname=good.test";
    let server = files.closed(kind).flag(flag).start().await;
    let good = Leaf { hosts: vec!["good.test".to_owned()], ..Leaf::new("someone") };
    let bad = Leaf { hosts: vec!["bad.test".to_owned()], ..Leaf::new("good.test") };
    assert!(is_answered(server.port(), &files, &files.authority.sign(&good)).await);
    assert!(!is_answered(server.port(), &files, &files.authority.sign(&bad)).await);
}

async fn peer_certificates_need_an_allowed_name(kind: Kind) {
    let files = Files::new();
    let own = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "good.test".to_owned()];
    // The member's own certificate contains the allowed name.
    files.write("server", &Leaf { hosts: own.clone(), ..Leaf::new("member") });
    for (flag, good, bad) in [
        ("--peer-cert-allowed-cn=member", Leaf::new("member"), Leaf::new("another")),
        (
            "--peer-cert-allowed-hostname=good.test",
            Leaf { hosts: own, ..Leaf::new("another") },
            Leaf::new("good.test"),
        ),
    ] {
        let server = files.peers(Options::new(kind)).flag(flag).start().await;
        let [good, bad] = [good, bad].map(|leaf| files.authority.sign(&leaf));
        assert!(is_answered(server.peer_port(), &files, &good).await, "{flag}");
        assert!(!is_answered(server.peer_port(), &files, &bad).await, "{flag}");
    }
}

async fn revoked_peer_certificates_are_refused(kind: Kind) {
    let files = Files::new();
    std::fs::write(files.path("list"), files.authority.revoke(&[7])).unwrap();
    let flag = format!("--peer-crl-file={}", files.text("list"));
    let server = files.peers(Options::new(kind)).flag(flag).start().await;
    for (serial, is_accepted) in [(8, true), (7, false)] {
        let shown = files.authority.sign(&Leaf { serial, ..Leaf::new("peer") });
        assert_eq!(is_answered(server.peer_port(), &files, &shown).await, is_accepted, "{serial}");
    }
}

/// No CA is configured, because with a CA, certificates would be required even without `--peer-client-cert-auth`.
async fn peers_without_a_certificate_are_refused_if_a_flag_requires_one(kind: Kind) {
    let files = Files::new();
    for is_required in [false, true] {
        let server = Options::new(kind)
            .secured_peers()
            .flag(format!("--peer-cert-file={}", files.text("server")))
            .flag(format!("--peer-key-file={}", files.text("server.key")))
            .flag(format!("--peer-client-cert-auth={is_required}"))
            .start()
            .await;
        let answer = ask(server.peer_port(), &files, None, QUESTION).await;
        let is_answered = answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"));
        assert_eq!(is_answered, !is_required);
    }
}

async fn peers_at_addresses_missing_from_their_certificate_are_accepted_if_a_flag_permits_it(
    kind: Kind,
) {
    let files = Files::new();
    let elsewhere = Leaf { hosts: vec!["127.0.0.9".to_owned()], ..Leaf::new("peer") };
    let elsewhere = files.authority.sign(&elsewhere);
    for is_wanted in [false, true] {
        let flag = experimental(kind, "peer-skip-client-san-verification");
        let options = files.peers(Options::new(kind)).flag(format!("{flag}={is_wanted}"));
        let server = options.start().await;
        assert_eq!(is_answered(server.peer_port(), &files, &elsewhere).await, is_wanted);
    }
}

async fn members_use_a_separate_client_certificate_for_peers(kind: Kind) {
    let files = Files::new();
    // With only their server certificates, the members cannot connect to each other.
    files.write("server", &Leaf { for_clients: false, ..Leaf::new("serves") });
    files.write("dials", &Leaf { for_servers: false, ..Leaf::new("dials") });
    let mut servers = ["a", "b"].map(|name| {
        let options = files.peers(Options::new(kind).name(name).timing(50, 500));
        options
            .flag(format!("--peer-client-cert-file={}", files.text("dials")))
            .flag(format!("--peer-client-key-file={}", files.text("dials.key")))
            .prepare()
    });
    let words = servers.each_ref().map(|one| format!("{}={}", one.name(), one.peer_url()));
    for server in &mut servers {
        server.set_cluster(words.join(","), false);
        server.launch();
    }
    for server in &mut servers {
        within("the member is ready", server.ready()).await.unwrap();
    }
    for server in &servers {
        server.client().put(put("k", "v")).await.unwrap();
    }
}

async fn self_signed_certificates_have_the_configured_validity(kind: Kind) {
    let flag = "--self-signed-cert-validity=3";
    let server = Options::new(kind).secured().flag("--auto-tls").flag(flag).start().await;
    let made = server.data().join("fixtures/client/cert.pem");
    let (_, pem) = x509_parser::pem::parse_x509_pem(&std::fs::read(made).unwrap()).unwrap();
    let validity = pem.parse_x509().unwrap().validity().clone();
    let days = (validity.not_after.timestamp() - validity.not_before.timestamp()) / 86_400;
    assert!((3 * 365..=3 * 366).contains(&days), "{days}");
}

async fn tls_versions_outside_the_limits_are_refused(kind: Kind) {
    let files = Files::new();
    for (flag, only) in
        [("--tls-max-version=TLS1.2", Version::Tls12), ("--tls-min-version=TLS1.3", Version::Tls13)]
    {
        let server = files.server(kind).flag(flag).start().await;
        for version in [Version::Tls12, Version::Tls13] {
            let versions = Versions { min: version, max: version };
            let protocols = Protocols { versions, ..Protocols::default() };
            let is_accepted = is_answered_with(&server, &files, protocols).await;
            assert_eq!(is_accepted, version == only, "{flag}: {version:?}");
        }
    }
}

async fn cipher_suites_that_are_not_selected_are_refused(kind: Kind) {
    const SELECTED: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    const OTHER: &str = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
    let files = Files::new();
    let flag = format!("--cipher-suites={SELECTED}");
    let server = files.server(kind).flag(flag).start().await;
    for (suite, is_selected) in [(SELECTED, true), (OTHER, false)] {
        let versions = Versions { min: Version::Tls12, max: Version::Tls12 };
        let protocols = Protocols { versions, suites: Suites::named([suite]).unwrap() };
        assert_eq!(is_answered_with(&server, &files, protocols).await, is_selected, "{suite}");
    }
}

async fn is_answered_with(server: &Server, files: &Files, protocols: Protocols) -> bool {
    let answer = ask_with(server.port(), files, None, protocols, QUESTION).await;
    answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
}

async fn heartbeats_are_sent_at_the_configured_interval(kind: Kind) {
    let mut clusters = Vec::new();
    for interval in [20, 1_000] {
        let cluster = ClusterOptions::new(kind, 2).timing(interval, 5_000).start().await;
        cluster.settle().await;
        let leader = cluster.leader().await;
        clusters.push((cluster, leader));
    }
    let sent = || {
        [0, 1].map(|number: usize| {
            let (cluster, leader) = &clusters[number];
            bytes_sent_to_peers(cluster.server(*leader))
        })
    };
    let before = sent();
    let [frequent, rare] = eventually("many heartbeats are sent", async || {
        let now = sent();
        let growth = [now[0] - before[0], now[1] - before[1]];
        (growth[0] >= 10_000.0).then_some(growth)
    })
    .await;
    assert!(
        rare * 5.0 < frequent,
        "{rare} bytes were sent with rare heartbeats, {frequent} with frequent ones"
    );
}

fn bytes_sent_to_peers(server: &Server) -> f64 {
    const SERIES: &str = "etcd_network_peer_sent_bytes_total{";
    let metrics = server.get("/metrics").text();
    let lines = metrics.lines().filter(|line| line.starts_with(SERIES));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

async fn a_client_that_does_not_answer_pings_is_disconnected(kind: Kind) {
    let server = Options::new(kind)
        .flag("--grpc-keepalive-interval=1s")
        .flag("--grpc-keepalive-timeout=1s")
        .start()
        .await;
    let begun = Instant::now();
    // The client only reads, and sends nothing, until the server closes the connection or the test times out.
    let mut client = RawHttp2::connect(server.port());
    client.read_farewell();
    let took = begun.elapsed();
    assert!((Duration::from_millis(1_500)..DEADLINE).contains(&took), "{took:?}");
}

async fn a_port_is_shared_with_reuse_port(kind: Kind) {
    for is_wanted in [false, true] {
        let flag = format!("--socket-reuse-port={is_wanted}");
        let server = Options::new(kind).flag(flag).start().await;
        let second = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseport(&second, true).unwrap();
        let address = std::net::SocketAddrV4::new([127, 0, 0, 1].into(), server.port());
        let shared = bind(&second, &address).and_then(|()| listen(&second, 1));
        assert_eq!(shared.is_ok(), is_wanted, "{shared:?}");
    }
}

async fn compactions_proceed_in_batches_with_pauses(kind: Kind) {
    const REVISIONS: i64 = 50;
    const STEPS: &str = "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds_count";
    for (limit, is_in_steps) in [(10, true), (1_000, false)] {
        let server = Options::new(kind)
            .flag(format!("{}={limit}", experimental(kind, "compaction-batch-limit")))
            .flag(format!("{}=50ms", experimental(kind, "compaction-sleep-interval")))
            .start()
            .await;
        let client = server.client();
        for _ in 0..REVISIONS {
            client.put(put("k", "v")).await.unwrap();
        }
        client
            .compact(pb::CompactionRequest { revision: REVISIONS, physical: true })
            .await
            .unwrap();
        let line = line(&server, "finished scheduled compaction").await;
        let took = millis(line["took"].as_str().unwrap());
        let steps = server.metric(STEPS).unwrap();
        assert_eq!(steps >= 4.0, is_in_steps, "{steps} steps with at most {limit} revisions each");
        assert!(
            !is_in_steps || took >= 3.0 * 50.0,
            "the compaction took only {took} ms, so it did not pause between steps"
        );
    }
}

async fn backend_batches_are_committed_at_their_limit_or_interval(kind: Kind) {
    const COMMITS: &str = "etcd_disk_backend_commit_duration_seconds_count";
    let commits = |server: &Server| server.metric(COMMITS).unwrap();
    let start = async |interval: &str, limit: u32| {
        let interval = format!("--backend-batch-interval={interval}");
        let limit = format!("--backend-batch-limit={limit}");
        Options::new(kind).flag(interval).flag(limit).start().await
    };
    let server = start("1h", 10).await;
    let before = commits(&server);
    for _ in 0..100 {
        server.client().put(put("k", "v")).await.unwrap();
    }
    eventually("full batches are committed", async || {
        (commits(&server) >= before + 5.0).then_some(())
    })
    .await;
    let server = start("1s", 1_000_000).await;
    let (before, begun) = (commits(&server), Instant::now());
    for number in 1..=3 {
        server.client().put(put("k", "v")).await.unwrap();
        let due = before + f64::from(number);
        eventually("the batch is committed", async || (commits(&server) >= due).then_some(()))
            .await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
}

async fn no_file_is_synced_with_unsafe_no_fsync(kind: Kind) {
    const SYNCS: &str = "etcd_disk_wal_fsync_duration_seconds_count";
    for is_wanted in [false, true] {
        let flag = format!("--unsafe-no-fsync={is_wanted}");
        let server = Options::new(kind).flag(flag).start().await;
        let before = server.metric(SYNCS).unwrap();
        for _ in 0..10 {
            server.client().put(put("k", "v")).await.unwrap();
        }
        let synced = server.metric(SYNCS).unwrap() - before;
        assert_eq!(synced >= 10.0, !is_wanted, "{synced}");
    }
}

async fn founding_members_use_a_secured_discovery_service(kind: Kind) {
    for registry in [Kind::Quorate, Kind::Etcd] {
        if registry.is_present() {
            let registry = Options::new(registry).guarded().start().await;
            let ca = registry.guard_dir().join("ca");
            found_at(&registry, kind, "trusting", &format!("--discovery-cacert={}", ca.display()))
                .await;
            found_at(&registry, kind, "blind", "--discovery-insecure-skip-tls-verify").await;
        }
    }
}

async fn found_at(registry: &Server, kind: Kind, token: &str, trust: &str) {
    let client = registry.client();
    client.put(put(format!("/_etcd/registry/{token}/_config/size"), "1")).await.unwrap();
    let dir = registry.guard_dir();
    let path = |name: &str| dir.join(name).display().to_string();
    let who = registry.user_of_tools().unwrap();
    let (user, password) = who.split_once(':').unwrap();
    let founder = Options::new(kind)
        .unguarded()
        .name("founder")
        .flag("--initial-cluster=")
        .flag(format!("--discovery-endpoints={}", registry.listen_url()))
        .flag(format!("--discovery-token={token}"))
        .flag("--discovery-insecure-transport=false")
        .flag(trust)
        .flag(format!("--discovery-cert={}", path("client")))
        .flag(format!("--discovery-key={}", path("client.key")))
        .flag(format!("--discovery-user={user}"))
        .flag(format!("--discovery-password={password}"))
        .start()
        .await;
    founder.client().put(put("k", "v")).await.unwrap();
    let registered =
        client.range(prefix(format!("/_etcd/registry/{token}/members/"))).await.unwrap();
    let urls = format!("founder={}", founder.peer_url());
    assert_eq!(registered.kvs[0].value(), urls.as_bytes());
}
