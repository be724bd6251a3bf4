//! Checks whether a linearizable key-value store could have produced the responses and events that clients received
//! from a cluster.
//!
//! A recorder (the simulator, or a black-box suite) records each client request and its response, with the moments of
//! the call and the return ([`Operation`], [`Watcher`]), and the events of every revision that the cluster committed
//! ([`EventLog`]). [`check`] returns whether a store that executes one request at a time could have returned these
//! responses and committed these events.
//!
//! # What is checked
//!
//! - Order: every revision has exactly one cause, an operation or the end of a lease, whose effect is exactly
//!   the events of that revision. Every response is correct at the revision that it names. The order of
//!   revisions agrees with real time: once any client has seen a revision, in a response or in an event, every
//!   operation called later sees that revision or a newer one. Only serializable reads may be stale.
//! - Watches: a watcher receives every event once and in order, with the right previous value. The events of a revision
//!   arrive together, and progress notifications are true.
//! - Leases: a lease neither ends early nor reappears after its end, and its keys are deleted with it.
//! - Compaction: reads of compacted revisions are refused, and no other reads are refused as compacted.
//!
//! # Algorithm
//!
//! Revisions put all changes in a total order, so the checker need not search for one. It passes over the revisions and
//! the operations a fixed number of times. In addition, it compares each revision that no response names with all
//! operations with unknown outcomes, and each ended lease with all later revisions. Where several operations with
//! unknown outcomes may have written a revision, a single matching of operations to revisions decides all such cases
//! together.
//!
//! # Not here
//!
//! Recording histories, and comparing hashes of the members' data. The crate uses no cluster, clock or files.

#![cfg_attr(
    test,
    expect(
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "tests convert only small numbers"
    )
)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

mod causes;
mod compactions;
mod event_log;
mod kv_responses;
mod leases;
mod model;
mod observations;
mod operation;
mod refusals;
#[cfg(test)]
mod tests;
mod violation;
mod watcher;
mod watches;

use causes::Causes;
use compactions::Compactions;
use observations::Observations;

pub use event_log::{EventLog, RecordError};
pub use operation::{
    Compare, Delete, KeyRange, KeyValue, KvRequest, KvResponse, Operand, Operation, Outcome, Put,
    Range, Refusal, Relation, Request, Response, Txn,
};
pub use violation::{Property, Violation};
pub use watcher::{Event, WatchMessage, WatchRequest, Watcher};

/// Nanoseconds on a clock that all clients share. The clock never jumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// Returns the moment `nanos` nanoseconds later.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

/// The recorded history of one run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The operations of all clients, in any order.
    pub operations: Vec<Operation>,
    /// The watchers of all clients.
    pub watchers: Vec<Watcher>,
    /// The events of every revision, from 2 to the last.
    pub event_log: EventLog,
}

/// The tolerances of the checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The maximum time by which a lease may end before its TTL has passed, in nanoseconds. This allows for the inexact
    /// clocks of members. `None` means that leases may end at any time, because clocks jump.
    pub lease_slack: Option<u64>,
    /// The maximum time by which the reported remaining time of a lease may exceed its granted TTL, in nanoseconds. A
    /// new leader extends every lease, because the old leader may have renewed it shortly before it was deposed.
    pub lease_extension: u64,
    /// The maximum time for which a lease may still be renewed after its end, in nanoseconds. Only the leader decides
    /// on renewals, and a deposed leader notices only after this time that it has lost its quorum.
    pub renewal_slack: u64,
    /// A period without faults at the end of the run, in which leases must end unless they are renewed.
    pub fault_free: Option<FaultFree>,
}

/// A period without faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultFree {
    /// The start of the period.
    pub since: Moment,
    /// The end of the period, when the event log was read.
    pub until: Moment,
    /// The maximum time by which a lease may outlive its TTL, in nanoseconds.
    pub lease_grace: u64,
}

/// The numbers of checked operations and events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of operations that succeeded.
    pub responses: usize,
    /// The number of operations that the state machine refused.
    pub refusals: usize,
    /// The number of operations with an unknown outcome.
    pub unknown: usize,
    /// The number of events that watchers received.
    pub events: usize,
}

/// Checks a recorded history against the rules.
///
/// # Errors
///
/// Returns the first violation found.
pub fn check(history: &History, rules: &Rules) -> Result<Counts, Box<Violation>> {
    let (observations, compactions) = (Observations::new(history), Compactions::new(history));
    let acknowledged = kv_responses::check(history, &observations, &compactions)?;
    let causes = Causes::find(history, &observations, &acknowledged)?;
    refusals::check(history, &observations, &compactions, &causes)?;
    watches::check(history, &compactions)?;
    leases::check(history, &observations, &causes, rules)?;
    Ok(count(history))
}

fn count(history: &History) -> Counts {
    let mut counts = Counts::default();
    for operation in &history.operations {
        match operation.outcome {
            Outcome::Succeeded { .. } => counts.responses += 1,
            Outcome::Refused { .. } => counts.refusals += 1,
            Outcome::Unknown => counts.unknown += 1,
        }
    }
    for (_, message) in history.watchers.iter().flat_map(|watcher| &watcher.messages) {
        if let WatchMessage::Events { events, .. } = message {
            counts.events += events.len();
        }
    }
    counts
}
