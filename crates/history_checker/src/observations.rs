//! When a revision was known, to whoever it was.
//!
//! A revision that somebody was told of has happened. So who asked for what it is must have asked before,
//! and who asks afterwards comes after it. Both follow from one table: what was told when.

use crate::operation::{Answer, Outcome};
use crate::watcher::{Event, Told};
use crate::{History, Moment};

/// Who told of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Operation(usize),
    Watcher(usize),
}

/// Somebody was told of a revision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) at: Moment,
    pub(crate) revision: i64,
    pub(crate) source: Source,
}

/// All that was told of revisions.
#[derive(Clone, Debug)]
pub(crate) struct Sights {
    /// By moment, each with the highest revision up to then.
    highest: Vec<Sight>,
    /// By revision, each with the first moment of any revision from it on.
    earliest: Vec<Sight>,
}

impl Sights {
    pub(crate) fn new(history: &History) -> Self {
        let mut all = Vec::new();
        for (number, operation) in history.operations.iter().enumerate() {
            if let Outcome::Answered { at, revision: Some(revision), answer: Answer::Kv(_) } =
                operation.outcome
            {
                all.push(Sight { at, revision, source: Source::Operation(number) });
            }
        }
        for (number, watcher) in history.watchers.iter().enumerate() {
            let source = Source::Watcher(number);
            for (at, told) in &watcher.told {
                let revision = match told {
                    Told::Created { revision } | Told::Progress { revision } => Some(*revision),
                    Told::Events { events, .. } => events.last().map(Event::revision),
                    Told::Compacted { .. } | Told::Cancelled => None,
                };
                all.extend(revision.map(|revision| Sight { at: *at, revision, source }));
            }
        }
        Self { highest: highest(all.clone()), earliest: earliest(all) }
    }

    /// The highest revision that anybody was told of before a moment.
    pub(crate) fn before(&self, moment: Moment) -> Option<Sight> {
        let count = self.highest.partition_point(|sight| sight.at < moment);
        count.checked_sub(1).map(|last| self.highest[last])
    }

    /// The first time that somebody was told of this revision, or one after it.
    pub(crate) fn first_of(&self, revision: i64) -> Option<Sight> {
        let place = self.earliest.partition_point(|sight| sight.revision < revision);
        self.earliest.get(place).copied()
    }
}

fn highest(mut all: Vec<Sight>) -> Vec<Sight> {
    all.sort_by_key(|sight| sight.at);
    let mut highest: Vec<Sight> = Vec::new();
    for sight in all {
        if highest.last().is_none_or(|last| sight.revision > last.revision) {
            highest.push(sight);
        }
    }
    highest
}

fn earliest(mut all: Vec<Sight>) -> Vec<Sight> {
    all.sort_by_key(|sight| (sight.revision, std::cmp::Reverse(sight.at)));
    let mut earliest: Vec<Sight> = Vec::new();
    for sight in all.into_iter().rev() {
        if earliest.last().is_none_or(|last| sight.at < last.at) {
            earliest.push(sight);
        }
    }
    earliest.reverse();
    earliest
}
