//! The engine, which is one of the servers that share a keyspace in a database. The services use it through [`Engine`].

use std::future::Future;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb as pb;
use quorate_state::apply::{AuthRefusal, Permission, PublishedState, Refusal, StateOptions};
use quorate_state::auth::{Access, Caller};
use quorate_state::backend::Backend;
use quorate_state::lease::Renewal;
use quorate_state::mvcc::{HashKv, RangeQuery, RangeResult};
use quorate_state::units::{LeaseId, Millis};
use quorate_telemetry::metrics::Metrics;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::counting;
use crate::database::{Database, DatabaseFault, Statement};
use crate::dump;
use crate::error::EngineError;
use crate::follower::{Follower, Rounds, read_start};
use crate::history::{HistoryReader, HistorySource};
use crate::loading::LOAD_BYTES_MAX;
use crate::read_memory::{ReadMemory, Reserve};
use crate::reader::{Answer, ReadFault, TableReader};
use crate::replica::{Clock, Replica};
use crate::role::{self, Destination, ROLE_MILLIS, Role, ServerIdentity, ServerRow};
use crate::sequencer::{Author, Outcome, SequencerHandle, TermContext};
use crate::url::DatabaseUrl;
use crate::wire::{LeaseTimes, Question, Reply};

/// Maximum time that a request waits for a server to become the sequencer.
const SEQUENCER_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of attempts at a read. An attempt fails if a compaction or a loss of changes overtakes it.
const ATTEMPTS_MAX: usize = 10;
/// Interval at which [`Engine::wait_compacted`] checks for remaining garbage.
const GARBAGE_INTERVAL: Duration = Duration::from_millis(50);

/// The options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The URL of the database, including credentials.
    pub database: DatabaseUrl,
    /// The identity of this server.
    pub server: ServerIdentity,
    /// The options of the replicated state. The quota limits the total bytes of all versions of all
    /// keys.
    pub state: StateOptions,
    /// The id that a new keyspace receives if this server creates the tables.
    pub new_cluster_id: u64,
    /// The metrics of this server.
    pub metrics: Arc<Metrics>,
    /// Maximum memory for the keys and values that the requests of one batch read or delete, and for the rows of one
    /// read, in bytes.
    pub load_bytes_max: usize,
}

impl EngineOptions {
    /// The value of [`EngineOptions::load_bytes_max`] outside tests.
    pub const LOAD_BYTES_MAX: usize = LOAD_BYTES_MAX;
}

/// The reason why a forwarded request has no response.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The request was not sent, or the receiver did not accept it, so it was not executed.
    #[error("no connection to the sequencer")]
    NotSent,
    /// The connection was lost after the request may have been sent.
    #[error("the connection to the sequencer was lost")]
    Lost,
    /// The request was not sent, because it is too large, or because the requests that are waiting for
    /// the sequencer exceed a limit on their total size.
    #[error("too many requests are waiting for the sequencer")]
    TooMany,
}

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The transport between servers.
pub trait Forward: Send + Sync {
    /// Sends a frame to a server and returns the response. The receiving server passes the frame to
    /// [`Engine::serve`], which executes the request as the user that the frame names. Therefore a
    /// server must accept frames only from a sender that knows the server's secret.
    fn forward<'a>(
        &'a self,
        to: &'a Destination,
        frame: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, ForwardError>>;
}

/// The state of a server, for status requests and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// The id of the sequencer, or 0 if there is no sequencer.
    pub sequencer_id: u64,
    /// The epoch of the sequencer, which corresponds to the raft term of a member.
    pub epoch: u64,
    /// The number of the last committed request, which corresponds to a raft index.
    pub index: u64,
    /// The position in the log of the last committed batch that this server knows.
    pub log_position: u64,
    /// The newest revision.
    pub revision: i64,
    /// The compacted revision, or -1.
    pub compacted_revision: i64,
    /// Number of bytes of all versions in the tables. On a server other than the sequencer, the value is up to half a
    /// second old.
    pub stored_bytes: u64,
    /// The bytes of committed batches that are not in the tables yet.
    pub backlog_bytes: u64,
    /// The number of committed batches that are not in the tables yet.
    pub backlog_batches: u64,
}

