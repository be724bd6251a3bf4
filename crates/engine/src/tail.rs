//! The tail: the newest committed batches, in memory.
//!
//! The tables lag behind the log by a fraction of a second. Until the changes of a batch are in the
//! tables, every server keeps the batch in memory, and merges the changes of the batch into the results
//! that the server reads from the tables. Each server also keeps a limited amount of older batches for
//! watchers that are slightly behind.
//!
//! # Invariants
//!
//! * The tail contains every committed batch after `written_seq`, up to the last batch that this server
//!   knows. The tables contain all batches up to `written_seq`, and possibly some later batches.
//! * The revision, the batches and the index of the tail change together, so a reader sees either all
//!   changes of a batch or none of its changes.
//!
//! # Not here
//!
//! Reading the log (`follower`), and the sequencer's bound on batches that are not in the tables
//! (`sequencer`).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use quorate_state::mvcc::KeyRange;
use quorate_state::schema::{RecordKey, Revision};

use crate::batch::Committed;
use crate::spans::{Part, Spans};
use crate::term_id::TermId;

/// Maximum number of bytes of batches that are kept for watchers although they are already in the
/// tables.
const HISTORY_BYTES_MAX: usize = 32 << 20;

/// The positions and revisions that a server has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The position of the last committed batch that this server knows.
    pub(crate) seq: u64,
    /// The term of the last committed batch that this server knows.
    pub(crate) term: TermId,
    /// The newest revision.
    pub(crate) revision: i64,
    /// The compacted revision, or -1.
    pub(crate) compacted: i64,
    /// The position of the last batch that is known to be in the tables.
    pub(crate) written_seq: u64,
    /// The number of the last request in the committed batches.
    pub(crate) index: u64,
    /// The number of times that this server has restarted its replica from the tables.
    pub(crate) restarts: u64,
}

/// The tail of one server.
#[derive(Debug)]
pub(crate) struct Tail {
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    position: Position,
    /// The lowest revision from which the changes in `batches` are complete.
    first_revision: i64,
    batches: VecDeque<Arc<Committed>>,
    /// Bytes of all batches in the tail. `unwritten_bytes` covers only the batches that are not in the
    /// tables.
    byte_count: usize,
    unwritten_bytes: usize,
    /// For each key, its versions in the batches that are not in the tables, oldest first.
    index: BTreeMap<Bytes, VecDeque<Unwritten>>,
    /// Counts of keys at the revision of `position`.
    spans: Spans,
}

#[derive(Clone, Debug)]
struct Unwritten {
    at: RecordKey,
    record: Bytes,
}

/// A key that has a version in a batch that is not in the tables, as the key was at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlaid {
    pub(crate) key: Bytes,
    /// The revision and the record of the key's version at that revision, or `None` if the key was
    /// deleted.
    pub(crate) live: Option<(Revision, Bytes)>,
}

impl Tail {
    pub(crate) fn new(position: Position) -> Self {
        let inner = Inner {
            position,
            first_revision: position.revision + 1,
            batches: VecDeque::new(),
            byte_count: 0,
            unwritten_bytes: 0,
            index: BTreeMap::new(),
            spans: Spans::default(),
        };
        Self { inner: RwLock::new(inner) }
    }

    pub(crate) fn position(&self) -> Position {
        self.inner.read().position
    }

