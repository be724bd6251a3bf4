//! Header blocks (RFC 7541): encodes the few fields that requests need, and decodes the reply fields that matter to a
//! call.
//!
//! Both directions use the dynamic table, as ordinary clients and servers do, so that a server under test does exactly
//! the work that a real client would cause.

use std::collections::VecDeque;

use super::huffman;
use crate::secret::Secret;

/// The maximum size of the dynamic table in each direction in bytes, which is the protocol's default.
const TABLE_BYTES_MAX: usize = 4096;
/// The size of a table entry in bytes, in addition to its strings (RFC 7541, section 4.1).
const ENTRY_OVERHEAD_BYTES: usize = 32;
/// Complete fields, each encoded in one byte that contains the field's index in the static table.
const POST: u8 = 0x83;
const SCHEME_HTTP: u8 = 0x86;
const SCHEME_HTTPS: u8 = 0x87;
/// The number of entries in the static table.
const STATIC_COUNT: usize = 61;

/// Encodes the header blocks of one connection's requests.
#[derive(Debug)]
pub(super) struct Encoder {
    authority: String,
    /// The user's token.
    token: Option<Secret>,
    /// The method and the scheme, as indexed fields of the static table.
    beginning: [u8; 2],
    /// The literals in the dynamic table, in insertion order.
    inserted: Vec<Literal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Literal {
    Path(&'static str),
    Authority,
    Te,
    ContentType,
    UserAgent,
    Token,
}

impl Encoder {
    pub(super) const fn new(authority: String, is_secured: bool, token: Option<Secret>) -> Self {
        let beginning = if is_secured { [POST, SCHEME_HTTPS] } else { [POST, SCHEME_HTTP] };
        Self { authority, token, beginning, inserted: Vec::new() }
    }

    /// Appends the header block of a call to `path`. A connection uses few paths, so the table never overflows, and the
    /// insertion order determines the index of an entry.
    pub(super) fn encode(&mut self, path: &'static str, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.beginning);
        for literal in [
            Literal::Path(path),
            Literal::Authority,
            Literal::Te,
            Literal::ContentType,
            Literal::UserAgent,
        ] {
            self.field(literal, out);
        }
        if self.token.is_some() {
            self.field(Literal::Token, out);
        }
    }

    fn field(&mut self, literal: Literal, out: &mut Vec<u8>) {
        if let Some(position) = self.inserted.iter().position(|other| *other == literal) {
            let index = STATIC_COUNT + self.inserted.len() - position;
            assert!(index < 127, "a connection uses few paths, so an index fits in one byte");
            out.push(0x80 | index.to_le_bytes()[0]);
            return;
        }
        // The field is encoded as a literal with incremental indexing. If the static table contains the name, the name
        // is encoded as an index into that table.
        let value = match literal {
            Literal::Path(path) => {
                out.push(0x44);
                path
            }
            Literal::Authority => {
                out.push(0x41);
                &self.authority
            }
            Literal::Te => {
                out.push(0x40);
                put_string("te", out);
                "trailers"
            }
            Literal::ContentType => {
                out.push(0x5f);
                "application/grpc"
            }
            Literal::UserAgent => {
                out.push(0x7a);
                "quorate-bench"
            }
            Literal::Token => {
                out.push(0x40);
                put_string("token", out);
                self.token.as_ref().map_or("", Secret::text)
            }
        };
        put_string(value, out);
        self.inserted.push(literal);
    }
}

fn put_string(text: &str, out: &mut Vec<u8>) {
    let len = text.len();
    if len < 127 {
        out.push(len.to_le_bytes()[0]);
    } else {
        out.push(127);
        let mut rest = len - 127;
        while rest >= 128 {
            out.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        out.push(rest.to_le_bytes()[0]);
    }
    out.extend_from_slice(text.as_bytes());
}

/// A decoded header field of a reply. `Other` stands for fields that do not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    HttpStatus(u16),
    GrpcStatus(u16),
    GrpcMessage(String),
    Other,
}

/// Decodes the header blocks of one connection's replies.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The entries of the dynamic table, newest first.
    table: VecDeque<Entry>,
    table_bytes: usize,
    table_bytes_max: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    field: Field,
    name: Name,
    bytes: usize,
}

/// Properties of a field's name: how the field's value is interpreted, and the length of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    class: Class,
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    HttpStatus,
    GrpcStatus,
    GrpcMessage,
    Other,
}

