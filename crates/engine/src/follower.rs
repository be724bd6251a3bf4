//! The follower: reads the log for a server's replica.
//!
//! A *round* reads all batches that were committed before it began. It serves three purposes. A
//! linearizable read waits for a round that began after the read arrived. A server that is not the
//! sequencer learns of new batches, whenever the database or the sequencer reports them. And a
//! sequencer confirms that no other server has replaced it, because a new sequencer begins with a
//! batch of its own.
//!
//! All requests that wait while a round is running share the next one.
//!
//! # Invariants
//!
//! * A round that was requested at some time has read everything committed before that time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_state::backend::Rows;
use quorate_state::schema::Bucket;
use quorate_state::units::LeaseId;
use quorate_telemetry::log;
use tokio::sync::{mpsc, oneshot};

use crate::batch::{Committed, bucket_of};
use crate::database::{Database, DatabaseFault, Session, Statement};
use crate::error::EngineError;
use crate::history::HistorySource;
use crate::replica::{Replica, Start};
use crate::tail::Position;

/// The maximum number of batches that one statement reads.
const BATCHES_MAX: i64 = 64;
/// Rounds that wait at most.
const WAITING_MAX: usize = 65_536;
/// The interval between rounds of an idle server, in case a report of the database was lost.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// The interval if the database cannot report new batches.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time after which a failed round is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A request for a round. The sender is dropped if the round fails.
type Waiting = oneshot::Sender<()>;

/// The handle to request rounds.
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
            EngineError::Database(DatabaseFault::Lost("the log could not be read".to_owned()))
        })
    }
}

/// Reads the log.
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
            let interval = if can_listen { IDLE_INTERVAL } else { POLL_INTERVAL };
            let leads = self.replica.leads();
            let reported = Arc::clone(&self.database.batch_reported);
            let first = tokio::select! {
                first = self.waiting.recv() => match first {
                    Some(first) => Some(first),
                    None => return,
                },
                // The sequencer has committed every new batch itself.
                () = reported.notified(), if !leads => None,
                () = tokio::time::sleep(interval) => {
                    if leads {
                        continue;
                    }
                    None
                }
            };
            // Requests that arrived before the round begins are served by it.
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
                        "failed to read the log of the database",
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
                // Databases without notifications refuse the statement, and are polled.
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

    /// Fails the requests that wait, so that their clients do not wait for a database that is gone.
    fn fail_waiting(&mut self) {
        while let Ok(waiting) = self.waiting.try_recv() {
            drop(waiting);
        }
    }

    async fn round(&self, session: &Session) -> Result<(), EngineError> {
        'read: loop {
            let reached = self.replica.position().seq;
            let rows =
                session.query(Statement::ReadLog, &[&reached.cast_signed(), &BATCHES_MAX]).await?;
            for row in &rows {
                let batch = Arc::new(Committed::decode(row)?);
                let next = self.replica.position().seq + 1;
                if batch.seq > next {
                    // The log continues beyond the tables.
                    self.resume(session).await?;
                    continue 'read;
                }
                self.replica.publish(&batch)?;
            }
            if i64::try_from(rows.len()).is_ok_and(|count| count < BATCHES_MAX) {
                return Ok(());
            }
        }
    }

    /// Restarts the replica from the tables.
    async fn resume(&self, session: &Session) -> Result<(), EngineError> {
        log::warn!(
            "this server has missed batches that a compaction has removed; reading the tables again"
        );
        let start = read_start(session).await?;
        // A batch leaves the log only after its changes are in the tables.
        if start.position.seq <= self.replica.position().seq {
            return Err(DatabaseFault::Content {
                table: "log",
                problem: format!("the batch after position {} is missing", start.position.seq),
            }
            .into());
        }
        self.replica.resume(start, Arc::new(self.history.clone()))
    }
}

/// Reads the tables from which a replica starts. The replica then follows the log from the position
/// of the result on.
pub(crate) async fn read_start(session: &Session) -> Result<Start, EngineError> {
    loop {
        // The position is read before the rows. Batches that reach the tables in between are
        // followed again, which changes nothing.
        let progress = session.query_opt(Statement::ReadProgress, &[]).await?;
        let progress = progress.ok_or_else(|| DatabaseFault::Content {
            table: "progress",
            problem: "the row is missing".to_owned(),
        })?;
        let written: i64 = progress.get(0);
        let mut rows = Rows::new("database");
        for row in session.query(Statement::ReadFacts, &[]).await? {
            let bucket = row.get::<_, i32>(0);
            let bucket = u32::try_from(bucket).ok().and_then(bucket_of);
            let bucket: Bucket = bucket.ok_or_else(|| DatabaseFault::Content {
                table: "facts",
                problem: format!("bucket {} is unknown", row.get::<_, i32>(0)),
            })?;
            let copy = |column: usize| Bytes::copy_from_slice(row.get(column));
            rows.put(bucket, copy(1), copy(2));
        }
        // The newest batch always stays in the log, and so does the last one in the tables, unless it
        // was compacted since. Then the position is read again.
        let at = session.query(Statement::ReadLog, &[&(written - 1), &1_i64]).await?;
        let Some(batch) = at.first().filter(|row| row.get::<_, i64>(0) == written) else {
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        };
        let (epoch, revision) = (batch.get::<_, i64>(1), batch.get::<_, i64>(2));
        let index = if written == 0 { 0 } else { Committed::decode(batch)?.index };
        let seq = written.cast_unsigned();
        let compacted = rows.compacted_revision()?;
        let position = Position {
            seq,
            epoch: epoch.cast_unsigned(),
            revision,
            compacted,
            written_seq: seq,
            index,
        };
        let attachments = read_attachments(session).await?;
        return Ok(Start { rows, attachments, position });
    }
}

/// Reads the keys that are attached to leases.
pub(crate) async fn read_attachments(
    session: &Session,
) -> Result<Vec<(Bytes, LeaseId)>, DatabaseFault> {
    let rows = session.query(Statement::ReadAttachments, &[]).await?;
    let attachment =
        |row: &tokio_postgres::Row| (Bytes::copy_from_slice(row.get(0)), LeaseId(row.get(1)));
    Ok(rows.iter().map(attachment).collect())
}
