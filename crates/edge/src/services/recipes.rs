//! What locks and elections are made of: keys under a name, each on a lease, whose order of creation decides.
//!
//! A contender for a name writes the key `name/<lease id in hex>`. The one whose key was created first has what is
//! contended for; every other waits for the key that was created just before its own to be deleted. So a deletion wakes
//! one waiter, however many there are. All that happens here are ordinary transactions, reads and watches of the
//! caller's: with his rights, within the quota, and in the log as etcd writes them, so that contenders at etcd's members
//! and those that run the recipe in their own client take part in the same contest.
//!
//! # Cost
//!
//! A waiter is a call under way with one watcher: no thread and no timer. How much waits is bounded
//! (`admission::WAITER_BYTES_MAX`). Who waits first asks this member alone what is before him, which is enough: his
//! own key has been written here already, and what was deleted since is a deletion that the watcher sees.
//!
//! # Failures
//!
//! What goes wrong inside reaches the client as Unknown with the words of what went wrong, because that is what etcd's
//! own client makes of it there; see [`handed_on`].
//!
//! # Not here
//!
//! What is done with the keys (`lock`, `election`).

use std::future::poll_fn;
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
use tonic::{Code, Status};

use super::kv::Kv;
use super::lease::LeaseService;
use super::watch::denial;
use crate::calls::contended_name::Name;
use crate::calls::status::status;
use quorate_member::access::{Client, Gate};
use quorate_member::admission::{Bound, Room};
use quorate_member::{Handles, Profile, Reader, RequestError, StreamEnds};

/// For how long a contender lives that brings no lease, unless he renews the one that he is told of.
const TTL_SECS: i64 = 60;

/// What a waiter takes besides its key and value: his call and its task, the watch of who is before him with its
/// stream, and what the allocator adds. Measured with 1,000 of them, of which each took about as much.
const WAITER_BYTES: u64 = 40 << 10;

/// The means of both services.
#[derive(Debug)]
pub(crate) struct Recipes {
    kv: Arc<Kv>,
    leases: Arc<LeaseService>,
    gate: Arc<Gate>,
    profile: Arc<Profile>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) streams: Arc<StreamEnds>,
}

impl Recipes {
    pub(crate) fn new(handles: &Handles, kv: Arc<Kv>, leases: Arc<LeaseService>) -> Self {
        Self {
            kv,
            leases,
            gate: Arc::clone(&handles.gate),
            profile: Arc::clone(&handles.profile),
            reader: Arc::clone(&handles.reader),
            streams: Arc::clone(&handles.streams),
        }
    }

    /// The lease of a contender: his own, or one that is granted now. Whether his own is there shows when a key is to
    /// be put on it.
    pub(crate) async fn lease(&self, client: &Client, given: i64) -> Result<i64, Status> {
        if given != 0 {
            return Ok(given);
        }
        let grant = LeaseGrantRequest { ttl: TTL_SECS, id: 0 };
        Ok(self.leases.grant_for(client, grant).await.map_err(handed_on)?.id)
    }

    /// A place for somebody who may have to wait, with a key and a value of so many bytes.
    pub(crate) fn take_room(&self, bytes: usize) -> Result<Room, Status> {
        let waiters = &self.reader.admission().waiters;
        let room = Bound::take_owned(waiters, WAITER_BYTES + bytes as u64);
        room.map_err(|full| handed_on(status(full)))
    }

    /// Refuses who may not read what the others have under the name.
    pub(crate) fn check_name(&self, client: &Client, name: &Name) -> Result<(), Status> {
        let checked = self.gate.check_watch(&client.shown, &name.prefix, &name.end);
        checked.map_err(|error| handed_on(status(error)))
    }

    /// A transaction that may write.
    pub(crate) async fn txn(
        &self,
        client: &Client,
        txn: TxnRequest,
    ) -> Result<TxnResponse, Status> {
        self.kv.write_txn_for(client, txn).await.map_err(handed_on)
    }

    pub(crate) async fn delete(
        &self,
        client: &Client,
        key: Bytes,
    ) -> Result<DeleteRangeResponse, Status> {
        let request = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        self.kv.delete_for(client, request).await.map_err(handed_on)
    }

    pub(crate) async fn range(
        &self,
        client: &Client,
        request: &RangeRequest,
    ) -> Result<RangeResponse, Status> {
        let reply = self.kv.range_for(client, request).await;
        Ok(reply.map_err(|error| handed_on(status(error)))?.into_message())
    }

    /// The key under a name that was created first.
    pub(crate) async fn owner(
        &self,
        client: &Client,
        name: &Name,
    ) -> Result<RangeResponse, Status> {
        self.range(client, &name.first(SortOrder::Ascend)).await
    }

    /// Whether no key under the name was older than this creation at a revision that has been reached. Where that
    /// cannot be told any more, it is not said.
    pub(crate) fn is_first_at(&self, name: &Name, created: i64, revision: i64) -> bool {
        let before = RangeRequest { revision, ..name.last_before(created) };
        let query = RangeQuery::from_request(&before).expect("the sort is a known one");
        self.reader.range(&query).is_ok_and(|found| found.kvs.is_empty())
    }

    /// Waits until no key under the name is older than this creation.
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

