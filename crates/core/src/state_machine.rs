//! The state machine. It applies entries, returns outcomes and batches, and takes, sends and installs snapshots.
//!
//! Entries are applied in batches. After each batch the new view is published, and only then may the outcomes of its
//! entries be sent. Changes for the backend file are collected in an open batch, which is periodically handed over to
//! the backend. Reads see the changes before the batch is handed over. Compactions are also carried out here, one step
//! at a time.
//!
//! # Invariants
//!
//! * The outcome of a membership change is returned before its entry's index is published.
//! * Every action that follows a commit (a snapshot, an image for a peer, a notification) is handed over together with
//!   its batch.
//! * A leader's image replaces the state between two jobs. Afterwards, reports of commits to the old file are ignored.
//!
//! # Bound
//!
//! The open batch is handed over when it reaches its limit of changes or bytes, or after an interval. While the backend
//! is behind, the batch may grow to [`BATCH_GROWTH_MAX`] times its limit. A larger batch is handed over even if that
//! blocks.

mod brief;
mod compaction;
mod install;
mod membership;
mod outlet;

use std::time::{Duration, Instant};

use quorate_raft::{Entry, EntryKind, LogIndex, Message, Snapshot, Term};
use quorate_state::apply::{Applied, EntryMeta, Fault, Notice, RecoverError, Request, State};
use quorate_state::backend::{Backend, Committed};
use quorate_state::members::{MembershipRefusal, V2Error};
use quorate_state::mvcc;
use quorate_state::units::{MemberId, Millis};
use quorate_state::versions::{Version, follow_cluster_version};

use self::compaction::Compaction;
pub use self::outlet::{Begun, Outlet, Output};
use crate::backend_writer::Then;
use crate::snapshot::SnapshotOrder;

/// The maximum size of the open batch while the backend is behind, in multiples of its limit. A larger batch is handed
/// over even if that blocks.
const BATCH_GROWTH_MAX: usize = 8;

/// The pause before a batch is offered to the backend again, or a compaction is attempted again, while the backend is
/// behind.
const OFFER_AGAIN: Duration = Duration::from_millis(2);

/// A job for the state machine. `T` identifies a caller that waits for its completion.
#[derive(Debug)]
pub enum Job<T> {
    /// Apply these entries.
    Apply(Vec<Entry>),
    /// Take a snapshot of the applied state.
    TakeSnapshot,
    /// This member no longer leads.
    LostLeadership,
    /// Send this message to a peer, with a snapshot of the applied state.
    SendSnapshot(Message),
    /// Replace the state with the image of this snapshot.
    InstallSnapshot(Snapshot),
    /// A batch was committed to the file of this generation.
    Committed {
        /// The content of the file after the commit.
        committed: Committed,
        /// The number of times that the file had been replaced.
        generation: u64,
    },
    /// Update the storage version to match the cluster version.
    FollowClusterVersion,
    /// Notify the caller when all entries applied so far are in the backend file.
    Commit(T),
    /// Notify the caller when all compactions accepted so far are finished and in the backend file.
    AwaitCompactions(T),
    /// Hand over the open batch and stop.
    Stop,
}

impl<T> Job<T> {
    /// Returns whether the job applies so few entries that it may be [brief](Job::is_brief).
    #[must_use]
    pub const fn has_few_entries(&self) -> bool {
        matches!(self, Self::Apply(entries) if entries.len() <= brief::ENTRIES_MAX)
    }

    /// Returns whether even a thread with other urgent work may carry out this job, because the job takes only a short
    /// time and never waits for the backend.
    #[must_use]
    pub fn is_brief(&self) -> bool {
        match self {
            Self::Apply(entries) => brief::is_brief(entries),
            Self::TakeSnapshot
            | Self::LostLeadership
            | Self::SendSnapshot(_)
            | Self::InstallSnapshot(_)
            | Self::Committed { .. }
            | Self::FollowClusterVersion
            | Self::Commit(_)
            | Self::AwaitCompactions(_)
            | Self::Stop => false,
        }
    }
}

/// The caller's next action after a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Pass in the next job.
    GoOn,
    /// Wait until the backend has installed the image, and call [`StateMachine::installed`].
    AwaitInstall,
    /// Stop.
    End,
}

/// The limits and intervals of batches and compactions, and the extension of leases.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The maximum time from the first change in a batch until the batch is handed over.
    pub batch_interval: Duration,
    /// The number of changes at which a batch is handed over.
    pub batch_ops_max: usize,
    /// The maximum number of records that one compaction step removes.
    pub compaction_step: usize,
    /// The time between two compaction steps.
    pub compaction_pause: Duration,
    /// How much every lease is extended when this member becomes leader, in milliseconds.
    pub lease_extension_millis: u64,
}

