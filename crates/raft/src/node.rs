//! The application's interface to one member.
//!
//! # The application's duties
//!
//! The application calls [`tick`](Node::tick) at regular intervals, [`step`](Node::step) with every message from a
//! peer, and [`propose`](Node::propose) and similar methods when needed. After any number of such calls, it takes a
//! [`Ready`](crate::Ready) and does the work that the `Ready` contains, in one of two ways.
//!
//! **Synchronously.** Write `hard_state`, `entries` and `snapshot` to disk; append them to
//! [`storage_mut`](Node::storage_mut); send `messages`; apply `committed_entries`, calling
//! [`apply_conf_change`](Node::apply_conf_change) for each membership change among them; then call
//! [`advance`](Node::advance). A leader may send before it writes, because messages that attest to its own writes are
//! not among `messages`.
//!
//! **Asynchronously** ([`Config::async_storage_writes`]). `messages` then includes the data to write, in a
//! [`StorageAppend`](crate::MessageKind::StorageAppend) message, and the entries to apply, in a
//! [`StorageApply`](crate::MessageKind::StorageApply) message. One thread for each of these two kinds must process its
//! messages in order and then deliver each message's `responses`: it sends responses for other members and passes
//! responses for this member to [`step_local`](Node::step_local). Other messages do not wait for the disk, and the
//! application does not call `advance`. A `StorageAppend` without responses need not be synced.
//!
//! In both cases, the storage that the core reads must contain the data of a write by the time the write is reported.
//! It may contain the data earlier.
//!
//! # Message checks
//!
//! Messages come from other machines. A message that a correct member would never send, or a
//! response from a sender outside the group, is refused with a [`StepError`] before it changes any
//! state. No message causes a panic.

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
    /// The soft state that `ready` last returned.
    pub(crate) soft_state: SoftState,
    pub(crate) hard_state: HardState,
    /// With synchronous writes: the pending effects of the last [`Ready`].
    pub(crate) on_advance: OnAdvance,
}

/// Construction, time and elections.
impl<S: Storage> Node<S> {
    /// Starts or restarts a member with the state in `storage`.
    ///
    /// The storage's [initial state](Storage::initial_state) contains the configuration at [`Config::applied`]. Without
    /// a configuration, the member waits until it receives a log or a snapshot.
    pub fn new(config: Config, storage: S) -> Result<Self, ConfigError> {
        let raft = Raft::new(config, storage)?;
        let (soft_state, hard_state) = (raft.soft_state(), raft.hard_state());
        Ok(Self { raft, soft_state, hard_state, on_advance: OnAdvance::default() })
    }

    /// Advances the member's timers by one tick.
    pub fn tick(&mut self) {
        self.raft.tick();
    }

    /// Advances the member's timers by one tick, but does not let the member campaign. If an election is due, the
    /// member only stops following its silent leader.
    pub fn tick_without_campaign(&mut self) {
        self.raft.tick_without_campaign();
    }

    /// Starts an election now.
    pub fn campaign(&mut self) {
        self.raft.handle_hup();
    }

    /// Stops following the leader, so that this member may immediately vote for another member. Has an effect only on a
    /// follower with [`ReadOnlyOption::Safe`](crate::ReadOnlyOption::Safe).
    pub fn forget_leader(&mut self) {
        if self.raft.role == Role::Follower {
            self.raft.forget_leader();
        }
    }

    /// Replaces the jittered election timeout, in ticks, until the next change of role or term. This is for
    /// tests and simulations that need to control which member campaigns first.
    pub fn override_election_timeout(&mut self, ticks: u32) {
        self.raft.election_timeout = ticks;
    }

    /// Returns the notes recorded since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        self.raft.notes.take()
    }
}

/// Requests from the application.
impl<S: Storage> Node<S> {
    /// Proposes one entry. The proposal has succeeded once the entry is among the committed entries. Until then, the
    /// entry may be lost, for example if the leader fails.
    pub fn propose(&mut self, data: Bytes) -> Result<(), StepError> {
        self.propose_batch([data])
    }

    /// Proposes entries that are either all accepted or all refused. This is much cheaper than proposing them one by
    /// one.
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

    /// Proposes a membership change. If the change is invalid, the leader appends an empty entry instead.
    pub fn propose_conf_change(
        &mut self,
        change: impl Into<AnyConfChange>,
    ) -> Result<(), StepError> {
        self.request(Request::Propose(vec![change.into().into_entry()]))
    }

