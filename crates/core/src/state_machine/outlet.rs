//! Outputs of the state machine.
//!
//! The outcome of each entry is passed in a method call, so that no allocation per request is needed. All other outputs
//! are values, in the order in which they must take effect.

use std::sync::Arc;

use quorate_node::ConfChangeDecision;
use quorate_raft::{Entry, LogIndex, Term};
use quorate_state::apply::{Refusal, Request, Response};
use quorate_state::auth;
use quorate_state::backend::Batch;
use quorate_state::members::{Member, MemberChange, Members, MembershipRefusal};
use quorate_state::mvcc::{Compaction, Tally, View};
use quorate_state::versions::{StorageVersionError, Version};

use crate::backend_writer::Then;

/// An entry that is about to be applied.
#[derive(Debug)]
pub struct Begun<K> {
    /// The caller's value, which is passed back with the outcome.
    pub ticket: K,
    /// Whether a caller on this member waits for the outcome. If not, data that is needed only for a response is not
    /// collected.
    pub reply_wanted: bool,
    /// The kind of request, for error messages.
    pub kind: &'static str,
}

/// The receiver of the state machine's outputs.
pub trait Outlet {
    /// The caller's value for an entry that is being applied.
    type Ticket;
    /// The identifier of a caller that waits for a completion.
    type Completion;

    /// Called before a request is applied. `auth` contains the current users and roles.
    fn begin(&mut self, request: &Request, auth: &auth::View) -> Begun<Self::Ticket>;

    /// Called after this entry's request was applied. The outcome is `None` if the entry had been applied before. The
    /// outcome must not be sent before the batch is published.
    fn finish(
        &mut self,
        ticket: Self::Ticket,
        entry: &Entry,
        outcome: Option<Result<Response, Refusal>>,
    );

    /// Returns whether this member leads in the term.
    fn leads_in(&self, term: Term) -> bool;

    /// Returns whether handing a batch over would block.
    fn is_backend_behind(&self) -> bool;

    /// Receives any other output. The output must take effect before this call returns.
    fn put(&mut self, output: Output<Self::Completion>);
}

/// An output of the state machine. Outputs take effect in order.
#[derive(Debug)]
pub enum Output<T> {
    /// The outcome of a membership change, for consensus.
    Decided(ConfChangeDecision),
    /// The new list of members.
    Members(Members),
    /// A membership change was applied.
    Changed {
        /// The change.
        change: MemberChange,
        /// The member after the change, or before its removal.
        member: Member,
    },
    /// A membership change was refused.
    ChangeRefused(MembershipRefusal),
    /// This member was removed from the cluster.
    Removed,
    /// The outcome of a membership change, for its proposer. It is returned together with the outcomes of the batch.
    ChangeAnswered {
        /// The id of the proposer's request.
        request_id: u64,
        /// The outcome: accepted, or the reason for the refusal.
        outcome: Result<(), MembershipRefusal>,
    },
    /// All entries up to `index` are visible to readers, and their outcomes may be sent.
    Published {
        /// The index of the last entry.
        index: LogIndex,
        /// The term of the last entry.
        term: Term,
        /// Whether the batch contains a membership change, so that consensus should be woken.
        members_changed: bool,
        /// The number of operations on the keyspace, by kind.
        tally: Tally,
    },
    /// A compaction begins. The view still has all records that the compaction removes. The view keeps the file open.
    CompactionAccepted {
        /// The compaction.
        compaction: Compaction,
        /// The published view of the keyspace.
        view: Arc<View>,
    },
    /// The cluster has agreed on a version.
    ClusterVersion {
        /// The previous version.
        from: Option<Version>,
        /// The new version.
        to: Version,
    },
    /// The version of the backend file's content has changed or become known.
    StorageVersion {
        /// The version, if it is known.
        version: Option<Version>,
        /// Whether the next batch writes the version.
        is_written: bool,
    },
    /// The backend file's version cannot be changed to match the cluster version.
    StorageVersionStays(StorageVersionError),
    /// The backend file exceeds its quota, and no alarm is raised yet.
    OverQuota {
        /// The size of the file, in bytes.
        file_bytes: u64,
    },
    /// A snapshot of the applied state is being taken.
    TakingSnapshot {
        /// The index of the last entry that the snapshot contains.
        index: LogIndex,
    },
    /// Write this batch, then carry out the follow-up actions. Addressed to the backend. This call may block until the
    /// backend catches up.
    Commit {
        /// The batch, which may be empty.
        batch: Batch,
        /// The actions that follow the commit, in order.
        then: Vec<Then<T>>,
    },
    /// Replace the file with the image of the snapshot at `index`. Addressed to the backend.
    Install {
        /// The index of the snapshot's last entry.
        index: LogIndex,
    },
    /// A leader's state has replaced this member's state and is visible to readers.
    Installed {
        /// The index of the last entry that the state contains.
        index: LogIndex,
        /// The term of the last entry.
        term: Term,
    },
    /// Notify this caller, because the work that it waits for is already done.
    Complete(T),
}
