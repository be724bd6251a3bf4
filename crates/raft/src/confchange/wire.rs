//! The payload of membership entries: `raftpb.ConfChange` and `raftpb.ConfChangeV2` in protobuf.
//!
//! ```text
//! ConfChange     1 id (varint)  2 type (varint)  3 node_id (varint)  4 context (bytes)
//! ConfChangeV2   1 transition (varint)  2 changes* (ConfChangeSingle)  3 context (bytes)
//! Single         1 type (varint)  2 node_id (varint)
//! ```
//!
//! An absent field is zero. The encoder follows etcd 3.7: type and node id of a change are always
//! written, other fields only if set; an empty `ConfChangeV2` has no bytes. The decoder skips
//! unknown fields and never panics, because the bytes come from other members.

use bytes::{Bytes, BytesMut};
use quorate_protobuf::{Fields, Malformed, Value, put_bytes, put_number};
use thiserror::Error;

use super::{ConfChange, ConfChangeKind, ConfChangeStep, ConfChangeV2, Transition};

/// The reason why the payload of a membership entry cannot be decoded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are not a valid message.
    #[error("membership change: {0}")]
    Malformed(#[from] Malformed),
    /// A field has an invalid wire type.
    #[error("membership change: field {field} has the wrong wire type {wire_type}")]
    WireType {
        /// The field's number.
        field: u32,
        /// The wire type of the field.
        wire_type: u8,
    },
    /// The change has an unknown kind, with this number.
    #[error("membership change: unknown kind {0}")]
    UnknownKind(u64),
    /// The change has an unknown transition, with this number.
    #[error("membership change: unknown transition {0}")]
    UnknownTransition(u64),
}

/// Encodes a [`ConfChange`].
#[must_use]
pub fn encode_v1(change: &ConfChange) -> Bytes {
    let mut out = BytesMut::with_capacity(32 + change.context.len());
    if change.id != 0 {
        put_number(1, change.id, &mut out);
    }
    put_number(2, change.kind as u64, &mut out);
    put_number(3, change.node_id, &mut out);
    if !change.context.is_empty() {
        put_bytes(4, &change.context, &mut out);
    }
    out.freeze()
}

/// Encodes a [`ConfChangeV2`].
#[must_use]
pub fn encode_v2(change: &ConfChangeV2) -> Bytes {
    let mut out = BytesMut::new();
    if change.transition != Transition::Auto {
        put_number(1, change.transition as u64, &mut out);
    }
    for step in &change.changes {
        let mut single = BytesMut::with_capacity(16);
        put_number(1, step.kind as u64, &mut single);
        put_number(2, step.node_id, &mut single);
        put_bytes(2, &single, &mut out);
    }
    if !change.context.is_empty() {
        put_bytes(3, &change.context, &mut out);
    }
    out.freeze()
}

/// Decodes a [`ConfChange`].
pub fn decode_v1(data: &Bytes) -> Result<ConfChange, DecodeError> {
    let mut change = ConfChange::default();
    for field in Fields::new(data) {
        let (field, value) = field?;
        match field {
            1 => change.id = number(field, value)?,
            2 => change.kind = kind(number(field, value)?)?,
            3 => change.node_id = number(field, value)?,
            4 => change.context = data.slice_ref(bytes(field, value)?),
            _ => {}
        }
    }
    Ok(change)
}

/// Decodes a [`ConfChangeV2`].
pub fn decode_v2(data: &Bytes) -> Result<ConfChangeV2, DecodeError> {
    let mut change = ConfChangeV2::default();
    for field in Fields::new(data) {
        let (field, value) = field?;
        match field {
            1 => {
                change.transition = transition(number(field, value)?)?;
            }
            2 => change.changes.push(decode_step(bytes(field, value)?)?),
            3 => change.context = data.slice_ref(bytes(field, value)?),
            _ => {}
        }
    }
    Ok(change)
}

fn decode_step(data: &[u8]) -> Result<ConfChangeStep, DecodeError> {
    let mut step = ConfChangeStep::default();
    for field in Fields::new(data) {
        let (field, value) = field?;
        match field {
            1 => step.kind = kind(number(field, value)?)?,
            2 => step.node_id = number(field, value)?,
            _ => {}
        }
    }
    Ok(step)
}

fn transition(number: u64) -> Result<Transition, DecodeError> {
    Transition::from_wire(number).ok_or(DecodeError::UnknownTransition(number))
}

