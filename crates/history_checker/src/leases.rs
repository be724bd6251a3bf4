//! Checks that each lease lives for its TTL and never reappears after its end.
//!
//! There are two kinds of facts about a lease. The first kind is that the lease was *alive* at some moment between a
//! call and its response. If that call renewed the lease, the lease must live for its TTL from then on. The second kind
//! is that the lease was *gone* at some moment, and it must stay gone. A violation is a pair of facts that contradict
//! each other.
//!
//! A lease id that was granted more than once (because a client retried a grant that had received no response) stands
//! for several leases, which the history cannot distinguish. The lifetimes of leases with such ids are not checked.

use std::collections::{BTreeMap, BTreeSet};

use crate::causes::{Cause, Causes};
use crate::event_log::FIRST;
use crate::kv_responses::is_serializable;
use crate::observations::Observations;
use crate::operation::{KeyRange, KvRequest, Operation, Outcome, Refusal, Request, Response};
use crate::violation::{Property, Violation};
use crate::{History, Moment, Rules};

mod responses;

const SECOND: u64 = 1_000_000_000;

type Verdict = Result<(), Box<Violation>>;

/// The lease was alive at some moment between `called` and `returned`.
#[derive(Clone, Copy, Debug)]
struct Alive {
    operation: usize,
    called: Moment,
    /// When the response arrived, or `None` if there was no response.
    returned: Option<Moment>,
    /// The moment until which the lease must live, if the operation renewed it.
    until: Option<Moment>,
}

/// The lease was gone at some moment between `called` and `by`, and therefore also at `by`.
#[derive(Clone, Copy, Debug)]
struct Gone {
    operation: Option<usize>,
    called: Moment,
    by: Moment,
}

#[derive(Debug, Default)]
struct Lease {
    /// The grants of this id that may have been executed, as positions in the history.
    grants: Vec<usize>,
    ttl_secs: Option<i64>,
    alive: Vec<Alive>,
    gone: Vec<Gone>,
    /// The call times of all revocations that may have been executed.
    revoked: Vec<Moment>,
    /// The revision that deleted the lease's keys, if only the end of the lease could have caused that revision.
    ended: Option<i64>,
    /// The latest moment at which the lease may have been renewed.
    renewed: Moment,
}

impl Lease {
    /// Returns the first moment at which the lease was certainly alive.
    fn first_alive(&self) -> Option<Moment> {
        self.alive.iter().filter_map(|alive| alive.returned).min()
    }

    /// Returns the observations that the lease was gone. Observations before the first moment at which the lease was
    /// certainly alive are left out, because the lease may not have been granted yet.
    fn gone(&self) -> impl Iterator<Item = &Gone> {
        let first_alive = self.first_alive();
        self.gone
            .iter()
            .filter(move |gone| first_alive.is_some_and(|first_alive| gone.called > first_alive))
    }
}

/// Checks all leases.
pub(crate) fn check(
    history: &History,
    observations: &Observations,
    causes: &Causes,
    rules: &Rules,
) -> Verdict {
    let mut leases = gather(history, rules);
    add_event_log(history, observations, causes, &mut leases);
    let reads = Reads::new(history);
    for (id, lease) in &leases {
        if lease.grants.len() == 1 {
            check_lease(history, rules, *id, lease)?;
            check_keys(history, rules, *id, lease)?;
            check_reads(history, &reads, *id, lease)?;
        }
    }
    responses::check(history, rules, &leases)
}

/// A fact that an operation establishes about a lease.
enum Fact {
    /// The lease may exist. The value is its TTL in seconds, if the TTL is known.
    Granted(Option<i64>),
    /// The lease is alive. If the operation renewed the lease, the value is the number of seconds for which the lease
    /// lives after the call.
    Alive(Option<i64>),
    /// The lease may have been revoked.
    Revoked,
    /// The lease is gone.
    Gone,
}

