//! Tests the rules that select the calls to trace, and the contents of the spans. The tests decode the messages by
//! hand.

use std::time::Instant;

use quorate_protobuf::{Fields, Value, put_bytes, put_number};

use super::*;
use crate::metrics::{Metrics, MetricsLevel};

const SAMPLED: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const PASSED_OVER: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn tracer(per_million: u32) -> Arc<Tracer> {
    let metrics = Metrics::new(&[], MetricsLevel::Basic);
    let resource = Resource::new("etcd", "one");
    Arc::new(Tracer::new(Sampling::per_million(per_million), resource, metrics.tracing))
}

/// Returns the bytes of each field with this number.
fn parts(message: &[u8], number: u32) -> Vec<&[u8]> {
    let fields = Fields::new(message).map(Result::unwrap);
    let of_number = fields.filter(|(field, _)| *field == number);
    of_number
        .map(|(_, value)| match value {
            Value::Bytes(bytes) => bytes,
            other => panic!("unexpected {other:?} in field {number}"),
        })
        .collect()
}

/// Returns the spans of a batch with the names of their scopes.
fn spans(request: &[u8]) -> Vec<(String, &[u8])> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let of_resource = parts(request, 1)[0];
    let scopes = parts(of_resource, 2).into_iter();
    let of_scope = |scope| {
        let name = text(parts(parts(scope, 1)[0], 1)[0]);
        parts(scope, 2).into_iter().map(move |span| (name.clone(), span))
    };
    scopes.flat_map(of_scope).collect()
}

fn name(span: &[u8]) -> &str {
    std::str::from_utf8(parts(span, 5)[0]).unwrap()
}

#[test]
fn the_sampling_decision_of_the_caller_takes_precedence() {
    for (per_million, alone) in [(0, 0), (1_000_000, 100), (2_000_000, 100)] {
        let tracer = tracer(per_million);
        let followed = |parent: Option<&[u8]>| {
            (0..100).filter(|_| tracer.follow(parent, None).is_some()).count()
        };
        assert_eq!(followed(Some(SAMPLED)), 100, "{per_million}");
        assert_eq!(followed(Some(PASSED_OVER)), 0, "{per_million}");
        assert_eq!(followed(None), alone, "{per_million}");
        assert_eq!(followed(Some(b"no such thing")), alone, "{per_million}");
    }
    let tracer = tracer(500_000);
    let followed = (0..10_000).filter(|_| tracer.follow(None, None).is_some()).count();
    assert!((4_500..5_500).contains(&followed), "{followed}");
}

#[test]
fn all_members_sample_the_same_traces() {
    let half = Sampling::per_million(500_000);
    let mut id = [0xff; 16];
    assert!(!half.takes(&id));
    id[8] = 0x7f;
    assert!(half.takes(&id));
    id[8] = 0x80;
    assert!(!half.takes(&id));
}

#[test]
fn operations_and_stages_are_children_of_the_span_of_their_call() {
    let tracer = tracer(0);
    let call = Arc::new(tracer.follow(Some(SAMPLED), Some(b"vendor=1")).unwrap());
    let now = Instant::now();
    call.note_event("before", now);
    let operation = call.operation("put", vec![Attribute::text("key", b"k\xff")]);
    call.note_event("sent", now);
    call.stage(call.current(), "disk", now, now);
    drop(operation);
    call.note_response();
    call.end(&SpanEnd { name: "a.B/C", attributes: &[], error: Some("broken") });
    let batch = tracer.take_batch().unwrap();
    let spans = spans(batch.request());
    let names: Vec<_> = spans.iter().map(|(scope, span)| (scope.as_str(), name(span))).collect();
    assert_eq!(
        names,
        [
            ("go.etcd.io/etcd", "put"),
            ("go.etcd.io/etcd", "a.B/C"),
            ("quorate", "disk"),
            ("quorate", "encode"),
        ]
    );
    let [put, own, disk, encode] = [0, 1, 2, 3].map(|position| spans[position].1);
    for (_, span) in &spans {
        assert_eq!(parts(span, 1)[0][..3], [0x0a, 0xf7, 0x65]);
        assert_eq!(parts(span, 3)[0], b"vendor=1");
    }
    assert_eq!(parts(own, 4)[0], [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
    assert_eq!(parts(put, 4), parts(own, 2));
    assert_eq!(parts(disk, 4), parts(put, 2));
    assert_eq!(parts(encode, 4), parts(own, 2));
    let text = String::from_utf8_lossy(parts(put, 9)[0]);
    assert!(text.contains("key") && text.contains("k\u{fffd}"), "{text}");
    assert_eq!(parts(put, 11).len(), 2, "events go to the operation that ends next");
    assert_eq!(parts(parts(own, 15)[0], 2)[0], b"broken");
    let resource = String::from_utf8_lossy(parts(parts(batch.request(), 1)[0], 1)[0]);
    assert!(resource.contains("service.name") && resource.contains("service.instance.id"));
}

#[test]
fn long_attribute_strings_are_truncated() {
    let AttributeValue::Text(text) = Attribute::text("key", &[b'x'; 1 << 20]).value else {
        panic!("the attribute is not a string")
    };
    assert_eq!(text.len(), 1024);
    let tracer = tracer(1_000_000);
    let call = tracer.follow(None, Some(b"nobody's")).unwrap();
    let reason = "é".repeat(1 << 16);
    call.end(&SpanEnd { name: "n", attributes: &[], error: Some(&reason) });
    let batch = tracer.take_batch().unwrap();
    assert!(batch.request().len() < 2048);
    let spans = spans(batch.request());
    assert!(parts(spans[0].1, 3).is_empty(), "a tracestate without a traceparent is ignored");
}

#[test]
fn sent_and_dropped_spans_are_counted() {
    let metrics = Metrics::new(&[], MetricsLevel::Basic);
    let (all, resource) = (Sampling::per_million(1_000_000), Resource::new("etcd", ""));
    let tracer = Arc::new(Tracer::new(all, resource, metrics.tracing.clone()));
    let counted = |name: &str| {
        let head = format!("quorate_tracing_spans_{name} ");
        let scrape = metrics.render();
        let line = scrape.lines().find_map(|line| line.strip_prefix(&head));
        line.unwrap().parse::<u64>().unwrap()
    };
    let end = SpanEnd { name: "n", attributes: &[], error: None };
    for _ in 0..10 {
        tracer.follow(None, None).unwrap().end(&end);
    }
    assert!(counted("bytes") > 0);
    let batch = tracer.take_batch().unwrap();
    assert!(tracer.take_batch().is_none());
    tracer.note_sent(batch, 3);
    assert_eq!((counted("exported_total"), counted("dropped_total"), counted("bytes")), (7, 3, 0));
    tracer.follow(None, None).unwrap().end(&end);
    tracer.note_given_up(tracer.take_batch().unwrap());
    assert_eq!((counted("dropped_total"), tracer.dropped_count(), counted("bytes")), (4, 4, 0));
}

#[test]
fn the_number_of_refused_spans_is_read_from_the_response() {
    let (mut partial, mut answer) = (Vec::new(), Vec::new());
    put_number(1, 7, &mut partial);
    put_bytes(2, b"because", &mut partial);
    put_bytes(1, &partial, &mut answer);
    assert_eq!(refused_spans(&answer), 7);
    for other in [&[][..], b"\xff", &answer[..3], b"\x08\x07"] {
        assert_eq!(refused_spans(other), 0, "{other:?}");
    }
}
