//! Loads the keys that requests need into the sequencer's working set.
//!
//! # Invariants
//!
//! * The tail is consulted before the tables. A change that reaches the tables in between is then
//!   found in the tail, and one that left the tail before is found in the tables.
//! * The sequencer is the only writer, so a loaded key stays current for the life of its working set.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_state::mvcc::{KeyRange, LoadedVersion, Store, StoredVersion};
use quorate_state::schema::{RecordKey, Revision};
use tokio_postgres::Row;

use crate::database::{DatabaseFault, Session, Statement};
use crate::error::EngineError;
use crate::needs::{Level, Needs, Span};
use crate::reader::bounds;
use crate::tail::Tail;

/// The maximum memory of the keys that one batch of requests needs.
pub(crate) const LOAD_BYTES_MAX: usize = 512 << 20;

/// Loads everything that is needed.
pub(crate) async fn load(
    needs: &Needs,
    tail: &Tail,
    session: &Session,
    store: &mut Store,
) -> Result<(), EngineError> {
    for span in &needs.histories {
        load_history(span, tail, session, store).await?;
        check_size(store)?;
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
    if !facts.is_empty() {
        let rows = session.read(Statement::NewestFacts, &[&facts]).await?;
        rows.iter().try_for_each(|row| load_facts(row, store))?;
    }
    if !whole.is_empty() {
        let rows = session.read(Statement::NewestWhole, &[&whole]).await?;
        rows.iter().try_for_each(|row| load_whole(row, store))?;
    }
    for (span, level) in &needs.spans {
        load_span(span, *level, tail, session, store).await?;
        check_size(store)?;
    }
    Ok(())
}

async fn load_span(
    span: &Span,
    level: Level,
    tail: &Tail,
    session: &Session,
    store: &mut Store,
) -> Result<(), EngineError> {
    let (overlaid, _) = tail.overlay(span.range(), None);
    let (from, to, end) = bounds(span.range());
    let statement = match level {
        Level::Facts => Statement::NewestFactsIn(end),
        Level::Whole => Statement::NewestWholeIn(end),
    };
    let rows = session.read(statement, &[&from, &to]).await?;
    let overlaid: BTreeMap<Bytes, _> =
        overlaid.into_iter().map(|overlaid| (overlaid.key, overlaid.live)).collect();
    for (modified, record) in overlaid.values().flatten() {
        add(LoadedVersion::Whole { modified: *modified, record }, store)?;
    }
    for row in &rows {
        match level {
            Level::Facts if overlaid.contains_key(row.get::<_, &[u8]>(0)) => {}
            Level::Facts => load_facts(row, store)?,
            Level::Whole => {
                let record = Bytes::copy_from_slice(row.get(2));
                let key = quorate_api::record::Fields::decode(&record).unwrap_or_default().key;
                if !overlaid.contains_key(key) {
                    load_whole(row, store)?;
                }
            }
        }
    }
    Ok(())
}

/// Loads all versions of the keys of a range, including those that are only in the tail.
async fn load_history(
    span: &Span,
    tail: &Tail,
    session: &Session,
    store: &mut Store,
) -> Result<(), DatabaseFault> {
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
    let rows = session.read(Statement::VersionsIn(end), &[&from, &to]).await?;
    let mut keys: BTreeMap<Bytes, BTreeMap<Revision, StoredVersion>> = BTreeMap::new();
    let mut add_version = |key: Bytes, version: StoredVersion| {
        keys.entry(key).or_default().insert(version.at.revision, version);
    };
    for row in &rows {
        let revision = Revision::new(row.get(0), row.get(1));
        let record = Bytes::copy_from_slice(row.get(3));
        let fields = quorate_api::record::Fields::decode(&record).unwrap_or_default();
        let key = record.slice_ref(fields.key);
        add_version(
            key,
            StoredVersion { at: RecordKey { revision, tombstone: row.get(2) }, record },
        );
    }
    let records = unwritten.iter().flat_map(|batch| &batch.records);
    for record in records.filter(|record| range.range().contains(&record.key)) {
        let version = StoredVersion { at: record.at, record: record.record.clone() };
        add_version(record.key.clone(), version);
    }
    for versions in keys.into_values() {
        let versions: Vec<_> = versions.into_values().collect();
        store.load_history(&versions);
    }
    Ok(())
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

/// Adds a version to the working set. A version that is newer than the working set was written by another sequencer, so
/// this term is over.
fn add(version: LoadedVersion<'_>, store: &mut Store) -> Result<(), EngineError> {
    let (LoadedVersion::Whole { modified, .. } | LoadedVersion::Facts { modified, .. }) = version;
    if modified.main > store.current_revision() {
        return Err(EngineError::SequencerChanged);
    }
    store.load(version);
    Ok(())
}

fn check_size(store: &Store) -> Result<(), EngineError> {
    let bytes = store.working_set_bytes();
    if bytes <= LOAD_BYTES_MAX {
        return Ok(());
    }
    Err(EngineError::TooLarge { bytes, bytes_max: LOAD_BYTES_MAX })
}

#[cfg(test)]
mod tests {
    use quorate_state::mvcc::StoreOptions;

    use super::*;

    #[test]
    fn a_version_of_a_later_sequencer_ends_the_term() {
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