fn kind(number: u64) -> Result<ConfChangeKind, DecodeError> {
    ConfChangeKind::from_wire(number).ok_or(DecodeError::UnknownKind(number))
}

fn number(field: u32, value: Value<'_>) -> Result<u64, DecodeError> {
    match value {
        Value::Varint(number) => Ok(number),
        Value::Bytes(_) | Value::Fixed64 | Value::Fixed32 | Value::Group => {
            Err(mistyped(field, value))
        }
    }
}

fn bytes(field: u32, value: Value<'_>) -> Result<&[u8], DecodeError> {
    match value {
        Value::Bytes(bytes) => Ok(bytes),
        Value::Varint(_) | Value::Fixed64 | Value::Fixed32 | Value::Group => {
            Err(mistyped(field, value))
        }
    }
}

fn mistyped(field: u32, value: Value<'_>) -> DecodeError {
    DecodeError::WireType { field, wire_type: value.wire_type() as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn conf_changes_are_encoded_as_in_etcd() {
        let add = ConfChange { node_id: 1, context: "ctx".into(), ..ConfChange::default() };
        assert_eq!(encode_v1(&add).as_ref(), b"\x10\x00\x18\x01\x22\x03ctx");
        let remove = ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 300, ..add.clone() };
        let remove = ConfChange { id: 7, context: Bytes::new(), ..remove };
        assert_eq!(encode_v1(&remove).as_ref(), b"\x08\x07\x10\x01\x18\xac\x02");
        // Older etcd versions write every scalar field, even if it is zero.
        let older = Bytes::from_static(b"\x08\x00\x10\x00\x18\x01\x22\x03ctx");
        assert_eq!(decode_v1(&older), Ok(add));
        assert!(encode_v2(&ConfChangeV2::default()).is_empty());
        assert_eq!(decode_v2(&Bytes::new()), Ok(ConfChangeV2::default()));
    }

    #[test]
    fn malformed_conf_changes_return_specific_errors() {
        let v1 = |bytes: &'static [u8]| decode_v1(&Bytes::from_static(bytes)).unwrap_err();
        let malformed = DecodeError::Malformed;
        assert_eq!(v1(b"\x10"), malformed(Malformed::Truncated));
        assert_eq!(v1(b"\x10\x04"), DecodeError::UnknownKind(4));
        assert_eq!(v1(b"\x22\x7fabc"), malformed(Malformed::Truncated));
        assert_eq!(v1(b"\x20\x01"), DecodeError::WireType { field: 4, wire_type: 0 });
        assert_eq!(v1(b"\x0b\x0c"), DecodeError::WireType { field: 1, wire_type: 3 });
        assert_eq!(v1(&[0xff; 11]), malformed(Malformed::VarintOverflow));
        let v2 = decode_v2(&Bytes::from_static(b"\x08\x03")).unwrap_err();
        assert_eq!(v2, DecodeError::UnknownTransition(3));
    }

    fn any_kind() -> impl Strategy<Value = ConfChangeKind> {
        (0..4u64).prop_map(|n| ConfChangeKind::from_wire(n).unwrap())
    }

    fn any_context() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    proptest! {
        #[test]
        fn v1_conf_change_round_trips(
            id in any::<u64>(), kind in any_kind(), node_id in any::<u64>(), context in any_context()
        ) {
            let change = ConfChange { id, kind, node_id, context };
            prop_assert_eq!(decode_v1(&encode_v1(&change)), Ok(change));
        }

        #[test]
        fn v2_conf_change_round_trips(
            transition in 0..3u64,
            steps in proptest::collection::vec((any_kind(), any::<u64>()), 0..4),
            context in any_context(),
        ) {
            let steps = steps.into_iter().map(|(kind, node_id)| ConfChangeStep { kind, node_id });
            let transition = Transition::from_wire(transition).unwrap();
            let change = ConfChangeV2 { transition, changes: steps.collect(), context };
            prop_assert_eq!(decode_v2(&encode_v2(&change)), Ok(change));
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let bytes = Bytes::from(bytes);
            // The tested property is that decoding does not panic.
            prop_assert!(decode_v1(&bytes).is_ok() || decode_v1(&bytes).is_err());
            prop_assert!(decode_v2(&bytes).is_ok() || decode_v2(&bytes).is_err());
        }
    }
}
