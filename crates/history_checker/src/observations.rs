//! The moments at which clients observed each revision.
//!
//! If a client has observed a revision, that revision exists. Therefore the operation that wrote the revision was
//! called before the observation, and an operation called after the observation must see that revision or a newer one.

use crate::operation::{Outcome, Response};
use crate::watcher::{Event, WatchMessage};
use crate::{History, Moment};

/// The source of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Operation(usize),
    Watcher(usize),
}

/// The observation of a revision by a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) at: Moment,
    pub(crate) revision: i64,
    pub(crate) source: Source,
}

/// All observations of revisions.
#[derive(Clone, Debug)]
pub(crate) struct Observations {
    /// Observations ordered by moment, each with the highest revision observed up to that moment.
    highest: Vec<Observation>,
    /// Observations ordered by revision, each with the first moment at which that revision or a later one was observed.
    earliest: Vec<Observation>,
}

impl Observations {
    pub(crate) fn new(history: &History) -> Self {
        let mut all = Vec::new();
        for (number, operation) in history.operations.iter().enumerate() {
            if let Outcome::Succeeded { at, revision: Some(revision), response: Response::Kv(_) } =
                operation.outcome
            {
                all.push(Observation { at, revision, source: Source::Operation(number) });
            }
        }
        for (number, watcher) in history.watchers.iter().enumerate() {
            let source = Source::Watcher(number);
            for (at, message) in &watcher.messages {
                let revision = match message {
                    WatchMessage::Created { revision } | WatchMessage::Progress { revision } => {
                        Some(*revision)
                    }
                    WatchMessage::Events { events, .. } => events.last().map(Event::revision),
                    WatchMessage::Compacted { .. } | WatchMessage::Cancelled => None,
                };
                all.extend(revision.map(|revision| Observation { at: *at, revision, source }));
            }
        }
        Self { highest: highest(all.clone()), earliest: earliest(all) }
    }

    /// Returns the highest revision observed before a moment.
    pub(crate) fn before(&self, moment: Moment) -> Option<Observation> {
        let count = self.highest.partition_point(|observation| observation.at < moment);
        count.checked_sub(1).map(|last| self.highest[last])
    }

    /// Returns the first observation of this revision or a later one.
    pub(crate) fn first_of(&self, revision: i64) -> Option<Observation> {
        let place = self.earliest.partition_point(|observation| observation.revision < revision);
        self.earliest.get(place).copied()
    }
}

fn highest(mut all: Vec<Observation>) -> Vec<Observation> {
    all.sort_by_key(|observation| observation.at);
    let mut highest: Vec<Observation> = Vec::new();
    for observation in all {
        if highest.last().is_none_or(|last| observation.revision > last.revision) {
            highest.push(observation);
        }
    }
    highest
}

fn earliest(mut all: Vec<Observation>) -> Vec<Observation> {
    all.sort_by_key(|observation| (observation.revision, std::cmp::Reverse(observation.at)));
    let mut earliest: Vec<Observation> = Vec::new();
    for observation in all.into_iter().rev() {
        if earliest.last().is_none_or(|last| observation.at < last.at) {
            earliest.push(observation);
        }
    }
    earliest.reverse();
    earliest
}
