//! Encoding: appends fields to a buffer. The caller decides whether to leave out empty fields.

use bytes::BufMut;

use crate::WireType;

/// Returns the encoded size of a number.
#[must_use]
#[inline]
pub const fn varint_len(value: u64) -> usize {
    let bits = (value | 1).ilog2() as usize + 1;
    bits.div_ceil(7)
}

/// Appends a varint.
#[inline]
pub fn put_varint(mut value: u64, out: &mut impl BufMut) {
    while value >= 0x80 {
        out.put_u8(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.put_u8(value.to_le_bytes()[0]);
}

/// Appends a varint field.
#[inline]
pub fn put_number(field: u32, value: u64, out: &mut impl BufMut) {
    put_key(field, WireType::Varint, out);
    put_varint(value, out);
}

/// Appends an eight-byte field.
#[inline]
pub fn put_fixed64(field: u32, value: u64, out: &mut impl BufMut) {
    put_key(field, WireType::Fixed64, out);
    out.put_u64_le(value);
}

/// Appends a four-byte field.
#[inline]
pub fn put_fixed32(field: u32, value: u32, out: &mut impl BufMut) {
    put_key(field, WireType::Fixed32, out);
    out.put_u32_le(value);
}

/// Appends a field that holds bytes, text or a nested message.
#[inline]
pub fn put_bytes(field: u32, bytes: &[u8], out: &mut impl BufMut) {
    put_length(field, bytes.len(), out);
    out.put_slice(bytes);
}

/// Appends the key and length of a field. The caller must append its bytes next.
#[inline]
pub fn put_length(field: u32, len: usize, out: &mut impl BufMut) {
    put_key(field, WireType::Bytes, out);
    put_varint(len as u64, out);
}

/// Bytes reserved for a length that is filled in later. They can hold a length below 4 GiB.
const PADDED_BYTES: usize = 5;

/// A nested message that is being written, whose length is not known yet.
#[derive(Debug)]
#[must_use = "the length of the message is missing until `end` is called"]
pub struct Begun {
    start: usize,
}

/// Appends the key of a message field and reserves space for its length. The caller appends the
/// fields of the message next, and then calls [`Begun::end`].
#[inline]
pub fn begin_message(field: u32, out: &mut Vec<u8>) -> Begun {
    put_key(field, WireType::Bytes, out);
    let start = out.len() + PADDED_BYTES;
    out.resize(start, 0);
    Begun { start }
}

impl Begun {
    /// Fills in the length, always with the same number of bytes. Returns `None` for a message of 4
    /// GiB or more.
    #[inline]
    pub fn end(self, out: &mut [u8]) -> Option<()> {
        let mut rest = u32::try_from(out.len() - self.start).ok()?;
        let length = &mut out[self.start - PADDED_BYTES..self.start];
        for byte in length.iter_mut() {
            *byte = rest.to_le_bytes()[0] | 0x80;
            rest >>= 7;
        }
        length[PADDED_BYTES - 1] &= 0x7f;
        Some(())
    }
}

#[inline]
fn put_key(field: u32, wire_type: WireType, out: &mut impl BufMut) {
    put_varint(u64::from(field << 3) | wire_type as u64, out);
}
