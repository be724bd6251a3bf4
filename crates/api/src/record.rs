//! A key's record in encoded form.
//!
//! A record is encoded once, when it is written. The same bytes are stored in the backend, hashed, and included in
//! replies without being decoded again. [`KeyValue`] replaces the generated message with that name and decodes
//! individual fields on demand.
//!
//! # Invariants
//!
//! * [`KeyValue::new`] writes the canonical form: fields ordered by number, without zero values. Members of a cluster
//!   compare hashes of these bytes.
//! * Cloning does not copy bytes.
//!
//! # Not here
//!
//! The storage of records (`state::mvcc`).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, bytes as bytes_field, int64};
use quorate_protobuf::{put_number, take_bytes, take_varint, varint_len};

/// `mvccpb.KeyValue` in encoded form.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct KeyValue {
    encoded: Bytes,
}

/// The fields of a record, borrowed from its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fields<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The revision at which the key's generation began.
    pub create_revision: i64,
    /// The revision of the last change.
    pub mod_revision: i64,
    /// The number of changes since the generation began; 1 for the creating put.
    pub version: i64,
    /// The value.
    pub value: &'a [u8],
    /// The lease to which the key is attached; 0 if none.
    pub lease: i64,
}

impl<'a> Fields<'a> {
    /// Decodes a record. Returns `None` if the encoding is invalid. Empty input is the record in which all fields are
    /// zero.
    #[must_use]
    pub fn decode(encoded: &'a [u8]) -> Option<Self> {
        let (fields, valid) = parse(encoded);
        valid.then_some(fields)
    }

    /// Returns the length of the canonical encoding in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        bytes_len(self.key)
            + int64_len(self.create_revision)
            + int64_len(self.mod_revision)
            + int64_len(self.version)
            + bytes_len(self.value)
            + int64_len(self.lease)
    }

    /// Appends the canonical encoding to `buf`.
    pub fn encode(&self, buf: &mut impl BufMut) {
        put_bytes(1, self.key, buf);
        put_int64(2, self.create_revision, buf);
        put_int64(3, self.mod_revision, buf);
        put_int64(4, self.version, buf);
        put_bytes(5, self.value, buf);
        put_int64(6, self.lease, buf);
    }
}

impl KeyValue {
    /// Encodes a record.
    #[must_use]
    pub fn new(fields: &Fields<'_>) -> Self {
        let mut encoded = BytesMut::with_capacity(fields.encoded_len());
        fields.encode(&mut encoded);
        Self { encoded: encoded.freeze() }
    }

    /// Wraps a stored encoding without a check. Invalid bytes are decoded as far as possible;
    /// [`Fields::decode`] checks them.
    #[must_use]
    pub const fn from_encoded(encoded: Bytes) -> Self {
        Self { encoded }
    }

    /// Returns the encoding.
    #[must_use]
    pub const fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// Decodes all fields. Fields that cannot be decoded are zero.
    #[must_use]
    pub fn fields(&self) -> Fields<'_> {
        parse(&self.encoded).0
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.fields().key
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.fields().value
    }
}

impl std::fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fields().fmt(f)
    }
}

impl From<Fields<'_>> for KeyValue {
    fn from(fields: Fields<'_>) -> Self {
        Self::new(&fields)
    }
}

impl prost::Message for KeyValue {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.encoded);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        // The field is appended even if it is zero: when decoding, a later value of the same field replaces an earlier
        // value.
        let mut out = BytesMut::from(std::mem::take(&mut self.encoded));
        match tag {
            1 | 5 => {
                let mut value = Bytes::new();
                bytes_field::merge(wire_type, &mut value, buf, ctx)?;
                out.reserve(value.len() + 12);
                quorate_protobuf::put_bytes(tag, &value, &mut out);
            }
            2 | 3 | 4 | 6 => {
                let mut value = 0;
                int64::merge(wire_type, &mut value, buf, ctx)?;
                put_number(tag, value.cast_unsigned(), &mut out);
            }
            _ => prost::encoding::skip_field(wire_type, tag, buf, ctx)?,
        }
        self.encoded = out.freeze();
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.encoded.len()
    }

    fn clear(&mut self) {
        self.encoded = Bytes::new();
    }
}

