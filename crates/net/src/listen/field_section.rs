//! Parses the field section of a request (RFC 7541), up to the authority.
//!
//! The HTTP library parses the authority as part of a URI and resets the stream if it is invalid. Some clients send a
//! list of endpoints, the path of a Unix socket, or an empty string. [`mend`] finds such an authority and returns its
//! replacement.
//!
//! # Invariants
//!
//! * The decoded replacement has the same length as the original. Both ends keep a dynamic table of recent fields, from
//!   which they evict the oldest fields by length, so the tables of the client and the library remain consistent. The
//!   client may later refer to the authority by its index in the table; such references need no change.
//! * No state is kept between sections. An authority whose name is an index into the client's dynamic table is not
//!   recognised. Encoders use the index in the static table instead, which contains the name too.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use http::uri::Authority;

const AUTHORITY: &[u8] = b":authority";
/// The Huffman-coded name.
const AUTHORITY_CODED: &[u8] = b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f";

/// The static table's field with an empty authority.
const EMPTY_AUTHORITY: u8 = 0x81;
/// The index of the authority's name in the static table.
const AUTHORITY_INDEX: usize = 1;

/// A field that is added to the table. Its name and value together are as long as the authority's name alone.
const AS_LONG_AS_EMPTY: &[u8] = b"\x40\x02te\x08trailers";

/// Finds an authority that the HTTP library would refuse. Returns the field's range in the section and its replacement.
pub(super) fn mend(section: &[u8]) -> Option<(Range<usize>, Vec<u8>)> {
    let mut reader = Reader { section, at: 0 };
    loop {
        let start = reader.at;
        let first = *section.get(start)?;
        if first == EMPTY_AUTHORITY {
            return Some((start..start + 1, Vec::new()));
        }
        match first {
            // An indexed field.
            0x80.. => drop(reader.integer(7)?),
            // A change of the table size.
            0x20..0x40 => drop(reader.integer(5)?),
            _ => {
                let is_remembered = first & 0x40 != 0;
                let index = reader.integer(if is_remembered { 6 } else { 4 })?;
                let is_authority = match index {
                    0 => reader.string()?.is_authority(),
                    _ => index == AUTHORITY_INDEX,
                };
                let name_end = reader.at;
                let value = reader.string()?;
                if is_authority && let Some(length) = value.refused_length() {
                    let line = stand_in(&section[start..name_end], length, is_remembered);
                    return Some((start..reader.at, line));
                }
            }
        }
    }
}

/// Returns the replacement for a refused authority of this decoded length.
fn stand_in(name: &[u8], length: usize, is_remembered: bool) -> Vec<u8> {
    if length == 0 {
        return if is_remembered { AS_LONG_AS_EMPTY.to_vec() } else { Vec::new() };
    }
    let mut line = name.to_vec();
    put_length(length, &mut line);
    line.resize(line.len() + length, b'x');
    line
}

/// Appends the length of a string that is not Huffman-coded.
fn put_length(length: usize, line: &mut Vec<u8>) {
    let Some(mut rest) = length.checked_sub(0x7f) else {
        return line.push(length.to_le_bytes()[0]);
    };
    line.push(0x7f);
    while rest >= 0x80 {
        line.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    line.push(rest.to_le_bytes()[0]);
}

/// Reads the parts of a section, never past its end.
struct Reader<'a> {
    section: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.section.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Reads an integer that starts in the last `bits` bits of a byte.
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let mask = (1 << bits) - 1;
        let mut number = usize::from(self.byte()? & mask);
        if number < usize::from(mask) {
            return Some(number);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        // The integer exceeds the length of any section.
        None
    }

    fn string(&mut self) -> Option<Text<'a>> {
        let is_coded = self.section.get(self.at)? & 0x80 != 0;
        let length = self.integer(7)?;
        let bytes = self.section.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(Text { bytes, is_coded })
    }
}

/// A string in a section.
struct Text<'a> {
    bytes: &'a [u8],
    is_coded: bool,
}

impl Text<'_> {
    fn is_authority(&self) -> bool {
        self.bytes == if self.is_coded { AUTHORITY_CODED } else { AUTHORITY }
    }

    /// Returns the decoded length of an authority that the HTTP library would refuse. Returns `None` for a string with
    /// an invalid code, which the library refuses itself.
    fn refused_length(&self) -> Option<usize> {
        let text =
            if self.is_coded { decode(self.bytes)?.into() } else { Cow::Borrowed(self.bytes) };
        Authority::try_from(&*text).is_err().then_some(text.len())
    }
}

