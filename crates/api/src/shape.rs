//! The wire types of all message fields, and the decoding of messages with wrong wire types.
//!
//! A field with a wrong wire type counts as unknown and is skipped. The official protobuf library behaves this way, and
//! etcd's clients may rely on it, but the generated decoder would refuse the whole message. The generated decoder is
//! tried first, because almost every message is valid. If it fails, the message is copied without such fields, at any
//! nesting level, and decoded again.
//!
//! # Bound
//!
//! The copy is made in one pass and is at most three times as long as the message.

use std::borrow::Cow;

use bytes::Bytes;
use prost::{DecodeError, Message, Name};
use quorate_protobuf::{Fields, Value, WireType, begin_message, put_bytes};

/// The nesting depth that the decoder supports.
const DEPTH_MAX: usize = 100;

#[derive(Debug)]
struct Shape {
    name: &'static str,
    fields: &'static [Field],
}

#[derive(Debug)]
struct Field {
    number: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Number(WireType),
    /// Single numbers or a packed list.
    Numbers(WireType),
    Bytes,
    Text,
    /// The message at this position in [`SHAPES`].
    Message(usize),
}

#[rustfmt::skip]
#[path = "generated/shapes.rs"]
mod shapes;

use shapes::SHAPES;

/// Decodes a message and skips unknown fields.
pub fn decode<M: Message + Name + Default>(encoded: Bytes) -> Result<M, DecodeError> {
    M::decode(encoded.clone()).or_else(|error| match without_mistyped(&M::full_name(), &encoded) {
        Some(known) => M::decode(Bytes::from(known)),
        None => Err(error),
    })
}

/// Copies the fields with the right wire types. Returns `None` if the bytes are not a message.
#[cold]
fn without_mistyped(name: &str, encoded: &[u8]) -> Option<Vec<u8>> {
    let shape = SHAPES.iter().find(|shape| shape.name == name)?;
    let mut known = Vec::with_capacity(encoded.len());
    copy_known(shape, encoded, &mut known, DEPTH_MAX)?;
    Some(known)
}

fn copy_known(shape: &Shape, message: &[u8], known: &mut Vec<u8>, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let mut fields = Fields::new(message);
    loop {
        let from = fields.rest();
        let Some(field) = fields.next() else { return Some(()) };
        let (number, value) = field.ok()?;
        let whole = &from[..from.len() - fields.rest().len()];
        let Some(field) = shape.fields.iter().find(|field| field.number == number) else {
            continue;
        };
        match (&field.kind, value) {
            (Kind::Message(position), Value::Bytes(inner)) => {
                let begun = begin_message(number, known);
                copy_known(&SHAPES[*position], inner, known, depth)?;
                begun.end(known)?;
            }
            (Kind::Bytes | Kind::Text | Kind::Numbers(_), Value::Bytes(_)) => {
                known.extend_from_slice(whole);
            }
            (Kind::Number(expected) | Kind::Numbers(expected), value)
                if value.wire_type() == *expected =>
            {
                known.extend_from_slice(whole);
            }
            (
                Kind::Number(_) | Kind::Numbers(_) | Kind::Bytes | Kind::Text | Kind::Message(_),
                _,
            ) => {}
        }
    }
}

/// Copies a message and replaces the content of its text fields. All other fields remain as they are, even if they are
/// unknown or have wrong wire types. Returns `None` if the bytes are not a message.
#[cold]
pub(crate) fn map_text(
    name: &str,
    encoded: &[u8],
    map: fn(&[u8]) -> Cow<'_, [u8]>,
) -> Option<Vec<u8>> {
    let shape = SHAPES.iter().find(|shape| shape.name == name)?;
    let mut mapped = Vec::with_capacity(encoded.len());
    copy_mapped(shape, encoded, &mut mapped, map, DEPTH_MAX)?;
    Some(mapped)
}

