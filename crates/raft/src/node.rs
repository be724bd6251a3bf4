//! The interface of one member for the application.
//!
//! # The application's duties
//!
//! The application calls [`tick`](Node::tick) at regular intervals, [`step`](Node::step) with every
//! message from a peer, and [`propose`](Node::propose) and similar methods when needed. After any
//! number of such calls, it takes a [`Ready`](crate::Ready) and does the work in it, in one of two
//! ways.
//!
//! **Synchronously.** Write `hard_state`, `entries` and `snapshot` to disk; append them to
//! [`storage_mut`](Node::storage_mut); send `messages`; apply `committed_entries`, calling
//! [`apply_conf_change`](Node::apply_conf_change) for each membership change among them; then call
//! [`advance`](Node::advance). A leader may send before it writes, because messages that attest its
//! own writes are not among `messages`.
//!
//! **Asynchronously** ([`Config::async_storage_writes`]). Data to write is in a
//! [`StorageAppend`](crate::MessageKind::StorageAppend) message, entries to apply in a
//! [`StorageApply`](crate::MessageKind::StorageApply) message, both among `messages`. A thread for
//! each kind must process them in order and then deliver the message's `responses`: those for other
//! members are sent, those for this member are passed to [`step_local`](Node::step_local). Other
//! messages do not wait for the disk, and `advance` is not called. A `StorageAppend` without
//! responses need not be synced.
//!
//! In both cases, when a write is reported, the storage that the core reads must contain its data.
//! It may contain the data earlier.
//!
//! # Checks of messages
//!
//! Messages come from other machines. A message that a correct member would never send is refused
//! with a [`StepError`] before it changes any state; it never causes a panic.

use bytes::Bytes;

use crate::advance::OnAdvance;
use crate::confchange::{AnyConfChange, ConfChangeError, ConfChangeV2};
use crate::config::Config;
use crate::entry::{Entry, EntryKind, MemberId, NONE};
use crate::error::{ConfigError, StepError};
use crate::log_index::LogIndex;
use crate::message::{LOCAL_APPEND, LOCAL_APPLY, Message, MessageKind, is_local_target};
use crate::note::Note;
use crate::positions::{POSITION_MAX, believed_commit_max, believed_term_max};
use crate::raft::Raft;
use crate::received::{Received, Request};
use crate::state::{ConfState, HardState, Role, SoftState};
use crate::status::Status;
use crate::storage::{MemoryStorage, Storage, StorageError};
use crate::term::Term;
use crate::tracker::{Configuration, ProgressMap};

/// How the transfer of a snapshot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The follower has received the snapshot.
    Finished,
    /// The follower has not received the snapshot.
    Failed,
}

/// One member of a group.
#[derive(Debug)]
pub struct Node<S> {
    pub(crate) raft: Raft<S>,
    /// As last returned by `ready`.
    pub(crate) soft_state: SoftState,
    pub(crate) hard_state: HardState,
    /// With synchronous writes: the effects of the last [`Ready`] when it is done.
    pub(crate) on_advance: OnAdvance,
}

/// Construction, time and elections.
impl<S: Storage> Node<S> {
    /// A member that starts or restarts with the state in `storage`.
    ///
    /// The storage's [initial state](Storage::initial_state) contains the configuration at
    /// [`Config::applied`]. Without a configuration, the member waits for a log or a snapshot.
    pub fn new(config: Config, storage: S) -> Result<Self, ConfigError> {
        let raft = Raft::new(config, storage)?;
        let (soft_state, hard_state) = (raft.soft_state(), raft.hard_state());
        Ok(Self { raft, soft_state, hard_state, on_advance: OnAdvance::default() })
    }

    /// Advances one tick.
    pub fn tick(&mut self) {
        self.raft.tick();
    }

    /// Advances one tick for a member that must not campaign now. If an election is due, the member
    /// only stops following the leader that has sent no messages.
    pub fn tick_without_campaign(&mut self) {
        self.raft.tick_without_campaign();
    }

    /// Starts an election now.
    pub fn campaign(&mut self) {
        self.raft.handle_hup();
    }

    /// Stops following the leader, so that this member may vote for another at once. Has an effect
    /// only on a follower with [`ReadOnlyOption::Safe`](crate::ReadOnlyOption::Safe).
    pub fn forget_leader(&mut self) {
        if self.raft.role == Role::Follower {
            self.raft.forget_leader();
        }
    }

    /// Replaces the jittered election timeout, in ticks, until the next change of role or term.
    /// For tests and simulations that need to know who campaigns first.
    pub fn override_election_timeout(&mut self, ticks: u32) {
        self.raft.election_timeout = ticks;
    }

    /// The notes since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        self.raft.notes.take()
    }
}

/// Requests.
impl<S: Storage> Node<S> {
    /// Proposes one entry. The proposal has succeeded only when the entry is among the committed
    /// entries; until then it may be lost, for example with a leader.
    pub fn propose(&mut self, data: Bytes) -> Result<(), StepError> {
        self.propose_batch([data])
    }

