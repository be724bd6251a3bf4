//! The follower: reads the log for a server's replica.
//!
//! A *round* reads all batches that were committed before the round began. Rounds have three purposes. A linearizable
//! read waits for a round that began after the read arrived. A server that is not the sequencer runs a round to receive
//! new batches, whenever the database reports them. Finally, a sequencer runs a round to confirm that no other server
//! has replaced it. If one had, the round would return the first batch of the new sequencer.
//!
//! All requests for a round that arrive while another round is running share the next round.
//!
//! # Invariants
//!
//! * A completed round has read everything that was committed before the round was requested.
//! * A round first reads the last batch that this server knows. If the log contains a different batch at that position,
//!   or ends before that position, the database has lost committed batches. The replica then restarts from the tables
//!   and cancels its watchers, because they may have received the lost changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_state::apply::ResumedHistory;
use quorate_state::backend::Rows;
use quorate_state::schema::Bucket;
use quorate_state::units::LeaseId;
use quorate_telemetry::log;
use tokio::sync::{mpsc, oneshot};

use crate::batch::{Committed, bucket_of};
use crate::database::{
    Database, DatabaseFault, Session, Statement, has_reached_log_limit, no_progress,
};
use crate::error::EngineError;
use crate::history::HistorySource;
use crate::replica::{Replica, Start};
use crate::tail::Position;
use crate::term_id::TermId;

/// The maximum number of batches that one statement reads, including the last known batch. The statement also limits
/// the bytes of the batches.
const BATCHES_MAX: i64 = 64;
/// Maximum number of requests that wait for a round.
const WAITING_MAX: usize = 65_536;
/// Interval between rounds of an idle server. These rounds read batches whose notification from the
/// database was lost.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between rounds if the database does not support notifications of new batches.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Pause before the next attempt to connect to the database. Also the pause before a start position is read again
/// because a compaction has removed the batch at that position.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A request for a round. The sender is dropped if the round fails.
type Waiting = oneshot::Sender<()>;

/// A handle for requesting rounds.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    sender: mpsc::Sender<Waiting>,
}

impl Rounds {
    /// Waits for a round that begins after this call.
    pub(crate) async fn wait(&self) -> Result<(), EngineError> {
        let (sender, receiver) = oneshot::channel();
        self.sender.try_send(sender).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => EngineError::TooManyRequests,
            mpsc::error::TrySendError::Closed(_) => EngineError::Stopped,
        })?;
        receiver.await.map_err(|_| {
            EngineError::Database(DatabaseFault::Unread("the log table could not be read"))
        })
    }
}

/// The task that reads the log for a replica.
pub(crate) struct Follower {
    database: Arc<Database>,
    replica: Arc<Replica>,
    history: HistorySource,
    waiting: mpsc::Receiver<Waiting>,
}

impl Follower {
    pub(crate) fn new(
        database: Arc<Database>,
        replica: Arc<Replica>,
        history: HistorySource,
    ) -> (Self, Rounds) {
        let (sender, waiting) = mpsc::channel(WAITING_MAX);
        (Self { database, replica, history, waiting }, Rounds { sender })
    }