    /// Returns the bytes of batches that are not in the tables.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        self.inner.read().unwritten_bytes
    }

    /// Adds the next batch.
    pub(crate) fn push(&self, batch: &Arc<Committed>, compacted: i64) {
        let mut inner = self.inner.write();
        let position = &mut inner.position;
        assert!(
            batch.seq == position.seq + 1,
            "batches are added in the order of the log: otherwise readers would miss changes"
        );
        position.seq = batch.seq;
        position.term = batch.term;
        position.revision = batch.last_revision;
        position.compacted = position.compacted.max(compacted);
        position.index = batch.index;
        inner.add_to_index(batch);
        inner.spans.apply(batch, i64::MIN);
        inner.byte_count += batch.byte_count;
        inner.unwritten_bytes += batch.byte_count;
        inner.batches.push_back(Arc::clone(batch));
        let written = batch.written_seq;
        inner.forget_written(written);
    }

    /// Records that all batches up to `seq` are in the tables.
    pub(crate) fn written(&self, seq: u64) {
        self.inner.write().forget_written(seq);
    }

    /// Empties the tail, and restarts it from a position up to which all batches are in the tables.
    pub(crate) fn reset(&self, position: Position) {
        let mut inner = self.inner.write();
        let restarts = inner.position.restarts + 1;
        *inner = Self::new(Position { restarts, ..position }).inner.into_inner();
    }

    /// Moves the last batch known to be in the tables back to `written_seq`, because the tables
    /// have lost changes. `batches` are the batches after `written_seq`, up to the last batch that
    /// this server knew when they were read. `first_revision` is the first revision after the batch
    /// at `written_seq`.
    pub(crate) fn rewind(
        &self,
        written_seq: u64,
        first_revision: i64,
        mut batches: VecDeque<Arc<Committed>>,
    ) {
        let mut inner = self.inner.write();
        let last = batches.back().map_or(written_seq, |last| last.seq);
        batches.extend(inner.batches.iter().filter(|batch| batch.seq > last).cloned());
        let position = Position { written_seq, ..inner.position };
        let byte_count = batches.iter().map(|batch| batch.byte_count).sum();
        let mut rewound = Inner {
            position,
            first_revision,
            batches: VecDeque::new(),
            byte_count,
            unwritten_bytes: byte_count,
            index: BTreeMap::new(),
            // The committed changes have not changed, so the counts remain valid.
            spans: std::mem::take(&mut inner.spans),
        };
        batches.iter().for_each(|batch| rewound.add_to_index(batch));
        rewound.batches = batches;
        *inner = rewound;
    }

    /// Returns the oldest batches that are not in the tables yet, up to `bytes_max` bytes in total,
    /// but at least one batch if there is any.
    pub(crate) fn unwritten(&self, bytes_max: usize) -> Vec<Arc<Committed>> {
        let inner = self.inner.read();
        let mut bytes = 0;
        let after = inner.position.written_seq;
        let unwritten = inner.batches.iter().filter(|batch| batch.seq > after);
        unwritten
            .take_while(|batch| {
                let is_first = bytes == 0;
                bytes += batch.byte_count.max(1);
                is_first || bytes <= bytes_max
            })
            .cloned()
            .collect()
    }

    /// Returns the batch that contains `revision` and all later batches, or `None` if the tail begins
    /// after `revision`.
    pub(crate) fn since(&self, revision: i64) -> Option<Vec<Arc<Committed>>> {
        self.inner.read().since(revision)
    }

    /// Returns whether the tail contains all changes from a revision on.
    pub(crate) fn contains(&self, revision: i64) -> bool {
        self.inner.read().first_revision <= revision
    }

    /// Returns how many more live keys the range has at revision `up_to` than at revision `after`. Returns
    /// `None` if the tail does not contain all changes in between, or if the number of restarts of the
    /// replica is not `restarts`.
    pub(crate) fn count_change(
        &self,
        range: KeyRange<'_>,
        after: i64,
        up_to: i64,
        restarts: u64,
    ) -> Option<i64> {
        let batches = {
            let inner = self.inner.read();
            (inner.position.restarts == restarts).then(|| inner.since(after + 1))??
        };
        Some(batches.iter().map(|batch| batch.count_change(range, after, up_to)).sum())
    }

    /// Returns the number of keys in the spans within a part of the keyspace at `revision`, and the gaps between these
    /// spans ([`Spans::within`]). If the tail does not contain all later changes, returns 0 and the whole part as the
    /// only gap.
    pub(crate) fn spanned(&self, part: &Part, revision: i64, restarts: u64) -> (i64, Vec<Part>) {
        let (count, gaps, later) = {
            let inner = self.inner.read();
            let later = inner.since(revision + 1);
            match later.filter(|_| inner.position.restarts == restarts) {
                Some(later) => {
                    let (count, gaps) = inner.spans.within(part);
                    (count, gaps, later)
                }
                None => return (0, vec![part.clone()]),
            }
        };
        let change = |part: &Part| -> i64 {
            let changes = later.iter();
            changes.map(|batch| batch.count_change(part.range(), revision, i64::MAX)).sum()
        };
        let in_gaps: i64 = gaps.iter().map(change).sum();
        (count - (change(part) - in_gaps), gaps)
    }

    /// Adds the spans into which a part of the keyspace has been divided, with their counts at `revision`.
    /// Has no effect if the tail does not contain all later changes.
    pub(crate) fn add_spans(&self, part: &Part, mut spans: Spans, revision: i64, restarts: u64) {
        let mut inner = self.inner.write();
        let later = inner.since(revision + 1);
        let Some(later) = later.filter(|_| inner.position.restarts == restarts) else { return };
        later.iter().for_each(|batch| spans.apply(batch, revision));
        inner.spans.replace(part, spans);
    }

    /// Returns the first part of the keyspace from a key on that has no spans but can have spans.
    pub(crate) fn first_gap(&self, from: &[u8]) -> Option<Part> {
        let inner = self.inner.read();
        if inner.spans.are_full() { None } else { inner.spans.first_gap(from) }
    }

    /// Returns the spans with their counts at the current position.
    pub(crate) fn spans(&self) -> (Vec<(Part, i64)>, Position) {
        let inner = self.inner.read();
        (inner.spans.to_parts(), inner.position)
    }

    /// Adds spans whose counts are correct at an earlier position of this tail. Spans that the tail already has are
    /// kept. Has no effect if the tail does not contain all later changes.
    pub(crate) fn restore_spans(&self, mut spans: Spans, at: Position) {
        let mut inner = self.inner.write();
        let later = inner.since(at.revision + 1);
        let Some(later) = later.filter(|_| inner.position.restarts == at.restarts) else { return };
        later.iter().for_each(|batch| spans.apply(batch, at.revision));
        inner.spans.extend(spans);
    }

    /// Returns the keys of a range that have a version at `revision` in the batches that are not in
    /// the tables, in key order, together with the current position. These versions replace the
    /// rows of the tables. Without a revision, the newest revision is used.
    pub(crate) fn overlay(
        &self,
        range: KeyRange<'_>,
        revision: Option<i64>,
    ) -> (Vec<Overlaid>, Position) {
        let inner = self.inner.read();
        let position = inner.position;
        let revision = revision.unwrap_or(position.revision);
        let found = match range {
            KeyRange::One(key) => inner.at(key, revision).into_iter().collect(),
            KeyRange::Between(from, to) if from >= to => Vec::new(),
            KeyRange::Between(from, to) => {
                inner.between(Bound::Included(from), Bound::Excluded(to), revision)
            }
            KeyRange::From(from) => {
                inner.between(Bound::Included(from), Bound::Unbounded, revision)
            }
        };
        (found, position)
    }
}

