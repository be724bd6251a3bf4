//! Compaction: finds and deletes superseded records without visiting the remaining records.
//!
//! The garbage of a compaction at revision R has two parts. The changes that were superseded at or
//! below R are at the front of the history. The tombstones below R are at the front of a queue in
//! this module. As in etcd, a tombstone at R itself stays until the next compaction.
//!
//! The work is divided into steps. First, the garbage is collected in sorted runs. Then the runs
//! are merged and deleted from the file in revision order, which is the order of its pages.
//!
//! # Invariants
//!
//! * A garbage record is deleted only after all older garbage records. After an interrupted
//!   compaction, the file therefore never shows a deleted key as live or an old value as the
//!   newest.
//! * Compactions run one after another.
//!
//! # Not here
//!
//! Scheduling the steps (`core::state_machine`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::history::History;
use super::tree::Tree;
use crate::backend::Batch;
use crate::schema::{RecordKey, Revision, meta};

/// The number of garbage records in a sorted run.
const RUN_LEN: usize = 8192;
/// The number of superseded changes whose collection costs as much as the deletion of one record.
const GATHER_FACTOR: usize = 16;

/// The result of one step of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GarbageStep {
    /// The number of records whose deletion was added to the batch.
    pub deleted_count: usize,
    /// The revision of the compaction that the batch completes.
    pub finished: Option<i64>,
    /// Whether more steps remain.
    pub more: bool,
}

/// The accepted compactions, and the tombstones that later compactions delete.
#[derive(Debug, Default)]
pub(super) struct Compactor {
    pub(super) tombstones: TombstoneQueue,
    jobs: VecDeque<Job>,
}

#[derive(Debug)]
struct Job {
    revision: i64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Gather { runs: Vec<Vec<RecordKey>> },
    Delete { runs: BinaryHeap<Reverse<Run>> },
}

/// A sorted run of garbage. The record `next` is deleted first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    next: RecordKey,
    /// The other records of the run, in descending order. They are taken from the end.
    rest: Vec<RecordKey>,
}

impl Compactor {
    pub(super) fn new(tombstones: TombstoneQueue) -> Self {
        Self { tombstones, jobs: VecDeque::new() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn schedule(&mut self, revision: i64) {
        assert!(
            self.jobs.back().is_none_or(|last| last.revision < revision),
            "compactions are accepted in revision order: otherwise a compaction would look for removed records"
        );
        self.jobs.push_back(Job { revision, stage: Stage::Gather { runs: Vec::new() } });
    }

    /// Runs one step of the oldest compaction.
    pub(super) fn step(
        &mut self,
        tree: &mut Tree,
        history: &mut History,
        count_max: usize,
        batch: &mut Batch,
    ) -> GarbageStep {
        let Some(job) = self.jobs.front_mut() else { return GarbageStep::default() };
        let revision = job.revision;
        let mut step = GarbageStep { more: true, ..GarbageStep::default() };
        if let Stage::Gather { runs } = &mut job.stage {
            let mut gather = Gather { runs, revision, tree, history };
            if !gather.step(&mut self.tombstones, count_max.saturating_mul(GATHER_FACTOR)) {
                return step;
            }
            if let Some(last) = runs.last_mut().filter(|last| last.len() < RUN_LEN) {
                sort_run(last);
            }
            let runs = std::mem::take(runs).into_iter().filter_map(Run::new).map(Reverse).collect();
            job.stage = Stage::Delete { runs };
        }
        if let Stage::Delete { runs } = &mut job.stage {
            while step.deleted_count < count_max
                && let Some(mut run) = runs.peek_mut()
            {
                let due = run.0.next.revision.main <= revision;
                assert!(
                    due,
                    "a compaction deletes nothing beyond its revision: clients may still read later revisions"
                );
                batch.delete_record(run.0.next);
                step.deleted_count += 1;
                match run.0.rest.pop() {
                    Some(next) => run.0.next = next,
                    None => drop(std::collections::binary_heap::PeekMut::pop(run)),
                }
            }
            if runs.is_empty() {
                batch.put_compaction(meta::FINISHED_COMPACTION, revision);
                step.finished = Some(revision);
                self.jobs.pop_front();
                step.more = !self.jobs.is_empty();
            }
        }
        step
    }
}

struct Gather<'a> {
    runs: &'a mut Vec<Vec<RecordKey>>,
    revision: i64,
    tree: &'a mut Tree,
    history: &'a mut History,
}

impl Gather<'_> {
    /// Collects some of the garbage. Returns whether all garbage of the compaction is collected.
    fn step(&mut self, tombstones: &mut TombstoneQueue, count_max: usize) -> bool {
        let mut cost = 0;
        while cost < count_max {
            if let Some(front) =
                self.history.front().filter(|front| front.superseded_by <= self.revision)
            {
                // Tombstones are collected from their own queue, because a tombstone at the
                // compacted revision itself stays.
                if !front.tombstone {
                    self.push(RecordKey { revision: front.revision(), tombstone: false });
                }
                self.history.pop_front();
                cost += 1;
            } else if let Some((revision, key)) =
                tombstones.front().filter(|(revision, _)| revision.main < self.revision)
            {
                self.tree.remove(key, |entry| entry.tombstone && entry.revision() == revision);
                self.push(RecordKey { revision, tombstone: true });
                tombstones.pop_front();
                // Removing the key from the index costs as much as any other change to the tree.
                cost += GATHER_FACTOR;
            } else {
                return true;
            }
        }
        false
    }

    fn push(&mut self, key: RecordKey) {
        match self.runs.last_mut() {
            Some(run) if run.len() < RUN_LEN => {
                run.push(key);
                if run.len() == RUN_LEN {
                    sort_run(run);
                }
            }
            Some(_) | None => self.runs.push(vec![key]),
        }
    }
}

impl Run {
    fn new(mut garbage: Vec<RecordKey>) -> Option<Self> {
        Some(Self { next: garbage.pop()?, rest: garbage })
    }
}

/// Sorts a run in descending order, because records are taken from its end.
fn sort_run(run: &mut [RecordKey]) {
    run.sort_unstable_by(|a, b| b.cmp(a));
}

/// Tombstones in revision order, each with its key.
#[derive(Debug, Default)]
pub(super) struct TombstoneQueue {
    segments: VecDeque<TombstoneSegment>,
}

#[derive(Debug, Default)]
struct TombstoneSegment {
    keys: Vec<u8>,
    /// Each tombstone, with the position at which its key ends.
    tombstones: Vec<(Revision, usize)>,
    /// The number of tombstones already taken from the front.
    taken: usize,
}

impl TombstoneQueue {
    const SEGMENT_LEN: usize = 1024;

    pub(super) fn push(&mut self, revision: Revision, key: &[u8]) {
        let full =
            self.segments.back().is_none_or(|back| back.tombstones.len() == Self::SEGMENT_LEN);
        if full {
            self.segments.push_back(TombstoneSegment::default());
        }
        let back = self.segments.back_mut().expect("a segment was just added");
        back.keys.extend_from_slice(key);
        back.tombstones.push((revision, back.keys.len()));
    }

    fn front(&self) -> Option<(Revision, &[u8])> {
        let segment = self.segments.front()?;
        let (revision, end) = *segment.tombstones.get(segment.taken)?;
        let start = segment.taken.checked_sub(1).map_or(0, |before| segment.tombstones[before].1);
        Some((revision, &segment.keys[start..end]))
    }

    fn pop_front(&mut self) {
        if let Some(segment) = self.segments.front_mut() {
            segment.taken += 1;
            if segment.taken == segment.tombstones.len() {
                self.segments.pop_front();
            }
        }
    }
}
