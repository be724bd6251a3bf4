//! Streams of JSON lines: one kind reports the changes to a key or under a prefix, the other reports measurements of
//! prefixes.
//!
//! # Bound
//!
//! * The queue of a stream holds at most [`LINES_MAX`] lines and [`LINES_BYTES_MAX`] bytes. A line of events contains
//!   at most [`LINE_BYTES`] bytes plus one event. If the page reads too slowly, events are dropped, and a later line
//!   reports their number. If the page reads nothing at all, its connection is closed (`service`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_api::etcdserverpb::{WatchCreateRequest, WatchResponse};
use quorate_client::events::{Events, Leader, cancel_text};
use quorate_client::key_range::KeyRange;
use quorate_top::PrefixMeter;
use quorate_top::prefixes::{Form, Prefix, Shape};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use crate::cluster::Caller;
use crate::encode::{KEY_BYTES_SHOWN_MAX, base64, revision};
use crate::guard::Guard;
use crate::history::event_json;
use crate::input::Input;
use crate::keys::{SEPARATOR_BYTES_MAX, wrong_separator};
use crate::problems;
use crate::refusal::{Kind, Refusal};
use crate::reply::{Part, Parts};

const LINES_MAX: usize = 64;
const LINE_BYTES: usize = 48 << 10;
const LINES_BYTES_MAX: usize = 4 << 20;

/// Maximum time to wait until the page has read the last line.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum number of bytes of a value in an event.
const VALUE_BYTES_MAX: usize = 4096;

/// Interval between the keepalive lines of a watch, and between the rows of a measurement.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const ROWS_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of rows selected by size, and maximum number of rows selected by write rate.
const ROWS_MAX: usize = 200;

/// The sending side of a stream of lines.
pub(crate) struct Lines {
    parts: mpsc::Sender<io::Result<Part>>,
    space: Arc<Semaphore>,
    dropped: u64,
}

impl Lines {
    /// Creates the sending side of a stream, and the receiver for the response's body.
    pub(crate) fn new() -> (Self, Parts) {
        let (parts, receiver) = mpsc::channel(LINES_MAX);
        (Self { parts, space: Arc::new(Semaphore::new(LINES_BYTES_MAX)), dropped: 0 }, receiver)
    }

    /// Queues a line with this number of events. If the queue is full, the events are dropped.
    fn add(&mut self, line: &Value, events: u64) {
        if self.dropped > 0 && self.put(&json!({ "type": "dropped", "count": self.dropped })) {
            self.dropped = 0;
        }
        if self.dropped > 0 || !self.put(line) {
            self.dropped += events;
        }
    }

    fn put(&self, line: &Value) -> bool {
        let data = Bytes::from(line.to_string() + "\n");
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let Ok(space) = Arc::clone(&self.space).try_acquire_many_owned(bytes) else { return false };
        self.parts.try_send(Ok(Part { data, space: Some(space) })).is_ok()
    }

    /// Waits until there is space, and queues the last line.
    async fn end(mut self, refused: &Refusal) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.last(&json!({ "type": "dropped", "count": dropped })).await;
        }
        self.last(&json!({ "type": "end", "error": refused.json() })).await;
    }

    async fn last(&self, line: &Value) {
        let data = Bytes::from(line.to_string() + "\n");
        // An error is ignored, because the page may have been closed or may not read the line in time.
        drop(self.parts.send_timeout(Ok(Part { data, space: None }), END_TIME_MAX).await);
    }

    async fn closed(&self) {
        self.parts.closed().await;
    }
}

/// The arguments of a watch.
pub(crate) struct Watch {
    create: WatchCreateRequest,
    value_bytes: usize,
}

impl Watch {
    pub(crate) fn of(input: &Input) -> Result<Self, Refusal> {
        let range = match input.bytes("key")? {
            Some(key) if !key.is_empty() => KeyRange { key, end: Vec::new() },
            Some(_) | None => KeyRange::prefix(input.bytes("prefix")?.unwrap_or_default()),
        };
        let value_bytes = input.number("value_bytes")?.unwrap_or(1024);
        let value_bytes = usize::try_from(value_bytes).unwrap_or(usize::MAX).min(VALUE_BYTES_MAX);
        let create = WatchCreateRequest {
            key: range.key.into(),
            range_end: range.end.into(),
            start_revision: input.number("start_revision")?.unwrap_or_default(),
            prev_kv: input.flag("previous")?,
            fragment: true,
            ..WatchCreateRequest::default()
        };
        Ok(Self { create, value_bytes })
    }

    /// Returns the range of the watched keys.
    pub(crate) fn range(&self) -> KeyRange {
        KeyRange { key: self.create.key.to_vec(), end: self.create.range_end.to_vec() }
    }

