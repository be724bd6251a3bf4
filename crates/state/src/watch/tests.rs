//! Tests of the watch service, rule by rule. `random` compares it with a model of the events that
//! every watcher must receive.

mod bounds;
mod catching_up;
mod random;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::Message;
use quorate_api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use quorate_api::mvccpb::event::EventType;
use quorate_api::record::{Fields, KeyValue};

use super::*;
use crate::steps;

const HEADER: HeaderFields = HeaderFields { cluster_id: 7, member_id: u64::MAX, raft_term: 3 };

/// A change in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    revision: i64,
    deleted: bool,
    key: Vec<u8>,
    record: KeyValue,
}

/// The whole history. Revisions below the compacted revision cannot be read.
#[derive(Clone, Default)]
struct Keyspace(Arc<Mutex<Facts>>);

#[derive(Clone)]
struct Facts {
    changes: Vec<Change>,
    current: i64,
    compacted: i64,
    /// The number of changes that a read returns before it fails.
    readable_count: usize,
}

impl Default for Facts {
    fn default() -> Self {
        Self { changes: Vec::new(), current: 1, compacted: -1, readable_count: usize::MAX }
    }
}

impl Facts {
    fn live(&self, key: &[u8], revision: i64) -> Option<&Change> {
        self.changes
            .iter()
            .rev()
            .find(|change| change.key == key && change.revision <= revision)
            .filter(|change| !change.deleted)
    }
}

impl Source for Keyspace {
    fn latest(&self) -> Box<dyn History> {
        Box::new(self.0.lock().clone())
    }
}

impl History for Facts {
    fn current_revision(&self) -> i64 {
        self.current
    }

    fn compacted_revision(&self) -> i64 {
        self.compacted
    }

    fn visit_changes(
        &self,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> Result<Option<i64>, HistoryFault> {
        assert!(first >= self.compacted, "compacted history is not read");
        let mut left = self.readable_count;
        for change in self.changes.iter().filter(|change| change.revision >= first) {
            left = left.checked_sub(1).ok_or("the disk has failed")?;
            if !visit(change.revision, &event(change)) {
                break;
            }
        }
        Ok(None)
    }

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, HistoryFault> {
        let readable = revision >= self.compacted;
        Ok(self.live(key, revision).filter(|_| readable).map(|change| change.record.clone()))
    }
}

fn event(change: &Change) -> Event<'_> {
    Event { deleted: change.deleted, key: &change.key, record: change.record.encoded() }
}

impl Keyspace {
    /// Writes one revision and publishes it. A value of `None` deletes the key.
    fn write(&self, hub: &Hub, changes: &[(&[u8], Option<&[u8]>)]) {
        let mut publication = hub.publication();
        let mut facts = self.0.lock();
        let revision = facts.current + 1;
        let mut made = Vec::new();
        for (key, value) in changes {
            let previous = facts.live(key, revision).map(|change| change.record.clone());
            let fields = match (value, previous) {
                (None, None) => continue,
                (None, Some(_)) => Fields { key, mod_revision: revision, ..Fields::default() },
                (Some(value), previous) => {
                    let previous = previous.as_ref().map(KeyValue::fields);
                    Fields {
                        key,
                        value,
                        create_revision: previous.map_or(revision, |kv| kv.create_revision),
                        mod_revision: revision,
                        version: previous.map_or(1, |kv| kv.version + 1),
                        lease: 0,
                    }
                }
            };
            let record = KeyValue::new(&fields);
            made.push(Change { revision, deleted: value.is_none(), key: key.to_vec(), record });
        }
        if made.is_empty() {
            return;
        }
        facts.changes.extend(made.clone());
        facts.current = revision;
        drop(facts);
        publication.deliver_events(revision, &made.iter().map(event).collect::<Vec<_>>());
    }

    fn put(&self, hub: &Hub, key: &[u8], value: &[u8]) {
        self.write(hub, &[(key, Some(value))]);
    }

    fn compact(&self, revision: i64) {
        self.0.lock().compacted = revision;
    }
}

fn setup(queue: QueueLimits) -> (Keyspace, Hub) {
    setup_with(WatchLimits { queue, ..WatchLimits::default() })
}

