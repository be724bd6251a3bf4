//! The payload of membership entries: `raftpb.ConfChange` and `raftpb.ConfChangeV2` in protobuf.
//!
//! ```text
//! ConfChange     1 id (varint)  2 type (varint)  3 node_id (varint)  4 context (bytes)
//! ConfChangeV2   1 transition (varint)  2 changes* (ConfChangeSingle)  3 context (bytes)
//! Single         1 type (varint)  2 node_id (varint)
//! ```
//!
//! An absent field is zero. Writing is as etcd 3.7 does it: type and node id of a change always,
//! everything else only when set; an empty `ConfChangeV2` is no bytes at all. Reading skips
//! unknown fields and never panics: the bytes come from other members.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::{ConfChange, ConfChangeKind, ConfChangeStep, ConfChangeV2, Transition};

/// Why the payload of a membership entry cannot be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("membership change: bytes end inside a field")]
    Truncated,
    /// A varint has more than 64 bits.
    #[error("membership change: varint overflow")]
    VarintOverflow,
    /// A field has a type it cannot have.
    #[error("membership change: field {field} has wire type {wire_type}")]
    WireType {
        /// The field's number.
        field: u64,
        /// The type found.
        wire_type: u8,
    },
    /// A number names no kind of change.
    #[error("membership change: unknown kind {0}")]
    UnknownKind(u64),
    /// A number names no transition.
    #[error("membership change: unknown transition {0}")]
    UnknownTransition(u64),
}

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LENGTH: u8 = 2;
const FIXED32: u8 = 5;

/// Writes a [`ConfChange`].
#[must_use]
pub fn encode_v1(change: &ConfChange) -> Bytes {
    let mut out = BytesMut::with_capacity(32 + change.context.len());
    if change.id != 0 {
        put_varint_field(&mut out, 1, change.id);
    }
    put_varint_field(&mut out, 2, change.kind as u64);
    put_varint_field(&mut out, 3, change.node_id);
    if !change.context.is_empty() {
        put_bytes_field(&mut out, 4, &change.context);
    }
    out.freeze()
}

/// Writes a [`ConfChangeV2`].
#[must_use]
pub fn encode_v2(change: &ConfChangeV2) -> Bytes {
    let mut out = BytesMut::new();
    if change.transition != Transition::Auto {
        put_varint_field(&mut out, 1, change.transition as u64);
    }
    for step in &change.changes {
        let mut single = BytesMut::with_capacity(16);
        put_varint_field(&mut single, 1, step.kind as u64);
        put_varint_field(&mut single, 2, step.node_id);
        put_bytes_field(&mut out, 2, &single);
    }
    if !change.context.is_empty() {
        put_bytes_field(&mut out, 3, &change.context);
    }
    out.freeze()
}

/// Reads a [`ConfChange`].
pub fn decode_v1(data: &Bytes) -> Result<ConfChange, DecodeError> {
    let mut change = ConfChange::default();
    let mut fields = Fields(data);
    while let Some(field) = fields.next_field()? {
        match field.number {
            1 => change.id = field.varint()?,
            2 => change.kind = kind(field.varint()?)?,
            3 => change.node_id = field.varint()?,
            4 => change.context = data.slice_ref(field.bytes()?),
            _ => {}
        }
    }
    Ok(change)
}

/// Reads a [`ConfChangeV2`].
pub fn decode_v2(data: &Bytes) -> Result<ConfChangeV2, DecodeError> {
    let mut change = ConfChangeV2::default();
    let mut fields = Fields(data);
    while let Some(field) = fields.next_field()? {
        match field.number {
            1 => {
                let number = field.varint()?;
                change.transition =
                    Transition::from_wire(number).ok_or(DecodeError::UnknownTransition(number))?;
            }
            2 => change.changes.push(decode_step(field.bytes()?)?),
            3 => change.context = data.slice_ref(field.bytes()?),
            _ => {}
        }
    }
    Ok(change)
}

fn decode_step(data: &[u8]) -> Result<ConfChangeStep, DecodeError> {
    let mut step = ConfChangeStep::default();
    let mut fields = Fields(data);
    while let Some(field) = fields.next_field()? {
        match field.number {
            1 => step.kind = kind(field.varint()?)?,
            2 => step.node_id = field.varint()?,
            _ => {}
        }
    }
    Ok(step)
}

fn kind(number: u64) -> Result<ConfChangeKind, DecodeError> {
    ConfChangeKind::from_wire(number).ok_or(DecodeError::UnknownKind(number))
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.put_u8(value.to_le_bytes()[0]);
}

