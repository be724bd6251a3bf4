//! The compactions that clients requested, with the earliest and latest moments at which each could have happened.

use crate::operation::{Outcome, Request};
use crate::{History, Moment};

/// A requested compaction that was not refused.
#[derive(Clone, Copy, Debug)]
struct Compaction {
    operation: usize,
    called: Moment,
    /// When the compaction was acknowledged, or `None` if it was not acknowledged.
    returned: Option<Moment>,
    revision: i64,
}

/// All compactions that may have been executed.
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

    /// Returns whether the revision may already have been compacted at this moment, in which case a read at the
    /// revision may be refused.
    pub(crate) fn may_have_passed(&self, revision: i64, by: Moment) -> bool {
        self.0.iter().any(|compaction| compaction.revision > revision && compaction.called <= by)
    }

    /// Returns whether a compaction at exactly this revision may already have happened at this moment.
    pub(crate) fn may_be_at(&self, revision: i64, by: Moment) -> bool {
        self.0.iter().any(|compaction| compaction.revision == revision && compaction.called <= by)
    }

    /// Returns a compaction that certainly removed the revision before this moment, because it was acknowledged
    /// earlier.
    pub(crate) fn has_passed(&self, revision: i64, before: Moment) -> Option<usize> {
        let passed = |compaction: &&Compaction| {
            compaction.revision > revision
                && compaction.returned.is_some_and(|returned| returned < before)
        };
        self.0.iter().find(passed).map(|compaction| compaction.operation)
    }
}
