//! A queue of keys, with which etcd's clients implement locks and elections. The client with the first key holds the
//! lock or is the leader, and every other client waits for the client before it.
//!
//! # Guarantees
//!
//! * A queue can be shared with other etcd clients, because their queue keys have the same format.
//! * A queue key lives as long as its lease. The lease is renewed until the client leaves the queue, and then revoked,
//!   so that no key or lease remains in the cluster.

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

/// Default TTL of a lease, in seconds.
pub(crate) const TTL_SECS_DEFAULT: i64 = 60;

type Renewal<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// A lease and its renewal.
pub(crate) struct KeptLease<'a> {
    client: &'a Client,
    id: i64,
    /// Renewal of the lease; `None` once the lease has ended.
    renewal: Option<Renewal<'a>>,
}

impl<'a> KeptLease<'a> {
    /// Grants a lease with this TTL in seconds; 0 selects the default.
    pub(crate) async fn begin(client: &'a Client, ttl_secs: i64) -> Result<Self, Status> {
        let ttl = if ttl_secs > 0 { ttl_secs } else { TTL_SECS_DEFAULT };
        let grant = async |channel, request| client.lease(channel).lease_grant(request).await;
        let request = LeaseGrantRequest { ttl, id: 0 };
        let lease = client.call(None, Repeat::Safe, request, grant).await?;
        let life = Duration::from_secs(u64::try_from(lease.ttl).unwrap_or_default());
        let renewal: Renewal<'a> = Box::pin(keep(client, lease.id, life, |_| Ok(())));
        Ok(Self { client, id: lease.id, renewal: Some(renewal) })
    }

    /// Runs a future until it completes or the lease ends. Returns `None` if the lease ends first.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let renewal = self.renewal.as_mut()?;
        tokio::select! {
            done = work => return Some(done),
            _ = renewal => {}
        }
        self.renewal = None;
        None
    }

    /// Runs a future to completion and renews the lease until then. The lease may end before the future does.
    pub(crate) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        match self.during(work.as_mut()).await {
            Some(done) => done,
            None => work.await,
        }
    }

    /// Revokes the lease if it still exists, which deletes every queue key attached to it.
    pub(crate) async fn end(self) -> Result<(), Status> {
        if self.renewal.is_none() {
            return Ok(());
        }
        let client = self.client;
        let revoke = async |channel, request| client.lease(channel).lease_revoke(request).await;
        let request = LeaseRevokeRequest { id: self.id };
        client.call(None, Repeat::Safe, request, revoke).await.map(drop)
    }
}

/// The key that represents a client in a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueKey {
    queue: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Revision at which the key was created.
    created: i64,
    /// Revision of the cluster when this key became the first in the queue.
    pub(crate) revision: i64,
}

impl QueueKey {
    /// Joins the queue with this name by creating a key with the given value.
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
        // No other client has a key with this lease, so an existing key belongs to this client.
        let found = reply.responses.first().and_then(|operation| match &operation.response {
            Some(Response::ResponseRange(found)) => found.kvs.first(),
            _ => None,
        });
        let created = found.map_or(revision, |record| record.fields().create_revision);
        Ok(Self { queue, key, created, revision })
    }

    /// Waits until no earlier key is in the queue. Returns whether this key still exists then; if not, another client
    /// may become the first. A key that has never waited is not read again.
    pub(crate) async fn wait_for_turn(&mut self, client: &Client) -> Result<bool, Status> {
        let last_before = RangeRequest {
            key: self.queue.clone().into(),
            range_end: prefix_end(&self.queue).into(),
            max_create_revision: self.created - 1,
            sort_order: SortOrder::Descend as i32,
            sort_target: SortTarget::Create as i32,
            limit: 1,
            ..Default::default()
        };
        let mut has_waited = false;
        loop {
            let reply = get(client, last_before.clone()).await?;
            let Some(before) = reply.kvs.first() else { break };
            let revision = reply.header.as_ref().map_or(0, |header| header.revision);
            wait_for_deletion(client, before.fields().key, revision).await?;
            has_waited = true;
        }
        if !has_waited {
            return Ok(true);
        }
        let own = self.read(client).await?;
        self.revision = own.header.as_ref().map_or(0, |header| header.revision);
        Ok(!own.kvs.is_empty())
    }

    /// Reads the key.
    pub(crate) async fn read(&self, client: &Client) -> Result<RangeResponse, Status> {
        get(client, RangeRequest { key: self.key.clone().into(), ..Default::default() }).await
    }
}

/// Reads keys without a timeout.
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

/// Returns the error for a wait that was interrupted by a signal.
pub(crate) fn interrupted() -> Failure {
    Failure::error(status_text(&Status::cancelled("")))
}