    /// Sends events until the page, the cluster or the guard ends the watch.
    pub(crate) async fn run(self, caller: &Caller, guard: &Guard, mut lines: Lines) {
        let mut lost = std::pin::pin!(guard.lost());
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset();
        let mut create = self.create.clone();
        let (mut is_created, mut newest) = (false, 0);
        let refused = 'watch: loop {
            let mut events = Events::new(&caller.client, create.clone(), Leader::Awaited);
            loop {
                let response = tokio::select! {
                    response = events.next() => response,
                    () = lines.closed() => return,
                    refused = &mut lost => break 'watch refused,
                    _ = pings.tick() => {
                        lines.add(&json!({ "type": "ping", "revision": newest }), 0);
                        continue;
                    }
                };
                let response = match response {
                    Ok(response) => response,
                    Err(status) => {
                        let refused = caller.refusal(&status);
                        if refused.kind != Kind::TooLarge {
                            break 'watch refused;
                        }
                        // An event is too large to be received, so the watch continues at the newest revision.
                        let line =
                            json!({ "type": "dropped", "count": null, "reason": refused.message });
                        lines.add(&line, 1);
                        create.start_revision = 0;
                        continue 'watch;
                    }
                };
                if response.canceled || response.compact_revision != 0 {
                    break 'watch of_cancellation(&response);
                }
                newest = revision(response.header.as_ref()).max(newest);
                if response.created && !std::mem::replace(&mut is_created, true) {
                    lines.add(&json!({ "type": "created", "revision": newest }), 0);
                }
                self.send(&response, newest, &mut lines);
            }
        };
        lines.end(&refused).await;
    }

    fn send(&self, response: &WatchResponse, newest: i64, lines: &mut Lines) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut flush = |batch: &mut Vec<Value>| {
            let count = batch.len() as u64;
            let events = std::mem::take(batch);
            lines.add(&json!({ "type": "events", "revision": newest, "events": events }), count);
        };
        for event in &response.events {
            let Some(value) = event_json(event, self.value_bytes, self.create.prev_kv) else {
                continue;
            };
            let fields = event.kv.as_ref().map(|record| record.fields()).unwrap_or_default();
            bytes += 256
                + fields.key.len().min(VALUE_BYTES_MAX)
                + 2 * fields.value.len().min(self.value_bytes);
            batch.push(value);
            if bytes >= LINE_BYTES {
                flush(&mut batch);
                bytes = 0;
            }
        }
        if !batch.is_empty() {
            flush(&mut batch);
        }
    }
}

fn of_cancellation(response: &WatchResponse) -> Refusal {
    let text = cancel_text(response);
    if response.compact_revision != 0 {
        let compacted = json!(response.compact_revision);
        return Refusal::new(Kind::Compacted, text).with("compacted", compacted);
    }
    let is_denied = response.cancel_reason.contains("permission denied");
    Refusal::new(if is_denied { Kind::PermissionDenied } else { Kind::Cluster }, text)
}

/// Parses the arguments that select the prefixes to be measured.
pub(crate) fn shape_of(input: &Input) -> Result<Shape, Refusal> {
    let base = input.bytes("prefix")?.unwrap_or_default();
    let separator = input.bytes("separator")?.unwrap_or_else(|| b"/".to_vec());
    let depth = input.number("depth")?.unwrap_or(1);
    if !(1..=SEPARATOR_BYTES_MAX).contains(&separator.len()) {
        return Err(wrong_separator());
    }
    match usize::try_from(depth) {
        Ok(depth) if (1..=32).contains(&depth) => Ok(Shape { base, separator, depth }),
        _ => Err(Refusal::bad_request("\"depth\" must be from 1 to 32")),
    }
}

