//! What the log of a directory says of itself, entry by entry, without their data: whose it is, how far it goes, and
//! in which terms. Enough to weigh it against others.
//!
//! # Invariants
//!
//! * The log is read only. What a start would take from it is taken here: entries that were written over are gone, and
//!   so is what a snapshot of a leader has made void.
//! * An entry takes 16 bytes. A start on the same log takes more.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use prost::Message;
use quorate_api::etcdserverpb::Metadata;
use quorate_api::raftpb::ConfState;
use quorate_storage::disk::Disk;
use quorate_storage::wal::inspect::{Content, visit};
use quorate_storage::wal::{SnapshotMark, WalError};

use crate::words;

/// Kinds of entries that change the members, as the log numbers them.
const CONF_CHANGES: [u8; 2] = [1, 2];

/// What an entry is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    term: u64,
    /// Of kind and data.
    checksum: u32,
}

/// A log without what its entries say.
#[derive(Clone, Debug, Default)]
pub(super) struct Outline {
    /// The member, where the log names it.
    pub(super) member: Option<u64>,
    /// Its cluster, where the log names it.
    pub(super) cluster: Option<u64>,
    /// Up to where the log knows that entries are committed.
    pub(super) commit: u64,
    marks: Vec<SnapshotMark>,
    last_conf_change: u64,
    /// Index and term that the first position follows; the term is 0 where it is not known.
    base: (u64, u64),
    positions: Vec<Position>,
}

/// How a log stands to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// Every entry is one of the other's, as far as both still have them.
    Contained,
    /// The entries from here on are not the other's.
    Differs {
        /// The first of them.
        from: u64,
    },
    /// It ends before the other begins, so that what it has behind its committed entries cannot be compared.
    Before,
    /// It has an entry of the same term at the same index as the other, and they are not the same: no two members of a
    /// cluster can have come to that.
    Contradicts {
        /// Where.
        index: u64,
    },
}