fn bytes_len(value: &[u8]) -> usize {
    if value.is_empty() { 0 } else { 1 + varint_len(value.len() as u64) + value.len() }
}

fn int64_len(value: i64) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value.cast_unsigned()) }
}

fn put_bytes(tag: u32, value: &[u8], buf: &mut impl BufMut) {
    if !value.is_empty() {
        quorate_protobuf::put_bytes(tag, value, buf);
    }
}

fn put_int64(tag: u32, value: i64, buf: &mut impl BufMut) {
    if value != 0 {
        put_number(tag, value.cast_unsigned(), buf);
    }
}

/// Decodes as far as possible. Also returns whether everything was decoded.
fn parse(mut rest: &[u8]) -> (Fields<'_>, bool) {
    let mut fields = Fields::default();
    while !rest.is_empty() {
        if take_field(&mut rest, &mut fields).is_none() {
            return (fields, false);
        }
    }
    (fields, true)
}

/// Takes the next field. Returns `None` if the field does not belong to a record. Number and wire type are compared
/// together.
#[inline]
fn take_field<'a>(rest: &mut &'a [u8], fields: &mut Fields<'a>) -> Option<()> {
    match take_varint(rest).ok()? {
        0x0a => fields.key = take_bytes(rest).ok()?,
        0x10 => fields.create_revision = take_varint(rest).ok()?.cast_signed(),
        0x18 => fields.mod_revision = take_varint(rest).ok()?.cast_signed(),
        0x20 => fields.version = take_varint(rest).ok()?.cast_signed(),
        0x2a => fields.value = take_bytes(rest).ok()?,
        0x30 => fields.lease = take_varint(rest).ok()?.cast_signed(),
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn sample() -> Fields<'static> {
        Fields {
            key: b"foo2",
            create_revision: 3,
            mod_revision: 3,
            version: 1,
            value: b"bar2",
            lease: 0,
        }
    }

    #[test]
    fn a_record_is_encoded_as_in_etcd() {
        let record = KeyValue::new(&sample());
        assert_eq!(&record.encoded()[..], b"\x0a\x04foo2\x10\x03\x18\x03\x20\x01\x2a\x04bar2");
        assert_eq!(record.encoded().len(), sample().encoded_len());
    }

    #[test]
    fn every_field_of_a_record_round_trips() {
        let fields = Fields { lease: -7, create_revision: i64::MAX, ..sample() };
        assert_eq!(Fields::decode(KeyValue::new(&fields).encoded()), Some(fields));
        assert_eq!(Fields::decode(KeyValue::default().encoded()), Some(Fields::default()));
    }

    #[test]
    fn a_record_inside_a_message_round_trips() {
        let reply = crate::etcdserverpb::RangeResponse {
            kvs: vec![KeyValue::new(&sample()), KeyValue::default()],
            count: 2,
            ..Default::default()
        };
        let decoded = crate::etcdserverpb::RangeResponse::decode(&*reply.encode_to_vec());
        assert_eq!(decoded, Ok(reply));
    }

    #[test]
    fn malformed_records_are_refused() {
        assert_eq!(Fields::decode(b""), Some(Fields::default()));
        for bytes in [&b"\x0a\x05foo"[..], b"\x10\xff", b"\x42\x00", b"\x08\x01", b"\x0b\x0c"] {
            assert_eq!(Fields::decode(bytes), None, "{bytes:x?}");
        }
    }

    #[test]
    fn a_later_zero_field_overrides_an_earlier_value() {
        for bytes in [&b"\x10\x05\x10\x00"[..], b"\x0a\x01k\x0a\x00"] {
            let received = KeyValue::decode(bytes).unwrap();
            assert_eq!(Fields::decode(received.encoded()), Some(Fields::default()), "{bytes:x?}");
        }
    }

    #[test]
    fn a_truncated_record_is_refused() {
        let whole = KeyValue::new(&sample()).encoded().clone();
        for len in [1, 3, 5, 7, whole.len() - 1] {
            assert_eq!(Fields::decode(&whole[..len]), None, "{len}");
        }
    }
}