impl Inner {
    fn since(&self, revision: i64) -> Option<Vec<Arc<Committed>>> {
        if revision > self.position.revision {
            return Some(Vec::new());
        }
        if revision < self.first_revision {
            return None;
        }
        let at = self.batches.partition_point(|batch| batch.last_revision < revision);
        Some(self.batches.range(at..).cloned().collect())
    }

    fn at(&self, key: &[u8], revision: i64) -> Option<Overlaid> {
        let (key, versions) = self.index.get_key_value(key)?;
        overlaid(key, versions, revision)
    }

    fn between(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, revision: i64) -> Vec<Overlaid> {
        let entries = self.index.range::<[u8], _>((from, to));
        entries.filter_map(|(key, versions)| overlaid(key, versions, revision)).collect()
    }

    fn add_to_index(&mut self, batch: &Committed) {
        for record in &batch.records {
            let versions = self.index.entry(record.key.clone()).or_default();
            versions.push_back(Unwritten { at: record.at, record: record.record.clone() });
        }
    }

    fn forget_written(&mut self, seq: u64) {
        let seq = seq.min(self.position.seq);
        if seq <= self.position.written_seq {
            return self.trim();
        }
        let before = std::mem::replace(&mut self.position.written_seq, seq);
        let written = self.batches.iter().filter(|batch| before < batch.seq && batch.seq <= seq);
        for batch in written {
            self.unwritten_bytes -= batch.byte_count;
            for record in &batch.records {
                let versions = self
                    .index
                    .get_mut(&record.key)
                    .expect("the keys of a batch are indexed until the batch is written");
                versions.pop_front();
                if versions.is_empty() {
                    self.index.remove(&record.key);
                }
            }
        }
        self.trim();
    }

    /// Drops the oldest batches that are in the tables, until at most [`HISTORY_BYTES_MAX`] bytes of
    /// such batches remain.
    fn trim(&mut self) {
        while self.byte_count - self.unwritten_bytes > HISTORY_BYTES_MAX
            && let Some(oldest) = self.batches.pop_front()
        {
            self.byte_count -= oldest.byte_count;
            self.first_revision = oldest.last_revision + 1;
        }
    }
}

