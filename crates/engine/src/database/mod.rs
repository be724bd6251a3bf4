//! Connections to the database: a bounded pool, prepared statements, and classified errors.
//!
//! A [`Session`] is one connection. Most tasks that run for a long time, such as the log's follower and the task that
//! commits batches, have a session of their own. Reads borrow sessions from the pool, which opens at most
//! [`SESSIONS_MAX`] sessions. While all of these are in use, further reads wait.
//!
//! # Invariants
//!
//! * A session on which a statement was interrupted is closed and never returned to the pool, because
//!   the next statement would wait for the interrupted one. The database ends a statement whose
//!   connection is closed.
//! * [`Database::read_versions`] returns a compacted revision that is at least as new as the rows, so a
//!   caller notices if versions had been removed before the rows were read.
//! * After [`Session::transaction`] has committed, every session sees the changes, on all nodes of a
//!   distributed database.
//!
//! # Not here
//!
//! The text of statements (`statements`, `migrations`), and retries: only the callers know whether a
//! statement can be repeated.

mod fault;
mod hosts;
mod migrations;
mod statements;
mod tls;

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quorate_telemetry::log;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row};
use tokio_stream::StreamExt as _;

pub use self::fault::DatabaseFault;
use self::hosts::Hosts;
pub(crate) use self::statements::{End, Statement, Tables, has_reached_log_limit};
use self::tls::DatabaseTls;
use crate::read_memory::{MemoryShortage, ReadMemory};
use crate::url::{DatabaseUrl, Verification};

/// The maximum number of sessions for reads.
const SESSIONS_MAX: usize = 16;

/// The time limit for one statement. It is longer than a failover of the database usually takes, and
/// shorter than the time after which an operator would investigate.
pub(crate) const STATEMENT_TIME_MAX: Duration = Duration::from_secs(30);

/// The time limit for cancelling a statement.
const CANCEL_TIME_MAX: Duration = Duration::from_secs(5);

/// Extension of the time limit for each mebibyte that a statement sends. Without it, every attempt to
/// send a large batch over a slow network could exceed the time limit.
const MEBIBYTE_TIME_MAX: Duration = Duration::from_secs(1);

/// The maximum number of records that one statement writes or removes. A deletion may change millions
/// of keys, and one statement for all of them would exceed the time limit however often it is repeated.
pub(crate) const STATEMENT_RECORDS_MAX: usize = 2_000;

/// Maximum number of times that a read is repeated because it conflicts with a concurrent transaction.
const CONFLICTS_MAX: u32 = 10;

/// Pause before a read is repeated for the first time because of a conflict. The pause grows with each
/// repetition.
const CONFLICT_INTERVAL: Duration = Duration::from_millis(2);

/// The settings of every session.
const SETTINGS: [&str; 5] = [
    // Compiling a statement to machine code takes PostgreSQL longer than executing it.
    "SET jit = off",
    // If a server is suspended during a transaction, the rows that the transaction has locked are
    // unlocked after 5 seconds, so that another server can take over.
    "SET idle_in_transaction_session_timeout = '5s'",
    // A connection to a server whose machine or network has failed is closed after 15 seconds.
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 2",
    // A commit that is acknowledged before it is on disk can be lost in a crash.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
    // The database ends a statement whose client has closed the connection.
    "SET client_connection_check_interval = '1s'",
];

/// The setting of every session of a Citus database: a statement uses one connection to each worker. By default, a
/// statement for many shards opens up to 16 connections to each worker, which takes longer than most statements, and
/// after the statement, Citus closes all but one of these connections.
const NODE_CONNECTION: &str = "SET citus.max_adaptive_executor_pool_size = 1";

/// The settings of a session that uses several connections to each worker, and keeps them for the next
/// statement.
const NODE_CONNECTIONS: &str =
    "SET citus.max_adaptive_executor_pool_size = 16; SET citus.max_cached_conns_per_worker = 16";

/// The parameters of a statement.
pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The connections to the database of one keyspace.
#[derive(Debug)]
pub(crate) struct Database {
    url: DatabaseUrl,
    hosts: Hosts,
    tls: Option<DatabaseTls>,
    idle: Mutex<Vec<Session>>,
    permits: Semaphore,
    /// Whether Citus distributes the tables of versions. The migration sets this value before any other session is
    /// opened.
    is_distributed: AtomicBool,
    /// Notified when the database reports a new batch.
    pub(crate) batch_reported: Arc<Notify>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    prepared: Mutex<HashMap<Statement, tokio_postgres::Statement>>,
    schema: Arc<str>,
    tables: Tables,
    connection: JoinHandle<()>,
    /// Whether the database has sent a warning since the last call to [`Session::take_warning`].
    is_warned: Arc<AtomicBool>,
}

