//! The long way: try every order.
//!
//! Operations take effect one by one. One may be next if no other that has yet to take effect had its answer
//! before this one was asked for. A serializable read takes no place: it is right at any moment after
//! the revision that it tells of, as long as nothing that was asked for after its answer came before.

use super::store::Store;
use crate::*;

/// Whether some order explains what was answered about keys, and the chronicle.
pub(super) fn is_explained(history: &History) -> bool {
    let mut left = vec![true; history.operations.len()];
    search(history, &mut left, &Store::default())
}

fn search(history: &History, left: &mut [bool], store: &Store) -> bool {
    let operations = &history.operations;
    let answered = (0..operations.len()).filter(|at| left[*at]);
    let first = answered.filter_map(|at| operations[at].returned()).min();
    if first.is_none() && store.revision() == history.chronicle.last() {
        return true;
    }
    for at in 0..operations.len() {
        if !left[at] || first.is_some_and(|first| operations[at].called > first) {
            continue;
        }
        if let Some(next) = take(history, &operations[at], store) {
            left[at] = false;
            if search(history, left, &next) {
                return true;
            }
            left[at] = true;
        }
    }
    false
}

/// The store after an operation, if it fits.
fn take(history: &History, operation: &Operation, store: &Store) -> Option<Store> {
    let Request::Kv(request) = &operation.request else { unreachable!("only keys are drawn") };
    let mut next = store.clone();
    match &operation.outcome {
        Outcome::Answered { revision, answer: Answer::Kv(answer), .. } => {
            let revision = revision.expect("of keys it is known");
            let carried_out = if is_serializable(request) && revision <= store.revision() {
                next.states.truncate(usize::try_from(revision).unwrap());
                let told = next.kv(request);
                next = store.clone();
                told
            } else {
                next.kv(request)
            };
            (carried_out == Ok((revision, answer.clone()))).then_some(())?;
        }
        // A member that lags knows of no such revision.
        Outcome::Refused { refusal: Refusal::FutureRevision, .. } if is_serializable(request) => {}
        Outcome::Refused { refusal, .. } => {
            (next.kv(request) == Err(*refusal)).then_some(())?;
        }
        Outcome::Unknown => {
            next.kv(request).ok()?;
        }
        Outcome::Answered { .. } => unreachable!("only keys are drawn"),
    }
    let revision = next.revision();
    let is_told = revision == store.revision()
        || next.events.last().map(Vec::as_slice) == Some(history.chronicle.events(revision));
    is_told.then_some(next)
}

fn is_serializable(request: &KvRequest) -> bool {
    answers::is_serializable(request)
}