impl Outline {
    /// Reads a log; says whether it could be read to its end.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> (Self, bool) {
        let mut outline = Self::default();
        let visited = visit(disk, dir, |_, content| -> Result<(), WalError> {
            outline.take(content);
            Ok(())
        });
        outline.settle();
        (outline, visited.is_ok())
    }

    fn take(&mut self, content: Content<'_>) {
        match content {
            Content::Checksum(_) => {}
            Content::Metadata(metadata) => {
                let metadata = Metadata::decode(metadata).unwrap_or_default();
                (self.member, self.cluster) = (metadata.node_id, metadata.cluster_id);
            }
            Content::Entry(entry) => {
                if CONF_CHANGES.contains(&entry.kind) {
                    self.last_conf_change = entry.index;
                }
                let checksum = crc32c::crc32c_append(u32::from(entry.kind), entry.data);
                self.place(entry.index, Position { term: entry.term, checksum });
            }
            Content::State(state) => self.commit = state.commit,
            Content::Mark(mark) => self.marks.push(mark),
        }
    }

    /// Puts an entry where its index says; what was there and behind it has been overwritten.
    fn place(&mut self, index: u64, position: Position) {
        let at = index.checked_sub(self.base.0).and_then(|n| n.checked_sub(1));
        match at.map(usize::try_from) {
            Some(Ok(at)) if at <= self.positions.len() && !self.positions.is_empty() => {
                self.positions.truncate(at);
            }
            Some(_) | None => {
                self.positions.clear();
                self.base = (index.saturating_sub(1), 0);
            }
        }
        self.positions.push(position);
    }

    /// Leaves out, after the last record, what the newest snapshot that counts has made void.
    fn settle(&mut self) {
        let commit = self.commit;
        self.marks.retain(|mark| mark.index <= commit);
        let Some(mark) = self.marks.last().cloned() else { return };
        if self.term_at(mark.index) != Some(mark.term) {
            // What a leader's snapshot has taken the place of.
            let first = self
                .positions
                .len()
                .min(usize::try_from(mark.index.saturating_sub(self.base.0)).unwrap_or(usize::MAX));
            if self.base.0 < mark.index {
                self.positions.drain(..first);
                self.base = (mark.index, mark.term);
            } else if self.base.0 == mark.index {
                self.base.1 = mark.term;
            }
        }
        // Terms never fall along a log: these are older than the snapshot that they seem to follow.
        if self.term_at(mark.index.saturating_add(1)).is_some_and(|term| term < mark.term) {
            self.positions.clear();
            self.base = (mark.index, mark.term);
        }
    }

    fn position(&self, index: u64) -> Option<&Position> {
        let at = index.checked_sub(self.base.0)?.checked_sub(1)?;
        self.positions.get(usize::try_from(at).ok()?)
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.0 && self.base.1 > 0 {
            return Some(self.base.1);
        }
        self.position(index).map(|position| position.term)
    }

    /// Term and index of the last entry, by which logs are compared.
    pub(super) fn last(&self) -> (u64, u64) {
        let index = self.base.0.saturating_add(self.positions.len() as u64);
        (self.term_at(index).unwrap_or(0), index)
    }

    /// The newest snapshot that counts, behind which a start reads the log.
    pub(super) fn mark(&self) -> SnapshotMark {
        self.marks.last().cloned().unwrap_or_default()
    }

    /// The snapshots that count, oldest first.
    pub(super) fn marks(&self) -> &[SnapshotMark] {
        &self.marks
    }

    /// The voters that a joint configuration is leaving, if one was in force at the newest snapshot and nothing has
    /// changed since.
    pub(super) fn outgoing_voters(&self) -> Vec<u64> {
        let mark = self.mark();
        let encoded = mark.conf_state.filter(|_| self.last_conf_change <= mark.index);
        let state = encoded.and_then(|encoded| ConfState::decode(encoded).ok());
        state.unwrap_or_default().voters_outgoing
    }

    /// How this log stands to another one.
    pub(super) fn compare(&self, other: &Self) -> Comparison {
        let (_, last) = self.last();
        let (_, other_last) = other.last();
        let first = self.base.0.max(other.base.0).saturating_add(1);
        if last < first {
            // All there is to compare is the entry that the other log begins behind.
            return match other.term_at(last).zip(self.term_at(last)) {
                Some((theirs, ours)) if theirs == ours => Comparison::Contained,
                Some(_) => Comparison::Differs { from: last },
                None if last <= self.commit => Comparison::Contained,
                None => Comparison::Before,
            };
        }
        // What both begin behind, where they know it.
        if let Some((ours, theirs)) = self.term_at(first - 1).zip(other.term_at(first - 1))
            && ours != theirs
        {
            return Comparison::Differs { from: first - 1 };
        }
        for index in first..=last.min(other_last) {
            match (self.position(index), other.position(index)) {
                (Some(ours), Some(theirs)) if ours == theirs => {}
                (Some(ours), Some(theirs)) if ours.term == theirs.term => {
                    return Comparison::Contradicts { index };
                }
                _ => return Comparison::Differs { from: index },
            }
        }
        if last > other_last {
            return Comparison::Differs { from: other_last.saturating_add(1) };
        }
        Comparison::Contained
    }
}

/// What the entries of these indexes ask for, in words.
pub(super) fn told(
    disk: &dyn Disk,
    dir: &Path,
    indexes: &RangeInclusive<u64>,
) -> Result<Vec<String>, WalError> {
    let mut told = BTreeMap::new();
    visit(disk, dir, |_, content| -> Result<(), WalError> {
        if let Content::Entry(entry) = content {
            told.split_off(&entry.index);
            if indexes.contains(&entry.index) {
                told.insert(entry.index, words::entry(entry));
            }
        }
        Ok(())
    })?;
    Ok(told.into_values().collect())
}

#[cfg(test)]
mod tests {
    use quorate_storage::wal::{EntryRef, HardState};

    use super::*;

    /// A log whose entries have these terms, from `first` on.
    fn log(first: u64, terms: &[u64]) -> Outline {
        let mut outline = Outline::default();
        for (index, term) in (first..).zip(terms) {
            outline.take(entry(index, *term));
        }
        outline
    }

