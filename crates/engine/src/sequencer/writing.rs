//! Writes committed batches to the tables.
//!
//! # Invariants
//!
//! * The tables are written in the order of the log. The transaction that writes a part of the log also
//!   moves the position in table `progress` from the start of that part to its end. So each part is
//!   written once, and a former sequencer cannot write after its successor has written.
//! * Every server derives the same rows from a part of the log. Therefore it is safe to write a part again if the
//!   outcome of its transaction is unknown and the position has not moved.
//! * If Citus distributes the tables, the nodes make the changes of a transaction visible at different times, and the
//!   position is visible first. In this case, a part is written in two transactions: the first one locks the position
//!   and writes the versions, and the second one moves the position after all nodes have confirmed the first one. A
//!   repetition of the first transaction waits for the outcome of earlier attempts, because it writes the same rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quorate_api::record::Fields;
use quorate_telemetry::log;
use tokio::sync::watch;

use crate::batch::{Committed, Record, number_of};
use crate::database::{Database, DatabaseFault, STATEMENT_RECORDS_MAX, Session, Statement, Tables};
use crate::error::EngineError;
use crate::replica::Replica;

/// Maximum number of bytes of batches that one transaction writes. A single batch may exceed this
/// limit.
const PART_BYTES_MAX: usize = 4 << 20;
/// Pause before a failed transaction is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The task that writes committed batches to the tables.
pub(super) struct Writing {
    pub(super) database: Arc<Database>,
    pub(super) replica: Arc<Replica>,
    pub(super) written: watch::Sender<u64>,
    pub(super) stored_bytes: Arc<AtomicU64>,
    pub(super) session: Option<Session>,
}

/// The records of one part of the log, as one array for each column of a table.
#[derive(Default)]
struct Columns<'a> {
    keys: Vec<&'a [u8]>,
    mod_revisions: Vec<i64>,
    subs: Vec<i64>,
    deleted: Vec<bool>,
    records: Vec<&'a [u8]>,
}

