//! Applying the log: one entry in, one outcome out, the same on every member.
//!
//! [`State`] owns everything the log decides. The applier thread feeds it entries in order, publishes
//! after each batch of them, and hands the collected [`Batch`] to the commit thread. All others hold
//! [`Readers`].
//!
//! ```text
//! entry ─► Request::decode ─► State::apply: guards, then one match ─► Applied { outcome, notice }
//!                                  │ Store, Lessor, Alarms, Members, Versions ─► Batch ─► file
//!          State::publish ─────────┴─► View, Hub (watchers), Facts ─► Readers
//! ```
//!
//! # Invariants
//!
//! * An outcome depends on the entry and on the state before it. Time, the file's size and what this
//!   member was configured with reach leases' clocks and the quota's answer, which decide nothing that is
//!   replicated.
//! * An entry changes everything it is to change or nothing; what would fail half way is refused first.
//! * An entry at or below the consistent index has no effect on what is stored.
//! * A failure of this machine is a [`Fault`], never an outcome.
//!
//! # Not here
//!
//! Who waits for outcomes, when batches are committed, what becomes of a notice (the server).

mod auth;
mod check;
mod cluster;
mod compare;
mod conf_change;
mod fault;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod guard;
mod key_intervals;
mod keyspace;
mod leases;
mod permission;
mod published;
mod read;
mod received;
mod recover;
mod refusal;
mod request;
mod txn;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use quorate_api::etcdserverpb as pb;

pub use self::check::{
    OPERATIONS_MAX, check_delete_range, check_overlap, check_put, check_range, check_structure,
    check_txn,
};
pub use self::conf_change::ConfChangeApplied;
pub use self::fault::Fault;
pub use self::permission::Permission;
pub use self::published::{Facts, Readers};
pub use self::read::{is_read_only, is_serializable, read_range, read_txn};
pub use self::received::{ReceivedFault, SnapshotPosition, newer_position};
pub use self::recover::{RecoverError, stored_members};
pub use self::refusal::{Refusal, RequestRefusal};
pub use self::request::{
    AlarmCommand, AuthCommand, ClusterCommand, Command, Request, RequestFault,
};
use crate::alarm::Alarms;
pub use crate::auth::AuthRefusal;
use crate::auth::{Auth, Caller};
use crate::backend::Batch;
use crate::lease::{Lessor, LessorOptions};
use crate::members::Members;
use crate::mvcc::{Changes, Compaction, GarbageStep, Store, StoreOptions};
use crate::quota::Quota;
use crate::units::{MemberId, Millis};
use crate::versions::{Version, Versions};
use crate::watch::{Hub, WatchLimits};

/// What a state is told once, at start.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateOptions {
    /// Memory of the keyspace.
    pub store: StoreOptions,
    /// Lease lifetimes and checkpoints.
    pub lessor: LessorOptions,
    /// Whether checkpoints are stored whatever the cluster version.
    pub checkpoint_persist: bool,
    /// The configured quota, see [`Quota::new`].
    pub quota_bytes: i64,
    /// How many learners the cluster may have: to be configured alike on every member.
    pub learner_count_max: usize,
    /// What is read and kept for watchers.
    pub watch: WatchLimits,
    /// How long a client's token is good after it was last shown, in milliseconds; 0 for the usual time.
    pub token_ttl_millis: u64,
}

/// What comes with an entry besides its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryMeta {
    /// Its log index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Now, for the clocks of leases.
    pub now: Millis,
    /// Size of the backend file, for the quota.
    pub file_bytes: u64,
    /// Whether anybody here waits for the outcome. If not, what only an answer needs is left out.
    pub reply_wanted: bool,
}

/// What applying an entry came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The request, by which its proposer waits.
    pub request_id: u64,
    /// The answer; `None` if there is none to give, because the entry was applied before.
    pub outcome: Option<Result<Response, Refusal>>,
    /// What the server must look at.
    pub notice: Option<Notice>,
}

/// What changed beyond keys and leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The cluster version was set. When it was lowered, the server takes a snapshot to the disk.
    ClusterVersion {
        /// Before.
        from: Option<Version>,
        /// Now.
        to: Version,
    },
    /// A member told its name and client URLs.
    MemberAttributes(MemberId),
    /// A downgrade began or ended.
    Downgrade,
    /// A compaction was accepted: commit the batch, then work with [`State::compaction_step`].
    Compaction(Compaction),
    /// This entry found the quota exceeded, and no alarm says so yet: the server proposes one.
    OutOfSpace,
}

