//! Finds the watched keys and ranges that contain a changed key.
//!
//! There is one entry for each distinct key or range, however many watchers share it. Single keys
//! are stored in a hash map, and ranges in [`Intervals`]. An entry has a value that depends on the
//! owner of the index: in the hub, its live groups, and in a catch-up pass, its units.
#![expect(clippy::disallowed_types, reason = "keys are only looked up, never iterated")]

use std::collections::HashMap;

use bytes::Bytes;

use super::intervals::{Intervals, RangeEnd};
use super::slab::{Handle, Slab};

/// A watched key or range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Watched {
    pub(super) key: Bytes,
    /// The end of the range; `None` for a single key.
    pub(super) end: Option<RangeEnd>,
}

impl Watched {
    /// Returns the total size of the key and of the end of the range, in bytes.
    pub(super) fn byte_count(&self) -> usize {
        let end_bytes = match &self.end {
            None | Some(RangeEnd::Unbounded) => 0,
            Some(RangeEnd::Before(end)) => end.len(),
        };
        self.key.len() + end_bytes
    }
}

#[derive(Debug)]
struct Entry<T> {
    watched: Watched,
    /// The number of groups or units that use the entry.
    users: usize,
    value: T,
}

/// Watched keys and ranges, each with a value.
#[derive(Debug)]
pub(super) struct Index<T> {
    entries: Slab<Entry<T>>,
    keys: HashMap<Bytes, Handle>,
    ranges: Intervals<Handle>,
}

impl<T: Default> Index<T> {
    /// Creates an empty index. Clients must not know the seed ([`Intervals::new`]).
    pub(super) fn new(seed: u64) -> Self {
        Self { entries: Slab::default(), keys: HashMap::new(), ranges: Intervals::new(seed) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    /// Finds or creates the entry and adds a user. Each user must be removed with [`Index::release`], unless the whole
    /// index is dropped.
    pub(super) fn acquire(&mut self, watched: &Watched) -> Handle {
        let known = match &watched.end {
            None => self.keys.get(&watched.key).copied(),
            Some(end) => self.ranges.get(&watched.key, end),
        };
        if let Some(entry) = known {
            self.entries.get_mut(entry).expect("the maps refer only to existing entries").users +=
                1;
            return entry;
        }
        let value = T::default();
        let entry = self.entries.insert(Entry { watched: watched.clone(), users: 1, value });
        match &watched.end {
            None => {
                self.keys.insert(watched.key.clone(), entry);
            }
            Some(end) => self.ranges.insert(watched.key.clone(), end.clone(), entry),
        }
        entry
    }

    /// Removes a user from an entry. The entry is removed with its last user.
    pub(super) fn release(&mut self, entry: Handle) {
        let held = self.entries.get_mut(entry).expect("an acquired entry exists");
        assert!(
            held.users > 0,
            "an entry is released once for each acquisition: otherwise watchers of the key would miss events"
        );
        held.users -= 1;
        if held.users > 0 {
            return;
        }
        let Watched { key, end } =
            self.entries.remove(entry).expect("the lookup above found the entry").watched;
        match end {
            None => {
                self.keys.remove(&key);
            }
            Some(end) => self.ranges.remove(&key, &end),
        }
    }

    pub(super) fn watched(&self, entry: Handle) -> &Watched {
        &self.entries.get(entry).expect("an acquired entry exists").watched
    }

    pub(super) fn value(&self, entry: Handle) -> &T {
        &self.entries.get(entry).expect("an acquired entry exists").value
    }

    pub(super) fn value_mut(&mut self, entry: Handle) -> &mut T {
        &mut self.entries.get_mut(entry).expect("an acquired entry exists").value
    }

    /// Calls `visit` with every entry that contains `key`.
    pub(super) fn matches(&self, key: &[u8], visit: &mut impl FnMut(Handle)) {
        if let Some(entry) = self.keys.get(key) {
            visit(*entry);
        }
        self.ranges.stab(key, visit);
    }
}
