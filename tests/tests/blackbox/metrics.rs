//! The values of `/metrics`, which must be equal on both servers after the same requests.

use std::io::Read as _;

use bytes::Bytes;
use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_tests::{
    Kind, RawHttp2, Server, Watch, call_head, compare, delete, eventually, get_op, on_both_servers,
    on_quorate, put, put_leased, put_op, range, request_with, txn, txn_when, watch_key,
};

on_both_servers! {
    scrapers_get_the_requested_format,
    operations_on_the_keyspace_are_counted,
    messages_and_their_bytes_are_counted,
    responses_to_watchers_are_counted,
}

on_quorate! {
    undecodable_requests_are_counted,
    written_log_bytes_are_counted,
    alarms_are_counted_by_kind_and_member,
    the_time_to_send_watch_responses_is_measured,
    the_phases_of_a_commit_are_measured,
    the_time_that_proposals_wait_before_consensus_is_measured,
}

on_both_servers! {
    alone:
    the_cluster_version_is_reported_after_a_restart,
}

on_quorate! {
    alone:
    alarms_are_reported_until_they_are_disarmed,
    only_valid_client_versions_become_metric_labels,
}

/// Values of some metrics.
#[derive(Debug)]
struct Seen<const N: usize>([f64; N]);

impl<const N: usize> Seen<N> {
    fn of(server: &Server, names: [&str; N]) -> Self {
        Self(names.map(|name| server.metric(name).unwrap_or_default()))
    }

    fn since(&self, before: &Self) -> [f64; N] {
        std::array::from_fn(|at| self.0[at] - before.0[at])
    }
}

/// Returns the names of the metric families in a scrape in protobuf format.
fn names_in_protobuf(mut scrape: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while !scrape.is_empty() {
        let len = prost::decode_length_delimiter(&mut scrape).unwrap();
        let (family, rest) = scrape.split_at(len);
        scrape = rest;
        let [10, name @ ..] = family else { panic!("a metric family must begin with its name") };
        let (len, name) = name.split_first().unwrap();
        names.push(String::from_utf8(name[..usize::from(*len)].to_vec()).unwrap());
    }
    names
}

async fn scrapers_get_the_requested_format(kind: Kind) {
    let server = Server::start(kind).await;
    let ask = |headers: &[(&str, &str)]| {
        let answer = request_with(server.port(), "GET", "/metrics", headers, b"");
        assert_eq!(answer.status, 200);
        answer
    };
    let openmetrics = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    for accept in ["*/*", "text/html", openmetrics] {
        let answer = ask(&[("Accept", accept)]);
        let form = answer.header("content-type").unwrap();
        assert!(form.starts_with("text/plain; version=0.0.4; charset=utf-8"), "{form}");
        assert_eq!(answer.header("content-encoding"), None);
    }
    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
         encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.3";
    let answer = ask(&[("Accept", protobuf)]);
    let form = answer.header("content-type").unwrap();
    let delimited = "application/vnd.google.protobuf; \
         proto=io.prometheus.client.MetricFamily; encoding=delimited";
    assert!(form.starts_with(delimited), "{form}");
    let names = names_in_protobuf(&answer.body);
    assert!(names.is_sorted() && names.iter().any(|name| name == "etcd_server_has_leader"));
    for encoding in ["gzip", "identity;q=0.5, gzip"] {
        let answer = ask(&[("Accept-Encoding", encoding)]);
        assert_eq!(answer.header("content-encoding"), Some("gzip"), "{encoding}");
        let mut text = String::new();
        flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut text).unwrap();
        assert!(text.contains("\netcd_server_has_leader 1\n"), "{text}");
    }
    for encoding in ["deflate", "gzip;q=0"] {
        assert_eq!(ask(&[("Accept-Encoding", encoding)]).header("content-encoding"), None);
    }
}

