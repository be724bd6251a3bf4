//! When the cluster was asked to forget, and from when on it must have forgotten.

use crate::operation::{Outcome, Request};
use crate::{History, Moment};

/// A request to forget that was not refused.
#[derive(Clone, Copy, Debug)]
struct Compaction {
    operation: usize,
    called: Moment,
    /// When it was known to be done, if it was.
    returned: Option<Moment>,
    revision: i64,
}

/// All requests to forget that may have been carried out.
#[derive(Clone, Debug)]
pub(crate) struct Compactions(Vec<Compaction>);

impl Compactions {
    pub(crate) fn new(history: &History) -> Self {
        let mut compactions = Vec::new();
        for (operation, asked) in history.operations.iter().enumerate() {
            let Request::Compact { revision } = asked.request else { continue };
            if !matches!(asked.outcome, Outcome::Refused { .. }) {
                let (called, returned) = (asked.called, asked.returned());
                compactions.push(Compaction { operation, called, returned, revision });
            }
        }
        Self(compactions)
    }

    /// True if by then this revision may have been forgotten, so that reading it is refused.
    pub(crate) fn may_have_passed(&self, revision: i64, by: Moment) -> bool {
        self.0.iter().any(|compaction| compaction.revision > revision && compaction.called <= by)
    }

    /// True if by then a compaction at exactly this revision may have happened.
    pub(crate) fn may_be_at(&self, revision: i64, by: Moment) -> bool {
        self.0.iter().any(|compaction| compaction.revision == revision && compaction.called <= by)
    }

    /// An operation, other than this one, that had certainly forgotten the revision before then.
    pub(crate) fn has_passed(&self, revision: i64, before: Moment) -> Option<usize> {
        let passed = |compaction: &&Compaction| {
            compaction.revision > revision
                && compaction.returned.is_some_and(|returned| returned < before)
        };
        self.0.iter().find(passed).map(|compaction| compaction.operation)
    }
}
