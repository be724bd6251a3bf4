//! The Huffman code for strings (RFC 7541, appendix B).
//!
//! The code is canonical: codes of equal length are consecutive, in byte order, and shorter codes come first. Therefore
//! the lengths alone define the code. The decoder looks up the next nine bits, which decode most bytes in one step, and
//! compares longer codes with the first code of each length.

/// The length of the code of each byte and of the end marker, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const LENGTH_MAX: usize = 30;
/// The number of bits that are looked up in one step.
const QUICK_BITS: usize = 9;

/// The codes of one length.
#[derive(Clone, Copy)]
struct Codes {
    first: u32,
    /// The position in `bytes` of the first byte with a code of this length.
    start: usize,
    count: u32,
}

struct Tables {
    codes: [Codes; LENGTH_MAX + 1],
    /// The bytes, ordered by their codes.
    bytes: [u8; 257],
    /// The byte and the length of its code, for each value of the next bits. The length is 0 for a longer code.
    quick: [(u8, u8); 1 << QUICK_BITS],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut codes = [Codes { first: 0, start: 0, count: 0 }; LENGTH_MAX + 1];
    let mut bytes = [0; 257];
    let mut quick = [(0, 0); 1 << QUICK_BITS];
    let (mut code, mut placed, mut length) = (0_u32, 0_usize, 1_usize);
    while length <= LENGTH_MAX {
        code <<= 1;
        codes[length] = Codes { first: code, start: placed, count: 0 };
        let mut symbol = 0_usize;
        // The end marker is the last code and does not represent a byte.
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                let byte = symbol.to_le_bytes()[0];
                bytes[placed] = byte;
                if length <= QUICK_BITS {
                    let mut at = (code << (QUICK_BITS - length)) as usize;
                    let end = at + (1 << (QUICK_BITS - length));
                    while at < end {
                        quick[at] = (byte, length.to_le_bytes()[0]);
                        at += 1;
                    }
                }
                placed += 1;
                code += 1;
                codes[length].count += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    Tables { codes, bytes, quick }
}

/// Decodes a string. Returns `None` if the code is invalid, contains the end marker or is padded incorrectly.
#[must_use]
pub fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(coded.len() * 8 / 5);
    let (mut bits, mut bit_count, mut at) = (0_u64, 0_usize, 0_usize);
    loop {
        while bit_count <= 56 && at < coded.len() {
            bits = bits << 8 | u64::from(coded[at]);
            bit_count += 8;
            at += 1;
        }
        if bit_count == 0 {
            return Some(out);
        }
        let window = |length: usize| -> u32 {
            let shifted = if bit_count >= length {
                bits >> (bit_count - length)
            } else {
                bits << (length - bit_count)
            };
            let [.., a, b, c, d] = shifted.to_be_bytes();
            u32::from_be_bytes([a, b, c, d]) & ((1 << length) - 1)
        };
        let (byte, length) = TABLES.quick[window(QUICK_BITS) as usize];
        let length = usize::from(length);
        if length != 0 && length <= bit_count {
            out.push(byte);
            bit_count -= length;
            continue;
        }
        let found = (QUICK_BITS + 1..=LENGTH_MAX.min(bit_count)).find_map(|length| {
            let codes = TABLES.codes[length];
            let position = window(length).wrapping_sub(codes.first);
            (position < codes.count).then_some((codes.start + position as usize, length))
        });
        match found {
            Some((position, length)) => {
                out.push(TABLES.bytes[position]);
                bit_count -= length;
            }
            // The rest must be padding: fewer than eight bits, all ones.
            None => {
                let is_padding =
                    at == coded.len() && bit_count < 8 && window(bit_count) + 1 == 1 << bit_count;
                return is_padding.then_some(out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_huffman_examples_in_the_rfc_are_decoded() {
        let examples: [(&[u8], &str); 4] = [
            (b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x64\x02", "302"),
            (b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f", ":authority"),
        ];
        for (coded, text) in examples {
            assert_eq!(decode(coded).as_deref(), Some(text.as_bytes()), "{text}");
        }
        assert_eq!(decode(b"").as_deref(), Some(&b""[..]));
    }

    #[test]
    fn invalid_huffman_padding_and_the_end_marker_are_refused() {
        assert_eq!(decode(b"\x64\x02\xff"), None);
        assert_eq!(decode(b"\x60"), None);
        assert_eq!(decode(b"\xff\xff\xff\xff"), None);
        assert_eq!(decode(&[0xff; 5]), None);
    }

    /// Encodes a string bit by bit, using only the code lengths.
    fn encode(text: &[u8]) -> Vec<u8> {
        let code = |byte: u8| {
            let length = usize::from(LENGTHS[usize::from(byte)]);
            let codes = TABLES.codes[length];
            let position =
                (0..byte).filter(|b| usize::from(LENGTHS[usize::from(*b)]) == length).count();
            (codes.first + position as u32, length)
        };
        let mut bits: Vec<bool> = Vec::new();
        for byte in text {
            let (code, length) = code(*byte);
            bits.extend((0..length).rev().map(|shift| code >> shift & 1 == 1));
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8)
            .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
            .collect()
    }

    #[test]
    fn every_byte_round_trips_through_the_huffman_code() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all.clone()));
        for byte in all {
            assert_eq!(decode(&encode(&[byte])), Some(vec![byte]), "{byte}");
            assert_eq!(
                decode(&encode(&[b'a', byte, b'z'])),
                Some(vec![b'a', byte, b'z']),
                "{byte}"
            );
        }
    }

    proptest! {
        #[test]
        fn strings_round_trip_through_the_huffman_code(text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode(&encode(&text)), Some(text));
        }

        /// A string has only one encoding, so encoding a decoded string returns the original bytes.
        #[test]
        fn only_the_output_of_the_encoder_can_be_decoded(coded in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(text) = decode(&coded) {
                prop_assert_eq!(encode(&text), coded);
            }
        }
    }
}