/// The current time, on the clock of batches and compactions and on the lease clock.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The time on the clock of batches and compactions.
    pub instant: Instant,
    /// The time on the lease clock.
    pub millis: Millis,
}

/// Why the state machine cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// This version cannot apply the entry, but another version may be able to.
    #[error(
        "log entry {index} of term {term} ({kind}) cannot be applied by this version: {fault}; the member stops \
         before this entry whenever it is started. Start this data directory with the version that wrote the entry; if \
         the entry should not exist, create a new cluster from a snapshot that was taken before the entry"
    )]
    Entry {
        /// The entry's index.
        index: LogIndex,
        /// The entry's term.
        term: Term,
        /// The kind of request in the entry.
        kind: &'static str,
        /// Why the entry cannot be applied.
        fault: Fault,
    },
    /// A fault of the store, which affects every entry, or an error that has its own text in etcd.
    #[error(transparent)]
    Other(Fault),
    /// A leader's state cannot be installed.
    #[error("failed to install the state of a snapshot: {0}")]
    Install(#[from] RecoverError),
    /// The index of an installed image differs from its snapshot's index, although the two were equal when the image
    /// arrived.
    #[error(
        "the image of the snapshot at index {snapshot} has index {index}, so the file has changed since it was \
         received: check the disk"
    )]
    ImageIndex {
        /// The index of the last entry that the image contains.
        index: LogIndex,
        /// The index of the last entry that the snapshot contains.
        snapshot: LogIndex,
    },
    /// The members in a leader's snapshot cannot be read.
    #[error("failed to install the members of a snapshot: {0}")]
    Members(#[from] V2Error),
}

impl ApplyError {
    /// Distinguishes an entry that this version cannot apply from a fault of the store that affects every entry.
    fn of_entry(index: LogIndex, term: Term, kind: &'static str, fault: Fault) -> Self {
        match fault {
            // `ServerTooOld` has etcd's text, which operators know, so nothing is added to it.
            Fault::Store(_) | Fault::ServerTooOld { .. } => Self::Other(fault),
            Fault::Request(_)
            | Fault::Membership(_)
            | Fault::PlainPassword { .. }
            | Fault::ClusterVersion(_) => Self::Entry { index, term, kind, fault },
        }
    }
}

/// The state machine of a member.
#[derive(Debug)]
pub struct StateMachine<T> {
    state: State,
    backend: Backend,
    own_id: MemberId,
    pace: Pace,
    /// The outcomes of membership changes for their proposers. They are returned when the batch is published.
    verdicts: Vec<(u64, Result<(), MembershipRefusal>)>,
    /// The time at which the open batch must be handed over.
    commit_at: Option<Instant>,
    /// The callers that wait until the open batch is in the file.
    waiting: Vec<T>,
    compaction: Compaction<T>,
    /// Compactions accepted in the current batch of entries.
    accepted: Vec<mvcc::Compaction>,
    /// The number of times that the backend file has been replaced.
    generation: u64,
    /// The version of the backend file's content.
    storage_version: Option<Version>,
    /// The snapshot whose image the backend is installing.
    installing: Option<Snapshot>,
}

impl<T> StateMachine<T> {
    /// Creates a state machine with a state recovered from this file.
    #[must_use]
    pub fn new(state: State, backend: Backend, own_id: MemberId, pace: Pace, now: Instant) -> Self {
        let compaction = Compaction::begin(!state.store().is_compaction_idle(), now);
        let storage_version = crate::start::storage_version(&backend);
        Self {
            state,
            backend,
            own_id,
            pace,
            verdicts: Vec::new(),
            commit_at: None,
            waiting: Vec::new(),
            compaction,
            accepted: Vec::new(),
            generation: 0,
            storage_version,
            installing: None,
        }
    }

    /// Returns the applied state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Returns the backend file's restore mark. It is present if the content comes from a restore.
    pub fn restore_mark(&self) -> Result<Option<String>, ApplyError> {
        self.backend.read().restore_mark().map_err(|fault| ApplyError::Other(fault.into()))
    }

    /// Returns the index and term of the last applied entry.
    fn applied(&self) -> (LogIndex, Term) {
        let (index, term) = self.state.applied();
        (LogIndex(index), Term(term))
    }

