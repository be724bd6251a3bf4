//! Appends batches to the log, publishes them, and sends the outcomes of their requests.
//!
//! A batch is appended by one `INSERT`. The primary key of the row is its position in the log. The statement inserts
//! nothing if another server has begun a term (`role`), or if the log does not end with the previous batch. If the
//! outcome is unknown because the connection was lost, the same row is inserted again. If the second attempt inserts
//! nothing, the term of the row at that position shows the reason. If it is the term of this sequencer, the first
//! attempt inserted the row. Otherwise, another server has replaced this sequencer, or the database has lost batches.
//! It is sufficient to compare the terms, because a term belongs to one server only, and a server uses each position
//! only once in a term.
//!
//! # Invariants
//!
//! * A batch that was found in the log after an interrupted append, or whose append caused a warning, is acknowledged
//!   only after another write has succeeded without a warning. Under synchronous replication, a row can become visible
//!   before a standby has received it, if the session that inserted the row was interrupted while it waited for the
//!   standby. An administrator can also cancel this wait, in which case the append succeeds with a warning. A later
//!   write waits until the standby has received all earlier writes.

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
use crate::term_id::TermId;

/// Pause before a failed append is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Appends rows to the log for one term.
pub(super) struct Appender {
    pub(super) database: Arc<Database>,
    pub(super) session: Option<Session>,
    pub(super) term: TermId,
}

/// A row that is to be appended to the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogRow<'a> {
    /// The position of the row in the log.
    pub(super) seq: u64,
    /// The term of the previous batch in the log.
    pub(super) predecessor: TermId,
    pub(super) last_revision: i64,
    pub(super) batch: &'a [u8],
}

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appended {
    /// The row is in the log.
    Done,
    /// The term has ended, the position is taken by a row of another term, or the previous row is
    /// missing.
    Taken,
    /// The term has ended or the previous row is missing, and an earlier attempt may have appended the
    /// row.
    Unknown,
}

impl Appender {
    /// Appends a row at a position. Repeats the attempt until the database has returned a result.
    pub(super) async fn append(&mut self, row: LogRow<'_>) -> Result<Appended, DatabaseFault> {
        let mut is_repeated = false;
        loop {
            match self.attempt(row, is_repeated).await {
                Err(fault) if fault.is_transient() => {
                    log::warn!(
                        "failed to append to the log in the database; trying again",
                        "seq" = row.seq,
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
        row: LogRow<'_>,
        is_repeated: bool,
    ) -> Result<Appended, DatabaseFault> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.database.connect().await?,
        };
        let session = self.session.insert(session);
        let LogRow { seq, predecessor, last_revision, batch } = row;
        let (seq, epoch) = (seq.cast_signed(), self.term.epoch.cast_signed());
        let predecessor_epoch = predecessor.epoch.cast_signed();
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
            &seq,
            &epoch,
            &self.term.nonce,
            &last_revision,
            &batch,
            &predecessor_epoch,
            &predecessor.nonce,
        ];
        session.take_warning();
        if session.execute_large(Statement::AppendLog, &parameters, batch.len()).await? == 1 {
            if session.take_warning() {
                wait_for_standbys(session).await?;
            }
            return Ok(Appended::Done);
        }
        let found = session.query_opt(Statement::TermInLog, &[&seq]).await?;
        match found.map(|found| TermId::of_columns(&found, 0)) {
            Some(found) if found == self.term => {}
            // An earlier attempt may have appended the row. Afterwards, the successor may have removed
            // the row in a compaction, or the database may have lost it.
            None if is_repeated => return Ok(Appended::Unknown),
            Some(_) | None => return Ok(Appended::Taken),
        }
        assert!(
            is_repeated,
            "a sequencer appends each position once: otherwise two batches would share one position"
        );
        wait_for_standbys(session).await?;
        Ok(Appended::Done)
    }
}

/// Waits until the synchronous standbys have received everything that was committed before this call. Every write waits
/// for the same standbys. The function therefore executes a write that changes no values, and repeats this write until
/// the database sends no warning.
async fn wait_for_standbys(session: &Session) -> Result<(), DatabaseFault> {
    loop {
        session.execute(Statement::CountRemoved, &[&0_i64, &0_i64]).await?;
        if !session.take_warning() {
            return Ok(());
        }
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
    /// The position of the last committed batch, which belongs to this term.
    pub(super) seq: u64,
    /// The number of replica restarts before the term began.
    pub(super) restarts: u64,
    /// Wakes the task that notifies other servers.
    pub(super) notify: Arc<tokio::sync::Notify>,
    pub(super) metrics: EngineMetrics,
}

impl Committing {
    /// Runs until the queue of batches is closed, or a batch cannot be committed, for example
    /// because another server has become the sequencer.
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
                    // This error means that the batch is not in the log, so the callers can send their requests to the
                    // new sequencer.
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
        // If the replica has restarted, the requests may have been applied to keys that were loaded
        // after the restart and do not continue the state of this term.
        if self.replica.position().restarts != self.restarts {
            return Err(EngineError::SequencerChanged);
        }
        let seq = self.seq + 1;
        let bytes = draft.encode();
        let started = Instant::now();
        let predecessor = self.appender.term;
        let row = LogRow { seq, predecessor, last_revision, batch: &bytes };
        match self.appender.append(row).await? {
            Appended::Done => {}
            Appended::Taken => return Err(EngineError::SequencerChanged),
            Appended::Unknown => return Err(EngineError::OutcomeUnknown),
        }
        self.metrics.commit_duration.observe(started.elapsed());
        self.seq = seq;
        let mut batch = draft.committed(seq, self.appender.term, last_revision)?;
        // The batch's own `written_seq` is not used, because it dates from the time at which the batch was applied, and
        // the tail has been informed of later writes to the tables since then.
        batch.written_seq = 0;
        self.replica.publish_committed(&Arc::new(batch), self.restarts)?;
        self.notify.notify_one();
        Ok(())
    }

    /// Confirms, for a batch without changes, that no other server had become the sequencer when the requests of the
    /// batch arrived. This confirmation ensures that the responses reflect everything that was committed before the
    /// requests arrived.
    async fn confirm(&self) -> Result<(), EngineError> {
        self.rounds.wait().await?;
        let position = self.replica.position();
        if position.term == self.appender.term && position.restarts == self.restarts {
            Ok(())
        } else {
            Err(EngineError::SequencerChanged)
        }
    }
}
