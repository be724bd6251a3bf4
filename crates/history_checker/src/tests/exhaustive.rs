//! The reference check, which tries every order of the operations.
//!
//! Operations take effect one by one. An operation may be next unless another pending operation returned before this
//! operation was called. A serializable read may take effect at any moment after the revision in its response has been
//! written. Like every operation, the read must take effect before each operation that is called after the read has
//! returned.

use super::reference::ReferenceStore;
use crate::*;

/// Returns whether some order explains the event log and all responses to key-value requests.
pub(super) fn is_explained(history: &History) -> bool {
    let mut left = vec![true; history.operations.len()];
    search(history, &mut left, &ReferenceStore::default())
}

fn search(history: &History, left: &mut [bool], store: &ReferenceStore) -> bool {
    let operations = &history.operations;
    let answered = (0..operations.len()).filter(|at| left[*at]);
    let first = answered.filter_map(|at| operations[at].returned()).min();
    if first.is_none() && store.revision() == history.event_log.last() {
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

/// Returns the store after an operation, or `None` if the recorded response or event log does not match.
fn take(
    history: &History,
    operation: &Operation,
    store: &ReferenceStore,
) -> Option<ReferenceStore> {
    let Request::Kv(request) = &operation.request else {
        unreachable!("only key-value requests are generated")
    };
    let mut next = store.clone();
    match &operation.outcome {
        Outcome::Succeeded { revision, response: Response::Kv(response), .. } => {
            let revision = revision.expect("a response to a key-value request has a revision");
            let carried_out = if is_serializable(request) && revision <= store.revision() {
                next.states.truncate(usize::try_from(revision).unwrap());
                let past = next.kv(request);
                next = store.clone();
                past
            } else {
                next.kv(request)
            };
            (carried_out == Ok((revision, response.clone()))).then_some(())?;
        }
        // A lagging member may not have reached the revision yet.
        Outcome::Refused { refusal: Refusal::FutureRevision, .. } if is_serializable(request) => {}
        Outcome::Refused { refusal, .. } => {
            (next.kv(request) == Err(*refusal)).then_some(())?;
        }
        Outcome::Unknown => {
            next.kv(request).ok()?;
        }
        Outcome::Succeeded { .. } => unreachable!("only key-value requests are generated"),
    }
    let revision = next.revision();
    let is_recorded = revision == store.revision()
        || next.events.last().map(Vec::as_slice) == Some(history.event_log.events(revision));
    is_recorded.then_some(next)
}

fn is_serializable(request: &KvRequest) -> bool {
    kv_responses::is_serializable(request)
}