fn setup_with(limits: WatchLimits) -> (Keyspace, Hub) {
    let keyspace = Keyspace::default();
    let hub = Hub::new(Arc::new(keyspace.clone()), 1, limits);
    (keyspace, hub)
}

fn create(key: &[u8], range_end: &[u8], start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest {
        key: Bytes::copy_from_slice(key),
        range_end: Bytes::copy_from_slice(range_end),
        start_revision,
        ..WatchCreateRequest::default()
    }
}

fn watch(stream: &mut WatchStream, request: WatchCreateRequest) {
    stream.create(request, |_, _| Ok(()));
}

fn next(stream: &mut WatchStream) -> Option<WatchResponse> {
    match stream.poll_next(&Context::from_waker(Waker::noop()), &HEADER) {
        Poll::Pending => None,
        Poll::Ready(frame) => {
            let frame = frame.unwrap();
            let mut bytes = BytesMut::new();
            frame.encode(&mut bytes);
            assert_eq!(bytes.len(), frame.encoded_len());
            let response = WatchResponse::decode(bytes.freeze()).unwrap();
            let header = response.header.as_ref().unwrap();
            assert_eq!((header.cluster_id, header.member_id), (7, u64::MAX));
            assert_eq!(header.raft_term, 3);
            Some(response)
        }
    }
}

fn drain(stream: &mut WatchStream) -> Vec<WatchResponse> {
    std::iter::from_fn(|| next(stream)).collect()
}

fn catch_up(hub: &Hub) {
    while hub.catch_up().unwrap() {}
}

/// Returns the response as text: the watch id, the header revision and the content.
fn show(response: &WatchResponse) -> String {
    let mut text = format!("{}@{}:", response.watch_id, response.header.as_ref().unwrap().revision);
    if response.created {
        text += " created";
    }
    if response.canceled {
        text += &format!(" canceled {} {}", response.compact_revision, response.cancel_reason);
    }
    if response.fragment {
        text += " fragment";
    }
    for event in &response.events {
        let kv = event.kv.clone().unwrap();
        let kind = if event.r#type == EventType::Put as i32 { "put" } else { "delete" };
        let value = String::from_utf8_lossy(kv.value()).into_owned();
        text += &format!(" {kind} {}={value}", String::from_utf8_lossy(kv.key()));
        if let Some(previous) = &event.prev_kv {
            text += &format!("<{}", String::from_utf8_lossy(previous.value()));
        }
    }
    text
}

fn received(stream: &mut WatchStream) -> Vec<String> {
    drain(stream).iter().map(show).collect()
}

#[test]
fn watch_creation_returns_the_error_of_the_first_failed_check() {
    let (_, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    let denied = |_: &[u8], _: &[u8]| Err("etcdserver: permission denied".to_owned());
    stream.create(create(b"b", b"a", -1), denied);
    stream.create(create(b"b", b"a", 0), denied);
    watch(&mut stream, create(b"b", b"a", 0));
    watch(&mut stream, create(b"b", b"b", 0));
    watch(&mut stream, WatchCreateRequest { watch_id: 1, ..create(b"a", b"", 0) });
    watch(&mut stream, WatchCreateRequest { watch_id: 1, ..create(b"a", b"", 0) });
    watch(&mut stream, WatchCreateRequest { watch_id: -5, ..create(b"a", b"", 0) });
    for _ in 0..2 {
        watch(&mut stream, create(b"", b"\0", 0));
    }
    assert_eq!(
        received(&mut stream),
        [
            "-1@1: created canceled 0 etcdserver: mvcc: required revision has been compacted",
            "-1@1: created canceled 0 etcdserver: permission denied",
            "-1@1: created canceled 0 mvcc: watcher range is empty",
            "-1@1: created canceled 0 mvcc: watcher range is empty",
            "1@1: created",
            "-1@1: created canceled 0 mvcc: duplicate watch ID provided on the WatchStream",
            "-5@1: created",
            "0@1: created",
            "2@1: created",
        ]
    );
}

#[test]
fn events_are_sent_to_the_watchers_of_their_keys() {
    let (keyspace, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 0));
    watch(&mut stream, create(b"b", b"d", 0));
    watch(&mut stream, create(b"c", b"\0", 0));
    watch(&mut stream, create(b"", b"\0", 0));
    drain(&mut stream);
    keyspace.write(&hub, &[(b"a", Some(b"1")), (b"c", Some(b"2"))]);
    keyspace.write(&hub, &[(b"c", None), (b"c", Some(b"3")), (b"zz", Some(b"4"))]);
    let mut seen = received(&mut stream);
    seen.sort();
    assert_eq!(
        seen,
        [
            "0@2: put a=1",
            "1@2: put c=2",
            "1@3: delete c= put c=3",
            "2@2: put c=2",
            "2@3: delete c= put c=3 put zz=4",
            "3@2: put a=1 put c=2",
            "3@3: delete c= put c=3 put zz=4",
        ]
    );
}

