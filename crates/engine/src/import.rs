//! Fills an empty keyspace from a snapshot of an etcd or Quorate member.
//!
//! The import contains the newest version of each live key with its revision, and the leases, users, roles and alarms.
//! It does not contain the members and the version of the cluster. Older versions of keys are left out, because the log
//! does not contain the changes that created them, and watchers read older changes from the log. Therefore the imported
//! keyspace is compacted at the revision of the snapshot.
//!
//! # Invariants
//!
//! * No server can use a keyspace whose import was interrupted. The import can be repeated.
//! * An import never changes a keyspace that a server has used.

use bytes::Bytes;
use quorate_api::record::KeyValue;
use quorate_state::backend::{Backend, Batch, BatchChange, Rows};
use quorate_state::lease::LeaseRecord;
use quorate_state::mvcc::{RangeQuery, Store, StoreOptions, View};
use quorate_state::schema::{Bucket, RecordKey, meta};

use crate::batch::{Draft, Record, number_of};
use crate::database::{Database, DatabaseFault, Session, Statement};
use crate::error::{EngineError, Indexed};
use crate::key_lengths::check_key;
use crate::sequencer::write_records;
use crate::url::DatabaseUrl;

/// Maximum number of keys that one transaction imports.
const PART_KEYS: i64 = 2_000;

/// The lowest possible key.
const FIRST_KEY: &[u8] = &[0];

/// The size and the revision of an imported snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The number of keys.
    pub keys: u64,
    /// The revision of the snapshot. The keyspace continues with the next revision.
    pub revision: i64,
}

/// Imports a snapshot, opened as a backend file, into the keyspace that a URL names. Creates the tables
/// of the keyspace.
///
/// # Errors
///
/// If a server has already used the keyspace, if a key or name is too long, if the file cannot be read,
/// or if the database fails.
pub async fn import(
    database: DatabaseUrl,
    new_cluster_id: u64,
    file: &Backend,
) -> Result<Imported, EngineError> {
    let database = Database::new(database)?;
    let (store, _) =
        Store::recover(file, StoreOptions::default()).map_err(|fault| unread(&fault))?;
    let view = store.reader().view();
    let rows = Rows::of_file(&file.read()).map_err(|fault| unread(&fault))?;
    check_lengths(&view, &rows)?;
    database.begin_import(new_cluster_id.cast_signed()).await?;
    let session = database.connect().await?;
    let keys = import_keys(&session, &view).await?;
    let revision = view.current_revision();
    finish(&session, &rows, revision, keys).await?;
    database.end_import().await?;
    Ok(Imported { keys: keys.count, revision })
}

/// The number of imported keys, and the bytes of their records.
#[derive(Clone, Copy, Default)]
struct Keys {
    count: u64,
    bytes: u64,
}

/// Checks the lengths of all keys and names before anything is written.
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

/// Returns the next page of keys, beginning at `key`.
fn page(view: &View, key: Bytes, keys_only: bool) -> Result<Vec<KeyValue>, EngineError> {
    let range_end = Bytes::from_static(&[0]);
    let query = RangeQuery { key, range_end, limit: PART_KEYS, keys_only, ..RangeQuery::default() };
    let page = view.range(&query).map_err(|error| unread(&error))?;
    Ok(page.kvs)
}

fn unread(fault: &dyn std::fmt::Display) -> EngineError {
    EngineError::Failed(format!("failed to read the snapshot file: {fault}"))
}

fn after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

async fn import_keys(session: &Session, view: &View) -> Result<Keys, EngineError> {
    let mut keys = Keys::default();
    let mut next = Bytes::from_static(FIRST_KEY);
    loop {
        let page = page(view, next, false)?;
        let records = page.iter().map(|kv| record_of(view, kv)).collect::<Result<Vec<_>, _>>()?;
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

/// Returns the record of an imported key. The record has the same revision as in the snapshot, including the sub revision,
/// which distinguishes the keys that one transaction has written.
fn record_of(view: &View, kv: &KeyValue) -> Result<Record, EngineError> {
    let key = Bytes::copy_from_slice(kv.key());
    let modified = view.snapshot().version_at(&key, view.current_revision());
    let revision = modified.ok_or_else(|| unread(&"a listed key has no revision"))?;
    let at = RecordKey { revision, tombstone: false };
    Ok(Record { at, key, record: Bytes::copy_from_slice(kv.encoded()) })
}

/// Returns the row of a lease without the remaining lifetime that a member has checkpointed. The engine
/// gives a lease its full lifetime when a term begins and at each renewal.
fn without_checkpoint(value: &Bytes) -> Bytes {
    LeaseRecord::decode(value)
        .map_or_else(|| value.clone(), |lease| LeaseRecord { remaining_secs: 0, ..lease }.encode())
}

/// Writes the rows and the first batch of the log, which complete the keyspace.
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
                problem: "a server started to use the keyspace during the import".to_owned(),
            };
            if is_done { Ok(()) } else { Err(taken.into()) }
        })
}
