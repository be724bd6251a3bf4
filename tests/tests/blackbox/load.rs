//! `quorate bench` while its server fails or the benchmark is interrupted.

use std::process::{Child, Command, Stdio};

use quorate_api::etcdserverpb::{LeaseLeasesRequest, RangeRequest};
use quorate_tests::{
    Kind, Server, eventually, key, on_both_servers, prefix, refused, run_to_end, send_signal,
};
use serde_json::Value;
use tonic::Code;

on_both_servers! {
    alone:
    bench_continues_after_a_restart_of_the_server,
    an_interrupted_bench_run_is_reported,
    bench_kubernetes_simulates_an_api_server,
    bench_runs_if_one_of_its_endpoints_is_up,
}

/// A benchmark that runs until it is interrupted. It is killed when dropped.
struct Load(Child);

impl Load {
    fn start(server: &Server, args: &[&str]) -> Self {
        let mut command = Command::new(Kind::Quorate.program());
        command.arg("bench").args(args).args(["--clients", "20", "--connections", "4"]);
        command.args(["--duration", "10m", "--json", "--pid", &server.pid().to_string()]);
        command.args(["--endpoints", &format!("127.0.0.1:{}", server.port())]);
        if let Some(user) = server.user_of_tools() {
            command.args(["--user", &user]);
        }
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Interrupts the benchmark. Returns its report and whether it succeeded.
    async fn interrupt(mut self) -> (Value, bool) {
        send_signal(self.0.id(), "INT");
        let ended = eventually("the tool exits", async || self.0.try_wait().unwrap()).await;
        let mut text = String::new();
        let pipe = self.0.stdout.as_mut().unwrap();
        std::io::Read::read_to_string(pipe, &mut text).unwrap();
        let report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (report, ended.success())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Waits until the benchmark has written more keys.
async fn grows(server: &Server) {
    let before = server.client().revision().await;
    let what = "the load writes keys";
    eventually(what, async || (server.client().revision().await > before + 100).then_some(()))
        .await;
}

async fn bench_continues_after_a_restart_of_the_server(kind: Kind) {
    let mut server = Server::start(kind).await;
    let first = server.pid();
    let load = Load::start(&server, &["put"]);
    grows(&server).await;
    server.kill();
    server.start_again().await;
    grows(&server).await;
    // This time the server stops cleanly and notifies its clients.
    server.stop().await;
    server.start_again().await;
    grows(&server).await;
    let (report, content) = load.interrupt().await;
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(!content);
    assert!(number("errors") >= 1.0, "{report}");
    let succeeded = number("count") - number("errors");
    assert!(succeeded >= 300.0, "{report}");
    let per_second = succeeded / number("seconds");
    assert!((number("per_second") - per_second).abs() < 0.01 * per_second, "{report}");
    assert_eq!(
        (&report["cut_short"], &report["ended"][0]),
        (&"the run was interrupted".into(), &first.into())
    );
}

async fn an_interrupted_bench_run_is_reported(kind: Kind) {
    let server = Server::start(kind).await;
    // Each client of this load keeps one stream open.
    let load = Load::start(&server, &["lease-keepalive"]);
    let renewals = || server.metric("etcd_debugging_lease_renewed_total").unwrap_or_default();
    eventually("leases are renewed", async || (renewals() > 20.0).then_some(())).await;
    let (report, content) = load.interrupt().await;
    assert!(!content);
    assert_eq!(
        (&report["cut_short"], &report["errors"]),
        (&"the run was interrupted".into(), &0.into())
    );
    assert_eq!(report["servers"][0]["pid"], server.pid());
}

async fn bench_kubernetes_simulates_an_api_server(kind: Kind) {
    let server = Server::start(kind).await;
    let endpoint = format!("127.0.0.1:{}", server.port());
    let args = ["bench", "kubernetes", "--json", "--endpoints", &endpoint];
    let size = ["--duration", "3s", "--keys", "300", "--page", "50", "--clients", "20"];
    // A list whose pages take longer than this fails, because its revision is compacted.
    let more = ["--connections", "4", "--watchers", "3", "--compact-every", "1s"];
    let mut command = Command::new(Kind::Quorate.program());
    command.args(args).args(size).args(more);
    if let Some(user) = server.user_of_tools() {
        command.args(["--user", &user]);
    }
    let output = run_to_end(command, "").success();
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(
        (&report["errors"], &report["events"]["errors"]),
        (&0.into(), &0.into()),
        "{output}"
    );
    let count = |kind: &str| report["kinds"][kind]["count"].as_u64().unwrap();
    for kind in ["get", "list page", "update", "heartbeat", "lease", "event", "compact"] {
        assert!(count(kind) > 0, "no {kind} in {output}");
    }
    // Lists of a few hundred objects have several pages, and updates read before they write.
    assert!(count("list page") > 50 && count("get") > count("update"), "{output}");
    // Every watcher has received all current objects, and may have received overwritten versions.
    let events = report["events"]["count"].as_u64().unwrap();
    let written = count("update") + count("heartbeat") + count("event");
    assert!(events.is_multiple_of(3) && events / 3 <= written, "{output}");
    let client = server.client();
    let found = client.range(prefix("bench/events/")).await.unwrap();
    assert_eq!(found.count.cast_unsigned(), count("event"), "{output}");
    let leases = client.lease_leases(LeaseLeasesRequest {}).await.unwrap().leases;
    assert_eq!(leases.len() as u64, count("lease"), "{output}");
    // The benchmark has compacted the history, as the API server does.
    let old = client.range(RangeRequest { revision: 2, ..key("k") }).await;
    refused(old, Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
    assert!(client.read("compact_rev_key/bench/").await.is_some());
}

/// The endpoints come from the environment, as for `ctl`. Endpoints that are down are skipped, and if none is up, the
/// benchmark exits.
async fn bench_runs_if_one_of_its_endpoints_is_up(kind: Kind) {
    let server = Server::start(kind).await;
    let run = |endpoints: &str, load: &[&str]| {
        let mut command = Command::new(Kind::Quorate.program());
        command.arg("bench").args(load).args([
            "--total",
            "20",
            "--clients",
            "6",
            "--connections",
            "3",
        ]);
        command.env("ETCDCTL_ENDPOINTS", endpoints);
        if let Some(user) = server.user_of_tools() {
            command.env("ETCDCTL_USER", user);
        }
        run_to_end(command, "")
    };
    let one = format!("127.0.0.1:1,127.0.0.1:{},127.0.0.1:2", server.port());
    for load in [
        &["put"][..],
        &["list", "--walk", "--keys", "100", "--limit", "10"],
        &["lease-keepalive"],
        &["watch", "--watchers", "3", "--keys", "10", "--watched-keys", "1"],
        &["kubernetes", "--keys", "10"],
    ] {
        let ended = run(&one, load);
        assert_eq!(ended.code, Some(0), "{load:?}: {ended:?}");
        // Kinds of operations that were not executed are not listed.
        assert!(!ended.stdout.contains("  0 operations"), "{ended:?}");
    }
    let ended = run("127.0.0.1:1,127.0.0.1:2", &["put"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("cannot reach 127.0.0.1:"), "{ended:?}");
}
