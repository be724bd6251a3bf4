//! Distributed tracing: the traced calls, the contents of spans, and the behaviour without a collector.

use quorate_api::etcdserverpb as pb;
use quorate_api::v3lockpb::LockRequest;
use quorate_tests::{
    Client, Collector, ExportedSpan, Kind, Options, Server, Span, compare, delete, eventually,
    eventually_within, get_op, key, on_both_servers, on_quorate, put, put_op, range, request_with,
    txn_when, watch_key,
};
use std::time::Duration;
use tonic::{Code, Request};

on_both_servers! {
    alone:
    calls_are_traced_if_their_caller_requests_it,
    calls_without_a_trace_are_sampled,
    json_calls_are_traced,
}

on_quorate! {
    alone:
    spans_of_operations_and_stages_are_children_of_call_spans,
    the_span_of_a_watch_lasts_as_long_as_its_watcher,
    spans_of_failed_calls_contain_the_status_code,
    calls_succeed_without_a_reachable_collector,
    waiting_spans_are_sent_on_shutdown,
}

const SERVER: i32 = 2;

/// A trace of a test, identified by a number.
struct Trace(u8);

impl Trace {
    fn id(&self) -> Vec<u8> {
        vec![self.0; 16]
    }

    /// Returns the id of the span that is the parent of the calls.
    fn span(&self) -> Vec<u8> {
        vec![self.0 + 1; 8]
    }

    fn parent(&self, is_sampled: bool) -> String {
        let hex =
            |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("00-{}-{}-0{}", hex(self.id()), hex(self.span()), u8::from(is_sampled))
    }

    /// Returns a request that belongs to this trace.
    fn follow<T>(&self, client: &Client, message: T, is_sampled: bool) -> Request<T> {
        let mut request = client.signed(message);
        let parent = self.parent(is_sampled).parse().unwrap();
        request.metadata_mut().insert("traceparent", parent);
        request.metadata_mut().insert("tracestate", "vendor=1".parse().unwrap());
        request.metadata_mut().insert("baggage", "who=ann".parse().unwrap());
        request
    }

    /// Waits until the collector has spans with these names, and returns all spans of the trace.
    async fn exported(&self, collector: &Collector, names: &[&str]) -> Vec<ExportedSpan> {
        eventually(&format!("spans {names:?} of trace {}", self.0), async || {
            let exported = collector.exported();
            let own: Vec<_> = exported
                .into_iter()
                .filter(|exported| exported.span.trace_id == self.id())
                .collect();
            let has = |name: &&str| own.iter().any(|exported| exported.span.name == **name);
            names.iter().all(has).then_some(own)
        })
        .await
    }
}

fn named<'a>(exported: &'a [ExportedSpan], name: &str) -> &'a Span {
    &exported.iter().find(|exported| exported.span.name == name).unwrap().span
}

/// Returns the options of a server that sends spans to this collector.
fn traced(kind: Kind, collector: &Collector, per_million: u32) -> Options {
    let flag = |name: &str, value: &str| match kind {
        Kind::Quorate => format!("--{name}={value}"),
        Kind::Etcd => format!("--experimental-{name}={value}"),
    };
    Options::new(kind)
        .flag(flag("enable-distributed-tracing", "true"))
        .flag(flag("distributed-tracing-address", &collector.address()))
        .flag(flag("distributed-tracing-service-name", "the-service"))
        .flag(flag("distributed-tracing-instance-id", "the-instance"))
        .flag(flag("distributed-tracing-sampling-rate", &per_million.to_string()))
}

