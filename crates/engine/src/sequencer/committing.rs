//! Appends batches to the log, publishes them, and answers their requests.
//!
//! The append is one `INSERT` whose primary key is the position in the log, and which inserts nothing
//! if another server has raised the epoch. If its outcome is unknown, because the connection was lost,
//! the same row is inserted again. If nothing is inserted, the row at that position shows why: it was
//! inserted by the first attempt if it has the epoch of this sequencer, and otherwise another server
//! has replaced this one. An epoch is given to one server only, and a server uses each position once in
//! an epoch, so nothing else needs to be compared.
//!
//! # Invariants
//!
//! * A batch that was found in the log after an interrupted append is acknowledged only after another
//!   write has succeeded. Under synchronous replication, a row can become visible before a standby has
//!   it, if the session that inserted it was interrupted while it waited for the standby. A later
//!   write waits for the standby to receive everything before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_state::mvcc::Compaction;
use quorate_telemetry::log;
use quorate_telemetry::metrics::EngineMetrics;
use tokio::sync::{mpsc, watch};

use super::applying::Prepared;
use crate::batch::Draft;
use crate::database::{Database, DatabaseFault, Session, Statement};
use crate::error::EngineError;
use crate::follower::Rounds;
use crate::replica::Replica;

/// The time after which a failed append is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Appends rows to the log for one epoch.
pub(super) struct Appender {
    pub(super) database: Arc<Database>,
    pub(super) session: Option<Session>,
    pub(super) epoch: u64,
}

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appended {
    /// The row is in the log.
    Done,
    /// The epoch has ended, or the position is taken by a row of another epoch.
    Taken,
    /// The epoch has ended, and an earlier attempt may have appended the row.
    Unknown,
}

impl Appender {
    /// Appends a row at a position. Repeats the attempt until the outcome is known.
    pub(super) async fn append(
        &mut self,
        seq: u64,
        last_revision: i64,
        bytes: &[u8],
    ) -> Result<Appended, DatabaseFault> {
        let mut is_repeated = false;
        loop {
            match self.attempt(seq, last_revision, bytes, is_repeated).await {
                Err(fault) if fault.is_transient() => {
                    log::warn!(
                        "failed to append to the log of the database; trying again",
                        "seq" = seq,
                        "error" = fault.to_string()
                    );
                    if !fault.is_conflict() {
                        self.session = None;
                    }
                    is_repeated = true;
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                appended => return appended,
            }
        }
    }

    async fn attempt(
        &mut self,
        seq: u64,
        last_revision: i64,
        bytes: &[u8],
        is_repeated: bool,
    ) -> Result<Appended, DatabaseFault> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.database.connect().await?,
        };
        let session = self.session.insert(session);
        let (seq, epoch) = (seq.cast_signed(), self.epoch.cast_signed());
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&seq, &epoch, &last_revision, &bytes];
        if session.execute_large(Statement::AppendLog, &parameters, bytes.len()).await? == 1 {
            return Ok(Appended::Done);
        }
        let row = session.query_opt(Statement::EpochInLog, &[&seq]).await?;
        match row.map(|row| row.get::<_, i64>(0)) {
            Some(found) if found == epoch => {}
            // The successor may have compacted what an earlier attempt appended.
            None if is_repeated => return Ok(Appended::Unknown),
            Some(_) | None => return Ok(Appended::Taken),
        }
        assert!(
            is_repeated,
            "a sequencer appends each position once: otherwise two batches would share one position"
        );
        // Any write that succeeds has waited for the same standbys.
        session.execute(Statement::CountRemoved, &[&0_i64, &0_i64]).await?;
        Ok(Appended::Done)
    }
}

/// The task that commits batches.
pub(super) struct Committing {
    pub(super) appender: Appender,
    pub(super) replica: Arc<Replica>,
    pub(super) rounds: Rounds,
    pub(super) prepared: mpsc::Receiver<Prepared>,
    pub(super) committed: watch::Sender<u64>,
    pub(super) compactions: watch::Sender<Option<Compaction>>,
    /// The position of the last committed batch.
    pub(super) seq: u64,
    /// Wakes the task that notifies other servers.
    pub(super) notify: Arc<tokio::sync::Notify>,
    pub(super) metrics: EngineMetrics,
}

impl Committing {
    /// Runs until the queue of batches is closed, or another server has become the sequencer.
    pub(super) async fn run(mut self) -> Result<(), EngineError> {
        while let Some(prepared) = self.prepared.recv().await {
            let Prepared { number, draft, last_revision, replies, compaction } = prepared;
            let committed = if draft.is_empty() {
                self.confirm().await
            } else {
                self.commit(draft, last_revision).await
            };
            match committed {
                Ok(()) => {
                    self.metrics.batches.inc();
                    self.metrics.batch_requests.add(replies.count());
                    self.committed.send_replace(number);
                    if compaction.is_some() {
                        self.compactions.send_replace(compaction);
                    }
                    replies.send();
                }
                Err(error) => {
                    // Nothing of the batch is in the log if its position was taken.
                    if matches!(error, EngineError::SequencerChanged) {
                        replies.refuse();
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn commit(&mut self, draft: Draft, last_revision: i64) -> Result<(), EngineError> {
        let seq = self.seq + 1;
        let bytes = draft.encode();
        let started = Instant::now();
        match self.appender.append(seq, last_revision, &bytes).await? {
            Appended::Done => {}
            Appended::Taken => return Err(EngineError::SequencerChanged),
            Appended::Unknown => return Err(EngineError::OutcomeUnknown),
        }
        self.metrics.commit_duration.observe(started.elapsed());
        self.seq = seq;
        let batch = draft.committed(seq, self.appender.epoch, last_revision)?;
        self.replica.publish(&Arc::new(batch))?;
        self.notify.notify_one();
        Ok(())
    }

    /// Confirms that no other server had become the sequencer when the requests of a batch without
    /// changes arrived. Their answers then reflect everything committed before.
    async fn confirm(&self) -> Result<(), EngineError> {
        self.rounds.wait().await?;
        if self.replica.position().epoch == self.appender.epoch {
            Ok(())
        } else {
            Err(EngineError::SequencerChanged)
        }
    }
}
