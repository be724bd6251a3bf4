//! The Huffman code of header strings (RFC 7541, appendix B).
//!
//! The code is canonical: symbols with codes of the same length have consecutive codes in symbol order, and shorter
//! codes come first. The lengths alone therefore define the code. Decoding needs only the first code of each length and
//! the index of its first symbol.

/// The length of each byte's code in bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const LEN_MAX: usize = 30;

/// All codes that have the same length.
#[derive(Clone, Copy)]
struct Length {
    first_code: u32,
    first_symbol: usize,
    count: u32,
}

struct Tables {
    lengths: [Length; LEN_MAX + 1],
    symbols: [u8; 256],
}

static TABLES: Tables = tables();

const fn tables() -> Tables {
    let mut lengths = [Length { first_code: 0, first_symbol: 0, count: 0 }; LEN_MAX + 1];
    let mut symbols = [0; 256];
    let (mut code, mut placed, mut len) = (0_u32, 0_usize, 1_usize);
    while len <= LEN_MAX {
        code <<= 1;
        lengths[len] = Length { first_code: code, first_symbol: placed, count: 0 };
        let mut symbol = 0_usize;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == len {
                symbols[placed] = symbol.to_le_bytes()[0];
                placed += 1;
                code += 1;
                lengths[len].count += 1;
            }
            symbol += 1;
        }
        len += 1;
    }
    Tables { lengths, symbols }
}

/// Decodes a string. Returns `None` if the encoding is invalid.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    let (mut code, mut len) = (0_u32, 0_usize);
    for byte in bytes {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            len += 1;
            let of_length = TABLES.lengths.get(len)?;
            let position = code.wrapping_sub(of_length.first_code);
            if position < of_length.count {
                out.push(*TABLES.symbols.get(of_length.first_symbol + position as usize)?);
                (code, len) = (0, 0);
            }
        }
    }
    // The remaining bits must be padding: fewer than eight, all ones.
    (len < 8 && code == (1 << len) - 1).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_huffman_examples_in_the_rfc_are_decoded() {
        let examples: [(&[u8], &str); 3] = [
            (
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
        ];
        for (encoded, text) in examples {
            assert_eq!(decode(encoded).as_deref(), Some(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn invalid_huffman_padding_is_refused() {
        assert_eq!(decode(&[0x64, 0x02, 0xff]), None);
        assert_eq!(decode(&[0x60]), None);
        assert_eq!(decode(&[0xff; 5]), None);
    }
}
