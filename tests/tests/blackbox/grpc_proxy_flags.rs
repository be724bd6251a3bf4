//! Flags of `etcd grpc-proxy` whose effects are visible from outside.

use std::collections::BTreeSet;
use std::process::Command;

use quorate_api::etcdserverpb as pb;
use quorate_tests::pki::Leaf;
use quorate_tests::{
    Cluster, ClusterOptions, Kind, Port, Proxy, RawHttp2, Server, TIMEOUT, Tool, call_head,
    eventually, eventually_ok, eventually_within, key, on_both_servers, on_quorate, put, request,
};

use crate::tls::{Files, ctl};

on_both_servers! {
    alone:
    metrics_may_have_a_separate_listener,
    clients_with_revoked_certificates_are_refused,
    the_proxy_does_not_start_without_srv_records,
    member_certificates_are_refused_without_system_cas,
}

on_quorate! {
    alone:
    endpoints_auto_sync_follows_the_member_list,
    serializable_ranges_never_return_an_older_revision,
    probes_are_answered_while_all_client_connections_of_the_proxy_are_in_use,
}

async fn metrics_may_have_a_separate_listener(kind: Kind) {
    let files = Files::new();
    let server = Server::start(kind).await;
    let (plain, secured) = (Port::free(), Port::free());
    let flag = format!("--metrics-addr=http://127.0.0.1:{}", plain.number());
    let proxy = Proxy::start(kind, &[server.port()], &[&flag]).await;
    proxy.client().write("a", "1").await;
    for (path, said) in [
        ("/metrics", "etcd_server_has_leader 1"),
        ("/proxy/metrics", "etcd_grpc_proxy_cache_hits_total"),
        ("/health", "\"health\":\"true\""),
        ("/proxy/health", "\"health\":\"true\""),
    ] {
        let answer = request(plain.number(), "GET", path, "");
        assert!(answer.status == 200 && answer.text().contains(said), "{path}: {answer:?}");
    }
    assert_eq!(request(plain.number(), "GET", "/debug/pprof/cmdline", "").status, 404);
    // The metrics listener serves nothing else.
    let client = quorate_tests::Client::new(plain.number());
    assert!(client.range(key("a")).await.is_err());
    // The metrics listener uses the proxy's own certificate.
    let flags = [
        format!("--metrics-addr=https://127.0.0.1:{}", secured.number()),
        format!("--cert-file={}", files.text("server")),
        format!("--key-file={}", files.text("server.key")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let _proxy = Proxy::launch(kind, &[server.port()], &flags);
    eventually("the proxy responds over TLS", async || {
        let said = "GET /proxy/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let asked = crate::tls_hostile::ask(secured.number(), &files, None, said).await;
        asked.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200")).then_some(())
    })
    .await;
    if kind == Kind::Quorate {
        // etcd's proxy only logs this error and continues without the listener.
        let mut command = Command::new(kind.program());
        command.args([
            "grpc-proxy",
            "start",
            "--listen-addr=127.0.0.1:0",
            "--metrics-addr=127.0.0.1",
        ]);
        command.arg(format!("--endpoints=127.0.0.1:{}", server.port()));
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    }
}

async fn clients_with_revoked_certificates_are_refused(kind: Kind) {
    let files = Files::new();
    let server = Server::start(kind).await;
    files.write("revoked", &Leaf { serial: 7, ..Leaf::new("somebody") });
    std::fs::write(files.path("list"), files.authority.revoke(&[7])).unwrap();
    let flags = [
        format!("--cert-file={}", files.text("server")),
        format!("--key-file={}", files.text("server.key")),
        format!("--trusted-ca-file={}", files.text("ca")),
        format!("--client-crl-file={}", files.text("list")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let proxy = Proxy::launch(kind, &[server.port()], &flags);
    let put = |name: &str| {
        let [ca, cert, key] = files.shown(name);
        let words =
            ["--command-timeout=1s", "--dial-timeout=1s", &ca, &cert, &key, "put", "a", "1"];
        ctl(Tool::QuorateCtl, &format!("127.0.0.1:{}", proxy.port()), &words)
    };
    eventually("other clients are served", async || (put("client").code == Some(0)).then_some(()))
        .await;
    assert_ne!(put("revoked").code, Some(0));
    assert_eq!(put("client").code, Some(0));
}

async fn member_certificates_are_refused_without_system_cas(kind: Kind) {
    let files = Files::new();
    let server = files.server(kind).start().await;
    let (empty, listen) = (tempfile::tempdir().unwrap(), Port::free());
    let start = |flags: &[&str]| {
        let mut command = Command::new(kind.program());
        command.args(["grpc-proxy", "start"]).args(flags);
        command.arg(format!("--listen-addr=127.0.0.1:{}", listen.number()));
        command.arg(format!("--endpoints={}", server.url()));
        // These variables replace the system's CA files in both programs.
        command.env("SSL_CERT_DIR", empty.path()).env("SSL_CERT_FILE", empty.path().join("none"));
        let log = std::fs::File::create(empty.path().join("log")).unwrap();
        command.current_dir(empty.path()).stderr(log.try_clone().unwrap()).stdout(log);
        Running(command.spawn().unwrap())
    };
    let put = || {
        let words = ["--command-timeout=1s", "--dial-timeout=1s", "put", "a", "1"];
        ctl(Tool::QuorateCtl, &format!("127.0.0.1:{}", listen.number()), &words).code == Some(0)
    };
    let log = || std::fs::read_to_string(empty.path().join("log")).unwrap();
    // With a CA file, the proxy verifies the member's certificate. etcd's proxy then also requires a certificate of its
    // own.
    let named = (kind == Kind::Quorate).then(|| format!("--cacert={}", files.text("ca")));
    for flag in named.into_iter().chain(["--insecure-skip-tls-verify".to_owned()]) {
        let _running = start(&[&flag]);
        eventually("a write is accepted", async || put().then_some(())).await;
    }
    let mut running = start(&[]);
    let (ended, said) = eventually("a refusal", async || {
        assert!(!put(), "a write reached a member whose certificate was not verified");
        let (ended, said) = (running.0.try_wait().unwrap(), log());
        let is_refused = ended.is_some() || said.contains("unknown authority");
        is_refused.then_some((ended, said))
    })
    .await;
    if kind == Kind::Quorate {
        assert_eq!(ended.and_then(|ended| ended.code()), Some(1), "{said}");
        assert!(said.contains("--cacert"), "the message names the flag to set: {said}");
    }
}

/// A process that is killed when the value is dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may already have exited.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn probes_are_answered_while_all_client_connections_of_the_proxy_are_in_use(kind: Kind) {
    let server = Server::start(kind).await;
    let (clients, metrics) = (Port::free(), Port::free());
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -n 200; exec \"$@\"", "limited"]).arg(kind.program());
    command.args(["grpc-proxy", "start"]);
    command.arg(format!("--endpoints={}", server.url()));
    command.arg(format!("--listen-addr=127.0.0.1:{}", clients.number()));
    command.arg(format!("--metrics-addr=http://127.0.0.1:{}", metrics.number()));
    let log = std::fs::File::create(home.path().join("log")).unwrap();
    command.current_dir(home.path()).stderr(log.try_clone().unwrap()).stdout(log);
    let _running = Running(command.spawn().unwrap());
    eventually("the proxy listens", async || {
        std::net::TcpStream::connect(("127.0.0.1", metrics.number())).ok()
    })
    .await;
    let held: Vec<RawHttp2> = (0..80)
        .map(|_| {
            let mut connection = RawHttp2::connect(clients.number());
            // A connection with a call in progress is not closed to make room for another one.
            connection.open(&call_head("/etcdserverpb.Watch/Watch"));
            connection
        })
        .collect();
    eventually("all client connections are in use", async || {
        let log = std::fs::read_to_string(home.path().join("log")).unwrap();
        log.contains("the connection limit is reached").then_some(())
    })
    .await;
    assert_eq!(request(metrics.number(), "GET", "/proxy/health", "").status, 200);
    drop(held);
}

/// Returns the members that answer, according to the headers of their answers.
async fn who_answers(proxy: &Proxy) -> BTreeSet<u64> {
    let client = proxy.client();
    let mut members = BTreeSet::new();
    for _ in 0..12 {
        if let Ok(answer) = client.range(key("a")).await {
            members.insert(answer.header.unwrap().member_id);
        }
    }
    members
}

async fn endpoints_auto_sync_follows_the_member_list(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    // The proxy starts with the endpoint of a single member.
    let port = [cluster.server(0).port()];
    let flags = ["--endpoints-auto-sync-interval=1s"];
    let (following, other) =
        (Proxy::start(kind, &port, &flags).await, Proxy::start(kind, &port, &[]).await);
    eventually_within(TIMEOUT, "all members receive requests", async || {
        (who_answers(&following).await.len() == 3).then_some(())
    })
    .await;
    assert_eq!(who_answers(&other).await.len(), 1);
    following.wait_for_log("endpoints have changed").await;
    assert!(!other.log().contains("endpoints have changed"));
    cluster.kill(0);
    let client = following.client();
    eventually_ok(TIMEOUT, "a write", async || client.put(put("a", "1")).await).await;
    assert!(who_answers(&other).await.is_empty());
}

async fn serializable_ranges_never_return_an_older_revision(kind: Kind) {
    let cluster = ClusterOptions::new(kind, 3).linked().start().await;
    let ports: Vec<u16> = (0..3).map(|member| cluster.server(member).port()).collect();
    let leader = cluster.leader().await;
    let behind = (leader + 1) % 3;
    let flags = ["--experimental-serializable-ordering"];
    let (ordered, plain) =
        (Proxy::start(kind, &ports, &flags).await, Proxy::start(kind, &ports, &[]).await);
    cluster.links().isolate(behind);
    let written = cluster.client(leader).write("a", "1").await;
    let revisions = async |proxy: &Proxy| {
        let client = proxy.client();
        let mut revisions = Vec::new();
        // Each request is different, so that none is answered from the cache.
        for number in 0..30 {
            let limit = i64::from(number);
            let old = pb::RangeRequest { serializable: true, limit, ..key("a") };
            if let Ok(answer) = client.range(old).await {
                revisions.push(answer.header.unwrap().revision);
            }
        }
        revisions
    };
    let is_mixed = |revisions: &[i64]| revisions.iter().any(|revision| *revision < written);
    assert!(is_mixed(&revisions(&plain).await), "one member is behind");
    // Once the proxy has seen the write, no client gets an older answer. The isolated member takes seconds to refuse a
    // read, so several reads are sent at the same time, to reach each of the members.
    let read = async || {
        let answer = ordered.client().range(key("a")).await.ok()?;
        (answer.header.unwrap().revision >= written).then_some(())
    };
    eventually("a member returns the write", async || {
        let (first, second, third) = tokio::join!(read(), read(), read());
        first.or(second).or(third)
    })
    .await;
    let seen = revisions(&ordered).await;
    assert!(
        !seen.is_empty() && !is_mixed(&seen),
        "revisions {seen:?} were returned, and {written} was written"
    );
    cluster.links().heal();
}

async fn the_proxy_does_not_start_without_srv_records(kind: Kind) {
    // The host name does not exist, whether or not the system's DNS servers answer.
    let mut command = Command::new(kind.program());
    command.args(["grpc-proxy", "start", "--listen-addr=127.0.0.1:0"]);
    command.args(["--discovery-srv=quorate.invalid", "--discovery-srv-name=x"]);
    let ended = command.output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let wanted = "dns lookup errors: lookup _etcd-client-ssl-x._tcp.quorate.invalid";
    assert!(said.contains(wanted), "{said}");
    assert!(said.contains("and lookup _etcd-client-x._tcp.quorate.invalid"), "{said}");
}