    /// Returns the time at which [`StateMachine::hand_over_if_due`] or [`StateMachine::compact`] should be called next,
    /// because the open batch or the next compaction step is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        [self.commit_at, self.compaction.next_step].into_iter().flatten().min()
    }

    /// Returns whether the open batch has reached its limit of changes or bytes, so that
    /// [`StateMachine::hand_over_if_due`] should be called before the batch is due.
    #[must_use]
    pub fn has_full_batch(&self) -> bool {
        self.state.pending_batch().fill(self.pace.batch_ops_max) > 0
    }

    /// Carries out a job.
    pub fn take<O: Outlet<Completion = T>>(
        &mut self,
        job: Job<T>,
        now: Now,
        outlet: &mut O,
    ) -> Result<Next, ApplyError> {
        assert!(
            self.installing.is_none(),
            "no job runs while an image is being installed: otherwise the job's changes would be lost with the old file"
        );
        match job {
            Job::Apply(entries) => self.apply(entries, now, outlet)?,
            Job::TakeSnapshot => self.take_snapshot(outlet),
            Job::LostLeadership => self.state.published().leases.demote(),
            Job::SendSnapshot(message) => self.send_snapshot(message, outlet),
            Job::InstallSnapshot(snapshot) => {
                outlet.put(Output::Install { index: snapshot.metadata.index });
                self.installing = Some(snapshot);
                return Ok(Next::AwaitInstall);
            }
            Job::Committed { committed, generation } => {
                // Reports of commits to a replaced file are ignored.
                if generation == self.generation {
                    self.state.store_mut().committed(committed);
                    self.state.publish();
                }
            }
            Job::FollowClusterVersion => self.follow_cluster_version(outlet),
            Job::Commit(completion) => self.await_commit(completion, now.instant),
            Job::AwaitCompactions(completion) => self.await_compactions(completion, now.instant),
            Job::Stop => {
                self.hand_over(Vec::new(), outlet);
                return Ok(Next::End);
            }
        }
        Ok(Next::GoOn)
    }

    fn apply<O: Outlet<Completion = T>>(
        &mut self,
        entries: Vec<Entry>,
        now: Now,
        outlet: &mut O,
    ) -> Result<(), ApplyError> {
        let Some(last) = entries.last() else { return Ok(()) };
        let (last_index, last_term) = (last.index, last.term);
        assert!(
            self.verdicts.is_empty() && self.accepted.is_empty(),
            "outcomes are returned with their batch: otherwise a client would receive the response before the change \
             can be read"
        );
        let file_bytes = self.backend.size_bytes();
        let meta = |entry: &Entry, reply_wanted| EntryMeta {
            index: entry.index.get(),
            term: entry.term.get(),
            now: now.millis,
            file_bytes,
            reply_wanted,
        };
        let mut members_changed = false;
        for entry in entries {
            let (index, term) = (entry.index, entry.term);
            let unfit = |kind| move |fault| ApplyError::of_entry(index, term, kind, fault);
            match entry.kind {
                EntryKind::Normal if entry.data.is_empty() => {
                    self.state.apply_noop(meta(&entry, false));
                    self.promote_if_leading(term, now.millis, outlet);
                }
                EntryKind::Normal => {
                    let request = Request::decode(entry.data.clone())
                        .map_err(|fault| unfit("a request that cannot be read")(fault.into()))?;
                    let Begun { ticket, reply_wanted, kind } =
                        outlet.begin(&request, self.state.auth().view());
                    let meta = meta(&entry, reply_wanted);
                    let applied = self.state.apply(meta, request).map_err(unfit(kind))?;
                    let Applied { outcome, notice, .. } = applied;
                    outlet.finish(ticket, &entry, outcome);
                    if let Some(notice) = notice {
                        self.handle_notice(notice, now.instant, outlet);
                    }
                }
                EntryKind::ConfChange | EntryKind::ConfChangeV2 => {
                    let meta = meta(&entry, false);
                    let changed = self.apply_conf_change(meta, entry.data, outlet);
                    changed.map_err(unfit("a membership change"))?;
                    members_changed = true;
                }
            }
        }
        self.state.publish();
        // The new members are published by now, so a client that receives the outcome can read them.
        for (request_id, outcome) in self.verdicts.drain(..) {
            outlet.put(Output::ChangeAnswered { request_id, outcome });
        }
        // No step of these compactions has been carried out yet, so the view still has the records that they remove.
        for compaction in self.accepted.drain(..) {
            let view = self.state.published().view();
            outlet.put(Output::CompactionAccepted { compaction, view });
        }
        let tally = self.state.take_tally();
        let (index, term) = (last_index, last_term);
        outlet.put(Output::Published { index, term, members_changed, tally });
        self.commit_at.get_or_insert(now.instant + self.pace.batch_interval);
        Ok(())
    }

    /// Starts the lease clocks if this member leads in the term of this no-op entry. At this point all entries of
    /// earlier terms are applied.
    fn promote_if_leading<O: Outlet<Completion = T>>(&self, term: Term, now: Millis, outlet: &O) {
        if outlet.leads_in(term) {
            let leases = &self.state.published().leases;
            leases.promote(term.get(), self.pace.lease_extension_millis, now);
        }
    }

    /// Handles the effects of an entry beyond its changes to keys and leases.
    fn handle_notice<O: Outlet<Completion = T>>(
        &mut self,
        notice: Notice,
        now: Instant,
        outlet: &mut O,
    ) {
        match notice {
            Notice::MemberAttributes(_) | Notice::Downgrade => {}
            Notice::ClusterVersion { from, to } => {
                outlet.put(Output::ClusterVersion { from, to });
                self.follow_cluster_version(outlet);
                if from.is_some_and(|from| to < from) {
                    self.take_snapshot(outlet);
                }
            }
            Notice::Compaction(compaction) => {
                self.accepted.push(compaction);
                // The batch becomes due but is not handed over here: the backend may be waiting for disk space, and the
                // waiters of this entry must be answered first.
                self.commit_at = Some(now);
                self.compaction.add(now);
            }
            Notice::OutOfSpace => {
                outlet.put(Output::OverQuota { file_bytes: self.backend.size_bytes() });
            }
        }
    }

    /// Updates the version in the backend file to match the cluster version.
    fn follow_cluster_version<O: Outlet<Completion = T>>(&mut self, outlet: &mut O) {
        // A file without version and term fields has the oldest version.
        let storage = self.storage_version.unwrap_or(Version::OLDEST_FILE);
        let cluster = self.state.versions().cluster();
        match follow_cluster_version(storage, cluster, self.state.batch_mut()) {
            Ok(true) => {
                self.storage_version = cluster;
                outlet.put(Output::StorageVersion { version: cluster, is_written: true });
                self.hand_over(Vec::new(), outlet);
            }
            // The file has no version field, so it has the oldest version. The cluster has the same version, so nothing
            // is written.
            Ok(false) if cluster == Some(storage) => {
                self.storage_version = cluster;
                outlet.put(Output::StorageVersion { version: cluster, is_written: false });
            }
            Ok(false) => {}
            Err(error) => outlet.put(Output::StorageVersionStays(error)),
        }
    }

    fn take_snapshot<O: Outlet<Completion = T>>(&mut self, outlet: &mut O) {
        let order = self.snapshot_order();
        outlet.put(Output::TakingSnapshot { index: order.index() });
        self.hand_over(vec![Then::Snapshot(order)], outlet);
    }

    /// Sends a peer the state at the last applied entry.
    fn send_snapshot<O: Outlet<Completion = T>>(&mut self, mut message: Message, outlet: &mut O) {
        message.snapshot = Some(Box::new(self.snapshot_order().into_raft()));
        self.hand_over(vec![Then::Send(message)], outlet);
    }

    fn snapshot_order(&self) -> SnapshotOrder {
        let (index, term) = self.applied();
        SnapshotOrder::new(index, term, self.state.members(), self.state.versions())
    }

    /// Notifies this caller when all entries applied so far are in the file. The batch becomes due but is not handed
    /// over here, because the backend may be waiting for disk space.
    fn await_commit(&mut self, completion: T, now: Instant) {
        self.waiting.push(completion);
        self.commit_at = Some(now);
    }

    /// Hands over the open batch if it is due or full, unless the backend is behind and the batch may still grow.
    pub fn hand_over_if_due<O: Outlet<Completion = T>>(&mut self, now: Instant, outlet: &mut O) {
        let fill = self.state.pending_batch().fill(self.pace.batch_ops_max);
        let is_due = self.commit_at.is_some_and(|at| at <= now);
        if fill == 0 && !is_due {
            return;
        }
        if fill < BATCH_GROWTH_MAX && outlet.is_backend_behind() {
            self.commit_at = Some(now + OFFER_AGAIN);
            return;
        }
        self.hand_over(Vec::new(), outlet);
    }

    /// Hands over the open batch to the backend.
    fn hand_over<O: Outlet<Completion = T>>(&mut self, mut then: Vec<Then<T>>, outlet: &mut O) {
        self.commit_at = None;
        then.extend(self.waiting.drain(..).map(Then::Complete));
        let batch = self.state.take_batch();
        if !batch.is_empty() || !then.is_empty() {
            outlet.put(Output::Commit { batch, then });
        }
    }
}
