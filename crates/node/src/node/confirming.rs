//! The time up to which followers have confirmed this member's leadership.

use super::Node;

impl Node {
    /// Sets the current time, in milliseconds of a monotonic clock. Later heartbeats carry this time, and
    /// [`Node::confirmed_at`] is computed from the responses.
    pub fn note_time(&mut self, now_millis: u64) {
        self.confirmation.note_time(now_millis);
    }

    /// Returns the latest time, as set by [`Node::note_time`], for which this leader is confirmed: a quorum has
    /// answered heartbeats that this leader sent at that time or later in its current term, so no other leader can have
    /// been elected before that time. Returns `None` if this member does not lead.
    #[must_use]
    pub fn confirmed_at(&self) -> Option<u64> {
        let (term, own) = (self.raft.term(), self.raft.id());
        let answered = |member| self.confirmation.answered(term, own, member);
        let at = self.raft.is_leader().then(|| self.raft.quorum_agreed(answered));
        assert!(
            at.is_none_or(|at| at <= self.confirmation.now()),
            "a confirmation is never in the future: otherwise a deposed leader could renew leases"
        );
        at
    }

    /// Returns whether this leader is transferring leadership because its disk is stalled. During the transfer, it
    /// sends no heartbeats.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.raft.is_leader() && self.heir.is_some()
    }
}
