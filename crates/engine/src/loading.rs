//! Loads the keys that requests need into the sequencer's working set.
//!
//! # Invariants
//!
//! * The tail is read before the tables. A change that is written to the tables between the two reads
//!   has been found in the tail, and a change that had already left the tail is found in the tables.
//! * The sequencer is the only writer, so a loaded key stays current for the lifetime of the working
//!   set.
//! * Keys are loaded in pages, and loading stops after the page that exceeds the limit on their memory.
//!   So a request that needs too many keys exceeds the limit by one page at most, however large the
//!   keyspace is.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_api::record::Fields;
use quorate_state::mvcc::{KeyRange, LoadedVersion, Store, StoredVersion};
use quorate_state::schema::{RecordKey, Revision};
use tokio_postgres::Row;

use crate::database::{DatabaseFault, Session, Statement};
use crate::error::EngineError;
use crate::needs::{Level, Needs, Span};
use crate::reader::bounds;
use crate::tail::Tail;

/// Maximum memory for the keys and values that one batch of requests needs, in bytes.
pub(crate) const LOAD_BYTES_MAX: usize = 512 << 20;
/// Target size of a page in bytes.
const PAGE_BYTES: usize = 8 << 20;
/// Number of rows of the first page. It is small, because the length of the values is not known yet.
const PAGE_ROWS_FIRST: usize = 32;
/// The maximum number of rows of a page.
const PAGE_ROWS_MAX: usize = 16_384;
/// Maximum factor by which the number of rows grows from one page to the next.
const PAGE_GROWTH_MAX: usize = 8;

/// The number of rows of the next page, which depends on the size of the previous page.
#[derive(Clone, Copy, Debug)]
struct PageRows(usize);

impl PageRows {
    const fn first() -> Self {
        Self(PAGE_ROWS_FIRST)
    }

    fn limit(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// Returns whether a page with `row_count` rows is the last page of a range.
    const fn is_last(self, row_count: usize) -> bool {
        row_count < self.0
    }

    /// Chooses the number of rows of the next page, after a full page of `bytes` bytes.
    fn adapt(&mut self, bytes: usize) {
        let row_bytes = (bytes / self.0).max(1);
        let most = self.0.saturating_mul(PAGE_GROWTH_MAX).min(PAGE_ROWS_MAX);
        self.0 = (PAGE_BYTES / row_bytes).clamp(1, most);
    }
}

/// Loads keys into the working set of a term.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loader<'a> {
    pub(crate) tail: &'a Tail,
    pub(crate) session: &'a Session,
    /// The maximum memory of a working set, in bytes.
    pub(crate) bytes_max: usize,
}