fn copy_mapped(
    shape: &Shape,
    message: &[u8],
    mapped: &mut Vec<u8>,
    map: fn(&[u8]) -> Cow<'_, [u8]>,
    depth: usize,
) -> Option<()> {
    let Some(depth) = depth.checked_sub(1) else {
        // Only transactions are nested this deeply, and they contain no text.
        mapped.extend_from_slice(message);
        return Some(());
    };
    let mut fields = Fields::new(message);
    loop {
        let from = fields.rest();
        let Some(field) = fields.next() else { return Some(()) };
        let (number, value) = field.ok()?;
        let known = shape.fields.iter().find(|field| field.number == number);
        match (known.map(|field| &field.kind), value) {
            (Some(Kind::Message(position)), Value::Bytes(inner)) => {
                let mut copy = Vec::with_capacity(inner.len());
                copy_mapped(&SHAPES[*position], inner, &mut copy, map, depth)?;
                put_bytes(number, &copy, mapped);
            }
            (Some(Kind::Text), Value::Bytes(text)) => put_bytes(number, &map(text), mapped),
            _ => mapped.extend_from_slice(&from[..from.len() - fields.rest().len()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::compare::TargetUnion;
    use crate::etcdserverpb::{
        PutRequest, RangeRequest, TxnRequest, WatchCreateRequest, WatchRequest,
        watch_request::RequestUnion,
    };

    fn decoded<M: Message + Name + Default>(encoded: &[u8]) -> M {
        let encoded = Bytes::copy_from_slice(encoded);
        assert!(M::decode(encoded.clone()).is_err(), "prost refuses the message");
        decode(encoded).unwrap()
    }

    #[test]
    fn a_field_with_the_wrong_wire_type_is_skipped() {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
        let good = put.encode_to_vec();
        // A number, a double and a group instead of bytes; bytes and a float instead of a number.
        for odd in [
            &b"\x08\x01"[..],
            b"\x09\x01\x02\x03\x04\x05\x06\x07\x08",
            b"\x0b\x08\x01\x0c",
            b"\x1a\x01x",
            b"\x1d\x01\x02\x03\x04",
        ] {
            assert_eq!(decoded::<PutRequest>(&[odd, &good].concat()), put, "{odd:x?}");
            assert_eq!(decoded::<PutRequest>(&[&good, odd].concat()), put, "{odd:x?}");
        }
    }

    #[test]
    fn nested_fields_with_the_wrong_wire_type_are_skipped() {
        // A comparison with a float instead of its key, then a put with a group instead of its value.
        let compare = b"\x0a\x08\x1a\x01k\x1d\x01\x02\x03\x04";
        let put = b"\x12\x0b\x12\x09\x0a\x01k\x13\x08\x01\x14\x28\x01";
        let bytes = [&compare[..], put].concat();
        let txn = decoded::<TxnRequest>(&bytes);
        assert_eq!(txn.compare[0].key, "k");
        assert_eq!(txn.success.len(), 1);
        // In a oneof, a variant with the wrong type does not replace the other variant.
        let txn = decoded::<TxnRequest>(b"\x0a\x08\x1a\x01k\x20\x05\x2a\x01x");
        assert_eq!(txn.compare[0].target_union, Some(TargetUnion::Version(5)));
    }

    #[test]
    fn packed_and_unpacked_number_lists_are_decoded() {
        let filters = |encoded: &[u8]| {
            let watch = decoded::<WatchRequest>(encoded);
            let Some(RequestUnion::CreateRequest(create)) = watch.request_union else {
                panic!("{watch:?}");
            };
            create
        };
        let expected =
            WatchCreateRequest { key: "k".into(), filters: vec![0, 1], ..Default::default() };
        // The list consists of single and packed numbers. The double is not part of the list.
        assert_eq!(filters(b"\x0a\x09\x0a\x01k\x28\x00\x28\x01\x10\x01"), expected);
        assert_eq!(filters(b"\x0a\x09\x0a\x01k\x2a\x02\x00\x01\x10\x01"), expected);
        let odd = b"\x0a\x10\x0a\x01k\x2a\x02\x00\x01\x29\x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!(filters(odd), expected);
    }

    #[test]
    fn malformed_messages_are_refused() {
        for bad in [
            &b"\x0a\x7fabc"[..],
            b"\x08\x01\x00\x01",
            b"\x08\x01\x18\xff",
            b"\x08\x01\x0b\x14",
            b"\x08\x01\x0e",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ] {
            assert!(decode::<PutRequest>(Bytes::copy_from_slice(bad)).is_err(), "{bad:x?}");
        }
    }

    #[test]
    fn the_depth_limit_applies_after_a_mistyped_field() {
        let mut txn = b"\x08\x01".to_vec();
        for _ in 0..1000 {
            let mut operation = Vec::new();
            prost::encoding::bytes::encode(4, &txn, &mut operation);
            txn.clear();
            prost::encoding::bytes::encode(2, &operation, &mut txn);
        }
        assert!(decode::<TxnRequest>(txn.into()).is_err());
    }

    #[test]
    fn the_shape_table_contains_the_service_messages() {
        for name in [PutRequest::full_name(), RangeRequest::full_name(), TxnRequest::full_name()] {
            assert!(SHAPES.iter().any(|shape| shape.name == name), "{name}");
        }
    }
}
