//! What comes out of the state machine.
//!
//! What every entry leads to are calls, so that nothing is collected on the way of a request; everything else is a
//! value, in the order in which it has to take effect.

use std::sync::Arc;

use quorate_raft::{ConfChange, Entry, LogIndex, Term};
use quorate_state::apply::{Refusal, Request, Response};
use quorate_state::backend::Batch;
use quorate_state::members::{Members, MembershipRefusal};
use quorate_state::mvcc::{Compaction, Tally, View};
use quorate_state::versions::{StorageVersionError, Version};

use crate::backend_writer::Then;

/// An entry that is about to be carried out.
#[derive(Debug)]
pub struct Begun<K> {
    /// The caller's own, until the entry is done.
    pub ticket: K,
    /// Whether anybody here waits for its outcome. If not, what only an answer needs is left out.
    pub reply_wanted: bool,
    /// What kind of request it is, for errors.
    pub kind: &'static str,
}

/// Where everything goes that comes out of the state machine.
pub trait Outlet {
    /// What is kept of an entry while it is carried out.
    type Ticket;
    /// By what a caller is told that something is done.
    type Told;

    /// This request is carried out next.
    fn begin(&mut self, request: &Request) -> Begun<Self::Ticket>;

    /// The request of this entry has come to this; `None` if there is no outcome, because the entry was applied
    /// before. It may be told when the batch is published, and no sooner.
    fn finish(
        &mut self,
        ticket: Self::Ticket,
        entry: &Entry,
        outcome: Option<Result<Response, Refusal>>,
    );

    /// Whether this member leads in that term.
    fn leads_in(&self, term: Term) -> bool;

    /// Whether handing a batch over would have to wait.
    fn is_backend_behind(&self) -> bool;

    /// Anything else, to be done now.
    fn put(&mut self, output: Output<Self::Told>);
}

/// What is to be done, in its order.
#[derive(Debug)]
pub enum Output<T> {
    /// For consensus: what became of the membership change at `index`.
    Decided {
        /// The entry that holds it.
        index: LogIndex,
        /// The change; `None` if it changes nothing that consensus does not know.
        change: Option<ConfChange>,
    },
    /// The members are these now.
    Members(Members),
    /// A membership change was refused.
    ChangeRefused(MembershipRefusal),
    /// This member is none any more.
    Removed,
    /// For the proposer of a membership change, together with the outcomes of the batch.
    ChangeAnswered {
        /// By which it waits.
        request_id: u64,
        /// Whether the change is in force.
        outcome: Result<(), MembershipRefusal>,
    },
    /// Everything up to here can be read, and the outcomes may be told.
    Published {
        /// The last entry.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// Whether that is worth waking consensus for.
        members_changed: bool,
        /// What was done to the keyspace.
        tally: Tally,
    },
    /// A compaction begins. Nothing of what it removes is gone from this view, whose file is held as long as it is
    /// kept.
    CompactionAccepted {
        /// Which.
        compaction: Compaction,
        /// The keyspace as just published.
        view: Arc<View>,
    },
    /// The cluster has decided on a version.
    ClusterVersion {
        /// The one before.
        from: Option<Version>,
        /// The one now.
        to: Version,
    },
    /// The backend file's content has this version.
    StorageVersion {
        /// As far as it can be told.
        version: Option<Version>,
        /// Whether the next batch brings it.
        is_written: bool,
    },
    /// The backend file's version cannot follow the cluster's.
    StorageVersionStays(StorageVersionError),
    /// The quota is exceeded, and no alarm says so yet.
    OverQuota {
        /// How large the file is.
        file_bytes: u64,
    },
    /// A snapshot is taken of what is applied.
    TakingSnapshot {
        /// The last entry it contains.
        index: LogIndex,
    },
    /// For the backend: write this batch, then do what follows it. May wait for the backend to keep up.
    Commit {
        /// The batch, which may be empty.
        batch: Batch,
        /// What follows.
        then: Vec<Then<T>>,
    },
    /// For the backend: put the image of the snapshot at `index` in place of the file.
    Install {
        /// The snapshot's last entry.
        index: LogIndex,
    },
    /// A leader's state has taken the place of this member's, and can be read.
    Installed {
        /// The last entry it contains.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// Its cluster version.
        cluster_version: Option<Version>,
    },
    /// What this caller has waited for is done already.
    Tell(T),
}
