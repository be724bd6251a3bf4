//! Tests that the responses of the endpoints are correct byte for byte.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Version};
use http_body_util::BodyExt;

use super::{Access, Endpoints, HealthAlarm, Probe, Surface};
use crate::methods;
use quorate_config::{Config, MetricsLevel};
use quorate_telemetry::metrics::Metrics;

#[derive(Clone, Debug)]
struct Member {
    alarms: Vec<HealthAlarm>,
    has_leader: bool,
    is_learner: bool,
    alive: Result<(), String>,
    serializable: Result<(), String>,
    linearizable: Result<(), String>,
    versions: Option<(&'static str, &'static str)>,
    timeout: Duration,
}

impl Default for Member {
    fn default() -> Self {
        Self {
            alarms: Vec::new(),
            has_leader: true,
            is_learner: false,
            alive: Ok(()),
            serializable: Ok(()),
            linearizable: Ok(()),
            versions: Some(("3.7.0", "3.7.0")),
            timeout: Duration::from_secs(7),
        }
    }
}

impl Probe for Member {
    fn alarms(&self) -> Vec<HealthAlarm> {
        self.alarms.clone()
    }

    async fn has_leader(&self) -> bool {
        self.has_leader
    }

    fn is_learner(&self) -> bool {
        self.is_learner
    }

    async fn read(&self, is_serializable: bool) -> Result<(), String> {
        if self.timeout.is_zero() {
            std::future::pending::<()>().await;
        }
        if is_serializable { self.serializable.clone() } else { self.linearizable.clone() }
    }

    async fn check_alive(&self) -> Result<(), String> {
        self.alive.clone()
    }

    fn request_timeout(&self) -> Duration {
        self.timeout
    }

    fn server_version(&self) -> String {
        quorate_version::ETCD_VERSION.to_owned()
    }

    fn cluster_version(&self) -> Option<String> {
        self.versions.map(|(cluster, _)| cluster.to_owned())
    }

    fn storage_version(&self) -> Option<String> {
        self.versions.map(|(_, storage)| storage.to_owned())
    }

    fn raft_status(&self) -> String {
        "{\"term\":2}".to_owned()
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

struct Client {
    endpoints: Endpoints<Member>,
    surface: Surface,
    is_tls: bool,
}

impl Client {
    fn new(member: Member) -> Self {
        Self::configured(member, &Config::default())
    }

    fn configured(member: Member, config: &Config) -> Self {
        let metrics = Metrics::new(&methods::counted(), MetricsLevel::Basic);
        let arguments = vec!["quorate".to_owned(), "--name=\"x\"".to_owned()];
        let endpoints =
            Endpoints::new(Arc::new(member), Arc::new(metrics), Access::new(config), arguments);
        Self { endpoints, surface: Surface::Client, is_tls: false }
    }

    fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::builder().method(method).uri(target).version(Version::HTTP_11);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let reply = self.endpoints.answer(&request, self.surface, self.is_tls).await;
            let (head, body) = reply.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            Answer { status: head.status.as_u16(), headers: head.headers, body }
        })
    }

    fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[("host", "localhost:2379")])
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";

