//! The protobuf wire format, for messages with hand-written encoders and decoders.
//!
//! These are the messages whose exact bytes matter: log records, key records, and messages between members.
//! Generated code would copy their payloads, and would not write every byte as Go does.
//!
//! ```text
//! message   field*
//! field     key (varint: number << 3 | wire type), value
//! value     0 varint   1 eight bytes   2 length (varint), bytes   3 fields, key with type 4   5 four bytes
//! varint    seven bits a byte, lowest first; the high bit says that more follow; at most ten bytes
//! ```
//!
//! # Guarantees
//!
//! * Untrusted bytes cause neither a panic nor an allocation, and every length in them is checked.
//! * Decoded values are slices of the input.
//! * Unknown fields of any wire type can be skipped, as in etcd's own decoders. A group is skipped as a whole.
//!
//! # Not here
//!
//! The meaning of fields, and messages whose exact bytes do not matter: their code is generated (crate `quorate-api`).
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::wildcard_enum_match_arm)]

mod read;
mod write;

#[cfg(test)]
mod tests;

pub use read::{Fields, Malformed, Value, take_bytes, take_varint};
pub use write::{
    Begun, begin_message, put_bytes, put_fixed32, put_fixed64, put_length, put_number, put_varint,
    varint_len,
};

/// The wire type of a field, which is part of the field's key and determines the layout of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireType {
    /// A number in groups of seven bits.
    Varint = 0,
    /// Eight bytes.
    Fixed64 = 1,
    /// A length, followed by that many bytes.
    Bytes = 2,
    /// Fields up to a matching end key.
    Group = 3,
    /// Four bytes.
    Fixed32 = 5,
}