    /// Proposes entries that are accepted all or none. This is much cheaper than single proposals.
    pub fn propose_batch(
        &mut self,
        batch: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), StepError> {
        let entries = batch.into_iter().map(|data| Entry::proposal(EntryKind::Normal, data));
        let entries: Vec<_> = entries.collect();
        if entries.is_empty() {
            return Err(StepError::EmptyProposal);
        }
        self.request(Request::Propose(entries))
    }

    /// Proposes a membership change. A leader appends an empty entry instead if the change is
    /// invalid.
    pub fn propose_conf_change(
        &mut self,
        change: impl Into<AnyConfChange>,
    ) -> Result<(), StepError> {
        self.request(Request::Propose(vec![change.into().into_entry()]))
    }

    /// Puts a committed membership change into force. The application calls it when it applies the
    /// change. If it rejects the change, it either sets the node id to zero or does not call.
    pub fn apply_conf_change(
        &mut self,
        change: impl Into<ConfChangeV2>,
    ) -> Result<ConfState, ConfChangeError> {
        self.raft.apply_conf_change(&change.into())
    }

    /// Requests an index from which on a read is linearizable. The answer is a
    /// [`ReadState`](crate::ReadState) with the same context. It may never come: the request is
    /// dropped if there is no leader, and its messages may be lost. `context` must differ from that
    /// of every other request of any member.
    pub fn read_index(&mut self, context: Bytes) {
        let requested = self.request(Request::ReadIndex(context));
        assert_eq!(requested, Ok(()), "a read request is never refused");
    }

    /// Requests that the leader transfer leadership to `to`. A failure is not reported.
    pub fn transfer_leader(&mut self, to: MemberId) {
        let requested = self.raft.step_request(to, Term::ZERO, Request::TransferLeader);
        assert_eq!(requested, Ok(()), "a request for a transfer is never refused");
    }

    fn request(&mut self, request: Request) -> Result<(), StepError> {
        self.raft.step_request(self.raft.config.id, Term::ZERO, request)
    }

    /// Reports that a message to a member could not be delivered.
    pub fn report_unreachable(&mut self, id: MemberId) {
        if self.is_leader() {
            self.raft.handle_unreachable(id);
        }
    }

    /// Reports how the transfer of a snapshot to a member ended. Every snapshot message requires a
    /// report; without it, the member receives nothing else until it acknowledges.
    pub fn report_snapshot(&mut self, id: MemberId, outcome: SnapshotOutcome) {
        if self.is_leader() {
            self.raft.handle_snapshot_status(id, outcome == SnapshotOutcome::Failed);
        }
    }
}

/// Messages.
impl<S: Storage> Node<S> {
    /// Processes a message from another member.
    pub fn step(&mut self, mut message: Message) -> Result<(), StepError> {
        self.check_foreign(&message)?;
        if message.from == NONE {
            // A request without a sender counts as a request of this member.
            message.from = self.raft.config.id;
        }
        self.raft.step(Received::try_from(message)?)
    }

    /// Processes a response from one of this member's storage threads.
    pub fn step_local(&mut self, message: Message) -> Result<(), StepError> {
        let id = self.raft.config.id;
        let reporter = if message.kind == MessageKind::StorageAppendResponse {
            LOCAL_APPEND
        } else if message.kind == MessageKind::StorageApplyResponse {
            LOCAL_APPLY
        } else if message.kind.attests_durability() {
            id
        } else {
            return Err(StepError::LocalMessage);
        };
        if message.from != reporter || message.to != id {
            return Err(StepError::LocalMessage);
        }
        if message.from == id && !self.is_member(id) {
            return Err(StepError::PeerNotFound);
        }
        self.step_own(message)
    }

    /// Processes the report of a storage thread, or what this member attests to itself.
    pub(crate) fn step_own(&mut self, message: Message) -> Result<(), StepError> {
        if message.kind == MessageKind::StorageAppendResponse {
            self.raft.handle_append_written(message);
        } else if message.kind == MessageKind::StorageApplyResponse {
            self.raft.handle_entries_applied(&message.entries);
        } else {
            self.raft.step(Received::try_from(message)?)?;
        }
        Ok(())
    }

    fn is_member(&self, id: MemberId) -> bool {
        self.raft.tracker.progress.contains_key(&id)
    }

