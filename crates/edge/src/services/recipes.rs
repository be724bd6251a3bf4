//! The common part of locks and elections: keys under a name, each attached to a lease, in creation order.
//!
//! A contender for a name writes the key `name/<lease id in hex>`. The contender whose key was created first owns the
//! name. Every other contender waits for the deletion of the key created just before its own, so a deletion wakes only
//! one waiter. All steps are ordinary transactions, reads and watches of the caller: they use the caller's permissions,
//! respect the quota, and are logged as in etcd. The keys are also the same as in etcd, so contenders served by etcd
//! members, and clients that run the recipe themselves, can contend for the same name.
//!
//! # Cost
//!
//! A waiter is a call in progress with one watcher. It needs no thread and no timer. The memory of all waiters, and
//! thereby their number, is limited (`admission::WAITER_BYTES_MAX`). A waiter first reads the keys before its own from
//! this member only. This local read is sufficient, because the waiter's own key was already applied here and the
//! watcher receives later deletions.
//!
//! # Failures
//!
//! A failure of an inner step is returned with the code Unknown and its own text. etcd's client, which runs the recipes
//! inside etcd's server, does the same. See [`as_client_error`] for the exceptions.
//!
//! # Not here
//!
//! The use of the keys (`lock`, `election`).

use std::future::{Future, poll_fn};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::etcdserverpb::watch_create_request::FilterType;
use quorate_api::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, PutRequest, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchResponse,
    response_op,
};
use quorate_api::mvccpb::event::EventType;
use quorate_state::apply::Refusal;
use quorate_state::mvcc::RangeQuery;
use quorate_state::watch::{HeaderFields, WatchStream};
use tokio::sync::oneshot;
use tonic::{Code, Status};

use super::kv::Kv;
use super::lease::LeaseService;
use super::watch::denial;
use crate::calls::contended_name::Name;
use crate::calls::status::status;
use quorate_requests::access::{AccessControl, Client};
use quorate_requests::admission::{Bound, OwnedPermit};
use quorate_requests::{DataStore, RequestError, ServerHandles, ServerInfo, StreamEnds};

/// TTL of the lease granted to a contender that does not name a lease.
const TTL_SECS: i64 = 60;

/// Bytes of memory that a waiter uses in addition to its key and value, for its call, task, watcher and stream, and as
/// allocator overhead. Measured with 1,000 waiters.
const WAITER_BYTES: u64 = 40 << 10;

/// Runs the steps of locks and elections on the KV and Lease services.
#[derive(Debug)]
pub(crate) struct Recipes {
    kv: Arc<Kv>,
    leases: Arc<LeaseService>,
    access_control: Arc<AccessControl>,
    pub(crate) info: Arc<ServerInfo>,
    store: Arc<dyn DataStore>,
    pub(crate) streams: Arc<StreamEnds>,
}

impl Recipes {
    pub(crate) fn new(handles: &ServerHandles, kv: Arc<Kv>, leases: Arc<LeaseService>) -> Self {
        Self {
            kv,
            leases,
            access_control: Arc::clone(&handles.access_control),
            info: Arc::clone(&handles.info),
            store: Arc::clone(&handles.store),
            streams: Arc::clone(&handles.streams),
        }
    }

    /// Returns the lease named by the contender, or grants a new lease. A named lease is checked when the contender's
    /// key is attached to it.
    pub(crate) async fn lease(&self, client: &Client, given: i64) -> Result<i64, Status> {
        if given != 0 {
            return Ok(given);
        }
        let grant = LeaseGrantRequest { ttl: TTL_SECS, id: 0 };
        Ok(self.leases.grant_for(client, grant).await.map_err(as_client_error)?.id)
    }

    /// Takes a permit for a call that may become a waiter, and whose key and value together have this size.
    pub(crate) fn take_permit(&self, bytes: usize) -> Result<OwnedPermit, Status> {
        let waiters = &self.info.admission().waiters;
        let permit = Bound::take_owned(waiters, WAITER_BYTES + bytes as u64);
        permit.map_err(|full| as_client_error(status(full)))
    }

