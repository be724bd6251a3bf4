//! The member as the data store of its services: implements the interface of `requests::data_store` with the member's
//! handles.
//!
//! # Not here
//!
//! The work itself: reads (`reader`), proposals (`proposer`), leases (`lease_holder`), orders to the threads
//! (`administrator`), membership changes (`membership`) and downgrades (`versions`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_api::etcdserverpb::{
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, TxnRequest, TxnResponse,
};
use quorate_core::Defragmented;
use quorate_raft::{LogIndex, Role, Status as RaftStatus};
use quorate_requests::access::{AccessControl, Credentials};
use quorate_requests::admission::OwnedPermit;
use quorate_requests::{
    ConsensusStatus, DataStore, HashPermit, Image, Listed, MemberProgress, Progress, RequestError,
    ServerHandles, Sizes, Status, StoreFuture, StoreResult, Write, WriteFuture, probe_query,
};
use quorate_state::apply::Response;
use quorate_state::members::Member;
use quorate_state::mvcc::{HashKv, RangeQuery, RangeResult};
use quorate_state::units::{LeaseId, Millis};
use quorate_state::versions::Version;
use quorate_state::watch::{HistoryFault, Hub};
use quorate_telemetry::metrics::RequestKind;
use tokio::sync::watch;

use crate::duties::lease_holder::LeaseHolder;
use crate::duties::membership::Membership;
use crate::duties::versions::Downgrades;
use crate::handles::Handles;
use crate::requests::administrator::Administrator;
use crate::requests::member_info::MemberInfo;
use crate::requests::proposer::Proposer;
use crate::requests::reader::Reader;
use crate::threads::completion;
use crate::threads::member_status::MemberStatus;
use crate::threads::outcome::AWAITING;

/// The data store of a raft member. It executes the requests of the services with the member's handles.
#[derive(Debug)]
struct MemberStore {
    info: Arc<MemberInfo>,
    access_control: Arc<AccessControl>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
    administrator: Arc<Administrator>,
    leases: LeaseHolder,
    membership: Membership,
    downgrades: Downgrades,
}

impl Handles {
    /// Returns the handles for the services of the client ports.
    pub fn for_services(&self) -> ServerHandles {
        let store = MemberStore {
            info: Arc::clone(&self.info),
            access_control: Arc::clone(&self.access_control),
            reader: Arc::clone(&self.reader),
            proposer: Arc::clone(&self.proposer),
            administrator: Arc::clone(&self.administrator),
            leases: LeaseHolder::new(self),
            membership: Membership::new(self),
            downgrades: Downgrades::new(self),
        };
        let (info, access_control) =
            (Arc::clone(&self.info.server), Arc::clone(&self.access_control));
        ServerHandles::new(info, access_control, Arc::new(store), Arc::clone(&self.streams))
    }
}

impl Status for MemberStatus {
    fn progress(&self) -> Progress {
        let state = self.state();
        Progress {
            term: self.applied_term().get(),
            committed: self.committed().get(),
            applied: self.applied().get(),
            leader: state.leadership.leader,
        }
    }

    fn term(&self) -> u64 {
        self.applied_term().get()
    }

    fn has_leader(&self) -> bool {
        self.state().has_leader()
    }

    fn now(&self) -> Millis {
        self.clock_now()
    }

    fn storage_version(&self) -> Option<Version> {
        Self::storage_version(self)
    }

    fn consensus(&self) -> ConsensusStatus {
        let status = consensus_status(&Self::consensus(self));
        // The indexes are published more often than the rest of the state.
        ConsensusStatus {
            committed: status.committed.max(self.committed().get()),
            applied: status.applied.max(self.applied().get()),
            ..status
        }
    }

    fn wait_applied(&self, index: u64, deadline: Instant) -> StoreFuture<'_, bool> {
        let Some((completer, waiting)) = completion::wait(&AWAITING, deadline) else {
            return StoreFuture::ready(false);
        };
        self.when_applied(LogIndex(index), completer);
        StoreFuture::pending(async move { waiting.await.is_some() })
    }

    fn wait_for_leader(&self, timeout: Duration) -> StoreFuture<'_, bool> {
        StoreFuture::pending(self.has_leader_within(timeout))
    }
}