/// Returns the facts that an operation establishes, each with its lease id.
fn facts(operation: &Operation) -> Vec<(i64, Fact)> {
    match (&operation.request, &operation.outcome) {
        (
            Request::LeaseGrant { .. },
            Outcome::Succeeded { response: Response::LeaseGranted { id, ttl_secs }, .. },
        ) => vec![(*id, Fact::Granted(Some(*ttl_secs))), (*id, Fact::Alive(Some(*ttl_secs)))],
        (Request::LeaseGrant { id, .. }, Outcome::Unknown) => vec![(*id, Fact::Granted(None))],
        (
            Request::LeaseKeepAlive { id },
            Outcome::Succeeded { response: Response::LeaseKeptAlive { ttl_secs }, .. },
        ) => vec![(*id, Fact::Alive(Some(*ttl_secs)))],
        (Request::LeaseTimeToLive { id, .. }, Outcome::Succeeded { .. }) => {
            vec![(*id, Fact::Alive(None))]
        }
        (Request::LeaseRevoke { id }, Outcome::Succeeded { .. }) => {
            vec![(*id, Fact::Revoked), (*id, Fact::Gone)]
        }
        (Request::LeaseRevoke { id }, Outcome::Unknown) => vec![(*id, Fact::Revoked)],
        (
            Request::LeaseKeepAlive { id }
            | Request::LeaseTimeToLive { id, .. }
            | Request::LeaseRevoke { id },
            Outcome::Refused { refusal: Refusal::LeaseNotFound, .. },
        ) => vec![(*id, Fact::Gone)],
        (
            Request::Kv(KvRequest::Put(put)),
            Outcome::Refused { refusal: Refusal::LeaseNotFound, .. },
        ) => vec![(put.lease, Fact::Gone)],
        (Request::Kv(KvRequest::Put(put)), Outcome::Succeeded { .. }) if put.lease != 0 => {
            vec![(put.lease, Fact::Alive(None))]
        }
        (
            Request::Kv(_)
            | Request::Compact { .. }
            | Request::LeaseGrant { .. }
            | Request::LeaseRevoke { .. }
            | Request::LeaseKeepAlive { .. }
            | Request::LeaseTimeToLive { .. },
            _,
        ) => Vec::new(),
    }
}

/// Collects the facts that operations establish.
fn gather(history: &History, rules: &Rules) -> BTreeMap<i64, Lease> {
    let mut leases: BTreeMap<i64, Lease> = BTreeMap::new();
    for (at, operation) in history.operations.iter().enumerate() {
        let (called, returned) = (operation.called, operation.returned());
        let until = |ttl_secs: i64| {
            rules.lease_slack.map(|slack| called.plus(nanos(ttl_secs).saturating_sub(slack)))
        };
        for (id, fact) in facts(operation) {
            let lease = leases.entry(id).or_default();
            match fact {
                Fact::Granted(ttl_secs) => {
                    lease.grants.push(at);
                    lease.ttl_secs = ttl_secs;
                }
                Fact::Alive(ttl_secs) => {
                    let until = ttl_secs.and_then(until);
                    lease.alive.push(Alive { operation: at, called, returned, until });
                }
                Fact::Revoked => lease.revoked.push(called),
                Fact::Gone => {
                    let by = returned.expect("only a response shows that a lease has ended");
                    lease.gone.push(Gone { operation: Some(at), called, by });
                }
            }
        }
        if let Request::LeaseGrant { id, .. } | Request::LeaseKeepAlive { id } = operation.request {
            let renewed = &mut leases.entry(id).or_default().renewed;
            *renewed = (*renewed).max(returned.unwrap_or(called));
        }
    }
    leases
}

fn nanos(ttl_secs: i64) -> u64 {
    u64::try_from(ttl_secs).unwrap_or(0).saturating_mul(SECOND)
}

/// Adds the facts that the event log establishes: which leases ended, and which keys were attached to leases.
fn add_event_log(
    history: &History,
    observations: &Observations,
    causes: &Causes,
    leases: &mut BTreeMap<i64, Lease>,
) {
    for revision in FIRST..=history.event_log.last() {
        match causes.of(revision) {
            Some(Cause::LeaseEnd(id)) => {
                let lease = leases.entry(id).or_default();
                lease.ended.get_or_insert(revision);
                if let Some(observation) = observations.first_of(revision) {
                    // The revision had been written when it was observed, so the lease was gone at that moment.
                    let gone = Gone { operation: None, called: observation.at, by: observation.at };
                    lease.gone.push(gone);
                }
            }
            Some(Cause::Operation(operation)) => {
                let called = history.operations[operation].called;
                let returned = history.operations[operation].returned();
                let ids = history.event_log.events(revision).iter().map(|event| event.kv.lease);
                for id in ids.filter(|id| *id != 0).collect::<BTreeSet<_>>() {
                    let alive = Alive { operation, called, returned, until: None };
                    leases.entry(id).or_default().alive.push(alive);
                }
            }
            Some(Cause::Either) | None => {}
        }
    }
}

