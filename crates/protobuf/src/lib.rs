//! The protobuf wire format, for the messages that are read and written by hand.
//!
//! Those are the messages whose bytes matter: log records, records of keys, what members say to one
//! another. Generated code would copy their payloads, and would not write every byte as Go does.
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
//! * Foreign bytes never panic, nothing is allocated for them, and no length is trusted.
//! * What is read is a slice of what was given.
//! * A field that a reader does not know can be passed over, whatever its wire type, as etcd's own
//!   decoders do; groups are passed over as a whole.
//!
//! # Not here
//!
//! What any field means. Messages without such demands are generated (crate `quorate-api`).
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

/// How a value is laid out, which its key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireType {
    /// A number in groups of seven bits.
    Varint = 0,
    /// Eight bytes.
    Fixed64 = 1,
    /// A length and that many bytes.
    Bytes = 2,
    /// Fields up to a key that ends them.
    Group = 3,
    /// Four bytes.
    Fixed32 = 5,
}
