//! What a leader knows of its own leadership.

use super::Node;

impl Node {
    /// Takes the time, in milliseconds by a clock that never goes back. Heartbeats that are sent from now on carry it;
    /// see [`Node::confirmed_at`].
    pub fn note_time(&mut self, now_millis: u64) {
        self.confirmation.note_time(now_millis);
    }

    /// The latest time, by [`Node::note_time`], from which it is known that no other leader had been elected before it:
    /// a quorum has answered heartbeats that this leader sent then or later, in its present term. `None` for a member
    /// that does not lead.
    #[must_use]
    pub fn confirmed_at(&self) -> Option<u64> {
        let (term, own) = (self.raft.term(), self.raft.id());
        let answered = |member| self.confirmation.answered(term, own, member);
        let at = self.raft.is_leader().then(|| self.raft.quorum_agreed(answered));
        assert!(
            at.is_none_or(|at| at <= self.confirmation.now()),
            "a confirmation lies in the past: one from the future would let a deposed leader renew leases"
        );
        at
    }

    /// Whether this leader hands over because its disk is stuck: then it sends no heartbeats.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.raft.is_leader() && self.heir.is_some()
    }
}