#[test]
fn watchers_receive_filtered_events_with_uncompacted_previous_values() {
    let (keyspace, hub) = setup(QueueLimits::default());
    keyspace.put(&hub, b"a", b"0");
    let mut stream = hub.open_stream(1 << 20);
    for (filters, prev_kv) in
        [(vec![0], false), (vec![1], false), (vec![0, 1, 9], true), (vec![], true), (vec![0], true)]
    {
        watch(&mut stream, WatchCreateRequest { filters, prev_kv, ..create(b"a", b"", 0) });
    }
    drain(&mut stream);
    keyspace.put(&hub, b"a", b"1");
    keyspace.write(&hub, &[(b"a", None)]);
    keyspace.put(&hub, b"a", b"2");
    keyspace.put(&hub, b"a", b"3");
    keyspace.compact(6);
    let mut seen = received(&mut stream);
    seen.sort();
    assert_eq!(
        seen,
        [
            "0@4: delete a=",
            "1@3: put a=1",
            "1@5: put a=2",
            "1@6: put a=3",
            // The revisions before these events are compacted by the time the events are sent.
            "3@3: put a=1",
            "3@4: delete a=",
            "3@5: put a=2",
            "3@6: put a=3",
            "4@4: delete a=",
        ]
    );
    keyspace.put(&hub, b"a", b"4");
    keyspace.write(&hub, &[(b"a", None)]);
    let mut seen = received(&mut stream);
    seen.sort();
    assert_eq!(
        seen,
        [
            "0@8: delete a=",
            "1@7: put a=4",
            "3@7: put a=4<3",
            "3@8: delete a=<4",
            "4@8: delete a=<4",
        ]
    );
}

#[test]
fn watchers_start_at_past_and_future_revisions() {
    let (keyspace, hub) = setup(QueueLimits::default());
    for value in [b"2", b"3", b"4"] {
        keyspace.put(&hub, b"a", value);
    }
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 3));
    watch(&mut stream, create(b"a", b"", 6));
    watch(&mut stream, create(b"a", b"", 5));
    keyspace.put(&hub, b"a", b"5");
    keyspace.put(&hub, b"a", b"6");
    catch_up(&hub);
    keyspace.put(&hub, b"a", b"7");
    let mut seen = received(&mut stream);
    seen[3..].sort();
    assert_eq!(
        seen,
        [
            "0@4: created",
            "1@4: created",
            "2@4: created",
            "0@6: put a=3 put a=4 put a=5 put a=6",
            "0@7: put a=7",
            "1@6: put a=6",
            "1@7: put a=7",
            "2@5: put a=5",
            "2@6: put a=6",
            "2@7: put a=7",
        ]
    );
}

#[test]
fn a_watcher_of_compacted_history_is_cancelled_and_keeps_its_id() {
    let (keyspace, hub) = setup(QueueLimits::default());
    for _ in 0..5 {
        keyspace.put(&hub, b"a", b"v");
    }
    keyspace.compact(4);
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 3));
    watch(&mut stream, create(b"a", b"", 4));
    catch_up(&hub);
    assert_eq!(
        received(&mut stream),
        ["0@6: created", "1@6: created", "0@0: canceled 4 ", "1@6: put a=v put a=v put a=v",]
    );
    stream.request_progress();
    watch(&mut stream, WatchCreateRequest { watch_id: 0, ..create(b"a", b"", 0) });
    stream.cancel(0);
    stream.cancel(0);
    stream.request_progress();
    assert_eq!(received(&mut stream), ["2@6: created", "0@6: canceled 0 ", "-1@6:"]);
}

