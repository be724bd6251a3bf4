//! Violations: the property that a history breaks, and the operations and watchers that prove it.

use std::fmt::{self, Write as _};

use crate::{History, Operation};

/// A property that every correct history has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// Every revision has exactly one cause, and every operation writes at most one revision.
    SingleCause,
    /// An acknowledged change is in the event log.
    Durable,
    /// A response is correct for the state at the revision in its header.
    Response,
    /// An operation sees every revision observed before its call, and no revision is observed before the operation that
    /// wrote it was called.
    RealTime,
    /// A watcher receives every event once and in order, and the events of a revision arrive together.
    WatchEvents,
    /// A progress notification to a watcher is true.
    WatchProgress,
    /// A lease does not end early.
    LeaseLifetime,
    /// A lease that has ended stays gone, and its keys are deleted.
    LeaseEnd,
    /// Reads of compacted revisions are refused, and no other reads are refused as compacted.
    Compaction,
}

/// A violation of one property.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Violation {
    /// The property.
    pub property: Property,
    /// A description of the violation.
    pub description: String,
    /// The operations that prove the violation, as positions in the history.
    pub operations: Vec<usize>,
    /// The watcher that proves the violation, as a position in the history.
    pub watcher: Option<usize>,
    /// A description of the operations and of the watcher.
    details: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}: {}{}", self.property, self.description, self.details)
    }
}

/// Maximum number of characters per operation in an error message, because values may be large.
const SHOWN_MAX: usize = 600;

impl Violation {
    pub(crate) fn new(property: Property, description: String) -> Box<Self> {
        let (operations, watcher, details) = (Vec::new(), None, String::new());
        Box::new(Self { property, description, operations, watcher, details })
    }

    /// Adds operations that prove the violation.
    pub(crate) fn by(mut self: Box<Self>, history: &History, operations: &[usize]) -> Box<Self> {
        for &at in operations {
            let Operation { client, member, called, request, outcome } = &history.operations[at];
            let text = format!("{request:?} -> {outcome:?}");
            let shown = shorten(&text);
            let called = called.0;
            write!(
                self.details,
                "\n  #{at}: client {client} of member {member} at {called}: {shown}"
            )
            .expect("writing to a string cannot fail");
        }
        self.operations.extend_from_slice(operations);
        self
    }

    /// Adds the watcher that proves the violation.
    pub(crate) fn of_watcher(mut self: Box<Self>, history: &History, at: usize) -> Box<Self> {
        let watcher = &history.watchers[at];
        let (client, member, called) = (watcher.client, watcher.member, watcher.called.0);
        let request = &watcher.request;
        let text = format!(
            "\n  watcher #{at}: client {client} of member {member} at {called}: {request:?}"
        );
        self.details.push_str(&text);
        self.watcher = Some(at);
        self
    }
}

/// Shortens a string to at most [`SHOWN_MAX`] characters.
pub(crate) fn shorten(text: &str) -> &str {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
