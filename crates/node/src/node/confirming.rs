//! The time up to which followers have confirmed this member's leadership, and reads that wait too long for their
//! confirmation.

use super::Node;
use crate::limits;

/// The oldest pending read of a leader that has asked only some of the voters to confirm its newest read.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchedRead {
    /// The leader's number of the read.
    number: u64,
    /// The time at the end of the first batch of events after which the read was the oldest one, in milliseconds.
    since: u64,
}

impl Node {
    /// Sets the current time, in milliseconds of a monotonic clock. Later heartbeats carry this time, and
    /// [`Node::confirmed_at`] is computed from the responses. [`Node::end_batch`] decides by this time which reads are
    /// late.
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

    /// Returns whether this leader has pending reads and has asked only some of the voters to confirm the newest one.
    #[must_use]
    pub fn has_asked_few_to_confirm_reads(&self) -> bool {
        self.raft.oldest_read_asked_of_few().is_some()
    }

    /// Ends a batch of events, before which the caller has passed the current time to [`Node::note_time`]. Notices
    /// reads that have not been confirmed in time.
    pub fn end_batch(&mut self) {
        if !self.is_stopped {
            self.hasten_reads();
            self.settle();
        }
    }

    /// Asks the other voters to confirm the pending reads if those that were asked have not confirmed the oldest read
    /// in time. If they have confirmed it late, all voters are asked to confirm the next read. There is no timer: if
    /// nothing else happens, a read waits for the heartbeats of the next tick, which go to all members.
    fn hasten_reads(&mut self) {
        let (now, pending) = (self.confirmation.now(), self.raft.oldest_read_asked_of_few());
        if let Some(read) =
            self.watched_read.take_if(|read| now >= read.since + limits::READ_CONFIRMATION_MILLIS)
        {
            if pending == Some(read.number) {
                self.raft.ask_others_to_confirm_reads();
                return;
            }
            self.raft.forget_confirmers();
        }
        self.watched_read = pending.map(|number| match &self.watched_read {
            Some(read) if read.number == number => *read,
            _ => WatchedRead { number, since: now },
        });
    }
}
