//! Translates between the history's types and the API's types.

use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request as PbRequest;
use quorate_api::etcdserverpb::response_op::Response as PbResponse;
use quorate_api::etcdserverpb::{
    Compare as PbCompare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchResponse,
    watch_create_request::FilterType,
};
use quorate_api::mvccpb;
use quorate_history_checker::{
    Compare, Delete, Event, KeyValue, KvRequest, KvResponse, Operand, Put, Range, Relation, Txn,
    WatchMessage, WatchRequest,
};

/// Returns the API request for a put.
#[must_use]
pub fn put(put: &Put) -> PutRequest {
    PutRequest {
        key: put.key.clone(),
        value: put.value.clone(),
        lease: put.lease,
        prev_kv: put.prev_kv,
        ignore_value: put.ignore_value,
        ignore_lease: put.ignore_lease,
    }
}

/// Returns the API request for a deletion.
#[must_use]
pub fn delete(delete: &Delete) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: delete.keys.key.clone(),
        range_end: delete.keys.end.clone(),
        prev_kv: delete.prev_kv,
    }
}

/// Returns the API request for a read.
#[must_use]
pub fn range(range: &Range) -> RangeRequest {
    RangeRequest {
        key: range.keys.key.clone(),
        range_end: range.keys.end.clone(),
        revision: range.revision,
        limit: range.limit,
        serializable: range.serializable,
        keys_only: range.keys_only,
        count_only: range.count_only,
        ..RangeRequest::default()
    }
}

/// Returns the API request for a transaction.
#[must_use]
pub fn txn(txn: &Txn) -> TxnRequest {
    TxnRequest {
        compare: txn.compares.iter().map(compare).collect(),
        success: txn.success.iter().map(operation).collect(),
        failure: txn.failure.iter().map(operation).collect(),
    }
}

fn operation(request: &KvRequest) -> RequestOp {
    let request = match request {
        KvRequest::Put(one) => PbRequest::RequestPut(put(one)),
        KvRequest::Delete(one) => PbRequest::RequestDeleteRange(delete(one)),
        KvRequest::Range(one) => PbRequest::RequestRange(range(one)),
        KvRequest::Txn(one) => PbRequest::RequestTxn(txn(one)),
    };
    RequestOp { request: Some(request) }
}

fn compare(compare: &Compare) -> PbCompare {
    let result = match compare.relation {
        Relation::Equal => CompareResult::Equal,
        Relation::NotEqual => CompareResult::NotEqual,
        Relation::Greater => CompareResult::Greater,
        Relation::Less => CompareResult::Less,
    };
    let (target, union) = match &compare.operand {
        Operand::Value(value) => (CompareTarget::Value, TargetUnion::Value(value.clone())),
        Operand::Version(number) => (CompareTarget::Version, TargetUnion::Version(*number)),
        Operand::CreateRevision(number) => {
            (CompareTarget::Create, TargetUnion::CreateRevision(*number))
        }
        Operand::ModRevision(number) => (CompareTarget::Mod, TargetUnion::ModRevision(*number)),
        Operand::Lease(number) => (CompareTarget::Lease, TargetUnion::Lease(*number)),
    };
    PbCompare {
        result: result.into(),
        target: target.into(),
        key: compare.keys.key.clone(),
        range_end: compare.keys.end.clone(),
        target_union: Some(union),
    }
}

/// Returns the history's form of a read response.
#[must_use]
pub fn range_result(response: &RangeResponse) -> KvResponse {
    let kvs = response.kvs.iter().map(record).collect();
    KvResponse::Range { kvs, count: response.count, more: response.more }
}

fn record(kv: &quorate_api::record::KeyValue) -> KeyValue {
    let fields = kv.fields();
    KeyValue {
        key: fields.key.to_vec().into(),
        value: fields.value.to_vec().into(),
        create_revision: fields.create_revision,
        mod_revision: fields.mod_revision,
        version: fields.version,
        lease: fields.lease,
    }
}

/// Returns the history's form of a transaction response.
#[must_use]
pub fn txn_result(response: &TxnResponse) -> KvResponse {
    let responses = response.responses.iter().filter_map(operation_result).collect();
    KvResponse::Txn { succeeded: response.succeeded, responses }
}

fn operation_result(operation: &ResponseOp) -> Option<KvResponse> {
    Some(match operation.response.as_ref()? {
        PbResponse::ResponseRange(response) => range_result(response),
        PbResponse::ResponsePut(response) => put_result(response),
        PbResponse::ResponseDeleteRange(response) => delete_result(response),
        PbResponse::ResponseTxn(response) => txn_result(response),
    })
}

/// Returns the history's form of a put response.
#[must_use]
pub fn put_result(response: &quorate_api::etcdserverpb::PutResponse) -> KvResponse {
    KvResponse::Put { previous: response.prev_kv.as_ref().map(record) }
}

/// Returns the history's form of a deletion response.
#[must_use]
pub fn delete_result(response: &quorate_api::etcdserverpb::DeleteRangeResponse) -> KvResponse {
    let previous = response.prev_kvs.iter().map(record).collect();
    KvResponse::Delete { deleted: response.deleted, previous }
}

/// Returns the API request that creates a watcher.
#[must_use]
pub fn watch(request: &WatchRequest, fragment: bool, progress: bool) -> WatchCreateRequest {
    let mut filters = Vec::new();
    if request.no_put {
        filters.push(FilterType::Noput.into());
    }
    if request.no_delete {
        filters.push(FilterType::Nodelete.into());
    }
    WatchCreateRequest {
        key: request.keys.key.clone(),
        range_end: request.keys.end.clone(),
        start_revision: request.start_revision,
        progress_notify: progress,
        filters,
        prev_kv: request.prev_kv,
        watch_id: 0,
        fragment,
    }
}

/// Returns the history's form of a watch response.
#[must_use]
pub fn watch_message(response: &WatchResponse) -> WatchMessage {
    let revision = response.header.as_ref().map_or(0, |header| header.revision);
    if response.canceled {
        return match response.compact_revision {
            0 => WatchMessage::Cancelled,
            revision => WatchMessage::Compacted { revision },
        };
    }
    if response.created {
        return WatchMessage::Created { revision };
    }
    if response.events.is_empty() {
        return WatchMessage::Progress { revision };
    }
    let events = response.events.iter().map(event).collect();
    WatchMessage::Events { events, is_fragment: response.fragment }
}

/// Returns the history's form of one key change.
#[must_use]
pub fn event(event: &mvccpb::Event) -> Event {
    Event {
        kv: event.kv.as_ref().map(record).unwrap_or_default(),
        is_delete: event.r#type == i32::from(mvccpb::event::EventType::Delete),
        previous: event.prev_kv.as_ref().map(record),
    }
}
