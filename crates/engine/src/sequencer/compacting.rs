//! Removes compacted versions from the tables, in small steps.
//!
//! The log contains the changes since the last compaction, and each change turns the previous versions of its key into
//! garbage. A compaction therefore reads the log, beginning with the oldest batch. In each step, it removes the garbage
//! of a few batches, and then these batches from the log. The cost of a compaction depends on the number of changes
//! since the last compaction, not on the number of keys. The oldest batch in the log shows the progress of the
//! compaction.
//!
//! # Invariants
//!
//! * The compacted revision is in table `progress` before anything is removed, so a read that does not
//!   find a removed version notices the compaction.
//! * A batch is removed only if its changes are in the tables, a later batch stays in the log, and all
//!   revisions of the batch are below the compacted revision. The statement that removes batches checks
//!   these conditions, because the positions that this server knows may be outdated if the database has
//!   lost rows.
//! * If a step is repeated, or if two servers run it, the second execution has no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_state::mvcc::Compaction;
use quorate_telemetry::log;
use tokio::sync::watch;

use crate::batch::{Committed, Record};
use crate::database::{
    Database, DatabaseFault, STATEMENT_RECORDS_MAX, Session, Statement, Tables,
    has_reached_log_limit,
};
use crate::error::EngineError;
use crate::replica::Replica;

/// Maximum number of batches whose garbage one step removes. The statement that reads them also limits their bytes.
const STEP_BATCHES: i64 = 16;
/// The value of `STEP_BATCHES` for distributed tables. It is higher, because each transaction takes longer there.
const STEP_BATCHES_DISTRIBUTED: i64 = 256;
/// Pause before a failed step is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The task that removes the garbage of compactions.
pub(super) struct Compacting {
    database: Arc<Database>,
    replica: Arc<Replica>,
    /// The newest accepted compaction.
    accepted: watch::Receiver<Option<Compaction>>,
    /// A channel whose value changes whenever batches have been written to the tables.
    written: watch::Receiver<u64>,
    session: Option<Session>,
    /// The bytes of all versions in the tables.
    stored_bytes: Arc<AtomicU64>,
    /// Whether a step was interrupted, so that `stored_bytes` may be wrong and must be read from the
    /// database again.
    is_size_unknown: bool,
}

impl Compacting {
    pub(super) fn new(
        database: &Arc<Database>,
        replica: &Arc<Replica>,
        stored_bytes: &Arc<AtomicU64>,
        accepted: watch::Receiver<Option<Compaction>>,
        written: watch::Receiver<u64>,
    ) -> Self {
        Self {
            database: Arc::clone(database),
            replica: Arc::clone(replica),
            accepted,
            written,
            session: None,
            stored_bytes: Arc::clone(stored_bytes),
            is_size_unknown: false,
        }
    }

