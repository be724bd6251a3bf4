//! Decoding: varints and fields, from the front of a slice.

use thiserror::Error;

use crate::WireType;

/// The size of the longest varint, in bytes.
const VARINT_BYTES_MAX: usize = 10;

/// The maximum nesting of groups, as in generated code.
pub(crate) const GROUP_DEPTH_MAX: usize = 100;

/// The wire type of the key that ends a group.
const GROUP_END: u8 = 4;

/// The reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end in the middle of a field.
    #[error("unexpected end of data inside a field")]
    Truncated,
    /// A varint has more than 64 bits.
    #[error("varint overflow")]
    VarintOverflow,
    /// The field number is invalid.
    #[error("invalid field number")]
    FieldNumber,
    /// The wire type is undefined, or it ends a group that was never begun.
    #[error("invalid wire type")]
    WireType,
    /// Groups are not properly nested, or are nested too deeply.
    #[error("groups are not properly nested, or are nested too deeply")]
    Groups,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Varint(u64),
    /// Bytes, text or a nested message.
    Bytes(&'a [u8]),
    /// An eight-byte value, which is skipped, because no message decoded with this crate needs it.
    Fixed64,
    /// A four-byte value, which is skipped, because no message decoded with this crate needs it.
    Fixed32,
    /// A group. No etcd message has ever used a group.
    Group,
}

impl Value<'_> {
    /// Returns the wire type of the value.
    #[must_use]
    pub const fn wire_type(&self) -> WireType {
        match self {
            Self::Varint(_) => WireType::Varint,
            Self::Bytes(_) => WireType::Bytes,
            Self::Fixed64 => WireType::Fixed64,
            Self::Fixed32 => WireType::Fixed32,
            Self::Group => WireType::Group,
        }
    }
}

/// An iterator over the fields of a message and their numbers. It ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Creates an iterator over the fields of an encoded message.
    #[must_use]
    #[inline]
    pub const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the bytes not yet decoded. The bytes that an iteration step removes from the result are the encoded
    /// field.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = take_key(&mut self.rest).and_then(|(number, wire_type)| {
            let value = take_value(&mut self.rest, number, wire_type, GROUP_DEPTH_MAX)?;
            Ok((number, value))
        });
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Decodes a varint at the front of `rest` and removes it.
#[inline]
pub fn take_varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    // The slice is advanced once, at the end, because advancing it byte by byte takes twice as
    // long.
    let mut value = 0;
    for (position, &byte) in rest.iter().take(VARINT_BYTES_MAX).enumerate() {
        if position == VARINT_BYTES_MAX - 1 && byte > 1 {
            return Err(Malformed::VarintOverflow);
        }
        value |= u64::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            *rest = &rest[position + 1..];
            return Ok(value);
        }
    }
    Err(Malformed::Truncated)
}

/// Removes a length and that many bytes from the front of `rest`, and returns the bytes.
#[inline]
pub fn take_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = take_varint(rest)?;
    take(rest, usize::try_from(length).map_err(|_| Malformed::Truncated)?)
}

#[inline]
fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (head, tail) = rest.split_at_checked(length).ok_or(Malformed::Truncated)?;
    *rest = tail;
    Ok(head)
}

#[inline]
fn take_key(rest: &mut &[u8]) -> Result<(u32, u8), Malformed> {
    // A valid key fits in 32 bits, including the three bits of the wire type.
    let key = u32::try_from(take_varint(rest)?).map_err(|_| Malformed::FieldNumber)?;
    match key >> 3 {
        0 => Err(Malformed::FieldNumber),
        number => Ok((number, key.to_le_bytes()[0] & 7)),
    }
}

#[inline]
fn take_value<'a>(
    rest: &mut &'a [u8],
    number: u32,
    wire_type: u8,
    depth_left: usize,
) -> Result<Value<'a>, Malformed> {
    const VARINT: u8 = WireType::Varint as u8;
    const FIXED64: u8 = WireType::Fixed64 as u8;
    const BYTES: u8 = WireType::Bytes as u8;
    const GROUP: u8 = WireType::Group as u8;
    const FIXED32: u8 = WireType::Fixed32 as u8;
    match wire_type {
        VARINT => take_varint(rest).map(Value::Varint),
        BYTES => take_bytes(rest).map(Value::Bytes),
        FIXED64 => take(rest, 8).map(|_| Value::Fixed64),
        FIXED32 => take(rest, 4).map(|_| Value::Fixed32),
        GROUP => skip_group(rest, number, depth_left).map(|()| Value::Group),
        _ => Err(Malformed::WireType),
    }
}

#[cold]
fn skip_group(rest: &mut &[u8], group: u32, depth_left: usize) -> Result<(), Malformed> {
    let depth_left = depth_left.checked_sub(1).ok_or(Malformed::Groups)?;
    loop {
        let (number, wire_type) = take_key(rest)?;
        if wire_type == GROUP_END {
            return if number == group { Ok(()) } else { Err(Malformed::Groups) };
        }
        take_value(rest, number, wire_type, depth_left)?;
    }
}
