//! The events of every revision, as the cluster committed them.
//!
//! The recorder fills the log from a source that sees every change: a watcher on all keys from the first revision, or
//! the changes that each member applies. Several sources may record the same revision. If their events differ,
//! [`EventLog::record`] returns an error immediately.
//!
//! Revision 1 is the empty store. The first revision with events is 2.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::operation::{KeyRange, KeyValue};
use crate::watcher::Event;

/// The first revision that has events.
pub(crate) const FIRST: i64 = 2;

/// The events of every revision, without previous values.
#[derive(Clone, Debug, Default)]
pub struct EventLog {
    /// The events of each revision, starting with revision 2.
    revisions: Vec<Vec<Event>>,
    /// The changes to each key, in order.
    keys: BTreeMap<Bytes, Vec<Change>>,
}

/// A change to one key: a put or a delete.
#[derive(Clone, Debug)]
struct Change {
    revision: i64,
    /// The stored record; `None` for a deletion.
    stored: Option<KeyValue>,
}

/// The reason why a revision could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Two sources recorded different events for one revision.
    #[error("revision {revision} is recorded with different events: {first:?} and {second:?}")]
    Conflicting {
        /// The revision.
        revision: i64,
        /// The events that were recorded first.
        first: Vec<Event>,
        /// The events that the second source recorded.
        second: Vec<Event>,
    },
    /// A revision was recorded before its predecessor, or without events.
    #[error("revision {revision} does not directly follow revision {last}, or has no events")]
    Gap {
        /// The revision.
        revision: i64,
        /// The last recorded revision.
        last: i64,
    },
    /// The revision in an event differs from the revision for which the event was recorded.
    #[error("revision {revision} is recorded with an event of a different revision: {event:?}")]
    WrongRevision {
        /// The revision.
        revision: i64,
        /// The event.
        event: Box<Event>,
    },
}

/// The lease of each key after the events applied so far.
///
/// A transaction may change a key twice in one revision, by putting the key in one nested transaction and deleting it
/// in a later one. Therefore the leases at the previous revision are not enough.
#[derive(Debug, Default)]
pub(crate) struct KeyLeases<'a>(BTreeMap<&'a Bytes, i64>);

impl<'a> KeyLeases<'a> {
    /// Applies the next event. Returns the lease to which the key of the event was attached before, or 0.
    pub(crate) fn apply(&mut self, event: &'a Event) -> i64 {
        let lease = if event.is_delete { 0 } else { event.kv.lease };
        self.0.insert(&event.kv.key, lease).unwrap_or_default()
    }
}

impl EventLog {
    /// Returns the last recorded revision.
    #[must_use]
    pub fn last(&self) -> i64 {
        FIRST - 1 + i64::try_from(self.revisions.len()).expect("revisions fit in memory")
    }

    /// Returns the events of a revision. The result is empty if the revision is not recorded.
    #[must_use]
    pub fn events(&self, revision: i64) -> &[Event] {
        let at = usize::try_from(revision - FIRST).ok();
        at.and_then(|at| self.revisions.get(at)).map_or(&[], Vec::as_slice)
    }

    /// Records the events of the next revision. If the revision is already recorded, compares the events with the
    /// recorded events.
    ///
    /// # Errors
    ///
    /// Fails if the events differ from the recorded events, or if the revision is out of order.
    pub fn record(&mut self, revision: i64, events: Vec<Event>) -> Result<(), RecordError> {
        let mut events = events;
        for event in &mut events {
            event.previous = None;
            if event.revision() != revision {
                return Err(RecordError::WrongRevision {
                    revision,
                    event: Box::new(event.clone()),
                });
            }
        }
        let last = self.last();
        if revision <= last {
            let first = self.events(revision);
            if first == events {
                return Ok(());
            }
            let first = first.to_vec();
            return Err(RecordError::Conflicting { revision, first, second: events });
        }
        if revision != last + 1 || events.is_empty() {
            return Err(RecordError::Gap { revision, last });
        }
        for event in &events {
            let stored = (!event.is_delete).then(|| event.kv.clone());
            self.keys.entry(event.kv.key.clone()).or_default().push(Change { revision, stored });
        }
        self.revisions.push(events);
        Ok(())
    }

    /// Returns the record of a key at a revision.
    #[must_use]
    pub fn at(&self, key: &[u8], revision: i64) -> Option<&KeyValue> {
        newest(self.keys.get(key)?, revision)
    }

    /// Returns the records of a key range at a revision, in key order.
    pub fn range<'a>(
        &'a self,
        keys: &KeyRange,
        revision: i64,
    ) -> impl Iterator<Item = &'a KeyValue> + use<'a> {
        let end = match &keys.end[..] {
            [] => Bound::Included(keys.key.clone()),
            [0] => Bound::Unbounded,
            // `BTreeMap::range` panics if the end is before the start, so the end is raised to the start, which makes
            // the range empty.
            _ => Bound::Excluded(keys.end.clone().max(keys.key.clone())),
        };
        let start = Bound::Included(keys.key.clone());
        self.keys.range((start, end)).filter_map(move |(_, changes)| newest(changes, revision))
    }
}

fn newest(changes: &[Change], revision: i64) -> Option<&KeyValue> {
    let count = changes.partition_point(|change| change.revision <= revision);
    changes[..count].last()?.stored.as_ref()
}
