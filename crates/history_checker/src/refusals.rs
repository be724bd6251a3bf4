//! Checks that the reason for each refusal was true.
//!
//! A refusal does not name a revision. The reason must be true at some revision between the newest revision observed
//! before the call and the newest revision that could have existed when the call returned.

use crate::causes::{Cause, Causes};
use crate::compactions::Compactions;
use crate::event_log::FIRST;
use crate::kv_responses::{add_source, for_each_revision, is_serializable};
use crate::observations::Observations;
use crate::operation::{KvRequest, Operation, Outcome, Refusal, Request, Response};
use crate::violation::{Property, Violation};
use crate::{History, Moment};

/// Checks the refusals of key-value requests and compactions, and the executed compactions.
pub(crate) fn check(
    history: &History,
    observations: &Observations,
    compactions: &Compactions,
    causes: &Causes,
) -> Result<(), Box<Violation>> {
    let bound = RevisionBound::new(history, causes);
    let checker = Checker { history, observations, compactions, bound };
    for (at, operation) in history.operations.iter().enumerate() {
        let verdict = match (&operation.request, &operation.outcome) {
            (Request::Kv(request), Outcome::Refused { at: returned, refusal }) => {
                checker.refused(operation, request, *returned, *refusal)
            }
            (Request::Compact { revision }, Outcome::Refused { at: returned, refusal }) => {
                checker.compaction_refused(operation, *revision, *returned, *refusal)
            }
            (
                Request::Compact { revision },
                Outcome::Succeeded { response: Response::Compacted, at: returned, .. },
            ) => checker.compacted(operation, *revision, *returned),
            (
                Request::Kv(_)
                | Request::Compact { .. }
                | Request::LeaseGrant { .. }
                | Request::LeaseRevoke { .. }
                | Request::LeaseKeepAlive { .. }
                | Request::LeaseTimeToLive { .. },
                _,
            ) => Ok(()),
        };
        verdict.map_err(|violation| violation.by(history, &[at]))?;
    }
    Ok(())
}

struct Checker<'a> {
    history: &'a History,
    observations: &'a Observations,
    compactions: &'a Compactions,
    bound: RevisionBound,
}

type Verdict = Result<(), Box<Violation>>;

impl Checker<'_> {
    fn refused(
        &self,
        operation: &Operation,
        request: &KvRequest,
        returned: Moment,
        refusal: Refusal,
    ) -> Verdict {
        match refusal {
            Refusal::Compacted => {
                let mut may_be = false;
                for_each_revision(request, None, &mut |read| {
                    may_be |= self.compactions.may_have_passed(read, returned);
                });
                if may_be {
                    return Ok(());
                }
                let description =
                    "refused as compacted, although the revision was not compacted".to_owned();
                Err(Violation::new(Property::Compaction, description))
            }
            Refusal::FutureRevision if is_serializable(request) => Ok(()),
            Refusal::FutureRevision => {
                let mut newest = 0;
                for_each_revision(request, None, &mut |read| newest = newest.max(read));
                self.check_future(operation, newest)
            }
            Refusal::KeyNotFound => self.key_not_found(operation, request, returned),
            // The module `leases` checks these refusals.
            Refusal::LeaseNotFound | Refusal::LeaseExists => Ok(()),
        }
    }

    fn key_not_found(
        &self,
        operation: &Operation,
        request: &KvRequest,
        returned: Moment,
    ) -> Verdict {
        let KvRequest::Put(put) = request else { return Ok(()) };
        let from = self
            .observations
            .before(operation.called)
            .map_or(FIRST - 1, |observation| observation.revision);
        let to = self.bound.by(returned);
        let event_log = &self.history.event_log;
        if (from..=to).any(|revision| event_log.at(&put.key, revision).is_none()) {
            return Ok(());
        }
        let description = format!(
            "refused because of a missing key, but the key exists from revision {from} to {to}"
        );
        Err(Violation::new(Property::Response, description))
    }

    /// Checks that a revision observed before the call is not refused as a future revision.
    fn check_future(&self, operation: &Operation, revision: i64) -> Verdict {
        match self.observations.before(operation.called) {
            Some(observation) if observation.revision >= revision => {
                let (known, at) = (observation.revision, observation.at.0);
                let description = format!(
                    "refused as a future revision, but revision {known} was observed at {at}"
                );
                let violation = Violation::new(Property::RealTime, description);
                Err(add_source(self.history, observation.source, violation))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn compaction_refused(
        &self,
        operation: &Operation,
        revision: i64,
        returned: Moment,
        refusal: Refusal,
    ) -> Verdict {
        match refusal {
            Refusal::FutureRevision => self.check_future(operation, revision),
            Refusal::Compacted
                if revision <= 0 || self.compactions.may_have_passed(revision - 1, returned) =>
            {
                Ok(())
            }
            Refusal::Compacted
            | Refusal::LeaseNotFound
            | Refusal::LeaseExists
            | Refusal::KeyNotFound => {
                let description =
                    format!("refused with {refusal:?}, although the revision was not compacted");
                Err(Violation::new(Property::Compaction, description))
            }
        }
    }

    fn compacted(&self, operation: &Operation, revision: i64, returned: Moment) -> Verdict {
        if revision <= 0 {
            return Ok(());
        }
        let bound = self.bound.by(returned);
        if revision > bound {
            let description = format!(
                "compacted at revision {revision}, but the highest possible revision was {bound}"
            );
            return Err(Violation::new(Property::Compaction, description));
        }
        match self.compactions.has_passed(revision - 1, operation.called) {
            Some(earlier) => {
                let description =
                    "compacted at a revision that had already been compacted".to_owned();
                Err(Violation::new(Property::Compaction, description).by(self.history, &[earlier]))
            }
            None => Ok(()),
        }
    }
}

/// The highest revision that can exist at each moment, given that a revision exists only after the operation that wrote
/// it was called.
struct RevisionBound {
    /// For each revision, the moment by which the operations that wrote this revision and all earlier revisions had
    /// been called.
    asked: Vec<Moment>,
}

impl RevisionBound {
    fn new(history: &History, causes: &Causes) -> Self {
        let mut asked = Vec::new();
        let mut latest = Moment(0);
        for revision in FIRST..=history.event_log.last() {
            match causes.of(revision) {
                Some(Cause::Operation(at)) => {
                    latest = latest.max(history.operations[at].called);
                }
                Some(Cause::LeaseEnd(_) | Cause::Either) | None => {}
            }
            asked.push(latest);
        }
        Self { asked }
    }

    fn by(&self, moment: Moment) -> i64 {
        let count = self.asked.partition_point(|asked| *asked <= moment);
        FIRST - 1 + i64::try_from(count).expect("revisions fit in memory")
    }
}