/// Rows that were read from the tables `versions` and `newest`.
#[derive(Debug)]
pub(crate) struct VersionsRead<T = Row> {
    pub(crate) rows: Vec<T>,
    /// The compacted revision when the rows were read, or a later one.
    pub(crate) compacted: i64,
}

/// The reason why the rows of a statement could not be received.
#[derive(Debug)]
pub(crate) enum StreamFault {
    /// The statement has failed.
    Database(DatabaseFault),
    /// The rows do not fit into memory.
    Memory(MemoryShortage),
}

impl From<DatabaseFault> for StreamFault {
    fn from(fault: DatabaseFault) -> Self {
        Self::Database(fault)
    }
}

impl From<MemoryShortage> for StreamFault {
    fn from(shortage: MemoryShortage) -> Self {
        Self::Memory(shortage)
    }
}

/// A session that is borrowed from the pool. It is closed unless [`Lent::give_back`] is called, because
/// a cancelled read leaves its statement running on the session.
#[derive(Debug)]
struct Lent<'a> {
    session: Session,
    database: &'a Database,
    _permit: SemaphorePermit<'a>,
}

impl Database {
    pub(crate) fn new(url: DatabaseUrl) -> Result<Self, DatabaseFault> {
        let tls = match url.verification {
            Verification::NoTls => None,
            Verification::Preferred | Verification::Encrypted | Verification::Full => {
                Some(DatabaseTls::new(&url)?)
            }
        };
        Ok(Self {
            hosts: Hosts::of(&url.config),
            url,
            tls,
            idle: Mutex::default(),
            permits: Semaphore::new(SESSIONS_MAX),
            is_distributed: AtomicBool::new(false),
            batch_reported: Arc::default(),
        })
    }

    pub(crate) fn schema(&self) -> &str {
        &self.url.schema
    }

    pub(crate) fn with_schema(&self, text: &str) -> String {
        text.replace("{s}", &self.url.schema)
    }

    /// Returns the text of a statement.
    pub(crate) fn text(&self, statement: Statement) -> String {
        statement.text(&self.url.schema, self.tables())
    }

