//! Tests that watchers receive the live events and the history of a real state.

use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use prost::Message;
use quorate_api::etcdserverpb::request_op::Request as Op;
use quorate_api::mvccpb::event::EventType;

use super::*;
use crate::watch::{HeaderFields, WatchStream};

fn watch(log: &Log, requests: impl IntoIterator<Item = pb::WatchCreateRequest>) -> WatchStream {
    let mut stream = log.state.published().hub.open_stream(1 << 20);
    for request in requests {
        stream.create(request, |_, _| Ok(()));
    }
    stream
}

fn create(key: &str, range_end: &str, start_revision: i64) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest {
        key: text(key),
        range_end: text(range_end),
        start_revision,
        prev_kv: true,
        ..pb::WatchCreateRequest::default()
    }
}

/// Returns each event in the form `id@mod_revision put key=value<previous`.
fn events(log: &Log, stream: &mut WatchStream) -> Vec<String> {
    let hub = log.state.published().hub;
    let mut seen = Vec::new();
    loop {
        while hub.catch_up().unwrap() {}
        let cx = Context::from_waker(Waker::noop());
        let Poll::Ready(frame) = stream.poll_next(&cx, &HeaderFields::default()) else {
            return seen;
        };
        let mut bytes = BytesMut::new();
        frame.unwrap().encode(&mut bytes);
        let response = pb::WatchResponse::decode(bytes.freeze()).unwrap();
        if response.canceled {
            seen.push(format!("{} canceled {}", response.watch_id, response.compact_revision));
        }
        for event in response.events {
            let kv = event.kv.unwrap();
            let kv = kv.fields();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let kind = if event.r#type == EventType::Put as i32 { "put" } else { "delete" };
            let mut line =
                format!("{}@{} {kind} {}", response.watch_id, kv.mod_revision, text(kv.key));
            if kind == "put" {
                line += &format!("={}", text(kv.value));
            }
            if let Some(previous) = event.prev_kv {
                line += &format!("<{}", text(previous.value()));
            }
            seen.push(line);
        }
    }
}

/// Writes revisions 2 to 6.
fn written() -> Log {
    let mut log = Log::new();
    log.put("a", "1");
    log.put("b", "1");
    log.put("a", "2");
    log.outcome(Command::DeleteRange(delete("a", "c"))).unwrap();
    let ops = [Op::RequestPut(put("a", "3")), Op::RequestPut(put("c", "1"))];
    let success = ops.map(|op| pb::RequestOp { request: Some(op) }).into();
    log.outcome(Command::Txn(pb::TxnRequest { success, ..pb::TxnRequest::default() })).unwrap();
    log.state.publish();
    log
}

const HISTORY: [&str; 7] = [
    "0@2 put a=1",
    "0@3 put b=1",
    "0@4 put a=2<1",
    "0@5 delete a<2",
    "0@5 delete b<1",
    "0@6 put a=3",
    "0@6 put c=1",
];

#[test]
fn a_watcher_receives_history_and_live_events_without_a_gap() {
    let mut log = written();
    let mut stream = watch(&log, [create("\0", "\0", 1)]);
    assert_eq!(events(&log, &mut stream), HISTORY);
    log.put("a", "4");
    assert_eq!(events(&log, &mut stream), [""; 0]);
    log.state.publish();
    assert_eq!(events(&log, &mut stream), ["0@7 put a=4<3"]);
    log.state.publish();
    assert_eq!(events(&log, &mut stream), [""; 0]);
}

#[test]
fn live_and_late_watchers_receive_the_same_events() {
    let mut seen = Vec::new();
    let mut log = Log::new();
    let mut live = watch(&log, [create("\0", "\0", 0)]);
    for (key, value) in [("a", "1"), ("b", "1"), ("a", "2")] {
        log.put(key, value);
        log.state.publish();
        seen.extend(events(&log, &mut live));
    }
    log.outcome(Command::DeleteRange(delete("a", "c"))).unwrap();
    let ops = [Op::RequestPut(put("a", "3")), Op::RequestPut(put("c", "1"))];
    let success = ops.map(|op| pb::RequestOp { request: Some(op) }).into();
    log.outcome(Command::Txn(pb::TxnRequest { success, ..pb::TxnRequest::default() })).unwrap();
    log.state.publish();
    seen.extend(events(&log, &mut live));
    assert_eq!(seen, HISTORY);
}

#[test]
fn a_watch_of_compacted_history_is_cancelled() {
    let mut log = written();
    let compaction = pb::CompactionRequest { revision: 4, physical: false };
    log.outcome(Command::Compaction(compaction)).unwrap();
    while log.state.compaction_step(10).more {}
    log.state.publish();
    let mut stream = watch(&log, [create("a", "", 3), create("a", "", 4)]);
    assert_eq!(
        events(&log, &mut stream),
        // The value before revision 4 is compacted.
        ["0 canceled 4", "1@4 put a=2", "1@5 delete a<2", "1@6 put a=3"]
    );
}

#[test]
fn revoking_a_lease_sends_delete_events() {
    let mut log = Log::new();
    log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: 5, ttl: 60 })).unwrap();
    for key in ["b", "a"] {
        log.outcome(Command::Put(pb::PutRequest { lease: 5, ..put(key, "v") })).unwrap();
    }
    log.state.publish();
    let mut stream = watch(&log, [create("a", "z", 0)]);
    log.outcome(Command::LeaseRevoke(pb::LeaseRevokeRequest { id: 5 })).unwrap();
    log.state.publish();
    assert_eq!(events(&log, &mut stream), ["0@4 delete a<v", "0@4 delete b<v"]);
}
