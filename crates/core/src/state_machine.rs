//! The state machine at work: entries in, answers and batches out, snapshots taken, sent and installed.
//!
//! Entries come in batches. After a batch the new view is published, and only then are outcomes of it to be given
//! out. Changes collect in an open batch for the backend file, which is handed over every so often; reading them
//! back does not have to wait for that. Compactions are worked off here too, a step at a time.
//!
//! # Invariants
//!
//! * A verdict on a membership change leaves before the index of its entry is published.
//! * Whatever has to follow a commit (a snapshot, an image for a peer, an answer) travels with the batch that it
//!   is to follow.
//! * A leader's image takes the state's place between two jobs. What had been handed over before is news of
//!   another file then, and is not heeded.
//!
//! # Bound
//!
//! The open batch is handed over when it is full, in changes or bytes, or its time has come. While the backend is
//! behind it grows, up to [`BATCH_GROWTH_MAX`] times its limit; then handing over waits.

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

/// How far the open batch may outgrow its limit before handing it over waits.
const BATCH_GROWTH_MAX: usize = 8;

/// How soon a batch is offered again to a busy backend.
const OFFER_AGAIN: Duration = Duration::from_millis(2);

/// What the state machine is told. `T` is what a caller is told by.
#[derive(Debug)]
pub enum Job<T> {
    /// Carry these out.
    Apply(Vec<Entry>),
    /// Take a snapshot of what is applied.
    TakeSnapshot,
    /// This member leads no longer.
    LostLeadership,
    /// Send a peer a snapshot of what is applied, by this message.
    SendSnapshot(Message),
    /// Put the image of this snapshot in place of the state.
    InstallSnapshot(Snapshot),
    /// A batch was committed to the file of this generation.
    Committed {
        /// What it brought the file to.
        committed: Committed,
        /// How often the file had been replaced.
        generation: u64,
    },
    /// Bring the storage version in line with the cluster's.
    FollowClusterVersion,
    /// Tell when everything applied so far is in the backend file.
    Commit(T),
    /// Tell when every compaction accepted so far is done and in the backend file.
    AwaitCompactions(T),
    /// Hand over what there is, and end.
    Stop,
}

/// What may be done after a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next job.
    GoOn,
    /// Nothing, until the backend has put the image in place, and [`StateMachine::installed`] was called.
    AwaitInstall,
    /// Nothing.
    End,
}

/// How often batches are committed, and how compactions are paced.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A batch is handed over so long after its first change.
    pub batch_interval: Duration,
    /// Or when it has so many changes.
    pub batch_ops_max: usize,
    /// Records that one step of a compaction removes.
    pub compaction_step: usize,
    /// Time between two steps.
    pub compaction_pause: Duration,
    /// Added to every lease when this member becomes leader.
    pub lease_extension_millis: u64,
}

/// The time, by the clocks of batches and of leases.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For what happens here.
    pub instant: Instant,
    /// For leases.
    pub millis: Millis,
}

/// Why the state machine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The entry is sound, or was once; this member does not know how to go on.
    #[error(
        "log entry {index} of term {term} ({kind}) cannot be carried out by this version: {fault}; the member \
         stops before it, and will again. Start the version that wrote the entry on this data directory; if \
         the entry should not be there, begin a new cluster from a snapshot of before it"
    )]
    Entry {
        /// The entry's index.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// What it holds.
        kind: &'static str,
        /// What is the matter with it.
        fault: Fault,
    },
    /// Nothing can be carried out.
    #[error(transparent)]
    Other(Fault),
    /// A leader's state cannot be taken over.
    #[error("failed to take over a snapshot: {0}")]
    Install(#[from] RecoverError),
    /// The image that was installed contains other entries than its snapshot. It was checked when it arrived.
    #[error(
        "the image of the snapshot at index {snapshot} is at index {index}; the file has changed since it was \
         received: check the disk"
    )]
    ImageIndex {
        /// The last entry that the image contains.
        index: LogIndex,
        /// The last entry that the snapshot contains.
        snapshot: LogIndex,
    },
    /// The same for its members.
    #[error("failed to take over the members of a snapshot: {0}")]
    Members(#[from] V2Error),
}