    /// Puts a committed membership change into effect. The application calls this method when it applies the change. To
    /// reject the change, it either sets the node id to zero or does not call this method.
    pub fn apply_conf_change(
        &mut self,
        change: impl Into<ConfChangeV2>,
    ) -> Result<ConfState, ConfChangeError> {
        self.raft.apply_conf_change(&change.into())
    }

    /// Requests a read index: a read is linearizable once the state machine has applied this index. The response is a
    /// [`ReadState`](crate::ReadState) with the same context. The response may never arrive, because the request is
    /// dropped if there is no leader, and its messages may be lost. `context` must be unique among all requests from
    /// all members.
    pub fn read_index(&mut self, context: Bytes) {
        let requested = self.request(Request::ReadIndex(context));
        assert_eq!(requested, Ok(()), "a read request is never refused");
    }

    /// Returns the number of the oldest pending read, if this member is a leader that has asked only some of the voters
    /// to confirm its newest read. A leader numbers all reads of its term, including those of other members.
    #[must_use]
    pub fn oldest_read_asked_of_few(&self) -> Option<u64> {
        let reads = &self.raft.reads;
        (!reads.asked_alone().is_empty()).then(|| reads.oldest())
    }

    /// Asks the other voters to confirm the pending reads, if only some of the voters were asked
    /// ([`Config::asks_few_to_confirm_reads`](crate::Config::asks_few_to_confirm_reads)). The caller calls this if the
    /// answers do not arrive in time.
    pub fn ask_others_to_confirm_reads(&mut self) {
        self.raft.ask_others_to_confirm_reads();
    }

    /// Does the same as [`Node::ask_others_to_confirm_reads`], but only if `id` is one of the voters that were asked,
    /// and stops preferring `id` for later reads. The caller calls this if the process of `id` has probably ended.
    /// [`Node::report_unreachable`] includes it.
    pub fn ask_others_instead_of(&mut self, id: MemberId) {
        self.raft.ask_others_instead_of(id);
    }

    /// Makes the leader ask all voters to confirm its next read, because those that it has chosen are slow.
    pub fn forget_confirmers(&mut self) {
        self.raft.reads.forget_confirmers();
    }

    /// Requests that the leader transfer leadership to `to`. A failure is not reported.
    pub fn transfer_leader(&mut self, to: MemberId) {
        let requested = self.raft.step_request(to, Term::ZERO, Request::TransferLeader);
        assert_eq!(requested, Ok(()), "a request for a transfer is never refused");
    }

    fn request(&mut self, request: Request) -> Result<(), StepError> {
        self.raft.step_request(self.raft.config.id, Term::ZERO, request)
    }

    /// Sets whether this member, as a leader, announces a commit to its followers only with its next append. Otherwise
    /// it sends each follower an additional message for each commit. The followers also learn the commit index from
    /// heartbeats. The caller calls [`Node::announce_commit`] if no append has followed within the time that the
    /// followers may have to wait, and sets this only while no membership change is unapplied, because a removed member
    /// receives no later append.
    pub const fn defer_commit_notices(&mut self, defers: bool) {
        self.raft.defers_commit_notices = defers;
    }

    /// Returns whether this member, as a leader, announces a commit only with its next append.
    #[must_use]
    pub const fn defers_commit_notices(&self) -> bool {
        self.raft.defers_commit_notices
    }

    /// Sends the commit index to each follower that does not know yet that all entries up to `index` are committed, if
    /// this member is the leader. Followers that lack these entries receive nothing.
    pub fn announce_commit(&mut self, index: LogIndex) {
        if self.is_leader() {
            self.raft.announce_commit(index);
        }
    }

    /// Reports that a message to a member could not be delivered.
    pub fn report_unreachable(&mut self, id: MemberId) {
        if self.is_leader() {
            self.raft.handle_unreachable(id);
        }
    }

    /// Reports how the transfer of a snapshot to a member ended. Every snapshot message requires a report. Without it,
    /// the member receives no further entries until it acknowledges the snapshot.
    pub fn report_snapshot(&mut self, id: MemberId, outcome: SnapshotOutcome) {
        if self.is_leader() {
            self.raft.handle_snapshot_status(id, outcome == SnapshotOutcome::Failed);
        }
    }
}

/// Messages from peers and from storage threads.
impl<S: Storage> Node<S> {
    /// Processes a message from another member.
    pub fn step(&mut self, mut message: Message) -> Result<(), StepError> {
        self.check_foreign(&message)?;
        if message.from == NONE {
            // A request without a sender counts as this member's own request.
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

    /// Processes a report from a storage thread, or a message in which this member attests to its own writes.
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

    /// Refuses a message that no correct member sends, and a response from a sender outside the group.
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
        // A member's log never contains a term above the member's own term.
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

/// Methods that return the member's state.
impl<S: Storage> Node<S> {
    /// Returns this member's id.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.raft.config.id
    }

    /// Returns the known leader of the current term, or [`NONE`].
    #[must_use]
    pub fn leader(&self) -> MemberId {
        self.raft.leader
    }

    /// Returns this member's role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.raft.role
    }

    /// Returns whether this member leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raft.role == Role::Leader
    }

