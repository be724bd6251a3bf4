//! Decodes and encodes transactions that are nested more deeply than the generated code supports.
//!
//! The generated decoder limits the depth to about fifty nested transactions, which fits any stack. A limit is
//! necessary, because each level costs the sender only eight bytes. etcd's decoder allows ten thousand nested messages,
//! and any transaction that `--max-txn-ops` permits may be in the log. Therefore this module decodes the transactions
//! that the generated decoder refuses, up to the same depth as etcd.
//!
//! The generated encoder accepts any depth, but computes the length of a message again at each level above it, which
//! takes quadratic time. [`encode`] takes linear time.
//!
//! All processing of such a transaction (checks, encoding, execution, even dropping it) recurses to the same depth, so
//! every thread that may handle such a transaction needs a stack of [`STACK_BYTES`].

use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};
use quorate_protobuf::{Fields, Value};

use crate::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestHeader, RequestOp,
    TxnRequest, request_op::Request,
};

/// The largest number of nested transactions. In the log, each transaction consists of two messages. The entry and the
/// innermost operation add one message each, so the total is ten thousand messages.
pub const DEPTH_MAX: usize = 4_999;

/// The stack size of threads that handle requests, in bytes. Unused stack occupies no memory.
pub const STACK_BYTES: usize = if cfg!(debug_assertions) { 128 << 20 } else { 32 << 20 };

/// Decodes a transaction. Returns `None` if it is invalid or nested too deeply.
#[must_use]
pub fn decode(txn: &Bytes) -> Option<TxnRequest> {
    let mut message = TxnRequest::default();
    merge_txn(&mut message, txn, DEPTH_MAX)?;
    Some(message)
}

/// Decodes a log entry with a transaction. Returns `None` if the entry contains another request or is invalid.
#[must_use]
pub fn decode_entry(data: &Bytes) -> Option<InternalRaftRequest> {
    let mut request = InternalRaftRequest::default();
    for field in Fields::new(data) {
        match field.ok()? {
            (1, Value::Varint(id)) => request.id = id,
            (6, Value::Bytes(txn)) => {
                let txn = data.slice_ref(txn);
                merge_txn(request.txn.get_or_insert_default(), &txn, DEPTH_MAX)?;
            }
            (100, Value::Bytes(header)) => {
                let header = data.slice_ref(header);
                request.header.get_or_insert_with(RequestHeader::default).merge(header).ok()?;
            }
            _ => return None,
        }
    }
    request.txn.is_some().then_some(request)
}

fn merge_txn(txn: &mut TxnRequest, encoded: &Bytes, depth_left: usize) -> Option<()> {
    let depth_left = depth_left.checked_sub(1)?;
    for field in Fields::new(encoded) {
        match field.ok()? {
            (1, Value::Bytes(compare)) => {
                txn.compare.push(Message::decode(encoded.slice_ref(compare)).ok()?);
            }
            (2, Value::Bytes(operation)) => {
                txn.success.push(decode_operation(&encoded.slice_ref(operation), depth_left)?);
            }
            (3, Value::Bytes(operation)) => {
                txn.failure.push(decode_operation(&encoded.slice_ref(operation), depth_left)?);
            }
            (1..=3, _) => return None,
            _ => {}
        }
    }
    Some(())
}

/// Decodes an operation. If there are several variants, the last variant counts. A repeated variant is merged with its
/// previous value.
fn decode_operation(encoded: &Bytes, depth_left: usize) -> Option<RequestOp> {
    let mut operation = RequestOp::default();
    for field in Fields::new(encoded) {
        let (number, value) = field.ok()?;
        if !(1..=4).contains(&number) {
            continue;
        }
        let Value::Bytes(bytes) = value else { return None };
        let bytes = encoded.slice_ref(bytes);
        let before = operation.request.take();
        operation.request = Some(match (number, before) {
            (1, Some(Request::RequestRange(range))) => Request::RequestRange(merged(range, bytes)?),
            (1, _) => Request::RequestRange(merged(RangeRequest::default(), bytes)?),
            (2, Some(Request::RequestPut(put))) => Request::RequestPut(merged(put, bytes)?),
            (2, _) => Request::RequestPut(merged(PutRequest::default(), bytes)?),
            (3, Some(Request::RequestDeleteRange(delete))) => {
                Request::RequestDeleteRange(merged(delete, bytes)?)
            }
            (3, _) => Request::RequestDeleteRange(merged(DeleteRangeRequest::default(), bytes)?),
            (_, before) => {
                let mut txn = match before {
                    Some(Request::RequestTxn(txn)) => txn,
                    _ => TxnRequest::default(),
                };
                merge_txn(&mut txn, &bytes, depth_left)?;
                Request::RequestTxn(txn)
            }
        });
    }
    Some(operation)
}