    /// Refuses a client that may not read the keys under the name.
    pub(crate) fn check_name(&self, client: &Client, name: &Name) -> Result<(), Status> {
        let checked = self.access_control.check_watch(&client.credentials, &name.prefix, &name.end);
        checked.map_err(|error| as_client_error(status(error)))
    }

    /// Runs a transaction that may write.
    pub(crate) async fn txn(
        &self,
        client: &Client,
        txn: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        self.kv.write_txn_for(client, txn).await.map_err(as_client_error)
    }

    pub(crate) async fn delete(
        &self,
        client: &Client,
        key: Bytes,
    ) -> Result<DeleteRangeResponse, Status> {
        let request = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        self.kv.delete_for(client, request).await.map_err(as_client_error)
    }

    pub(crate) async fn range(
        &self,
        client: &Client,
        request: &RangeRequest,
    ) -> Result<RangeResponse, Status> {
        let reply = self.kv.range_for(client, request).await;
        Ok(reply.map_err(|error| as_client_error(status(error)))?.into_message())
    }

    /// Returns the key that was created first under a name.
    pub(crate) async fn owner(
        &self,
        client: &Client,
        name: &Name,
    ) -> Result<RangeResponse, Status> {
        self.range(client, &name.first(SortOrder::Ascend)).await
    }

    /// Returns whether every key that existed under the name at `revision` was created at `created` or later. This
    /// member must already have applied that revision. Returns false if the revision has been compacted.
    pub(crate) async fn is_first_at(&self, name: &Name, created: i64, revision: i64) -> bool {
        let before = RangeRequest { revision, ..name.last_before(created) };
        let query = RangeQuery::from_request(&before);
        self.store.range(&query).await.is_ok_and(|found| found.result.kvs.is_empty())
    }

    /// Waits until no key under the name is older than the key created at `created`.
    pub(crate) async fn wait_for_turn(
        &self,
        client: &Client,
        name: &Name,
        created: i64,
    ) -> Result<(), Status> {
        let mut stop = self.streams.wait(false);
        let turn = async {
            let last_before = name.last_before(created);
            loop {
                let found = self.range(client, &last_before).await?;
                let Some(before) = found.kvs.first() else { return Ok(()) };
                let revision = found.header.map_or(0, |header| header.revision);
                let key = Bytes::copy_from_slice(before.key());
                let mut watch =
                    self.watch(client, key, Bytes::new(), revision + 1, &[FilterType::Noput]);
                while !deletes(&watch.next().await?) {}
            }
        };
        tokio::select! {
            turn = turn => turn,
            why = &mut stop => Err(status(why)),
        }
    }

    /// Watches a range of keys, starting at a revision.
    pub(crate) fn watch(
        &self,
        client: &Client,
        key: Bytes,
        range_end: Bytes,
        start_revision: i64,
        filters: &[FilterType],
    ) -> KeyWatch {
        let mut stream = self.store.hub().open_stream(usize::MAX);
        let filters = filters.iter().map(|filter| i32::from(*filter)).collect();
        let create =
            WatchCreateRequest { key, range_end, start_revision, filters, ..Default::default() };
        stream.create(create, |key, end| {
            self.access_control
                .check_watch(&client.credentials, key, end)
                .map_err(|error| denial(&error))
        });
        let (info, store) = (Arc::clone(&self.info), Arc::clone(&self.store));
        KeyWatch { stream, info, store }
    }
}

/// Returns whether the response reports the deletion of the watched key.
fn deletes(response: &WatchResponse) -> bool {
    response.events.iter().any(|event| event.r#type() == EventType::Delete)
}

/// A watch with one watcher.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    stream: WatchStream,
    info: Arc<ServerInfo>,
    store: Arc<dyn DataStore>,
}

impl KeyWatch {
    /// Returns the next response, or the reason why the watch has ended.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, Status> {
        let frame = poll_fn(|cx| {
            let header = HeaderFields {
                cluster_id: self.info.cluster_id(),
                member_id: self.info.id(),
                raft_term: self.info.status().term(),
            };
            self.stream.poll_next(cx, &header)
        });
        let frame = frame.await.map_err(|fault| {
            let status = Status::unknown(fault.to_string());
            self.store.report_history_fault(fault);
            status
        })?;
        let mut encoded = BytesMut::with_capacity(frame.encoded_len());
        frame.encode(&mut encoded);
        let response = WatchResponse::decode(encoded).expect("a frame contains one whole message");
        if response.compact_revision != 0 {
            return Err(as_client_error(status(RequestError::Refused(Refusal::Compacted))));
        }
        if response.canceled {
            return Err(Status::unknown(response.cancel_reason));
        }
        Ok(response)
    }
}