/// A server of a keyspace. Clones are handles to the same server.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    cluster_id: u64,
    context: TermContext,
    role: Arc<Role>,
    reader: TableReader,
    forward: Arc<dyn Forward>,
    tasks: tokio::sync::Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Connects to the database, creates or migrates the tables, and starts the tasks of the server.
    ///
    /// # Errors
    ///
    /// If the database cannot be used.
    pub async fn start(
        options: EngineOptions,
        forward: Arc<dyn Forward>,
    ) -> Result<Self, EngineError> {
        let EngineOptions { database, server, state, new_cluster_id, metrics, load_bytes_max } =
            options;
        let database = Arc::new(Database::new(database)?);
        let cluster_id = database.migrate(new_cluster_id.cast_signed()).await?.cast_unsigned();
        let session = database.connect().await?;
        let start = read_start(&session).await?;
        let replica = Arc::new(Replica::new(start, state, Clock::start())?);
        let tail = Arc::clone(&replica.tail);
        let history =
            HistoryReader::start(Arc::clone(&database), tail).map_err(EngineError::Thread)?;
        let history = HistorySource(Arc::new(history));
        replica.read_history_from(Arc::new(history.clone()));
        let (follower, rounds) =
            Follower::new(Arc::clone(&database), Arc::clone(&replica), history);
        let context = TermContext {
            database: Arc::clone(&database),
            replica: Arc::clone(&replica),
            rounds: rounds.clone(),
            options: state,
            server_id: server.id,
            role_millis: ROLE_MILLIS,
            load_bytes_max,
            committed: Arc::new(Notify::new()),
            stored_bytes: Arc::new(AtomicU64::new(0)),
            metrics,
        };
        let role = Arc::new(Role::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(follower.run());
        tasks.spawn(role::compete(context.clone(), Arc::clone(&role), server));
        tasks.spawn(role::notify_servers(context.clone(), Arc::clone(&role)));
        let tail = Arc::clone(&replica.tail);
        let reader = TableReader {
            database,
            tail,
            counts: Arc::default(),
            dividing: Arc::default(),
            restored: Arc::default(),
        };
        rounds.wait().await?;
        tasks.spawn(counting::run(reader.clone(), Arc::clone(&role)));
        let tasks = tokio::sync::Mutex::new(tasks);
        let shared = Shared { cluster_id, context, role, reader, forward, tasks };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the id of the keyspace.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.shared.cluster_id
    }

    /// Returns the id of this server.
    #[must_use]
    pub fn server_id(&self) -> u64 {
        self.shared.context.server_id
    }

    /// Returns the users, leases, alarms and watchers that this server has published for its services. The published
    /// views of the keyspace contain no keys.
    #[must_use]
    pub fn published(&self) -> &PublishedState {
        self.shared.context.replica.published()
    }

    /// Returns the current time of the clock for leases and tokens.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.shared.context.replica.clock().now()
    }

    /// Returns the state of the server.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        let Shared { context, role, .. } = &*self.shared;
        let position = context.replica.position();
        let holder = role.holder();
        EngineStatus {
            sequencer_id: if holder.is_expired { 0 } else { holder.id },
            epoch: position.term.epoch,
            index: position.index,
            log_position: position.seq,
            revision: position.revision,
            compacted_revision: position.compacted,
            stored_bytes: context.stored_bytes.load(Ordering::Relaxed),
            backlog_bytes: context.replica.tail.unwritten_bytes() as u64,
            backlog_batches: position.seq - position.written_seq,
        }
    }

    /// Returns the servers of the keyspace that have announced themselves recently.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerRow> {
        self.shared.role.servers()
    }

    /// Waits until this server has applied the request with this number.
    pub async fn wait_applied(&self, index: u64) {
        let replica = &self.shared.context.replica;
        let mut reached = replica.subscribe();
        while replica.position().index < index {
            // The sender lives as long as the engine, so the wait does not fail.
            let (Ok(()) | Err(_)) = reached.changed().await;
        }
    }

    /// Waits until this server has seen a current sequencer, and has applied the first batch of that
    /// sequencer's term. From then on, response headers contain that term.
    pub async fn wait_sequencer(&self) {
        let Shared { context, role, .. } = &*self.shared;
        let mut holder = role.holder.subscribe();
        let mut reached = context.replica.subscribe();
        loop {
            let known = holder.borrow_and_update().clone();
            let is_held = known.epoch != 0 && !known.is_expired;
            if is_held && context.replica.position().term.epoch >= known.epoch {
                return;
            }
            // The senders live as long as the engine, so the waits do not fail.
            tokio::select! {
                _ = holder.changed() => {}
                _ = reached.changed() => {}
            }
        }
    }

    /// Returns the leases that this server knows. Only the sequencer returns them in the order of their
    /// remaining lifetime.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseId> {
        match self.shared.role.term() {
            Some(term) => term.leases.list(),
            None => self.published().leases.list(),
        }
    }

    /// Waits until everything that was committed before this call is visible on this server.
    ///
    /// # Errors
    ///
    /// If the database does not respond.
    pub async fn barrier(&self) -> Result<(), EngineError> {
        self.rounds().wait().await
    }

    /// Executes a range request at the revision that the request names, or else at the newest revision that this server
    /// has reached. The rows are counted with `reserve` as they arrive.
    ///
    /// # Errors
    ///
    /// If the database does not respond, or there is no room for the rows.
    pub async fn range(
        &self,
        query: &RangeQuery,
        reserve: &mut Reserve<'_>,
    ) -> Result<Result<RangeResult, Refusal>, EngineError> {
        let Shared { reader, context, .. } = &*self.shared;
        let mut memory = ReadMemory::new(reserve, context.load_bytes_max);
        let mut failed = 0;
        loop {
            memory.shrink_to(0);
            let answer = reader.range(query, context.replica.position(), &mut memory).await;
            if let Some(answer) = self.settle(answer, query.revision > 0, &mut failed).await? {
                return Ok(answer);
            }
        }
    }

    /// Executes a read-only transaction at the newest revision that this server has reached. The rows of all ranges
    /// together are counted with `reserve` as they arrive.
    ///
    /// # Errors
    ///
    /// If the database does not respond, or there is no room for the rows.
    pub async fn read_txn(
        &self,
        request: &pb::TxnRequest,
        reserve: &mut Reserve<'_>,
    ) -> Result<Result<pb::TxnResponse, Refusal>, EngineError> {
        let Shared { reader, context, .. } = &*self.shared;
        let mut memory = ReadMemory::new(reserve, context.load_bytes_max);
        let mut failed = 0;
        loop {
            memory.shrink_to(0);
            let answer = reader.txn(request, context.replica.position(), &mut memory).await;
            if let Some(answer) = self.settle(answer, false, &mut failed).await? {
                return Ok(answer);
            }
        }
    }

    /// Returns the result of a read, or `None` if the read must be repeated after a round, because a compaction has
    /// overtaken it or the tables have lost changes.
    async fn settle<T>(
        &self,
        answer: Answer<T>,
        names_revision: bool,
        failed: &mut usize,
    ) -> Result<Option<Result<T, Refusal>>, EngineError> {
        match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(ReadFault::Failed(error)) => return Err(error),
            Err(ReadFault::Overtaken) if names_revision => {
                return Ok(Some(Err(Refusal::Compacted)));
            }
            Err(ReadFault::Overtaken | ReadFault::Behind) => {}
        }
        *failed += 1;
        if *failed == ATTEMPTS_MAX {
            let reason = "a compaction or a loss of changes overtook every attempt";
            return Err(DatabaseFault::Unread(reason).into());
        }
        self.barrier().await?;
        Ok(None)
    }

    /// Waits until all garbage of the compactions that were committed before this call is removed.
    ///
    /// # Errors
    ///
    /// If the database does not respond.
    pub async fn wait_compacted(&self) -> Result<(), EngineError> {
        self.barrier().await?;
        let compacted = self.shared.context.replica.position().compacted;
        loop {
            let row = self
                .shared
                .context
                .database
                .query_opt(Statement::HasGarbage, &[&compacted])
                .await?;
            if row.is_none_or(|row| !row.get::<_, bool>(0)) {
                return Ok(());
            }
            tokio::time::sleep(GARBAGE_INTERVAL).await;
        }
    }

    /// Returns the hash of all records up to a revision, where 0 stands for the newest revision. This is expensive,
    /// because the database must sort all of these records. Ends early once `gone` is ready.
    ///
    /// # Errors
    ///
    /// If the database does not respond, or the caller has gone.
    pub async fn hash_kv(
        &self,
        revision: i64,
        gone: impl Future<Output = ()>,
    ) -> Result<Result<HashKv, Refusal>, EngineError> {
        dump::hash_kv(&self.shared.context, revision, gone).await
    }

    /// Creates a backend file that contains everything that was committed before this call. The services send the
    /// content of the file as a snapshot. The file is in the file system of the directory `parent`, but has no name, so
    /// that no other user can open it, and it disappears with its last handle. Ends early once `gone` is ready. Blocks
    /// the thread while it writes to the file.
    ///
    /// # Errors
    ///
    /// If the database does not respond, the file cannot be written, or the caller has gone.
    pub async fn snapshot(
        &self,
        parent: &Path,
        gone: impl Future<Output = ()>,
    ) -> Result<Backend, EngineError> {
        dump::snapshot(&self.shared.context, parent, gone).await
    }

    /// Applies a client's request and returns the outcome. The request's header names the user. The id in the header is
    /// ignored. A server that is not the sequencer forwards the request.
    ///
    /// # Errors
    ///
    /// If the request was not applied, or its outcome is unknown.
    pub async fn propose(&self, request: pb::InternalRaftRequest) -> Outcome {
        let question = Question { request: Some(request), ..Question::default() };
        self.ask(question).await?.into_outcome()
    }

    /// Renews a lease on behalf of a user, whose permissions the sequencer checks. The second argument
    /// contains the user's name, and the revision of users and roles for which the user's token is
    /// valid, as in a request's header. Returns the lifetime of the lease in seconds, or `None` if the
    /// lease does not exist.
    ///
    /// # Errors
    ///
    /// If the sequencer does not respond.
    pub async fn renew(
        &self,
        id: LeaseId,
        (username, auth_revision): (String, u64),
    ) -> Result<Result<Option<i64>, Refusal>, EngineError> {
        let question =
            Question { renew: Some(id.0), username, auth_revision, ..Question::default() };
        let lease = self.ask(question).await?.into_lease()?;
        Ok(lease.map(|lease| lease.map(|lease| lease.granted_secs)))
    }

    /// Returns the granted and the remaining lifetime of a lease, or `None` if the lease does not
    /// exist.
    ///
    /// # Errors
    ///
    /// If the sequencer does not respond.
    pub async fn time_to_live(&self, id: LeaseId) -> Result<Option<LeaseTimes>, EngineError> {
        let question = Question { time_to_live: Some(id.0), ..Question::default() };
        // The caller checks the permissions, so the sequencer never refuses this kind of question.
        Ok(self.ask(question).await?.into_lease()?.unwrap_or(None))
    }

    /// Answers the question in a frame that another server has forwarded. Returns the encoded reply.
    pub async fn serve(&self, frame: Bytes) -> Bytes {
        let reply = match Question::decode(frame) {
            Ok(question) => match self.shared.role.term() {
                Some(term) => self.answer(&term, question).await,
                None => Reply::of_error(&EngineError::NoSequencer),
            },
            Err(error) => Reply::of_error(&EngineError::Malformed(error.to_string())),
        };
        reply.encode_bytes()
    }

    /// Returns the reply to send if the actual reply is too long for the transport. The returned reply reports that the
    /// outcome of the request is unknown.
    #[must_use]
    pub fn answer_is_too_long() -> Bytes {
        Reply::of_error(&EngineError::OutcomeUnknown).encode_bytes()
    }

    /// Stops the server. If this server is the sequencer, another server takes over immediately.
    pub async fn stop(&self) {
        let Shared { context, role, reader, tasks, .. } = &*self.shared;
        let term = role.term();
        tasks.lock().await.shutdown().await;
        role.term.send_replace(None);
        // If the database does not respond, another server takes over only after this server's
        // lease on the sequencer role has expired.
        if let Some(term) = term {
            let (Ok(()) | Err(_)) = role::leave(context, term.id).await;
        }
        let (Ok(()) | Err(_)) = role::retire(context).await;
        // Without recent spans, a server that starts only takes longer to count keys.
        let (Ok(()) | Err(_)) = reader.store_spans().await;
    }

    /// Ends all tasks as a crash does: the server keeps the sequencer role and its row in the
    /// database. For tests.
    #[doc(hidden)]
    pub async fn abandon(&self) {
        self.shared.tasks.lock().await.shutdown().await;
        self.shared.role.term.send_replace(None);
    }

    fn rounds(&self) -> &Rounds {
        &self.shared.context.rounds
    }

    /// Asks the sequencer, which may be this server or another server. The future is boxed, because it
    /// is large: it contains the futures for all kinds of questions.
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Reply, EngineError>> {
        Box::pin(self.ask_repeatedly(question))
    }

    async fn ask_repeatedly(&self, question: Question) -> Result<Reply, EngineError> {
        let deadline = tokio::time::Instant::now() + SEQUENCER_TIME_MAX;
        loop {
            let reply = match self.shared.role.term() {
                Some(term) => self.answer(&term, question.clone()).await,
                None => {
                    let reply = self.forward(&question).await?;
                    if reply.error().is_none() {
                        // After this barrier, the caller can read its own write on this server. A
                        // failure of the barrier is ignored, because the write is committed in any
                        // case.
                        let (Ok(()) | Err(_)) = self.barrier().await;
                    }
                    reply
                }
            };
            let is_elsewhere = matches!(
                reply.error(),
                Some(EngineError::SequencerChanged | EngineError::NoSequencer)
            );
            if !is_elsewhere || tokio::time::Instant::now() >= deadline {
                return Ok(reply);
            }
            self.wait_for_sequencer(deadline).await;
        }
    }

    async fn forward(&self, question: &Question) -> Result<Reply, EngineError> {
        let Shared { role, forward, context, .. } = &*self.shared;
        let holder = role.holder();
        if holder.epoch == 0 || holder.is_expired || holder.id == context.server_id {
            return Ok(Reply::of_error(&EngineError::NoSequencer));
        }
        let frame = question.encode_to_vec().into();
        context.metrics.engine.forwarded.inc();
        match forward.forward(&holder.destination, frame).await {
            Ok(reply) => Reply::decode(reply).map_err(|_| EngineError::OutcomeUnknown),
            Err(ForwardError::NotSent) => Ok(Reply::of_error(&EngineError::NoSequencer)),
            Err(ForwardError::Lost) => {
                context.metrics.engine.forwards_lost.inc();
                Err(EngineError::OutcomeUnknown)
            }
            Err(ForwardError::TooMany) => Err(EngineError::TooManyRequests),
        }
    }

    /// Waits until the sequencer changes, but at most for 100 ms, and not beyond `deadline`.
    async fn wait_for_sequencer(&self, deadline: tokio::time::Instant) {
        let role = &self.shared.role;
        role.look.notify_one();
        let (mut term, mut holder) = (role.term.subscribe(), role.holder.subscribe());
        let until = deadline.min(tokio::time::Instant::now() + Duration::from_millis(100));
        tokio::select! {
            _ = term.changed() => {}
            _ = holder.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }

    /// Answers a question as the sequencer.
    async fn answer(&self, term: &SequencerHandle, question: Question) -> Reply {
        if let Some(request) = question.request {
            return Reply::of_outcome(term.jobs.run(request, Author::Client).await);
        }
        let answered = match (question.renew, question.time_to_live) {
            (Some(id), _) => {
                let caller = Caller { name: &question.username, revision: question.auth_revision };
                if let Err(refusal) = self.check_renewal(caller, LeaseId(id)) {
                    return Reply::of_refusal(Refusal::Auth(refusal));
                }
                self.renew_here(term, LeaseId(id)).await
            }
            (None, Some(id)) => self.look_here(term, LeaseId(id)).await,
            (None, None) => {
                Err(EngineError::Malformed("the forwarded message contains no request".to_owned()))
            }
        };
        match answered {
            Ok(lease) => Reply::of_lease(lease),
            Err(error) => Reply::of_error(&error),
        }
    }

    /// Checks that a user exists and may write all keys of a lease. The result reflects every
    /// acknowledged change to users and roles, because the sequencer publishes such a change before
    /// acknowledging it.
    fn check_renewal(&self, caller: Caller<'_>, id: LeaseId) -> Result<(), AuthRefusal> {
        let published = self.published();
        let auth = published.auth.view();
        let permission = Permission { auth: &auth, caller, leases: &published.leases };
        permission.check_user()?;
        permission.check_lease(Access::Write, id)
    }

    /// Renews a lease according to the clock of this server, which is the sequencer. The result is returned only after
    /// a round of the follower that began after the renewal. If that round shows that another term has begun, the new
    /// sequencer has given the lease its full lifetime, and the caller asks the new sequencer.
    async fn renew_here(
        &self,
        term: &SequencerHandle,
        id: LeaseId,
    ) -> Result<Option<LeaseTimes>, EngineError> {
        loop {
            let renewal = term.leases.renew(id, term.id.epoch, self.now());
            self.confirm(term).await?;
            match renewal {
                Renewal::Renewed { ttl_secs } => {
                    let (granted_secs, remaining_secs) = (ttl_secs, ttl_secs);
                    return Ok(Some(LeaseTimes { granted_secs, remaining_secs }));
                }
                Renewal::NotFound => return Ok(None),
                Renewal::NotPrimary => return Err(EngineError::SequencerChanged),
                Renewal::Expired => {
                    let gone = std::future::poll_fn(|cx| term.leases.poll_gone(id, cx));
                    pin!(gone).await;
                }
                // This result is not expected: checkpoints are off, because a new term gives leases
                // their full lifetime.
                Renewal::CheckpointFirst => return Err(EngineError::SequencerChanged),
            }
        }
    }

    async fn look_here(
        &self,
        term: &SequencerHandle,
        id: LeaseId,
    ) -> Result<Option<LeaseTimes>, EngineError> {
        let found = term.leases.time_to_live(id, self.now());
        self.confirm(term).await?;
        let Some(found) = found else { return Ok(None) };
        let remaining_secs = found.remaining_secs.ok_or(EngineError::SequencerChanged)?;
        Ok(Some(LeaseTimes { granted_secs: found.granted_secs, remaining_secs }))
    }

    /// Confirms that the lease state that the caller has read is committed, and that no other term had
    /// begun before this call.
    async fn confirm(&self, term: &SequencerHandle) -> Result<(), EngineError> {
        term.pipeline.wait_committed().await?;
        self.rounds().wait().await?;
        let position = self.shared.context.replica.position();
        if position.term == term.id && position.restarts == term.restarts {
            Ok(())
        } else {
            Err(EngineError::SequencerChanged)
        }
    }
}
