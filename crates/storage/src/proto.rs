//! The few parts of the protobuf wire format that log records and snapshot files need.
//!
//! Decoding is lenient where etcd's is: unknown fields and fields of an unexpected wire type are
//! skipped, the last occurrence of a field wins. It never trusts a length. Groups, which no etcd
//! message ever had, count as malformed.

/// The bytes are not a protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A field's value as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A fixed-width number, which none of our messages uses.
    Fixed,
}

/// Iterates over the fields of an encoded message.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (position, byte) in self.rest.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if position == 9 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << (7 * position);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[position + 1..];
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Malformed> {
        let count = usize::try_from(count).map_err(|_| Malformed)?;
        let (head, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(head)
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 || number > 0x1fff_ffff {
            return Err(Malformed);
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let count = self.varint()?;
                Value::Bytes(self.take(count)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// The head of a message under construction: fields of small, known size, on the stack.
///
/// Long byte fields are not copied in; only their key and length are, and the bytes follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl Head {
    /// Room for four keys with varints of full length.
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
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// Adds a varint field; `number` is below 16.
    pub(crate) const fn number(mut self, number: u8, value: u64) -> Self {
        self.byte(number << 3);
        self.varint(value);
        self
    }

    /// Adds the key and length of a byte field whose bytes follow; `number` is below 16.
    pub(crate) const fn bytes(mut self, number: u8, len: usize) -> Self {
        self.byte(number << 3 | 2);
        self.varint(len as u64);
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn heads_and_fields_are_inverse() {
        let head = Head::new().number(1, 0).number(2, u64::MAX).number(3, 300).bytes(4, 2);
        let bytes = [head.as_slice(), b"ab"].concat();
        let fields: Vec<_> = Fields::new(&bytes).collect::<Result<_, _>>().unwrap();
        let expected = [
            (1, Value::Varint(0)),
            (2, Value::Varint(u64::MAX)),
            (3, Value::Varint(300)),
            (4, Value::Bytes(b"ab")),
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn malformed_messages_are_refused() {
        for bytes in [
            &[0x08][..],                                             // no value
            &[0x00, 0x00],                                           // field number 0
            &[0x0b],                                                 // a group
            &[0x12, 0x02, 0x00],                                     // shorter than it says
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],             // much shorter
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], // more than 64 bits
            &[0x09, 0, 0, 0],
            &[0x0d, 0],
        ] {
            assert!(Fields::new(bytes).any(|field| field.is_err()), "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Fields::new(&bytes).count() <= bytes.len());
        }
    }
}
