//! The term of each entry of a member's log, as its own consensus has reported it. The checks of a new leader use it.

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

    /// The log is going to hold this. Returns what it holds no more.
    pub(super) fn note(&mut self, persist: &Persist) -> Vec<GivenUp> {
        let mut given_up = Vec::new();
        if let Some(snapshot) = &persist.snapshot {
            let last = (snapshot.metadata.index, snapshot.metadata.term);
            let before = std::mem::replace(&mut self.0, BTreeMap::from([last]));
            if before.get(&last.0) == Some(&last.1) {
                given_up.push(GivenUp::ForItsOwnPast { index: last.0 });
            }
        }
        let after = match persist.entries.first() {
            Some(first) => self.0.split_off(&first.index),
            None => BTreeMap::new(),
        };
        self.0.extend(persist.entries.iter().map(|entry| (entry.index, entry.term)));
        let is_gone = |(index, term): &(LogIndex, Term)| self.0.get(index) != Some(term);
        let gone = after.into_iter().filter(is_gone);
        given_up.extend(gone.map(|(index, term)| GivenUp::ForALeaders { index, term }));
        given_up
    }

    /// The last of the entries up to `index` that the log has.
    pub(super) fn held_of(&self, index: LogIndex) -> LogIndex {
        self.0.last_key_value().map_or(index, |(last, _)| index.min(*last))
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

/// What a log holds no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Everything, for a snapshot whose last entry it had itself.
    ForItsOwnPast {
        /// That entry.
        index: LogIndex,
    },
    /// An entry, for what a leader has there.
    ForALeaders {
        /// Its index.
        index: LogIndex,
        /// Its term.
        term: Term,
    },
}

/// A log that has no entry there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its log ends at {at}")]
pub struct Ends {
    at: LogIndex,
}
