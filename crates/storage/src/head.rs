//! The head of a protobuf message that is being written. It holds the message's short fields on the stack.
//!
//! A record or snapshot file is written as such a head followed by the payload, so that the payload
//! is not copied into a message first. Reading uses `quorate_protobuf`: unknown fields and fields
//! of an unexpected wire type are skipped, and the last occurrence of a field wins, as in etcd.

/// The head of a message: fields of small, known size, on the stack.
///
/// Long byte fields are not copied. The head contains only their key and length, and the bytes
/// follow it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl Head {
    /// The size of the buffer in bytes. It is large enough for four fields with varints of maximum
    /// length.
    const CAPACITY: usize = 48;

    pub(crate) const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], len: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    const fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    const fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.byte((value & 0x7f) as u8);
    }

    /// Adds a varint field. `number` must be below 16.
    pub(crate) const fn number(mut self, number: u8, value: u64) -> Self {
        self.byte(number << 3);
        self.varint(value);
        self
    }

    /// Adds the key and length of a byte field whose bytes follow the head. `number` must be below
    /// 16.
    pub(crate) const fn bytes(mut self, number: u8, len: usize) -> Self {
        self.byte(number << 3 | 2);
        self.varint(len as u64);
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quorate_protobuf::{put_length, put_number};

    use super::*;

    proptest! {
        #[test]
        fn a_record_head_equals_the_plain_protobuf_encoding(
            numbers in (any::<u64>(), any::<u64>(), 0..300_u64), len in any::<usize>(),
        ) {
            let head =
                Head::new().number(1, numbers.0).number(2, numbers.1).number(3, numbers.2).bytes(4, len);
            let mut plain = Vec::new();
            put_number(1, numbers.0, &mut plain);
            put_number(2, numbers.1, &mut plain);
            put_number(3, numbers.2, &mut plain);
            put_length(4, len, &mut plain);
            prop_assert_eq!(head.as_slice(), plain);
        }
    }
}
