//! Whose work each revision is.
//!
//! An acknowledged change names its revision. What is left over after those is the work of operations
//! whose outcome nobody knows, each of which did one thing at most, or of leases that have ended. Which of
//! several such operations it was may stay open; that all can have been explained at once is a matching
//! of revisions with operations (Kuhn's, by shortest augmenting paths).

use std::collections::{BTreeMap, VecDeque};

use crate::chronicle::FIRST;
use crate::contradiction::{Contradiction, Property};
use crate::model::execute;
use crate::operation::{KvRequest, Outcome, Request};
use crate::time::Sights;
use crate::{Chronicle, History};

/// What a revision is the work of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// This operation, or another without an answer that would have done the same.
    Operation(usize),
    /// The end of a lease, and of no operation that is known.
    LeaseEnd(i64),
    /// The end of a lease, or an operation that would have done the same.
    Either,
}

/// The authors of all revisions.
#[derive(Debug)]
pub(crate) struct Authors(Vec<Author>);

impl Authors {
    /// The author of a revision.
    pub(crate) fn of(&self, revision: i64) -> Option<Author> {
        usize::try_from(revision - FIRST).ok().and_then(|at| self.0.get(at)).copied()
    }

    /// Finds the authors of what no operation was acknowledged for.
    pub(crate) fn find(
        history: &History,
        sights: &Sights,
        acknowledged: &BTreeMap<i64, usize>,
    ) -> Result<Self, Box<Contradiction>> {
        let chronicle = &history.chronicle;
        let lease_ends = lease_ends(chronicle, acknowledged);
        let unknown = Unknown::new(history);
        let mut open = Vec::new();
        let mut authors = Vec::new();
        for revision in FIRST..=chronicle.last() {
            let author = match (acknowledged.get(&revision), lease_ends.get(&revision)) {
                (Some(&operation), _) => Author::Operation(operation),
                (None, Some(&lease)) => match &unknown.candidates(history, sights, revision)[..] {
                    [] => Author::LeaseEnd(lease),
                    [_, ..] => Author::Either,
                },
                (None, None) => {
                    open.push((revision, unknown.candidates(history, sights, revision)));
                    Author::Either
                }
            };
            authors.push(author);
        }
        let matched = matching(&open).map_err(|revision| nobodys(history, revision))?;
        for ((revision, _), operation) in open.iter().zip(matched) {
            let at = usize::try_from(revision - FIRST).expect("revisions begin there");
            authors[at] = Author::Operation(operation);
        }
        Ok(Self(authors))
    }
}

/// Operations that may have changed something, and do not say when.
struct Unknown(Vec<usize>);

impl Unknown {
    fn new(history: &History) -> Self {
        let is_unknown = |at: &usize| match &history.operations[*at].outcome {
            Outcome::Unknown => true,
            Outcome::Answered { revision, .. } => revision.is_none(),
            Outcome::Refused { .. } => false,
        };
        Self((0..history.operations.len()).filter(is_unknown).collect())
    }

    /// Those that would have come to just this revision, in the order in which they were asked for.
    fn candidates(&self, history: &History, sights: &Sights, revision: i64) -> Vec<usize> {
        let known = sights.first_of(revision);
        let is_in_time =
            |at: &usize| known.is_none_or(|known| history.operations[*at].called <= known.at);
        let mut candidates: Vec<usize> = self.0.iter().copied().filter(is_in_time).collect();
        candidates.retain(|at| comes_to(history, *at, revision));
        candidates.sort_by_key(|at| history.operations[*at].called);
        candidates
    }
}

/// Whether an operation, carried out before this revision, would have come to it.
fn comes_to(history: &History, operation: usize, revision: i64) -> bool {
    let Request::Kv(request) = &history.operations[operation].request else { return false };
    let events = history.chronicle.events(revision);
    events.first().is_some_and(|event| touches(request, &event.kv.key))
        && execute(&history.chronicle, revision - 1, request)
            .is_ok_and(|effect| effect.events == events)
}