async fn calls_are_traced_if_their_caller_requests_it(kind: Kind) {
    let collector = Collector::start().await;
    let server = traced(kind, &collector, 0).start().await;
    let client = server.client();
    let (first, passed_over, last) = (Trace(0x10), Trace(0x20), Trace(0x30));
    client.kv().put(first.follow(&client, put("k", "v"), true)).await.unwrap();
    client.kv().put(passed_over.follow(&client, put("k", "v"), false)).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
    client.kv().range(last.follow(&client, key("k"), true)).await.unwrap();
    let exported = first.exported(&collector, &["etcdserverpb.KV/Put"]).await;
    let own =
        &exported.iter().find(|exported| exported.span.name == "etcdserverpb.KV/Put").unwrap();
    assert_eq!(own.service_name.as_deref(), Some("the-service"));
    assert_eq!(own.instance_id.as_deref(), Some("the-instance"));
    let span = &own.span;
    assert_eq!((span.kind, &span.parent_span_id), (SERVER, &first.span()));
    assert_eq!((span.trace_state.as_str(), span.status_code()), ("vendor=1", 0));
    assert!(span.span_id.len() == 8 && span.start_time_unix_nano <= span.end_time_unix_nano);
    if server.is_3_7() {
        // In a secured run, clients connect through a tunnel, but the span contains the server's own port.
        let url = server.listen_url();
        let (_, port) = url.rsplit_once(':').unwrap();
        for (name, value) in [
            ("rpc.system.name", "grpc"),
            ("rpc.method", "etcdserverpb.KV/Put"),
            ("rpc.response.status_code", "OK"),
            ("server.address", "127.0.0.1"),
            ("server.port", port),
        ] {
            assert_eq!(span.attribute(name).as_deref(), Some(value), "{name}");
        }
    } else {
        assert_eq!(span.attribute("rpc.system").as_deref(), Some("grpc"));
        assert_eq!(span.attribute("rpc.grpc.status_code").as_deref(), Some("0"));
    }
    last.exported(&collector, &["etcdserverpb.KV/Range"]).await;
    for exported in collector.exported() {
        let id = exported.span.trace_id;
        assert!(id == first.id() || id == last.id(), "{} of {id:?}", exported.span.name);
    }
}

async fn calls_without_a_trace_are_sampled(kind: Kind) {
    let collector = Collector::start().await;
    let server = traced(kind, &collector, 1_000_000).start().await;
    let (client, passed_over) = (server.client(), Trace(0x20));
    client.kv().put(passed_over.follow(&client, put("k", "v"), false)).await.unwrap();
    client.delete_range(delete("k", "")).await.unwrap();
    let root = eventually("a span of a call without a parent", async || {
        let mut exported = collector.exported().into_iter().map(|exported| exported.span);
        exported.find(|span| span.name == "etcdserverpb.KV/DeleteRange")
    })
    .await;
    assert!(root.parent_span_id.is_empty() && root.trace_id.iter().any(|byte| *byte != 0));
    let has_passed_over =
        collector.exported().iter().any(|exported| exported.span.trace_id == passed_over.id());
    assert!(!has_passed_over, "a call whose parent is not sampled is not exported");
}

