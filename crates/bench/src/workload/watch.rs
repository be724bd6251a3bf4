//! Watch fan-out: watchers on some keys, writers of those keys, and the latency of each event.
//!
//! Every written value begins with the time of the write, so each delivery yields a latency. All watchers are created
//! before the first write, and stay until every event has arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prost::Message;
use quorate_api::etcdserverpb::{WatchCreateRequest, WatchRequest, watch_request};
use quorate_protobuf::{Fields, Value};
use quorate_seeded_random::SplitMix64;

use super::path;
use crate::engine::{LOOK, Link, Part, Records, Source, Spread, run_parts};
use crate::error::BenchError;
use crate::record::Record;
use crate::template::{KeySpace, Template};
use crate::wire::connection::{Event, Replies, StreamId};

/// The size of the timestamp at the beginning of a value, in bytes.
pub(crate) const STAMP_BYTES: usize = 8;
/// The run fails if no event arrives for this long after the last write, although events are missing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The distribution of the watchers over keys and streams.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) watchers: u64,
    /// The number of watched keys. Watcher `n` watches the key with number `n` modulo this count.
    pub(crate) watched_keys: u64,
    pub(crate) streams: usize,
    /// If set, every watcher watches all keys with this prefix instead, as API servers do: with previous values
    /// and progress notifications.
    pub(crate) prefix: Option<String>,
}

impl Layout {
    /// Returns the number of watchers on a key.
    fn watchers_of(&self, key: u64) -> u64 {
        let more = key < self.watchers % self.watched_keys;
        self.watchers / self.watched_keys + u64::from(more)
    }

    /// Returns the number of events caused by the first `writes` writes. Write `n` changes the key whose number is `n`
    /// modulo the number of watched keys.
    pub(crate) fn events(&self, writes: u64) -> u64 {
        if self.prefix.is_some() {
            return writes * self.watchers;
        }
        let rounds = writes / self.watched_keys * self.watchers;
        rounds + (0..writes % self.watched_keys).map(|key| self.watchers_of(key)).sum::<u64>()
    }
}

/// The state shared by writers and watchers.
#[derive(Debug)]
pub(crate) struct Board {
    start: Instant,
    created: AtomicU64,
    received: AtomicU64,
    expected: AtomicU64,
    writing: AtomicBool,
    failed: AtomicBool,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            created: AtomicU64::new(0),
            received: AtomicU64::new(0),
            expected: AtomicU64::new(u64::MAX),
            writing: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns whether a watcher has given up. The reason is returned by the watcher's thread.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Signals that all watchers exist and that writing begins.
    pub(crate) fn begin(&self) {
        self.writing.store(true, Ordering::Relaxed);
    }

    fn is_writing(&self) -> bool {
        self.writing.load(Ordering::Relaxed)
    }

    /// Sets the total number of events, after which the watchers stop.
    pub(crate) fn expect(&self, events: u64) {
        self.expected.store(events, Ordering::Relaxed);
    }

    /// Returns the timestamp for a value that is written now.
    pub(crate) fn nanos(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A source of writes that change the watched keys in turn.
#[derive(Clone, Debug)]
pub(crate) struct Writes {
    pub(crate) template: Template,
    pub(crate) watched_keys: u64,
    pub(crate) board: Arc<Board>,
    pub(crate) random: SplitMix64,
}

impl Source for Writes {
    fn request(&mut self, number: u64, message: &mut Vec<u8>) -> (&'static str, usize) {
        self.template.fill(number % self.watched_keys, &mut self.random, message);
        self.template.stamp(&self.board.nanos().to_le_bytes(), message);
        (path::PUT, 0)
    }
}

/// Runs all watchers until every event has arrived, and returns the recorded latencies.
pub(crate) fn run_watchers(
    spread: &Spread,
    layout: &Layout,
    keys: &KeySpace,
    board: &Arc<Board>,
) -> Result<Records, BenchError> {
    let connections = spread.connections.clamp(1, layout.streams.max(1));
    let spread = Spread { clients: layout.streams, connections, ..spread.clone() };
    let (layout, keys, shared) = (layout.clone(), keys.clone(), board.clone());
    let result = run_parts(&spread, 1, move |part| {
        // Stream `s` carries the watchers `s`, `s + streams`, and so on.
        let streams = (part.index..layout.streams).step_by(connections);
        let requests = streams.map(|stream| creations(&layout, &keys, stream)).collect();
        let board = shared.clone();
        async move {
            let result = connection(part, requests, &board).await;
            board.failed.fetch_or(result.is_err(), Ordering::Relaxed);
            result
        }
    });
    // A task that could not start has not run the code above, so its failure is recorded here.
    board.failed.fetch_or(result.is_err(), Ordering::Relaxed);
    result
}

fn creations(layout: &Layout, keys: &KeySpace, stream: usize) -> Vec<Vec<u8>> {
    (stream as u64..layout.watchers)
        .step_by(layout.streams)
        .map(|watcher| {
            let create = match &layout.prefix {
                Some(prefix) => prefix_creation(prefix),
                None => WatchCreateRequest {
                    key: keys.key(watcher % layout.watched_keys).into(),
                    ..Default::default()
                },
            };
            let request_union = Some(watch_request::RequestUnion::CreateRequest(create));
            WatchRequest { request_union }.encode_to_vec()
        })
        .collect()
}

fn prefix_creation(prefix: &str) -> WatchCreateRequest {
    let mut end = prefix.as_bytes().to_vec();
    // The last byte of a UTF-8 text is never 0xff, so it can be incremented.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    WatchCreateRequest {
        key: prefix.as_bytes().to_vec().into(),
        range_end: end.into(),
        progress_notify: true,
        prev_kv: true,
        ..Default::default()
    }
}

async fn connection(
    part: Part,
    creations: Vec<Vec<Vec<u8>>>,
    board: &Board,
) -> Result<Records, BenchError> {
    let mut link: Link<()> = Link::new(part).await?;
    while !link.has_room() {
        link.turn(Instant::now() + LOOK, &mut |_| {}).await?;
    }
    for requests in &creations {
        let stream: StreamId = link.wire.open(path::WATCH, Replies::Collect, ());
        requests.iter().for_each(|request| link.wire.send(stream, request));
    }
    let mut record = Record::new();
    let mut refused = None;
    let mut last_event = Instant::now();
    while !board.failed() && board.received() < board.expected.load(Ordering::Relaxed) {
        let mut news = News::default();
        let mut now = None;
        let mut each = |event: Event<'_, ()>| match event {
            Event::Message { body, .. } => {
                let now = *now.get_or_insert_with(|| board.nanos());
                let seen = read_response(body, &mut |sent_nanos| {
                    record.add_latency(Duration::from_nanos(now.saturating_sub(sent_nanos)));
                });
                news.add(&seen);
            }
            Event::Closed { status, .. } => refused = Some(status),
        };
        link.turn(Instant::now() + LOOK, &mut each).await?;
        if let Some(status) = refused {
            let (code, message) = (status.code, status.message);
            if board.is_writing() {
                // The events received so far are a valid result, but the number of missing events is unknown.
                record.add_error(format!("a watch stream ended: {message} (gRPC code {code})"), 1);
                board.failed.store(true, Ordering::Relaxed);
                break;
            }
            return Err(BenchError::Refused { call: path::WATCH, code, message });
        }
        if news.canceled {
            let message = "the server canceled a watch".to_owned();
            return Err(BenchError::Refused { call: path::WATCH, code: 0, message });
        }
        board.created.fetch_add(news.created, Ordering::Relaxed);
        board.received.fetch_add(news.events, Ordering::Relaxed);
        let writing = board.expected.load(Ordering::Relaxed) == u64::MAX;
        if news.events > 0 || news.created > 0 || writing {
            last_event = Instant::now();
        } else if last_event.elapsed() > SILENCE_MAX {
            return Err(BenchError::Stalled(SILENCE_MAX.as_secs()));
        }
    }
    Ok(vec![record])
}

