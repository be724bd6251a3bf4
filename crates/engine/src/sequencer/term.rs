//! A term of the sequencer: how it begins, its tasks, and its end.
//!
//! ```text
//! read the log to its end ─► append an empty batch (the fence) ─► write the backlog to the tables
//!      ─► load the state ─► start the clocks of leases ─► accept requests
//! ```
//!
//! # Invariants
//!
//! * The state is loaded after the fence is in the log, so it contains everything that earlier
//!   sequencers have committed or will ever commit.
//! * If one task ends, the term ends, and the state is dropped.
//! * The lease on the role is extended from the first step on, however long the term takes to begin.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use quorate_state::apply::{State, StateOptions};
use quorate_state::lease::Leases;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::Jobs;
use super::applying::Applying;
use super::committing::{Appended, Appender, Committing};
use super::compacting::Compacting;
use super::expiry::Expiry;
use super::writing::Writing;
use crate::batch::Draft;
use crate::database::{Database, Session, Statement};
use crate::error::EngineError;
use crate::follower::{Rounds, read_attachments};
use crate::needs::Coverage;
use crate::replica::Replica;

/// The interval at which the sequencer extends its lease on the role.
const RENEW_INTERVAL: Duration = Duration::from_millis(1000);

/// The parts of a server that a term uses.
#[derive(Clone, Debug)]
pub(crate) struct TermContext {
    pub(crate) database: Arc<Database>,
    pub(crate) replica: Arc<Replica>,
    pub(crate) rounds: Rounds,
    pub(crate) options: StateOptions,
    pub(crate) server_id: u64,
    pub(crate) role_millis: f64,
    /// Notified after each commit.
    pub(crate) committed: Arc<Notify>,
    pub(crate) stored_bytes: Arc<AtomicU64>,
    pub(crate) metrics: Arc<Metrics>,
}

/// The handles of a term, while it accepts requests.
#[derive(Clone, Debug)]
pub(crate) struct SequencerHandle {
    pub(crate) epoch: u64,
    pub(crate) jobs: Jobs,
    pub(crate) leases: Leases,
}

/// Why a term has ended.
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
    epoch: u64,
    begun: impl FnOnce(SequencerHandle),
) -> Ending {
    let prepared = tokio::select! {
        prepared = Box::pin(begin(&context, epoch)) => prepared,
        // Beginning takes long if the tables lag or many keys are attached to leases. Without renewals, another server
        // would take over meanwhile, and it would not finish in time either.
        ended = renew_role(context.clone(), epoch) => ended.and(Err(EngineError::SequencerChanged)),
    };
    match prepared {
        Ok(prepared) => prepared.run(context, begun).await,
        Err(error) => error.into(),
    }
}

/// A term whose state is loaded.
struct Begun {
    epoch: u64,
    state: State,
    seq: u64,
    index: u64,
    appender: Appender,
    writing: Writing,
    session: Session,
}

async fn begin(context: &TermContext, epoch: u64) -> Result<Begun, EngineError> {
    let TermContext { database, replica, .. } = context;
    let mut appender = Appender { database: Arc::clone(database), session: None, epoch };
    let seq = append_fence(context, &mut appender).await?;
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
    let session = database.connect().await?;
    let (rows, position) = replica.rows();
    if position.epoch != epoch {
        return Err(EngineError::SequencerChanged);
    }
    let attachments = read_attachments(&session).await?;
    let applied = (position.index, epoch);
    let state =
        State::of_database(&rows, attachments, position.revision, applied, context.options)?;
    let index = position.index;
    Ok(Begun { epoch, state, seq, index, appender, writing, session })
}

