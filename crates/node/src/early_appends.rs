//! Appends that arrive before their predecessors.
//!
//! An etcd 3.7 leader sends the messages of one batch in reverse order. If a follower refused every
//! append that arrives too early, the leader would fall back to probing and send the whole window
//! again, also in reverse order. So an append from the current leader that starts beyond the end of
//! the log is kept until its predecessors arrive, but at most until the next tick. With
//! that tick, it is passed to the core, which may refuse it.
//!
//! # Bound
//!
//! Kept appends use at most [`EARLY_APPENDS_BYTES_MAX`] bytes. An append that does not fit is passed to the core
//! immediately.

use std::collections::BTreeMap;

use quorate_raft::{LogIndex, Message, Term};

use crate::limits::EARLY_APPENDS_BYTES_MAX;

/// A node's early appends, which wait for their predecessors.
#[derive(Debug, Default)]
pub(crate) struct EarlyAppends {
    /// Term of all kept appends, which therefore come from a single leader.
    term: Term,
    /// The kept appends, ordered by the index of the entry that they follow and then by arrival.
    kept: BTreeMap<(LogIndex, u64), Message>,
    bytes: u64,
    count: u64,
}

impl EarlyAppends {
    /// Keeps an append from the current leader, or returns it if there is no space.
    pub(crate) fn keep(&mut self, message: Message) -> Option<Message> {
        let term = message.term;
        if term != self.term {
            assert!(
                term > self.term,
                "terms never decrease: otherwise an append from a deposed leader would replace the appends of \
                 its successor"
            );
            *self = Self { term, ..Self::default() };
        }
        let bytes = bytes_of(&message);
        if self.bytes + bytes > EARLY_APPENDS_BYTES_MAX {
            return Some(message);
        }
        self.bytes += bytes;
        self.count += 1;
        self.kept.insert((message.index, self.count), message);
        None
    }

    /// Removes and returns the first append of `term` that can follow a log that ends at `last_index`.
    pub(crate) fn take_fitting(&mut self, term: Term, last_index: LogIndex) -> Option<Message> {
        let first = self.kept.first_entry()?;
        if term != self.term || first.key().0 > last_index {
            return None;
        }
        let message = first.remove();
        self.bytes -= bytes_of(&message);
        assert!(
            !self.kept.is_empty() || self.bytes == 0,
            "the byte count is zero if no appends are kept: otherwise appends would no longer be kept"
        );
        Some(message)
    }

    /// Returns the size of the kept appends in bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes and returns all appends in log order.
    pub(crate) fn take_all(&mut self) -> Vec<Message> {
        self.bytes = 0;
        std::mem::take(&mut self.kept).into_values().collect()
    }
}

fn bytes_of(message: &Message) -> u64 {
    // The constant is the size of the message itself, so that an append without entries does not count as zero bytes.
    64 + message.entries.iter().map(quorate_raft::Entry::encoded_bytes).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use quorate_raft::{Entry, MessageKind};

    fn append(term: u64, index: u64, payload_bytes: usize) -> Message {
        let (term, index) = (Term(term), LogIndex(index));
        let data = Bytes::from(vec![0; payload_bytes]);
        let entries = vec![Entry { index: index.next(), term, data, ..Entry::default() }];
        Message { term, index, entries, ..Message::new(MessageKind::Append, 1) }
    }

    #[test]
    fn early_appends_are_returned_in_log_order() {
        let mut early = EarlyAppends::default();
        for index in [9, 7, 8] {
            assert_eq!(early.keep(append(1, index, 1)), None);
        }
        assert_eq!(early.take_fitting(Term(1), LogIndex(6)), None);
        assert_eq!(early.take_fitting(Term(1), LogIndex(7)).unwrap().index, LogIndex(7));
        assert_eq!(early.take_fitting(Term(1), LogIndex(7)), None);
        let rest: Vec<_> = early.take_all().iter().map(|message| message.index).collect();
        assert_eq!(rest, [LogIndex(8), LogIndex(9)]);
        assert_eq!(early.bytes, 0);
    }

    #[test]
    fn a_new_term_drops_the_early_appends_of_the_old_term() {
        let mut early = EarlyAppends::default();
        early.keep(append(1, 7, 1));
        assert_eq!(early.take_fitting(Term(2), LogIndex(9)), None);
        early.keep(append(2, 5, 1));
        assert_eq!(early.take_all().len(), 1);
    }

    #[test]
    fn the_total_size_of_early_appends_is_bounded() {
        let mut early = EarlyAppends::default();
        assert_eq!(early.keep(append(1, 7, 12 << 20)), None);
        assert!((12 << 20..EARLY_APPENDS_BYTES_MAX).contains(&early.bytes()));
        assert!(early.keep(append(1, 8, 12 << 20)).is_some());
        early.take_fitting(Term(1), LogIndex(7)).unwrap();
        assert_eq!(early.bytes(), 0);
        assert_eq!(early.keep(append(1, 8, 12 << 20)), None);
    }
}
