//! The times at which recent writes passed the stages of the log, for the log line that explains a slow write.
//!
//! The driver records when each batch of entries is passed to the log, when it is durable on this member's disk, and
//! when it is known to be committed. All writes of a batch share these three times, which are looked up by the index of
//! a write.
//!
//! # Bound
//!
//! The last [`BATCHES_KEPT`] batches are kept.

use std::collections::VecDeque;
use std::time::Instant;

use quorate_node::Persist;
use quorate_raft::LogIndex;

/// Number of batches kept. The stages of a slow write are read after the write has been applied. By then, the number of
/// newer writes is at most the number that may wait for the applier, and most of these writes share batches.
const BATCHES_KEPT: usize = 4096;

/// The times at which a write passed its stages. A time is absent if the stage has not been reached yet or was skipped
/// on this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stages {
    /// The time at which the write was passed to this member's log.
    pub(crate) appended: Instant,
    /// The time at which the write became durable on this member's disk.
    pub(crate) synced: Option<Instant>,
    /// The time at which the write was known to be committed.
    pub(crate) committed: Option<Instant>,
}

#[derive(Debug)]
struct Batch {
    first: LogIndex,
    token: u64,
    stages: Stages,
}

/// The stages of the last batches.
#[derive(Debug, Default)]
pub(crate) struct WriteStages {
    /// Batches in ascending order of index.
    batches: VecDeque<Batch>,
}

impl WriteStages {
    /// Records that these entries are passed to the log. Drops the times of the entries that they replace.
    pub(crate) fn append(&mut self, persist: &Persist, now: Instant) {
        let Some(first) = persist.entries.first().map(|entry| entry.index) else { return };
        while self.batches.back().is_some_and(|batch| batch.first >= first) {
            self.batches.pop_back();
        }
        if self.batches.len() == BATCHES_KEPT {
            self.batches.pop_front();
        }
        let stages = Stages { appended: now, synced: None, committed: None };
        self.batches.push_back(Batch { first, token: persist.token, stages });
    }

    /// Records that all entries up to this token are durable.
    pub(crate) fn sync(&mut self, token: u64, now: Instant) {
        for batch in self.batches.iter_mut().rev() {
            if batch.stages.synced.is_some() {
                break;
            }
            if batch.token <= token {
                batch.stages.synced = Some(now);
            }
        }
    }

    /// Records that all entries up to this index are committed.
    pub(crate) fn commit(&mut self, last: LogIndex, now: Instant) {
        for batch in self.batches.iter_mut().rev() {
            if batch.stages.committed.is_some() {
                break;
            }
            // If only part of a batch is committed, the commit time of that part is recorded for the whole batch.
            if batch.first <= last {
                batch.stages.committed = Some(now);
            }
        }
    }

    /// Returns the stages of the entry at this index, if they are still kept.
    pub(crate) fn of(&self, index: LogIndex) -> Option<Stages> {
        let after = self.batches.partition_point(|batch| batch.first <= index);
        after.checked_sub(1).map(|position| self.batches[position].stages)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use quorate_raft::{Entry, EntryKind};

    use super::*;

    fn batch(token: u64, first: u64, count: u64) -> Persist {
        let entry = |index| Entry {
            index: LogIndex(index),
            ..Entry::proposal(EntryKind::Normal, Bytes::new())
        };
        let entries = (first..first + count).map(entry).collect();
        Persist { token, entries, ..Persist::default() }
    }

    #[test]
    fn each_write_has_the_timestamps_of_its_batch() {
        let (mut stages, start) = (WriteStages::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        stages.append(&batch(1, 10, 3), at(1));
        stages.append(&batch(2, 13, 1), at(2));
        stages.append(&batch(3, 14, 2), at(3));
        stages.sync(2, at(4));
        stages.commit(LogIndex(12), at(5));
        stages.commit(LogIndex(13), at(6));
        let marks = |appended, synced: Option<u64>, committed: Option<u64>| Stages {
            appended: at(appended),
            synced: synced.map(at),
            committed: committed.map(at),
        };
        assert_eq!(stages.of(LogIndex(9)), None);
        for index in 10..13 {
            assert_eq!(stages.of(LogIndex(index)), Some(marks(1, Some(4), Some(5))));
        }
        assert_eq!(stages.of(LogIndex(13)), Some(marks(2, Some(4), Some(6))));
        assert_eq!(stages.of(LogIndex(15)), Some(marks(3, None, None)));
    }

    #[test]
    fn stages_of_replaced_entries_are_dropped() {
        let (mut stages, start) = (WriteStages::default(), Instant::now());
        let later = start + Duration::from_millis(1);
        stages.append(&batch(1, 10, 1), start);
        stages.append(&batch(2, 11, 5), start);
        stages.append(&batch(3, 11, 1), later);
        assert_eq!(stages.of(LogIndex(11)).map(|stages| stages.appended), Some(later));
        assert_eq!(stages.of(LogIndex(10)).map(|stages| stages.appended), Some(start));
    }

    #[test]
    fn the_stages_of_the_oldest_batch_are_dropped_at_the_limit() {
        let (mut stages, now) = (WriteStages::default(), Instant::now());
        for index in 0..=BATCHES_KEPT as u64 {
            stages.append(&batch(index, index, 1), now);
        }
        assert_eq!(stages.of(LogIndex(0)), None);
        assert!(stages.of(LogIndex(1)).is_some());
    }
}
