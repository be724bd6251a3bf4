//! The window: the newest records, which are kept in memory in revision order.
//!
//! Records are packed in buffers of about 64 KiB and returned as slices of these buffers. A chunk is a fixed-size table
//! of such slices. The applier fills the newest chunk while readers use the part that was filled before their view was
//! published. Publishing therefore only clones two references, however many records were written. The oldest chunks are
//! dropped when the window exceeds its budget, except chunks with records that are not in the file yet.
//!
//! # Invariants
//!
//! * Within a chunk, main revisions are consecutive.
//! * Every record written since the file's last commit is in the window.
//!
//! # Not here
//!
//! Records that were dropped from memory, which `records` reads from the file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use quorate_api::record::Fields;

use super::buffer::RecordBuffer;
use crate::schema::Revision;

/// The maximum number of records in one chunk.
const CHUNK_LEN: usize = 1024;
/// A chunk with this many bytes is sealed early.
const CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug)]
struct Chunk {
    records: Box<[OnceLock<Bytes>]>,
    /// The position of the first record of each main revision, beginning with the chunk's first
    /// revision.
    starts: Box<[AtomicU32]>,
}

/// A chunk, and the number of its records that may be read.
#[derive(Clone, Debug)]
struct Part {
    first: Revision,
    last_main: i64,
    filled: usize,
    chunk: Arc<Chunk>,
}

/// A reader's view of the window.
#[derive(Clone, Debug)]
pub(super) struct WindowView {
    sealed: Arc<Vec<Part>>,
    active: Option<Part>,
}

/// The applier's window, to which records are added.
#[derive(Debug)]
pub(super) struct Window {
    view: WindowView,
    buffer: RecordBuffer,
    active_bytes: usize,
    /// Bytes of each sealed chunk, oldest first.
    sealed_bytes: std::collections::VecDeque<usize>,
    byte_count: usize,
    bytes_max: usize,
}