/// Converts the state of consensus, with etcd's names for roles and states.
fn consensus_status(status: &RaftStatus) -> ConsensusStatus {
    let progress = status.progress.iter().map(|(id, progress)| MemberProgress {
        id: *id,
        match_index: progress.match_index.get(),
        next_index: progress.next_index.get(),
        state: progress.state.to_string(),
    });
    let role = match status.soft_state.role {
        Role::Follower => "StateFollower",
        Role::PreCandidate => "StatePreCandidate",
        Role::Candidate => "StateCandidate",
        Role::Leader => "StateLeader",
    };
    ConsensusStatus {
        term: status.hard_state.term.get(),
        vote: status.hard_state.vote,
        committed: status.hard_state.commit.get(),
        applied: status.applied.get(),
        leader: status.soft_state.leader,
        role: role.to_owned(),
        progress: progress.collect(),
        transferee: status.transferee,
    }
}

impl MemberStore {
    /// Waits until all applied entries are committed to the backend file, and then checks that the client is an
    /// administrator. The check follows the wait, because the wait may be long if the disk is full, and the client may
    /// lose its role during the wait.
    async fn commit_backend(&self, client: &Credentials) -> Result<(), RequestError> {
        self.administrator.commit_backend().await?;
        self.access_control.check_admin(client)
    }

    /// Waits for a permit to compute a hash, and then checks again that the client is an administrator, because the
    /// client may lose its role during the wait.
    async fn hash_permit(&self, client: &Credentials) -> Result<HashPermit, RequestError> {
        let permit = self.administrator.hash_permit().await?;
        self.access_control.check_admin(client)?;
        Ok(permit)
    }
}

