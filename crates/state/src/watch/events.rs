//! The events of one watch response, encoded once for all watchers that receive them.
//!
//! An [`EventSet`] contains the field `repeated Event events = 11` of a `WatchResponse` in wire
//! form. All watchers of a key or range share it, on all streams. Only a header of a few dozen
//! bytes differs between watchers (`frame`). Watchers that filter event types or want previous
//! records share a different form, which is built when it is first sent. It is not built earlier
//! because looking up previous records may read the file, and the applier must not wait for that.
//!
//! ```text
//! 5a <len>  08 01            12 <len> KeyValue   1a <len> KeyValue
//! event     type = DELETE    kv                  prev_kv
//! ```

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};
use quorate_api::record::KeyValue;

use super::held::{Held, HeldBytes};
use super::history::{Event, History, HistoryFault};

const EVENT_TAG: u8 = 0x5a;
const DELETED: [u8; 2] = [0x08, 0x01];
const KV_TAG: u8 = 0x12;
const PREVIOUS_TAG: u8 = 0x1a;

/// The event types that a watcher has excluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Filter {
    pub(super) puts: bool,
    pub(super) deletes: bool,
}

impl Filter {
    fn drops(self, deleted: bool) -> bool {
        if deleted { self.deletes } else { self.puts }
    }
}

/// The form in which a watcher wants its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Form {
    pub(super) filter: Filter,
    pub(super) previous: bool,
}

impl Form {
    const PLAIN: Self = Self { filter: Filter { puts: false, deletes: false }, previous: false };

    fn position(self) -> usize {
        usize::from(self.filter.puts)
            + 2 * usize::from(self.filter.deletes)
            + 4 * usize::from(self.previous)
    }
}

/// Events in wire form, and the position at which each event ends.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    pub(super) bytes: Bytes,
    pub(super) ends: Arc<[usize]>,
    /// The event with which the next response begins, if one response cannot contain all events. It
    /// is the first event of its revision.
    pub(super) next: Option<usize>,
}

/// Positions of one event in the plain form.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The start of the event's record.
    record: usize,
    /// The end of the event, which is also the end of its record.
    end: usize,
    deleted: bool,
}

/// The events of one response.
#[derive(Debug)]
pub(super) struct EventSet {
    plain: Bytes,
    marks: Box<[Mark]>,
    forms: OnceLock<Box<[OnceLock<Encoded>; 8]>>,
    held: Held,
}

