//! Log entries, which are the unit of replication: their identity `(term, index)`, and their size on the wire.
//!
//! The payload of an entry is a [`Bytes`] handle, so copying an entry into a message or a
//! [`Ready`](crate::Ready) copies a few words and never the payload.
//!
//! Sizes refer to the protobuf encoding that peers and the write-ahead log use, because the limits for one message and
//! for one `Ready` in [`Config`](crate::Config) count encoded bytes. The encoding itself is implemented elsewhere.

use bytes::Bytes;
use quorate_protobuf::varint_len;

use crate::log_index::LogIndex;
use crate::term::Term;

/// The id of a group member. A real member's id is never [`NONE`].
pub type MemberId = u64;

/// The member id that stands for no member: no leader, no vote or no transferee.
pub const NONE: MemberId = 0;

/// Specifies how to interpret an entry's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryKind {
    /// Bytes for the state machine; empty for the first entry of a leader's term.
    #[default]
    Normal = 0,
    /// An encoded [`ConfChange`](crate::ConfChange).
    ConfChange = 1,
    /// An encoded [`ConfChangeV2`](crate::ConfChangeV2); empty bytes leave a joint configuration.
    ConfChangeV2 = 2,
}

impl EntryKind {
    /// Returns the kind with this number on the wire, or `None` for an undefined number.
    #[must_use]
    pub fn from_wire(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Normal),
            1 => Some(Self::ConfChange),
            2 => Some(Self::ConfChangeV2),
            _ => None,
        }
    }

    /// Returns whether entries of this kind change the membership.
    #[must_use]
    pub fn is_conf_change(self) -> bool {
        self != Self::Normal
    }
}

/// One entry of the replicated log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The term of the leader that created the entry. It never changes.
    pub term: Term,
    /// The position in the log.
    pub index: LogIndex,
    /// How to interpret [`data`](Self::data).
    pub kind: EntryKind,
    /// The payload, opaque to this crate unless it is a membership change.
    pub data: Bytes,
}

impl Entry {
    /// Creates an entry to propose. The leader that accepts it sets its term and index.
    #[must_use]
    pub fn proposal(kind: EntryKind, data: Bytes) -> Self {
        Self { term: Term::ZERO, index: LogIndex::ZERO, kind, data }
    }

    /// Returns the term and the index, which together identify the entry in every log of the group.
    #[must_use]
    pub fn id(&self) -> EntryId {
        EntryId { term: self.term, index: self.index }
    }

    /// Returns the size of the entry in bytes when it is encoded as a `raftpb.Entry`.
    #[must_use]
    pub fn encoded_bytes(&self) -> u64 {
        let kind = if self.kind == EntryKind::Normal { 0 } else { 2 };
        let payload = self.data.len();
        let data = if payload == 0 { 0 } else { 1 + varint_len(payload as u64) + payload };
        (kind + 2 + varint_len(self.term.get()) + varint_len(self.index.get()) + data) as u64
    }

    /// Returns the size of the payload in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.data.len() as u64
    }
}

/// The identity of an entry. Two different entries never have the same identity in any log of the
/// group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EntryId {
    /// The entry's term.
    pub term: Term,
    /// The entry's index.
    pub index: LogIndex,
}

/// Returns the total encoded size of `entries` in bytes.
#[must_use]
pub fn encoded_bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::encoded_bytes).sum()
}

/// Returns the total payload size of `entries` in bytes.
#[must_use]
pub fn payload_bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::payload_bytes).sum()
}

/// Returns how many of the leading `entries` fit into `bytes_max` encoded bytes. The first entry
/// always counts, so that an entry larger than the limit can still be sent.
///
/// Stops at the first entry that does not fit.
pub(crate) fn fitting_count<'a>(entries: impl Iterator<Item = &'a Entry>, bytes_max: u64) -> usize {
    let mut bytes = 0u64;
    let mut count = 0;
    for entry in entries {
        bytes = bytes.saturating_add(entry.encoded_bytes());
        if count > 0 && bytes > bytes_max {
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_size_matches_the_protobuf_encoding() {
        // The encoding in hexadecimal: 10 <term> 18 <index>.
        let entry = Entry { term: Term(1), index: LogIndex(2), ..Entry::default() };
        assert_eq!(entry.encoded_bytes(), 4);
        // The encoding in hexadecimal: 10 ac 02 18 80 80 01 22 03 'a' 'b' 'c'.
        let entry =
            Entry { term: Term(300), index: LogIndex(1 << 14), data: "abc".into(), ..entry };
        assert_eq!(entry.encoded_bytes(), 12);
        let entry = Entry { kind: EntryKind::ConfChange, ..entry };
        assert_eq!(entry.encoded_bytes(), 14);
    }

    #[test]
    fn the_first_entry_is_returned_even_if_it_exceeds_the_size_limit() {
        let entries = vec![Entry { term: Term(1), index: LogIndex(1), ..Entry::default() }; 3];
        assert_eq!(fitting_count(entries.iter(), 0), 1);
        assert_eq!(fitting_count(entries.iter(), 7), 1);
        assert_eq!(fitting_count(entries.iter(), 8), 2);
        assert_eq!(fitting_count(entries.iter(), u64::MAX), 3);
        assert_eq!(fitting_count([].iter(), 100), 0);
    }
}