fn put_varint_field(out: &mut BytesMut, number: u64, value: u64) {
    put_varint(out, number << 3 | u64::from(VARINT));
    put_varint(out, value);
}

fn put_bytes_field(out: &mut BytesMut, number: u64, bytes: &[u8]) {
    put_varint(out, number << 3 | u64::from(LENGTH));
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// The fields not yet read.
struct Fields<'a>(&'a [u8]);

/// One field: its number and what it holds.
struct Field<'a> {
    number: u64,
    wire_type: u8,
    varint: u64,
    bytes: &'a [u8],
}

impl<'a> Field<'a> {
    fn varint(&self) -> Result<u64, DecodeError> {
        self.expect(VARINT).map(|()| self.varint)
    }

    fn bytes(&self) -> Result<&'a [u8], DecodeError> {
        self.expect(LENGTH).map(|()| self.bytes)
    }

    fn expect(&self, wire_type: u8) -> Result<(), DecodeError> {
        if self.wire_type == wire_type {
            return Ok(());
        }
        Err(DecodeError::WireType { field: self.number, wire_type: self.wire_type })
    }
}

impl<'a> Fields<'a> {
    fn next_field(&mut self) -> Result<Option<Field<'a>>, DecodeError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.take_varint()?;
        let number = tag >> 3;
        let wire_type = tag.to_le_bytes()[0] & 7;
        let mut field = Field { number, wire_type, varint: 0, bytes: &[] };
        match wire_type {
            VARINT => field.varint = self.take_varint()?,
            LENGTH => {
                let length = self.take_varint()?;
                field.bytes = self.take(length)?;
            }
            FIXED64 => field.bytes = self.take(8)?,
            FIXED32 => field.bytes = self.take(4)?,
            _ => return Err(DecodeError::WireType { field: number, wire_type }),
        }
        Ok(Some(field))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(length).map_err(|_| DecodeError::Truncated)?;
        let (head, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    fn take_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DecodeError::Truncated)?;
            self.0 = rest;
            if shift == 63 && *byte > 1 {
                return Err(DecodeError::VarintOverflow);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::VarintOverflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_those_of_etcd() {
        let add = ConfChange { node_id: 1, context: "ctx".into(), ..ConfChange::default() };
        assert_eq!(encode_v1(&add).as_ref(), b"\x10\x00\x18\x01\x22\x03ctx");
        let remove = ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 300, ..add.clone() };
        let remove = ConfChange { id: 7, context: Bytes::new(), ..remove };
        assert_eq!(encode_v1(&remove).as_ref(), b"\x08\x07\x10\x01\x18\xac\x02");
        // Older members write every scalar.
        let older = Bytes::from_static(b"\x08\x00\x10\x00\x18\x01\x22\x03ctx");
        assert_eq!(decode_v1(&older), Ok(add));
        assert!(encode_v2(&ConfChangeV2::default()).is_empty());
        assert_eq!(decode_v2(&Bytes::new()), Ok(ConfChangeV2::default()));
    }

    #[test]
    fn unreadable_bytes_are_named() {
        let v1 = |bytes: &'static [u8]| decode_v1(&Bytes::from_static(bytes)).unwrap_err();
        assert_eq!(v1(b"\x10"), DecodeError::Truncated);
        assert_eq!(v1(b"\x10\x04"), DecodeError::UnknownKind(4));
        assert_eq!(v1(b"\x22\x7fabc"), DecodeError::Truncated);
        assert_eq!(v1(b"\x20\x01"), DecodeError::WireType { field: 4, wire_type: VARINT });
        assert_eq!(v1(b"\x0b"), DecodeError::WireType { field: 1, wire_type: 3 });
        assert_eq!(v1(&[0xff; 11]), DecodeError::VarintOverflow);
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
        fn v1_survives_the_wire(
            id in any::<u64>(), kind in any_kind(), node_id in any::<u64>(), context in any_context()
        ) {
            let change = ConfChange { id, kind, node_id, context };
            prop_assert_eq!(decode_v1(&encode_v1(&change)), Ok(change));
        }

        #[test]
        fn v2_survives_the_wire(
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
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let bytes = Bytes::from(bytes);
            // Reaching the end without a panic is the property.
            prop_assert!(decode_v1(&bytes).is_ok() || decode_v1(&bytes).is_err());
            prop_assert!(decode_v2(&bytes).is_ok() || decode_v2(&bytes).is_err());
        }
    }
}
