//! What the key space answered, held against the revision that each answer names.

use std::collections::BTreeMap;

use crate::compactions::Compactions;
use crate::contradiction::{Contradiction, Property, shorten};
use crate::model::{Effect, execute};
use crate::operation::{Answer, KvAnswer, KvRequest, Operation, Outcome, Request};
use crate::time::{Sights, Source};
use crate::{History, Moment};

type Outcomes<T> = Result<T, Box<Contradiction>>;

/// Checks all answers, and returns which revisions are the work of which operations.
pub(crate) fn check(
    history: &History,
    sights: &Sights,
    compactions: &Compactions,
) -> Outcomes<BTreeMap<i64, usize>> {
    let mut acknowledged = BTreeMap::new();
    for (at, Operation { called, request, outcome, .. }) in history.operations.iter().enumerate() {
        let Request::Kv(request) = request else { continue };
        let Outcome::Answered { revision: Some(revision), answer: Answer::Kv(answer), .. } =
            outcome
        else {
            continue;
        };
        let asked = Asked { at, called: *called, request, revision: *revision, answer };
        if changes(answer) {
            if let Some(other) = acknowledged.insert(asked.revision, at) {
                let what = format!("revision {revision} was acknowledged twice");
                return Err(Contradiction::new(Property::Explained, what).by(history, &[other, at]));
            }
            asked.check_change(history, sights)?;
        } else {
            asked.check_read(history, sights, compactions)?;
        }
    }
    Ok(acknowledged)
}

struct Asked<'a> {
    at: usize,
    called: Moment,
    request: &'a KvRequest,
    revision: i64,
    answer: &'a KvAnswer,
}

impl Asked<'_> {
    /// It has made its revision.
    fn check_change(&self, history: &History, sights: &Sights) -> Outcomes<()> {
        let Self { revision, .. } = *self;
        let blame = |property, what| Contradiction::new(property, what).by(history, &[self.at]);
        let last = history.chronicle.last();
        if revision > last {
            let what = format!("revision {revision} was acknowledged, and there are {last}");
            return Err(blame(Property::Durable, what));
        }
        let effect = self.effect(history, revision - 1)?;
        let events = history.chronicle.events(revision);
        if effect.events != events {
            let what = format!("revision {revision} was acknowledged for this, and is {events:?}");
            return Err(blame(Property::Durable, what));
        }
        self.check_answer(history, &effect)?;
        let first = sights.first_of(revision).expect("its own answer tells of it");
        if first.at < self.called {
            let what = format!(
                "revision {revision} or a later one was told before it was asked for, at {}",
                first.at.0
            );
            return Err(of(history, first.source, blame(Property::RealTime, what)));
        }
        Ok(())
    }

    /// It has changed nothing, and tells of a revision.
    fn check_read(
        &self,
        history: &History,
        sights: &Sights,
        compactions: &Compactions,
    ) -> Outcomes<()> {
        let Self { revision, .. } = *self;
        let blame = |property, what| Contradiction::new(property, what).by(history, &[self.at]);
        let last = history.chronicle.last();
        if revision > last {
            let what = format!("tells of revision {revision}, and there are {last}");
            return Err(blame(Property::Durable, what));
        }
        let effect = self.effect(history, revision)?;
        if !effect.events.is_empty() {
            let what = format!("changed nothing at {revision}, where it would have changed things");
            return Err(blame(Property::Answered, what));
        }
        self.check_answer(history, &effect)?;
        if is_serializable(self.request) {
            return Ok(());
        }
        if let Some(sight) = sights.before(self.called)
            && sight.revision > revision
        {
            let (newer, at) = (sight.revision, sight.at.0);
            let what = format!("tells of revision {revision}; {newer} was known at {at} already");
            return Err(of(history, sight.source, blame(Property::RealTime, what)));
        }
        let mut passed = None;
        for_each_revision(self.request, Some(self.answer), &mut |read| {
            passed = passed.or_else(|| compactions.has_passed(read, self.called));
        });
        match passed {
            Some(compaction) => {
                let what = "reads what had been compacted".to_owned();
                Err(Contradiction::new(Property::Compacted, what)
                    .by(history, &[compaction, self.at]))
            }
            None => Ok(()),
        }
    }

    fn effect(&self, history: &History, base: i64) -> Outcomes<Effect> {
        execute(&history.chronicle, base, self.request).map_err(|refusal| {
            let what = format!("was answered where {refusal:?} was due");
            Contradiction::new(Property::Answered, what).by(history, &[self.at])
        })
    }

    fn check_answer(&self, history: &History, effect: &Effect) -> Outcomes<()> {
        if *self.answer == effect.answer {
            return Ok(());
        }
        let due = format!("{:?}", effect.answer);
        let what = format!("at {} the answer is {}", self.revision, shorten(&due));
        Err(Contradiction::new(Property::Answered, what).by(history, &[self.at]))
    }
}

/// With whoever else says so.
pub(crate) fn of(
    history: &History,
    source: Source,
    contradiction: Box<Contradiction>,
) -> Box<Contradiction> {
    match source {
        Source::Operation(at) => contradiction.by(history, &[at]),
        Source::Watcher(at) => contradiction.of_watcher(history, at),
    }
}

/// Whether an answer tells of a change, which has a revision of its own.
fn changes(answer: &KvAnswer) -> bool {
    match answer {
        KvAnswer::Put { .. } => true,
        KvAnswer::Delete { deleted, .. } => *deleted > 0,
        KvAnswer::Range { .. } => false,
        KvAnswer::Txn { answers, .. } => answers.iter().any(changes),
    }
}

/// Whether an old answer is right as well: all that it does is to read what any member has.
pub(crate) fn is_serializable(request: &KvRequest) -> bool {
    match request {
        KvRequest::Range(range) => range.serializable,
        KvRequest::Put(_) | KvRequest::Delete(_) => false,
        KvRequest::Txn(txn) => txn.success.iter().chain(&txn.failure).all(is_serializable),
    }
}

/// The revisions that a request names to be read, in the branches that were chosen if that is known.
pub(crate) fn for_each_revision(
    request: &KvRequest,
    answer: Option<&KvAnswer>,
    visit: &mut impl FnMut(i64),
) {
    match (request, answer) {
        (KvRequest::Range(range), _) if range.revision > 0 => visit(range.revision),
        (KvRequest::Range(_) | KvRequest::Put(_) | KvRequest::Delete(_), _) => {}
        (KvRequest::Txn(txn), Some(KvAnswer::Txn { succeeded, answers })) => {
            let chosen = if *succeeded { &txn.success } else { &txn.failure };
            for (request, answer) in chosen.iter().zip(answers) {
                for_each_revision(request, Some(answer), visit);
            }
        }
        (KvRequest::Txn(txn), _) => {
            for request in txn.success.iter().chain(&txn.failure) {
                for_each_revision(request, None, visit);
            }
        }
    }
}
