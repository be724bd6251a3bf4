//! The outline of a log: its member id and cluster id, and the term, index and checksum of each entry, without the
//! data. The outline is sufficient to compare logs.
//!
//! # Invariants
//!
//! * The log is only read. The outline contains exactly the entries that a member would use when it starts: overwritten
//!   entries are omitted, and so are entries that a snapshot from a leader has replaced.
//! * Each entry takes 16 bytes, so an outline needs less memory than starting a member.

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

/// Entry kinds of membership changes, as the log encodes them.
const CONF_CHANGES: [u8; 2] = [1, 2];

/// Identity of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    term: u64,
    /// Checksum of the entry's kind and data.
    checksum: u32,
}

/// A log without the data of its entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Outline {
    /// Member id, if the log contains it.
    pub(super) member: Option<u64>,
    /// Cluster id, if the log contains it.
    pub(super) cluster: Option<u64>,
    /// Highest commit index in the log.
    pub(super) commit: u64,
    marks: Vec<SnapshotMark>,
    last_conf_change: u64,
    /// Index and term of the entry before the first position. The term is 0 if it is unknown.
    base: (u64, u64),
    positions: Vec<Position>,
}

/// Relation of one log to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// The other log has the same entry at every index that both logs still contain.
    Contained,
    /// The other log lacks the entries from index `from` on.
    Differs {
        /// Index of the first missing entry.
        from: u64,
    },
    /// The log ends before the other log begins, so the uncommitted entries of this log cannot be compared.
    Before,
    /// Both logs have an entry with the same term and index, but different content. This cannot happen within a
    /// cluster.
    Contradicts {
        /// Index of the entry.
        index: u64,
    },
}

impl Outline {
    /// Reads a log. Returns its outline, and whether the log was read to its end.
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

    /// Adds an entry at its index, replacing the entries at this index and after it.
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

    /// Removes the entries that the newest valid snapshot has replaced. Called after the last record.
    fn settle(&mut self) {
        let commit = self.commit;
        self.marks.retain(|mark| mark.index <= commit);
        let Some(mark) = self.marks.last().cloned() else { return };
        if self.term_at(mark.index) != Some(mark.term) {
            // Position of the first entry that the leader's snapshot has not replaced.
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
        // Terms never decrease along a log, so entries after the snapshot's index with a lower term are older than the
        // snapshot.
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

    /// Returns the term and index of the last entry, which determine how up to date a log is.
    pub(super) fn last(&self) -> (u64, u64) {
        let index = self.base.0.saturating_add(self.positions.len() as u64);
        (self.term_at(index).unwrap_or(0), index)
    }

    /// Returns the newest valid snapshot. A starting member reads the log from this snapshot on.
    pub(super) fn mark(&self) -> SnapshotMark {
        self.marks.last().cloned().unwrap_or_default()
    }

    /// Returns the valid snapshots, oldest first.
    pub(super) fn marks(&self) -> &[SnapshotMark] {
        &self.marks
    }

    /// Returns the outgoing voters of a joint configuration, if one was in force at the newest snapshot and no
    /// membership change follows.
    pub(super) fn outgoing_voters(&self) -> Vec<u64> {
        let mark = self.mark();
        let encoded = mark.conf_state.filter(|_| self.last_conf_change <= mark.index);
        let state = encoded.and_then(|encoded| ConfState::decode(encoded).ok());
        state.unwrap_or_default().voters_outgoing
    }

    /// Compares this log with another log.
    pub(super) fn compare(&self, other: &Self) -> Comparison {
        let (_, last) = self.last();
        let (_, other_last) = other.last();
        let first = self.base.0.max(other.base.0).saturating_add(1);
        if last < first {
            // This log ends before the range of entries that both logs could contain, so only its last entry can be
            // compared.
            return match other.term_at(last).zip(self.term_at(last)) {
                Some((theirs, ours)) if theirs == ours => Comparison::Contained,
                Some(_) => Comparison::Differs { from: last },
                None if last <= self.commit => Comparison::Contained,
                None => Comparison::Before,
            };
        }
        // The entry directly before the common range is compared if both logs know its term.
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

/// Describes the entries with these indexes in words.
pub(super) fn described(
    disk: &dyn Disk,
    dir: &Path,
    indexes: &RangeInclusive<u64>,
) -> Result<Vec<String>, WalError> {
    let mut described = BTreeMap::new();
    visit(disk, dir, |_, content| -> Result<(), WalError> {
        if let Content::Entry(entry) = content {
            described.split_off(&entry.index);
            if indexes.contains(&entry.index) {
                described.insert(entry.index, words::entry(entry));
            }
        }
        Ok(())
    })?;
    Ok(described.into_values().collect())
}

#[cfg(test)]
mod tests {
    use quorate_storage::wal::{EntryRef, HardState};

    use super::*;

    /// Returns a log whose entries have these terms, starting at index `first`.
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
    fn overwriting_an_entry_drops_the_entries_after_it() {
        let outline = read([entry(1, 1), entry(2, 1), entry(3, 1), entry(2, 2)]);
        assert_eq!((outline.last(), outline.positions.len()), ((2, 2), 2));
    }

    #[test]
    fn a_valid_snapshot_from_a_leader_replaces_the_log() {
        let installed = || vec![entry(1, 1), entry(2, 1), mark(10, 3), committed(10)];
        assert_eq!(read(installed()).last(), (3, 10));
        let mut more = installed();
        more.extend([entry(11, 3), entry(12, 4)]);
        assert_eq!(read(more).last(), (4, 12));
        // The snapshot is above the commit index, so it was never completed and replaces no entries.
        assert_eq!(read([entry(1, 1), committed(1), mark(10, 3)]).last(), (1, 1));
        // The entries after the snapshot's index have an older term than the snapshot, so they are dropped.
        let stale = (8..=12).map(|index| entry(index, 2)).chain([mark(10, 3), committed(10)]);
        assert_eq!(read(stale).last(), (3, 10));
        // The member's own snapshot does not change the log.
        let own = (1..=12).map(|index| entry(index, 2)).chain([committed(11), mark(10, 2)]);
        let own = read(own);
        assert_eq!((own.last(), own.positions.len(), own.mark().index), ((2, 12), 12, 10));
    }

    #[test]
    fn a_joint_configuration_is_in_force_until_the_next_change() {
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
    fn logs_are_compared_at_their_common_indexes() {
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
        // The chosen log has already purged its first entries.
        let later = log(10, &[4]);
        let mut early = log(1, &[1, 1]);
        assert_eq!(early.compare(&later), Before);
        early.commit = 2;
        assert_eq!(early.compare(&later), Contained);
    }
}