async fn operations_on_the_keyspace_are_counted(kind: Kind) {
    const NAMES: [&str; 5] = [
        "etcd_mvcc_range_total",
        "etcd_mvcc_put_total",
        "etcd_mvcc_delete_total",
        "etcd_mvcc_txn_total",
        "etcd_debugging_mvcc_total_put_size_in_bytes",
    ];
    let server = Server::start(kind).await;
    let client = server.client();
    let mut before = Seen::of(&server, NAMES);
    let mut counts = |what: &str, expected: [f64; 5]| {
        let now = Seen::of(&server, NAMES);
        assert_eq!(now.since(&before), expected, "{what}");
        before = now;
    };
    client.write("a", "12345").await;
    counts("a put", [0.0, 1.0, 0.0, 0.0, 6.0]);
    client.put(pb::PutRequest { prev_kv: true, ..put("a", "1") }).await.unwrap();
    counts("a call that returns previous records", [1.0, 1.0, 0.0, 1.0, 2.0]);
    client.range(range("a", "c")).await.unwrap();
    counts("a range", [1.0, 0.0, 0.0, 0.0, 0.0]);
    client.delete_range(delete("x", "")).await.unwrap();
    counts("a deletion without a match", [0.0, 0.0, 1.0, 0.0, 0.0]);
    let shows = pb::DeleteRangeRequest { prev_kv: true, ..delete("a", "") };
    client.delete_range(shows).await.unwrap();
    counts("a call that returns previous records", [1.0, 0.0, 1.0, 1.0, 0.0]);
    client.txn(txn(vec![put_op("a", "1"), put_op("b", "2")])).await.unwrap();
    counts("two puts", [0.0, 2.0, 0.0, 1.0, 4.0]);
    let is_there = |key| compare(key, CompareResult::Greater, TargetUnion::Version(0));
    let one = txn_when(vec![is_there("a")], vec![put_op("a", "2")], vec![]);
    client.txn(one).await.unwrap();
    counts("a condition and a put", [1.0, 1.0, 0.0, 0.0, 2.0]);
    let conditions = vec![is_there("a"), is_there("x"), is_there("b")];
    client.txn(txn_when(conditions, vec![], vec![put_op("b", "2")])).await.unwrap();
    counts("conditions until the first failed one", [2.0, 1.0, 0.0, 1.0, 2.0]);
    client.txn(txn(vec![get_op("a"), get_op("b")])).await.unwrap();
    counts("a transaction that reads", [2.0, 0.0, 0.0, 1.0, 0.0]);
    client.grant(7, 600).await;
    client.put(put_leased("c", "1", 7)).await.unwrap();
    client.put(put_leased("d", "1", 7)).await.unwrap();
    counts("keys of a lease", [0.0, 2.0, 0.0, 0.0, 4.0]);
    client.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap();
    counts("the revocation of the lease", [0.0, 0.0, 2.0, 1.0, 0.0]);
}

fn series(name: &str, service: &str, method: &str, kind: &str) -> String {
    format!(
        "grpc_server_{name}_total{{grpc_method=\"{method}\",\
         grpc_service=\"etcdserverpb.{service}\",grpc_type=\"{kind}\"}}"
    )
}

async fn messages_and_their_bytes_are_counted(kind: Kind) {
    const BYTES: [&str; 2] = [
        "etcd_network_client_grpc_received_bytes_total",
        "etcd_network_client_grpc_sent_bytes_total",
    ];
    let server = Server::start(kind).await;
    let client = server.client();
    let before = Seen::of(&server, BYTES);
    let put = put("k", vec![b'v'; 100_000]);
    let (asked, answer) = (put.encoded_len(), client.put(put).await.unwrap());
    let list = client.range(range("k", "")).await.unwrap();
    let received = asked + range("k", "").encoded_len();
    let sent = answer.encoded_len() + list.encoded_len();
    assert_eq!(Seen::of(&server, BYTES).since(&before), [received as f64, sent as f64]);

    let names =
        ["msg_received", "msg_sent"].map(|name| series(name, "Watch", "Watch", "bidi_stream"));
    let names = names.each_ref().map(String::as_str);
    let before = Seen::of(&server, names);
    let mut watch = Watch::open(&client);
    watch.create(watch_key("k")).await;
    for number in 1..=3 {
        client.write("k", "v").await;
        watch.events(1).await;
        let counts = Seen::of(&server, names).since(&before);
        assert_eq!(
            counts,
            [1.0, 1.0 + f64::from(number)],
            "the response to the creation, and responses with events"
        );
    }
}