fn check_lease(history: &History, rules: &Rules, id: i64, lease: &Lease) -> Verdict {
    // Two facts are enough for this check: the last fact that shows the lease alive, and the renewal with the latest
    // deadline.
    let asked = |alive: &Alive| match history.operations[alive.operation].request {
        // A deposed leader may still renew leases. Its renewals count from the moment at which a quorum last confirmed
        // it as leader.
        Request::LeaseKeepAlive { .. } => {
            Moment(alive.called.0.saturating_sub(rules.renewal_slack))
        }
        Request::Kv(_)
        | Request::LeaseGrant { .. }
        | Request::LeaseRevoke { .. }
        | Request::LeaseTimeToLive { .. }
        | Request::Compact { .. } => alive.called,
    };
    let last = lease.alive.iter().max_by_key(|alive| asked(alive));
    let longest = lease.alive.iter().max_by_key(|alive| alive.until);
    for gone in lease.gone() {
        let blame = |property, description: String, alive: &Alive| {
            let operations: Vec<usize> =
                std::iter::once(alive.operation).chain(gone.operation).collect();
            Err(Violation::new(property, description).by(history, &operations))
        };
        if let Some(alive) = last
            && asked(alive) > gone.by
        {
            let description =
                format!("lease {id} is alive, although it had ended by time {}", gone.by.0);
            return blame(Property::LeaseEnd, description, alive);
        }
        let is_revoked = lease.revoked.iter().any(|called| *called <= gone.by);
        if let Some(alive) = longest
            && let Some(until) = alive.until
            && until > gone.by
            && !is_revoked
        {
            let description = format!(
                "lease {id} must live until time {}, but had ended by time {}",
                until.0, gone.by.0
            );
            return blame(Property::LeaseLifetime, description, alive);
        }
    }
    Ok(())
}

/// Checks that no key is attached to a lease that has ended.
fn check_keys(history: &History, rules: &Rules, id: i64, lease: &Lease) -> Verdict {
    let event_log = &history.event_log;
    if let Some(ended) = lease.ended {
        for revision in ended + 1..=event_log.last() {
            if let Some(event) = event_log.events(revision).iter().find(|e| e.kv.lease == id) {
                let description = format!(
                    "lease {id} ended at revision {ended}, but the later event {event:?} attaches a key to it"
                );
                return Err(Violation::new(Property::LeaseEnd, description));
            }
        }
    }
    let is_gone = lease.gone().next().is_some();
    let is_overdue = lease.ttl_secs.is_some_and(|ttl_secs| {
        let lasts = nanos(ttl_secs);
        rules.fault_free.is_some_and(|fault_free| {
            let since = fault_free.since.max(lease.renewed);
            since.plus(lasts).plus(fault_free.lease_grace) < fault_free.until
        })
    });
    if !is_gone && !is_overdue {
        return Ok(());
    }
    let mut kept = event_log.range(&KeyRange::ALL, event_log.last()).filter(|kv| kv.lease == id);
    match kept.next() {
        Some(kv) => {
            let state = if is_gone { "has ended" } else { "is overdue" };
            let description = format!("lease {id} {state}, but key {:?} still exists", kv.key);
            Err(Violation::new(Property::LeaseEnd, description).by(history, &lease.grants))
        }
        None => Ok(()),
    }
}

/// Checks that reads after the end of a lease do not return the keys of the lease.
fn check_reads(history: &History, reads: &Reads, id: i64, lease: &Lease) -> Verdict {
    let (Some(ended), Some(gone)) = (lease.ended, lease.gone().map(|gone| gone.by).min()) else {
        return Ok(());
    };
    match reads.lowest_after(gone) {
        Some((revision, at)) if revision < ended => {
            let description = format!(
                "lease {id} had ended by time {} and its keys were deleted at revision {ended}, but a later read \
                 returned the older revision {revision}",
                gone.0
            );
            Err(Violation::new(Property::LeaseEnd, description).by(history, &[at]))
        }
        Some(_) | None => Ok(()),
    }
}

/// Linearizable reads, sorted by their call times. Each read is stored with the lowest revision that it or any later
/// read returned.
struct Reads(Vec<(Moment, i64, usize)>);

impl Reads {
    fn new(history: &History) -> Self {
        let mut reads = Vec::new();
        for (at, operation) in history.operations.iter().enumerate() {
            if let Request::Kv(request) = &operation.request
                && let Outcome::Succeeded { revision: Some(revision), .. } = operation.outcome
                && !is_serializable(request)
            {
                reads.push((operation.called, revision, at));
            }
        }
        reads.sort_unstable();
        let mut lowest = None;
        for read in reads.iter_mut().rev() {
            let (_, revision, at) = *read;
            let found = lowest.filter(|(lowest, _)| *lowest < revision).unwrap_or((revision, at));
            (read.1, read.2) = found;
            lowest = Some(found);
        }
        Self(reads)
    }

    fn lowest_after(&self, moment: Moment) -> Option<(i64, usize)> {
        let start = self.0.partition_point(|(called, _, _)| *called <= moment);
        self.0.get(start).map(|(_, revision, at)| (*revision, *at))
    }
}
