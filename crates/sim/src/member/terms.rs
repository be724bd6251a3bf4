//! Of which term each entry of a member's log is, as its own consensus has told: what is checked of a new leader.

use std::collections::BTreeMap;

use quorate_node::Persist;
use quorate_raft::{Entry, LogIndex, Term};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Terms(BTreeMap<LogIndex, Term>);

impl Terms {
    pub(super) fn of(entries: &[Entry]) -> Self {
        Self(entries.iter().map(|entry| (entry.index, entry.term)).collect())
    }

    /// The log is going to hold this.
    pub(super) fn note(&mut self, persist: &Persist) {
        if let Some(snapshot) = &persist.snapshot {
            self.0 = BTreeMap::from([(snapshot.metadata.index, snapshot.metadata.term)]);
        }
        if let Some(first) = persist.entries.first() {
            self.0.split_off(&first.index);
        }
        self.0.extend(persist.entries.iter().map(|entry| (entry.index, entry.term)));
    }

    /// The term of an entry; `Ok` without one where the log has nothing from before a snapshot.
    ///
    /// # Errors
    ///
    /// The log ends before.
    pub fn at(&self, index: LogIndex) -> Result<Option<Term>, Ends> {
        match self.0.last_key_value() {
            Some((last, _)) if *last < index => Err(Ends { at: *last }),
            Some(_) | None => Ok(self.0.get(&index).copied()),
        }
    }
}

/// A log that has no entry there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its log ends at {at}")]
pub struct Ends {
    at: LogIndex,
}
