//! Functions that construct requests for tests.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;

/// Copies the data into the type that messages use.
#[must_use]
pub fn bytes(data: impl AsRef<[u8]>) -> Bytes {
    Bytes::copy_from_slice(data.as_ref())
}

/// Returns a request that reads one key.
#[must_use]
pub fn key(key: impl AsRef<[u8]>) -> pb::RangeRequest {
    pb::RangeRequest { key: bytes(key), ..Default::default() }
}

/// Returns a request that reads the keys of a half-open range.
#[must_use]
pub fn range(key: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> pb::RangeRequest {
    pb::RangeRequest { key: bytes(key), range_end: bytes(end), ..Default::default() }
}

/// Returns a request that reads a key and all later keys.
#[must_use]
pub fn from_key(key: impl AsRef<[u8]>) -> pb::RangeRequest {
    range(key, "\0")
}

/// Returns a request that reads the keys with a prefix.
#[must_use]
pub fn prefix(start: impl AsRef<[u8]>) -> pb::RangeRequest {
    range(start.as_ref(), prefix_end(start.as_ref()))
}

/// Returns the end of the range of keys with a prefix.
#[must_use]
pub fn prefix_end(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    vec![0]
}

/// Returns a request that writes a key.
#[must_use]
pub fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> pb::PutRequest {
    pb::PutRequest { key: bytes(key), value: bytes(value), ..Default::default() }
}

/// Returns a request that writes a key with a lease.
#[must_use]
pub fn put_leased(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, lease: i64) -> pb::PutRequest {
    pb::PutRequest { lease, ..put(key, value) }
}

/// Returns a request that deletes a key or, if the end is not empty, the keys of a half-open range.
#[must_use]
pub fn delete(key: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: bytes(key), range_end: bytes(end), ..Default::default() }
}

/// Returns an operation of a transaction.
#[must_use]
pub fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

/// Returns a put within a transaction.
#[must_use]
pub fn put_op(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> pb::RequestOp {
    op(Request::RequestPut(put(key, value)))
}

/// Encodes a put nested in this number of transactions. The bytes are built by hand because the time that the library
/// takes is quadratic in the nesting depth.
#[must_use]
pub fn deep_put(key: impl AsRef<[u8]>, depth: usize) -> Vec<u8> {
    let field = |tag: u32, value: &[u8]| {
        let mut bytes = Vec::with_capacity(value.len() + 5);
        encode_key(tag, WireType::LengthDelimited, &mut bytes);
        encode_varint(value.len() as u64, &mut bytes);
        bytes.extend_from_slice(value);
        bytes
    };
    let mut operation = put_op(key, "v").encode_to_vec();
    for _ in 1..depth {
        operation = field(4, &field(2, &operation));
    }
    field(2, &operation)
}

/// Returns a read within a transaction.
#[must_use]
pub fn get_op(name: impl AsRef<[u8]>) -> pb::RequestOp {
    op(Request::RequestRange(key(name)))
}

/// Returns a deletion as an operation of a transaction.
#[must_use]
pub fn write_op(request: pb::DeleteRangeRequest) -> pb::RequestOp {
    op(Request::RequestDeleteRange(request))
}

/// Returns a transaction without conditions.
#[must_use]
pub fn txn(success: Vec<pb::RequestOp>) -> pb::TxnRequest {
    pb::TxnRequest { success, ..Default::default() }
}

/// Returns a transaction with conditions.
#[must_use]
pub fn txn_when(
    compare: Vec<pb::Compare>,
    success: Vec<pb::RequestOp>,
    failure: Vec<pb::RequestOp>,
) -> pb::TxnRequest {
    pb::TxnRequest { compare, success, failure }
}

/// Returns a condition on one key.
#[must_use]
pub fn compare(key: impl AsRef<[u8]>, result: CompareResult, operand: TargetUnion) -> pb::Compare {
    let target = match operand {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    pb::Compare {
        result: result.into(),
        target: target.into(),
        key: bytes(key),
        range_end: Bytes::new(),
        target_union: Some(operand),
    }
}

/// Returns a request that watches one key.
#[must_use]
pub fn watch_key(key: impl AsRef<[u8]>) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest { key: bytes(key), ..Default::default() }
}

/// Returns a request that watches the keys with a prefix.
#[must_use]
pub fn watch_prefix(start: impl AsRef<[u8]>) -> pb::WatchCreateRequest {
    let range_end = bytes(prefix_end(start.as_ref()));
    pb::WatchCreateRequest { key: bytes(start), range_end, ..Default::default() }
}