impl Loader<'_> {
    /// Loads all keys and ranges in `needs`.
    pub(crate) async fn load(self, needs: &Needs, store: &mut Store) -> Result<(), EngineError> {
        let Self { tail, session, .. } = self;
        for span in &needs.histories {
            self.load_history(span, store).await?;
            self.check_size(store)?;
        }
        let mut facts = Vec::new();
        let mut whole = Vec::new();
        for (key, level) in &needs.keys {
            let (overlaid, _) = tail.overlay(KeyRange::One(key), None);
            match overlaid.into_iter().next() {
                Some(found) => {
                    if let Some((modified, record)) = &found.live {
                        add(LoadedVersion::Whole { modified: *modified, record }, store)?;
                    }
                }
                None if *level == Level::Whole => whole.push(&key[..]),
                None => facts.push(&key[..]),
            }
        }
        for keys in facts.chunks(PAGE_ROWS_MAX) {
            let rows = session.read(Statement::NewestFacts, &[&keys]).await?;
            rows.iter().try_for_each(|row| load_facts(row, store))?;
            self.check_size(store)?;
        }
        let (mut rest, mut page) = (&whole[..], PageRows::first());
        while !rest.is_empty() {
            let (keys, later) = rest.split_at(page.0.min(rest.len()));
            let rows = session.read(Statement::NewestWhole, &[&keys]).await?;
            rows.iter().try_for_each(|row| load_whole(row, store))?;
            self.check_size(store)?;
            page.adapt(rows.iter().map(|row| row.get::<_, &[u8]>(2).len()).sum());
            rest = later;
        }
        for (span, level) in &needs.spans {
            self.load_span(span, *level, store).await?;
        }
        Ok(())
    }

    async fn load_span(
        self,
        span: &Span,
        level: Level,
        store: &mut Store,
    ) -> Result<(), EngineError> {
        let Self { tail, session, .. } = self;
        let (overlaid, _) = tail.overlay(span.range(), None);
        let (from, to, end) = bounds(span.range());
        let statement = match level {
            Level::Facts => Statement::NewestFactsIn(end),
            Level::Whole => Statement::NewestWholeIn(end),
        };
        let overlaid: BTreeMap<Bytes, _> =
            overlaid.into_iter().map(|overlaid| (overlaid.key, overlaid.live)).collect();
        for (modified, record) in overlaid.values().flatten() {
            add(LoadedVersion::Whole { modified: *modified, record }, store)?;
        }
        let (mut from, mut page) = (from.to_vec(), PageRows::first());
        loop {
            let rows = session.read(statement, &[&from, &to, &page.limit()]).await?;
            let mut bytes = 0;
            for row in &rows {
                let content: &[u8] = row.get(if level == Level::Facts { 0 } else { 2 });
                bytes += content.len();
                let key = match level {
                    Level::Facts => content,
                    Level::Whole => key_of(content, "newest")?,
                };
                if key < &from[..] {
                    let problem = "a record has another key than its row".to_owned();
                    return Err(DatabaseFault::Content { table: "newest", problem }.into());
                }
                if !overlaid.contains_key(key) {
                    match level {
                        Level::Facts => load_facts(row, store)?,
                        Level::Whole => load_whole(row, store)?,
                    }
                }
                from.clear();
                from.extend_from_slice(key);
            }
            self.check_size(store)?;
            if page.is_last(rows.len()) {
                return Ok(());
            }
            // The next page begins with the lowest key above the last key of this page.
            from.push(0);
            page.adapt(bytes);
        }
    }

    /// Loads all versions of the keys of a range, including versions that are only in the tail.
    async fn load_history(self, span: &Span, store: &mut Store) -> Result<(), EngineError> {
        let Self { tail, session, bytes_max } = self;
        let unwritten = tail.unwritten(usize::MAX);
        let range = span.range();
        let range = match range {
            KeyRange::One(key) => {
                let mut end = key.to_vec();
                end.push(0);
                Span { key: span.key.clone(), range_end: end.into() }
            }
            KeyRange::Between(..) | KeyRange::From(_) => span.clone(),
        };
        let (from, to, end) = bounds(range.range());
        let mut keys: BTreeMap<Bytes, BTreeMap<Revision, StoredVersion>> = BTreeMap::new();
        let mut add_version = |key: Bytes, version: StoredVersion| {
            keys.entry(key).or_default().insert(version.at.revision, version);
        };
        let (mut last, mut page, mut total) =
            ((from.to_vec(), Revision::new(-1, -1)), PageRows::first(), 0);
        loop {
            let (key, Revision { main, sub }) = &last;
            let rows = session
                .read(Statement::VersionsIn(end), &[&from, &to, key, main, sub, &page.limit()])
                .await?;
            let mut bytes = 0;
            for row in &rows {
                let revision = Revision::new(row.get(0), row.get(1));
                let record = Bytes::copy_from_slice(row.get(3));
                let key = record.slice_ref(key_of(&record, "versions")?);
                bytes += record.len();
                last = (key.to_vec(), revision);
                let at = RecordKey { revision, tombstone: row.get(2) };
                add_version(key, StoredVersion { at, record });
            }
            total += bytes;
            if total > bytes_max {
                return Err(EngineError::TooLarge { bytes: total, bytes_max });
            }
            if page.is_last(rows.len()) {
                break;
            }
            page.adapt(bytes);
        }
        let records = unwritten.iter().flat_map(|batch| &batch.records);
        for record in records.filter(|record| range.range().contains(&record.key)) {
            let version = StoredVersion { at: record.at, record: record.record.clone() };
            add_version(record.key.clone(), version);
        }
        for versions in keys.into_values() {
            let versions: Vec<_> = versions.into_values().collect();
            check_history(&versions, store.current_revision())?;
            store.load_history(&versions);
        }
        Ok(())
    }

    fn check_size(self, store: &Store) -> Result<(), EngineError> {
        let (bytes, bytes_max) = (store.working_set_bytes(), self.bytes_max);
        if bytes <= bytes_max { Ok(()) } else { Err(EngineError::TooLarge { bytes, bytes_max }) }
    }
}

