//! The groups that are behind, in the order in which catch-up serves them.
//!
//! Catch-up serves the groups in rounds. A pass takes the groups of the round with the lowest positions, because groups
//! that are close to each other share one read of history. The read is bounded, so it may end before it reaches all of
//! them. Such a group stays in the round; the other groups, and the groups that fall behind in the meantime, belong to
//! the next round. A client that keeps opening watchers at old revisions can therefore not delay the other groups
//! without limit: each pass removes at least one group from the round, and no group joins the round.

use std::collections::BTreeSet;

use super::slab::Handle;

/// The groups that are behind, each with the first revision that it lacks.
#[derive(Debug, Default)]
pub(super) struct Behind {
    round: BTreeSet<(i64, Handle)>,
    next_round: BTreeSet<(i64, Handle)>,
}

impl Behind {
    pub(super) fn is_empty(&self) -> bool {
        self.round.is_empty() && self.next_round.is_empty()
    }

    /// Adds a group to the next round.
    pub(super) fn add(&mut self, next: i64, group: Handle) {
        self.next_round.insert((next, group));
    }

    /// Moves a group, which has just been added, from the next round to the current one.
    pub(super) fn keep_in_round(&mut self, next: i64, group: Handle) {
        let was_added = self.next_round.remove(&(next, group));
        assert!(was_added, "a group belongs to one round: otherwise two passes would serve it");
        self.round.insert((next, group));
    }

    /// Removes a group from its round.
    pub(super) fn remove(&mut self, next: i64, group: Handle) {
        if !self.round.remove(&(next, group)) {
            self.next_round.remove(&(next, group));
        }
    }

    /// Begins a pass. If all groups of the round have been served, a new round begins.
    pub(super) fn begin_pass(&mut self) {
        if self.round.is_empty() {
            std::mem::swap(&mut self.round, &mut self.next_round);
        }
    }

    /// Removes the group with the lowest position from the round.
    pub(super) fn pop(&mut self) -> Option<(i64, Handle)> {
        self.round.pop_first()
    }
}