impl Name {
    /// Returns the request for the newest key created before the revision `created`. This member answers the request
    /// from its own applied state.
    fn last_before(&self, created: i64) -> RangeRequest {
        RangeRequest {
            max_create_revision: created - 1,
            serializable: true,
            keys_only: true,
            ..self.first(SortOrder::Descend)
        }
    }

    /// Returns the request for the first key by creation revision, in the given order.
    fn first(&self, order: SortOrder) -> RangeRequest {
        RangeRequest {
            key: self.prefix.clone(),
            range_end: self.end.clone(),
            limit: 1,
            sort_order: order.into(),
            sort_target: SortTarget::Create.into(),
            ..RangeRequest::default()
        }
    }
}

/// Returns a transaction that runs an operation if the key was created at this revision. The revision 0 means that the
/// key does not exist.
pub(crate) fn if_created_at(
    key: &Bytes,
    revision: i64,
    then: Operation,
    otherwise: Option<Operation>,
) -> TxnRequest {
    let to_op = |request| RequestOp { request: Some(request) };
    TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::CreateRevision(revision)),
            ..Compare::default()
        }],
        success: vec![to_op(then)],
        failure: otherwise.map(to_op).into_iter().collect(),
    }
}

/// Returns the transaction that creates a contender's key, or reads the existing key.
pub(crate) fn enter(key: &Bytes, value: Bytes, lease: i64) -> TxnRequest {
    let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
    let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
    let get = Operation::RequestRange(get);
    if_created_at(key, 0, Operation::RequestPut(put), Some(get))
}

/// A contender's key in the store.
#[derive(Debug)]
pub(crate) struct Entered {
    /// The creation revision of the key.
    pub(crate) created: i64,
    /// The value of the key, if it already existed.
    pub(crate) value: Option<Bytes>,
}

impl Entered {
    /// Reads the result of the transaction that [`enter`] created.
    pub(crate) fn read(answer: &TxnResponse) -> Self {
        let own = answer.responses.first().and_then(|one| match &one.response {
            Some(response_op::Response::ResponseRange(range)) => range.kvs.first(),
            _ => None,
        });
        match own {
            Some(own) => Self {
                created: own.fields().create_revision,
                value: Some(Bytes::copy_from_slice(own.value())),
            },
            None => Self { created: revision(answer), value: None },
        }
    }
}

pub(crate) fn revision(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// Deletes the key of a contender that stops waiting, even if its call is dropped.
///
/// The deletion uses the caller's permissions but continues after the call has ended. If it fails, the key is deleted
/// when its lease expires.
pub(crate) struct Withdrawal {
    recipes: Arc<Recipes>,
    client: Client,
    /// The deletion and the waiter's permit; `None` if no key is to be deleted.
    undo: Option<(Undo, OwnedPermit)>,
}

/// How to delete a contender's key.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// Deletes the key unconditionally.
    Delete(Bytes),
    /// Deletes the key only if it was created at this revision.
    DeleteCreatedAt(Bytes, i64),
}

impl Withdrawal {
    pub(crate) fn prepare(
        recipes: &Arc<Recipes>,
        client: &Client,
        undo: Undo,
        permit: OwnedPermit,
    ) -> Self {
        let (recipes, client) = (Arc::clone(recipes), client.clone());
        Self { recipes, client, undo: Some((undo, permit)) }
    }

    /// Cancels the deletion.
    pub(crate) fn forget(mut self) {
        self.undo = None;
    }

    /// Deletes the key now, unless the member is stopping. In that case the contender retries on another member and
    /// finds its key.
    pub(crate) async fn carry_out(mut self, why: &Status) {
        if why.message() != RequestError::Stopped.to_string()
            && let Some((undo, _)) = &self.undo
        {
            self.recipes.undo(&self.client, undo.clone()).await;
        }
        self.undo = None;
    }
}

