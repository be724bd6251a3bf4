//! The message boundaries in the body of a gRPC response.

/// The length of the prefix of a message, whose last four bytes are the length of the message.
const PREFIX_BYTES: u8 = 5;

/// A position in a body that consists of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Messages {
    /// The number of bytes of an incomplete prefix.
    prefix_bytes: u8,
    /// The number of bytes missing from the current message. If a prefix is incomplete, its last bytes.
    missing: u32,
}

impl Messages {
    /// Returns whether the next byte starts a message.
    pub(super) const fn is_at_boundary(self) -> bool {
        self.prefix_bytes == 0 && self.missing == 0
    }

    /// Moves to the end of the current message, but not beyond the end of `data`. Returns the number of bytes passed.
    pub(super) fn advance(&mut self, data: &[u8]) -> usize {
        let mut passed = 0;
        if self.prefix_bytes > 0 || self.missing == 0 {
            for byte in data {
                passed += 1;
                self.prefix_bytes += 1;
                // The flag in the first byte is shifted out by the four bytes of the length.
                self.missing = self.missing << 8 | u32::from(*byte);
                if self.prefix_bytes == PREFIX_BYTES {
                    self.prefix_bytes = 0;
                    break;
                }
            }
            if self.prefix_bytes > 0 {
                return passed;
            }
        }
        let rest = u32::try_from(data.len() - passed).unwrap_or(u32::MAX).min(self.missing);
        self.missing -= rest;
        passed + rest as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundaries_are_found_however_the_body_is_split() {
        let body = [
            &b"\0\0\0\0\x02ab"[..],
            b"\x01\0\0\0\0",
            &[b"\xff\0\x01\x01\x02", &vec![1; 0x0001_0102][..]].concat(),
            b"\0\0\0\0\x01c",
        ]
        .concat();
        let boundaries = [7, 12, 12 + 5 + 0x0001_0102, body.len()];
        for part_bytes in [1, 2, 3, 4, 5, 6, 7, 11, 16_384, body.len()] {
            let (mut messages, mut found, mut at) = (Messages::default(), Vec::new(), 0);
            for mut part in body.chunks(part_bytes) {
                while !part.is_empty() {
                    let passed = messages.advance(part);
                    assert!(passed > 0, "every call passes at least one byte");
                    (at, part) = (at + passed, &part[passed..]);
                    if messages.is_at_boundary() {
                        found.push(at);
                    }
                }
            }
            assert_eq!(found, boundaries, "{part_bytes}");
        }
    }
}
