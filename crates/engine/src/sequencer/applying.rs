//! Applies requests in order and forms batches.
//!
//! # Invariants
//!
//! * The state may be ahead of the log by at most three batches: one that is being committed, one in
//!   the queue, and one that is being applied. If a commit fails, the term ends and the state is
//!   dropped.
//! * The working set is replaced only when all applied batches are committed, because changed keys can
//!   be loaded from the database only after the commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quorate_api::etcdserverpb as pb;
use quorate_state::apply::{
    AlarmCommand, Applied, AuthCommand, Command, EntryMeta, Notice, Request, Response, State,
};
use quorate_state::auth::ROOT;
use quorate_state::mvcc::Compaction;
use quorate_telemetry::metrics::Metrics;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Author, BATCH_BYTES_MAX, BATCH_REQUESTS_MAX, Job, Outcome};
use crate::batch::Draft;
use crate::database::Session;
use crate::error::EngineError;
use crate::key_lengths::check_command;
use crate::loading::Loader;
use crate::needs::{Coverage, Needs};
use crate::replica::Replica;

/// Number of bytes above which a working set is replaced.
const WORKING_SET_BYTES_MAX: usize = 64 << 20;
/// Number of individually loaded keys above which a working set is replaced.
const WORKING_SET_KEYS_MAX: usize = 200_000;
/// A batch accepts no more requests once its responses list this number of keys, because the responses
/// stay in memory until the batch is committed.
const ANSWERED_KEYS_MAX: usize = 200_000;
/// Maximum number of bytes of committed batches that have not been written to the tables yet. While more bytes are
/// waiting, new requests wait.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// An applied batch that is to be appended to the log.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The batch's number among the applied batches of the term.
    pub(super) number: u64,
    pub(super) draft: Draft,
    pub(super) last_revision: i64,
    pub(super) replies: Replies,
    /// The newest compaction that a request of the batch has started, if any.
    pub(super) compaction: Option<Compaction>,
}

/// The callers of a batch, with the outcomes that they receive once the batch is committed. If this
/// value is dropped earlier, the callers receive `OutcomeUnknown`, because the batch may be in the log.
#[derive(Debug)]
pub(super) struct Replies {
    replies: Vec<(oneshot::Sender<Outcome>, Outcome)>,
}

impl Replies {
    /// Returns the number of requests in the batch.
    pub(super) fn count(&self) -> u64 {
        self.replies.len() as u64
    }

    /// Sends the outcomes to the callers.
    pub(super) fn send(mut self) {
        for (reply, outcome) in self.replies.drain(..) {
            // The caller may have stopped waiting.
            let (Ok(()) | Err(_)) = reply.send(outcome);
        }
    }

    /// Reports to the callers that another server is the sequencer, and that their requests were not
    /// applied.
    pub(super) fn refuse(mut self) {
        for (reply, _) in self.replies.drain(..) {
            let (Ok(()) | Err(_)) = reply.send(Err(EngineError::SequencerChanged));
        }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        for (reply, _) in self.replies.drain(..) {
            let (Ok(()) | Err(_)) = reply.send(Err(EngineError::OutcomeUnknown));
        }
    }
}

/// The task that applies requests.
pub(super) struct Applying {
    pub(super) state: State,
    pub(super) session: Session,
    pub(super) replica: Arc<Replica>,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) prepared: mpsc::Sender<Prepared>,
    /// The number of the last committed batch.
    pub(super) committed: watch::Receiver<u64>,
    /// A channel whose value changes whenever batches have been written to the tables.
    pub(super) written: watch::Receiver<u64>,
    /// The bytes of all versions in the tables, which the quota limits.
    pub(super) stored_bytes: Arc<AtomicU64>,
    pub(super) epoch: u64,
    pub(super) index: u64,
    pub(super) server_id: u64,
    pub(super) coverage: Coverage,
    /// Maximum memory for the keys and values that one batch of requests needs, in bytes.
    pub(super) load_bytes_max: usize,
    pub(super) number: u64,
    /// The number of the last batch that this task has begun to apply. The number is set before the batch changes the
    /// state, so a reader of the state can wait until every change that it may have seen is committed.
    pub(super) begun: Arc<AtomicU64>,
    pub(super) metrics: Arc<Metrics>,
}