impl ApplyError {
    /// Tells an entry that is not understood from a store that fails whatever is applied.
    fn of_entry(index: LogIndex, term: Term, kind: &'static str, fault: Fault) -> Self {
        match fault {
            // The second speaks for itself, in words that operators know.
            Fault::Store(_) | Fault::ServerTooOld { .. } => Self::Other(fault),
            Fault::Request(_)
            | Fault::Membership(_)
            | Fault::PlainPassword { .. }
            | Fault::ClusterVersion(_) => Self::Entry { index, term, kind, fault },
        }
    }
}

/// A member's state machine; see the module.
#[derive(Debug)]
pub struct StateMachine<T> {
    state: State,
    backend: Backend,
    own_id: MemberId,
    pace: Pace,
    /// Of membership changes: for their proposers, once the batch is published.
    verdicts: Vec<(u64, Result<(), MembershipRefusal>)>,
    /// When the open batch has to be handed over.
    commit_at: Option<Instant>,
    /// To be told when the open batch is in the file.
    waiting: Vec<T>,
    compaction: Compaction<T>,
    /// Compactions of the batch under way.
    accepted: Vec<mvcc::Compaction>,
    /// How often the backend file was replaced.
    generation: u64,
    /// The version that the backend file's content has.
    storage_version: Option<Version>,
    /// The snapshot whose image the backend is to put in place.
    installing: Option<Snapshot>,
}

impl<T> StateMachine<T> {
    /// Goes on with a state that was recovered from this file.
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

    /// The state as applied.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The mark of the restore that the backend file's content comes from, if there was one.
    pub fn restore_mark(&self) -> Result<Option<String>, ApplyError> {
        self.backend.read().restore_mark().map_err(|fault| ApplyError::Other(fault.into()))
    }

    /// Index and term of the last entry applied.
    fn applied(&self) -> (LogIndex, Term) {
        let (index, term) = self.state.applied();
        (LogIndex(index), Term(term))
    }