impl DataStore for MemberStore {
    fn read_barrier(&self) -> StoreResult<'_, ()> {
        if self.info.member_status().reads_need_no_barrier() {
            return StoreFuture::ready(Ok(()));
        }
        StoreFuture::pending(self.reader.read_barrier())
    }

    fn current_revision(&self) -> i64 {
        self.reader.current_revision()
    }

    fn range(&self, query: &RangeQuery) -> StoreResult<'_, Listed<RangeResult>> {
        self.reader.range(query)
    }

    fn check_alive(&self) -> StoreResult<'_, ()> {
        StoreFuture::pending(async move { self.reader.range(&probe_query()).await.map(drop) })
    }

    fn read_txn(&self, request: &Arc<TxnRequest>) -> StoreResult<'_, Listed<TxnResponse>> {
        self.reader.txn(request)
    }

    fn reserve_lists(&self, request: &TxnRequest) -> StoreResult<'_, Option<OwnedPermit>> {
        self.reader.reserve_lists(request)
    }

    fn hub(&self) -> &Hub {
        self.reader.hub()
    }

    fn report_history_fault(&self, fault: HistoryFault) {
        self.reader.report_history_fault(fault);
    }

    fn check_load(&self, kind: RequestKind) -> Result<(), RequestError> {
        self.proposer.check_load(kind)
    }

    fn has_room(&self, cost: u64) -> bool {
        self.proposer.has_room(cost)
    }

    fn raise_no_space(&self) -> StoreFuture<'_, ()> {
        StoreFuture::pending(self.proposer.refuse_growth())
    }

    fn check_write(&self, write: &Write<'_>) -> StoreResult<'_, ()> {
        self.proposer.check_for_etcd(write)
    }

    fn write<'a>(
        &'a self,
        write: Write<'a>,
        kept: Option<&mut Bytes>,
    ) -> WriteFuture<'a, Result<Response, RequestError>> {
        self.proposer.propose_for(write, kept)
    }

    fn next_lease_id(&self) -> i64 {
        self.proposer.next_lease_id()
    }

    fn compaction_point(&self, revision: i64) -> i64 {
        self.proposer.compaction_point(revision)
    }

    fn wait_compacted(&self) -> StoreResult<'_, ()> {
        StoreFuture::pending(self.administrator.wait_compacted())
    }

    fn renew_lease<'a>(
        &'a self,
        client: &'a Credentials,
        id: LeaseId,
    ) -> StoreResult<'a, Option<i64>> {
        match self.leases.renew_at_once(id) {
            Some(ttl_secs) => StoreFuture::ready(Ok(Some(ttl_secs))),
            None => StoreFuture::pending(self.leases.renew(client, id)),
        }
    }

    fn time_to_live<'a>(
        &'a self,
        request: &'a LeaseTimeToLiveRequest,
    ) -> StoreResult<'a, Option<LeaseTimeToLiveResponse>> {
        StoreFuture::pending(self.leases.time_to_live(request))
    }

    fn lease_ids(&self) -> Vec<LeaseId> {
        self.reader.leases().list()
    }

    fn sizes(&self) -> Sizes {
        let (total_bytes, in_use_bytes) = self.proposer.backend_bytes();
        Sizes { total_bytes, in_use_bytes }
    }

    fn hash<'a>(&'a self, client: &'a Credentials) -> StoreResult<'a, u32> {
        StoreFuture::pending(async move {
            self.commit_backend(client).await?;
            let permit = self.hash_permit(client).await?;
            let backend = self.reader.backend().clone();
            let started = Instant::now();
            let hash = permit.compute(move || backend.read().hash()).await;
            let hash = hash.map_err(|fault| self.reader.fault(fault))?;
            self.info.metrics().mvcc.hash.observe(started.elapsed());
            Ok(hash)
        })
    }

    fn hash_kv<'a>(
        &'a self,
        client: &'a Credentials,
        revision: i64,
    ) -> StoreResult<'a, (i64, HashKv)> {
        StoreFuture::pending(async move {
            self.administrator.wait_hashed(revision).await;
            self.access_control.check_admin(client)?;
            let permit = self.hash_permit(client).await?;
            let view = self.reader.view();
            let started = Instant::now();
            let current = view.current_revision();
            let hashed = permit.compute(move || view.hash_kv(revision)).await;
            let hashed = hashed.map_err(|error| self.reader.read_error(error))?;
            self.info.metrics().mvcc.hash_revision.observe(started.elapsed());
            Ok((current, hashed))
        })
    }

    fn snapshot<'a>(&'a self, client: &'a Credentials) -> StoreResult<'a, Image> {
        StoreFuture::pending(async move {
            self.commit_backend(client).await?;
            Ok(self.reader.image())
        })
    }

    fn defragment(&self) -> StoreResult<'_, Defragmented> {
        StoreFuture::pending(self.administrator.defragment())
    }

    fn serving(&self) -> watch::Receiver<bool> {
        self.administrator.serving()
    }

    fn move_leader(&self, to: u64) -> StoreResult<'_, ()> {
        StoreFuture::pending(self.administrator.move_leader(to))
    }

    fn validate_downgrade<'a>(&'a self, target: &'a str) -> StoreResult<'a, Version> {
        StoreFuture::pending(self.downgrades.validate(target))
    }

    fn enable_downgrade<'a>(
        &'a self,
        client: &'a Credentials,
        target: &'a str,
    ) -> StoreResult<'a, Version> {
        StoreFuture::pending(self.downgrades.enable(client, target))
    }

    fn cancel_downgrade<'a>(&'a self, client: &'a Credentials) -> StoreFuture<'a, Option<Version>> {
        StoreFuture::pending(self.downgrades.cancel(client))
    }

    fn add_member<'a>(
        &'a self,
        client: &'a Credentials,
        peer_urls: &'a [String],
        is_learner: bool,
    ) -> StoreResult<'a, (Member, Vec<Member>)> {
        StoreFuture::pending(self.membership.add(client, peer_urls, is_learner))
    }

    fn remove_member<'a>(
        &'a self,
        client: &'a Credentials,
        id: u64,
    ) -> StoreResult<'a, Vec<Member>> {
        StoreFuture::pending(self.membership.remove(client, id))
    }

    fn update_member<'a>(
        &'a self,
        client: &'a Credentials,
        id: u64,
        peer_urls: &'a [String],
    ) -> StoreResult<'a, Vec<Member>> {
        StoreFuture::pending(self.membership.update(client, id, peer_urls))
    }

    fn promote_member<'a>(
        &'a self,
        client: &'a Credentials,
        id: u64,
        token: Option<&'a str>,
    ) -> StoreResult<'a, Vec<Member>> {
        StoreFuture::pending(self.membership.promote(client, id, token))
    }
}