impl Chunk {
    fn new() -> Self {
        Self {
            records: (0..CHUNK_LEN).map(|_| OnceLock::new()).collect(),
            starts: (0..CHUNK_LEN).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl Part {
    /// Returns the position of the first record of main revision `main`.
    fn start(&self, main: i64) -> Option<usize> {
        let relative = usize::try_from(main.checked_sub(self.first.main)?).ok()?;
        let start = self.chunk.starts.get(relative)?.load(Ordering::Relaxed);
        (main <= self.last_main).then_some(start as usize)
    }

    /// Returns the sub revision of the first record of `main`.
    fn first_sub(&self, main: i64) -> i64 {
        if main == self.first.main { self.first.sub } else { 0 }
    }

    /// Returns whether every main revision of the part has exactly one record.
    fn is_plain(&self) -> bool {
        self.first.sub == 0
            && self.first.main.wrapping_add_unsigned(self.filled as u64) == self.last_main + 1
    }

    fn record(&self, revision: Revision) -> Option<&Bytes> {
        if self.is_plain() {
            // With one record for each revision, the lookup need not read `starts`, which is rarely in a CPU cache.
            let position = usize::try_from(revision.main - self.first.main).ok()?;
            let found = revision.sub == 0 && position < self.filled;
            return if found { self.chunk.records[position].get() } else { None };
        }
        let start = self.start(revision.main)?;
        let offset = revision.sub.checked_sub(self.first_sub(revision.main))?;
        let position = start.checked_add(usize::try_from(offset).ok()?)?;
        let end = self.start(revision.main + 1).unwrap_or(self.filled);
        if position >= end {
            return None;
        }
        self.chunk.records[position].get()
    }

    /// Visits the records of `main` in this part.
    fn records_of(&self, main: i64) -> impl Iterator<Item = (Revision, &Bytes)> {
        let start = self.start(main).unwrap_or(self.filled);
        let end = self.start(main + 1).unwrap_or(self.filled);
        let first_sub = self.first_sub(main);
        self.chunk.records[start..end].iter().zip(first_sub..).map(move |(record, sub)| {
            let record =
                record.get().expect("the records of a view are set before the view is published");
            (Revision::new(main, sub), record)
        })
    }
}

impl WindowView {
    /// Returns a record by its revision, if it is in the window.
    pub(super) fn record(&self, revision: Revision) -> Option<&Bytes> {
        let part = match &self.active {
            Some(active) if active.first <= revision => active,
            _ => self.sealed_part(revision)?,
        };
        part.record(revision)
    }

    /// Returns the last sealed part that begins at or below a revision.
    fn sealed_part(&self, revision: Revision) -> Option<&Part> {
        // Parts span similar numbers of revisions, so an interpolated guess is usually right.
        let (first, last) = (self.sealed.first()?, self.sealed.last()?);
        let span = last.last_main - first.first.main + 1;
        let offset = revision.main.checked_sub(first.first.main)?.clamp(0, span - 1);
        let guess =
            usize::try_from(i128::from(offset) * self.sealed.len() as i128 / i128::from(span));
        let guess = guess.unwrap_or(0);
        let holds = |at: usize| {
            self.sealed.get(at).is_some_and(|part| part.first <= revision)
                && self.sealed.get(at + 1).is_none_or(|next| revision < next.first)
        };
        if holds(guess) {
            return self.sealed.get(guess);
        }
        let behind = self.sealed.partition_point(|part| part.first <= revision);
        self.sealed.get(behind.checked_sub(1)?)
    }

    /// Returns the oldest main revision whose records are all in the window.
    pub(super) fn first_main(&self) -> Option<i64> {
        let oldest = self.sealed.first().or(self.active.as_ref())?;
        Some(oldest.first.main + i64::from(oldest.first.sub > 0))
    }

    /// Returns the records from main revision `from` on that are in the window, in order.
    pub(super) fn since(&self, from: i64) -> impl Iterator<Item = (Revision, &Bytes)> {
        let behind = self.sealed.partition_point(|part| part.last_main < from);
        self.sealed[behind..]
            .iter()
            .chain(&self.active)
            .flat_map(move |part| {
                (part.first.main.max(from)..=part.last_main).map(move |main| (part, main))
            })
            .flat_map(|(part, main)| part.records_of(main))
    }
}

impl Window {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            view: WindowView { sealed: Arc::default(), active: None },
            buffer: RecordBuffer::default(),
            active_bytes: 0,
            sealed_bytes: std::collections::VecDeque::new(),
            byte_count: 0,
            bytes_max,
        }
    }

    pub(super) const fn view(&self) -> &WindowView {
        &self.view
    }

    /// Returns the total size of the records in the window, in bytes.
    pub(super) const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Encodes and adds a record.
    pub(super) fn append(&mut self, revision: Revision, fields: &Fields<'_>) -> Bytes {
        let record = self.buffer.encode(fields);
        self.keep(revision, record.clone());
        record
    }

    /// Adds a copy of an encoded record.
    pub(super) fn append_encoded(&mut self, revision: Revision, record: &[u8]) {
        let record = self.buffer.copy(record);
        self.keep(revision, record);
    }

    /// Adds a record. Revisions must be in ascending order.
    fn keep(&mut self, revision: Revision, record: Bytes) {
        let full = self.view.active.as_ref().is_some_and(|active| {
            active.filled == CHUNK_LEN
                || self.active_bytes >= CHUNK_BYTES
                || revision.main - active.last_main > 1
        });
        if full {
            self.seal();
        }
        let active = self.view.active.get_or_insert_with(|| Part {
            first: revision,
            last_main: revision.main,
            filled: 0,
            chunk: Arc::new(Chunk::new()),
        });
        if revision.main != active.last_main {
            active.last_main = revision.main;
            let relative = usize::try_from(revision.main - active.first.main)
                .expect("a chunk's main revisions are consecutive");
            let start =
                u32::try_from(active.filled).expect("the length of a chunk fits in 32 bits");
            active.chunk.starts[relative].store(start, Ordering::Relaxed);
        }
        assert!(
            active.filled < CHUNK_LEN,
            "a full chunk is sealed before the next record: otherwise the record could not be read before its commit"
        );
        let size = record.len() + size_of::<OnceLock<Bytes>>();
        self.active_bytes += size;
        self.byte_count += size;
        active.chunk.records[active.filled].set(record).expect("each position is set only once");
        active.filled += 1;
    }

    /// Drops the oldest chunks until the budget is met, but only chunks whose records are all in
    /// the file.
    pub(super) fn trim(&mut self, persisted: i64) {
        let mut spare = 0;
        while self.byte_count > self.bytes_max
            && self.view.sealed.get(spare).is_some_and(|part| part.last_main <= persisted)
        {
            let oldest =
                self.sealed_bytes.pop_front().expect("every sealed chunk has a recorded size");
            self.byte_count -= oldest;
            spare += 1;
        }
        if spare > 0 {
            Arc::make_mut(&mut self.view.sealed).drain(..spare);
        }
        assert!(
            !self.view.sealed.is_empty() || self.byte_count == self.active_bytes,
            "bytes are counted only for existing chunks: otherwise every new chunk would be dropped immediately"
        );
    }

    fn seal(&mut self) {
        if let Some(part) = self.view.active.take() {
            Arc::make_mut(&mut self.view.sealed).push(part);
            self.sealed_bytes.push_back(std::mem::take(&mut self.active_bytes));
        }
        assert_eq!(
            self.sealed_bytes.len(),
            self.view.sealed.len(),
            "every sealed chunk has a recorded size: otherwise the window would drop records although it is within its budget"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window_of(mains: impl IntoIterator<Item = (i64, i64)>, bytes_max: usize) -> Window {
        let mut window = Window::new(bytes_max);
        for (main, subs) in mains {
            for sub in 0..subs {
                let key = format!("{main}/{sub}");
                let fields = Fields { key: key.as_bytes(), ..Fields::default() };
                window.append(Revision::new(main, sub), &fields);
            }
        }
        window
    }

    fn names<'a>(records: impl Iterator<Item = (Revision, &'a Bytes)>) -> Vec<(String, String)> {
        let key = |record: &Bytes| String::from_utf8(record[2..].to_vec()).unwrap();
        records.map(|(revision, record)| (revision.to_string(), key(record))).collect()
    }

    #[test]
    fn records_are_found_by_revision_across_chunks() {
        // The window has entries with one or several changes, an entry that is longer than two chunks, and a gap
        // between revisions.
        let mains = [(2, 3), (3, 1), (4, 3000), (5, 1), (9, 2)];
        let window = window_of(mains, usize::MAX);
        for (main, subs) in mains {
            for sub in 0..subs {
                let revision = Revision::new(main, sub);
                let found = window.view().record(revision).unwrap();
                assert_eq!(&found[2..], revision.to_string().as_bytes());
            }
            assert_eq!(
                window.view().record(Revision::new(main, subs)).map(|found| &found[2..]),
                None
            );
        }
        for absent in [0, 1, 6, 8, 10] {
            assert_eq!(window.view().record(Revision::new(absent, 0)), None, "{absent}");
        }
        let all = names(window.view().since(0));
        assert_eq!(all.len(), 3007);
        assert!(all.iter().all(|(revision, key)| revision == key));
        assert_eq!(names(window.view().since(5)).len(), 3);
        assert_eq!(names(window.view().since(6)).len(), 2);
        assert_eq!(names(window.view().since(10)).len(), 0);
    }

    #[test]
    fn a_view_does_not_contain_records_added_after_its_creation() {
        let mut window = window_of([(2, 1), (3, 1)], usize::MAX);
        let held = window.view().clone();
        for main in 4..4000 {
            window.append(Revision::new(main, 0), &Fields { key: b"later", ..Fields::default() });
        }
        assert_eq!(names(held.since(0)).len(), 2);
        assert_eq!(held.record(Revision::new(4, 0)), None);
    }

    #[test]
    fn records_not_yet_in_the_backend_file_stay_in_memory() {
        let mut window = window_of((2..5000).map(|main| (main, 1)), 1);
        window.trim(1);
        assert_eq!(window.view().first_main(), Some(2));
        window.trim(2 + 1024);
        assert_eq!(window.view().first_main(), Some(2 + 1024));
        window.trim(5000);
        let first = window.view().first_main().unwrap();
        assert!(
            (4000..5000).contains(&first),
            "only the newest chunk stays, but the oldest record is at revision {first}"
        );
        assert_eq!(names(window.view().since(0)).len(), usize::try_from(5000 - first).unwrap());
    }
}