    pub(crate) fn tables(&self) -> Tables {
        match self.is_distributed.load(Ordering::Relaxed) {
            true => Tables::Distributed,
            false => Tables::Local,
        }
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Session, DatabaseFault> {
        let (client, connection, is_warned) = self.open().await?;
        let schema = self.url.schema.as_str().into();
        let (prepared, tables) = (Mutex::default(), self.tables());
        let session = Session { client, prepared, schema, tables, connection, is_warned };
        for setting in SETTINGS {
            // Some databases do not support all settings, so a refused setting is ignored.
            match session.batch(setting).await {
                Ok(()) | Err(DatabaseFault::Statement { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        if tables == Tables::Distributed {
            session.batch(NODE_CONNECTION).await?;
        }
        Ok(session)
    }

    /// Opens a connection to the first host that accepts one and permits writes. A host that does not respond in time is
    /// skipped.
    async fn open(&self) -> Result<(Client, JoinHandle<()>, Arc<AtomicBool>), DatabaseFault> {
        let mut last_fault: Option<DatabaseFault> = None;
        for (at, config) in self.hosts.in_order() {
            let is_warned = Arc::<AtomicBool>::default();
            // The future is boxed, because it is large.
            let connecting = Box::pin(async {
                match &self.tls {
                    Some(tls) => {
                        let (client, connection) = config.connect(tls.clone()).await?;
                        Ok((client, self.drive(connection, &is_warned)))
                    }
                    None => {
                        let (client, connection) = config.connect(NoTls).await?;
                        Ok((client, self.drive(connection, &is_warned)))
                    }
                }
            });
            let unreachable =
                |reason| DatabaseFault::Unreachable { hosts: self.url.hosts(), reason };
            let fault = match within(hosts::time_max(config), connecting).await {
                Ok(Ok((client, connection))) => {
                    self.hosts.accepted(at);
                    return Ok((client, connection, is_warned));
                }
                Ok(Err(error)) => match DatabaseFault::of(&error) {
                    DatabaseFault::Lost(reason) if refuses_writes(&error) => {
                        DatabaseFault::ReadOnly(reason)
                    }
                    DatabaseFault::Lost(reason) => unreachable(reason),
                    other => other,
                },
                Err(DatabaseFault::Lost(reason)) => unreachable(reason),
                Err(fault) => fault,
            };
            // A transient fault is returned in preference to others, so that the caller tries again.
            let keeps_last = last_fault.as_ref().is_some_and(DatabaseFault::is_transient);
            let dropped = if keeps_last && !fault.is_transient() {
                Some(fault)
            } else {
                last_fault.replace(fault)
            };
            if let Some(dropped) = dropped {
                log::warn!(
                    "failed to connect to one of the database's hosts",
                    "error" = dropped.to_string()
                );
            }
        }
        Err(last_fault.expect("the URL of a database contains at least one host"))
    }

    /// Cancels the statement that is running on a session. Without this call, the database notices only after a second
    /// that the connection is closed, if the statement does not send rows at the time.
    pub(crate) async fn cancel(&self, session: &Session) {
        let token = session.client.cancel_token();
        let cancelled = within(CANCEL_TIME_MAX, async {
            match &self.tls {
                Some(tls) => token.cancel_query(tls.clone()).await,
                None => token.cancel_query(NoTls).await,
            }
        });
        // If the database cannot be reached, there is nothing to cancel.
        let (Ok(_) | Err(_)) = cancelled.await;
    }

    /// Starts a task that drives a connection, and that reports the notifications and warnings of the
    /// database.
    fn drive<S, T>(
        &self,
        mut connection: tokio_postgres::Connection<S, T>,
        is_warned: &Arc<AtomicBool>,
    ) -> JoinHandle<()>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
        T: tokio_postgres::tls::TlsStream + Unpin + Send + 'static,
    {
        let (reported, is_warned) = (Arc::clone(&self.batch_reported), Arc::clone(is_warned));
        tokio::spawn(async move {
            // An error of the connection is ignored here, because the waiting statements receive it,
            // too.
            while let Some(Ok(message)) =
                std::future::poll_fn(|cx| connection.poll_message(cx)).await
            {
                match message {
                    AsyncMessage::Notification(_) => reported.notify_one(),
                    AsyncMessage::Notice(notice)
                        if notice.parsed_severity() == Some(Severity::Warning) =>
                    {
                        is_warned.store(true, Ordering::Release);
                    }
                    _ => {}
                }
            }
        })
    }

    /// Borrows a session for reads.
    async fn lend(&self) -> Result<Lent<'_>, DatabaseFault> {
        let permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let idle = {
            let mut idle = self.idle.lock();
            idle.retain(|session| !session.client.is_closed());
            idle.pop()
        };
        let session = match idle {
            Some(session) => session,
            None => self.connect().await?,
        };
        Ok(Lent { session, database: self, _permit: permit })
    }

    /// Executes a read-only statement on a borrowed session. If the statement fails with a transient fault, it is
    /// repeated once. After a lost connection, all idle sessions are closed first, because their connections have
    /// probably been lost, too.
    pub(crate) async fn query(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, DatabaseFault> {
        let mut is_repeated = false;
        loop {
            let lent = self.lend().await?;
            match lent.session.query(statement, parameters).await {
                Ok(rows) => {
                    lent.give_back();
                    return Ok(rows);
                }
                Err(fault) if self.may_repeat(lent, &fault, &mut is_repeated) => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Returns whether a statement that has failed on a borrowed session is repeated.
    fn may_repeat(&self, lent: Lent<'_>, fault: &DatabaseFault, is_repeated: &mut bool) -> bool {
        if !fault.is_transient() || std::mem::replace(is_repeated, true) {
            return false;
        }
        if fault.is_conflict() {
            lent.give_back();
        } else {
            self.idle.lock().clear();
        }
        true
    }

    /// Like [`Database::read_versions`], for a statement that may return many or large rows. Each row is counted and
    /// converted as soon as it arrives. If there is no room for a row, the statement is interrupted.
    pub(crate) async fn stream_versions<T>(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
        memory: &mut ReadMemory<'_, '_>,
        convert: impl Fn(&Row) -> T,
    ) -> Result<VersionsRead<T>, StreamFault> {
        let (bytes, mut is_repeated) = (memory.bytes(), false);
        loop {
            memory.shrink_to(bytes);
            let lent = self.lend().await?;
            match lent.session.stream(statement, parameters, memory, &convert).await {
                Ok((rows, compacted)) => {
                    lent.give_back();
                    let compacted = match compacted {
                        Some(compacted) => compacted,
                        None => self.compacted().await?,
                    };
                    return Ok(VersionsRead { rows, compacted });
                }
                Err(StreamFault::Database(fault))
                    if self.may_repeat(lent, &fault, &mut is_repeated) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn compacted(&self) -> Result<i64, DatabaseFault> {
        let row = self.query_opt(Statement::Compacted, &[]).await?;
        Ok(row.ok_or_else(no_progress)?.get(0))
    }

    /// Reads the tables `versions` and `newest` with a statement that has a column `compacted`.
    pub(crate) async fn read_versions(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<VersionsRead, DatabaseFault> {
        let rows = self.query(statement, parameters).await?;
        with_compacted(rows, async || self.query_opt(Statement::Compacted, &[]).await).await
    }

    /// Like [`Database::query`], for a statement that returns at most one row.
    pub(crate) async fn query_opt(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, DatabaseFault> {
        Ok(self.query(statement, parameters).await?.into_iter().next())
    }
}

impl Session {
    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the rows of a statement.
    pub(crate) async fn query(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, DatabaseFault> {
        let prepared = self.prepared(statement).await?;
        limited(self.client.query(&prepared, parameters)).await
    }

    /// Returns the converted rows of a statement, and the compacted revision that it has read together with the first
    /// row. The rows are counted and converted while they arrive. After an error, the statement may still be running.
    async fn stream<T>(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
        memory: &mut ReadMemory<'_, '_>,
        convert: &impl Fn(&Row) -> T,
    ) -> Result<(Vec<T>, Option<i64>), StreamFault> {
        let prepared = self.prepared(statement).await?;
        let (mut converted, mut compacted) = (Vec::new(), None);
        let stream = async {
            let rows = self.client.query_raw(&prepared, parameters.iter().copied()).await;
            let mut rows = pin!(rows.map_err(DatabaseFault::from)?);
            while let Some(row) = rows.next().await {
                let row = row.map_err(DatabaseFault::from)?;
                memory.add_row(&row)?;
                if converted.is_empty() {
                    compacted = row.get("compacted");
                }
                converted.push(convert(&row));
            }
            Ok::<(), StreamFault>(())
        };
        within(STATEMENT_TIME_MAX, stream).await??;
        Ok((converted, compacted))
    }

    /// Like [`Session::query`], for a statement that returns at most one row.
    pub(crate) async fn query_opt(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, DatabaseFault> {
        Ok(self.query(statement, parameters).await?.into_iter().next())
    }

    /// Like [`Database::read_versions`].
    pub(crate) async fn read_versions(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<VersionsRead, DatabaseFault> {
        let rows = self.query(statement, parameters).await?;
        with_compacted(rows, async || self.query_opt(Statement::Compacted, &[]).await).await
    }

    /// Returns the rows of a read-only statement that is not part of a transaction. The statement is
    /// repeated if it conflicts with a concurrent transaction. In PostgreSQL, a single read never
    /// conflicts, but CockroachDB and YugabyteDB report conflicts for single reads, too.
    pub(crate) async fn read(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, DatabaseFault> {
        let mut conflicts = 0;
        loop {
            match self.query(statement, parameters).await {
                Err(fault) if fault.is_conflict() && conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    tokio::time::sleep(CONFLICT_INTERVAL * conflicts).await;
                }
                rows => return rows,
            }
        }
    }

    /// Like [`Session::read`], for a statement that returns at most one row.
    pub(crate) async fn read_opt(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, DatabaseFault> {
        Ok(self.read(statement, parameters).await?.into_iter().next())
    }

    /// Executes a statement and returns the number of affected rows.
    pub(crate) async fn execute(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
    ) -> Result<u64, DatabaseFault> {
        self.execute_large(statement, parameters, 0).await
    }

    /// Like [`Session::execute`], with a longer time limit for a statement whose parameters are
    /// `bytes` bytes long in total.
    pub(crate) async fn execute_large(
        &self,
        statement: Statement,
        parameters: Parameters<'_>,
        bytes: usize,
    ) -> Result<u64, DatabaseFault> {
        let prepared = self.prepared(statement).await?;
        let mebibytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let time_max = STATEMENT_TIME_MAX + MEBIBYTE_TIME_MAX.saturating_mul(mebibytes);
        limited_to(time_max, self.client.execute(&prepared, parameters)).await
    }

    /// Executes statements without parameters.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), DatabaseFault> {
        limited(self.client.batch_execute(text)).await
    }

    /// Runs statements in a transaction, which is rolled back if any of them fails. `run` returns
    /// whether the transaction is committed.
    pub(crate) async fn transaction(
        &self,
        run: impl AsyncFnOnce(&Self) -> Result<bool, DatabaseFault>,
    ) -> Result<bool, DatabaseFault> {
        self.batch("BEGIN").await?;
        match run(self).await {
            Ok(true) => self.commit().await.map(|()| true),
            Ok(false) => self.batch("ROLLBACK").await.map(|()| false),
            Err(fault) => {
                // If the connection is lost, the database server rolls back automatically.
                let (Ok(()) | Err(_)) = self.batch("ROLLBACK").await;
                Err(fault)
            }
        }
    }

    async fn commit(&self) -> Result<(), DatabaseFault> {
        self.take_warning();
        self.batch("COMMIT").await?;
        // Citus first prepares the transaction on all nodes. Then Citus commits, and sends a warning if a node cannot
        // be informed. A node hides the changes until it is informed.
        if self.tables == Tables::Distributed && self.take_warning() {
            let reason = "a node of the database has not confirmed a commit";
            return Err(DatabaseFault::Lost(reason.to_owned()));
        }
        Ok(())
    }

    /// Makes Citus use several connections to each worker for the statements of this session, and keep these
    /// connections open. The sequencer does this for the three sessions that it uses all the time.
    pub(crate) async fn keep_node_connections(&self) -> Result<(), DatabaseFault> {
        match self.tables {
            Tables::Local => Ok(()),
            Tables::Distributed => self.batch(NODE_CONNECTIONS).await,
        }
    }

    /// Ends transactions that an earlier session has left behind in distributed tables, because they
    /// lock rows that this session writes.
    pub(crate) async fn end_prepared(&self) -> Result<(), DatabaseFault> {
        if self.tables == Tables::Local {
            return Ok(());
        }
        match self.query(Statement::EndPrepared, &[]).await {
            // Without the privilege, Citus ends these transactions within a minute.
            Ok(_) | Err(DatabaseFault::Privilege(_)) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    pub(crate) const fn tables(&self) -> Tables {
        self.tables
    }

    /// Returns the text of a statement.
    pub(crate) fn text(&self, statement: Statement) -> String {
        statement.text(&self.schema, self.tables)
    }

    /// Returns whether the database has sent a warning since the last call. The warning of a statement
    /// arrives before the result of the statement.
    pub(crate) fn take_warning(&self) -> bool {
        self.is_warned.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    async fn prepared(
        &self,
        statement: Statement,
    ) -> Result<tokio_postgres::Statement, DatabaseFault> {
        let known = self.prepared.lock().get(&statement).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let prepared = limited(self.client.prepare(&self.text(statement))).await?;
        self.prepared.lock().insert(statement, prepared.clone());
        Ok(prepared)
    }
}

/// Adds the compacted revision to rows. If the statement has not read this revision together with the rows, `read`
/// returns it. Because `read` is called after the rows were read, the revision is at least as new as the rows.
async fn with_compacted(
    rows: Vec<Row>,
    read: impl AsyncFnOnce() -> Result<Option<Row>, DatabaseFault>,
) -> Result<VersionsRead, DatabaseFault> {
    let compacted = match compacted_in(&rows) {
        Some(compacted) => compacted,
        None => read().await?.ok_or_else(no_progress)?.get(0),
    };
    Ok(VersionsRead { rows, compacted })
}

/// Returns the compacted revision that a statement has read together with its rows; `None` if the
/// statement has found nothing, or has read distributed tables.
fn compacted_in(rows: &[Row]) -> Option<i64> {
    rows.first().and_then(|row| row.get("compacted"))
}

/// Returns the fault for a missing row in table `progress`.
pub(crate) fn no_progress() -> DatabaseFault {
    DatabaseFault::Content { table: "progress", problem: "the row is missing".to_owned() }
}

/// Returns whether the client library has closed a new connection because the server is read-only. The
/// library reports this as an I/O error.
fn refuses_writes(error: &tokio_postgres::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::PermissionDenied)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Lent<'_> {
    /// Returns the session to the pool. No statement may be running on the session.
    fn give_back(self) {
        if !self.session.is_closed() {
            self.database.idle.lock().push(self.session);
        }
    }
}

/// Waits for a statement, but not longer than [`STATEMENT_TIME_MAX`].
async fn limited<T>(
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseFault> {
    limited_to(STATEMENT_TIME_MAX, answer).await
}

async fn limited_to<T>(
    time_max: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseFault> {
    Ok(within(time_max, answer).await??)
}

async fn within<T>(
    time_max: Duration,
    answer: impl Future<Output = T>,
) -> Result<T, DatabaseFault> {
    let answer = tokio::time::timeout(time_max, answer).await;
    answer.map_err(|_| DatabaseFault::Lost(format!("no response within {} s", time_max.as_secs())))
}