    /// When there is something to do without a job: then [`StateMachine::work`] is to be called.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        [self.commit_at, self.compaction.next_step].into_iter().flatten().min()
    }

    /// Does a job.
    pub fn take<O: Outlet<Told = T>>(
        &mut self,
        job: Job<T>,
        now: Now,
        outlet: &mut O,
    ) -> Result<Next, ApplyError> {
        assert!(
            self.installing.is_none(),
            "no job is done while an image is installed: its changes would be lost with the file that is replaced"
        );
        match job {
            Job::Apply(entries) => self.apply(entries, now, outlet)?,
            Job::TakeSnapshot => self.take_snapshot(outlet),
            Job::LostLeadership => self.state.readers().leases.demote(),
            Job::SendSnapshot(message) => self.send_snapshot(message, outlet),
            Job::InstallSnapshot(snapshot) => {
                outlet.put(Output::Install { index: snapshot.metadata.index });
                self.installing = Some(snapshot);
                return Ok(Next::AwaitInstall);
            }
            Job::Committed { committed, generation } => {
                // What went to the file that was replaced is no news any more.
                if generation == self.generation {
                    self.state.store_mut().committed(committed);
                    self.state.publish();
                }
            }
            Job::FollowClusterVersion => self.follow_cluster_version(outlet),
            Job::Commit(told) => self.await_commit(told, now.instant),
            Job::AwaitCompactions(told) => self.await_compactions(told, now.instant),
            Job::Stop => {
                self.hand_over(Vec::new(), outlet);
                return Ok(Next::End);
            }
        }
        Ok(Next::GoOn)
    }

    fn apply<O: Outlet<Told = T>>(
        &mut self,
        entries: Vec<Entry>,
        now: Now,
        outlet: &mut O,
    ) -> Result<(), ApplyError> {
        let Some(last) = entries.last() else { return Ok(()) };
        let (last_index, last_term) = (last.index, last.term);
        assert!(
            self.verdicts.is_empty() && self.accepted.is_empty(),
            "outcomes leave with the batch of their entries: otherwise a client would be answered before the change \
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
                    let Begun { ticket, reply_wanted, kind } = outlet.begin(&request);
                    let meta = meta(&entry, reply_wanted);
                    let applied = self.state.apply(meta, request).map_err(unfit(kind))?;
                    let Applied { outcome, notice, .. } = applied;
                    outlet.finish(ticket, &entry, outcome);
                    if let Some(notice) = notice {
                        self.heed(notice, now.instant, outlet);
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
        // Whoever asks next sees the members as they are now.
        for (request_id, outcome) in self.verdicts.drain(..) {
            outlet.put(Output::ChangeAnswered { request_id, outcome });
        }
        // Before the first step of theirs: the view has all that they are going to remove.
        for compaction in self.accepted.drain(..) {
            let view = self.state.readers().view();
            outlet.put(Output::CompactionAccepted { compaction, view });
        }
        let tally = self.state.take_tally();
        let (index, term) = (last_index, last_term);
        outlet.put(Output::Published { index, term, members_changed, tally });
        self.commit_at.get_or_insert(now.instant + self.pace.batch_interval);
        Ok(())
    }

    /// The first entry of a leader's term: what came before it is applied, so the clocks may run.
    fn promote_if_leading<O: Outlet<Told = T>>(&self, term: Term, now: Millis, outlet: &O) {
        if outlet.leads_in(term) {
            let leases = &self.state.readers().leases;
            leases.promote(term.get(), self.pace.lease_extension_millis, now);
        }
    }

    /// Looks at what an entry changed beyond keys and leases.
    fn heed<O: Outlet<Told = T>>(&mut self, notice: Notice, now: Instant, outlet: &mut O) {
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
                // Soon, but not before whoever waits for this entry has heard of it: the backend may be waiting for
                // room on its disk.
                self.commit_at = Some(now);
                self.compaction.add(now);
            }
            Notice::OutOfSpace => {
                outlet.put(Output::OverQuota { file_bytes: self.backend.size_bytes() });
            }
        }
    }

    /// Brings the version that the backend file names in line with the cluster's.
    fn follow_cluster_version<O: Outlet<Told = T>>(&mut self, outlet: &mut O) {
        // A file that names no version and knows no term is of the oldest kind.
        let storage = self.storage_version.unwrap_or(Version::OLDEST_FILE);
        let cluster = self.state.versions().cluster();
        match follow_cluster_version(storage, cluster, self.state.batch_mut()) {
            Ok(true) => {
                self.storage_version = cluster;
                outlet.put(Output::StorageVersion { version: cluster, is_written: true });
                self.hand_over(Vec::new(), outlet);
            }
            // A file that names no version is as old as such a cluster.
            Ok(false) if cluster == Some(storage) => {
                self.storage_version = cluster;
                outlet.put(Output::StorageVersion { version: cluster, is_written: false });
            }
            Ok(false) => {}
            Err(error) => outlet.put(Output::StorageVersionStays(error)),
        }
    }

    fn take_snapshot<O: Outlet<Told = T>>(&mut self, outlet: &mut O) {
        let order = self.snapshot_order();
        outlet.put(Output::TakingSnapshot { index: order.index() });
        self.hand_over(vec![Then::Snapshot(order)], outlet);
    }

    /// Has a peer sent the state as of the last entry applied.
    fn send_snapshot<O: Outlet<Told = T>>(&mut self, mut message: Message, outlet: &mut O) {
        message.snapshot = Some(Box::new(self.snapshot_order().into_raft()));
        self.hand_over(vec![Then::Send(message)], outlet);
    }

    fn snapshot_order(&self) -> SnapshotOrder {
        let (index, term) = self.applied();
        SnapshotOrder::new(index, term, self.state.members(), self.state.versions())
    }

    /// Has this caller told when what is applied now is in the file. The batch is due, and waits its turn: the
    /// backend may be waiting for room on its disk.
    fn await_commit(&mut self, told: T, now: Instant) {
        self.waiting.push(told);
        self.commit_at = Some(now);
    }

    /// Hands the open batch over if it is time and the backend keeps up.
    pub fn hand_over_if_due<O: Outlet<Told = T>>(&mut self, now: Instant, outlet: &mut O) {
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

    /// Gives the open batch to the backend.
    fn hand_over<O: Outlet<Told = T>>(&mut self, mut then: Vec<Then<T>>, outlet: &mut O) {
        self.commit_at = None;
        then.extend(self.waiting.drain(..).map(Then::Tell));
        let batch = self.state.take_batch();
        if !batch.is_empty() || !then.is_empty() {
            outlet.put(Output::Commit { batch, then });
        }
    }
}