fn merged<M: Message>(mut before: M, bytes: Bytes) -> Option<M> {
    before.merge(bytes).ok()?;
    Some(before)
}

/// Encodes a transaction as the generated encoder does.
#[must_use]
pub fn encode(txn: &TxnRequest) -> Vec<u8> {
    let mut lengths = Vec::new();
    let len = measure(txn, &mut lengths);
    let mut encoded = Vec::with_capacity(len);
    put_txn(txn, &mut lengths.into_iter(), &mut encoded);
    encoded
}

/// Returns the length of an encoded transaction. Appends the lengths of the transactions nested in it, in the order in
/// which [`put_txn`] encodes them.
fn measure(txn: &TxnRequest, lengths: &mut Vec<usize>) -> usize {
    let compare = txn.compare.iter().map(|compare| nested_len(compare.encoded_len()));
    let mut len = compare.sum();
    for operation in txn.success.iter().chain(&txn.failure) {
        len += nested_len(match &operation.request {
            Some(Request::RequestTxn(inner)) => {
                let position = lengths.len();
                lengths.push(0);
                lengths[position] = measure(inner, lengths);
                nested_len(lengths[position])
            }
            _ => operation.encoded_len(),
        });
    }
    len
}

/// Returns the length of a nested message with its key, which takes one byte, and its length.
const fn nested_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

