//! What a cluster's history came to: the events of every revision.
//!
//! The recorder tells it, from whatever sees all: a watcher of everything from the first revision on, or
//! each member's applied changes. What several tell has to be the same, which is said at once.
//!
//! Revision 1 is the empty store; the first that changes anything is 2.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::operation::{KeyRange, KeyValue};
use crate::watcher::Event;

/// The first revision that changes something.
pub(crate) const FIRST: i64 = 2;

/// The events of every revision, without what was there before.
#[derive(Clone, Debug, Default)]
pub struct Chronicle {
    /// Of revision 2 and on.
    revisions: Vec<Vec<Event>>,
    /// What was done to each key, in order.
    keys: BTreeMap<Bytes, Vec<Change>>,
}

/// A key was stored, or deleted.
#[derive(Clone, Debug)]
struct Change {
    revision: i64,
    /// Nothing for a deletion.
    stored: Option<KeyValue>,
}

/// Two tell different things of one revision.
#[derive(Debug, thiserror::Error)]
pub enum Disagreement {
    /// The same revision changed different things.
    #[error("revision {revision} is told as {first:?} and as {second:?}")]
    Different {
        /// Which revision.
        revision: i64,
        /// What was told first.
        first: Vec<Event>,
        /// What was told then.
        second: Vec<Event>,
    },
    /// A revision is told before the one before it.
    #[error("revision {revision} follows {last}")]
    Gap {
        /// Which revision.
        revision: i64,
        /// The last one that is known.
        last: i64,
    },
    /// An event names another revision than the one that it is told in.
    #[error("revision {revision} has an event of another: {event:?}")]
    Misplaced {
        /// Which revision.
        revision: i64,
        /// The event.
        event: Box<Event>,
    },
}

impl Chronicle {
    /// The last revision that is known of.
    #[must_use]
    pub fn last(&self) -> i64 {
        FIRST - 1 + i64::try_from(self.revisions.len()).expect("revisions fit in memory")
    }

    /// The events of a revision; none of one that is not known of.
    #[must_use]
    pub fn events(&self, revision: i64) -> &[Event] {
        let at = usize::try_from(revision - FIRST).ok();
        at.and_then(|at| self.revisions.get(at)).map_or(&[], Vec::as_slice)
    }

    /// Takes what one tells of a revision: the next one, or one that is known of.
    ///
    /// # Errors
    /// It is not what was told before.
    pub fn tell(&mut self, revision: i64, events: Vec<Event>) -> Result<(), Disagreement> {
        let mut events = events;
        for event in &mut events {
            event.previous = None;
            if event.revision() != revision {
                return Err(Disagreement::Misplaced { revision, event: Box::new(event.clone()) });
            }
        }
        let last = self.last();
        if revision <= last {
            let first = self.events(revision);
            if first == events {
                return Ok(());
            }
            let first = first.to_vec();
            return Err(Disagreement::Different { revision, first, second: events });
        }
        if revision != last + 1 || events.is_empty() {
            return Err(Disagreement::Gap { revision, last });
        }
        for event in &events {
            let stored = (!event.is_delete).then(|| event.kv.clone());
            self.keys.entry(event.kv.key.clone()).or_default().push(Change { revision, stored });
        }
        self.revisions.push(events);
        Ok(())
    }

    /// What a key holds at a revision.
    #[must_use]
    pub fn at(&self, key: &[u8], revision: i64) -> Option<&KeyValue> {
        newest(self.keys.get(key)?, revision)
    }

    /// What keys hold at a revision, in their order.
    pub fn range<'a>(
        &'a self,
        keys: &KeyRange,
        revision: i64,
    ) -> impl Iterator<Item = &'a KeyValue> + use<'a> {
        let end = match &keys.end[..] {
            [] => Bound::Included(keys.key.clone()),
            [0] => Bound::Unbounded,
            // An end before its beginning holds nothing, which is no range to a map.
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
