//! Since when a quorum is known to have followed this leader.
//!
//! Every heartbeat carries the time at which it was sent, by the leader's own clock, and a follower's answer carries
//! that time back. The time that a quorum of voters has answered for is the leader's confirmation: no other leader
//! was elected before it, because one of the voters that answered would have had to vote first.
//!
//! A leader whose messages are lost, whose process was suspended, or that sends no heartbeats because its disk is
//! stuck, gets no answers, so its confirmation grows old whatever the reason is.
//!
//! # Wire format
//!
//! The time is 8 bytes, little-endian, behind what the consensus core puts into the context of its heartbeats. Every
//! follower returns the context as it is, also one that runs etcd.
//!
//! # Not here
//!
//! What a leader may do while its confirmation is recent: `core`'s `LeadershipState`.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_raft::{MemberId, Message, Term};

const STAMP_BYTES: usize = size_of::<u64>();

/// The answers to this leader's heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Confirmation {
    /// The time, as the caller last gave it.
    now: u64,
    /// The term that the answers belong to.
    term: Term,
    /// The newest heartbeat that each follower has answered, by when it was sent.
    answered: BTreeMap<MemberId, u64>,
}

impl Confirmation {
    /// Takes the time. It never goes back.
    pub(crate) fn note_time(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// The time, as the caller last gave it.
    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    /// Adds the time to a heartbeat that is about to be sent.
    pub(crate) fn stamp(&self, heartbeat: &mut Message) {
        let stamp = self.now.to_le_bytes();
        heartbeat.context = [&heartbeat.context[..], &stamp[..]].concat().into();
    }

    /// Takes the time off an answer, and leaves what the consensus core had put into the heartbeat.
    pub(crate) fn take_stamp(answer: &mut Message) -> Option<u64> {
        let at = answer.context.len().checked_sub(STAMP_BYTES)?;
        let stamp: Bytes = answer.context.split_off(at);
        stamp.as_ref().try_into().ok().map(u64::from_le_bytes)
    }

    /// A follower has answered, in this leader's term, a heartbeat that was sent at this time.
    pub(crate) fn note_answer(&mut self, term: Term, from: MemberId, sent_at: u64) {
        if sent_at > self.now {
            // No heartbeat of this leader's.
            return;
        }
        if term != self.term {
            self.term = term;
            self.answered.clear();
        }
        let newest = self.answered.entry(from).or_default();
        *newest = sent_at.max(*newest);
    }

    /// The newest heartbeat of this term that the member has answered. A leader agrees with itself at any time.
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
    fn the_stamp_stands_behind_the_context_of_the_core() {
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
    fn answers_count_in_their_term_and_never_ahead_of_time() {
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