/// Appends the first batch of the term. Returns its position.
async fn append_fence(context: &TermContext, appender: &mut Appender) -> Result<u64, EngineError> {
    loop {
        context.rounds.wait().await?;
        let position = context.replica.position();
        if position.epoch > appender.epoch {
            return Err(EngineError::SequencerChanged);
        }
        let fence = Draft::fence(position.index, position.written_seq);
        let seq = position.seq + 1;
        match appender.append(seq, position.revision, &fence.encode()).await? {
            Appended::Done => return Ok(seq),
            Appended::Taken | Appended::Unknown => check_role(context, appender.epoch).await?,
        }
    }
}

/// Checks that no other server has raised the epoch. The position was then taken by the previous
/// sequencer, which was faster.
async fn check_role(context: &TermContext, epoch: u64) -> Result<(), EngineError> {
    let session = context.database.connect().await?;
    let row = session.query_opt(Statement::ReadRole, &[]).await?;
    if row.is_some_and(|row| row.get::<_, i64>(0) == epoch.cast_signed()) {
        Ok(())
    } else {
        Err(EngineError::SequencerChanged)
    }
}

impl Begun {
    async fn run(self, context: TermContext, begun: impl FnOnce(SequencerHandle)) -> Ending {
        let Self { epoch, state, seq, index, appender, writing, session } = self;
        let TermContext { database, replica, rounds, .. } = &context;
        let (jobs, received) = Jobs::new();
        let leases = state.published().leases;
        leases.promote(epoch, 0, replica.clock().now());
        let (prepared_sender, prepared) = mpsc::channel(1);
        let (committed_sender, committed) = watch::channel(0);
        let (compactions, accepted) = watch::channel(None);
        let written = writing.written.subscribe();
        let applying = Applying {
            state,
            session,
            replica: Arc::clone(replica),
            jobs: received,
            prepared: prepared_sender,
            committed,
            written: written.clone(),
            stored_bytes: Arc::clone(&context.stored_bytes),
            epoch,
            index,
            server_id: context.server_id,
            coverage: Coverage::default(),
            number: 0,
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
            notify: Arc::clone(&context.committed),
            metrics: context.metrics.engine.clone(),
        };
        let compacting = Compacting {
            database: Arc::clone(database),
            replica: Arc::clone(replica),
            accepted,
            written,
            session: None,
            stored_bytes: Arc::clone(&context.stored_bytes),
            is_size_unknown: false,
        };
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
        tasks.spawn(renew_role(context.clone(), epoch));
        replica.set_leads(true);
        log::info!("this server is the sequencer", "epoch" = epoch, "log-position" = seq);
        begun(SequencerHandle { epoch, jobs, leases: leases.clone() });
        let first = tasks.join_next().await;
        replica.set_leads(false);
        leases.demote();
        tasks.shutdown().await;
        Ending::of_task(first)
    }
}

impl Ending {
    /// Returns the ending of a term whose first task has ended like this.
    fn of_task(ended: Option<Result<Result<(), EngineError>, JoinError>>) -> Self {
        match ended {
            Some(Ok(Err(error))) => error.into(),
            Some(Err(panic)) => Self::Failed(EngineError::Content(format!(
                "a task of the sequencer has panicked: {panic}"
            ))),
            Some(Ok(Ok(()))) | None => Self::Replaced,
        }
    }
}

/// Extends the lease on the role. The lease only keeps other servers from taking over needlessly, so
/// a failed extension does not end the term.
async fn renew_role(context: TermContext, epoch: u64) -> Result<(), EngineError> {
    let mut session = None;
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        let connected = match session.take() {
            Some(session) => Ok(session),
            None => context.database.connect().await,
        };
        let renewed = match &connected {
            Ok(session) => {
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
                    [&epoch.cast_signed(), &context.role_millis];
                session.execute(Statement::RenewRole, &parameters).await
            }
            Err(_) => continue,
        };
        match renewed {
            Ok(1) => session = connected.ok(),
            Ok(_) => return Err(EngineError::SequencerChanged),
            Err(fault) => {
                log::warn!(
                    "failed to extend the lease on the role of the sequencer",
                    "error" = fault.to_string()
                );
            }
        }
    }
}