/// Measures prefixes, and sends the rows of the largest and most written ones at every interval, until the page or the
/// guard ends the stream.
pub(crate) async fn measure(caller: Caller, guard: Guard, shape: Shape, mut lines: Lines) {
    let meter = PrefixMeter::new(caller.client, shape, ROWS_INTERVAL);
    let mut due = interval(ROWS_INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut lost = std::pin::pin!(guard.lost());
    let sending = async {
        loop {
            tokio::select! {
                _ = due.tick() => {}
                () = lines.closed() => return,
                refused = &mut lost => {
                    lines.end(&refused).await;
                    return;
                }
            }
            let mut found = meter.rows();
            let all = found.rows.len();
            found.rows.retain(|row| row.group.name.len() <= KEY_BYTES_SHOWN_MAX);
            let long = all - found.rows.len();
            let problems = problems::of_prefixes(&found.rows);
            let (rows, omitted) = largest(found.rows);
            let omitted = omitted + long;
            let line = json!({
                "type": "prefixes",
                "note": found.note,
                "complete": found.age.is_some(),
                "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
                "omitted": omitted,
                "problems": problems.iter().map(problems::Problem::json).collect::<Vec<_>>(),
            });
            lines.add(&line, 0);
        }
    };
    tokio::select! {
        () = sending => {}
        () = meter.run() => {}
    }
}

/// Returns the rows with the most bytes and the rows with the most writes, and the number of omitted rows.
fn largest(mut rows: Vec<Prefix>) -> (Vec<Prefix>, usize) {
    let all = rows.len();
    let writes = |row: &Prefix| {
        row.puts_per_sec.unwrap_or_default() + row.deletes_per_sec.unwrap_or_default()
    };
    rows.sort_by(|one, other| writes(other).total_cmp(&writes(one)));
    let mut rest = rows.split_off(rows.len().min(ROWS_MAX));
    rest.sort_by(|one, other| {
        other.bytes.unwrap_or_default().total_cmp(&one.bytes.unwrap_or_default())
    });
    rest.truncate(ROWS_MAX);
    rows.extend(rest);
    rows.sort_by(|one, other| {
        other.bytes.unwrap_or_default().total_cmp(&one.bytes.unwrap_or_default())
    });
    let omitted = all - rows.len();
    (rows, omitted)
}

fn row_json(row: &Prefix) -> Value {
    let form = match row.group.form {
        Form::Full => "prefix",
        Form::Short => "keys",
        Form::Stem => "stem",
    };
    json!({
        "prefix": base64(&row.group.name),
        "form": form,
        "keys": row.keys,
        "bytes_estimated": row.bytes,
        "puts_per_sec": row.puts_per_sec,
        "deletes_per_sec": row.deletes_per_sec,
        "bytes_per_sec": row.bytes_per_sec,
    })
}

#[cfg(test)]
mod tests {
    use quorate_top::prefixes::Group;

    use super::*;

    fn texts(receiver: &mut Parts) -> Vec<Value> {
        let mut found = Vec::new();
        while let Ok(part) = receiver.try_recv() {
            found.push(serde_json::from_slice(&part.unwrap().data).unwrap());
        }
        found
    }

    #[test]
    fn events_for_a_page_that_does_not_read_are_dropped_and_counted() {
        let (mut lines, mut receiver) = Lines::new();
        let event = |number: usize| json!({ "type": "events", "number": number });
        for number in 0..LINES_MAX + 5 {
            lines.add(&event(number), 2);
        }
        assert_eq!(texts(&mut receiver).len(), LINES_MAX);
        lines.add(&event(1000), 2);
        let after = texts(&mut receiver);
        assert_eq!(after, [json!({ "type": "dropped", "count": 10 }), event(1000)]);
    }

    #[test]
    fn bytes_queued_for_a_page_that_does_not_read_are_bounded() {
        let (mut lines, mut receiver) = Lines::new();
        let large = json!({ "type": "prefixes", "rows": "x".repeat(1 << 20) });
        for _ in 0..10 {
            lines.add(&large, 0);
        }
        assert_eq!(texts(&mut receiver).len(), 3);
        lines.add(&large, 0);
        assert_eq!(texts(&mut receiver), [large]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_even_if_its_page_does_not_read() {
        let (mut lines, receiver) = Lines::new();
        for _ in 0..LINES_MAX {
            lines.add(&json!({ "type": "ping" }), 0);
        }
        let refused = Refusal::no_answer();
        let ending = lines.end(&refused);
        tokio::time::timeout(END_TIME_MAX * 3, ending).await.unwrap();
        drop(receiver);
    }

    #[test]
    fn the_length_of_event_lines_is_bounded_for_any_response() {
        use quorate_api::mvccpb::Event;
        use quorate_api::record::{Fields, KeyValue};

        let value = vec![b'v'; 100_000];
        let record = KeyValue::new(&Fields { key: b"k", value: &value, ..Fields::default() });
        let event = Event { kv: Some(record), ..Event::default() };
        let response = WatchResponse { events: vec![event; 100], ..WatchResponse::default() };
        let (mut lines, mut receiver) = Lines::new();
        let watch = Watch { create: WatchCreateRequest::default(), value_bytes: VALUE_BYTES_MAX };
        watch.send(&response, 1, &mut lines);
        let found = texts(&mut receiver);
        let count: usize = found.iter().map(|line| line["events"].as_array().unwrap().len()).sum();
        assert_eq!(count, 100);
        for line in found {
            assert!(line.to_string().len() < 2 * LINE_BYTES);
        }
    }

    #[test]
    fn the_largest_and_the_most_written_prefixes_are_sent() {
        let row = |number: u32| Prefix {
            group: Group { name: number.to_string().into_bytes(), form: Form::Full },
            keys: Some(1),
            bytes: Some(f64::from(number)),
            puts_per_sec: Some(f64::from(1000 - number)),
            deletes_per_sec: None,
            bytes_per_sec: None,
        };
        let (rows, omitted) = largest((0..1000).map(row).collect());
        assert_eq!((rows.len(), omitted), (2 * ROWS_MAX, 600));
        assert_eq!(rows[0].group.name, b"999");
        assert_eq!(rows.last().unwrap().group.name, b"0");
    }
}
