//! The history of a store, and watchers that must receive all of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::mvccpb;
use quorate_api::mvccpb::event::EventType;
use tokio::task::JoinSet;

use crate::{Client, TIMEOUT, Watch, eventually_ok};

/// A single change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) revision: i64,
    pub(super) key: String,
    /// Value; `None` for a deletion.
    pub(super) value: Option<Vec<u8>>,
}

impl Event {
    fn new(event: mvccpb::Event) -> Self {
        let deletes = event.r#type() == EventType::Delete;
        let record = event.kv.unwrap_or_default();
        Self {
            revision: record.fields().mod_revision,
            key: String::from_utf8_lossy(record.key()).into_owned(),
            value: (!deletes).then(|| record.value().to_vec()),
        }
    }

    /// Returns the value as a number.
    pub(super) fn number(&self) -> Option<u64> {
        std::str::from_utf8(self.value.as_ref()?).ok()?.parse().ok()
    }
}

/// Returns a request that watches all keys from a revision on.
fn everything(start_revision: i64) -> pb::WatchCreateRequest {
    let all = crate::bytes([0]);
    pb::WatchCreateRequest {
        key: all.clone(),
        range_end: all,
        start_revision,
        ..Default::default()
    }
}

/// Reads the history from one revision to another.
pub(super) async fn read(client: &Client, first: i64, last: i64) -> Vec<Event> {
    let mut history: Vec<Event> = Vec::new();
    if last < first {
        return history;
    }
    let mut watch = Watch::open(client);
    let reply = watch.create(everything(first)).await;
    assert!(!reply.canceled, "{reply:?}");
    while history.last().is_none_or(|event| event.revision < last) {
        let response = watch.next().await;
        assert!(!response.canceled, "{response:?}");
        history.extend(response.events.into_iter().map(Event::new));
    }
    history
}

#[derive(Debug)]
struct Seen {
    events: Vec<Event>,
    /// Revision from which to resume: the revision after the last event.
    next: i64,
    interruptions: u64,
    /// Reason for the last interruption.
    why: String,
}

/// The watcher of one member. Dropping it stops the watch.
#[derive(Debug)]
pub(super) struct Watcher {
    member: usize,
    seen: Arc<Mutex<Seen>>,
    task: JoinSet<()>,
}

impl Watcher {
    pub(super) fn start(member: usize, client: Client, first: i64) -> Self {
        let seen = Seen { events: Vec::new(), next: first, interruptions: 0, why: String::new() };
        let seen = Arc::new(Mutex::new(seen));
        let mut task = JoinSet::new();
        task.spawn_local(watch(client, Arc::clone(&seen)));
        Self { member, seen, task }
    }

    /// Waits until the watcher has received the last event, and checks that it received every event exactly once and in
    /// order. Returns the number of restarts.
    pub(super) async fn check(mut self, history: &[Event]) -> u64 {
        let last = history.last().map_or(0, |event| event.revision);
        eventually_ok(TIMEOUT, "the watcher receives the last event", async || {
            if let Some(ended) = self.task.try_join_next() {
                ended.unwrap();
            }
            let seen = self.seen.lock().unwrap();
            if seen.next > last {
                return Ok(());
            }
            Err(format!(
                "the watcher of m{} is waiting for revision {} of {last}; last interruption: {}",
                self.member, seen.next, seen.why
            ))
        })
        .await;
        let seen = self.seen.lock().unwrap();
        // Other clients may have written after the last event of the history.
        let until = seen.events.partition_point(|event| event.revision <= last);
        let events = &seen.events[..until];
        let differs = history.iter().zip(events).position(|(one, other)| one != other);
        let place = differs.unwrap_or_else(|| history.len().min(events.len()));
        assert!(
            history == events,
            "the watcher of m{} received {} of {} events and was interrupted {} times ({}); event \
             {place} should be {:?} but is {:?}",
            self.member,
            events.len(),
            history.len(),
            seen.interruptions,
            seen.why,
            history.get(place),
            events.get(place),
        );
        seen.interruptions
    }
}

/// Watches the store, and resumes after each interruption.
async fn watch(client: Client, seen: Arc<Mutex<Seen>>) {
    loop {
        let why = watch_once(&client, &seen).await;
        {
            let mut seen = seen.lock().unwrap();
            seen.interruptions += 1;
            seen.why = why;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Watches until the stream ends, and returns the reason.
async fn watch_once(client: &Client, seen: &Mutex<Seen>) -> String {
    let mut watch = Watch::open(client);
    let next = seen.lock().unwrap().next;
    watch.send(RequestUnion::CreateRequest(everything(next))).await;
    loop {
        let response = match watch.try_next().await {
            Ok(Some(response)) => response,
            Ok(None) => return "the stream ended".to_owned(),
            Err(status) => return format!("{:?}: {}", status.code(), status.message()),
        };
        if response.canceled {
            assert_eq!(response.compact_revision, 0, "nothing was compacted");
            return format!("cancelled: {}", response.cancel_reason);
        }
        let mut seen = seen.lock().unwrap();
        seen.events.extend(response.events.into_iter().map(Event::new));
        if let Some(last) = seen.events.last() {
            seen.next = last.revision + 1;
        }
    }
}