    /// Returns whether this member is a learner, which has no vote.
    #[must_use]
    pub fn is_learner(&self) -> bool {
        self.raft.is_learner
    }

    /// Returns the current term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.raft.term
    }

    /// Returns the highest index known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> LogIndex {
        self.raft.log.committed()
    }

    /// Returns the highest index reported as applied.
    #[must_use]
    pub fn applied_index(&self) -> LogIndex {
        self.raft.log.applied()
    }

    /// Returns the number of payload bytes in the entries that this leader has accepted but not yet applied.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> u64 {
        self.raft.uncommitted_bytes
    }

    /// Returns the index of the last entry, whether or not it is written.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.raft.log.last_index()
    }

    /// Returns the term of the entry at `index`, whether or not it is written, or `None` if the log has no such entry.
    #[must_use]
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.raft.log.term(index).ok()
    }

    /// Returns whether an entry of the current term is committed. Until then, a new leader does not know which entries
    /// its predecessors had committed.
    #[must_use]
    pub fn has_committed_in_term(&self) -> bool {
        self.raft.has_committed_in_term()
    }

    /// Returns whether a committed membership change has yet to be applied. Until it is applied, this member does not
    /// campaign.
    #[must_use]
    pub fn has_unapplied_conf_change(&self) -> bool {
        self.raft.log.has_unapplied_conf_change()
    }

    /// Returns whether this leader's log may contain an unapplied membership change. While this is true, any further
    /// proposed change becomes an empty entry, unless [`Config::disable_conf_change_validation`] is set.
    #[must_use]
    pub fn has_pending_conf_change(&self) -> bool {
        self.is_leader() && self.raft.pending_conf_index > self.raft.log.applied()
    }

    /// Returns the member to which this leader is transferring leadership, or [`NONE`].
    #[must_use]
    pub fn transferee(&self) -> MemberId {
        self.raft.transferee
    }

    /// Returns the configuration in effect.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.raft.tracker.config
    }

    /// Returns whether this member is the only voter.
    #[must_use]
    pub fn is_sole_voter(&self) -> bool {
        self.raft.tracker.is_sole_voter(self.raft.config.id)
    }

    /// Returns a copy of the member's state. This is too expensive for hot paths.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.raft)
    }

    /// Returns the number of ticks until the election timeout of a member that does not lead, if no message arrives
    /// from a leader. The number is 0 if the timeout has passed and the member may not campaign.
    #[must_use]
    pub const fn ticks_until_election(&self) -> u32 {
        self.raft.election_timeout.saturating_sub(self.raft.election_elapsed)
    }

    /// Returns, for a leader, the ticks since it last checked its quorum and, for any other member, the ticks since it
    /// last received a message from a leader.
    #[must_use]
    pub const fn election_elapsed(&self) -> u32 {
        self.raft.election_elapsed
    }

    /// Returns the leader's record of every member's replication progress, including its own, or `None` if this member
    /// does not lead.
    #[must_use]
    pub fn progress(&self) -> Option<&ProgressMap> {
        self.is_leader().then_some(&self.raft.tracker.progress)
    }

    /// Returns the highest number that a quorum of the voters has acknowledged. `acked` returns the number that each
    /// voter has acknowledged.
    pub fn quorum_agreed(&self, acked: impl Fn(MemberId) -> Option<u64>) -> u64 {
        self.raft.tracker.config.voters.agreed(acked)
    }

    /// Returns the settings, with defaults filled in.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.raft.config
    }

    /// Returns the written log.
    #[must_use]
    pub fn storage(&self) -> &S {
        &self.raft.log.storage
    }

    /// Returns the written log, to which the application appends. It may be compacted only up to
    /// [`applied_index`](Self::applied_index), because the core still reads later entries. [`compact`](Node::compact)
    /// asserts this limit.
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.raft.log.storage
    }
}

impl Node<MemoryStorage> {
    /// Drops the log entries up to and including `index`, which must have been reported as applied.
    pub fn compact(&mut self, index: LogIndex) -> Result<(), StorageError> {
        assert!(
            index <= self.applied_index(),
            "only applied entries are compacted: the core may still read later entries"
        );
        self.raft.log.storage.compact(index)
    }
}

#[cfg(test)]
mod tests;