/// Checks that the versions of a key, in ascending order, do not include one that another sequencer has written: this
/// server is not the sequencer any more if the database contains later revisions than its own.
fn check_history(versions: &[StoredVersion], current: i64) -> Result<(), EngineError> {
    let is_later = |last: &StoredVersion| last.at.revision.main > current;
    if versions.last().is_some_and(is_later) { Err(EngineError::SequencerChanged) } else { Ok(()) }
}

/// Returns the key that a record of a table contains.
fn key_of<'a>(record: &'a [u8], table: &'static str) -> Result<&'a [u8], EngineError> {
    let fields = Fields::decode(record).ok_or_else(|| DatabaseFault::Content {
        table,
        problem: "a record is invalid".to_owned(),
    })?;
    Ok(fields.key)
}

fn load_facts(row: &Row, store: &mut Store) -> Result<(), EngineError> {
    let facts = LoadedVersion::Facts {
        key: row.get(0),
        modified: Revision::new(row.get(1), row.get(2)),
        create_revision: row.get(3),
        version: row.get(4),
    };
    add(facts, store)
}

fn load_whole(row: &Row, store: &mut Store) -> Result<(), EngineError> {
    let record = Bytes::copy_from_slice(row.get(2));
    let modified = Revision::new(row.get(0), row.get(1));
    add(LoadedVersion::Whole { modified, record: &record }, store)
}

/// Adds a version to the working set. A version that is newer than the revision of the working set was
/// written by another sequencer, so the term of this server has ended.
fn add(version: LoadedVersion<'_>, store: &mut Store) -> Result<(), EngineError> {
    let (LoadedVersion::Whole { modified, .. } | LoadedVersion::Facts { modified, .. }) = version;
    if modified.main > store.current_revision() {
        return Err(EngineError::SequencerChanged);
    }
    store.load(version);
    Ok(())
}

#[cfg(test)]
mod tests {
    use quorate_state::mvcc::StoreOptions;

    use super::*;

    #[test]
    fn versions_that_a_later_sequencer_has_written_are_not_loaded() {
        let version = |main, tombstone| StoredVersion {
            at: RecordKey { revision: Revision::new(main, 0), tombstone },
            record: Bytes::new(),
        };
        let versions = [version(3, false), version(6, true)];
        assert!(check_history(&versions, 6).is_ok());
        let refused = check_history(&versions, 5);
        assert!(matches!(refused, Err(EngineError::SequencerChanged)), "{refused:?}");
    }

    #[test]
    fn pages_of_long_records_have_few_rows() {
        let mut page = PageRows::first();
        page.adapt(PAGE_ROWS_FIRST * 100);
        assert_eq!(page.limit(), 256);
        page.adapt(256 * 100);
        page.adapt(2_048 * 100);
        assert_eq!(page.limit(), 16_384);
        page.adapt(16_384 * (1 << 20));
        assert_eq!(page.limit(), 8);
        page.adapt(8 * (64 << 20));
        assert_eq!(page.limit(), 1);
        assert!(page.is_last(0) && !page.is_last(1));
    }

    #[test]
    fn loading_a_version_written_by_a_later_sequencer_ends_the_term() {
        let mut store = Store::working_set(5, -1, StoreOptions::default());
        let version = |main| LoadedVersion::Facts {
            key: b"k",
            modified: Revision::new(main, 0),
            create_revision: 1,
            version: 1,
        };
        add(version(5), &mut store).unwrap();
        assert!(matches!(add(version(6), &mut store), Err(EngineError::SequencerChanged)));
    }
}
