//! Compares random writes, slow readers, cancels, compactions and reopened streams with a model
//! that computes the events that every watcher must receive, each exactly once and in order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A step of a random run. A write contains keys and the sizes of their values; a key without a
/// size is deleted.
#[derive(Clone, Debug)]
enum Step {
    Write(Vec<(u8, Option<usize>)>),
    Create { stream: usize, range: (u8, Option<u8>), back: i64, options: u8 },
    Cancel { stream: usize, nth: usize },
    Take { stream: usize, count: usize },
    Progress { stream: usize },
    Tick { stream: usize },
    Reopen { stream: usize },
    CatchUp,
    Compact { back: i64 },
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..3usize;
    let size = prop_oneof![4 => 0..4usize, 2 => 0..300usize, 1 => 0..1500usize];
    let changes = prop::collection::vec((0..6u8, prop::option::weighted(0.7, size)), 1..4);
    let range = (0..6u8, prop::option::of(0..8u8));
    prop_oneof![
        12 => changes.prop_map(Step::Write),
        4 => (stream.clone(), range, -3..12i64, 0..16u8).prop_map(
            |(stream, range, back, options)| Step::Create { stream, range, back, options }
        ),
        1 => (stream.clone(), 0..8usize).prop_map(|(stream, nth)| Step::Cancel { stream, nth }),
        6 => (stream.clone(), 1..12usize).prop_map(|(stream, count)| Step::Take { stream, count }),
        1 => stream.clone().prop_map(|stream| Step::Progress { stream }),
        1 => stream.clone().prop_map(|stream| Step::Tick { stream }),
        1 => stream.prop_map(|stream| Step::Reopen { stream }),
        3 => Just(Step::CatchUp),
        1 => (0..10i64).prop_map(|back| Step::Compact { back }),
    ]
}

/// Generates limits that some values exceed and others do not.
fn limits() -> impl Strategy<Value = WatchLimits> {
    let queue = (1..1500usize, 1..6usize);
    let catch_up = (1..6usize, 0..800usize, 1..20usize, 0..8i64, 0..900usize);
    let held = prop_oneof![1..1500usize, Just(usize::MAX)];
    (queue, catch_up, held).prop_map(|((bytes_max, count_max), catch_up, held)| WatchLimits {
        held_bytes_max: held,
        queue: QueueLimits { bytes_max, count_max },
        catch_up: CatchUpLimits {
            response_revisions_max: catch_up.0,
            response_bytes: catch_up.1,
            pass_changes: catch_up.2,
            locked_revisions_max: catch_up.3,
            locked_bytes_max: catch_up.4,
        },
        ..WatchLimits::default()
    })
}

/// The request of one watcher, and the events that it has received.
#[derive(Debug)]
struct Seen {
    range: (Vec<u8>, Option<Vec<u8>>),
    start: i64,
    drop_puts: bool,
    drop_deletes: bool,
    prev_kv: bool,
    fragment: bool,
    received: Vec<Change>,
    /// The revision whose fragments are still arriving.
    partial: Option<i64>,
    created: bool,
    compacted: bool,
    cancelled: bool,
}

impl Seen {
    fn expects<'a>(&'a self, facts: &'a Facts) -> impl Iterator<Item = &'a Change> {
        let (key, end) = &self.range;
        facts.changes.iter().filter(move |change| {
            change.revision >= self.start
                && match end {
                    None => change.key == *key,
                    Some(end) if end[..] == [0] => change.key >= *key,
                    Some(end) => change.key >= *key && change.key < *end,
                }
                && !(if change.deleted { self.drop_deletes } else { self.drop_puts })
        })
    }
}

struct Client {
    stream: WatchStream,
    seen: BTreeMap<i64, Seen>,
    next_id: i64,
    fragment_bytes_max: usize,
}

impl Client {
    fn new(hub: &Hub, fragment_bytes_max: usize) -> Self {
        let stream = hub.open_stream(fragment_bytes_max);
        Self { stream, seen: BTreeMap::new(), next_id: 1, fragment_bytes_max }
    }

    fn take(&mut self, count: usize, facts: &Facts) -> usize {
        for taken in 0..count {
            let Some(response) = next(&mut self.stream) else { return taken };
            self.receive(&response, facts);
        }
        count
    }

    fn receive(&mut self, response: &WatchResponse, facts: &Facts) {
        let revision = response.header.as_ref().unwrap().revision;
        if response.watch_id == -1 {
            assert!(response.events.is_empty());
            assert!(!response.canceled, "{}", response.cancel_reason);
            for seen in self.seen.values().filter(|seen| !seen.cancelled) {
                assert_all_seen(seen, revision, facts);
            }
            return;
        }
        let seen = self
            .seen
            .get_mut(&response.watch_id)
            .expect("the response has the id of a requested watch");
        assert!(!seen.cancelled);
        if response.created {
            assert!(!std::mem::replace(&mut seen.created, true));
        } else if response.canceled {
            seen.cancelled |= response.compact_revision == 0;
            seen.compacted |= response.compact_revision != 0;
        } else if response.events.is_empty() {
            assert_all_seen(seen, revision, facts);
        } else {
            assert!(seen.created);
            assert!(!seen.compacted);
            assert!(
                seen.fragment || !response.fragment,
                "a response is a fragment, but the watcher did not request fragments"
            );
            let fits = response.encoded_len() < self.fragment_bytes_max;
            assert!(
                !seen.fragment || response.events.len() == 1 || fits,
                "a fragment is too large"
            );
            seen.take_events(response, facts);
        }
    }
}

