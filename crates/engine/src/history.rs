//! The history of changes, from which the hub serves watchers that are behind.
//!
//! The newest batches are read from the tail, and older batches from the log, which contains all
//! changes after the compacted revision. Previous values of keys are read from the tail or from table
//! `versions`.
//!
//! The hub calls this module on threads that must not wait for a task of their own runtime. Therefore
//! the statements run on a separate thread, which has its own runtime and its own session.
//!
//! # Invariants
//!
//! * Changes are read in the order of the log. In addition to the tail, at most [`BATCHES_MAX`] batches
//!   are in memory.
//! * The statement with which this module reads the log also reads the compacted revision, which is stored before any
//!   batch is removed. A reader that needs changes below the compacted revision stops, because batches may be missing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quorate_api::record::KeyValue;
use quorate_state::mvcc::KeyRange;
use quorate_state::watch::{Event, History, HistoryFault, Source};
use quorate_telemetry::log;
use tokio::sync::mpsc;

use crate::batch::Committed;
use crate::database::{Database, DatabaseFault, Session, Statement, no_progress};
use crate::tail::{Position, Tail};

/// Maximum number of batches that one statement reads. The statement also limits the bytes of the batches.
const BATCHES_MAX: i64 = 8;
/// Pause between two attempts to read from the database.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

type Reply<T> = std::sync::mpsc::SyncSender<Result<T, DatabaseFault>>;

enum Question {
    Batches { revision: i64, after: i64, reply: Reply<BatchesRead> },
    RecordAt { key: Bytes, revision: i64, reply: Reply<Option<Bytes>> },
}

/// Batches of the log, and the compacted revision that the same statement has read.
struct BatchesRead {
    batches: Vec<Arc<Committed>>,
    compacted: i64,
}

/// Reads history for the hub, through a separate thread.
#[derive(Debug)]
pub(crate) struct HistoryReader {
    tail: Arc<Tail>,
    questions: mpsc::UnboundedSender<Question>,
}

impl HistoryReader {
    /// Starts the thread that reads from the database. The thread ends when the reader is dropped.
    pub(crate) fn start(database: Arc<Database>, tail: Arc<Tail>) -> std::io::Result<Self> {
        let (questions, receiver) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || runtime.block_on(answer_all(&database, receiver)))?;
        Ok(Self { tail, questions })
    }

    fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, HistoryFault> {
        let (reply, receiver) = std::sync::mpsc::sync_channel(1);
        let stopped = || HistoryFault::from("the thread that reads history has ended");
        self.questions.send(question(reply)).map_err(|_| stopped())?;
        Ok(receiver.recv().map_err(|_| stopped())??)
    }
}

/// The history up to one position of the log.
struct HistoryAt {
    reader: Arc<HistoryReader>,
    position: Position,
}

/// The source from which the hub reads history.
#[derive(Clone, Debug)]
pub(crate) struct HistorySource(pub(crate) Arc<HistoryReader>);

impl Source for HistorySource {
    fn latest(&self) -> Box<dyn History> {
        Box::new(HistoryAt { reader: Arc::clone(&self.0), position: self.0.tail.position() })
    }
}

impl History for HistoryAt {
    fn current_revision(&self) -> i64 {
        self.position.revision
    }

    fn compacted_revision(&self) -> i64 {
        self.position.compacted
    }

    fn is_local(&self, first: i64) -> bool {
        self.reader.tail.contains(first)
    }

