//! Checks linearizability: is there an order of the concurrent operations that explains all answers?
//!
//! The checker does not depend on a server. Its input is the list of client operations: the time of each call, the time
//! of its return, and the answer. A history is linearizable if each operation can be assigned one moment between its
//! call and its return so that a single register that executes the operations in that order gives the same answers. An
//! operation with an unknown outcome may have taken effect at any moment after its call, or never.
//!
//! Keys are independent registers. A history is linearizable if and only if its restriction to each key is linearizable
//! (Herlihy and Wing 1990), so each key is checked separately.
//!
//! # Not here
//!
//! The recording of histories (see `workload`), and the search itself (see `search`). The search is tested with
//! histories known to be linearizable or not, and against an exhaustive search of all orders.

mod register;
mod search;
#[cfg(test)]
mod tests;

pub use register::{Action, Answer, Value};
pub use search::Verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One operation of one client on one key.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Number of the client, used only in failure messages.
    pub client: usize,
    /// The request.
    pub action: Action,
    /// Time of the call, on a clock that all clients share.
    pub called: u64,
    /// Time of the answer, and the answer. Without an answer, the operation may have taken effect at any moment since
    /// its call, or never. Operations that certainly had no effect are not recorded.
    pub answer: Option<(u64, Answer)>,
}

/// The operations of all clients, by key.
#[derive(Clone, Debug, Default)]
pub struct Operations {
    keys: BTreeMap<String, Vec<Operation>>,
}

impl Operations {
    /// Adds an operation.
    pub fn push(&mut self, key: &str, operation: Operation) {
        match self.keys.get_mut(key) {
            Some(operations) => operations.push(operation),
            None => {
                self.keys.insert(key.to_owned(), vec![operation]);
            }
        }
    }

    /// Returns the number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// Returns whether there are no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Fails unless the history of every key is linearizable, assuming that no key existed before. Also fails if the
    /// time limit is exceeded.
    #[track_caller]
    pub fn check(&self, budget: Duration) {
        for (key, operations) in &self.keys {
            match check(operations, budget) {
                Verdict::Linearizable => {}
                Verdict::Illegal(why) => panic!("the history of {key} is not linearizable:\n{why}"),
                Verdict::Unknown => panic!(
                    "checking {} operations on {key} took longer than {budget:?}",
                    operations.len()
                ),
            }
        }
    }
}

/// Checks the history of one register that is initially absent.
#[must_use]
pub fn check(operations: &[Operation], budget: Duration) -> Verdict {
    search::search(&relevant(operations), budget)
}

/// Removes irrelevant operations from the history: reads without an answer, and operations without an answer that tried
/// to store a value that no client has seen.
///
/// Every answer except a plain `Done` contains the state that the operation found. If a value that no client has seen
/// was stored, the following operations neither saw it nor depended on it, so an order that explains the history
/// remains valid if the unseen operation is left out of it. Without this step, each timeout would double the work of
/// the search.
fn relevant(operations: &[Operation]) -> Vec<Operation> {
    let mut seen = BTreeSet::new();
    for operation in operations {
        seen.extend(operation.answer.and_then(|(_, answer)| answer.found()));
        if let Action::Swap { expected, .. } = operation.action {
            seen.extend(expected);
        }
    }
    let matters = |operation: &&Operation| match (operation.answer, operation.action) {
        (Some(_), _) | (None, Action::Delete) => true,
        (None, Action::Read) => false,
        (None, Action::Write(value) | Action::Swap { new: value, .. }) => seen.contains(&value),
    };
    operations.iter().filter(matters).cloned().collect()
}