/// Whether a request may change a key: a quick look.
fn touches(request: &KvRequest, key: &[u8]) -> bool {
    match request {
        KvRequest::Put(put) => put.key == key,
        KvRequest::Delete(delete) => delete.keys.contains(key),
        KvRequest::Range(_) => false,
        KvRequest::Txn(txn) => {
            txn.success.iter().chain(&txn.failure).any(|request| touches(request, key))
        }
    }
}

/// The revisions without an acknowledged author that delete just the keys of one lease, with that lease.
fn lease_ends(chronicle: &Chronicle, acknowledged: &BTreeMap<i64, usize>) -> BTreeMap<i64, i64> {
    let mut attached: BTreeMap<i64, usize> = BTreeMap::new();
    let mut ends = BTreeMap::new();
    for revision in FIRST..=chronicle.last() {
        let events = chronicle.events(revision);
        let lease_of = |key| chronicle.at(key, revision - 1).map_or(0, |kv| kv.lease);
        let lease = events.first().map_or(0, |event| lease_of(&event.kv.key));
        let is_end = lease != 0
            && !acknowledged.contains_key(&revision)
            && attached.get(&lease) == Some(&events.len())
            && events.iter().all(|event| event.is_delete && lease_of(&event.kv.key) == lease);
        if is_end {
            ends.insert(revision, lease);
        }
        for event in events {
            let before = lease_of(&event.kv.key);
            if let Some(count) = attached.get_mut(&before) {
                *count = count.saturating_sub(1);
            }
            if event.kv.lease != 0 {
                *attached.entry(event.kv.lease).or_default() += 1;
            }
        }
    }
    ends
}

/// Gives each revision an operation of its own, or says for which there is none.
fn matching(open: &[(i64, Vec<usize>)]) -> Result<Vec<usize>, i64> {
    // Which place of `open` an operation is given to, and which operation a place has.
    let mut given: BTreeMap<usize, usize> = BTreeMap::new();
    let mut has: Vec<Option<usize>> = vec![None; open.len()];
    for (start, (revision, _)) in open.iter().enumerate() {
        let (free, path) = free_operation(open, &given, start).ok_or(*revision)?;
        // Everybody on the way takes the operation that was come by there, and hands over its own.
        let mut next = Some(free);
        while let Some(operation) = next {
            let place = path[&operation];
            given.insert(operation, place);
            next = has[place].replace(operation);
        }
    }
    Ok(has.into_iter().map(|operation| operation.expect("each was given one")).collect())
}

/// The nearest operation that is given to nobody, and from which place each on the way was come by.
fn free_operation(
    open: &[(i64, Vec<usize>)],
    given: &BTreeMap<usize, usize>,
    start: usize,
) -> Option<(usize, BTreeMap<usize, usize>)> {
    let mut path: BTreeMap<usize, usize> = BTreeMap::new();
    let mut places = VecDeque::from([start]);
    while let Some(place) = places.pop_front() {
        for &operation in &open[place].1 {
            if path.contains_key(&operation) {
                continue;
            }
            path.insert(operation, place);
            match given.get(&operation) {
                Some(&other) => places.push_back(other),
                None => return Some((operation, path)),
            }
        }
    }
    None
}

/// A revision that no operation explains, with those that would, had they not done something else.
fn nobodys(history: &History, revision: i64) -> Box<Contradiction> {
    const SHOWN: usize = 4;
    let events = history.chronicle.events(revision);
    let suspects = (0..history.operations.len()).filter(|at| comes_to(history, *at, revision));
    let suspects: Vec<usize> = suspects.take(SHOWN).collect();
    let what = format!("revision {revision} is nobody's work, or somebody's again: {events:?}");
    Contradiction::new(Property::Explained, what).by(history, &suspects)
}
