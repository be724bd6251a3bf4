//! Applying the log: one entry in, one outcome out, the same on every member.
//!
//! [`State`] owns the replicated state. The applier thread passes entries to it in order, publishes
//! the state after each batch of entries, and passes the collected [`Batch`] to the commit thread.
//! All other threads use [`PublishedState`].
//!
//! ```text
//! entry ─► Request::decode ─► State::apply: guards, then one match ─► Applied { outcome, notice }
//!                                  │ Store, Lessor, Alarms, Members, Versions ─► Batch ─► file
//!          State::publish ─────────┴─► View, Hub (watchers), Facts ─► PublishedState
//! ```
//!
//! # Invariants
//!
//! * The changes of an entry depend only on the entry, on the state before it, and on settings that should be the same
//!   on every member, such as the maximum number of learners. Time affects only the expiry of leases and tokens. The
//!   size of the file affects only the response: an entry that exceeds the quota makes its changes, but the proposer
//!   receives an error.
//! * An entry makes all its changes or none. Everything that could fail part-way is checked first.
//! * An entry at or below the consistent index does not change stored data.
//! * A failure of this machine is a [`Fault`], never an outcome.
//!
//! # Not here
//!
//! Scheduling commits and handling notices (`core::state_machine`), and delivering outcomes to clients
//! (`member::applier`).

mod auth;
mod check;
mod cluster;
mod compare;
mod conf_change;
mod engine;
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

use quorate_api::etcdserverpb as pb;

pub use self::check::{
    OPERATIONS_MAX, check_amount, check_delete_range, check_overlap, check_put, check_range,
    check_structure, check_txn,
};
pub use self::engine::{CommittedBatch, ResumedHistory};
pub use self::fault::Fault;
use self::guard::Guards;
pub use self::permission::Permission;
pub use self::published::{Facts, PublishedFacts, PublishedState};
pub use self::read::{
    SelectedReads, is_read_only, is_serializable, read_range, read_txn, selected_reads,
};
pub use self::received::{ReceivedFault, SnapshotPosition, snapshot_position};
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

/// Options of a state, set once at start.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateOptions {
    /// Memory limits of the keyspace.
    pub store: StoreOptions,
    /// Lease lifetimes and checkpoints.
    pub lessor: LessorOptions,
    /// Whether checkpoints are stored even if the cluster version is below 3.6.
    pub checkpoint_persist: bool,
    /// The configured quota in bytes, as [`Quota::new`] accepts it.
    pub quota_bytes: i64,
    /// The maximum number of learners in the cluster, which must be the same on every member.
    pub learner_count_max: usize,
    /// Limits of the watch service.
    pub watch: WatchLimits,
    /// The lifetime of a client's token after its last use, in milliseconds; 0 for the default.
    pub token_ttl_millis: u64,
}

/// The context in which an entry is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryMeta {
    /// The entry's log index.
    pub index: u64,
    /// The entry's term.
    pub term: u64,
    /// The current time, for the lease clocks and the expiry of tokens.
    pub now: Millis,
    /// The size of the backend file in bytes, for the quota.
    pub file_bytes: u64,
    /// Whether a client of this member waits for the outcome. If not, work that only serves the response is skipped.
    pub reply_wanted: bool,
}

/// The result of applying an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The request's id, which identifies the waiting proposer.
    pub request_id: u64,
    /// The response or refusal; `None` if the entry had already been applied.
    pub outcome: Option<Result<Response, Refusal>>,
    /// A change to which the server must react.
    pub notice: Option<Notice>,
}

/// A change to which the server must react. Changes to keys and leases need no reaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The cluster version was set. If it was lowered, the server writes a snapshot to disk.
    ClusterVersion {
        /// The previous version.
        from: Option<Version>,
        /// The new version.
        to: Version,
    },
    /// A member published its name and client URLs.
    MemberAttributes(MemberId),
    /// A downgrade began or ended.
    Downgrade,
    /// A compaction was accepted. The server commits the batch, and then calls [`State::compaction_step`].
    Compaction(Compaction),
    /// This entry exceeds the quota and no alarm is raised yet, so the server proposes to raise the alarm.
    OutOfSpace,
}

