//! What the state refused, and whether it had the reason that it gave.
//!
//! A refusal has no revision. Its reason has to have been true somewhere between what was known when the
//! question was asked and what can have happened before the answer.

use crate::answers::{for_each_revision, is_serializable, of};
use crate::authors::{Author, Authors};
use crate::chronicle::FIRST;
use crate::compactions::Compactions;
use crate::contradiction::{Contradiction, Property};
use crate::operation::{Answer, KvRequest, Operation, Outcome, Refusal, Request};
use crate::time::Sights;
use crate::{History, Moment};

/// Checks refusals about keys and compactions, and compactions that were carried out.
pub(crate) fn check(
    history: &History,
    sights: &Sights,
    compactions: &Compactions,
    authors: &Authors,
) -> Result<(), Box<Contradiction>> {
    let possible = Possible::new(history, authors);
    let judge = Judge { history, sights, compactions, possible };
    for (at, operation) in history.operations.iter().enumerate() {
        let verdict = match (&operation.request, &operation.outcome) {
            (Request::Kv(request), Outcome::Refused { at: returned, refusal }) => {
                judge.refused(operation, request, *returned, *refusal)
            }
            (Request::Compact { revision }, Outcome::Refused { at: returned, refusal }) => {
                judge.compaction_refused(operation, *revision, *returned, *refusal)
            }
            (
                Request::Compact { revision },
                Outcome::Answered { answer: Answer::Compacted, at: returned, .. },
            ) => judge.compacted(operation, *revision, *returned),
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
        verdict.map_err(|why| why.by(history, &[at]))?;
    }
    Ok(())
}

struct Judge<'a> {
    history: &'a History,
    sights: &'a Sights,
    compactions: &'a Compactions,
    possible: Possible,
}

type Verdict = Result<(), Box<Contradiction>>;

impl Judge<'_> {
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
                let what = "refused as compacted, which nobody asked for".to_owned();
                Err(Contradiction::new(Property::Compacted, what))
            }
            Refusal::FutureRevision if is_serializable(request) => Ok(()),
            Refusal::FutureRevision => {
                let mut newest = 0;
                for_each_revision(request, None, &mut |read| newest = newest.max(read));
                self.is_future(operation, newest)
            }
            Refusal::KeyNotFound => self.key_not_found(operation, request, returned),
            // Of leases, which have their own checks.
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
        let from = self.sights.before(operation.called).map_or(FIRST - 1, |sight| sight.revision);
        let to = self.possible.by(returned);
        let chronicle = &self.history.chronicle;
        if (from..=to).any(|revision| chronicle.at(&put.key, revision).is_none()) {
            return Ok(());
        }
        let what = format!("refused for want of a key, which was there from {from} to {to}");
        Err(Contradiction::new(Property::Answered, what))
    }

    /// A revision that was known before cannot be refused as one to come.
    fn is_future(&self, operation: &Operation, revision: i64) -> Verdict {
        match self.sights.before(operation.called) {
            Some(sight) if sight.revision >= revision => {
                let (known, at) = (sight.revision, sight.at.0);
                let what = format!("refused as to come; {known} was known at {at}");
                let why = Contradiction::new(Property::RealTime, what);
                Err(of(self.history, sight.source, why))
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
            Refusal::FutureRevision => self.is_future(operation, revision),
            Refusal::Compacted
                if revision <= 0 || self.compactions.may_have_passed(revision - 1, returned) =>
            {
                Ok(())
            }
            Refusal::Compacted
            | Refusal::LeaseNotFound
            | Refusal::LeaseExists
            | Refusal::KeyNotFound => {
                let what = "refused as compacted, which nobody asked for".to_owned();
                Err(Contradiction::new(Property::Compacted, what))
            }
        }
    }

    fn compacted(&self, operation: &Operation, revision: i64, returned: Moment) -> Verdict {
        if revision <= 0 {
            return Ok(());
        }
        let possible = self.possible.by(returned);
        if revision > possible {
            let what =
                format!("forgets {revision}, and there cannot have been more than {possible}");
            return Err(Contradiction::new(Property::Compacted, what));
        }
        match self.compactions.has_passed(revision - 1, operation.called) {
            Some(earlier) => {
                let what = "forgets what was forgotten before".to_owned();
                Err(Contradiction::new(Property::Compacted, what).by(self.history, &[earlier]))
            }
            None => Ok(()),
        }
    }
}

/// The highest revision that can have been there at a moment, as operations come after they are asked for.
struct Possible {
    /// For each revision, when it and all before it had been asked for.
    asked: Vec<Moment>,
}

impl Possible {
    fn new(history: &History, authors: &Authors) -> Self {
        let mut asked = Vec::new();
        let mut latest = Moment(0);
        for revision in FIRST..=history.chronicle.last() {
            match authors.of(revision) {
                Some(Author::Operation(at)) => {
                    latest = latest.max(history.operations[at].called);
                }
                Some(Author::LeaseEnd(_) | Author::Either) | None => {}
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
