//! What cannot have been, and which of the things seen say so.

use std::fmt::{self, Write as _};

use crate::{History, Operation};

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// A revision is the work of one operation that was asked for, once.
    Explained,
    /// What was acknowledged is there.
    Durable,
    /// An answer fits the state that it tells of.
    Answered,
    /// What begins later sees what was known before; nobody sees what was not asked for yet.
    RealTime,
    /// A watcher is told every event once, in order and whole.
    Watched,
    /// Progress that is announced to a watcher is true.
    Progress,
    /// A lease lasts as long as was promised.
    LeaseKept,
    /// A lease that has ended is gone, with its keys.
    LeaseEnded,
    /// What is compacted is refused, and nothing else.
    Compacted,
}

/// Why a history cannot have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Contradiction {
    /// Which promise is broken.
    pub property: Property,
    /// In words.
    pub what: String,
    /// The operations that say so, by their places in the history.
    pub operations: Vec<usize>,
    /// The watcher that says so, by its place in the history.
    pub watcher: Option<usize>,
    /// These operations and this watcher, as text.
    shown: String,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?}: {}{}", self.property, self.what, self.shown)
    }
}

/// Characters of an operation that a failure shows: values may be large.
const SHOWN_MAX: usize = 600;

impl Contradiction {
    pub(crate) fn new(property: Property, what: String) -> Box<Self> {
        let (operations, watcher, shown) = (Vec::new(), None, String::new());
        Box::new(Self { property, what, operations, watcher, shown })
    }

    /// With the operations that say so.
    pub(crate) fn by(mut self: Box<Self>, history: &History, operations: &[usize]) -> Box<Self> {
        for &at in operations {
            let Operation { client, member, called, request, outcome } = &history.operations[at];
            let text = format!("{request:?} -> {outcome:?}");
            let shown = shorten(&text);
            let called = called.0;
            write!(
                self.shown,
                "\n  #{at}: client {client} of member {member} at {called}: {shown}"
            )
            .expect("text takes anything");
        }
        self.operations.extend_from_slice(operations);
        self
    }

    /// With the watcher that says so.
    pub(crate) fn of_watcher(mut self: Box<Self>, history: &History, at: usize) -> Box<Self> {
        let watcher = &history.watchers[at];
        let (client, member, called) = (watcher.client, watcher.member, watcher.called.0);
        let request = &watcher.request;
        let text = format!(
            "\n  watcher #{at}: client {client} of member {member} at {called}: {request:?}"
        );
        self.shown.push_str(&text);
        self.watcher = Some(at);
        self
    }
}

/// Text that a person reads.
pub(crate) fn shorten(text: &str) -> &str {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