/// The length in bits of the code for each byte and for the end marker (RFC 7541, appendix B). The code is canonical:
/// codes of the same length are assigned in byte order.
#[rustfmt::skip]
const CODE_LENGTHS: [u8; 257] = [
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
const CODE_LENGTH_MAX: usize = 30;

/// The bytes with each code length, ordered by code.
static BYTES_BY_LENGTH: LazyLock<[Vec<u8>; CODE_LENGTH_MAX + 1]> = LazyLock::new(|| {
    std::array::from_fn(|length| {
        // The end marker has the last code of its length and represents no byte.
        (0..=u8::MAX)
            .filter(|byte| usize::from(CODE_LENGTHS[usize::from(*byte)]) == length)
            .collect()
    })
});

/// Decodes a string. Returns `None` if it contains the end marker, or ends with eight or more bits of an
/// incomplete code.
fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(coded.len() * 8 / 5);
    // The bits of the current code, the first code with that many bits, and the number of bits.
    let (mut code, mut first, mut length) = (0, 0, 0);
    for bit in coded.iter().flat_map(|byte| (0..8).rev().map(move |shift| byte >> shift & 1)) {
        code = code << 1 | usize::from(bit);
        first = (first + BYTES_BY_LENGTH[length].len()) << 1;
        length += 1;
        if let Some(byte) = BYTES_BY_LENGTH.get(length)?.get(code - first) {
            decoded.push(*byte);
            (code, first, length) = (0, 0, 0);
        }
    }
    (length < 8).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"#initially=[http://127.0.0.1:2379]";

    fn line(head: &[u8], value: &[u8]) -> Vec<u8> {
        let mut line = head.to_vec();
        put_length(value.len(), &mut line);
        [line, value.to_vec()].concat()
    }

    /// Returns the section after the replacement, or `None` if nothing was replaced.
    fn with_valid_authority(section: &[u8]) -> Option<Vec<u8>> {
        let (place, line) = mend(section)?;
        Some([&section[..place.start], &line, &section[place.end..]].concat())
    }

    #[test]
    fn huffman_codes_are_decoded() {
        assert_eq!(decode(AUTHORITY_CODED).unwrap(), AUTHORITY);
        let list = b"\xff\xa3\x54\x64\x98\x74\x51\xea\x0f\xfd\xce\x94\xd7\x71\x86\x02\x27\x57\x02\xe0\x5c\x37\x04\xcb\xaf\xff\xf3";
        assert_eq!(decode(list).unwrap(), LIST);
        assert_eq!(decode(b"\x1f\xff"), None, "eleven bits of an incomplete code");
        assert_eq!(decode(b"\xff\xff\xff\xff"), None, "the end marker represents no byte");
    }

    #[test]
    fn an_invalid_authority_is_replaced_by_a_valid_authority_of_the_same_length() {
        for odd in
            [LIST, b"unix:localhost:2379", b"%2Ftmp%2Fx.sock", b"a:b:c", b"/x", b"\xff", b"["]
        {
            let good = vec![b'x'; odd.len()];
            assert!(Authority::try_from(&good[..]).is_ok());
            for head in
                [&b"\x41"[..], b"\x01", b"\x11", b"\x40\x0a:authority", b"\x00\x0a:authority"]
            {
                let around = |value: &[u8]| {
                    [&b"\x83\x86\x44\x02/x"[..], &line(head, value), b"\x5f\x01t"].concat()
                };
                assert_eq!(with_valid_authority(&around(odd)), Some(around(&good)));
            }
        }
    }

    #[test]
    fn an_invalid_huffman_coded_authority_is_replaced() {
        // The Huffman-coded text "a:b:c".
        let coded = b"\x41\x84\x1d\xc8\xee\x13";
        assert_eq!(decode(&coded[2..]).unwrap(), b"a:b:c");
        assert_eq!(with_valid_authority(coded).unwrap(), b"\x41\x05xxxxx");
        let named = [&b"\x40\x88"[..], AUTHORITY_CODED, b"\x05a:b:c"].concat();
        assert_eq!(with_valid_authority(&named).unwrap(), [&named[..10], b"\x05xxxxx"].concat());
    }

    #[test]
    fn long_invalid_authorities_are_replaced() {
        for length in [126, 127, 128, 254, 255, 300, 5000] {
            let odd = line(b"\x41", &vec![b'#'; length]);
            assert_eq!(with_valid_authority(&odd), Some(line(b"\x41", &vec![b'x'; length])));
        }
    }

    #[test]
    fn an_empty_authority_is_removed() {
        assert_eq!(with_valid_authority(b"\x83\x81\x86").unwrap(), b"\x83\x86");
        assert_eq!(with_valid_authority(b"\x83\x01\x00\x86").unwrap(), b"\x83\x86");
        // The replacement is as long as the client's table entry, so the tables remain consistent.
        let remembered = with_valid_authority(b"\x83\x41\x00").unwrap();
        assert_eq!(remembered, [&b"\x83"[..], AS_LONG_AS_EMPTY].concat());
        assert_eq!(b"te".len() + b"trailers".len(), AUTHORITY.len());
    }

    #[test]
    fn valid_authorities_and_other_fields_stay_unchanged() {
        for good in [
            &b"localhost:2379"[..],
            b"[::1]:2379",
            b"user@host",
            b"etcd-0.etcd.svc.cluster.local.",
            b"10.0.0.1",
        ] {
            assert_eq!(mend(&line(b"\x41", good)), None);
        }
        // Fields with other names but the same value.
        assert_eq!(mend(&line(b"\x44", LIST)), None);
        assert_eq!(mend(&line(b"\x00\x03abc", LIST)), None);
        // The section is cut off at every position.
        let section = [&b"\x3f\xe1\x1f\x83\xff\x00\x44\x02/x"[..], &line(b"\x41", LIST)].concat();
        for end in 0..section.len() {
            assert_eq!(mend(&section[..end]), None);
        }
        assert!(mend(&section).is_some());
    }
}