async fn responses_to_watchers_are_counted(kind: Kind) {
    const NAMES: [&str; 2] =
        ["etcd_debugging_mvcc_events_total", "etcd_debugging_mvcc_pending_events_total"];
    let server = Server::start(kind).await;
    let client = server.client();
    let before = Seen::of(&server, NAMES);
    let mut watches = Vec::new();
    for key in ["a", "a", "b"] {
        let mut watch = Watch::open(&client);
        watch.create(watch_key(key)).await;
        watches.push(watch);
    }
    client.txn(txn(vec![put_op("a", "1"), put_op("b", "2"), put_op("c", "3")])).await.unwrap();
    for watch in &mut watches {
        watch.events(1).await;
    }
    assert_eq!(Seen::of(&server, NAMES).since(&before), [3.0, 0.0]);
}

async fn undecodable_requests_are_counted(kind: Kind) {
    let server = Server::start(kind).await;
    for (path, api) in [
        ("/etcdserverpb.Watch/Watch", "watch"),
        ("/etcdserverpb.Lease/LeaseKeepAlive", "lease-keepalive"),
    ] {
        let name =
            format!("etcd_network_server_stream_failures_total{{API=\"{api}\",Type=\"receive\"}}");
        // The end of a stream does not count as a failure.
        let mut gone = RawHttp2::connect(server.port());
        gone.open(&call_head(path));
        drop(gone);
        let mut connection = RawHttp2::connect(server.port());
        let id = connection.open(&call_head(path));
        // The message contains a field with an invalid wire type.
        connection.send_body(id, &[0, 0, 0, 0, 1, 0x0f], true);
        eventually("the failure is counted", async || {
            (server.metric(&name) == Some(1.0)).then_some(())
        })
        .await;
    }
}

async fn written_log_bytes_are_counted(kind: Kind) {
    const BYTES: &str = "etcd_disk_wal_write_bytes_total";
    let server = Server::start(kind).await;
    let client = server.client();
    let before = server.metric(BYTES).unwrap();
    let value = Bytes::from(vec![b'v'; 100_000]);
    for _ in 0..5 {
        client.write("k", &value).await;
    }
    let bytes = server.metric(BYTES).unwrap() - before;
    assert!((500_000.0..550_000.0).contains(&bytes), "{bytes}");
}

async fn alarms_are_counted_by_kind_and_member(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let order = async |action, alarm| {
        let request = pb::AlarmRequest { action, member_id: 0xab, alarm };
        client.alarm(request).await.unwrap();
    };
    let of = |kind: &str| {
        let labels = format!("{{alarm_type=\"{kind}\",server_id=\"ab\"}}");
        server.metric(&format!("etcd_debugging_server_alarms{labels}"))
    };
    assert_eq!((of("NOSPACE"), of("CORRUPT")), (None, None));
    order(1, 1).await;
    order(1, 1).await;
    order(1, 2).await;
    assert_eq!(
        (of("NOSPACE"), of("CORRUPT")),
        (Some(2.0), Some(1.0)),
        "repeated alarms are counted, as in etcd"
    );
    order(0, 0).await;
    order(2, 2).await;
    assert_eq!((of("NOSPACE"), of("CORRUPT")), (Some(2.0), Some(0.0)));
}

async fn alarms_are_reported_until_they_are_disarmed(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    let order = async |action, alarm| {
        let request = pb::AlarmRequest { action, member_id: 0xab, alarm };
        client.alarm(request).await.unwrap();
    };
    let of = |server: &Server, kind: &str| {
        let labels = format!("{{alarm_type=\"{kind}\",server_id=\"ab\"}}");
        server.metric(&format!("quorate_alarm_active{labels}"))
    };
    assert_eq!(of(&server, "NOSPACE"), None);
    order(1, 1).await;
    order(1, 1).await;
    assert_eq!(of(&server, "NOSPACE"), Some(1.0), "repeated alarms count once");
    order(2, 1).await;
    order(1, 2).await;
    assert_eq!((of(&server, "NOSPACE"), of(&server, "CORRUPT")), (Some(0.0), Some(1.0)));
    server.stop().await;
    server.start_again().await;
    assert_eq!(of(&server, "CORRUPT"), Some(1.0), "the alarm is still active after a restart");
}