    /// Refuses a message that no correct member sends.
    fn check_foreign(&self, message: &Message) -> Result<(), StepError> {
        let Message { kind, from, term, .. } = *message;
        if kind.is_local() {
            return Err(StepError::LocalMessage);
        }
        if kind.is_response() && !self.is_member(from) {
            return Err(StepError::PeerNotFound);
        }
        let is_sender_valid = from != NONE && from != self.raft.config.id && !is_local_target(from);
        if kind.carries_term() && !(is_sender_valid && term != Term::ZERO) {
            return Err(StepError::Sender { kind, from, term });
        }
        let snapshot = message.snapshot.as_ref().map(|snapshot| snapshot.last_id());
        let last = snapshot.unwrap_or_default();
        let indexes = [message.index, message.commit, message.reject_hint, last.index];
        let log_term = message.log_term.max(last.term);
        if term > believed_term_max(self.raft.term) {
            return Err(StepError::Term { kind, from, term, own: self.raft.term });
        }
        // A log is never ahead of its owner's term.
        let is_ahead = kind.carries_term() && log_term > term;
        let is_beyond_any = log_term.get() > POSITION_MAX
            || indexes.iter().any(|index| index.get() > POSITION_MAX)
            || message.commit > believed_commit_max(self.last_index());
        if is_ahead || is_beyond_any {
            return Err(StepError::OutOfRange { kind, from });
        }
        Ok(())
    }
}

/// State.
impl<S: Storage> Node<S> {
    /// This member.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.raft.config.id
    }

    /// The known leader of the current term, or [`NONE`].
    #[must_use]
    pub fn leader(&self) -> MemberId {
        self.raft.leader
    }

    /// This member's role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.raft.role
    }

    /// Whether this member leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raft.role == Role::Leader
    }

    /// Whether this member has no vote.
    #[must_use]
    pub fn is_learner(&self) -> bool {
        self.raft.is_learner
    }

    /// The current term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.raft.term
    }

    /// The highest index known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> LogIndex {
        self.raft.log.committed()
    }

    /// The highest index reported to be applied.
    #[must_use]
    pub fn applied_index(&self) -> LogIndex {
        self.raft.log.applied()
    }

    /// Payload bytes of the entries that this leader has accepted and that it has not applied yet.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> u64 {
        self.raft.uncommitted_bytes
    }

    /// The index of the last entry, written or not.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.raft.log.last_index()
    }

    /// The term of the entry at `index`, written or not; `None` if it is not in the log.
    #[must_use]
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.raft.log.term(index).ok()
    }

    /// Whether an entry of the current term is committed. Before that, a new leader does not know
    /// how far its predecessors had committed.
    #[must_use]
    pub fn has_committed_in_term(&self) -> bool {
        self.raft.has_committed_in_term()
    }

    /// Whether a committed membership change waits to be applied. Until it is, this member does not campaign.
    #[must_use]
    pub fn has_unapplied_conf_change(&self) -> bool {
        self.raft.log.has_unapplied_conf_change()
    }

    /// Whether this leader's log may contain a membership change that is not applied yet. A further
    /// change that is proposed now would become an empty entry.
    #[must_use]
    pub fn has_pending_conf_change(&self) -> bool {
        self.is_leader() && self.raft.pending_conf_index > self.raft.log.applied()
    }

    /// The member to which this leader is transferring leadership, or [`NONE`].
    #[must_use]
    pub fn transferee(&self) -> MemberId {
        self.raft.transferee
    }

    /// The configuration in force.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.raft.tracker.config
    }

    /// Whether this member is the only voter.
    #[must_use]
    pub fn is_sole_voter(&self) -> bool {
        self.raft.tracker.is_sole_voter(self.raft.config.id)
    }

    /// A copy of the member's state. Too expensive for hot paths.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.raft)
    }

    /// For a leader, the ticks since it last checked its quorum; for other members, the ticks since
    /// they last received a message from a leader.
    #[must_use]
    pub const fn election_elapsed(&self) -> u32 {
        self.raft.election_elapsed
    }

    /// A leader's progress of each member, including itself; `None` on other members.
    #[must_use]
    pub fn progress(&self) -> Option<&ProgressMap> {
        self.is_leader().then_some(&self.raft.tracker.progress)
    }

    /// The highest number that a quorum of the voters has acknowledged; `acked` returns the number
    /// of each voter.
    pub fn quorum_agreed(&self, acked: impl Fn(MemberId) -> Option<u64>) -> u64 {
        self.raft.tracker.config.voters.agreed(acked)
    }

    /// The settings, with defaults filled in.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.raft.config
    }

    /// The written log.
    #[must_use]
    pub fn storage(&self) -> &S {
        &self.raft.log.storage
    }

    /// The written log, to which the application appends. It may be compacted only up to
    /// [`applied_index`](Self::applied_index), because the core still reads later entries.
    /// [`compact`](Node::compact) asserts that.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.raft.log.storage
    }
}

impl Node<MemoryStorage> {
    /// Drops the entries of the log up to and including `index`, which must be reported as applied.
    pub fn compact(&mut self, index: LogIndex) -> Result<(), StorageError> {
        assert!(
            index <= self.applied_index(),
            "the core may still read entries that are not applied"
        );
        self.raft.log.storage.compact(index)
    }
}

#[cfg(test)]
mod tests;
