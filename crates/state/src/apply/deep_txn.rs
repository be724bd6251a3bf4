//! Reading transactions that are nested deeper than the generated decoder follows.
//!
//! The decoder gives up at a depth that protects the stack, about fifty transactions inside each other.
//! A member of another make may have let a deeper one into the log, up to its limit of operations, and
//! what is in the log must be applied. So such an entry is read again here, level by level, to a depth
//! that is still harmless.

use bytes::{Buf, Bytes};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use quorate_api::etcdserverpb::{
    InternalRaftRequest, RequestHeader, RequestOp, TxnRequest, request_op::Request,
};

/// Transactions inside each other.
const DEPTH_MAX: usize = 200;

/// Reads an entry that holds a transaction; `None` if it is something else, or not to be read.
pub(super) fn decode(data: Bytes) -> Option<InternalRaftRequest> {
    let mut request = InternalRaftRequest::default();
    let mut rest = data;
    while let Some(field) = Field::next(&mut rest)? {
        match field {
            Field { tag: 1, value: Value::Number(id) } => request.id = id,
            Field { tag: 6, value: Value::Bytes(txn) } => {
                request.txn = Some(decode_txn(txn, DEPTH_MAX)?);
            }
            Field { tag: 100, value: Value::Bytes(header) } => {
                request.header = Some(RequestHeader::decode(header).ok()?);
            }
            Field { .. } => return None,
        }
    }
    request.txn.is_some().then_some(request)
}

fn decode_txn(mut rest: Bytes, depth_left: usize) -> Option<TxnRequest> {
    let depth_left = depth_left.checked_sub(1)?;
    let mut txn = TxnRequest::default();
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
            Field { .. } => {}
        }
    }
    Some(txn)
}

fn decode_operation(operation: Bytes, depth_left: usize) -> Option<RequestOp> {
    let mut rest = operation.clone();
    let mut nested = None;
    while let Some(field) = Field::next(&mut rest)? {
        if let Field { tag: 4, value: Value::Bytes(txn) } = field {
            nested = Some(decode_txn(txn, depth_left)?);
        }
    }
    match nested {
        Some(txn) => Some(RequestOp { request: Some(Request::RequestTxn(txn)) }),
        None => RequestOp::decode(operation).ok(),
    }
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
    use quorate_api::etcdserverpb::PutRequest;

    use super::*;
    use crate::apply::{Command, EntryMeta, Request as Proposal, State, StateOptions};

    fn field(tag: u32, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_varint(u64::from(tag << 3 | 2), &mut bytes);
        encode_varint(value.len() as u64, &mut bytes);
        bytes.extend_from_slice(value);
        bytes
    }

    /// An entry with a put inside `depth` transactions.
    fn entry(depth: usize) -> Bytes {
        let put = PutRequest { key: b"k".as_slice().into(), ..PutRequest::default() };
        let put = Request::RequestPut(put);
        let mut operation = RequestOp { request: Some(put) }.encode_to_vec();
        for _ in 1..depth {
            operation = field(4, &field(2, &operation));
        }
        let header = RequestHeader { id: 9, ..RequestHeader::default() };
        [field(100, &header.encode_to_vec()), field(6, &field(2, &operation))].concat().into()
    }

    #[test]
    fn deep_transactions_are_read() {
        for depth in [1, 2, 48, 60, 128, DEPTH_MAX] {
            let proposal = Proposal::decode(entry(depth)).unwrap();
            assert_eq!(proposal.id, 9);
            let Command::Txn(mut txn) = proposal.command else { panic!("a transaction") };
            let mut found = 1;
            while let Some(Request::RequestTxn(inner)) =
                txn.success.pop().and_then(|operation| operation.request)
            {
                txn = inner;
                found += 1;
            }
            assert_eq!(found, depth);
        }
        assert!(Proposal::decode(entry(DEPTH_MAX + 1)).is_err());
    }

    #[test]
    fn the_deepest_is_applied() {
        let mut state = State::new(StateOptions::default());
        let meta = EntryMeta { index: 1, term: 1, reply_wanted: true, ..EntryMeta::default() };
        let proposal = Proposal::decode(entry(DEPTH_MAX)).unwrap();
        assert!(matches!(state.apply(meta, proposal).unwrap().outcome, Some(Ok(_))));
        state.publish();
        assert_eq!(state.readers().view().current_revision(), 2);
    }

    #[test]
    fn shallow_ones_read_the_same_both_ways() {
        let data = entry(7);
        let usual = InternalRaftRequest::decode(data.clone()).unwrap();
        assert_eq!(decode(data.clone()), Some(usual));
        for len in 0..data.len() {
            let cut = data.slice(..len);
            let deep = decode(cut.clone());
            let usual = InternalRaftRequest::decode(cut).ok().filter(|usual| usual.txn.is_some());
            assert_eq!(deep, usual, "{len}");
        }
    }
}