#[test]
fn health_succeeds_on_a_healthy_member() {
    let client = Client::new(Member::default());
    let answer = client.get("/health");
    assert_eq!((answer.status, answer.body.as_str()), (200, r#"{"health":"true","reason":""}"#));
    assert_eq!(answer.header("content-type"), PLAIN);
    assert_eq!(answer.header("x-content-type-options"), "");
    assert_eq!(client.endpoints.metrics.server.health_success.value(), 1);
}

#[test]
fn health_reports_the_first_problem() {
    let check = |member: Member, target: &str, reason: &str| {
        let client = Client::new(member);
        let answer = client.get(target);
        assert_eq!(answer.body, format!("{{\"health\":\"false\",\"reason\":\"{reason}\"}}\n"));
        assert_eq!((answer.status, answer.header("x-content-type-options")), (503, "nosniff"));
        assert_eq!(client.endpoints.metrics.server.health_failures.value(), 1);
    };
    let both =
        Member { alarms: vec![HealthAlarm::NoSpace, HealthAlarm::Corrupt], ..Member::default() };
    check(both.clone(), "/health", "ALARM NOSPACE");
    check(both.clone(), "/health?exclude=NOSPACE", "ALARM CORRUPT");
    let later = Member { alarms: vec![HealthAlarm::Unknown], ..Member::default() };
    check(later, "/health?exclude=NOSPACE", "ALARM UNKNOWN");
    let answer = Client::new(both).get("/health?exclude=NOSPACE&exclude=CORRUPT");
    assert_eq!(answer.status, 200);

    let lost = Member { has_leader: false, ..Member::default() };
    check(lost.clone(), "/health", "RAFT NO LEADER");
    assert_eq!(Client::new(lost).get("/health?serializable=true").status, 200);

    let failing = Member { linearizable: Err("a <b>".to_owned()), ..Member::default() };
    check(failing, "/health", "RANGE ERROR:a \\u003cb\\u003e");
    let hanging = Member { timeout: Duration::ZERO, ..Member::default() };
    check(hanging, "/health", "RANGE ERROR:context deadline exceeded");
}

#[test]
fn livez_and_readyz_list_their_checks() {
    let client = Client::new(Member::default());
    for path in ["/livez", "/readyz", "/readyz/linearizable_read", "/livez/serializable_read"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok\n"), "{path}");
        assert_eq!(answer.header("content-type"), PLAIN);
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    assert_eq!(client.get("/livez?verbose").body, "[+]serializable_read ok\nok\n");
    assert_eq!(
        client.get("/readyz?verbose=0&exclude=linearizable_read&exclude=nothing").body,
        "[+]data_corruption ok\n[+]serializable_read ok\n[+]non_learner ok\nok\n"
    );
    for path in ["/livez/linearizable_read", "/livez/", "/readyz/x", "/livezz"] {
        assert_eq!(client.get(path).status, 404, "{path}");
    }
}

#[test]
fn all_failing_checks_are_listed() {
    let member = Member {
        alarms: vec![HealthAlarm::NoSpace, HealthAlarm::Corrupt],
        is_learner: true,
        alive: Err("etcdserver: server stopped".to_owned()),
        linearizable: Err("etcdserver: request timed out".to_owned()),
        ..Member::default()
    };
    let client = Client::new(member);
    let answer = client.get("/readyz");
    assert_eq!(
        answer.body,
        "[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read ok\n\
         [-]linearizable_read failed: etcdserver: request timed out\n\
         [-]non_learner failed: not supported for learner\n\n"
    );
    assert_eq!((answer.status, answer.header("content-type")), (503, PLAIN));
    let answer = client.get("/livez");
    let expected = "[-]serializable_read failed: etcdserver: server stopped\n\n";
    assert_eq!((answer.status, answer.body.as_str()), (503, expected));
    let text = client.endpoints.metrics.render();
    for line in [
        "etcd_server_healthcheck{name=\"data_corruption\",type=\"readyz\"} 0",
        "etcd_server_healthcheck{name=\"serializable_read\",type=\"livez\"} 0",
        "etcd_server_healthchecks_total{name=\"non_learner\",status=\"error\",type=\"readyz\"} 1",
    ] {
        assert!(text.contains(line), "{line}");
    }
}

#[test]
fn get_only_pages_refuse_other_methods() {
    let client = Client::new(Member::default());
    for path in ["/health", "/livez", "/readyz/non_learner", "/version", "/debug/vars"] {
        for method in ["POST", "HEAD", "PUT"] {
            let answer = client.ask(method, path, &[("host", "a")]);
            assert_eq!((answer.status, answer.header("allow")), (405, "GET"), "{path}");
            assert_eq!(answer.body, "Method Not Allowed\n");
        }
    }
    assert_eq!(client.ask("POST", "/metrics", &[("host", "a")]).status, 200);
}

#[test]
fn the_version_and_vars_pages_are_json() {
    let answer = Client::new(Member::default()).get("/version");
    assert_eq!(answer.body, r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#);
    assert_eq!(answer.header("content-type"), "application/json");
    let fresh = Client::new(Member { versions: None, ..Member::default() });
    assert_eq!(
        fresh.get("/version").body,
        r#"{"etcdserver":"3.7.1","etcdcluster":"not_decided","storage":"unknown"}"#
    );
    let vars = fresh.get("/debug/vars");
    assert_eq!(vars.header("content-type"), "application/json; charset=utf-8");
    let parsed: serde_json::Value = serde_json::from_str(&vars.body).unwrap();
    assert_eq!(parsed["cmdline"][1], "--name=\"x\"");
    assert_eq!(parsed["raft.status"]["term"], 2);
    assert_eq!(parsed["quorate.queues"]["quorate_proposals_in_progress"], 0);
    assert!(vars.body.starts_with("{\n\"cmdline\": [") && vars.body.ends_with("\n}\n"));
}

#[test]
fn metrics_have_the_content_type_of_prometheus() {
    let client = Client::new(Member::default());
    assert_eq!(client.get("/metrics").status, 200);
    let answer = client.get("/metrics");
    assert_eq!(
        answer.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    );
    assert!(answer.body.contains("\npromhttp_metric_handler_requests_total{code=\"200\"} 1\n"));
    assert!(answer.body.contains("\npromhttp_metric_handler_requests_in_flight 1\n"));
}

#[test]
fn unknown_paths_return_404_and_unclean_paths_are_redirected() {
    let client = Client::new(Member::default());
    for path in ["/", "/v2/keys", "/v3/kv/range", "/config/local/log", "/debug/pprof/"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.body.as_str()), (404, "404 page not found\n"));
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("access-control-allow-origin"), "*");
    }
    let answer = client.get("//health?exclude=a");
    assert_eq!((answer.status, answer.header("location")), (307, "/health?exclude=a"));
    assert_eq!(answer.body, "<a href=\"/health?exclude=a\">Temporary Redirect</a>.\n\n");
    assert_eq!(client.ask("POST", "/a/../health", &[("host", "a")]).body, "");
}

#[test]
fn profiles_are_served_if_enabled() {
    let mut client = Client::new(Member::default());
    client.endpoints = client.endpoints.with_profiles();
    let index = client.get("/debug/pprof/");
    assert_eq!((index.status, index.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(index.body.contains("<a href=\"profile\">"), "{}", index.body);
    let answer = client.get("/debug/pprof?a=b");
    assert_eq!((answer.status, answer.header("location")), (307, "/debug/pprof/?a=b"));
    assert_eq!(client.get("/debug/pprof/cmdline").body, "quorate\0--name=\"x\"");
    for target in ["/debug/pprof/symbol", "/debug/pprof/symbol?", "/debug/pprof/symbol?0x1+zz+-+1"]
    {
        assert_eq!(client.get(target).body, "num_symbols: 1\n");
    }
    for (target, status) in [
        ("/debug/pprof/profile?seconds=601", 400),
        // The test program's allocator does not support heap profiles.
        ("/debug/pprof/heap", 404),
        ("/debug/pprof/heap?seconds=1&debug=1", 400),
        ("/debug/pprof/allocs?seconds=-1", 400),
        ("/debug/pprof/threadcreate?seconds=601", 400),
        ("/debug/pprof/profile/", 404),
        ("/debug/pprofs", 404),
    ] {
        assert_eq!(client.get(target).status, status, "{target}");
    }
    let many = "1+".repeat(5000);
    assert_eq!(client.get(&format!("/debug/pprof/symbol?{many}")).body, "num_symbols: 1\n");
    let threads = client.get("/debug/pprof/threadcreate?debug=1");
    assert!(threads.body.starts_with("threadcreate profile: total "), "{}", threads.body);
    client.surface = Surface::Metrics;
    assert_eq!(client.get("/debug/pprof/").status, 404);
}

#[test]
fn current_requests_are_listed_only_if_profiling_is_enabled() {
    let mut client = Client::new(Member::default());
    assert_eq!(client.get("/debug/requests").status, 404);
    client.endpoints = client.endpoints.with_profiles();
    let page = client.get("/debug/requests");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(
        page.body.contains("(<code>quorate_reads_waiting</code>)</td><td>0</td>"),
        "{}",
        page.body
    );
    client.surface = Surface::Metrics;
    assert_eq!(client.get("/debug/requests").status, 404);
}

#[test]
fn metrics_listeners_serve_only_metrics_and_health() {
    let config = Config { host_whitelist: ["only.this".to_owned()].into(), ..Config::default() };
    let mut client = Client::configured(Member::default(), &config);
    client.surface = Surface::Metrics;
    for path in ["/metrics", "/health", "/livez", "/readyz?verbose"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, ""));
    }
    for path in ["/version", "/debug/vars"] {
        assert_eq!(client.get(path).status, 404);
    }
    assert_eq!(client.ask("OPTIONS", "/health", &[("host", "a")]).status, 405);
}

#[test]
fn hosts_not_on_the_whitelist_are_refused_as_misdirected() {
    let config = Config { host_whitelist: ["good.com".to_owned()].into(), ..Config::default() };
    let mut client = Client::configured(Member::default(), &config);
    for (host, status) in [("good.com", 200), ("good.com:80", 200), ("bad.com:80", 421)] {
        assert_eq!(client.ask("GET", "/health", &[("host", host)]).status, status);
        let options = client.ask("OPTIONS", "/health", &[("host", host)]);
        assert_eq!(options.status, status);
    }
    let answer = client.ask("GET", "/health", &[("host", "bad.com:80")]);
    assert!(answer.body.starts_with("\netcd received your request, but the Host header"));
    assert!(answer.body.contains("\n  - e.g. etcd --host-whitelist \"bad.com\"\n\nThis requ"));
    assert!(answer.body.ends_with("attacks (CVE-2018-5702).\n\n"));
    assert_eq!(answer.header("access-control-allow-origin"), "");
    client.is_tls = true;
    assert_eq!(client.ask("GET", "/health", &[("host", "bad.com")]).status, 200);
}

#[test]
fn allowed_origins_are_returned_in_cors_headers() {
    let client = Client::new(Member::default());
    let answer = client.ask("OPTIONS", "/anything", &[("host", "a")]);
    assert_eq!((answer.status, answer.body.as_str()), (200, ""));
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    assert_eq!(answer.header("access-control-allow-methods"), "POST, GET, OPTIONS, PUT, DELETE");
    assert_eq!(
        answer.header("access-control-allow-headers"),
        "accept, content-type, authorization"
    );
    let config = Config { cors: ["http://a.com:81".to_owned()].into(), ..Config::default() };
    let client = Client::configured(Member::default(), &config);
    let origin = |origin| {
        let answer = client.ask("GET", "/health", &[("host", "a"), ("origin", origin)]);
        answer.header("access-control-allow-origin").to_owned()
    };
    assert_eq!(origin("http://a.com:81"), "http://a.com:81");
    assert_eq!(origin("http://b.com:81"), "");
    assert_eq!(client.get("/health").header("access-control-allow-methods"), "");
}
