//! What clients saw of a cluster, and whether it can have been.
//!
//! A recorder (the simulator, a suite of black-box tests) writes down what each client asked for and was
//! told, with the moments of both ([`Operation`], [`Watcher`]), and what the cluster's history came to in
//! the end ([`Chronicle`]: the events of every revision). [`check`] says whether one key-value store, which
//! does one thing at a time, could have given these answers and come to that chronicle.
//!
//! # What is checked
//!
//! * Order: every revision is the work of one operation (or of a lease's end), which came
//!   to exactly these events; every answer is right for its place in that order; and the order agrees
//!   with real time: who was told of a revision, by whatever answer or event, leaves it behind in
//!   everything that begins afterwards. Serializable reads alone may be old.
//! * Watches: every event once, in order, none skipped, a revision never torn, previous values right,
//!   progress honest.
//! * Leases: none ends before its time, none lives again, keys go with them.
//! * Compaction: what was compacted is refused, and nothing else is.
//!
//! # How
//!
//! Revisions are a total order of all that changed anything, so no order has to be searched for: what is
//! checked is one walk through them, and one through time. The work grows as the history does. Where it
//! is open which of several operations without an answer has done something, all such questions are
//! settled together, as a matching of operations with revisions.
//!
//! # Not here
//!
//! How histories are recorded, and hashes of what members hold. The crate knows no cluster, no clock and no
//! file.

#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

mod answers;
mod authors;
mod chronicle;
mod compactions;
mod contradiction;
mod leases;
mod model;
mod operation;
mod refusals;
#[cfg(test)]
mod tests;
mod time;
mod watcher;
mod watches;

use authors::Authors;
use compactions::Compactions;
use time::Sights;

pub use chronicle::{Chronicle, Disagreement};
pub use contradiction::{Contradiction, Property};
pub use operation::{
    Answer, Compare, Delete, KeyRange, KeyValue, KvAnswer, KvRequest, Operand, Operation, Outcome,
    Put, Range, Refusal, Relation, Request, Txn,
};
pub use watcher::{Event, Told, WatchRequest, Watcher};

/// Nanoseconds on a clock that all clients share, and that never jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// So many nanoseconds later.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

/// All that was seen.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What clients asked for, in any order.
    pub operations: Vec<Operation>,
    /// Watchers.
    pub watchers: Vec<Watcher>,
    /// What the cluster came to, each revision from 2 to the last.
    pub chronicle: Chronicle,
}

/// What may be expected of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How much earlier than promised a lease may end, in nanoseconds: members' clocks are not exact.
    /// Nothing where leases may end at any time (clocks that jump).
    pub lease_slack: Option<u64>,
    /// How much longer than granted a lease may be said to last, in nanoseconds: whoever becomes leader gives
    /// holders the time in which there was nobody to renew at.
    pub lease_extension: u64,
    /// How long after a lease was gone it may be renewed, in nanoseconds: a renewal is the word of a leader alone, which
    /// may have been deposed and does not know it before it has missed a quorum for this long.
    pub renewal_slack: u64,
    /// A time at the end when nothing was broken: leases that nobody renews have to end.
    pub calm: Option<Calm>,
}

/// A time when nothing was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calm {
    /// From when on.
    pub since: Moment,
    /// When the chronicle was read.
    pub until: Moment,
    /// How much later than its time a lease may end, in nanoseconds.
    pub lease_grace: u64,
}

/// How much was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations with an answer.
    pub answers: usize,
    /// Operations that the state refused.
    pub refusals: usize,
    /// Operations of which nobody knows.
    pub unknown: usize,
    /// Events that watchers were told.
    pub events: usize,
}

/// Says whether a history can have been.
///
/// # Errors
/// It cannot; the first reason that was found.
pub fn check(history: &History, rules: &Rules) -> Result<Counts, Box<Contradiction>> {
    let (sights, compactions) = (Sights::new(history), Compactions::new(history));
    let acknowledged = answers::check(history, &sights, &compactions)?;
    let authors = Authors::find(history, &sights, &acknowledged)?;
    refusals::check(history, &sights, &compactions, &authors)?;
    watches::check(history, &compactions)?;
    leases::check(history, &sights, &authors, rules)?;
    Ok(count(history))
}

fn count(history: &History) -> Counts {
    let mut counts = Counts::default();
    for operation in &history.operations {
        match operation.outcome {
            Outcome::Answered { .. } => counts.answers += 1,
            Outcome::Refused { .. } => counts.refusals += 1,
            Outcome::Unknown => counts.unknown += 1,
        }
    }
    for (_, told) in history.watchers.iter().flat_map(|watcher| &watcher.told) {
        if let Told::Events { events, .. } = told {
            counts.events += events.len();
        }
    }
    counts
}