/// The contents of one or more watch responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct News {
    created: u64,
    canceled: bool,
    events: u64,
}

impl News {
    const fn add(&mut self, other: &Self) {
        self.created += other.created;
        self.canceled |= other.canceled;
        self.events += other.events;
    }
}

/// Parses a response up to the first malformed field, and passes the timestamp of every event to `each`. Decodes only
/// the fields that are needed.
fn read_response(body: &[u8], each: &mut impl FnMut(u64)) -> News {
    let mut news = News::default();
    for field in fields(body) {
        match field {
            (3, Value::Varint(flag)) => news.created += flag,
            (4, Value::Varint(flag)) => news.canceled |= flag != 0,
            (11, Value::Bytes(event)) => {
                news.events += 1;
                if let Some(stamp) = stamp(event) {
                    each(stamp);
                }
            }
            _ => {}
        }
    }
    news
}

/// Returns the timestamp at the beginning of an event's value.
fn stamp(event: &[u8]) -> Option<u64> {
    let value = inner(inner(event, 2)?, 5)?;
    value.first_chunk::<STAMP_BYTES>().map(|stamp| u64::from_le_bytes(*stamp))
}

fn inner(message: &[u8], wanted: u32) -> Option<&[u8]> {
    fields(message).find_map(|(number, value)| match value {
        Value::Bytes(bytes) if number == wanted => Some(bytes),
        _ => None,
    })
}

fn fields(message: &[u8]) -> impl Iterator<Item = (u32, Value<'_>)> {
    Fields::new(message).map_while(Result::ok)
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{ResponseHeader, WatchResponse};
    use quorate_api::mvccpb;
    use quorate_api::record::{self, KeyValue};

    use super::*;

    #[test]
    fn watch_responses_are_parsed() {
        let event = |stamp: u64| {
            let value = [&stamp.to_le_bytes()[..], b"rest"].concat();
            let fields = record::Fields { key: b"k", value: &value, ..record::Fields::default() };
            mvccpb::Event { kv: Some(KeyValue::new(&fields)), ..Default::default() }
        };
        let response = WatchResponse {
            header: Some(ResponseHeader { revision: 300, ..Default::default() }),
            watch_id: 5,
            events: vec![event(17), event(u64::MAX)],
            ..Default::default()
        };
        let mut stamps = Vec::new();
        let news = read_response(&response.encode_to_vec(), &mut |stamp| stamps.push(stamp));
        assert_eq!(news, News { events: 2, ..News::default() });
        assert_eq!(stamps, [17, u64::MAX]);

        let response = WatchResponse { created: true, canceled: true, ..Default::default() };
        let news = read_response(&response.encode_to_vec(), &mut |_| {});
        assert_eq!(news, News { created: 1, canceled: true, events: 0 });
    }

    #[test]
    fn expected_watch_events_are_counted_for_uneven_layouts() {
        for (watchers, watched_keys) in [(10, 1), (10, 10), (10, 3), (2, 5)] {
            let layout = Layout { watchers, watched_keys, streams: 1, prefix: None };
            for writes in 0..20 {
                let naive: u64 = (0..writes)
                    .flat_map(|write| (0..watchers).map(move |watcher| (write, watcher)))
                    .map(|(write, watcher)| {
                        u64::from(write % watched_keys == watcher % watched_keys)
                    })
                    .sum();
                assert_eq!(layout.events(writes), naive);
            }
        }
    }
}