#[test]
fn no_event_follows_a_watch_cancellation() {
    let (keyspace, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 0));
    watch(&mut stream, create(b"a", b"", 0));
    keyspace.put(&hub, b"a", b"1");
    stream.cancel(0);
    stream.cancel(17);
    keyspace.put(&hub, b"a", b"2");
    assert_eq!(
        received(&mut stream),
        [
            "0@1: created",
            "1@1: created",
            "0@2: put a=1",
            "1@2: put a=1",
            "0@2: canceled 0 ",
            "1@3: put a=2",
        ]
    );
    stream.cancel(1);
    drain(&mut stream);
    assert_eq!(hub.stats(), HubStats { stream_count: 1, ..HubStats::default() });
    drop(stream);
    assert_eq!(hub.stats(), HubStats::default());
    assert!(hub.lock().index.is_empty());
}

#[test]
fn large_responses_are_fragmented_on_request() {
    let (keyspace, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(300);
    watch(&mut stream, WatchCreateRequest { fragment: true, ..create(b"", b"\0", 0) });
    watch(&mut stream, create(b"", b"\0", 0));
    drain(&mut stream);
    let (small, large) = ([b's'; 90], [b'l'; 400]);
    keyspace.write(
        &hub,
        &[
            (b"a", Some(&small)),
            (b"b", Some(&small)),
            (b"c", Some(&large)),
            (b"d", Some(&small)),
            (b"e", Some(&small)),
        ],
    );
    keyspace.write(&hub, &[(b"a", Some(&large))]);
    let responses = drain(&mut stream);
    let shape: Vec<_> =
        responses.iter().map(|r| (r.watch_id, r.events.len(), r.fragment)).collect();
    assert_eq!(
        shape,
        [(0, 2, true), (0, 1, true), (0, 2, false), (1, 5, false), (0, 1, false), (1, 1, false),]
    );
    let lens: Vec<_> = responses.iter().map(Message::encoded_len).collect();
    assert!(lens[0] < 300, "{lens:?}");
    assert!(lens[1] > 300, "{lens:?}");
}

#[test]
fn progress_is_sent_only_to_synced_watchers_without_events() {
    let (keyspace, hub) = setup(QueueLimits::default());
    keyspace.put(&hub, b"a", b"1");
    let mut stream = hub.open_stream(1 << 20);
    stream.request_progress();
    assert_eq!(received(&mut stream), [""; 0]);
    let quiet =
        |key, start| WatchCreateRequest { progress_notify: true, ..create(key, b"", start) };
    watch(&mut stream, quiet(b"a", 0));
    watch(&mut stream, quiet(b"b", 0));
    watch(&mut stream, quiet(b"b", 9));
    watch(&mut stream, create(b"c", b"", 0));
    keyspace.put(&hub, b"a", b"2");
    // This watcher joins the group of watcher 0, but has not received any event.
    watch(&mut stream, quiet(b"a", 0));
    drain(&mut stream);
    stream.tick_progress();
    assert_eq!(received(&mut stream), ["1@3:", "4@3:"]);
    stream.tick_progress();
    assert_eq!(received(&mut stream), ["0@3:", "1@3:", "4@3:"]);
    stream.request_progress();
    assert_eq!(received(&mut stream), [""; 0]);
    stream.cancel(2);
    stream.request_progress();
    watch(&mut stream, create(b"a", b"", 2));
    stream.request_progress();
    catch_up(&hub);
    stream.request_progress();
    assert_eq!(
        received(&mut stream),
        ["2@3: canceled 0 ", "-1@3:", "5@3: created", "5@3: put a=1 put a=2", "-1@3:"]
    );
}

#[test]
fn every_watcher_receives_periodic_progress_although_the_queue_is_short() {
    let (_keyspace, hub) = setup(QueueLimits { count_max: 3, ..QueueLimits::default() });
    let mut stream = hub.open_stream(1 << 20);
    let quiet = WatchCreateRequest { progress_notify: true, ..create(b"a", b"", 0) };
    for _ in 0..10 {
        watch(&mut stream, quiet.clone());
    }
    drain(&mut stream);
    let all: Vec<_> = (0..10).map(|watch_id| format!("{watch_id}@1:")).collect();
    stream.tick_progress();
    assert_eq!(received(&mut stream), all);
    stream.tick_progress();
    assert_eq!(show(&next(&mut stream).unwrap()), all[0]);
    stream.tick_progress();
    assert_eq!(received(&mut stream), all[1..], "no other round begins before the first one ends");
    stream.tick_progress();
    assert_eq!(received(&mut stream), all);
}

#[test]
fn a_progress_request_does_not_visit_the_watchers() {
    let (_keyspace, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    for key in 0..100_u8 {
        watch(&mut stream, create(&[key], b"", 0));
    }
    drain(&mut stream);
    assert_eq!(steps::of(|| stream.request_progress()), 0);
    assert_eq!(received(&mut stream), ["-1@1:"]);
}

#[test]
fn a_stream_with_many_groups_is_closed_although_some_groups_have_several_watchers() {
    let (_keyspace, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    for key in (0..300_u32).chain(0..300) {
        watch(&mut stream, create(&key.to_be_bytes(), b"", 0));
    }
    drop(stream);
    let stats = hub.stats();
    assert_eq!((stats.stream_count, stats.watcher_count, stats.watcher_bytes), (0, 0, 0));
}

#[test]
fn a_slow_stream_has_a_bounded_queue_and_loses_no_event() {
    let limits = QueueLimits { bytes_max: 10_000, count_max: 16 };
    let (keyspace, hub) = setup(limits);
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 0));
    watch(&mut stream, create(b"a", b"", 0));
    for number in 0..3000 {
        keyspace.put(&hub, b"a", format!("{number}").as_bytes());
    }
    catch_up(&hub);
    assert_eq!(hub.stats().slow_watcher_count, 2);
    let mut counts = [0; 2];
    let mut largest = 0;
    loop {
        let responses = drain(&mut stream);
        if responses.is_empty() {
            break;
        }
        for response in responses.iter().filter(|response| !response.created) {
            largest = largest.max(response.events.len());
            for event in &response.events {
                let count = &mut counts[usize::try_from(response.watch_id).unwrap()];
                assert_eq!(event.kv.as_ref().unwrap().value(), format!("{count}").as_bytes());
                *count += 1;
            }
        }
        catch_up(&hub);
    }
    assert_eq!(counts, [3000; 2]);
    assert_eq!(largest, 1000);
    assert_eq!(hub.stats().slow_watcher_count, 0);
}

#[test]
fn watch_wakers_are_woken_once_per_wait() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let cx = Context::from_waker(&waker);
    let (keyspace, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 0));
    drain(&mut stream);
    assert!(stream.poll_next(&cx, &HEADER).is_pending());
    keyspace.put(&hub, b"other", b"");
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    keyspace.put(&hub, b"a", b"");
    keyspace.put(&hub, b"a", b"");
    assert_eq!(count.0.load(Ordering::Relaxed), 1);

    assert!(hub.poll_behind(&cx).is_pending());
    watch(&mut stream, create(b"a", b"", 1));
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    assert!(hub.poll_behind(&cx).is_ready());
}

