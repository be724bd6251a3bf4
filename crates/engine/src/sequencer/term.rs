//! A term of the sequencer: its beginning, its tasks, and its end.
//!
//! ```text
//! read the log to its end ─► append an empty batch (the fence) ─► write the backlog to the tables
//!      ─► load the state ─► start the clocks of leases ─► accept requests
//! ```
//!
//! # Invariants
//!
//! * The state is loaded after the fence is in the log, so it contains everything that earlier sequencers have
//!   committed. Earlier sequencers can commit nothing after the fence.
//! * If any task ends, the term ends, and the state is dropped.
//! * The lease on the role is extended regularly from the first step on, however long it takes until
//!   the term accepts requests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quorate_state::apply::{State, StateOptions};
use quorate_state::lease::Leases;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::applying::Applying;
use super::committing::{Appended, Appender, Committing, LogRow};
use super::compacting::Compacting;
use super::expiry::Expiry;
use super::writing::Writing;
use super::{Jobs, Pipeline};
use crate::batch::Draft;
use crate::database::{Database, DatabaseFault, Session, Statement};
use crate::error::EngineError;
use crate::follower::{Rounds, read_attachments};
use crate::needs::Coverage;
use crate::replica::Replica;
use crate::tail::Position;
use crate::term_id::TermId;

/// The interval at which the sequencer extends its lease on the role.
const RENEW_INTERVAL: Duration = Duration::from_millis(1000);
/// Pause before a server tries again to append the first batch of its term.
const FENCE_INTERVAL: Duration = Duration::from_millis(50);

/// The parts of a server that a term uses.
#[derive(Clone, Debug)]
pub(crate) struct TermContext {
    pub(crate) database: Arc<Database>,
    pub(crate) replica: Arc<Replica>,
    pub(crate) rounds: Rounds,
    pub(crate) options: StateOptions,
    pub(crate) server_id: u64,
    pub(crate) role_millis: f64,
    pub(crate) load_bytes_max: usize,
    /// Notified after each commit.
    pub(crate) committed: Arc<Notify>,
    pub(crate) stored_bytes: Arc<AtomicU64>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The handles of a term that accepts requests.
#[derive(Clone, Debug)]
pub(crate) struct SequencerHandle {
    pub(crate) id: TermId,
    pub(crate) jobs: Jobs,
    /// The leases of the applied state, which may contain changes that are not committed yet.
    pub(crate) leases: Leases,
    pub(crate) pipeline: Pipeline,
    /// The number of replica restarts before the term began.
    pub(crate) restarts: u64,
}

/// The reason why a term has ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Another server has become the sequencer.
    Replaced,
    /// A task has failed.
    Failed(EngineError),
}

impl From<EngineError> for Ending {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::SequencerChanged | EngineError::OutcomeUnknown => Self::Replaced,
            other => Self::Failed(other),
        }
    }
}

/// Runs a term until it ends. `begun` receives the handles when the term accepts requests.
pub(crate) async fn run_term(
    context: TermContext,
    id: TermId,
    begun: impl FnOnce(SequencerHandle),
) -> Ending {
    let prepared = tokio::select! {
        prepared = Box::pin(begin(&context, id)) => prepared,
        // A term takes a long time to begin if many batches are not in the tables yet, or if many keys are attached to
        // leases. If the lease on the role were not extended, another server would take over in the meantime, and would
        // not finish in time either.
        ended = renew_role(context.clone(), id) => ended.and(Err(EngineError::SequencerChanged)),
    };
    match prepared {
        Ok(prepared) => prepared.run(context, begun).await,
        Err(error) => error.into(),
    }
}

/// A term whose state has been loaded.
struct Begun {
    id: TermId,
    state: State,
    seq: u64,
    index: u64,
    restarts: u64,
    appender: Appender,
    writing: Writing,
    session: Session,
}

async fn begin(context: &TermContext, id: TermId) -> Result<Begun, EngineError> {
    let TermContext { database, replica, .. } = context;
    let mut appender = Appender { database: Arc::clone(database), session: None, term: id };
    let seq = append_fence(context, &mut appender).await?;
    // The session that loads keys is opened before the round. If the database lost rows before the
    // session was opened, the round detects the loss. A later loss, in a failover or a crash of the
    // database, also ends this session, and the term ends with it.
    let session = database.connect().await?;
    session.keep_node_connections().await?;
    context.rounds.wait().await?;
    let mut writing = Writing {
        database: Arc::clone(database),
        replica: Arc::clone(replica),
        written: watch::Sender::new(seq),
        stored_bytes: Arc::clone(&context.stored_bytes),
        session: None,
    };
    writing.read_progress().await?;
    writing.write_all().await?;
    let (rows, position) = replica.rows();
    if position.term != id {
        return Err(EngineError::SequencerChanged);
    }
    let attachments = read_attachments(&session).await?;
    let applied = (position.index, id.epoch);
    let state =
        State::of_database(&rows, attachments, position.revision, applied, context.options)?;
    let Position { index, restarts, .. } = position;
    Ok(Begun { id, state, seq, index, restarts, appender, writing, session })
}

