//! A position in a queue of keys, with which etcd's clients implement locks and elections: the first in the
//! queue holds the lock or is the leader, and every other client waits for the one before it.
//!
//! # Guarantees
//!
//! * All clients of etcd can share a queue.
//! * The position lasts as long as its lease. The lease is renewed until the position is given up, and then
//!   revoked, so that nothing is left in the cluster.

use std::pin::Pin;
use std::time::Duration;

use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    Compare, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse,
    RequestOp, TxnRequest, WatchCreateRequest,
};
use quorate_api::mvccpb::event::EventType;
use tonic::Status;

use crate::client::{Client, Repeat};
use crate::events::{Events, Leader, cancel_text};
use crate::failure::{Failure, status_text};
use crate::key_range::prefix_end;
use crate::renewal::keep;

/// The TTL of a lease if none is given.
pub(crate) const TTL_SECS_DEFAULT: i64 = 60;

type Renewal<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// A lease and its renewal.
pub(crate) struct KeptLease<'a> {
    client: &'a Client,
    id: i64,
    /// `None` once the lease has ended.
    renewal: Option<Renewal<'a>>,
}

impl<'a> KeptLease<'a> {
    /// Grants a lease with this TTL; 0 stands for the default.
    pub(crate) async fn begin(client: &'a Client, ttl_secs: i64) -> Result<Self, Status> {
        let ttl = if ttl_secs > 0 { ttl_secs } else { TTL_SECS_DEFAULT };
        let grant = async |channel, request| client.lease(channel).lease_grant(request).await;
        let request = LeaseGrantRequest { ttl, id: 0 };
        let lease = client.call(None, Repeat::Never, request, grant).await?;
        let life = Duration::from_secs(u64::try_from(lease.ttl).unwrap_or_default());
        let renewal: Renewal<'a> = Box::pin(keep(client, lease.id, life, |_| Ok(())));
        Ok(Self { client, id: lease.id, renewal: Some(renewal) })
    }

    /// Runs a future while the lease lives; `None` if the lease ends first.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let renewal = self.renewal.as_mut()?;
        tokio::select! {
            done = work => return Some(done),
            _ = renewal => {}
        }
        self.renewal = None;
        None
    }

    /// Runs a future and renews the lease meanwhile, even if the lease ends before the future does.
    pub(crate) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        match self.during(work.as_mut()).await {
            Some(done) => done,
            None => work.await,
        }
    }

    /// Revokes the lease if it lives, which gives up every position that uses it.
    pub(crate) async fn end(self) -> Result<(), Status> {
        if self.renewal.is_none() {
            return Ok(());
        }
        let client = self.client;
        let revoke = async |channel, request| client.lease(channel).lease_revoke(request).await;
        let request = LeaseRevokeRequest { id: self.id };
        client.call(None, Repeat::Never, request, revoke).await.map(drop)
    }
}

/// A key in a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueKey {
    queue: Vec<u8>,
    /// The key.
    pub(crate) key: Vec<u8>,
    /// The revision that created the key.
    created: i64,
    /// The revision of the cluster when this key became the first of the queue.
    pub(crate) revision: i64,
}

impl QueueKey {
    /// Joins the queue of this name, with a value.
    pub(crate) async fn create(
        kept_lease: &KeptLease<'_>,
        name: &[u8],
        value: &[u8],
    ) -> Result<Self, Status> {
        let queue = [name, b"/"].concat();
        let key = [&queue[..], format!("{:x}", kept_lease.id).as_bytes()].concat();
        let put = PutRequest {
            key: key.clone().into(),
            value: value.to_vec().into(),
            lease: kept_lease.id,
            ..Default::default()
        };
        let get = RangeRequest { key: key.clone().into(), ..Default::default() };
        let is_free = Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Create as i32,
            key: key.clone().into(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Default::default()
        };
        let request = TxnRequest {
            compare: vec![is_free],
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(Request::RequestRange(get)) }],
        };
        let client = kept_lease.client;
        let txn = async |channel, request| client.kv(channel).txn(request).await;
        let reply = client.call(None, Repeat::Never, request, txn).await?;
        let revision = reply.header.as_ref().map_or(0, |header| header.revision);
        // No other client has a key with this lease, so a key that exists is ours.
        let found = reply.responses.first().and_then(|operation| match &operation.response {
            Some(Response::ResponseRange(found)) => found.kvs.first(),
            _ => None,
        });
        let created = found.map_or(revision, |record| record.fields().create_revision);
        Ok(Self { queue, key, created, revision })
    }

    /// Waits until this key is the first of the queue.
    pub(crate) async fn wait_for_turn(&mut self, client: &Client) -> Result<(), Status> {
        let last_before = RangeRequest {
            key: self.queue.clone().into(),
            range_end: prefix_end(&self.queue).into(),
            max_create_revision: self.created - 1,
            sort_order: SortOrder::Descend as i32,
            sort_target: SortTarget::Create as i32,
            limit: 1,
            ..Default::default()
        };
        loop {
            let reply = get(client, last_before.clone()).await?;
            let Some(before) = reply.kvs.first() else { return Ok(()) };
            let revision = reply.header.as_ref().map_or(0, |header| header.revision);
            wait_for_deletion(client, before.fields().key, revision).await?;
            let own = self.read(client).await?;
            self.revision = own.header.as_ref().map_or(0, |header| header.revision);
        }
    }

    /// Reads the key.
    pub(crate) async fn read(&self, client: &Client) -> Result<RangeResponse, Status> {
        get(client, RangeRequest { key: self.key.clone().into(), ..Default::default() }).await
    }
}

/// Reads keys, without a time limit.
pub(crate) async fn get(client: &Client, request: RangeRequest) -> Result<RangeResponse, Status> {
    let range = async |channel, request| client.kv(channel).range(request).await;
    client.call(None, Repeat::Safe, request, range).await
}

/// Waits until a key is deleted at this revision or later.
async fn wait_for_deletion(client: &Client, key: &[u8], revision: i64) -> Result<(), Status> {
    let create = WatchCreateRequest {
        key: key.to_vec().into(),
        start_revision: revision,
        ..Default::default()
    };
    let mut events = Events::new(client, create, Leader::Awaited);
    loop {
        let response = events.next().await?;
        if response.canceled {
            return Err(Status::aborted(cancel_text(&response)));
        }
        if response.events.iter().any(|event| event.r#type == EventType::Delete as i32) {
            return Ok(());
        }
    }
}

/// The error of a wait that a signal has ended.
pub(crate) fn interrupted() -> Failure {
    Failure::error(status_text(&Status::cancelled("")))
}