    /// Watches keys from a revision on.
    pub(crate) fn watch(
        &self,
        client: &Client,
        key: Bytes,
        range_end: Bytes,
        start_revision: i64,
        filters: &[FilterType],
    ) -> KeyWatch {
        let mut stream = self.reader.hub().open_stream(usize::MAX);
        let filters = filters.iter().map(|filter| i32::from(*filter)).collect();
        let create =
            WatchCreateRequest { key, range_end, start_revision, filters, ..Default::default() };
        stream.create(create, |key, end| {
            self.gate.check_watch(&client.shown, key, end).map_err(|error| denial(&error))
        });
        let (profile, reader) = (Arc::clone(&self.profile), Arc::clone(&self.reader));
        KeyWatch { stream, profile, reader }
    }
}

/// Whether a watched key was deleted.
fn deletes(response: &WatchResponse) -> bool {
    response.events.iter().any(|event| event.r#type() == EventType::Delete)
}

/// One watcher.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    stream: WatchStream,
    profile: Arc<Profile>,
    reader: Arc<Reader>,
}

impl KeyWatch {
    /// What happens next, or why nothing will be told any more.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, Status> {
        let frame = poll_fn(|cx| {
            let header = HeaderFields {
                cluster_id: self.profile.cluster_id(),
                member_id: self.profile.id(),
                raft_term: self.profile.applied_term().get(),
            };
            self.stream.poll_next(cx, &header)
        });
        let frame = frame.await.map_err(|fault| {
            let told = Status::unknown(fault.to_string());
            self.reader.report_history_fault(fault);
            told
        })?;
        let mut encoded = BytesMut::with_capacity(frame.encoded_len());
        frame.encode(&mut encoded);
        let response = WatchResponse::decode(encoded).expect("a frame is a message");
        if response.compact_revision != 0 {
            return Err(handed_on(status(RequestError::Refused(Refusal::Compacted))));
        }
        if response.canceled {
            return Err(Status::unknown(response.cancel_reason));
        }
        Ok(response)
    }
}

impl Name {
    /// The last key that was created before that revision, as this member knows it.
    fn last_before(&self, created: i64) -> RangeRequest {
        RangeRequest {
            max_create_revision: created - 1,
            serializable: true,
            keys_only: true,
            ..self.first(SortOrder::Descend)
        }
    }

    /// One key, the first by creation in that order.
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

/// A transaction that does something to a key if it was created at that revision, 0 being never.
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

/// The transaction by which a contender takes his place, or finds the one that he has.
pub(crate) fn enter(key: &Bytes, value: Bytes, lease: i64) -> TxnRequest {
    let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
    let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
    let get = Operation::RequestRange(get);
    if_created_at(key, 0, Operation::RequestPut(put), Some(get))
}

/// A contender's place.
#[derive(Debug)]
pub(crate) struct Entered {
    /// When his key was created.
    pub(crate) created: i64,
    /// What was there before, if it was.
    pub(crate) value: Option<Bytes>,
}

impl Entered {
    /// Reads the answer to [`enter`].
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

/// What takes a contender's key away again when he stops waiting, also when his call is simply dropped.
///
/// The work is done with the caller's rights but does not end with his call. If it cannot be done, the key goes with
/// its lease.
pub(crate) struct Withdrawal {
    recipes: Arc<Recipes>,
    client: Client,
    /// What is to be done, in the room of who waited; `None` once there is nothing to do.
    undo: Option<(Undo, Room)>,
}

/// How a key is taken away.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// Whatever it is by then.
    Delete(Bytes),
    /// If it is still the one that was created at that revision.
    DeleteCreatedAt(Bytes, i64),
}

impl Withdrawal {
    pub(crate) fn prepare(recipes: &Arc<Recipes>, client: &Client, undo: Undo, room: Room) -> Self {
        let (recipes, client) = (Arc::clone(recipes), client.clone());
        Self { recipes, client, undo: Some((undo, room)) }
    }

    /// Leaves the key where it is.
    pub(crate) fn forget(mut self) {
        self.undo = None;
    }

    /// Takes the key away now, unless the member is about to stop: then its owner asks again elsewhere, and finds his
    /// place.
    pub(crate) async fn carry_out(mut self, why: &Status) {
        if why.message() != RequestError::Stopped.to_string()
            && let Some((undo, _)) = &self.undo
        {
            self.recipes.undo(&self.client, undo.clone()).await;
        }
        self.undo = None;
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let Some((undo, room)) = self.undo.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (recipes, client) = (Arc::clone(&self.recipes), self.client.clone());
        drop(runtime.spawn(async move {
            recipes.undo(&client, undo).await;
            drop(room);
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
                "a key that nobody waits for any more stays until its lease ends",
                "error" = why.message()
            );
        }
    }

    /// Deletes a key if it is the one that was created at that revision.
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

/// A failure as etcd's own client, which runs the recipes there, hands it on: it loses its code, but for those that are
/// the call's own, and those by which a client knows that he should ask elsewhere.
pub(crate) fn handed_on(failure: Status) -> Status {
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
    fn failures_lose_their_codes_but_for_those_of_the_call() {
        let code = |error: RequestError| handed_on(status(error)).code();
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
