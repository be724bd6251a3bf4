//! Finds the cause of each revision: the operation that wrote it, or the lease whose end deleted its keys.
//!
//! The response to a change names the revision that the change wrote. Every other revision was caused either by an
//! operation with an unknown outcome, which can write at most one revision, or by the end of a lease. If several such
//! operations could have written a revision, the checker need not determine which of them did. It is enough that each
//! of these revisions can be assigned an operation of its own. This is a bipartite matching, found by Kuhn's algorithm
//! with shortest augmenting paths.

use std::collections::{BTreeMap, VecDeque};

use crate::event_log::{FIRST, KeyLeases};
use crate::model::execute;
use crate::observations::Observations;
use crate::operation::{KvRequest, Outcome, Request};
use crate::violation::{Property, Violation};
use crate::{EventLog, History};

/// The cause of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// This operation, or another operation with an unknown outcome and the same effect.
    Operation(usize),
    /// This lease ended. No recorded operation has the same effect.
    LeaseEnd(i64),
    /// Either a lease ended, or an operation with the same effect was executed.
    Either,
}

/// The causes of all revisions.
#[derive(Debug)]
pub(crate) struct Causes(Vec<Cause>);

impl Causes {
    /// Returns the cause of a revision.
    pub(crate) fn of(&self, revision: i64) -> Option<Cause> {
        usize::try_from(revision - FIRST).ok().and_then(|at| self.0.get(at)).copied()
    }

    /// Finds the causes of all revisions. `acknowledged` maps each revision that a response names to the operation with
    /// this response.
    pub(crate) fn find(
        history: &History,
        observations: &Observations,
        acknowledged: &BTreeMap<i64, usize>,
    ) -> Result<Self, Box<Violation>> {
        let event_log = &history.event_log;
        let lease_ends = lease_ends(event_log, acknowledged);
        let unknown = Unknown::new(history);
        let mut open = Vec::new();
        let mut causes = Vec::new();
        for revision in FIRST..=event_log.last() {
            let cause = match (acknowledged.get(&revision), lease_ends.get(&revision)) {
                (Some(&operation), _) => Cause::Operation(operation),
                (None, Some(&lease)) => {
                    match &unknown.candidates(history, observations, revision)[..] {
                        [] => Cause::LeaseEnd(lease),
                        [_, ..] => Cause::Either,
                    }
                }
                (None, None) => {
                    open.push((revision, unknown.candidates(history, observations, revision)));
                    Cause::Either
                }
            };
            causes.push(cause);
        }
        let matched = matching(&open).map_err(|revision| unexplained(history, revision))?;
        for ((revision, _), operation) in open.iter().zip(matched) {
            let at = usize::try_from(revision - FIRST).expect("no revision is lower than FIRST");
            causes[at] = Cause::Operation(operation);
        }
        Ok(Self(causes))
    }
}

/// Operations that may have written a revision, but have no response that names it.
struct Unknown(Vec<usize>);

impl Unknown {
    fn new(history: &History) -> Self {
        let is_unknown = |at: &usize| match &history.operations[*at].outcome {
            Outcome::Unknown => true,
            Outcome::Succeeded { revision, .. } => revision.is_none(),
            Outcome::Refused { .. } => false,
        };
        Self((0..history.operations.len()).filter(is_unknown).collect())
    }

    /// Returns the operations with unknown outcomes that would cause exactly the events of this revision, ordered by
    /// call time.
    fn candidates(
        &self,
        history: &History,
        observations: &Observations,
        revision: i64,
    ) -> Vec<usize> {
        let known = observations.first_of(revision);
        let is_in_time =
            |at: &usize| known.is_none_or(|known| history.operations[*at].called <= known.at);
        let mut candidates: Vec<usize> = self.0.iter().copied().filter(is_in_time).collect();
        candidates.retain(|at| produces(history, *at, revision));
        candidates.sort_by_key(|at| history.operations[*at].called);
        candidates
    }
}

/// Returns whether an operation, executed on the state before this revision, would cause exactly its events.
fn produces(history: &History, operation: usize, revision: i64) -> bool {
    let Request::Kv(request) = &history.operations[operation].request else { return false };
    let events = history.event_log.events(revision);
    events.first().is_some_and(|event| touches(request, &event.kv.key))
        && execute(&history.event_log, revision - 1, request)
            .is_ok_and(|effect| effect.events == events)
}

/// Returns whether a request may change a key. This is a quick filter before the request is executed.
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

/// Returns the revisions that have no acknowledged cause and delete exactly the keys of one lease, each with that
/// lease.
fn lease_ends(event_log: &EventLog, acknowledged: &BTreeMap<i64, usize>) -> BTreeMap<i64, i64> {
    let mut leases = KeyLeases::default();
    let mut attached: BTreeMap<i64, usize> = BTreeMap::new();
    let mut ends = BTreeMap::new();
    for revision in FIRST..=event_log.last() {
        let events = event_log.events(revision);
        let before: Vec<i64> = events.iter().map(|event| leases.apply(event)).collect();
        let lease = before.first().copied().unwrap_or_default();
        let is_end = lease != 0
            && !acknowledged.contains_key(&revision)
            && attached.get(&lease) == Some(&events.len())
            && events.iter().all(|event| event.is_delete)
            && before.iter().all(|before| *before == lease);
        if is_end {
            ends.insert(revision, lease);
        }
        for (event, before) in events.iter().zip(before) {
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

/// Assigns a different operation to each open revision, or returns a revision for which no operation is left.
fn matching(open: &[(i64, Vec<usize>)]) -> Result<Vec<usize>, i64> {
    // `given` maps an operation to the position in `open` that it is assigned to. `has` is the inverse.
    let mut given: BTreeMap<usize, usize> = BTreeMap::new();
    let mut has: Vec<Option<usize>> = vec![None; open.len()];
    for (start, (revision, _)) in open.iter().enumerate() {
        let (free, path) = free_operation(open, &given, start).ok_or(*revision)?;
        // The last position on the path takes the free operation. The operation that it held before moves to the
        // previous position on the path, and so on until `start` has an operation.
        let mut next = Some(free);
        while let Some(operation) = next {
            let place = path[&operation];
            given.insert(operation, place);
            next = has[place].replace(operation);
        }
    }
    Ok(has
        .into_iter()
        .map(|operation| operation.expect("every revision has an operation"))
        .collect())
}

/// Finds the nearest unassigned operation. Returns it with a map from each visited operation to the position from which
/// the search reached it.
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

/// Describes a revision without a cause. The violation names operations that have exactly the effect of this revision
/// but have already been assigned to other revisions.
fn unexplained(history: &History, revision: i64) -> Box<Violation> {
    const SUSPECTS_MAX: usize = 4;
    let events = history.event_log.events(revision);
    let suspects = (0..history.operations.len()).filter(|at| produces(history, *at, revision));
    let suspects: Vec<usize> = suspects.take(SUSPECTS_MAX).collect();
    let description = format!(
        "no operation explains revision {revision}, except operations that wrote other revisions: {events:?}"
    );
    Violation::new(Property::SingleCause, description).by(history, &suspects)
}
