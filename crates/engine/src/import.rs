//! Fills an empty keyspace from a snapshot of an etcd or Quorate member.
//!
//! The newest versions of all keys are imported, with their revisions, and everything but the members
//! and versions of the cluster. Older versions are not, because the log cannot contain them, so the
//! keyspace is compacted at the revision of the snapshot.
//!
//! # Invariants
//!
//! * A keyspace whose import was interrupted cannot be used by a server. The import can be repeated.
//! * A keyspace that was used by a server is never changed.

use bytes::Bytes;
use quorate_api::record::KeyValue;
use quorate_state::backend::{Backend, Batch, BatchChange, Rows};
use quorate_state::lease::LeaseRecord;
use quorate_state::mvcc::{RangeQuery, Store, StoreOptions, View};
use quorate_state::schema::{Bucket, RecordKey, Revision, meta};

use crate::batch::{Draft, Record, number_of};
use crate::database::{Database, DatabaseFault, Session, Statement};
use crate::error::{EngineError, Indexed};
use crate::key_lengths::check_key;
use crate::sequencer::write_records;
use crate::url::DatabaseUrl;

/// The number of keys that one transaction imports.
const PART_KEYS: i64 = 2_000;

/// The first key of all.
const FIRST_KEY: &[u8] = &[0];

/// The content of an imported snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The number of keys.
    pub keys: u64,
    /// The revision of the snapshot, which the keyspace continues.
    pub revision: i64,
}

/// Imports a snapshot, opened as a backend file, into the keyspace of a URL. Its tables are created.
///
/// # Errors
///
/// If the keyspace was used already, or the file or the database cannot be read.
pub async fn import(
    database: DatabaseUrl,
    new_cluster_id: u64,
    file: &Backend,
) -> Result<Imported, EngineError> {
    let database = Database::new(database)?;
    let (store, _) = Store::recover(file, StoreOptions::default())?;
    let view = store.reader().view();
    let rows = Rows::of_file(&file.read())?;
    check_lengths(&view, &rows)?;
    database.begin_import(new_cluster_id.cast_signed()).await?;
    let session = database.connect().await?;
    let keys = import_keys(&session, &view).await?;
    let revision = view.current_revision();
    finish(&session, &rows, revision, keys).await?;
    database.end_import().await?;
    Ok(Imported { keys: keys.count, revision })
}

/// The imported keys.
#[derive(Clone, Copy, Default)]
struct Keys {
    count: u64,
    bytes: u64,
}

/// Checks all keys and names before anything is written.
fn check_lengths(view: &View, rows: &Rows) -> Result<(), EngineError> {
    for (bucket, what) in
        [(Bucket::AuthRoles, Indexed::RoleName), (Bucket::AuthUsers, Indexed::UserName)]
    {
        rows.entries(bucket).try_for_each(|(name, _)| check_key(what, name))?;
    }
    let mut next = Bytes::from_static(FIRST_KEY);
    loop {
        let page = page(view, next, true)?;
        let Some(last) = page.last() else { return Ok(()) };
        next = after(last.key());
        page.iter().try_for_each(|kv| check_key(Indexed::Key, kv.key()))?;
    }
}

/// Returns the next keys, from `key` on.
fn page(view: &View, key: Bytes, keys_only: bool) -> Result<Vec<KeyValue>, EngineError> {
    let range_end = Bytes::from_static(&[0]);
    let query = RangeQuery { key, range_end, limit: PART_KEYS, keys_only, ..RangeQuery::default() };
    let page = view.range(&query).map_err(|error| EngineError::Content(error.to_string()))?;
    Ok(page.kvs)
}

fn after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

async fn import_keys(session: &Session, view: &View) -> Result<Keys, EngineError> {
    let mut keys = Keys::default();
    let mut next = Bytes::from_static(FIRST_KEY);
    loop {
        let records: Vec<Record> = page(view, next, false)?.iter().map(record_of).collect();
        let Some(last) = records.last() else { return Ok(keys) };
        next = after(&last.key);
        keys.count += records.len() as u64;
        keys.bytes += records.iter().map(|record| record.record.len() as u64).sum::<u64>();
        let references: Vec<&Record> = records.iter().collect();
        session
            .transaction(async |session| write_records(session, &references).await.map(|()| true))
            .await?;
    }
}

/// A version's sub revision matters only among changes of one revision, so an imported one is 0.
fn record_of(kv: &KeyValue) -> Record {
    let fields = kv.fields();
    let revision = Revision::new(fields.mod_revision, 0);
    let at = RecordKey { revision, tombstone: false };
    let record = Bytes::copy_from_slice(kv.encoded());
    let key = Bytes::copy_from_slice(fields.key);
    Record { at, key, record }
}

/// Returns the row of a lease without the remaining lifetime that a member has checkpointed. The engine
/// gives a lease its full lifetime when a term begins and at each renewal.
fn without_checkpoint(value: &Bytes) -> Bytes {
    LeaseRecord::decode(value)
        .map_or_else(|| value.clone(), |lease| LeaseRecord { remaining_secs: 0, ..lease }.encode())
}

/// Writes the rows and the first batch, which makes the keyspace complete.
async fn finish(
    session: &Session,
    rows: &Rows,
    revision: i64,
    keys: Keys,
) -> Result<(), EngineError> {
    let mut batch = Batch::new();
    let kept = [Bucket::Alarm, Bucket::Auth, Bucket::AuthRoles, Bucket::AuthUsers, Bucket::Lease];
    for bucket in kept {
        for (key, value) in rows.entries(bucket) {
            let is_lease = bucket == Bucket::Lease;
            let value = if is_lease { without_checkpoint(value) } else { value.clone() };
            batch.put(bucket, key.clone(), value);
        }
    }
    batch.put_compaction(meta::SCHEDULED_COMPACTION, revision);
    let (mut buckets, mut names, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for change in batch.changes() {
        if let BatchChange::Put(bucket, key, value) = change {
            buckets.push(number_of(bucket).cast_signed());
            names.push(&key[..]);
            values.push(&value[..]);
        }
    }
    let first = Draft::fence(1, 0).encode();
    let count = i64::try_from(keys.count).unwrap_or(i64::MAX);
    let bytes = i64::try_from(keys.bytes).unwrap_or(i64::MAX);
    session
        .transaction(async |session| {
            session.execute(Statement::SetFacts, &[&buckets, &names, &values]).await?;
            session.execute(Statement::AppendImport, &[&revision, &first]).await?;
            session.execute(Statement::AnnounceCompaction, &[&revision]).await?;
            session
                .execute(Statement::AdvanceProgress, &[&0_i64, &1_i64, &count, &bytes])
                .await
                .map(|moved| moved == 1)
        })
        .await
        .map_err(EngineError::from)
        .and_then(|is_done| {
            let taken = DatabaseFault::Content {
                table: "progress",
                problem: "a server has begun to use the keyspace".to_owned(),
            };
            if is_done { Ok(()) } else { Err(taken.into()) }
        })
}