async fn the_cluster_version_is_reported_after_a_restart(kind: Kind) {
    let mut server = Server::start(kind).await;
    let version = if server.is_3_7() { "3.7" } else { "3.5" };
    let series = format!("etcd_cluster_version{{cluster_version=\"{version}\"}}");
    eventually("the cluster version is set", async || {
        (server.metric(&series) == Some(1.0)).then_some(())
    })
    .await;
    server.stop().await;
    server.start_again().await;
    assert_eq!(server.metric(&series), Some(1.0));
}

async fn the_time_to_send_watch_responses_is_measured(kind: Kind) {
    const NAMES: [&str; 3] = [
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds_count",
        "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds_count",
        "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds_count",
    ];
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_key("k")).await;
    assert_eq!(NAMES.map(|name| server.metric(name)), [Some(0.0), Some(0.0), Some(1.0)]);
    client.write("k", "v").await;
    watch.events(1).await;
    assert_eq!(NAMES.map(|name| server.metric(name)), [Some(1.0), Some(1.0), Some(1.0)]);
}

async fn the_phases_of_a_commit_are_measured(kind: Kind) {
    let server = Server::start(kind).await;
    server.client().write("k", "v").await;
    let of = |name: &str| server.metric(&format!("{name}_duration_seconds_sum")).unwrap();
    // Each value comes from its own scrape, and another commit may happen in between, so the comparison is repeated.
    eventually("the whole commit takes longer than its phases", async || {
        let written = of("etcd_debugging_disk_backend_commit_write");
        let spilled = of("etcd_debugging_disk_backend_commit_spill");
        let whole = of("etcd_disk_backend_commit");
        (written > 0.0 && spilled > 0.0 && written + spilled <= whole * 1.001).then_some(())
    })
    .await;
    assert_eq!(of("etcd_debugging_disk_backend_commit_rebalance"), 0.0);
    let log = |name: &str| server.metric(&format!("etcd_disk_wal_{name}_duration_seconds_sum"));
    assert!(log("write").unwrap() > 0.0 && log("fsync").unwrap() > 0.0);
}

async fn the_time_that_proposals_wait_before_consensus_is_measured(kind: Kind) {
    const PUTS: u32 = 20;
    let server = Server::start(kind).await;
    let client = server.client();
    let of = |what: &str| {
        server.metric(&format!("quorate_proposal_queue_duration_seconds_{what}")).unwrap()
    };
    let (count, sum) = (of("count"), of("sum"));
    let start = std::time::Instant::now();
    for _ in 0..PUTS {
        client.write("k", "v").await;
    }
    let took = start.elapsed().as_secs_f64();
    // The member may have proposed requests of its own, too.
    assert!(of("count") >= count + f64::from(PUTS));
    let waited = of("sum") - sum;
    assert!(waited > 0.0 && waited < took, "{waited} s of {took} s");
}

/// A client could send any string as its version. Without a check, such strings would fill the metrics page.
async fn only_valid_client_versions_become_metric_labels(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let long = "7".repeat(4_000);
    let ask = async |version: &str| {
        let mut request = client.signed(range("k", ""));
        request.metadata_mut().insert("client-api-version", version.parse().unwrap());
        client.kv().range(request).await.unwrap();
    };
    let count = |version: &str| {
        let labels = format!("{{client_api_version=\"{version}\",type=\"unary\"}}");
        server.metric(&format!("etcd_server_client_requests_total{labels}")).unwrap_or_default()
    };
    ask("3.6.1-rc.0").await;
    assert_eq!(count("3.6.1-rc.0"), 1.0);
    let unknown = count("unknown");
    for version in [&*long, &format!("3.6.{long}"), "3.6.1-rc.0 and more"] {
        ask(version).await;
    }
    assert_eq!(count("unknown"), unknown + 3.0);
    let page = server.get("/metrics").text();
    assert!(
        !page.contains(&long[..100]) && !page.contains("and more"),
        "a client's version became a label value"
    );
}