    /// Runs until the term ends. First removes the garbage that the previous sequencer left behind.
    pub(super) async fn run(mut self) -> Result<(), EngineError> {
        loop {
            let position = self.replica.position();
            // A compaction at revision 0 removes nothing, but its caller waits for it, too.
            if position.compacted >= 0 {
                let started = Instant::now();
                self.wait_written(position.seq).await?;
                self.remove_all(position.compacted).await?;
                log::info!(
                    "finished scheduled compaction",
                    "compact-revision" = position.compacted,
                    "took" = started.elapsed()
                );
            }
            if self.accepted.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Waits until the batch with the compaction and all earlier batches are in the tables.
    async fn wait_written(&mut self, seq: u64) -> Result<(), EngineError> {
        while self.replica.position().written_seq < seq {
            self.written.changed().await.map_err(|_| EngineError::SequencerChanged)?;
        }
        Ok(())
    }

    /// Removes the garbage of the batch with the compacted revision, and then the garbage of all older batches.
    async fn remove_all(&mut self, compacted: i64) -> Result<(), EngineError> {
        let mut is_last_removed = false;
        loop {
            let removed = if is_last_removed {
                self.remove_older(compacted).await
            } else {
                self.remove_last(compacted).await
            };
            match removed {
                Ok(true) if is_last_removed => return Ok(()),
                Ok(true) => is_last_removed = true,
                Ok(false) => {}
                Err(fault) if fault.is_transient() => {
                    log::warn!(
                        "failed to remove compacted versions; trying again",
                        "error" = fault.to_string()
                    );
                    if !fault.is_conflict() {
                        self.session = None;
                        self.is_size_unknown = true;
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Returns the session of this task. It does not belong to the pool, because a step may be
    /// interrupted during a transaction.
    async fn session(&mut self) -> Result<&Session, DatabaseFault> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let session = self.database.connect().await?;
                session.keep_node_connections().await?;
                session
            }
        };
        Ok(self.session.insert(session))
    }

    /// Stores the compacted revision, and removes the garbage of the batch that contains this revision. The batch
    /// itself stays in the log, because watchers can still read it. This function runs before any older batch is
    /// removed, so a compaction is complete when the log contains no older batch. Returns whether the garbage was
    /// removed, which is not the case if the tables have lost the batch.
    async fn remove_last(&mut self, compacted: i64) -> Result<bool, DatabaseFault> {
        let written = self.read_written().await?;
        let session = self.session().await?;
        session.execute(Statement::AnnounceCompaction, &[&compacted]).await?;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&compacted, &-1_i64, &1_i64];
        let rows = session.query(Statement::ReadLogFromRevision, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(true) };
        let batch = Committed::decode(row)?;
        if batch.seq.cast_signed() > written {
            tokio::time::sleep(RETRY_INTERVAL).await;
            return Ok(false);
        }
        let batches = std::slice::from_ref(&batch);
        let mut removed = 0;
        session
            .transaction(async |session| {
                removed = remove(session, batches, compacted).await?;
                Ok(true)
            })
            .await?;
        self.subtract(removed);
        Ok(true)
    }

    /// Reads the position of the last batch that is in the tables. If the number of stored bytes is unknown, also reads
    /// this number.
    async fn read_written(&mut self) -> Result<i64, DatabaseFault> {
        let progress = self.session().await?.query_opt(Statement::ReadProgress, &[]).await?;
        let Some(progress) = progress else { return Ok(0) };
        if std::mem::take(&mut self.is_size_unknown) {
            let bytes = u64::try_from(progress.get::<_, i64>(3)).unwrap_or(0);
            self.stored_bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(progress.get(0))
    }

    /// Subtracts the bytes of removed versions from `stored_bytes`.
    fn subtract(&self, removed: u64) {
        let rest = |stored: u64| Some(stored.saturating_sub(removed));
        // The closure always returns a value, so the update does not fail.
        let (Ok(_) | Err(_)) =
            self.stored_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }

    /// Removes the garbage of a few batches that are older than the batch with the compacted revision. Returns whether
    /// no garbage is left.
    async fn remove_older(&mut self, compacted: i64) -> Result<bool, DatabaseFault> {
        let written = self.read_written().await?;
        let session = self.session().await?;
        let step_batches = match session.tables() {
            Tables::Local => STEP_BATCHES,
            Tables::Distributed => STEP_BATCHES_DISTRIBUTED,
        };
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&written, &compacted, &step_batches];
        let rows = session.query(Statement::ReadGarbage, &parameters).await?;
        let batches = rows.iter().map(Committed::decode).collect::<Result<Vec<_>, _>>()?;
        let Some(last) = batches.last() else { return Ok(true) };
        let seq = last.seq.cast_signed();
        let mut removed = 0;
        session
            .transaction(async |session| {
                removed = remove(session, &batches, compacted).await?;
                session.execute(Statement::DeleteLog, &[&seq, &compacted]).await?;
                Ok(true)
            })
            .await?;
        self.subtract(removed);
        let is_full = i64::try_from(rows.len()).is_ok_and(|count| count == step_batches)
            || rows.last().is_some_and(has_reached_log_limit);
        Ok(!is_full)
    }
}

/// Removes the garbage of these batches. Returns the bytes of the removed versions.
async fn remove(
    session: &Session,
    batches: &[Committed],
    compacted: i64,
) -> Result<u64, DatabaseFault> {
    let records = batches.iter().flat_map(|batch| &batch.records);
    let records: Vec<&Record> =
        records.filter(|record| record.at.revision.main <= compacted).collect();
    let mut removed = 0;
    for part in records.chunks(STATEMENT_RECORDS_MAX) {
        removed += remove_part(session, part, compacted).await?;
    }
    Ok(removed)
}

/// Removes the versions that these records turn into garbage. Returns the bytes of the removed
/// versions.
async fn remove_part(
    session: &Session,
    records: &[&Record],
    compacted: i64,
) -> Result<u64, DatabaseFault> {
    let (mut keys, mut mod_revisions, mut subs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut dead_keys, mut dead_revisions) = (Vec::new(), Vec::new());
    for record in records {
        let revision = record.at.revision;
        // A deletion below the compacted revision is itself garbage.
        let is_gone = record.at.tombstone && revision.main < compacted;
        keys.push(&record.key[..]);
        mod_revisions.push(revision.main);
        subs.push(if is_gone { revision.sub + 1 } else { revision.sub });
        if is_gone {
            dead_keys.push(&record.key[..]);
            dead_revisions.push(revision.main);
        }
    }
    let removed =
        session.query_opt(Statement::DeleteVersions, &[&keys, &mod_revisions, &subs]).await?;
    if !dead_keys.is_empty() {
        session.execute(Statement::DeleteNewest, &[&dead_keys, &dead_revisions]).await?;
    }
    let Some(removed) = removed else { return Ok(0) };
    let (count, bytes) = (removed.get::<_, i64>(0), removed.get::<_, i64>(1));
    session.execute(Statement::CountRemoved, &[&count, &bytes]).await?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}
