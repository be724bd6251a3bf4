//! Leases: what was promised of each, and what became of it.
//!
//! Of a lease there are two sorts of facts. It *lived* at some moment between a question and its answer, and
//! if that answer renewed it, it lives for its time from then on. It was *gone* at a moment, and stays so. A
//! contradiction is a pair of them.
//!
//! A name that was granted more than once (a grant without an answer, asked for again) has several lives
//! that nobody can tell apart, and is left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::answers::is_serializable;
use crate::authors::{Author, Authors};
use crate::chronicle::FIRST;
use crate::contradiction::{Contradiction, Property};
use crate::operation::{Answer, KeyRange, KvRequest, Operation, Outcome, Refusal, Request};
use crate::time::Sights;
use crate::{History, Moment, Rules};

mod answers;

const SECOND: u64 = 1_000_000_000;

type Verdict = Result<(), Box<Contradiction>>;

/// It lived somewhere between two moments.
#[derive(Clone, Copy, Debug)]
struct Lived {
    operation: usize,
    called: Moment,
    /// Nothing without an answer.
    returned: Option<Moment>,
    /// When it may end, if it was renewed.
    until: Option<Moment>,
}

/// It was gone at some moment since `called`, and so at `by`.
#[derive(Clone, Copy, Debug)]
struct Gone {
    operation: Option<usize>,
    called: Moment,
    by: Moment,
}

#[derive(Debug, Default)]
struct Lease {
    /// Requests for it that may have been carried out.
    grants: Vec<usize>,
    ttl_secs: Option<i64>,
    lived: Vec<Lived>,
    gone: Vec<Gone>,
    /// Requests to end it that may have been carried out, by when they were asked for.
    revoked: Vec<Moment>,
    /// The revision that ended it, if only its end can have been the reason.
    ended: Option<i64>,
    /// When it was renewed last, at the latest.
    renewed: Moment,
}

impl Lease {
    /// When it was certainly there.
    fn born(&self) -> Option<Moment> {
        self.lived.iter().filter_map(|lived| lived.returned).min()
    }

    /// When it was certainly no more. Before it was certainly there, it may well have been missing.
    fn gone(&self) -> impl Iterator<Item = &Gone> {
        let born = self.born();
        self.gone.iter().filter(move |gone| born.is_some_and(|born| gone.called > born))
    }
}

/// Checks all leases.
pub(crate) fn check(
    history: &History,
    sights: &Sights,
    authors: &Authors,
    rules: &Rules,
) -> Verdict {
    let mut leases = gather(history, rules);
    add_chronicle(history, sights, authors, &mut leases);
    let reads = Reads::new(history);
    for (id, lease) in &leases {
        if lease.grants.len() == 1 {
            check_lease(history, rules, *id, lease)?;
            check_keys(history, rules, *id, lease)?;
            check_reads(history, &reads, *id, lease)?;
        }
    }
    answers::check(history, rules, &leases)
}

/// What an operation tells of a lease.
enum Fact {
    /// It may exist, for so many seconds if that is known.
    Granted(Option<i64>),
    /// It lives, for so many seconds from now on if this has renewed it.
    Lived(Option<i64>),
    /// It may have been ended.
    Revoked,
    /// It is no more.
    Gone,
}