impl Decoder {
    pub(super) const fn new() -> Self {
        Self { table: VecDeque::new(), table_bytes: 0, table_bytes_max: TABLE_BYTES_MAX }
    }

    /// Passes every field of a block to `each`. Returns `None` if the block is malformed; the connection is then
    /// unusable.
    pub(super) fn decode(&mut self, mut block: &[u8], mut each: impl FnMut(&Field)) -> Option<()> {
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = take_integer(&mut block, 7)?;
                each(&self.indexed(index)?.field);
            } else if first & 0xe0 == 0x20 {
                self.table_bytes_max = take_integer(&mut block, 5)?;
                if self.table_bytes_max > TABLE_BYTES_MAX {
                    return None;
                }
                self.evict();
            } else {
                let enters_table = first & 0x40 != 0;
                let prefix_bits = if enters_table { 6 } else { 4 };
                let name = match take_integer(&mut block, prefix_bits)? {
                    0 => name_of(&take_string(&mut block)?),
                    index => self.indexed(index)?.name,
                };
                let value = take_string(&mut block)?;
                let entry = Entry {
                    bytes: name.len + value.len() + ENTRY_OVERHEAD_BYTES,
                    field: name.class.field(&value)?,
                    name,
                };
                each(&entry.field);
                if enters_table {
                    self.table_bytes += entry.bytes;
                    self.table.push_front(entry);
                    self.evict();
                }
            }
        }
        Some(())
    }

    fn indexed(&self, index: usize) -> Option<Entry> {
        if index > STATIC_COUNT {
            return self.table.get(index - STATIC_COUNT - 1).cloned();
        }
        let (name, value) = *STATIC.get(index.checked_sub(1)?)?;
        let name = name_of(name.as_bytes());
        // Static entries without a value are used only for their names.
        let field = name.class.field(value.as_bytes()).unwrap_or(Field::Other);
        Some(Entry { field, name, bytes: 0 })
    }

    fn evict(&mut self) {
        while self.table_bytes > self.table_bytes_max {
            let Some(oldest) = self.table.pop_back() else { break };
            self.table_bytes -= oldest.bytes;
        }
    }
}

impl Class {
    fn field(self, value: &[u8]) -> Option<Field> {
        let number = || std::str::from_utf8(value).ok()?.parse().ok();
        Some(match self {
            Self::HttpStatus => Field::HttpStatus(number()?),
            Self::GrpcStatus => Field::GrpcStatus(number()?),
            Self::GrpcMessage => Field::GrpcMessage(String::from_utf8_lossy(value).into_owned()),
            Self::Other => Field::Other,
        })
    }
}

fn name_of(name: &[u8]) -> Name {
    let class = match name {
        b":status" => Class::HttpStatus,
        b"grpc-status" => Class::GrpcStatus,
        b"grpc-message" => Class::GrpcMessage,
        _ => Class::Other,
    };
    Name { class, len: name.len() }
}