/// An answer. Headers carry a revision where the answer has one; cluster, member and term are filled in
/// by the server.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is the response of that name")]
pub enum Response {
    Range(pb::RangeResponse),
    Put(pb::PutResponse),
    DeleteRange(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Compaction(pb::CompactionResponse),
    LeaseGrant(pb::LeaseGrantResponse),
    LeaseRevoke(pb::LeaseRevokeResponse),
    LeaseCheckpoint(pb::LeaseCheckpointResponse),
    Alarm(pb::AlarmResponse),
    AuthStatus(pb::AuthStatusResponse),
    /// The token is empty where the entry gave none out. The revision is that at which the user was told apart.
    Authenticated {
        response: pb::AuthenticateResponse,
        auth_revision: u64,
    },
    AuthUserGet(pb::AuthUserGetResponse),
    AuthUserList(pb::AuthUserListResponse),
    AuthRoleGet(pb::AuthRoleGetResponse),
    AuthRoleList(pb::AuthRoleListResponse),
    /// A change of users, roles or the switch.
    AuthDone(Option<pb::ResponseHeader>),
    /// Nothing to say.
    Empty,
}

/// Everything the log decides.
#[derive(Debug)]
pub struct State {
    store: Store,
    lessor: Lessor,
    alarms: Alarms,
    members: Members,
    versions: Versions,
    hub: Hub,
    quota: Quota,
    auth: Auth,
    options: StateOptions,
    /// Index and term of the last entry applied.
    applied: (u64, u64),
    batch: Batch,
    /// Changes that watchers have not been told of.
    unpublished: Vec<Arc<Changes>>,
    facts_changed: bool,
    readers: Readers,
}

impl State {
    /// Applies an entry that holds a request. After a fault neither the state nor what it has collected
    /// may be used: the entry may stand half in it.
    pub fn apply(&mut self, entry: EntryMeta, request: Request) -> Result<Applied, Fault> {
        let request_id = request.id;
        if entry.index <= self.applied.0 {
            return Ok(Applied {
                request_id,
                outcome: None,
                notice: self.refresh(request.command)?,
            });
        }
        let mut notice = None;
        let outcome = match self.guard(&request) {
            Err(refusal) => Err(refusal),
            Ok(()) => self.execute(&entry, request, &mut notice)?,
        };
        if outcome == Err(Refusal::NoSpace) && !self.alarms.is_out_of_space() {
            notice = Some(Notice::OutOfSpace);
        }
        self.advance(&entry);
        Ok(Applied { request_id, outcome: Some(outcome), notice })
    }

    /// Applies an empty entry, which a new leader starts its term with.
    pub fn apply_noop(&mut self, entry: EntryMeta) {
        if entry.index > self.applied.0 {
            self.advance(&entry);
        }
    }

    /// Index and term of the last entry applied.
    #[must_use]
    pub const fn applied(&self) -> (u64, u64) {
        self.applied
    }

    /// The members as applied.
    #[must_use]
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// Users, roles and the switch as applied.
    #[must_use]
    pub const fn auth(&self) -> &Auth {
        &self.auth
    }

    /// The versions as applied.
    #[must_use]
    pub const fn versions(&self) -> &Versions {
        &self.versions
    }

    /// The alarms as applied.
    #[must_use]
    pub const fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// The keyspace as the applier sees it.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The keyspace, for telling it about commits.
    pub const fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// What has collected since the last call, to be committed: whole entries, with the index they bring
    /// the file to.
    #[must_use]
    pub fn take_batch(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    /// What has collected so far, to decide whether it is time.
    #[must_use]
    pub const fn pending_batch(&self) -> &Batch {
        &self.batch
    }

    /// Adds to the batch what does not come from an entry: storage version, repaired rows.
    pub const fn batch_mut(&mut self) -> &mut Batch {
        &mut self.batch
    }

    /// Does one step of the compactions accepted, of at most `count_max` records.
    pub fn compaction_step(&mut self, count_max: usize) -> GarbageStep {
        self.store.next_garbage(count_max, &mut self.batch)
    }

    fn advance(&mut self, entry: &EntryMeta) {
        assert!(entry.index > self.applied.0, "an entry is applied once, and in its place");
        self.applied = (entry.index, entry.term);
        self.batch.set_consistent_index(entry.index, entry.term);
    }

    /// The effects of every command. Guards have passed.
    fn execute(
        &mut self,
        entry: &EntryMeta,
        request: Request,
        notice: &mut Option<Notice>,
    ) -> Result<Result<Response, Refusal>, Fault> {
        let Request { username, auth_revision, command, .. } = request;
        let outcome = match command {
            Command::Range(request) => {
                if !entry.reply_wanted {
                    return Ok(Ok(Response::Empty));
                }
                self.store.count_reads(1);
                self.range(&request)?
            }
            Command::Put(request) => self.put(entry, &request)?,
            Command::DeleteRange(request) => self.delete_range(entry, &request)?,
            Command::Txn(request) => self.txn(entry, &request)?,
            Command::Compaction(request) => self.compact(&request, notice),
            Command::LeaseGrant(request) => self.lease_grant(entry, &request),
            Command::LeaseRevoke(request) => self.lease_revoke(&request),
            Command::LeaseCheckpoint(request) => Ok(self.lease_checkpoint(entry, &request)),
            Command::Alarm(command) => Ok(self.alarm(&command)),
            Command::Auth(command) => {
                let caller = Caller { name: &username, revision: auth_revision };
                self.apply_auth(entry, caller, &command)?
            }
            Command::Cluster(command) => {
                *notice = self.set_cluster_fact(command, true)?;
                Ok(Response::Empty)
            }
            Command::Nothing => Ok(Response::Empty),
        };
        Ok(outcome)
    }

    /// What an entry that is in the file already still does: facts about the cluster are taken over
    /// anew, in memory alone.
    fn refresh(&mut self, command: Command) -> Result<Option<Notice>, Fault> {
        match command {
            Command::Cluster(command) => self.set_cluster_fact(command, false),
            Command::Range(_)
            | Command::Put(_)
            | Command::DeleteRange(_)
            | Command::Txn(_)
            | Command::Compaction(_)
            | Command::LeaseGrant(_)
            | Command::LeaseRevoke(_)
            | Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::Auth(_)
            | Command::Nothing => Ok(None),
        }
    }

    /// A header that says the revision.
    fn header(&self) -> Option<pb::ResponseHeader> {
        let revision = self.store.current_revision();
        Some(pb::ResponseHeader { revision, ..pb::ResponseHeader::default() })
    }
}
