//! The outputs of the state machine.
//!
//! The outcome of each entry is a call, so that a request needs no allocation for it. All other outputs are values, in
//! the order in which they must take effect.

use std::sync::Arc;

use quorate_node::ConfChangeDecision;
use quorate_raft::{Entry, LogIndex, Term};
use quorate_state::apply::{Refusal, Request, Response};
use quorate_state::backend::Batch;
use quorate_state::members::{Members, MembershipRefusal};
use quorate_state::mvcc::{Compaction, Tally, View};
use quorate_state::versions::{StorageVersionError, Version};

use crate::backend_writer::Then;

/// An entry that is about to be applied.
#[derive(Debug)]
pub struct Begun<K> {
    /// The caller's value, which is returned with the outcome.
    pub ticket: K,
    /// Whether a caller on this member waits for the outcome. If not, the parts that only a response needs are skipped.
    pub reply_wanted: bool,
    /// The kind of request, for errors.
    pub kind: &'static str,
}

/// The receiver of the state machine's outputs.
pub trait Outlet {
    /// The caller's value for an entry while it is applied.
    type Ticket;
    /// The identifier of a caller that waits for a completion.
    type Completion;

    /// This request is applied next.
    fn begin(&mut self, request: &Request) -> Begun<Self::Ticket>;

    /// The request of this entry was applied with this outcome. It is `None` if the entry was applied before. The
    /// outcome must not be sent before the batch is published.
    fn finish(
        &mut self,
        ticket: Self::Ticket,
        entry: &Entry,
        outcome: Option<Result<Response, Refusal>>,
    );

    /// Whether this member leads in that term.
    fn leads_in(&self, term: Term) -> bool;

    /// Whether handing a batch over would block.
    fn is_backend_behind(&self) -> bool;

    /// Receives any other output. It must take effect before this call returns.
    fn put(&mut self, output: Output<Self::Completion>);
}

/// An output of the state machine. Outputs take effect in their order.
#[derive(Debug)]
pub enum Output<T> {
    /// For consensus: the outcome of a membership change.
    Decided(ConfChangeDecision),
    /// The new list of members.
    Members(Members),
    /// A membership change was refused.
    ChangeRefused(MembershipRefusal),
    /// This member was removed from the cluster.
    Removed,
    /// For the proposer of a membership change, together with the outcomes of the batch.
    ChangeAnswered {
        /// The id of its request.
        request_id: u64,
        /// Whether the change was accepted.
        outcome: Result<(), MembershipRefusal>,
    },
    /// All entries up to this one can be read, and their outcomes may be sent.
    Published {
        /// The last entry.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// Whether the batch contains a membership change, for which consensus should be woken.
        members_changed: bool,
        /// The counts of operations on the keyspace.
        tally: Tally,
    },
    /// A compaction begins. The view still has all records that it removes. The view keeps the file open.
    CompactionAccepted {
        /// The compaction.
        compaction: Compaction,
        /// The published view of the keyspace.
        view: Arc<View>,
    },
    /// The cluster has decided on a version.
    ClusterVersion {
        /// The previous version.
        from: Option<Version>,
        /// The new version.
        to: Version,
    },
    /// The version of the backend file's content.
    StorageVersion {
        /// The version, if it is known.
        version: Option<Version>,
        /// Whether the next batch writes it.
        is_written: bool,
    },
    /// The backend file's version cannot follow the cluster's.
    StorageVersionStays(StorageVersionError),
    /// The quota is exceeded, and no alarm is raised yet.
    OverQuota {
        /// The size of the file.
        file_bytes: u64,
    },
    /// A snapshot of the applied state is being taken.
    TakingSnapshot {
        /// The last entry that it contains.
        index: LogIndex,
    },
    /// For the backend: write this batch, then carry out the actions that follow it. This may block until the backend
    /// catches up.
    Commit {
        /// The batch, which may be empty.
        batch: Batch,
        /// The actions that follow the commit.
        then: Vec<Then<T>>,
    },
    /// For the backend: replace the file with the image of the snapshot at `index`.
    Install {
        /// The snapshot's last entry.
        index: LogIndex,
    },
    /// A leader's state has replaced the state of this member, and can be read.
    Installed {
        /// The last entry that it contains.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// Its cluster version.
        cluster_version: Option<Version>,
    },
    /// Notify this caller: the work that it waits for is done already.
    Complete(T),
}
