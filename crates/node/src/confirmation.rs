//! The time until which a quorum has confirmed this leader.
//!
//! Every heartbeat carries the time at which it was sent, by the leader's own clock, and a
//! follower's response returns that time. The leader's confirmation is the latest time that a
//! quorum of voters has returned, or exceeded. No other leader was elected before it, because one
//! of the voters that answered would have had to vote for it first.
//!
//! A leader receives no responses if its messages are lost, if its process was suspended, or if it
//! sends no heartbeats because its disk is stalled. In all these cases its confirmation grows old.
//!
//! # Wire format
//!
//! The time is 8 bytes, little-endian, after the bytes that the consensus core puts into the
//! context of its heartbeats. Every follower returns the context unchanged, including one that runs
//! etcd.
//!
//! # Not here
//!
//! The actions that a recent confirmation permits a leader: `core`'s `LeadershipState`.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_raft::{MemberId, Message, Term};

const STAMP_BYTES: usize = size_of::<u64>();

/// The responses to this leader's heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Confirmation {
    /// The time that the caller set last.
    now: u64,
    /// The term of the responses.
    term: Term,
    /// For each follower, the time at which the newest heartbeat that it answered was sent.
    answered: BTreeMap<MemberId, u64>,
}

impl Confirmation {
    /// Sets the time. It never decreases.
    pub(crate) fn note_time(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// The time that the caller set last.
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    /// Adds the time to a heartbeat that is about to be sent.
    pub(crate) fn stamp(&self, heartbeat: &mut Message) {
        let stamp = self.now.to_le_bytes();
        heartbeat.context = [&heartbeat.context[..], &stamp[..]].concat().into();
    }

    /// Removes the time from a response, which leaves the bytes that the consensus core put into
    /// the heartbeat.
    pub(crate) fn take_stamp(answer: &mut Message) -> Option<u64> {
        let at = answer.context.len().checked_sub(STAMP_BYTES)?;
        let stamp: Bytes = answer.context.split_off(at);
        stamp.as_ref().try_into().ok().map(u64::from_le_bytes)
    }

    /// Records that a follower answered, in this leader's term, a heartbeat sent at this time.
    pub(crate) fn note_answer(&mut self, term: Term, from: MemberId, sent_at: u64) {
        if sent_at > self.now {
            // This leader sent no such heartbeat.
            return;
        }
        if term != self.term {
            self.term = term;
            self.answered.clear();
        }
        let newest = self.answered.entry(from).or_default();
        *newest = sent_at.max(*newest);
    }

    /// When the newest heartbeat of this term that the member answered was sent. The leader itself
    /// has always answered.
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
    fn the_time_stamp_is_appended_to_the_heartbeat_context() {
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
    fn responses_count_only_in_their_term_and_not_from_the_future() {
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
        assert_eq!(confirmation.answered(Term(4), 1, 2), None, "it has answered in another term");
    }
}