/// A decoded request and its waiting caller.
struct Waiting {
    request: Request,
    author: Author,
    reply: oneshot::Sender<Outcome>,
}

impl Applying {
    /// Runs until the queue of requests or the queue of batches is closed, or the database fails.
    pub(super) async fn run(mut self) -> Result<(), EngineError> {
        while let Some(first) = self.jobs.recv().await {
            let batch = self.collect(first);
            self.wait_for_backlog().await?;
            for part in self.divide(batch) {
                self.process(part).await?;
            }
        }
        Ok(())
    }

    /// Takes waiting requests from the queue, up to the limits of a batch.
    fn collect(&mut self, first: Job) -> Vec<Waiting> {
        let mut bytes = 0;
        let mut batch = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            bytes += job.byte_count();
            batch.extend(decoded(job));
            let is_full = batch.len() >= BATCH_REQUESTS_MAX || bytes >= BATCH_BYTES_MAX;
            next = if is_full { None } else { self.jobs.try_recv().ok() };
        }
        batch
    }

    /// Divides a batch so that each request that reads older revisions forms a batch of its own,
    /// because such a request needs a new working set.
    fn divide(&self, batch: Vec<Waiting>) -> Vec<Vec<Waiting>> {
        let mut parts: Vec<Vec<Waiting>> = Vec::new();
        let mut is_open = false;
        for waiting in batch {
            let is_alone = !self.needs_of([&waiting]).histories.is_empty();
            match parts.last_mut() {
                Some(last) if is_open && !is_alone => last.push(waiting),
                Some(_) | None => parts.push(vec![waiting]),
            }
            is_open = !is_alone;
        }
        parts
    }

    fn needs_of<'a>(&self, batch: impl IntoIterator<Item = &'a Waiting>) -> Needs {
        let mut needs = Needs::default();
        let leases = self.state.published().leases;
        for waiting in batch {
            needs.add(&waiting.request.command, &leases);
        }
        needs
    }

    async fn process(&mut self, batch: Vec<Waiting>) -> Result<(), EngineError> {
        let needs = self.needs_of(&batch);
        if !needs.histories.is_empty() || self.is_working_set_full() {
            self.replace_working_set().await?;
        }
        match self.load(needs).await {
            Ok(()) => self.apply(batch).await,
            Err(EngineError::TooLarge { .. }) => {
                self.replace_working_set().await?;
                self.apply_one_by_one(batch).await
            }
            Err(error) => Err(error),
        }
    }

    /// Loads the keys in `needs` that are not in the working set yet.
    async fn load(&mut self, mut needs: Needs) -> Result<(), EngineError> {
        self.coverage.take(&mut needs);
        let loader = Loader {
            tail: &self.replica.tail,
            session: &self.session,
            bytes_max: self.load_bytes_max,
        };
        loader.load(&needs, self.state.store_mut()).await
    }

    /// Applies requests one by one, because together they need too many keys. The working set is empty
    /// at the start. A request that needs too many keys on its own is refused.
    async fn apply_one_by_one(&mut self, batch: Vec<Waiting>) -> Result<(), EngineError> {
        let mut is_empty = true;
        for waiting in batch {
            let mut loaded = self.load(self.needs_of([&waiting])).await;
            if let Err(EngineError::TooLarge { .. }) = loaded
                && !is_empty
            {
                self.replace_working_set().await?;
                loaded = self.load(self.needs_of([&waiting])).await;
            }
            is_empty = false;
            match loaded {
                Ok(()) => self.apply(vec![waiting]).await?,
                Err(error @ EngineError::TooLarge { .. }) => {
                    // The caller may have stopped waiting.
                    let (Ok(()) | Err(_)) = waiting.reply.send(Err(error));
                    self.replace_working_set().await?;
                    is_empty = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn apply(&mut self, batch: Vec<Waiting>) -> Result<(), EngineError> {
        let mut rest = batch.into_iter().peekable();
        while rest.peek().is_some() {
            self.apply_part(&mut rest).await?;
        }
        Ok(())
    }

    /// Applies requests until their responses list [`ANSWERED_KEYS_MAX`] keys, and then sends the
    /// batch to the committing task.
    async fn apply_part(
        &mut self,
        rest: &mut (dyn Iterator<Item = Waiting> + Send),
    ) -> Result<(), EngineError> {
        self.number += 1;
        self.begun.store(self.number, Ordering::SeqCst);
        let (mut replies, mut answered) = (Vec::new(), 0);
        let mut tokens = Vec::new();
        let mut compaction = None;
        while answered < ANSWERED_KEYS_MAX
            && let Some(Waiting { mut request, author, reply }) = rest.next()
        {
            if author == Author::Sequencer {
                ROOT.clone_into(&mut request.username);
                request.auth_revision = self.state.auth().view().revision();
            }
            let user = user_of_login(&request.command);
            let applied = self.apply_one(request)?;
            match applied.notice {
                Some(Notice::Compaction(accepted)) => compaction = Some(accepted),
                Some(Notice::OutOfSpace) => self.raise_no_space()?,
                Some(
                    Notice::ClusterVersion { .. } | Notice::MemberAttributes(_) | Notice::Downgrade,
                )
                | None => {}
            }
            let outcome = applied.outcome.expect("request numbers always increase");
            if let (Ok(Response::Authenticated { response, .. }), Some(user)) = (&outcome, user)
                && !response.token.is_empty()
            {
                tokens.push((response.token.clone(), user));
            }
            answered += outcome.as_ref().map_or(0, listed_keys);
            replies.push((reply, Ok(outcome)));
        }
        self.count_operations();
        // The changes are not needed here, because watchers receive their events from the committed
        // batch.
        drop(self.state.take_changes());
        let changes = self.state.take_batch();
        let written_seq = self.replica.position().written_seq;
        let prepared = Prepared {
            number: self.number,
            draft: Draft::new(&changes, tokens, self.index, written_seq),
            last_revision: self.state.store().current_revision(),
            replies: Replies { replies },
            compaction,
        };
        self.prepared.send(prepared).await.map_err(|_| EngineError::SequencerChanged)
    }

    /// Adds the operations of a batch to the metrics.
    fn count_operations(&mut self) {
        let tally = self.state.store_mut().take_tally();
        let metrics = &self.metrics.mvcc;
        metrics.range.add(tally.ranges);
        metrics.put.add(tally.puts);
        metrics.delete.add(tally.deletes);
        metrics.txn.add(tally.txns);
        metrics.put_size.add(i64::try_from(tally.put_bytes).unwrap_or(i64::MAX));
        self.metrics.lease.count(&tally.lease_ttls, tally.leases_revoked);
    }

    fn apply_one(&mut self, request: Request) -> Result<Applied, EngineError> {
        self.index += 1;
        let entry = EntryMeta {
            index: self.index,
            term: self.epoch,
            now: self.replica.clock().now(),
            file_bytes: self.stored_bytes.load(Ordering::Relaxed),
            reply_wanted: true,
        };
        Ok(self.state.apply(entry, request)?)
    }

    /// Raises the NOSPACE alarm, which makes the state refuse further data, in the same batch as the
    /// request that exceeded the quota.
    fn raise_no_space(&mut self) -> Result<(), EngineError> {
        let request = pb::AlarmRequest {
            action: pb::alarm_request::AlarmAction::Activate.into(),
            member_id: self.server_id,
            alarm: pb::AlarmType::Nospace.into(),
        };
        let command = Command::Alarm(AlarmCommand { request, cause: Default::default() });
        let request =
            Request { id: 0, username: ROOT.to_owned(), auth_revision: u64::MAX, command };
        self.apply_one(request).map(drop)
    }

    fn is_working_set_full(&self) -> bool {
        self.state.store().working_set_bytes() > WORKING_SET_BYTES_MAX
            || self.coverage.key_count() > WORKING_SET_KEYS_MAX
    }

    async fn replace_working_set(&mut self) -> Result<(), EngineError> {
        let number = self.number;
        let all_committed = self.committed.wait_for(|committed| *committed >= number).await;
        all_committed.map_err(|_| EngineError::SequencerChanged)?;
        self.state.forget_keys();
        self.coverage = Coverage::default();
        Ok(())
    }

    /// Waits while more than [`BACKLOG_BYTES_MAX`] bytes of batches are not in the tables yet.
    async fn wait_for_backlog(&mut self) -> Result<(), EngineError> {
        while self.replica.tail.unwritten_bytes() > BACKLOG_BYTES_MAX {
            self.written.changed().await.map_err(|_| EngineError::SequencerChanged)?;
        }
        Ok(())
    }
}

/// Decodes a request. If the request cannot be decoded, contains a password in plain text, or
/// contains a key or name that is too long, sends the error to the caller and returns `None`.
fn decoded(job: Job) -> Option<Waiting> {
    let Job { mut request, author, reply, .. } = job;
    if request.header.is_none() {
        request.header = Some(pb::RequestHeader::default());
    }
    match Request::from_message(request) {
        Ok(request) if has_plain_password(&request.command) => {
            let error = EngineError::Malformed("a password is not hashed".to_owned());
            // The caller may have stopped waiting.
            let (Ok(()) | Err(_)) = reply.send(Err(error));
            None
        }
        Ok(request) => match check_command(&request.command) {
            Ok(()) => Some(Waiting { request, author, reply }),
            Err(error) => {
                let (Ok(()) | Err(_)) = reply.send(Err(error));
                None
            }
        },
        Err(fault) => {
            let (Ok(()) | Err(_)) = reply.send(Err(EngineError::Malformed(fault.to_string())));
            None
        }
    }
}

/// Returns whether a request contains a password in plain text. Such a request is refused before it is applied, because
/// applying it would end the term with an error instead of refusing the request.
fn has_plain_password(command: &Command) -> bool {
    match command {
        Command::Auth(command) => command.has_plain_password(),
        Command::Range(_)
        | Command::Put(_)
        | Command::DeleteRange(_)
        | Command::Txn(_)
        | Command::Compaction(_)
        | Command::LeaseGrant(_)
        | Command::LeaseRevoke(_)
        | Command::LeaseCheckpoint(_)
        | Command::Alarm(_)
        | Command::Cluster(_)
        | Command::Nothing => false,
    }
}

/// Returns the number of keys that a response lists.
fn listed_keys(response: &Response) -> usize {
    match response {
        Response::Range(range) => range.kvs.len(),
        Response::DeleteRange(deleted) => deleted.prev_kvs.len(),
        Response::Txn(txn) => listed_keys_of_txn(txn),
        Response::Put(_)
        | Response::Compaction(_)
        | Response::LeaseGrant(_)
        | Response::LeaseRevoke(_)
        | Response::LeaseCheckpoint(_)
        | Response::Alarm(_)
        | Response::AuthStatus(_)
        | Response::Authenticated { .. }
        | Response::AuthUserGet(_)
        | Response::AuthUserList(_)
        | Response::AuthRoleGet(_)
        | Response::AuthRoleList(_)
        | Response::AuthDone(_)
        | Response::Empty => 0,
    }
}

fn listed_keys_of_txn(txn: &pb::TxnResponse) -> usize {
    use pb::response_op::Response as Operation;
    let listed = txn.responses.iter().map(|operation| match &operation.response {
        Some(Operation::ResponseRange(range)) => range.kvs.len(),
        Some(Operation::ResponseDeleteRange(deleted)) => deleted.prev_kvs.len(),
        Some(Operation::ResponseTxn(txn)) => listed_keys_of_txn(txn),
        Some(Operation::ResponsePut(_)) | None => 0,
    });
    listed.sum()
}

fn user_of_login(command: &Command) -> Option<String> {
    match command {
        Command::Auth(AuthCommand::Authenticate(request)) => Some(request.name.clone()),
        _ => None,
    }
}
