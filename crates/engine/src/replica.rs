//! The replica: a server's own copy of all data except the keys.
//!
//! The replica applies the committed batches in the order of the log. It keeps users, roles, leases,
//! alarms and the tail in memory, and delivers the events of each batch to the server's watchers.
//!
//! # Invariants
//!
//! * Each batch is published once and in order. On the sequencer's server, both the commit and a
//!   concurrent read of the log may deliver a batch, and the second delivery is ignored.
//! * The events of a batch are delivered after the changes of the batch are visible to readers.
//!
//! # Not here
//!
//! Reading the log (`follower`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use quorate_state::apply::{CommittedBatch, PublishedState, ResumedHistory, State, StateOptions};
use quorate_state::backend::Rows;
use quorate_state::members::Members;
use quorate_state::units::{LeaseId, Millis};
use quorate_state::watch::Source;
use tokio::sync::watch;

use crate::batch::Committed;
use crate::error::EngineError;
use crate::tail::{Position, Tail};

/// The clock for leases and tokens. It counts milliseconds from one hour before the server's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// Returns the current time. The time is one hour when the server starts, so that even a deadline
    /// before the start is positive.
    pub(crate) fn now(self) -> Millis {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Millis(3_600_000).plus(elapsed)
    }
}

/// A server's own copy of all data except the keys.
#[derive(Debug)]
pub(crate) struct Replica {
    content: Mutex<Content>,
    published: PublishedState,
    pub(crate) tail: Arc<Tail>,
    reached: watch::Sender<u64>,
    leads: AtomicBool,
    clock: Clock,
}

#[derive(Debug)]
struct Content {
    state: State,
    rows: Rows,
}

/// The state from which a replica starts, read from the tables and from the last batch in them.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) rows: Rows,
    /// The keys that are attached to leases.
    pub(crate) attachments: Vec<(Bytes, LeaseId)>,
    pub(crate) position: Position,
}

impl Replica {
    pub(crate) fn new(
        start: Start,
        options: StateOptions,
        clock: Clock,
    ) -> Result<Self, EngineError> {
        let Start { rows, attachments, position } = start;
        let applied = (position.index, position.term.epoch);
        let state = State::of_database(&rows, attachments, position.revision, applied, options)?;
        let published = state.published();
        let tail = Arc::new(Tail::new(position));
        let reached = watch::Sender::new(position.seq);
        let content = Mutex::new(Content { state, rows });
        let leads = AtomicBool::new(false);
        Ok(Self { content, published, tail, reached, leads, clock })
    }

    /// Sets whether this server is the sequencer. A sequencer publishes each batch itself, after
    /// committing it.
    pub(crate) fn set_leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Release);
    }

    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Sets the source from which watchers read history.
    pub(crate) fn read_history_from(&self, source: Arc<dyn Source>) {
        self.content.lock().state.read_history_from(source);
    }

    /// Returns the handles that give client requests access to users, leases, alarms and watchers.
    pub(crate) const fn published(&self) -> &PublishedState {
        &self.published
    }

    pub(crate) fn position(&self) -> Position {
        self.tail.position()
    }

    /// Returns a copy of the rows, and the position of the last batch that they include.
    pub(crate) fn rows(&self) -> (Rows, Position) {
        let content = self.content.lock();
        (content.rows.clone(), self.tail.position())
    }

    /// Publishes the next batch of the log. A batch that has already been published is ignored.
    pub(crate) fn publish(&self, batch: &Arc<Committed>) -> Result<(), EngineError> {
        self.publish_locked(self.content.lock(), batch)
    }

    /// Publishes a batch that this server has committed as the sequencer. Fails if the replica has
    /// restarted since the term began, because the log that the replica follows now may not contain the
    /// batch.
    pub(crate) fn publish_committed(
        &self,
        batch: &Arc<Committed>,
        restarts: u64,
    ) -> Result<(), EngineError> {
        let content = self.content.lock();
        if self.tail.position().restarts != restarts {
            return Err(EngineError::OutcomeUnknown);
        }
        self.publish_locked(content, batch)
    }

    fn publish_locked(
        &self,
        mut content: MutexGuard<'_, Content>,
        batch: &Arc<Committed>,
    ) -> Result<(), EngineError> {
        let reached = self.tail.position();
        if batch.seq <= reached.seq {
            return Ok(());
        }
        assert!(
            batch.seq == reached.seq + 1,
            "batches are published in the order of the log: otherwise watchers would miss events"
        );
        let Content { state, rows } = &mut *content;
        let changed: Vec<_> = batch.rows.iter().map(|row| row.change()).collect();
        changed.iter().for_each(|change| rows.apply(change));
        let compacted = rows.compacted_revision().map_err(EngineError::from)?;
        let committed = CommittedBatch {
            changes: batch.changes(),
            rows: &changed,
            tokens: &batch.tokens,
            revision: batch.last_revision,
            applied: (batch.index, batch.term.epoch),
        };
        let reveal = || self.tail.push(batch, compacted);
        state.follow(committed, rows, self.clock.now(), reveal)?;
        drop(content);
        self.reached.send_replace(batch.seq);
        Ok(())
    }

    /// Restarts the replica from the tables, unless a batch was published after `reached`. `history`
    /// specifies whether the tables continue the history that the replica has published.
    pub(crate) fn restart(
        &self,
        reached: Position,
        start: Start,
        source: Arc<dyn Source>,
        history: ResumedHistory,
    ) -> Result<(), EngineError> {
        let mut content = self.content.lock();
        if self.tail.position().seq != reached.seq {
            return Ok(());
        }
        let Start { rows, attachments, position } = start;
        let at = (position.revision, (position.index, position.term.epoch));
        let reveal = || self.tail.reset(position);
        content.state.resume(&rows, attachments, at, (source, history), reveal)?;
        content.rows = rows;
        drop(content);
        self.reached.send_replace(position.seq);
        Ok(())
    }

    /// If the tables have lost changes, puts the batches with these changes back into the tail, and wakes
    /// the task that writes the tables.
    pub(crate) fn rewind(
        &self,
        written_seq: u64,
        first_revision: i64,
        batches: VecDeque<Arc<Committed>>,
    ) {
        let _content = self.content.lock();
        self.tail.rewind(written_seq, first_revision, batches);
        self.reached.send_replace(self.tail.position().seq);
    }

    /// Publishes the servers of the keyspace.
    pub(crate) fn follow_servers(&self, servers: Members) {
        self.content.lock().state.follow_servers(servers);
    }

    /// Returns a receiver that is notified of each published batch.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.reached.subscribe()
    }
}