async fn json_calls_are_traced(kind: Kind) {
    let collector = Collector::start().await;
    let server = traced(kind, &collector, 0).start().await;
    let trace = Trace(0x10);
    let parent = trace.parent(true);
    let mut fields = vec![("Grpc-Metadata-Traceparent", parent.as_str())];
    let metadata = server.client().metadata();
    let token = metadata.get("token").map(|token| token.to_str().unwrap());
    fields.extend(token.map(|token| ("Authorization", token)));
    let (port, body) = (server.port(), br#"{"key":"aw==","value":"dg=="}"#);
    let answer = request_with(port, "POST", "/v3/kv/put", &fields, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let exported = trace.exported(&collector, &["etcdserverpb.KV/Put"]).await;
    let own = named(&exported, "etcdserverpb.KV/Put");
    assert_eq!((own.kind, &own.parent_span_id), (SERVER, &trace.span()));
}

/// Asserts that a span is a child of another span in its trace and has these attributes.
#[track_caller]
fn assert_part(exported: &[ExportedSpan], name: &str, whole: &str, attributes: &[(&str, &str)]) {
    let (part, whole) = (named(exported, name), named(exported, whole));
    assert_eq!(part.parent_span_id, whole.span_id, "{name}");
    assert!(part.start_time_unix_nano >= whole.start_time_unix_nano, "{name}");
    for (key, value) in attributes {
        assert_eq!(part.attribute(key).as_deref(), Some(*value), "{key} of {name}");
    }
}

async fn spans_of_operations_and_stages_are_children_of_call_spans(kind: Kind) {
    let collector = Collector::start().await;
    let server = traced(kind, &collector, 0).start().await;
    let client = server.client();
    let traces: Vec<Trace> = (1..=7).map(|number| Trace(number * 0x10)).collect();
    let [a, b, c, d, e, f, g] = &traces[..] else { unreachable!() };

    client.kv().put(a.follow(&client, put("k", "a secret value"), true)).await.unwrap();
    let names = [
        "put",
        "queue",
        "disk",
        "quorum",
        "application",
        "answer",
        "encode",
        "etcdserverpb.KV/Put",
    ];
    let spans = a.exported(&collector, &names).await;
    assert_part(&spans, "put", "etcdserverpb.KV/Put", &[("key", "k")]);
    let events: Vec<_> = named(&spans, "put").events().collect();
    assert_eq!(events, ["Send raft proposal", "Receive raft result"]);
    for stage in &names[1..6] {
        assert_part(&spans, stage, "put", &[]);
    }
    assert_part(&spans, "encode", "etcdserverpb.KV/Put", &[]);
    assert!(!format!("{spans:?}").contains("secret"), "spans contain no values");

    client.kv().range(b.follow(&client, range("a", "z"), true)).await.unwrap();
    let spans = b.exported(&collector, &["range", "quorum", "read", "etcdserverpb.KV/Range"]).await;
    let asked = [("range_begin", "a"), ("range_end", "z"), ("limit", "0"), ("keys_only", "false")];
    assert_part(&spans, "range", "etcdserverpb.KV/Range", &asked);
    assert_part(&spans, "read", "range", &[]);

    let absent =
        compare("x", pb::compare::CompareResult::Equal, pb::compare::TargetUnion::Version(0));
    let txn = txn_when(vec![absent], vec![put_op("y", "v"), get_op("k")], vec![]);
    client.kv().txn(c.follow(&client, txn, true)).await.unwrap();
    let spans = c.exported(&collector, &["txn", "etcdserverpb.KV/Txn"]).await;
    let asked = [
        ("compare_first_key", "x"),
        ("success_first_key", "y"),
        ("success_first_type", "put"),
        ("success_first_lease", "0"),
        ("success_len", "2"),
        ("read_only", "false"),
    ];
    assert_part(&spans, "txn", "etcdserverpb.KV/Txn", &asked);

    client.kv().delete_range(d.follow(&client, delete("k", ""), true)).await.unwrap();
    let spans = d.exported(&collector, &["delete_range", "etcdserverpb.KV/DeleteRange"]).await;
    assert_part(&spans, "delete_range", "etcdserverpb.KV/DeleteRange", &[("range_begin", "k")]);

    let grant = pb::LeaseGrantRequest { id: 7, ttl: 60 };
    client.lease().lease_grant(e.follow(&client, grant, true)).await.unwrap();
    let spans = e.exported(&collector, &["lease_grant", "etcdserverpb.Lease/LeaseGrant"]).await;
    let asked = [("id", "7"), ("ttl", "60")];
    assert_part(&spans, "lease_grant", "etcdserverpb.Lease/LeaseGrant", &asked);

    let renewals = tokio_stream::iter([7, 7].map(|id| pb::LeaseKeepAliveRequest { id }));
    let mut renewed = client
        .lease()
        .lease_keep_alive(f.follow(&client, renewals, true))
        .await
        .unwrap()
        .into_inner();
    while renewed.message().await.unwrap().is_some() {}
    let spans = f.exported(&collector, &["lease_renew", "etcdserverpb.Lease/LeaseKeepAlive"]).await;
    assert_part(&spans, "lease_renew", "etcdserverpb.Lease/LeaseKeepAlive", &[("id", "7")]);
    assert_eq!(spans.iter().filter(|exported| exported.span.name == "lease_renew").count(), 2);

    // A lock or election consists of several operations.
    let lock = LockRequest { name: "l".into(), lease: 7 };
    client.locks().lock(g.follow(&client, lock, true)).await.unwrap();
    let spans = g.exported(&collector, &["txn", "v3lockpb.Lock/Lock"]).await;
    assert_part(&spans, "txn", "v3lockpb.Lock/Lock", &[("success_first_key", "l/7")]);
}

async fn the_span_of_a_watch_lasts_as_long_as_its_watcher(kind: Kind) {
    let collector = Collector::start().await;
    let server = traced(kind, &collector, 0).start().await;
    let (client, trace) = (server.client(), Trace(0x10));
    let (requests, received) = tokio::sync::mpsc::channel(8);
    let received = tokio_stream::wrappers::ReceiverStream::new(received);
    let call = trace.follow(&client, received, true);
    let union = |union| pb::WatchRequest { request_union: Some(union) };
    for name in ["first", "second"] {
        let create = pb::watch_request::RequestUnion::CreateRequest(watch_key(name));
        requests.send(union(create)).await.unwrap();
    }
    // As with etcd, the head of the response arrives with the first message.
    let mut answers = client.watch().watch(call).await.unwrap().into_inner();
    for _ in 0..2 {
        assert!(answers.message().await.unwrap().unwrap().created);
    }
    assert!(collector.exported().iter().all(|exported| exported.span.name != "watch"));
    let cancel = pb::WatchCancelRequest { watch_id: 0 };
    let cancel = pb::watch_request::RequestUnion::CancelRequest(cancel);
    requests.send(union(cancel)).await.unwrap();
    assert!(answers.message().await.unwrap().unwrap().canceled);
    let exported = trace.exported(&collector, &["watch"]).await;
    assert_eq!(named(&exported, "watch").attribute("key").as_deref(), Some("first"));
    drop((requests, answers));
    let exported = trace.exported(&collector, &["watch", "etcdserverpb.Watch/Watch"]).await;
    assert_part(&exported, "watch", "etcdserverpb.Watch/Watch", &[("start_rev", "0")]);
    assert_eq!(exported.iter().filter(|exported| exported.span.name == "watch").count(), 2);
}

async fn spans_of_failed_calls_contain_the_status_code(kind: Kind) {
    let collector = Collector::start().await;
    let server = traced(kind, &collector, 0).start().await;
    let (client, mistaken, late) = (server.client(), Trace(0x10), Trace(0x20));
    let refused = client.kv().put(mistaken.follow(&client, put("", "v"), true)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let exported = mistaken.exported(&collector, &["etcdserverpb.KV/Put"]).await;
    let own = named(&exported, "etcdserverpb.KV/Put");
    assert_eq!(own.attribute("rpc.response.status_code").as_deref(), Some("INVALID_ARGUMENT"));
    assert_eq!(own.status_code(), 0, "client errors do not set the status of the span");
    let lock = |lease| LockRequest { name: "l".into(), lease };
    client.lock(lock(0)).await.unwrap();
    let mut request = late.follow(&client, lock(0), true);
    request.set_timeout(Duration::from_millis(50));
    client.locks().lock(request).await.unwrap_err();
    let exported = late.exported(&collector, &["v3lockpb.Lock/Lock"]).await;
    let own = named(&exported, "v3lockpb.Lock/Lock");
    let code = own.attribute("rpc.response.status_code").unwrap();
    // Either end may be the first to notice the timeout.
    match code.as_str() {
        "DEADLINE_EXCEEDED" => assert_eq!(own.status_code(), 2),
        "CANCELLED" => assert_eq!(own.status_code(), 0),
        other => panic!("{other}"),
    }
}

/// Returns a metric about spans.
fn spans(server: &Server, name: &str) -> f64 {
    server.metric(&format!("quorate_tracing_spans_{name}")).unwrap()
}

async fn calls_succeed_without_a_reachable_collector(kind: Kind) {
    let collector = Collector::prepare();
    let server = traced(kind, &collector, 1_000_000).start().await;
    let client = server.client();
    // The server produces more spans than its queue can hold.
    eventually_within(Duration::from_secs(90), "spans are dropped", async || {
        let puts = (0..64).map(|_| client.put(put("k", "v")));
        for answer in puts.collect::<Vec<_>>() {
            answer.await.unwrap();
        }
        (spans(&server, "dropped_total") > 0.0).then_some(())
    })
    .await;
    assert!(spans(&server, "bytes") <= f64::from(8 << 20));
    eventually("a log line about lost spans", async || {
        server
            .log_of_this_run()
            .contains(
                "tracing spans are lost; check that the collector is reachable and fast enough",
            )
            .then_some(())
    })
    .await;
    assert_eq!(spans(&server, "exported_total"), 0.0);
    collector.listen().await;
    eventually("spans are exported after the collector has started", async || {
        (!collector.exported().is_empty()).then_some(())
    })
    .await;
}

async fn waiting_spans_are_sent_on_shutdown(kind: Kind) {
    let collector = Collector::start().await;
    let mut server = traced(kind, &collector, 0).start().await;
    let (client, trace) = (server.client(), Trace(0x10));
    client.kv().put(trace.follow(&client, put("k", "v"), true)).await.unwrap();
    server.stop().await;
    let is_put = |exported: &ExportedSpan| exported.span.name == "etcdserverpb.KV/Put";
    assert!(
        collector.exported().iter().any(is_put),
        "the member exports its spans before it exits"
    );
}
