//! Records the term of each entry in a member's log, as reported by the member's consensus. The checks of a new leader
//! use the terms.

use std::collections::BTreeMap;

use quorate_node::Persist;
use quorate_raft::{Entry, LogIndex, Term};

/// The terms of a member's log entries.
#[derive(Clone, Debug, Default)]
pub struct Terms(BTreeMap<LogIndex, Term>);

impl Terms {
    pub(super) fn of(entries: &[Entry]) -> Self {
        Self(entries.iter().map(|entry| (entry.index, entry.term)).collect())
    }

    /// Records a log write. Returns the entries that the write drops.
    pub(super) fn note(&mut self, persist: &Persist) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        if let Some(snapshot) = &persist.snapshot {
            let last = (snapshot.metadata.index, snapshot.metadata.term);
            let before = std::mem::replace(&mut self.0, BTreeMap::from([last]));
            if before.get(&last.0) == Some(&last.1) {
                dropped.push(Dropped::ForOwnSnapshot { index: last.0 });
            }
        }
        let after = match persist.entries.first() {
            Some(first) => self.0.split_off(&first.index),
            None => BTreeMap::new(),
        };
        self.0.extend(persist.entries.iter().map(|entry| (entry.index, entry.term)));
        let is_gone = |(index, term): &(LogIndex, Term)| self.0.get(index) != Some(term);
        let gone = after.into_iter().filter(is_gone);
        dropped.extend(gone.map(|(index, term)| Dropped::ForLeader { index, term }));
        dropped
    }

    /// Returns the index of the last entry in the log at or before `index`.
    pub(super) fn last_held(&self, index: LogIndex) -> LogIndex {
        self.0.last_key_value().map_or(index, |(last, _)| index.min(*last))
    }

    /// Returns the term of an entry, or `None` if a snapshot has replaced the entry.
    ///
    /// # Errors
    ///
    /// The log ends before the entry.
    pub fn at(&self, index: LogIndex) -> Result<Option<Term>, LogEnds> {
        match self.0.last_key_value() {
            Some((last, _)) if *last < index => Err(LogEnds { at: *last }),
            Some(_) | None => Ok(self.0.get(&index).copied()),
        }
    }
}

/// Entries that a log has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// All entries were dropped in favour of a snapshot, although the snapshot's last entry was in the log.
    ForOwnSnapshot {
        /// The index of the snapshot's last entry.
        index: LogIndex,
    },
    /// An entry was dropped because it conflicts with a leader's entry.
    ForLeader {
        /// The index of the entry.
        index: LogIndex,
        /// The term of the entry.
        term: Term,
    },
}

/// The log ends before an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log ends at {at}")]
pub struct LogEnds {
    at: LogIndex,
}