    fn visit_changes(
        &self,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> Result<Option<i64>, HistoryFault> {
        let mut from = first;
        let mut after = -1;
        loop {
            let in_tail = self.reader.tail.since(from);
            let is_last = in_tail.is_some();
            let batches = match in_tail {
                Some(batches) => batches,
                None => {
                    let read = self.reader.ask(|reply| {
                        let revision = from;
                        Question::Batches { revision, after, reply }
                    })?;
                    if from < read.compacted {
                        return Ok(Some(read.compacted));
                    }
                    read.batches
                }
            };
            let Some(last) = batches.last() else { return Ok(None) };
            (from, after) = (last.last_revision.max(from), last.seq.cast_signed());
            for batch in &batches {
                if !self.visit_batch(batch, first, visit) {
                    return Ok(None);
                }
            }
            if is_last || from >= self.position.revision {
                return Ok(None);
            }
            from += 1;
        }
    }

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, HistoryFault> {
        if revision < self.position.compacted {
            return Ok(None);
        }
        let (overlaid, _) = self.reader.tail.overlay(KeyRange::One(key), Some(revision));
        if let Some(overlaid) = overlaid.into_iter().next() {
            return Ok(overlaid.live.map(|(_, record)| KeyValue::from_encoded(record)));
        }
        let key = Bytes::copy_from_slice(key);
        let found = self.reader.ask(|reply| Question::RecordAt { key, revision, reply })?;
        Ok(found.map(KeyValue::from_encoded))
    }
}

impl HistoryAt {
    /// Calls `visit` for the changes of a batch from revision `first` up to the revision of this
    /// history. Returns whether the next batch should be visited, too.
    fn visit_batch(
        &self,
        batch: &Committed,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> bool {
        for record in &batch.records {
            let revision = record.at.revision.main;
            if revision < first {
                continue;
            }
            if revision > self.position.revision {
                return false;
            }
            let shown = record.as_event();
            let deleted = record.at.tombstone;
            let event = Event { deleted, key: &record.key, record: shown.encoded() };
            if !visit(revision, &event) {
                return false;
            }
        }
        true
    }
}

async fn answer_all(database: &Database, mut questions: mpsc::UnboundedReceiver<Question>) {
    let mut session = None;
    while let Some(question) = questions.recv().await {
        // The asking thread waits for the reply, so sending the reply fails only if that thread has
        // panicked.
        match question {
            Question::Batches { revision, after, reply } => {
                let answer = retried(database, &mut session, async |session| {
                    read_batches(session, revision, after).await
                });
                let (Ok(()) | Err(_)) = reply.send(answer.await);
            }
            Question::RecordAt { key, revision, reply } => {
                let answer = retried(database, &mut session, async |session| {
                    read_record(session, &key, revision).await
                });
                let (Ok(()) | Err(_)) = reply.send(answer.await);
            }
        }
    }
}

/// Repeats a read while the database is unavailable, because returning the fault would cancel watchers.
async fn retried<T>(
    database: &Database,
    session: &mut Option<Session>,
    read: impl AsyncFn(&Session) -> Result<T, DatabaseFault>,
) -> Result<T, DatabaseFault> {
    loop {
        let connected = match session.take().filter(|session| !session.is_closed()) {
            Some(session) => Ok(session),
            None => database.connect().await,
        };
        let answer = match connected {
            Ok(connected) => {
                let answer = read(&connected).await;
                if answer.is_ok() {
                    *session = Some(connected);
                }
                answer
            }
            Err(fault) => Err(fault),
        };
        match answer {
            Err(fault) if fault.is_transient() => {
                log::warn!("failed to read history for watchers", "error" = fault.to_string());
            }
            answer => return answer,
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn read_batches(
    session: &Session,
    revision: i64,
    after: i64,
) -> Result<BatchesRead, DatabaseFault> {
    let rows =
        session.query(Statement::ReadLogFromRevision, &[&revision, &after, &BATCHES_MAX]).await?;
    let compacted = match rows.first() {
        Some(row) => row.get::<_, Option<i64>>(5).ok_or_else(no_progress)?,
        None => -1,
    };
    let batches = rows.iter().map(|row| Committed::decode(row).map(Arc::new));
    Ok(BatchesRead { batches: batches.collect::<Result<_, _>>()?, compacted })
}

async fn read_record(
    session: &Session,
    key: &[u8],
    revision: i64,
) -> Result<Option<Bytes>, DatabaseFault> {
    let read = session.read_versions(Statement::VersionAt, &[&key, &revision]).await?;
    let live = read
        .rows
        .first()
        .filter(|row| read.compacted <= revision && row.get::<_, Option<bool>>(3) == Some(false));
    Ok(live.map(|row| Bytes::copy_from_slice(row.get(4))))
}