/// A response. Its header, if any, contains only the revision. The server fills in the cluster id, the member id and
/// the term.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant contains the response of the same name")]
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
    /// A user was authenticated. The token is empty if the entry created no token. The revision is the auth store's
    /// revision at the time of authentication.
    Authenticated {
        response: pb::AuthenticateResponse,
        auth_revision: u64,
    },
    AuthUserGet(pb::AuthUserGetResponse),
    AuthUserList(pb::AuthUserListResponse),
    AuthRoleGet(pb::AuthRoleGetResponse),
    AuthRoleList(pb::AuthRoleListResponse),
    /// A user or role was changed, or authentication was enabled or disabled.
    AuthDone(Option<pb::ResponseHeader>),
    /// An empty response.
    Empty,
}

/// The replicated state of one member.
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
    /// Index and term of the last applied entry.
    applied: (u64, u64),
    batch: Batch,
    /// Changes not yet delivered to watchers.
    unpublished: Vec<Changes>,
    facts_changed: bool,
    published: PublishedState,
}

impl State {
    /// Applies an entry that contains a request. After a fault, neither the state nor its batch may
    /// be used, because the entry may be only partly applied.
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
        let guards =
            Guards { alarms: &self.alarms, auth: self.auth.view(), leases: &self.published.leases };
        let outcome = match guards.check(&request) {
            Err(refusal) => Err(refusal),
            Ok(()) => self.execute(&entry, request, &mut notice)?,
        };
        if outcome == Err(Refusal::NoSpace) && !self.alarms.is_out_of_space() {
            notice = Some(Notice::OutOfSpace);
        }
        self.advance(&entry);
        Ok(Applied { request_id, outcome: Some(outcome), notice })
    }

    /// Applies an empty entry, with which a new leader begins its term.
    pub fn apply_noop(&mut self, entry: EntryMeta) {
        if entry.index > self.applied.0 {
            self.advance(&entry);
        }
    }

    /// Returns the index and term of the last applied entry.
    #[must_use]
    pub const fn applied(&self) -> (u64, u64) {
        self.applied
    }

    /// Returns the members as of the last applied entry.
    #[must_use]
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// Returns the users and roles, and whether authentication is enabled, as of the last applied
    /// entry.
    #[must_use]
    pub const fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Returns the versions as of the last applied entry.
    #[must_use]
    pub const fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns the alarms as of the last applied entry.
    #[must_use]
    pub const fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    /// Returns the keyspace as of the last applied entry.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the keyspace, so that the caller can notify it of commits.
    pub const fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Takes the changes collected since the last call. The changes of an entry are included completely or not at all,
    /// and the batch contains the consistent index of the last entry.
    #[must_use]
    pub fn take_batch(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    /// Returns the changes collected so far, so that the caller can decide when to commit.
    #[must_use]
    pub const fn pending_batch(&self) -> &Batch {
        &self.batch
    }

    /// Returns the batch, for changes that do not come from an entry, such as the storage version
    /// and repaired rows.
    pub const fn batch_mut(&mut self) -> &mut Batch {
        &mut self.batch
    }

    /// Runs one step of the accepted compactions, which deletes at most `count_max` records.
    pub fn compaction_step(&mut self, count_max: usize) -> GarbageStep {
        self.store.next_garbage(count_max, &mut self.batch)
    }

    fn advance(&mut self, entry: &EntryMeta) {
        assert!(
            entry.index > self.applied.0,
            "an entry is applied once and in log order: otherwise the members would have different states"
        );
        self.applied = (entry.index, entry.term);
        self.batch.set_consistent_index(entry.index, entry.term);
    }

    /// Executes a command that has passed the guards.
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

    /// Handles an entry whose effects the file already contains: only the facts about the cluster
    /// are updated, and only in memory.
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

    /// Returns a response header with the current revision.
    fn header(&self) -> Option<pb::ResponseHeader> {
        let revision = self.store.current_revision();
        Some(pb::ResponseHeader { revision, ..pb::ResponseHeader::default() })
    }
}