fn take_integer(block: &mut &[u8], prefix_bits: u32) -> Option<usize> {
    let (&first, rest) = block.split_first()?;
    *block = rest;
    let mask = (1_usize << prefix_bits) - 1;
    let mut value = usize::from(first) & mask;
    if value < mask {
        return Some(value);
    }
    for shift in (0..28).step_by(7) {
        let (&byte, rest) = block.split_first()?;
        *block = rest;
        value += usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take_string(block: &mut &[u8]) -> Option<Vec<u8>> {
    let compressed = block.first()? & 0x80 != 0;
    let len = take_integer(block, 7)?;
    let (text, rest) = block.split_at_checked(len)?;
    *block = rest;
    if compressed { huffman::decode(text) } else { Some(text.to_vec()) }
}

/// The static table (RFC 7541, appendix A).
const STATIC: [(&str, &str); STATIC_COUNT] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Option<Vec<Field>> {
        let mut fields = Vec::new();
        decoder.decode(block, |field| fields.push(field.clone()))?;
        Some(fields)
    }

    #[test]
    fn a_repeated_request_contains_only_header_table_indexes() {
        let mut encoder = Encoder::new("localhost:2379".to_owned(), false, None);
        let mut first = Vec::new();
        encoder.encode("/a/B", &mut first);
        let mut second = Vec::new();
        encoder.encode("/a/B", &mut second);
        assert_eq!(second, [0x83, 0x86, 0xc2, 0xc1, 0xc0, 0xbf, 0xbe]);
        let mut other = Vec::new();
        encoder.encode("/a/C", &mut other);
        assert_eq!(&other[..4], [0x83, 0x86, 0x44, 4]);
        let mut third = Vec::new();
        encoder.encode("/a/B", &mut third);
        assert_eq!(third, [0x83, 0x86, 0xc3, 0xc2, 0xc1, 0xc0, 0xbf]);
    }

    #[test]
    fn a_token_is_sent_in_full_once_and_then_by_index() {
        let token = Some(Secret::from("abc.7".to_owned()));
        let mut encoder = Encoder::new("a:1".to_owned(), false, token);
        assert!(!format!("{encoder:?}").contains("abc.7"));
        let mut first = Vec::new();
        encoder.encode("/a/B", &mut first);
        assert!(first.ends_with(b"\x40\x05token\x05abc.7"), "{first:x?}");
        let mut second = Vec::new();
        encoder.encode("/a/B", &mut second);
        assert_eq!(second, [0x83, 0x86, 0xc3, 0xc2, 0xc1, 0xc0, 0xbf, 0xbe]);
    }

    #[test]
    fn the_decoder_maintains_the_dynamic_table() {
        let mut decoder = Decoder::new();
        let mut block = vec![0x88, 0x40];
        put_string("grpc-status", &mut block);
        put_string("14", &mut block);
        block.push(0x40);
        put_string("grpc-message", &mut block);
        put_string("gone", &mut block);
        let expected =
            [Field::HttpStatus(200), Field::GrpcStatus(14), Field::GrpcMessage("gone".to_owned())];
        assert_eq!(decode(&mut decoder, &block).as_deref(), Some(&expected[..]));
        // The next block refers to the same fields by index. The block after it has a new value for an indexed name.
        assert_eq!(decode(&mut decoder, &[0x88, 0xbf, 0xbe]).as_deref(), Some(&expected[..]));
        let mut named = vec![0x0f, 63 - 15];
        put_string("0", &mut named);
        assert_eq!(decode(&mut decoder, &named), Some(vec![Field::GrpcStatus(0)]));
        // A maximum size of zero must evict all entries.
        assert_eq!(decode(&mut decoder, &[0x20]), Some(vec![]));
        assert_eq!(decode(&mut decoder, &[0xbe]), None);
    }

    #[test]
    fn strings_of_any_length_round_trip() {
        for len in [0, 126, 127, 128, 300, 20_000] {
            let text = "x".repeat(len);
            let mut block = Vec::new();
            put_string(&text, &mut block);
            let mut rest = &block[..];
            assert_eq!(take_string(&mut rest).as_deref(), Some(text.as_bytes()));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn malformed_header_blocks_are_refused() {
        for block in [&[0x80][..], &[0x40], &[0x40, 5, b'a'], &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]]
        {
            assert_eq!(decode(&mut Decoder::new(), block), None, "{block:x?}");
        }
    }
}