#[test]
fn watchers_continue_after_a_snapshot_is_installed() {
    let (keyspace, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 0));
    watch(&mut stream, create(b"a", b"", 9));
    keyspace.put(&hub, b"a", b"2");
    drain(&mut stream);

    let (installed, other_hub) = setup(QueueLimits::default());
    for value in [b"2", b"3", b"4", b"5"] {
        installed.put(&other_hub, b"a", value);
    }
    hub.replace_store(Arc::new(installed.clone()), 5);
    installed.put(&hub, b"a", b"6");
    catch_up(&hub);
    assert_eq!(received(&mut stream), ["0@6: put a=3 put a=4 put a=5 put a=6"]);

    for value in [b"7", b"8"] {
        installed.put(&separate_hub(&installed), b"a", value);
    }
    installed.compact(8);
    hub.replace_store(Arc::new(installed.clone()), 8);
    installed.put(&hub, b"a", b"9");
    catch_up(&hub);
    assert_eq!(received(&mut stream), ["1@9: put a=9", "0@0: canceled 8 "]);
}

/// Returns a separate hub of the installed store, at the store's current revision.
fn separate_hub(keyspace: &Keyspace) -> Hub {
    let current = keyspace.0.lock().current;
    Hub::new(Arc::new(keyspace.clone()), current, WatchLimits::default())
}