    /// Runs rounds until the engine stops.
    pub(crate) async fn run(mut self) {
        let mut session = None;
        let mut can_listen = true;
        loop {
            let Some(connected) = &session else {
                session = self.connect(&mut can_listen).await;
                if session.is_none() {
                    self.fail_waiting();
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                continue;
            };
            let leads = self.replica.leads();
            let interval = if can_listen || leads { IDLE_INTERVAL } else { POLL_INTERVAL };
            let reported = Arc::clone(&self.database.batch_reported);
            let first = tokio::select! {
                first = self.waiting.recv() => match first {
                    Some(first) => Some(first),
                    None => return,
                },
                // The sequencer ignores notifications, because it has committed every new batch itself.
                () = reported.notified(), if !leads => None,
                // The sequencer also runs periodic rounds, to detect that the database has lost
                // batches.
                () = tokio::time::sleep(interval) => None,
            };
            // The round serves all requests that arrived before it begins.
            let mut served: Vec<Waiting> = first.into_iter().collect();
            while let Ok(another) = self.waiting.try_recv() {
                served.push(another);
            }
            match self.round(connected).await {
                Ok(()) => {
                    for waiting in served {
                        // The caller may have stopped waiting.
                        let (Ok(()) | Err(())) = waiting.send(());
                    }
                }
                Err(error) => {
                    log::warn!(
                        "failed to read the log in the database",
                        "error" = error.to_string()
                    );
                    session = None;
                }
            }
        }
    }

    async fn connect(&self, can_listen: &mut bool) -> Option<Session> {
        match self.database.connect().await {
            Ok(session) => {
                // A database without notifications refuses this statement. The follower then polls the
                // database.
                let listen = format!("LISTEN {}_log", self.database.schema());
                match session.batch(&listen).await {
                    Ok(()) => *can_listen = true,
                    Err(DatabaseFault::Statement { .. }) => *can_listen = false,
                    Err(_) => return None,
                }
                Some(session)
            }
            Err(error) => {
                log::warn!("failed to connect to the database", "error" = error.to_string());
                None
            }
        }
    }

    /// Fails the waiting requests, so that their clients do not wait for an unreachable database.
    fn fail_waiting(&mut self) {
        while let Ok(waiting) = self.waiting.try_recv() {
            drop(waiting);
        }
    }

    async fn round(&self, session: &Session) -> Result<(), EngineError> {
        loop {
            let reached = self.replica.position();
            let read = read_log(session, reached.seq).await?;
            if read.first != Some((reached.seq, reached.term)) {
                // If this server is the sequencer, it may have published later batches in the meantime,
                // and a compaction may have removed the batch at the position that was read.
                if self.replica.position().seq != reached.seq {
                    continue;
                }
                self.restart(session, reached, read.first).await?;
                continue;
            }
            if read.written_seq < reached.written_seq {
                self.rewind(session, reached, read.written_seq).await?;
            }
            for mut batch in read.batches {
                // Since the batch was committed, the database may have lost changes to its tables. In that case,
                // `written_seq` in the batch is too high.
                batch.written_seq = batch.written_seq.min(read.written_seq);
                let next = self.replica.position().seq + 1;
                if batch.seq > next {
                    return Err(missing(next).into());
                }
                self.replica.publish(&Arc::new(batch))?;
            }
            // The position in the last batch dates from before the batch was written to the tables. The sequencer writes
            // the tables itself, and records its own progress.
            if !self.replica.leads() {
                self.replica.tail.written(read.written_seq);
            }
            if read.is_end {
                return Ok(());
            }
        }
    }

    /// Restarts the replica from the tables, because the log does not contain the last batch that the
    /// replica has published. `first` is the first batch in the log at or after the position of that
    /// batch.
    async fn restart(
        &self,
        session: &Session,
        reached: Position,
        first: Option<(u64, TermId)>,
    ) -> Result<(), EngineError> {
        let start = read_start(session).await?;
        let found = start.position;
        // A compaction removes a batch from the log only after the changes of the batch are in the
        // tables, and only if the last revision of the batch is below the compacted revision.
        let is_compacted = first.is_some_and(|(seq, _)| seq > reached.seq)
            && reached.seq < found.seq
            && reached.revision < found.compacted;
        let history = if is_compacted {
            log::warn!(
                "this server has missed batches that a compaction has removed; reading the tables again"
            );
            ResumedHistory::Same
        } else {
            log::error!(
                "the database has lost committed batches; cancelling all watchers and reading the tables again",
                "known-position" = reached.seq,
                "known-revision" = reached.revision,
                "tables-position" = found.seq,
                "tables-revision" = found.revision
            );
            ResumedHistory::Different
        };
        self.replica.restart(reached, start, Arc::new(self.history.clone()), history)
    }

    /// If the tables have lost changes, puts the batches with these changes back into the tail.
    async fn rewind(
        &self,
        session: &Session,
        reached: Position,
        written_seq: u64,
    ) -> Result<(), EngineError> {
        log::error!(
            "the database tables have lost changes; restoring the changes from the log",
            "known-position" = reached.written_seq,
            "tables-position" = written_seq
        );
        let (mut batches, mut first_revision) = (VecDeque::new(), None);
        let mut from = written_seq;
        while from < reached.seq {
            let read = read_log(session, from).await?;
            let is_there = read.first.is_some_and(|(seq, _)| seq == from);
            let (true, Some(last)) = (is_there, read.batches.last()) else {
                return Err(missing(from).into());
            };
            first_revision.get_or_insert(read.first_revision + 1);
            from = last.seq;
            batches.extend(read.batches.into_iter().map(Arc::new));
        }
        while batches.back().is_some_and(|last: &Arc<Committed>| last.seq > reached.seq) {
            batches.pop_back();
        }
        // If the log has changed since the round compared the last batch, the next round restarts the
        // replica.
        if batches.back().is_none_or(|last| (last.seq, last.term) != (reached.seq, reached.term)) {
            return Err(missing(reached.seq).into());
        }
        let first_revision = first_revision.unwrap_or(reached.revision + 1);
        self.replica.rewind(written_seq, first_revision, batches);
        Ok(())
    }
}

/// A part of the log.
pub(crate) struct LogRead {
    /// The position and the term of the first batch that was read.
    pub(crate) first: Option<(u64, TermId)>,
    /// The last revision of the first batch.
    first_revision: i64,
    /// The batches after the start position of the read.
    pub(crate) batches: Vec<Committed>,
    /// Position of the last batch that is in the tables.
    written_seq: u64,
    /// Whether the read reached the end of the log.
    pub(crate) is_end: bool,
}

/// Reads a part of the log, beginning at a position.
pub(crate) async fn read_log(session: &Session, from: u64) -> Result<LogRead, DatabaseFault> {
    let rows = session.read(Statement::ReadLog, &[&from.cast_signed(), &BATCHES_MAX]).await?;
    let is_end = i64::try_from(rows.len()).is_ok_and(|count| count < BATCHES_MAX)
        && !rows.last().is_some_and(has_reached_log_limit);
    let seq_of = |row: &tokio_postgres::Row| row.get::<_, i64>(0).cast_unsigned();
    let Some(first) = rows.first() else {
        let (first, batches) = (None, Vec::new());
        return Ok(LogRead { first, first_revision: 0, batches, written_seq: 0, is_end });
    };
    let after = rows.iter().filter(|row| seq_of(row) > from);
    Ok(LogRead {
        first: Some((seq_of(first), TermId::of_columns(first, 1))),
        first_revision: first.get(3),
        batches: after.map(Committed::decode).collect::<Result<_, _>>()?,
        written_seq: first.get::<_, Option<i64>>(5).unwrap_or(0).cast_unsigned(),
        is_end,
    })
}

fn missing(seq: u64) -> DatabaseFault {
    let problem = format!("the batch at position {seq} is missing");
    DatabaseFault::Content { table: "log", problem }
}

/// Reads the state from which a replica starts. The replica then follows the log from the returned
/// position on.
pub(crate) async fn read_start(session: &Session) -> Result<Start, EngineError> {
    loop {
        // The position is read before the rows. A batch that is written to the tables in between is
        // read again from the log, and applying it twice changes nothing.
        let progress = session.read_opt(Statement::ReadProgress, &[]).await?;
        let progress = progress.ok_or_else(no_progress)?;
        let written: i64 = progress.get(0);
        let mut rows = Rows::new("database");
        for row in session.read(Statement::ReadFacts, &[]).await? {
            let bucket = row.get::<_, i32>(0);
            let bucket = u32::try_from(bucket).ok().and_then(bucket_of);
            let bucket: Bucket = bucket.ok_or_else(|| DatabaseFault::Content {
                table: "facts",
                problem: format!("bucket {} is unknown", row.get::<_, i32>(0)),
            })?;
            let copy = |column: usize| Bytes::copy_from_slice(row.get(column));
            rows.put(bucket, copy(1), copy(2));
        }
        // The newest batch always stays in the log. The batch at position `written` is still in the log, too, unless a
        // compaction has removed it since the position was read. In that case, the position is read again.
        let batch = session.read_opt(Statement::ReadBatch, &[&written]).await?;
        let Some(batch) = batch else {
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        };
        let (term, revision) = (TermId::of_columns(&batch, 1), batch.get::<_, i64>(3));
        let index = if written == 0 { 0 } else { Committed::decode(&batch)?.index };
        let seq = written.cast_unsigned();
        let compacted = rows.compacted_revision()?;
        let position =
            Position { seq, term, revision, compacted, written_seq: seq, index, restarts: 0 };
        let attachments = read_attachments(session).await?;
        return Ok(Start { rows, attachments, position });
    }
}

/// Reads the keys that are attached to leases.
pub(crate) async fn read_attachments(
    session: &Session,
) -> Result<Vec<(Bytes, LeaseId)>, DatabaseFault> {
    let rows = session.read(Statement::ReadAttachments, &[]).await?;
    let attachment =
        |row: &tokio_postgres::Row| (Bytes::copy_from_slice(row.get(0)), LeaseId(row.get(1)));
    Ok(rows.iter().map(attachment).collect())
}