    fn entry(index: u64, term: u64) -> Content<'static> {
        Content::Entry(EntryRef { index, term, kind: 0, data: b"x" })
    }

    fn mark(index: u64, term: u64) -> Content<'static> {
        Content::Mark(SnapshotMark { index, term, conf_state: None })
    }

    fn committed(commit: u64) -> Content<'static> {
        Content::State(HardState { term: 9, vote: 0, commit })
    }

    fn read(contents: impl IntoIterator<Item = Content<'static>>) -> Outline {
        let mut outline = Outline::default();
        contents.into_iter().for_each(|content| outline.take(content));
        outline.settle();
        outline
    }

    #[test]
    fn an_entry_that_is_written_over_takes_what_follows_with_it() {
        let outline = read([entry(1, 1), entry(2, 1), entry(3, 1), entry(2, 2)]);
        assert_eq!((outline.last(), outline.positions.len()), ((2, 2), 2));
    }

    #[test]
    fn a_snapshot_of_a_leader_takes_the_place_of_the_log_once_it_counts() {
        let installed = || vec![entry(1, 1), entry(2, 1), mark(10, 3), committed(10)];
        assert_eq!(read(installed()).last(), (3, 10));
        let mut more = installed();
        more.extend([entry(11, 3), entry(12, 4)]);
        assert_eq!(read(more).last(), (4, 12));
        // It was never finished.
        assert_eq!(read([entry(1, 1), committed(1), mark(10, 3)]).last(), (1, 1));
        // Entries behind it that are older than it.
        let stale = (8..=12).map(|index| entry(index, 2)).chain([mark(10, 3), committed(10)]);
        assert_eq!(read(stale).last(), (3, 10));
        // One's own snapshot leaves the log as it is.
        let own = (1..=12).map(|index| entry(index, 2)).chain([committed(11), mark(10, 2)]);
        let own = read(own);
        assert_eq!((own.last(), own.positions.len(), own.mark().index), ((2, 12), 12, 10));
    }

    #[test]
    fn a_joint_configuration_counts_until_the_next_change() {
        let state =
            ConfState { voters: vec![1, 2], voters_outgoing: vec![2, 3], ..Default::default() };
        let conf_state = Some(state.encode_to_vec().into());
        let joint = Content::Mark(SnapshotMark { index: 2, term: 1, conf_state });
        let taken = vec![entry(1, 1), entry(2, 1), joint, committed(2), entry(3, 1)];
        assert_eq!(read(taken.clone()).outgoing_voters(), [2, 3]);
        let change = EntryRef { index: 4, term: 1, kind: CONF_CHANGES[1], data: b"" };
        let left = taken.into_iter().chain([Content::Entry(change)]);
        assert_eq!(read(left).outgoing_voters(), [0; 0]);
    }

    #[test]
    fn logs_are_compared_where_both_have_entries() {
        use Comparison::{Before, Contained, Contradicts, Differs};
        let chosen = log(1, &[1, 1, 2, 2]);
        for (other, expected) in [
            (log(1, &[1, 1, 2, 2]), Contained),
            (log(1, &[1, 1]), Contained),
            (log(2, &[1, 2]), Contained),
            (log(1, &[1, 1, 1, 1, 1]), Differs { from: 3 }),
            (Outline::default(), Contained),
        ] {
            assert_eq!(other.compare(&chosen), expected, "{other:?}");
        }
        let mut other = log(1, &[1, 1]);
        other.positions[1].checksum ^= 1;
        assert_eq!(other.compare(&chosen), Contradicts { index: 2 });
        let mut behind = read([mark(2, 1), committed(2), entry(3, 2), entry(4, 2)]);
        assert_eq!(behind.compare(&chosen), Contained);
        behind.base.1 = 9;
        assert_eq!(behind.compare(&chosen), Differs { from: 2 });
        // The chosen one has given up its first entries.
        let later = log(10, &[4]);
        let mut early = log(1, &[1, 1]);
        assert_eq!(early.compare(&later), Before);
        early.commit = 2;
        assert_eq!(early.compare(&later), Contained);
    }
}