impl EventSet {
    pub(super) fn new<'a>(
        events: impl Iterator<Item = Event<'a>> + Clone,
        held: &Arc<HeldBytes>,
    ) -> Self {
        let len = events.clone().map(|event| field_len(payload_len(&event))).sum();
        let mut builder = EventSetBuilder {
            plain: BytesMut::with_capacity(len),
            marks: Vec::with_capacity(events.size_hint().0),
        };
        for event in events {
            builder.push(&event);
        }
        builder.finish(held)
    }

    /// Returns the size of the plain form, which the set keeps in memory, in bytes.
    pub(super) fn byte_count(&self) -> usize {
        self.plain.len()
    }

    /// Returns the number of events, before any filter.
    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    /// Returns whether the filter excludes every event of the set.
    pub(super) fn is_empty_after(&self, filter: Filter) -> bool {
        self.marks.iter().all(|mark| filter.drops(mark.deleted))
    }

    /// Returns the events from index `first` on, in the requested form. Previous records are read
    /// from `history`. Because they may be many times as large as the events, no further revision
    /// is added after `bytes_max` bytes.
    pub(super) fn encoded(
        &self,
        form: Form,
        first: usize,
        bytes_max: usize,
        history: impl FnOnce() -> Box<dyn History>,
    ) -> Result<Encoded, HistoryFault> {
        if first > 0 {
            return self.with_previous(form.filter, first, bytes_max, &*history());
        }
        let form_made = &self.forms.get_or_init(Box::default)[form.position()];
        if let Some(encoded) = form_made.get() {
            return Ok(encoded.clone());
        }
        let encoded = match form {
            Form::PLAIN => Encoded {
                bytes: self.plain.clone(),
                ends: self.marks.iter().map(|mark| mark.end).collect(),
                next: None,
            },
            Form { filter, previous: false } => self.filtered(filter),
            Form { filter, previous: true } => {
                self.with_previous(filter, first, bytes_max, &*history())?
            }
        };
        let made = form_made.get_or_init(|| {
            if form != Form::PLAIN {
                self.held.add(encoded.bytes.len());
            }
            encoded
        });
        Ok(made.clone())
    }

    fn filtered(&self, filter: Filter) -> Encoded {
        let mut bytes = BytesMut::with_capacity(self.plain.len());
        let mut ends = Vec::new();
        let mut start = 0;
        for mark in &self.marks {
            if !filter.drops(mark.deleted) {
                bytes.put_slice(&self.plain[start..mark.end]);
                ends.push(bytes.len());
            }
            start = mark.end;
        }
        Encoded { bytes: bytes.freeze(), ends: ends.into(), next: None }
    }

    fn with_previous(
        &self,
        filter: Filter,
        first: usize,
        bytes_max: usize,
        history: &dyn History,
    ) -> Result<Encoded, HistoryFault> {
        let mut bytes = BytesMut::with_capacity(2 * self.plain.len().min(bytes_max) + 8);
        let mut ends = Vec::with_capacity(self.marks.len() - first);
        let mut last_revision = None;
        let marks = self.marks.iter().enumerate().skip(first);
        for (position, mark) in marks.filter(|(_, mark)| !filter.drops(mark.deleted)) {
            let record = KeyValue::from_encoded(self.plain.slice(mark.record..mark.end));
            let revision = record.fields().mod_revision;
            if bytes.len() >= bytes_max && last_revision.is_some_and(|last| last != revision) {
                return Ok(Encoded {
                    bytes: bytes.freeze(),
                    ends: ends.into(),
                    next: Some(position),
                });
            }
            last_revision = Some(revision);
            let previous = previous_record(&record, mark.deleted, history)?;
            let event = Event { deleted: mark.deleted, key: &[], record: record.encoded() };
            let previous_len = previous.as_ref().map_or(0, |kv| field_len(kv.encoded().len()));
            put_field_head(&mut bytes, EVENT_TAG, payload_len(&event) + previous_len);
            put_kind_and_record(&mut bytes, &event);
            if let Some(previous) = previous {
                put_field_head(&mut bytes, PREVIOUS_TAG, previous.encoded().len());
                bytes.put_slice(previous.encoded());
            }
            ends.push(bytes.len());
        }
        Ok(Encoded { bytes: bytes.freeze(), ends: ends.into(), next: None })
    }
}

/// Collects events for an [`EventSet`].
#[derive(Debug, Default)]
pub(super) struct EventSetBuilder {
    plain: BytesMut,
    marks: Vec<Mark>,
}

impl EventSetBuilder {
    pub(super) fn push(&mut self, event: &Event<'_>) {
        put_field_head(&mut self.plain, EVENT_TAG, payload_len(event));
        put_kind_and_record(&mut self.plain, event);
        let end = self.plain.len();
        let record = end - event.record.len();
        self.marks.push(Mark { record, end, deleted: event.deleted });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    pub(super) fn byte_count(&self) -> usize {
        self.plain.len()
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    /// Drops all events after the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        self.marks.truncate(count);
        self.plain.truncate(self.marks.last().map_or(0, |last| last.end));
    }

    pub(super) fn finish(self, held: &Arc<HeldBytes>) -> EventSet {
        let held = held.hold(self.plain.len());
        let (plain, marks) = (self.plain.freeze(), self.marks.into());
        EventSet { plain, marks, forms: OnceLock::new(), held }
    }
}

/// Returns the record of the key just before the event's revision. Returns `None` if the event
/// created the key, or if the previous revision has been compacted.
fn previous_record(
    record: &KeyValue,
    deleted: bool,
    history: &dyn History,
) -> Result<Option<KeyValue>, HistoryFault> {
    let fields = record.fields();
    if !deleted && fields.create_revision == fields.mod_revision {
        return Ok(None);
    }
    history.record_at(fields.key, fields.mod_revision - 1)
}

fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

fn payload_len(event: &Event<'_>) -> usize {
    let kind_len = if event.deleted { DELETED.len() } else { 0 };
    kind_len + field_len(event.record.len())
}

fn put_field_head(buf: &mut BytesMut, tag: u8, len: usize) {
    buf.put_u8(tag);
    encode_varint(len as u64, buf);
}

fn put_kind_and_record(buf: &mut BytesMut, event: &Event<'_>) {
    if event.deleted {
        buf.put_slice(&DELETED);
    }
    put_field_head(buf, KV_TAG, event.record.len());
    buf.put_slice(event.record);
}