fn put_txn(txn: &TxnRequest, lengths: &mut impl Iterator<Item = usize>, encoded: &mut Vec<u8>) {
    let put_head = |field, len: usize, encoded: &mut Vec<u8>| {
        encode_key(field, WireType::LengthDelimited, encoded);
        encode_varint(len as u64, encoded);
    };
    for compare in &txn.compare {
        put_head(1, compare.encoded_len(), encoded);
        compare.encode_raw(encoded);
    }
    for (field, operations) in [(2, &txn.success), (3, &txn.failure)] {
        for operation in operations {
            if let Some(Request::RequestTxn(inner)) = &operation.request {
                let len = lengths.next().expect("every nested transaction was measured");
                put_head(field, nested_len(len), encoded);
                put_head(4, len, encoded);
                put_txn(inner, lengths, encoded);
            } else {
                put_head(field, operation.encoded_len(), encoded);
                operation.encode_raw(encoded);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_protobuf::put_bytes;

    use super::*;
    use crate::etcdserverpb::Compare;

    fn field(tag: u32, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_bytes(tag, value, &mut bytes);
        bytes
    }

    fn put(key: &'static [u8]) -> Request {
        Request::RequestPut(PutRequest { key: key.into(), ..PutRequest::default() })
    }

    /// Returns a put nested in `depth` transactions.
    fn nested(depth: usize) -> Vec<u8> {
        let mut operation = RequestOp { request: Some(put(b"k")) }.encode_to_vec();
        for _ in 1..depth {
            operation = field(4, &field(2, &operation));
        }
        field(2, &operation)
    }

    fn entry(depth: usize) -> Bytes {
        let header = RequestHeader { id: 9, ..RequestHeader::default() };
        [field(100, &header.encode_to_vec()), field(6, &nested(depth))].concat().into()
    }

    fn depth_of(mut txn: TxnRequest) -> usize {
        let mut depth = 1;
        while let Some(Request::RequestTxn(inner)) =
            txn.success.pop().and_then(|operation| operation.request)
        {
            txn = inner;
            depth += 1;
        }
        depth
    }

    fn on_a_stack_of(bytes: usize, check: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().stack_size(bytes);
        thread.spawn(check).unwrap().join().unwrap();
    }

    #[test]
    fn transactions_are_decoded_only_up_to_the_depth_limit() {
        on_a_stack_of(STACK_BYTES, || {
            for depth in [1, 2, 48, 60, 200, DEPTH_MAX] {
                let read = decode_entry(&entry(depth)).unwrap();
                assert_eq!(read.header.as_ref().unwrap().id, 9);
                assert_eq!(depth_of(read.txn.unwrap()), depth);
                assert_eq!(depth_of(decode(&nested(depth).into()).unwrap()), depth);
            }
            assert_eq!(decode_entry(&entry(DEPTH_MAX + 1)), None);
            assert_eq!(decode(&nested(3 * DEPTH_MAX).into()), None);
        });
    }

    #[test]
    fn operations_on_the_deepest_transaction_fit_on_the_stack() {
        // The test uses only a part of the maximum depth and of the stack, because the time that the generated code
        // takes is quadratic in the depth.
        const PART: usize = 10;
        on_a_stack_of(STACK_BYTES / PART, || {
            let data = entry(DEPTH_MAX.div_ceil(PART));
            let read = decode_entry(&data).unwrap();
            assert_eq!(read.encode_to_vec().len(), data.len());
            assert_eq!(read.clone(), read);
        });
    }

    #[test]
    fn transactions_are_encoded_as_by_prost_in_linear_time() {
        on_a_stack_of(STACK_BYTES, || {
            let compare = Compare { key: b"c".as_slice().into(), ..Compare::default() };
            let operation = |request| RequestOp { request };
            let inner = TxnRequest {
                compare: vec![compare.clone(), Compare::default()],
                success: vec![operation(Some(put(b"a"))), operation(None)],
                failure: vec![operation(Some(Request::RequestTxn(TxnRequest::default())))],
            };
            let outer = TxnRequest {
                compare: vec![compare],
                success: vec![
                    operation(Some(Request::RequestTxn(inner.clone()))),
                    operation(Some(put(b"b"))),
                    operation(Some(Request::RequestTxn(inner))),
                ],
                failure: vec![operation(Some(Request::RequestRange(RangeRequest::default())))],
            };
            assert_eq!(encode(&outer), outer.encode_to_vec());
            // With quadratic time, a hundred such transactions would take most of a minute.
            let deep = Bytes::from(nested(DEPTH_MAX));
            let operation = operation(Some(Request::RequestTxn(decode(&deep).unwrap())));
            let wide = TxnRequest { success: vec![operation; 100], ..TxnRequest::default() };
            assert_eq!(encode(&wide).len(), 100 * nested_len(nested_len(deep.len())));
        });
    }

    #[test]
    fn shallow_transactions_equal_those_decoded_by_prost() {
        let data = entry(7);
        let usual = InternalRaftRequest::decode(data.clone()).unwrap();
        assert_eq!(decode_entry(&data), Some(usual));
        for len in 0..data.len() {
            let cut = data.slice(..len);
            let deep = decode_entry(&cut);
            let usual = InternalRaftRequest::decode(cut).ok().filter(|usual| usual.txn.is_some());
            assert_eq!(deep, usual, "{len}");
        }
    }

    #[test]
    fn merged_repeated_fields_equal_those_decoded_by_prost() {
        let range = RangeRequest { limit: 5, ..RangeRequest::default() };
        let range = RequestOp { request: Some(Request::RequestRange(range)) }.encode_to_vec();
        let more = RangeRequest { key: b"r".as_slice().into(), ..RangeRequest::default() };
        let more = RequestOp { request: Some(Request::RequestRange(more)) }.encode_to_vec();
        let put = RequestOp { request: Some(put(b"p")) }.encode_to_vec();
        let txn = |operation: &[u8]| field(4, &field(2, operation));
        for parts in [
            [&range, &more, &field(9, b"unknown")],
            [&range, &put, &more],
            [&txn(&put), &txn(&range), &Vec::new()],
            [&txn(&put), &range, &txn(&more)],
        ] {
            let data = Bytes::from(field(2, &parts.map(Vec::as_slice).concat()));
            assert_eq!(decode(&data), TxnRequest::decode(data).ok());
        }
    }
}
