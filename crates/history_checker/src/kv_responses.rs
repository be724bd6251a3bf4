//! Checks each response to a key-value request against the state of the store at the revision in the response.

use std::collections::BTreeMap;

use crate::compactions::Compactions;
use crate::model::{Effect, execute};
use crate::observations::{Observations, Source};
use crate::operation::{KvRequest, KvResponse, Operation, Outcome, Request, Response, Txn};
use crate::violation::{Property, Violation, shorten};
use crate::{History, Moment};

type Checked<T> = Result<T, Box<Violation>>;

/// Checks all responses. Returns the operation that wrote each acknowledged revision.
pub(crate) fn check(
    history: &History,
    observations: &Observations,
    compactions: &Compactions,
) -> Checked<BTreeMap<i64, usize>> {
    let mut acknowledged = BTreeMap::new();
    for (at, Operation { called, request, outcome, .. }) in history.operations.iter().enumerate() {
        let Request::Kv(request) = request else { continue };
        let Outcome::Succeeded {
            revision: Some(revision), response: Response::Kv(response), ..
        } = outcome
        else {
            continue;
        };
        let asked = Call { at, called: *called, request, revision: *revision, response };
        if changes(response) {
            if let Some(other) = acknowledged.insert(asked.revision, at) {
                let description = format!("revision {revision} was acknowledged twice");
                return Err(
                    Violation::new(Property::SingleCause, description).by(history, &[other, at])
                );
            }
            asked.check_change(history, observations)?;
        } else {
            asked.check_read(history, observations, compactions)?;
        }
    }
    Ok(acknowledged)
}

struct Call<'a> {
    at: usize,
    called: Moment,
    request: &'a KvRequest,
    revision: i64,
    response: &'a KvResponse,
}

impl Call<'_> {
    /// Checks an operation that wrote a revision.
    fn check_change(&self, history: &History, observations: &Observations) -> Checked<()> {
        let Self { revision, .. } = *self;
        let blame =
            |property, description| Violation::new(property, description).by(history, &[self.at]);
        let last = history.event_log.last();
        if revision > last {
            let description =
                format!("revision {revision} was acknowledged, but the last revision is {last}");
            return Err(blame(Property::Durable, description));
        }
        let effect = self.effect(history, revision - 1)?;
        let events = history.event_log.events(revision);
        if effect.events != events {
            let description = format!(
                "revision {revision} was acknowledged for this operation, but contains {events:?} instead of {:?}",
                effect.events
            );
            return Err(blame(Property::Durable, description));
        }
        self.check_response(history, &effect)?;
        let first = observations
            .first_of(revision)
            .expect("the response to the operation is an observation");
        if first.at < self.called {
            let description = format!(
                "revision {revision} or a later one was observed at {}, before the operation was called",
                first.at.0
            );
            return Err(add_source(history, first.source, blame(Property::RealTime, description)));
        }
        Ok(())
    }

    /// Checks an operation that wrote nothing, against the state at the revision in its response.
    fn check_read(
        &self,
        history: &History,
        observations: &Observations,
        compactions: &Compactions,
    ) -> Checked<()> {
        let Self { revision, .. } = *self;
        let blame =
            |property, description| Violation::new(property, description).by(history, &[self.at]);
        let last = history.event_log.last();
        if revision > last {
            let description = format!("read revision {revision}, but the last revision is {last}");
            return Err(blame(Property::Durable, description));
        }
        let effect = self.effect(history, revision)?;
        if !effect.events.is_empty() {
            let description = format!(
                "reported no change at revision {revision}, although the operation changes keys at this \
                         revision"
            );
            return Err(blame(Property::Response, description));
        }
        self.check_response(history, &effect)?;
        if is_serializable(self.request) {
            return Ok(());
        }
        if let Some(observation) = observations.before(self.called)
            && observation.revision > revision
        {
            let (newer, at) = (observation.revision, observation.at.0);
            let description = format!(
                "read revision {revision}, but revision {newer} was observed earlier, at {at}"
            );
            return Err(add_source(
                history,
                observation.source,
                blame(Property::RealTime, description),
            ));
        }
        let mut passed = None;
        for_each_revision(self.request, Some(self.response), &mut |read| {
            passed = passed.or_else(|| compactions.has_passed(read, self.called));
        });
        match passed {
            Some(compaction) => {
                let description = "read a compacted revision".to_owned();
                Err(Violation::new(Property::Compaction, description)
                    .by(history, &[compaction, self.at]))
            }
            None => Ok(()),
        }
    }

    fn effect(&self, history: &History, base: i64) -> Checked<Effect> {
        execute(&history.event_log, base, self.request).map_err(|refusal| {
            let description = format!("succeeded, but {refusal:?} was expected");
            Violation::new(Property::Response, description).by(history, &[self.at])
        })
    }

    fn check_response(&self, history: &History, effect: &Effect) -> Checked<()> {
        if *self.response == effect.response {
            return Ok(());
        }
        let expected = format!("{:?}", effect.response);
        let description =
            format!("the response at revision {} should be {}", self.revision, shorten(&expected));
        Err(Violation::new(Property::Response, description).by(history, &[self.at]))
    }
}

/// Adds to a violation the operation or watcher that made an observation.
pub(crate) fn add_source(
    history: &History,
    source: Source,
    violation: Box<Violation>,
) -> Box<Violation> {
    match source {
        Source::Operation(at) => violation.by(history, &[at]),
        Source::Watcher(at) => violation.of_watcher(history, at),
    }
}

/// Returns whether a response reports a change, which means that the operation wrote a revision.
fn changes(response: &KvResponse) -> bool {
    match response {
        KvResponse::Put { .. } => true,
        KvResponse::Delete { deleted, .. } => *deleted > 0,
        KvResponse::Range { .. } => false,
        KvResponse::Txn { responses, .. } => responses.iter().any(changes),
    }
}

/// Returns whether a stale response to the request is acceptable, because the request only reads, and any member may
/// answer it from its own state. The client of a transaction that only has conditions has not asked for a stale answer.
pub(crate) fn is_serializable(request: &KvRequest) -> bool {
    match request {
        KvRequest::Range(range) => range.serializable,
        KvRequest::Put(_) | KvRequest::Delete(_) => false,
        KvRequest::Txn(Txn { compares, success, failure }) => {
            let reads_nothing = success.is_empty() && failure.is_empty();
            let has_only_conditions = reads_nothing && !compares.is_empty();
            !has_only_conditions && success.iter().chain(failure).all(is_serializable)
        }
    }
}

/// Calls `visit` with each revision that the request names explicitly. If there is a response, only the executed
/// branches of transactions are searched.
pub(crate) fn for_each_revision(
    request: &KvRequest,
    response: Option<&KvResponse>,
    visit: &mut impl FnMut(i64),
) {
    match (request, response) {
        (KvRequest::Range(range), _) if range.revision > 0 => visit(range.revision),
        (KvRequest::Range(_) | KvRequest::Put(_) | KvRequest::Delete(_), _) => {}
        (KvRequest::Txn(txn), Some(KvResponse::Txn { succeeded, responses })) => {
            let chosen = if *succeeded { &txn.success } else { &txn.failure };
            for (request, response) in chosen.iter().zip(responses) {
                for_each_revision(request, Some(response), visit);
            }
        }
        (KvRequest::Txn(txn), _) => {
            for request in txn.success.iter().chain(&txn.failure) {
                for_each_revision(request, None, visit);
            }
        }
    }
}