impl Writing {
    /// Runs until the term ends.
    pub(super) async fn run(mut self) -> Result<(), EngineError> {
        let mut reached = self.replica.subscribe();
        loop {
            self.write_all().await?;
            if reached.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Reads the position of the last batch that is already in the tables.
    pub(super) async fn read_progress(&mut self) -> Result<(), EngineError> {
        self.follow_progress().await
    }

    /// Writes all committed batches to the tables.
    pub(super) async fn write_all(&mut self) -> Result<(), EngineError> {
        loop {
            let part = self.replica.tail.unwritten(PART_BYTES_MAX);
            let (Some(first), Some(last)) = (part.first(), part.last()) else { return Ok(()) };
            // The expected position is computed from the part, because the position of the tail may
            // have moved since the part was read.
            match self.write(first.seq - 1, &part).await {
                Ok(true) => {
                    let seq = last.seq;
                    self.replica.tail.written(seq);
                    self.written.send_replace(seq);
                }
                Ok(false) => self.follow_progress().await?,
                Err(fault) if fault.is_transient() => {
                    log::warn!(
                        "failed to write to the database tables; trying again",
                        "error" = fault.to_string()
                    );
                    if !fault.is_conflict() {
                        self.session = None;
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    async fn session(&mut self) -> Result<&Session, DatabaseFault> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let session = self.database.connect().await?;
                session.keep_node_connections().await?;
                session.end_prepared().await?;
                session
            }
        };
        Ok(self.session.insert(session))
    }

    /// Continues from the position in table `progress`, which may have moved because an earlier attempt succeeded or
    /// another server wrote to the tables. Every server writes the same rows, so this server can continue from the
    /// position that another server has reached.
    async fn follow_progress(&mut self) -> Result<(), EngineError> {
        // A round may learn of a later position while this statement is running.
        let known = self.replica.position().written_seq;
        let progress = self.session().await?.read_opt(Statement::ReadProgress, &[]).await?;
        let Some(progress) = progress else { return Ok(()) };
        let seq = progress.get::<_, i64>(0).cast_unsigned();
        if seq < known {
            // The next term begins with a round, which puts the lost batches back into the tail.
            return Err(EngineError::Content(format!(
                "position {seq} in table progress is below the known position {known}: the tables have lost changes"
            )));
        }
        let bytes = progress.get::<_, i64>(3);
        self.stored_bytes.store(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        self.replica.tail.written(seq);
        self.written.send_replace(seq);
        Ok(())
    }

    /// Writes a part and moves the position, unless the position is no longer `from`. Returns whether the part was
    /// written.
    async fn write(&mut self, from: u64, part: &[Arc<Committed>]) -> Result<bool, DatabaseFault> {
        let to = part.last().map_or(from, |last| last.seq).cast_signed();
        let from = from.cast_signed();
        let records: Vec<&Record> = part.iter().flat_map(|batch| &batch.records).collect();
        let count = i64::try_from(records.len()).unwrap_or(i64::MAX);
        let bytes: usize = records.iter().map(|record| record.record.len()).sum();
        let bytes_signed = i64::try_from(bytes).unwrap_or(i64::MAX);
        let session = self.session().await?;
        let are_distributed = session.tables() == Tables::Distributed;
        if are_distributed && !write_to_nodes(session, from, &records).await? {
            return Ok(false);
        }
        let is_done = session
            .transaction(async |session| {
                let moved: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                    [&from, &to, &count, &bytes_signed];
                if session.execute(Statement::AdvanceProgress, &moved).await? == 0 {
                    return Ok(false);
                }
                if !are_distributed {
                    write_records(session, &records).await?;
                }
                write_rows(session, part).await?;
                Ok(true)
            })
            .await?;
        if is_done {
            self.stored_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(is_done)
    }
}

/// Writes versions to distributed tables, unless the position is no longer `from`. Returns whether the versions were
/// written.
async fn write_to_nodes(
    session: &Session,
    from: i64,
    records: &[&Record],
) -> Result<bool, DatabaseFault> {
    session
        .transaction(async |session| {
            // While this transaction holds the lock, no other server can move the position.
            if session.query_opt(Statement::LockProgress, &[&from]).await?.is_none() {
                return Ok(false);
            }
            write_records(session, records).await.map(|()| true)
        })
        .await
}

/// Writes versions to table `versions`, and the newest version of each key to table `newest`. Must be
/// called in a transaction. One statement writes at most [`STATEMENT_RECORDS_MAX`] records.
pub(crate) async fn write_records(
    session: &Session,
    records: &[&Record],
) -> Result<(), DatabaseFault> {
    for part in records.chunks(STATEMENT_RECORDS_MAX) {
        let Columns { keys, mod_revisions, subs, deleted, records: encoded } = &Columns::of(part);
        session
            .execute(Statement::AddVersions, &[keys, mod_revisions, subs, deleted, encoded])
            .await?;
    }
    // Table `newest` receives only the last version of each key.
    let newest: BTreeMap<&Bytes, &Record> =
        records.iter().map(|record| (&record.key, *record)).collect();
    let newest: Vec<&Record> = newest.into_values().collect();
    for part in newest.chunks(STATEMENT_RECORDS_MAX) {
        set_newest(session, part).await?;
    }
    Ok(())
}

async fn set_newest(session: &Session, newest: &[&Record]) -> Result<(), DatabaseFault> {
    let fields: Vec<Fields<'_>> = newest
        .iter()
        .map(|record| match record.at.tombstone {
            true => Fields::default(),
            false => Fields::decode(&record.record).unwrap_or_default(),
        })
        .collect();
    let create_revisions: Vec<i64> = fields.iter().map(|fields| fields.create_revision).collect();
    let versions: Vec<i64> = fields.iter().map(|fields| fields.version).collect();
    let leases: Vec<i64> = fields.iter().map(|fields| fields.lease).collect();
    let Columns { keys, mod_revisions, subs, deleted, records: encoded } = &Columns::of(newest);
    session
        .execute(
            Statement::SetNewest,
            &[keys, mod_revisions, subs, &create_revisions, &versions, &leases, deleted, encoded],
        )
        .await?;
    Ok(())
}

async fn write_rows(session: &Session, part: &[Arc<Committed>]) -> Result<(), DatabaseFault> {
    let mut last = BTreeMap::new();
    for row in part.iter().flat_map(|batch| &batch.rows) {
        last.insert((number_of(row.bucket).cast_signed(), &row.key[..]), row.value.as_deref());
    }
    let set = last.iter().filter_map(|((bucket, key), value)| Some((*bucket, *key, (*value)?)));
    let set: Vec<_> = set.collect();
    if !set.is_empty() {
        let buckets: Vec<i32> = set.iter().map(|(bucket, _, _)| *bucket).collect();
        let keys: Vec<&[u8]> = set.iter().map(|(_, key, _)| *key).collect();
        let values: Vec<&[u8]> = set.iter().map(|(_, _, value)| *value).collect();
        session.execute(Statement::SetFacts, &[&buckets, &keys, &values]).await?;
    }
    let removed: Vec<_> = last.iter().filter(|(_, value)| value.is_none()).collect();
    if !removed.is_empty() {
        let buckets: Vec<i32> = removed.iter().map(|((bucket, _), _)| *bucket).collect();
        let keys: Vec<&[u8]> = removed.iter().map(|((_, key), _)| *key).collect();
        session.execute(Statement::DeleteFacts, &[&buckets, &keys]).await?;
    }
    Ok(())
}

impl<'a> Columns<'a> {
    fn of(records: &[&'a Record]) -> Self {
        let mut columns = Self::default();
        for record in records {
            columns.keys.push(&record.key);
            columns.mod_revisions.push(record.at.revision.main);
            columns.subs.push(record.at.revision.sub);
            columns.deleted.push(record.at.tombstone);
            columns.records.push(&record.record);
        }
        columns
    }
}
