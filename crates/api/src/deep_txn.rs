//! Transactions that are nested deeper than the generated decoder follows.
//!
//! That one gives up at a depth that suits any stack, about fifty transactions inside each other, and it
//! has to: a message costs its sender eight bytes a level. etcd's decoder follows ten thousand messages inside
//! each other, and whatever `--max-txn-ops` lets through is in the log. So what the generated decoder
//! has given up on is read here, as deep as etcd reads it.
//!
//! Everything that is done to such a transaction goes down as deep (checks, encoding, carrying it out, even
//! dropping it), so a thread that may meet one needs a stack of [`STACK_BYTES`].

use bytes::{Buf, Bytes};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RequestHeader, RequestOp,
    TxnRequest, request_op::Request,
};

/// Transactions inside each other. In the log each is two messages, and the entry around them and the innermost
/// operation are one more each: ten thousand.
pub const DEPTH_MAX: usize = 4_999;

/// Stack of a thread that handles requests. It takes memory only as far as it was ever used.
pub const STACK_BYTES: usize = if cfg!(debug_assertions) { 128 << 20 } else { 32 << 20 };

/// Reads a transaction; `None` if the bytes are none, or too deep.
#[must_use]
pub fn decode(txn: Bytes) -> Option<TxnRequest> {
    let mut message = TxnRequest::default();
    merge_txn(&mut message, txn, DEPTH_MAX)?;
    Some(message)
}

/// Reads a log entry that holds a transaction; `None` if it is something else, or not to be read.
#[must_use]
pub fn decode_entry(data: Bytes) -> Option<InternalRaftRequest> {
    let mut request = InternalRaftRequest::default();
    let mut rest = data;
    while let Some(field) = Field::next(&mut rest)? {
        match field {
            Field { tag: 1, value: Value::Number(id) } => request.id = id,
            Field { tag: 6, value: Value::Bytes(txn) } => {
                merge_txn(request.txn.get_or_insert_default(), txn, DEPTH_MAX)?;
            }
            Field { tag: 100, value: Value::Bytes(header) } => {
                request.header.get_or_insert_with(RequestHeader::default).merge(header).ok()?;
            }
            Field { .. } => return None,
        }
    }
    request.txn.is_some().then_some(request)
}

fn merge_txn(txn: &mut TxnRequest, mut rest: Bytes, depth_left: usize) -> Option<()> {
    let depth_left = depth_left.checked_sub(1)?;
    while let Some(field) = Field::next(&mut rest)? {
        match field {
            Field { tag: 1, value: Value::Bytes(compare) } => {
                txn.compare.push(Message::decode(compare).ok()?);
            }
            Field { tag: 2, value: Value::Bytes(operation) } => {
                txn.success.push(decode_operation(operation, depth_left)?);
            }
            Field { tag: 3, value: Value::Bytes(operation) } => {
                txn.failure.push(decode_operation(operation, depth_left)?);
            }
            Field { tag: 1..=3, .. } => return None,
            Field { .. } => {}
        }
    }
    Some(())
}

/// Of several variants the last one counts; the same one again is merged into the one before.
fn decode_operation(mut rest: Bytes, depth_left: usize) -> Option<RequestOp> {
    let mut operation = RequestOp::default();
    while let Some(field) = Field::next(&mut rest)? {
        if !(1..=4).contains(&field.tag) {
            continue;
        }
        let Value::Bytes(bytes) = field.value else { return None };
        let before = operation.request.take();
        operation.request = Some(match (field.tag, before) {
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
                merge_txn(&mut txn, bytes, depth_left)?;
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

/// A field as it stands in the encoding.
struct Field {
    tag: u32,
    value: Value,
}

enum Value {
    Number(u64),
    Bytes(Bytes),
    Other,
}

impl Field {
    /// Takes the next field. `Some(None)` at the end, `None` where the bytes are no field.
    fn next(rest: &mut Bytes) -> Option<Option<Self>> {
        if rest.is_empty() {
            return Some(None);
        }
        let (tag, wire_type) = decode_key(rest).ok()?;
        let value = match wire_type {
            WireType::Varint => Value::Number(decode_varint(rest).ok()?),
            WireType::LengthDelimited => {
                let len = usize::try_from(decode_varint(rest).ok()?).ok()?;
                Value::Bytes((len <= rest.remaining()).then(|| rest.split_to(len))?)
            }
            WireType::StartGroup
            | WireType::EndGroup
            | WireType::ThirtyTwoBit
            | WireType::SixtyFourBit => {
                skip_field(wire_type, tag, rest, DecodeContext::default()).ok()?;
                Value::Other
            }
        };
        Some(Some(Self { tag, value }))
    }
}

#[cfg(test)]
mod tests {
    use prost::encoding::encode_varint;

    use super::*;

    fn field(tag: u32, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_varint(u64::from(tag << 3 | 2), &mut bytes);
        encode_varint(value.len() as u64, &mut bytes);
        bytes.extend_from_slice(value);
        bytes
    }

    fn put(key: &'static [u8]) -> Request {
        Request::RequestPut(PutRequest { key: key.into(), ..PutRequest::default() })
    }

    /// A put inside `depth` transactions.
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
    fn as_deep_as_etcd_and_no_deeper() {
        on_a_stack_of(STACK_BYTES, || {
            for depth in [1, 2, 48, 60, 200, DEPTH_MAX] {
                let read = decode_entry(entry(depth)).unwrap();
                assert_eq!(read.header.as_ref().unwrap().id, 9);
                assert_eq!(depth_of(read.txn.unwrap()), depth);
                assert_eq!(depth_of(decode(nested(depth).into()).unwrap()), depth);
            }
            assert_eq!(decode_entry(entry(DEPTH_MAX + 1)), None);
            assert_eq!(decode(nested(3 * DEPTH_MAX).into()), None);
        });
    }

    #[test]
    fn whatever_is_done_to_the_deepest_fits_the_stack() {
        // A part of the depth on that part of the stack: the generated code takes the square of the depth.
        const PART: usize = 10;
        on_a_stack_of(STACK_BYTES / PART, || {
            let data = entry(DEPTH_MAX.div_ceil(PART));
            let read = decode_entry(data.clone()).unwrap();
            assert_eq!(read.encode_to_vec().len(), data.len());
            assert_eq!(read.clone(), read);
        });
    }

    #[test]
    fn shallow_ones_read_the_same_both_ways() {
        let data = entry(7);
        let usual = InternalRaftRequest::decode(data.clone()).unwrap();
        assert_eq!(decode_entry(data.clone()), Some(usual));
        for len in 0..data.len() {
            let cut = data.slice(..len);
            let deep = decode_entry(cut.clone());
            let usual = InternalRaftRequest::decode(cut).ok().filter(|usual| usual.txn.is_some());
            assert_eq!(deep, usual, "{len}");
        }
    }

    #[test]
    fn fields_that_come_twice_are_merged_as_by_the_generated_decoder() {
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
            assert_eq!(decode(data.clone()), TxnRequest::decode(data).ok());
        }
    }
}
