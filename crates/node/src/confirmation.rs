//! Tracks the latest time at which a quorum has confirmed this leader.
//!
//! Every heartbeat carries its send time, measured by the leader's own clock, and the follower's response returns it.
//! The leader is confirmed as of the latest time T such that each voter of a quorum has returned T or a later time. No
//! newer leader was elected before that time: an election needs the vote of at least one of these voters, and a voter
//! that has voted in a newer term no longer confirms this leader.
//!
//! A leader receives no responses if its messages are lost, if its process was suspended, or if it
//! sends no heartbeats because its disk is stalled. In all these cases its confirmation is not
//! renewed.
//!
//! # Wire format
//!
//! The time is 8 bytes, little-endian, appended to the heartbeat context that the consensus core
//! sets. Every follower returns the context unchanged, including followers that run etcd.
//!
//! # Not here
//!
//! The actions that a leader may take with a recent confirmation (`LeadershipState` in `core`).

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_raft::{MemberId, Message, Term};

const STAMP_BYTES: usize = size_of::<u64>();

/// Records the responses to this leader's heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Confirmation {
    /// The latest time that the caller has set.
    now: u64,
    /// The term in which the responses were received.
    term: Term,
    /// For each follower, the send time of the newest heartbeat that it has answered.
    answered: BTreeMap<MemberId, u64>,
}

impl Confirmation {
    /// Sets the time. A time earlier than the current one is ignored.
    pub(crate) fn note_time(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Returns the latest time that the caller has set.
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    /// Adds the current time to an outgoing heartbeat.
    pub(crate) fn stamp(&self, heartbeat: &mut Message) {
        let stamp = self.now.to_le_bytes();
        heartbeat.context = [&heartbeat.context[..], &stamp[..]].concat().into();
    }

    /// Removes the send time from a response and returns the time. The context that the consensus core set remains in
    /// the response.
    pub(crate) fn take_stamp(answer: &mut Message) -> Option<u64> {
        let at = answer.context.len().checked_sub(STAMP_BYTES)?;
        let stamp: Bytes = answer.context.split_off(at);
        stamp.as_ref().try_into().ok().map(u64::from_le_bytes)
    }

    /// Records that a follower answered a heartbeat that this leader sent at `sent_at`, in `term`.
    pub(crate) fn note_answer(&mut self, term: Term, from: MemberId, sent_at: u64) {
        if sent_at > self.now {
            // Ignore the response, because this leader has not sent a heartbeat with that time yet.
            return;
        }
        if term != self.term {
            self.term = term;
            self.answered.clear();
        }
        let newest = self.answered.entry(from).or_default();
        *newest = sent_at.max(*newest);
    }

    /// Returns the send time of the newest heartbeat that the member answered in this term. The
    /// leader itself counts as having answered just now.
    pub(crate) fn answered(&self, term: Term, own: MemberId, member: MemberId) -> Option<u64> {
        if member == own {
            return Some(self.now);
        }
        let answered = self.answered.get(&member).copied();
        answered.filter(|_| term == self.term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_raft::MessageKind;

    #[test]
    fn the_send_time_is_appended_to_the_heartbeat_context() {
        let mut confirmation = Confirmation::default();
        confirmation.note_time(7);
        for context in [&b""[..], b"12345678"] {
            let mut message = Message {
                context: Bytes::copy_from_slice(context),
                ..Message::new(MessageKind::Heartbeat, 2)
            };
            confirmation.stamp(&mut message);
            assert_eq!(Confirmation::take_stamp(&mut message), Some(7));
            assert_eq!(message.context, context);
        }
        let mut short = Message { context: Bytes::from_static(b"1234567"), ..Message::default() };
        assert_eq!(Confirmation::take_stamp(&mut short), None);
        assert_eq!(short.context, &b"1234567"[..]);
    }

    #[test]
    fn responses_with_another_term_or_a_future_time_do_not_confirm_the_leader() {
        let mut confirmation = Confirmation::default();
        confirmation.note_time(50);
        confirmation.note_answer(Term(3), 2, 40);
        confirmation.note_answer(Term(3), 2, 30);
        confirmation.note_answer(Term(3), 2, 51);
        assert_eq!(confirmation.answered(Term(3), 1, 2), Some(40));
        assert_eq!(confirmation.answered(Term(3), 1, 1), Some(50));
        assert_eq!(confirmation.answered(Term(3), 1, 3), None);
        assert_eq!(confirmation.answered(Term(4), 1, 2), None);
        confirmation.note_answer(Term(4), 3, 45);
        assert_eq!(
            confirmation.answered(Term(4), 1, 2),
            None,
            "the member has answered in another term"
        );
    }
}
