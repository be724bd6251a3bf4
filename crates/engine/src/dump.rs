//! Reads the whole keyspace to compute its hash, or to create a snapshot that etcd and Quorate members can restore.
//!
//! Both operations first wait until everything that was committed before the call is in the tables.
//! Then they read the tables in one transaction, which sees one consistent state. The database sorts
//! the records by revision and streams them, so the server's memory does not depend on the number of
//! keys. If the caller is no longer interested, the operation ends early, and cancels its statement. Otherwise, the
//! database would continue to sort for up to a second.
//!
//! # Invariants
//!
//! * A snapshot contains all changes up to one batch, and no changes of later batches.
//! * If Citus distributes the tables, the transaction sees the state of each node at a different time, so a compaction
//!   may remove versions from a node before they are read. In this case, the operation fails, and can be repeated.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_state::apply::Refusal;
use quorate_state::backend::{Backend, Batch};
use quorate_state::mvcc::{HashKv, RecordsHash};
use quorate_state::schema::{Bucket, RecordKey, Revision, meta};
use quorate_state::versions::Version;
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};
use tokio_postgres::types::ToSql;
use tokio_stream::StreamExt as _;

use crate::database::{DatabaseFault, Session, Statement, Tables, no_progress};
use crate::error::EngineError;
use crate::follower::read_start;
use crate::replica::Start;
use crate::sequencer::TermContext;

/// Number of records after which an operation checks whether its caller has gone, even if the database sends records
/// faster than they are processed.
const RECORDS_BETWEEN_CHECKS: usize = 1_000;
/// Number of changes that one transaction writes to the snapshot's file.
const BATCH_OPS: usize = 10_000;
/// Interval between checks of whether the awaited batch is in the tables.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A session whose transaction sees one consistent state of the database.
struct Frozen {
    session: Session,
    start: Start,
}