/// What an operation tells, and of which lease.
fn facts(operation: &Operation) -> Vec<(i64, Fact)> {
    match (&operation.request, &operation.outcome) {
        (
            Request::LeaseGrant { .. },
            Outcome::Answered { answer: Answer::LeaseGranted { id, ttl_secs }, .. },
        ) => vec![(*id, Fact::Granted(Some(*ttl_secs))), (*id, Fact::Lived(Some(*ttl_secs)))],
        (Request::LeaseGrant { id, .. }, Outcome::Unknown) => vec![(*id, Fact::Granted(None))],
        (
            Request::LeaseKeepAlive { id },
            Outcome::Answered { answer: Answer::LeaseKeptAlive { ttl_secs }, .. },
        ) => vec![(*id, Fact::Lived(Some(*ttl_secs)))],
        (Request::LeaseTimeToLive { id, .. }, Outcome::Answered { .. }) => {
            vec![(*id, Fact::Lived(None))]
        }
        (Request::LeaseRevoke { id }, Outcome::Answered { .. }) => {
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
        (Request::Kv(KvRequest::Put(put)), Outcome::Answered { .. }) if put.lease != 0 => {
            vec![(put.lease, Fact::Lived(None))]
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

/// What operations tell of leases.
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
                Fact::Lived(ttl_secs) => {
                    let until = ttl_secs.and_then(until);
                    lease.lived.push(Lived { operation: at, called, returned, until });
                }
                Fact::Revoked => lease.revoked.push(called),
                Fact::Gone => {
                    let by = returned.expect("it has an answer");
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

/// What the chronicle tells of leases: their ends, and keys that came to them.
fn add_chronicle(
    history: &History,
    sights: &Sights,
    authors: &Authors,
    leases: &mut BTreeMap<i64, Lease>,
) {
    for revision in FIRST..=history.chronicle.last() {
        match authors.of(revision) {
            Some(Author::LeaseEnd(id)) => {
                let lease = leases.entry(id).or_default();
                lease.ended.get_or_insert(revision);
                if let Some(sight) = sights.first_of(revision) {
                    // Who saw it is told by the revision.
                    let gone = Gone { operation: None, called: sight.at, by: sight.at };
                    lease.gone.push(gone);
                }
            }
            Some(Author::Operation(operation)) => {
                let called = history.operations[operation].called;
                let returned = history.operations[operation].returned();
                let ids = history.chronicle.events(revision).iter().map(|event| event.kv.lease);
                for id in ids.filter(|id| *id != 0).collect::<BTreeSet<_>>() {
                    let lived = Lived { operation, called, returned, until: None };
                    leases.entry(id).or_default().lived.push(lived);
                }
            }
            Some(Author::Either) | None => {}
        }
    }
}

fn check_lease(history: &History, rules: &Rules, id: i64, lease: &Lease) -> Verdict {
    // The last sign of life, and the longest promise.
    let asked = |lived: &Lived| match history.operations[lived.operation].request {
        // As if it had been asked for when its leader was sure for the last time.
        Request::LeaseKeepAlive { .. } => {
            Moment(lived.called.0.saturating_sub(rules.renewal_slack))
        }
        Request::Kv(_)
        | Request::LeaseGrant { .. }
        | Request::LeaseRevoke { .. }
        | Request::LeaseTimeToLive { .. }
        | Request::Compact { .. } => lived.called,
    };
    let last = lease.lived.iter().max_by_key(|lived| asked(lived));
    let longest = lease.lived.iter().max_by_key(|lived| lived.until);
    for gone in lease.gone() {
        let blame = |property, what: String, lived: &Lived| {
            let operations: Vec<usize> =
                std::iter::once(lived.operation).chain(gone.operation).collect();
            Err(Contradiction::new(property, what).by(history, &operations))
        };
        if let Some(lived) = last
            && asked(lived) > gone.by
        {
            let what = format!("lease {id} lives after it was gone at {}", gone.by.0);
            return blame(Property::LeaseEnded, what, lived);
        }
        let is_revoked = lease.revoked.iter().any(|called| *called <= gone.by);
        if let Some(lived) = longest
            && let Some(until) = lived.until
            && until > gone.by
            && !is_revoked
        {
            let what =
                format!("lease {id} was to last until {}, and was gone at {}", until.0, gone.by.0);
            return blame(Property::LeaseKept, what, lived);
        }
    }
    Ok(())
}

/// No key goes with a lease that has ended.
fn check_keys(history: &History, rules: &Rules, id: i64, lease: &Lease) -> Verdict {
    let chronicle = &history.chronicle;
    if let Some(ended) = lease.ended {
        for revision in ended + 1..=chronicle.last() {
            if let Some(event) = chronicle.events(revision).iter().find(|e| e.kv.lease == id) {
                let what = format!("lease {id} ended at {ended}, and {event:?} goes with it");
                return Err(Contradiction::new(Property::LeaseEnded, what));
            }
        }
    }
    let is_gone = lease.gone().next().is_some();
    let is_overdue = lease.ttl_secs.is_some_and(|ttl_secs| {
        let lasts = nanos(ttl_secs);
        rules.calm.is_some_and(|calm| {
            let since = calm.since.max(lease.renewed);
            since.plus(lasts).plus(calm.lease_grace) < calm.until
        })
    });
    if !is_gone && !is_overdue {
        return Ok(());
    }
    let mut kept = chronicle.range(&KeyRange::ALL, chronicle.last()).filter(|kv| kv.lease == id);
    match kept.next() {
        Some(kv) => {
            let why = if is_gone { "is gone" } else { "was due to end" };
            let what = format!("lease {id} {why}, and {:?} is still there", kv.key);
            Err(Contradiction::new(Property::LeaseEnded, what).by(history, &lease.grants))
        }
        None => Ok(()),
    }
}

/// Who reads after a lease was gone finds its keys gone.
fn check_reads(history: &History, reads: &Reads, id: i64, lease: &Lease) -> Verdict {
    let (Some(ended), Some(gone)) = (lease.ended, lease.gone().map(|gone| gone.by).min()) else {
        return Ok(());
    };
    match reads.lowest_after(gone) {
        Some((revision, at)) if revision < ended => {
            let what = format!(
                "lease {id} was gone at {}; its keys went at {ended}, and this tells of {revision}",
                gone.0
            );
            Err(Contradiction::new(Property::LeaseEnded, what).by(history, &[at]))
        }
        Some(_) | None => Ok(()),
    }
}

/// What must not be old, by when it was asked for: each with the lowest revision from it on.
struct Reads(Vec<(Moment, i64, usize)>);

impl Reads {
    fn new(history: &History) -> Self {
        let mut reads = Vec::new();
        for (at, operation) in history.operations.iter().enumerate() {
            if let Request::Kv(request) = &operation.request
                && let Outcome::Answered { revision: Some(revision), .. } = operation.outcome
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