/// The result of writing a contender's key.
pub(crate) struct Written<T> {
    pub(crate) result: T,
    /// How to delete the key.
    pub(crate) undo: Undo,
    /// Whether the write created the key.
    pub(crate) is_new: bool,
}

impl Recipes {
    /// Writes a contender's key. The write continues even if the contender's call is dropped, because the write may
    /// already have been proposed. If the call was dropped, a key that the write has created is deleted.
    pub(crate) async fn enter<T: Send + 'static>(
        self: &Arc<Self>,
        client: &Client,
        permit: OwnedPermit,
        write: impl Future<Output = Result<Written<T>, Status>> + Send + 'static,
    ) -> Result<(T, Withdrawal), Status> {
        let (sender, receiver) = oneshot::channel();
        let (recipes, client) = (Arc::clone(self), client.clone());
        drop(tokio::spawn(async move {
            let (written, is_new) = match write.await {
                Ok(Written { result, undo, is_new }) => {
                    (Ok((result, Withdrawal::prepare(&recipes, &client, undo, permit))), is_new)
                }
                Err(why) => (Err(why), false),
            };
            if let Err(Ok((_, withdrawal))) = sender.send(written)
                && !is_new
            {
                withdrawal.forget();
            }
        }));
        let stopped = || as_client_error(status(RequestError::Stopped));
        receiver.await.unwrap_or_else(|_| Err(stopped()))
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let Some((undo, permit)) = self.undo.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (recipes, client) = (Arc::clone(&self.recipes), self.client.clone());
        drop(runtime.spawn(async move {
            recipes.undo(&client, undo).await;
            drop(permit);
        }));
    }
}

impl Recipes {
    async fn undo(&self, client: &Client, undo: Undo) {
        let undone = match undo {
            Undo::Delete(key) => self.delete(client, key).await.map(drop),
            Undo::DeleteCreatedAt(key, revision) => {
                self.resign(client, key, revision).await.map(drop)
            }
        };
        if let Err(why) = undone {
            quorate_telemetry::log::debug!(
                "failed to delete the key of an ended lock or election request; the key remains until its \
                 lease expires",
                "error" = why.message()
            );
        }
    }

    /// Deletes a key if it was created at the revision `created`.
    pub(crate) async fn resign(
        &self,
        client: &Client,
        key: Bytes,
        created: i64,
    ) -> Result<TxnResponse, Status> {
        let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
        let delete = Operation::RequestDeleteRange(delete);
        self.txn(client, if_created_at(&key, created, delete, None)).await
    }
}

/// Converts a failure in the same way as the client inside etcd's server, which runs the recipes there: the code
/// becomes Unknown, except for the codes of a cancelled call and of an exceeded deadline, and for errors that direct a
/// client to another member.
pub(crate) fn as_client_error(failure: Status) -> Status {
    let keeps_code = match failure.code() {
        Code::Cancelled | Code::DeadlineExceeded => true,
        Code::Unavailable => [RequestError::Stopped, RequestError::TimeoutWaitingForApply]
            .iter()
            .any(|one| one.to_string() == failure.message()),
        _ => false,
    };
    if keeps_code { failure } else { Status::unknown(failure.message()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_and_election_errors_have_code_unknown_except_timeouts_and_unavailability() {
        let code = |error: RequestError| as_client_error(status(error)).code();
        for (error, expected) in [
            (RequestError::Refused(Refusal::Compacted), Code::Unknown),
            (RequestError::Refused(Refusal::NoSpace), Code::Unknown),
            (RequestError::InvalidAuthToken, Code::Unknown),
            (RequestError::NoLeader, Code::Unknown),
            (RequestError::LeaderChanged, Code::Unknown),
            (RequestError::TimeoutWaitingForApply, Code::Unavailable),
            (RequestError::Stopped, Code::Unavailable),
            (RequestError::DeadlineExceeded, Code::DeadlineExceeded),
        ] {
            assert_eq!(code(error.clone()), expected, "{error}");
        }
    }
}