fn overlaid(key: &Bytes, versions: &VecDeque<Unwritten>, revision: i64) -> Option<Overlaid> {
    let version = versions.iter().rev().find(|version| version.at.revision.main <= revision)?;
    let live = (!version.at.tombstone).then(|| (version.at.revision, version.record.clone()));
    Some(Overlaid { key: key.clone(), live })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Record;

    fn start() -> Position {
        let term = TermId { epoch: 1, nonce: 5 };
        Position { seq: 0, term, revision: 1, compacted: -1, written_seq: 0, index: 0, restarts: 0 }
    }

    fn batch(seq: u64, keys: &[(&str, bool)], written_seq: u64) -> Arc<Committed> {
        let main = i64::try_from(seq).unwrap() + 1;
        let records = (0..).zip(keys).map(|(sub, (key, tombstone))| Record {
            at: RecordKey { revision: Revision::new(main, sub), tombstone: *tombstone },
            key: Bytes::copy_from_slice(key.as_bytes()),
            record: Bytes::from(format!("{key}@{main}")),
        });
        Arc::new(Committed {
            seq,
            term: start().term,
            last_revision: main,
            index: seq,
            records: records.collect(),
            rows: Vec::new(),
            tokens: Vec::new(),
            written_seq,
            byte_count: 100,
        })
    }

    fn shown(tail: &Tail, range: KeyRange<'_>, revision: Option<i64>) -> Vec<String> {
        let (found, _) = tail.overlay(range, revision);
        found
            .into_iter()
            .map(|found| match found.live {
                Some((_, record)) => String::from_utf8(record.to_vec()).unwrap(),
                None => format!("-{}", found.key.escape_ascii()),
            })
            .collect()
    }

    #[test]
    fn the_tail_overlays_keys_as_of_a_revision_until_they_are_in_the_tables() {
        let tail = Tail::new(start());
        tail.push(&batch(1, &[("a", false), ("b", false)], 0), -1);
        tail.push(&batch(2, &[("a", true)], 0), -1);
        tail.push(&batch(3, &[("c", false)], 0), -1);
        let all = KeyRange::From(b"");
        assert_eq!(shown(&tail, all, None), ["-a", "b@2", "c@4"]);
        assert_eq!(shown(&tail, all, Some(2)), ["a@2", "b@2"]);
        assert_eq!(shown(&tail, all, Some(1)), [""; 0]);
        assert_eq!(shown(&tail, KeyRange::One(b"a"), Some(3)), ["-a"]);
        assert_eq!(shown(&tail, KeyRange::Between(b"b", b"c"), None), ["b@2"]);
        assert_eq!(shown(&tail, KeyRange::Between(b"c", b"b"), None), [""; 0]);
        tail.written(1);
        assert_eq!(shown(&tail, all, None), ["-a", "c@4"]);
        assert_eq!(tail.unwritten_bytes(), 200);
        tail.push(&batch(4, &[], 3), -1);
        assert_eq!(shown(&tail, all, None), [""; 0]);
        assert_eq!(tail.position().written_seq, 3);
    }

    #[test]
    fn batches_in_the_tables_are_kept_for_watchers_and_unwritten_batches_are_listed_in_order() {
        let tail = Tail::new(start());
        for seq in 1..=4 {
            tail.push(&batch(seq, &[("k", false)], 0), -1);
        }
        tail.written(2);
        let seqs = |batches: Vec<Arc<Committed>>| -> Vec<u64> {
            batches.iter().map(|batch| batch.seq).collect()
        };
        assert_eq!(seqs(tail.unwritten(usize::MAX)), [3, 4]);
        assert_eq!(seqs(tail.unwritten(1)), [3]);
        assert_eq!(seqs(tail.since(3).unwrap()), [2, 3, 4]);
        assert_eq!(tail.since(6), Some(Vec::new()));
        assert_eq!(tail.since(1), None);
        assert!(tail.contains(2) && !tail.contains(1));
        assert_eq!(Tail::new(start()).since(1), None);
    }

    #[test]
    fn a_rewound_tail_overlays_the_changes_that_the_tables_have_lost() {
        let tail = Tail::new(start());
        let batches: Vec<_> = (1..=5).map(|seq| batch(seq, &[("k", false)], 0)).collect();
        batches.iter().for_each(|batch| tail.push(batch, -1));
        tail.written(4);
        // The fifth batch was added after the others had been read from the log.
        tail.rewind(2, 4, batches[2..4].iter().cloned().collect());
        let position = tail.position();
        assert_eq!((position.seq, position.written_seq, position.revision), (5, 2, 6));
        assert_eq!(tail.unwritten_bytes(), 300);
        let all = KeyRange::From(b"");
        assert_eq!(shown(&tail, all, None), ["k@6"]);
        assert_eq!(shown(&tail, all, Some(4)), ["k@4"]);
        assert_eq!(shown(&tail, all, Some(3)), [""; 0]);
        assert_eq!(tail.since(3), None);
        assert_eq!(tail.since(4).map(|batches| batches.len()), Some(3));
        tail.written(5);
        assert_eq!(shown(&tail, all, None), [""; 0]);
        assert_eq!(tail.unwritten_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "batches are added in the order of the log")]
    fn adding_a_batch_out_of_order_panics() {
        Tail::new(start()).push(&batch(2, &[], 0), -1);
    }
}
