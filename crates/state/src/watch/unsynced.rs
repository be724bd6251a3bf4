//! Counts the watchers of a stream that are not synced, so that a progress request needs no walk over all watchers.

use std::collections::BTreeMap;

/// How far a watcher is from being synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// The watcher lacks past events, or its history is compacted.
    Past,
    /// The watcher lacks nothing once the current revision has reached this one.
    Until(i64),
}

/// The watchers of a stream that are not synced.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// The number of watchers that lack past events.
    behind: usize,
    /// The number of watchers for each revision that they begin with. Some of these revisions may have been reached.
    from: BTreeMap<i64, usize>,
}

impl Unsynced {
    /// Adds this many watchers.
    pub(super) fn add(&mut self, lack: Lack, count: usize) {
        match lack {
            Lack::Past => self.behind += count,
            Lack::Until(from) if from > 0 && count > 0 => {
                *self.from.entry(from).or_default() += count;
            }
            Lack::Until(_) => {}
        }
    }

    /// Removes watchers that were added with the same `lack`.
    pub(super) fn remove(&mut self, lack: Lack, count: usize) {
        let counted = match lack {
            Lack::Past => &mut self.behind,
            Lack::Until(from) if from > 0 && count > 0 => self.from.entry(from).or_default(),
            Lack::Until(_) => return,
        };
        assert!(
            count <= *counted,
            "a watcher is removed from the count to which it was added: otherwise progress would be reported too early"
        );
        *counted -= count;
        if *counted == 0
            && let Lack::Until(from) = lack
        {
            self.from.remove(&from);
        }
    }

    /// Returns whether all watchers are synced at this revision.
    pub(super) fn is_empty_at(&self, current: i64) -> bool {
        let last = self.from.last_key_value().map_or(0, |(from, _)| *from);
        self.behind == 0 && last <= current
    }
}