/// Appends the first batch of the term. Returns its position.
async fn append_fence(context: &TermContext, appender: &mut Appender) -> Result<u64, EngineError> {
    loop {
        context.rounds.wait().await?;
        let position = context.replica.position();
        if position.term.epoch > appender.term.epoch {
            return Err(EngineError::SequencerChanged);
        }
        let fence = Draft::fence(position.index, position.written_seq);
        let seq = position.seq + 1;
        let (predecessor, last_revision) = (position.term, position.revision);
        let row = LogRow { seq, predecessor, last_revision, batch: &fence.encode() };
        match appender.append(row).await? {
            Appended::Done => return Ok(seq),
            Appended::Taken | Appended::Unknown => check_role(context, appender.term).await?,
        }
        tokio::time::sleep(FENCE_INTERVAL).await;
    }
}

/// Checks that no other server has begun a term. If this check succeeds, the append failed because the
/// previous sequencer took the position first, or because the database has lost batches, which the next
/// round detects.
async fn check_role(context: &TermContext, id: TermId) -> Result<(), EngineError> {
    let session = context.database.connect().await?;
    let row = session.read_opt(Statement::ReadRole, &[]).await?;
    let found =
        row.map(|row| TermId { epoch: row.get::<_, i64>(0).cast_unsigned(), nonce: row.get(5) });
    if found == Some(id) { Ok(()) } else { Err(EngineError::SequencerChanged) }
}

impl Begun {
    async fn run(self, context: TermContext, begun: impl FnOnce(SequencerHandle)) -> Ending {
        let Self { id, state, seq, index, restarts, appender, writing, session } = self;
        let epoch = id.epoch;
        let TermContext { replica, rounds, .. } = &context;
        let (jobs, received) = Jobs::new();
        let leases = state.published().leases;
        leases.promote(epoch, 0, replica.clock().now());
        let (prepared_sender, prepared) = mpsc::channel(1);
        let (committed_sender, committed) = watch::channel(0);
        let begun_batch = Arc::new(AtomicU64::new(0));
        let (compactions, accepted) = watch::channel(None);
        let written = writing.written.subscribe();
        let applying = Applying {
            state,
            session,
            replica: Arc::clone(replica),
            jobs: received,
            prepared: prepared_sender,
            committed: committed.clone(),
            written: written.clone(),
            stored_bytes: Arc::clone(&context.stored_bytes),
            epoch,
            index,
            server_id: context.server_id,
            coverage: Coverage::default(),
            load_bytes_max: context.load_bytes_max,
            number: 0,
            begun: Arc::clone(&begun_batch),
            metrics: Arc::clone(&context.metrics),
        };
        let committing = Committing {
            appender,
            replica: Arc::clone(replica),
            rounds: rounds.clone(),
            prepared,
            committed: committed_sender,
            compactions,
            seq,
            restarts,
            notify: Arc::clone(&context.committed),
            metrics: context.metrics.engine.clone(),
        };
        let compacting =
            Compacting::new(&context.database, replica, &context.stored_bytes, accepted, written);
        let expiry = Expiry {
            leases: leases.clone(),
            jobs: jobs.clone(),
            replica: Arc::clone(replica),
            epoch,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(applying.run());
        tasks.spawn(committing.run());
        tasks.spawn(writing.run());
        tasks.spawn(compacting.run());
        tasks.spawn(expiry.run());
        tasks.spawn(renew_role(context.clone(), id));
        replica.set_leads(true);
        log::info!("this server is the sequencer", "epoch" = epoch, "log-position" = seq);
        let pipeline = Pipeline { begun: begun_batch, committed };
        begun(SequencerHandle { id, jobs, leases: leases.clone(), pipeline, restarts });
        let first = tasks.join_next().await;
        replica.set_leads(false);
        leases.demote();
        tasks.shutdown().await;
        Ending::of_task(first)
    }
}

impl Ending {
    /// Returns the ending of a term, given the result of the first task that has ended.
    fn of_task(ended: Option<Result<Result<(), EngineError>, JoinError>>) -> Self {
        match ended {
            Some(Ok(Err(error))) => error.into(),
            Some(Err(panic)) => {
                Self::Failed(EngineError::Failed(format!("a sequencer task has panicked: {panic}")))
            }
            Some(Ok(Ok(()))) | None => Self::Replaced,
        }
    }
}

/// Extends the lease on the sequencer role at regular intervals. A failed extension does not
/// end the term, because the lease only prevents other servers from taking over needlessly.
async fn renew_role(context: TermContext, id: TermId) -> Result<(), EngineError> {
    let mut session = None;
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        match extend_role(&context, id, &mut session).await {
            Ok(true) => {}
            Ok(false) => return Err(EngineError::SequencerChanged),
            Err(fault) => {
                log::warn!(
                    "failed to extend the lease on the sequencer role",
                    "error" = fault.to_string()
                );
            }
        }
    }
}

/// Extends the lease on the role once. Returns whether the role still belongs to the term `id`. After an error, the
/// next attempt uses a new session.
async fn extend_role(
    context: &TermContext,
    id: TermId,
    session: &mut Option<Session>,
) -> Result<bool, DatabaseFault> {
    let current = match session.take() {
        Some(session) => session,
        None => context.database.connect().await?,
    };
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
        [&id.epoch.cast_signed(), &context.role_millis, &id.nonce];
    let extended = current.execute(Statement::RenewRole, &parameters).await?;
    *session = Some(current);
    Ok(extended == 1)
}