impl Frozen {
    /// Waits until everything that was committed before this call is in the tables. Returns a session
    /// that sees these changes.
    async fn new(context: &TermContext) -> Result<Self, EngineError> {
        context.rounds.wait().await?;
        let committed = context.replica.position().seq;
        let session = context.database.connect().await?;
        loop {
            session.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
            let start = read_start(&session).await?;
            if start.position.seq >= committed {
                return Ok(Self { session, start });
            }
            session.batch("ROLLBACK").await?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Calls `visit` for each record up to a revision, in revision order. The last argument of `visit` is
    /// true if the record is visible at that revision.
    async fn for_each_record(
        &self,
        revision: i64,
        mut visit: impl AsyncFnMut(RecordKey, &[u8], bool) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let text = self.session.text(Statement::Records);
        let parameters: [&(dyn ToSql + Sync); 1] = [&revision];
        let prepared = self.session.client().prepare(&text).await.map_err(DatabaseFault::from)?;
        let rows = self.session.client().query_raw(&prepared, parameters).await;
        let mut rows = pin!(rows.map_err(DatabaseFault::from)?);
        let mut count = 0_usize;
        while let Some(row) = rows.next().await {
            count += 1;
            if count.is_multiple_of(RECORDS_BETWEEN_CHECKS) {
                tokio::task::yield_now().await;
            }
            let row = row.map_err(DatabaseFault::from)?;
            let revision = Revision::new(row.get(0), row.get(1));
            let key = RecordKey { revision, tombstone: row.get(2) };
            visit(key, row.get(3), row.get(4)).await?;
        }
        Ok(())
    }

    /// Checks, after the records have been read, that no compaction can have removed any records before they were read.
    async fn check(&self, context: &TermContext) -> Result<(), EngineError> {
        if self.session.tables() == Tables::Local {
            return Ok(());
        }
        let row = context.database.query_opt(Statement::Compacted, &[]).await?;
        if row.ok_or_else(no_progress)?.get::<_, i64>(0) > self.start.position.compacted {
            let conflict = "a compaction removed versions while they were read; try again";
            return Err(DatabaseFault::Conflict(conflict.to_owned()).into());
        }
        Ok(())
    }
}

/// Executes an operation on a session that sees everything that was committed before this call. Once `gone` is ready,
/// the operation and its statement are cancelled.
async fn read_frozen<T>(
    context: &TermContext,
    gone: impl Future<Output = ()>,
    operation: impl AsyncFnOnce(&Frozen) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let mut gone = pin!(gone);
    let frozen = tokio::select! {
        biased;
        () = &mut gone => return Err(EngineError::Cancelled),
        frozen = Frozen::new(context) => frozen?,
    };
    tokio::select! {
        biased;
        () = &mut gone => {}
        result = operation(&frozen) => return result,
    }
    context.database.cancel(&frozen.session).await;
    Err(EngineError::Cancelled)
}

/// Returns the hash of all records up to a revision, as a member computes it. Stops once `gone` is ready.
pub(crate) async fn hash_kv(
    context: &TermContext,
    revision: i64,
    gone: impl Future<Output = ()>,
) -> Result<Result<HashKv, Refusal>, EngineError> {
    read_frozen(context, gone, async |frozen| hash_of(context, frozen, revision).await).await
}

async fn hash_of(
    context: &TermContext,
    frozen: &Frozen,
    revision: i64,
) -> Result<Result<HashKv, Refusal>, EngineError> {
    let position = frozen.start.position;
    if revision > position.revision {
        return Ok(Err(Refusal::FutureRevision));
    }
    if 0 < revision && revision < position.compacted {
        return Ok(Err(Refusal::Compacted));
    }
    let hash_revision = if revision == 0 { position.revision } else { revision };
    let any = frozen.session.query_opt(Statement::IsAnyVisible, &[&hash_revision]).await?;
    let is_any_visible = any.is_some_and(|row| row.get(0));
    let mut hash = RecordsHash::new(position.compacted, is_any_visible);
    frozen
        .for_each_record(hash_revision, async |key, stored, is_visible| {
            hash.push(key, stored, is_visible);
            Ok(())
        })
        .await?;
    frozen.check(context).await?;
    let (hash, compact_revision) = (hash.finish(), position.compacted);
    Ok(Ok(HashKv { hash, compact_revision, hash_revision }))
}

/// Creates a backend file without a name that contains everything that was committed before this call. `parent` is the
/// directory for the file. Stops once `gone` is ready. Blocks the thread while a batch is written to the file, so that
/// nothing is written after the operation has ended.
pub(crate) async fn snapshot(
    context: &TermContext,
    parent: &Path,
    gone: impl Future<Output = ()>,
) -> Result<Backend, EngineError> {
    read_frozen(context, gone, async |frozen| write_snapshot(context, frozen, parent).await).await
}

async fn write_snapshot(
    context: &TermContext,
    frozen: &Frozen,
    parent: &Path,
) -> Result<Backend, EngineError> {
    let backend = unnamed_backend(parent)?;
    let mut batch = first_batch(&frozen.start);
    frozen
        .for_each_record(frozen.start.position.revision, async |key, stored, _| {
            batch.put_record(key, Bytes::copy_from_slice(stored));
            if batch.fill(BATCH_OPS) > 0 {
                commit(&backend, &std::mem::take(&mut batch))?;
            }
            Ok(())
        })
        .await?;
    commit(&backend, &batch)?;
    frozen.check(context).await?;
    Ok(backend)
}

/// Creates an empty backend file in `parent`, to which other users may have access. Only this process can open the
/// file, and the file disappears with its last handle, even if the process is killed: the file is created in a new
/// directory that belongs to this user alone, and both names are removed before any record is written.
fn unnamed_backend(parent: &Path) -> Result<Backend, EngineError> {
    let random = getrandom::u64().map_err(|error| EngineError::Random(error.to_string()))?;
    let directory = parent.join(format!("quorate-snapshot-{random:016x}"));
    std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(|error| {
        unwritten(&format_args!("cannot create {}: {error}", directory.display()))
    })?;
    let path = directory.join("db");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut options = Options::default();
    options.no_sync = true;
    options.must_be_new = true;
    let opened = Backend::open(&disk, &path, options);
    // The open file stays usable after it is removed. If it was not created, there is no file to remove.
    let is_unnamed = std::fs::remove_dir_all(&directory);
    let backend = opened.map_err(|fault| unwritten(&fault))?;
    is_unnamed.map_err(|error| {
        unwritten(&format_args!("cannot remove {}: {error}", directory.display()))
    })?;
    Ok(backend)
}

/// Returns the first batch to write to a snapshot's file. The batch contains everything except the
/// records.
fn first_batch(start: &Start) -> Batch {
    let Start { rows, position, .. } = start;
    let mut batch = Batch::new();
    for bucket in Bucket::ALL.into_iter().filter(|bucket| *bucket != Bucket::Key) {
        for (key, value) in rows.entries(bucket) {
            batch.put(bucket, key.clone(), value.clone());
        }
    }
    if position.compacted > 0 {
        batch.put_compaction(meta::FINISHED_COMPACTION, position.compacted);
    }
    batch.put(Bucket::Meta, meta::STORAGE_VERSION, Version::OWN.to_string());
    batch.set_consistent_index(position.index.max(1), position.term.epoch.max(1));
    batch
}

fn commit(backend: &Backend, batch: &Batch) -> Result<(), EngineError> {
    backend.commit(batch).map(drop).map_err(|fault| unwritten(&fault))
}

fn unwritten(fault: &dyn std::fmt::Display) -> EngineError {
    EngineError::Failed(format!("failed to write the snapshot file: {fault}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_file_has_no_name_that_another_process_could_open() {
        let parent = tempfile::tempdir().unwrap();
        let (one, other) =
            (unnamed_backend(parent.path()).unwrap(), unnamed_backend(parent.path()).unwrap());
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
        let mut batch = Batch::new();
        batch.put(Bucket::Meta, meta::STORAGE_VERSION, "3.7.0".to_owned());
        one.commit(&batch).unwrap();
        let commits = |backend: &Backend| backend.db().stats().txid;
        assert_eq!(commits(&one), commits(&other) + 1, "each call creates another file");
    }
}