impl Seen {
    fn take_events(&mut self, response: &WatchResponse, facts: &Facts) {
        for event in &response.events {
            let record = event.kv.clone().unwrap();
            let fields = record.fields();
            let (revision, key) = (fields.mod_revision, fields.key.to_vec());
            let deleted = event.r#type == EventType::Delete as i32;
            let previous = facts.live(&key, revision - 1).map(|change| &change.record);
            match &event.prev_kv {
                Some(shown) => assert_eq!(Some(shown), previous),
                None => assert!(
                    !self.prev_kv
                        || previous.is_none()
                        || revision - 1 < facts.compacted
                        || (!deleted && fields.create_revision == revision)
                ),
            }
            self.received.push(Change { revision, deleted, key, record });
        }
        // All events of a revision arrive in one response, unless it is fragmented.
        let first = self.received[self.received.len() - response.events.len()].revision;
        assert!(self.partial.is_none_or(|revision| first <= revision));
        let last = self.received.last().unwrap().revision;
        if response.fragment {
            self.partial = Some(last.max(response.header.as_ref().unwrap().revision));
        } else {
            self.partial = None;
            assert_all_seen(self, last, facts);
        }
    }
}

fn assert_all_seen(seen: &Seen, revision: i64, facts: &Facts) {
    if !seen.created || seen.compacted {
        return;
    }
    let expected = seen.expects(facts).filter(|change| change.revision <= revision).count();
    assert!(
        seen.received.len() >= expected,
        "progress at revision {revision} was sent before its events"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_watcher_receives_exactly_the_requested_events(
        steps in prop::collection::vec(step(), 1..120),
        limits in limits(),
        fragment_bytes_max in 60..900usize,
        full in any::<bool>(),
    ) {
        let (keyspace, hub) = setup_with(limits);
        // If held bytes are bounded, some runs start with the bound already reached, as if other
        // streams were not being read.
        let bounded = limits.held_bytes_max < usize::MAX;
        let _held = hub.hold(if full && bounded { limits.held_bytes_max } else { 0 });
        let mut clients: Vec<Client> =
            (0..3).map(|_| Client::new(&hub, fragment_bytes_max)).collect();
        for step in steps {
            let facts = keyspace.0.lock().clone();
            match step {
                Step::Write(changes) => {
                    let keys: Vec<([u8; 1], Option<Vec<u8>>)> = changes
                        .iter()
                        .map(|(key, size)| ([b'a' + key], size.map(|size| vec![b'v'; size])))
                        .collect();
                    let changes: Vec<(&[u8], Option<&[u8]>)> = keys
                        .iter()
                        .map(|(key, value)| (&key[..], value.as_ref().map(|v| &v[..])))
                        .collect();
                    keyspace.write(&hub, &changes);
                }
                Step::Create { stream, range: (key, end), back, options } => {
                    let client = &mut clients[stream];
                    let end = end.map(|end| if end == 7 { vec![0] } else { vec![b'a' + end] });
                    let key = vec![b'a' + key];
                    if end.as_ref().is_some_and(|end| end[..] != [0] && *end <= key) {
                        continue;
                    }
                    let start_revision = if back == 11 { 0 } else { (facts.current - back).max(1) };
                    let watch_id = client.next_id;
                    client.next_id += 1;
                    let option = |bit: u8| options & (1 << bit) != 0;
                    let mut filters = Vec::new();
                    filters.extend((option(0) && option(1)).then_some(0));
                    filters.extend((option(0) && !option(1)).then_some(1));
                    let request = WatchCreateRequest {
                        watch_id,
                        prev_kv: option(2),
                        fragment: option(3),
                        progress_notify: option(1),
                        filters,
                        ..create(&key, end.as_deref().unwrap_or(b""), start_revision)
                    };
                    watch(&mut client.stream, request);
                    client.seen.insert(watch_id, Seen {
                        range: (key, end),
                        start: if start_revision == 0 { facts.current + 1 } else { start_revision },
                        drop_puts: option(0) && option(1),
                        drop_deletes: option(0) && !option(1),
                        prev_kv: option(2),
                        fragment: option(3),
                        received: Vec::new(),
                        partial: None,
                        created: false,
                        compacted: false,
                        cancelled: false,
                    });
                }
                Step::Cancel { stream, nth } => {
                    let client = &mut clients[stream];
                    if let Some(watch_id) = client.seen.keys().nth(nth).copied() {
                        client.stream.cancel(watch_id);
                    }
                }
                Step::Take { stream, count } => {
                    clients[stream].take(count, &facts);
                }
                Step::Progress { stream } => {
                    assert!(clients[stream].stream.counts_unsynced_watchers_correctly());
                    clients[stream].stream.request_progress();
                }
                Step::Tick { stream } => clients[stream].stream.tick_progress(),
                Step::Reopen { stream } => {
                    clients[stream] = Client::new(&hub, fragment_bytes_max);
                }
                Step::CatchUp => {
                    hub.catch_up().unwrap();
                }
                Step::Compact { back } => {
                    let revision = facts.current - back;
                    if revision > facts.compacted {
                        keyspace.compact(revision);
                    }
                }
            }
        }
        let facts = keyspace.0.lock().clone();
        let mut quiet = false;
        while !quiet {
            catch_up(&hub);
            quiet = clients.iter_mut().map(|c| c.take(1000, &facts)).sum::<usize>() == 0;
        }
        prop_assert_eq!(hub.stats().slow_watcher_count, 0);
        for seen in clients.iter().flat_map(|client| client.seen.values()) {
            prop_assert!(seen.created);
            let expected: Vec<&Change> = seen.expects(&facts).collect();
            let received: Vec<&Change> = seen.received.iter().collect();
            if seen.cancelled || seen.compacted {
                prop_assert!(expected.starts_with(&received), "{:?}", seen);
            } else {
                prop_assert_eq!(expected, received);
            }
        }
    }
}
