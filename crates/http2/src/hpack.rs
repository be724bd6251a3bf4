//! Header blocks (RFC 7541): a decoder with its dynamic table, and an encoder for a server's responses.
//!
//! # Invariants
//!
//! * The decoder processes every block completely, because both ends of a connection must agree on the table. Beyond
//!   the header list limit, it drops the fields but still updates the table.
//! * The encoder adds only the three fields of a successful gRPC response to its dynamic table, so the table needs no
//!   eviction. Other fields are sent as literals or, for common statuses, as entries of the static table.

use std::collections::VecDeque;
use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::huffman;

/// The maximum size of the decoder's dynamic table in bytes, which is the protocol's default.
const TABLE_BYTES_MAX: usize = 4096;
/// The size of an entry in bytes, in addition to its strings (RFC 7541, section 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;

/// The name of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:status`
    Status,
    /// A regular header field.
    Field(HeaderName),
    /// A name that is not valid in HTTP/2.
    Malformed,
}

impl Name {
    fn of(name: &[u8]) -> Self {
        match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":status" => Self::Status,
            name => HeaderName::from_lowercase(name).map_or(Self::Malformed, Self::Field),
        }
    }
}

/// A field of a header list.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name of the field.
    pub name: Name,
    /// The value; `None` if HTTP does not allow it.
    pub value: Option<HeaderValue>,
    /// The size of the field (RFC 7541, section 4.1).
    pub bytes: usize,
    name_bytes: usize,
}

impl Field {
    fn new(name: Name, name_bytes: usize, value: &[u8]) -> Self {
        let bytes = name_bytes + value.len() + ENTRY_BYTES;
        let value = HeaderValue::from_maybe_shared(Bytes::copy_from_slice(value)).ok();
        Self { name, value, bytes, name_bytes }
    }
}

/// A block that cannot be decoded, after which the connection is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecodable;

/// Decodes the header blocks of one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    /// The entries of the dynamic table, newest first.
    table: VecDeque<Field>,
    table_bytes: usize,
    table_bytes_max: usize,
    /// The number of changes to the table so far.
    version: u64,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            table: VecDeque::new(),
            table_bytes: 0,
            table_bytes_max: TABLE_BYTES_MAX,
            version: 0,
        }
    }
}

impl Decoder {
    /// Returns the number of changes to the table so far. While this number stays the same, equal blocks decode to
    /// equal fields.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Passes every field of a block to `each`.
    pub fn decode(
        &mut self,
        block: &[u8],
        mut each: impl FnMut(&Field),
    ) -> Result<(), Undecodable> {
        self.read(block, &mut each).ok_or(Undecodable)
    }

    fn read(&mut self, mut block: &[u8], each: &mut impl FnMut(&Field)) -> Option<()> {
        let mut has_fields = false;
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = take_integer(&mut block, 7)?;
                each(self.indexed(index)?);
            } else if first & 0xe0 == 0x20 {
                // A change to the table size must come before all fields.
                if has_fields {
                    return None;
                }
                self.version += 1;
                self.table_bytes_max = take_integer(&mut block, 5)?;
                if self.table_bytes_max > TABLE_BYTES_MAX {
                    return None;
                }
                self.evict();
                continue;
            } else {
                let is_remembered = first & 0x40 != 0;
                let (name, name_bytes) =
                    match take_integer(&mut block, if is_remembered { 6 } else { 4 })? {
                        0 => take_string(&mut block, |name| (Name::of(name), name.len()))?,
                        index => {
                            let entry = self.indexed(index)?;
                            (entry.name.clone(), entry.name_bytes)
                        }
                    };
                let field = take_string(&mut block, |value| Field::new(name, name_bytes, value))?;
                each(&field);
                if is_remembered {
                    self.version += 1;
                    self.table_bytes += field.bytes;
                    self.table.push_front(field);
                    self.evict();
                }
            }
            has_fields = true;
        }
        Some(())
    }

    fn indexed(&self, index: usize) -> Option<&Field> {
        match index.checked_sub(1)? {
            at if at < STATIC_COUNT => Some(&STATIC[at]),
            at => self.table.get(at - STATIC_COUNT),
        }
    }

    fn evict(&mut self) {
        while self.table_bytes > self.table_bytes_max {
            let Some(oldest) = self.table.pop_back() else { break };
            self.table_bytes -= oldest.bytes;
        }
    }
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

fn take_string<R>(block: &mut &[u8], use_text: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let is_coded = block.first()? & 0x80 != 0;
    let len = take_integer(block, 7)?;
    let (text, rest) = block.split_at_checked(len)?;
    *block = rest;
    Some(if is_coded { use_text(&huffman::decode(text)?) } else { use_text(text) })
}

/// The content type of gRPC responses.
const GRPC: &[u8] = b"application/grpc";

/// Returns whether the response with these headers consists of gRPC messages.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(http::header::CONTENT_TYPE).is_some_and(|value| value.as_bytes() == GRPC)
}

/// A field of a successful gRPC response, which is added to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indexed {
    ContentType,
    StatusOk,
    EmptyMessage,
}

impl Indexed {
    const ALL: [Self; 3] = [Self::ContentType, Self::StatusOk, Self::EmptyMessage];

    const fn texts(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Self::ContentType => (b"content-type", GRPC),
            Self::StatusOk => (b"grpc-status", b"0"),
            Self::EmptyMessage => (b"grpc-message", b""),
        }
    }

    fn of(name: &HeaderName, value: &HeaderValue) -> Option<Self> {
        let texts = (name.as_str().as_bytes(), value.as_bytes());
        Self::ALL.into_iter().find(|field| field.texts() == texts)
    }
}

/// The size of the indexed fields in the table, in bytes.
const INDEXED_BYTES: usize = {
    let (mut bytes, mut at) = (0, 0);
    while at < Indexed::ALL.len() {
        let (name, value) = Indexed::ALL[at].texts();
        bytes += name.len() + value.len() + ENTRY_BYTES;
        at += 1;
    }
    bytes
};

/// Encodes the header blocks of a server.
#[derive(Debug)]
pub struct Encoder {
    /// The fields in the table, in insertion order.
    inserted: Vec<Indexed>,
    uses_table: bool,
    /// The table sizes that the next block announces: the smallest size since the last block, and the current size.
    announced: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { inserted: Vec::with_capacity(Indexed::ALL.len()), uses_table: true, announced: None }
    }
}

impl Encoder {
    /// Adopts the client's setting for the maximum table size.
    pub fn resize(&mut self, bytes_max: usize) {
        if bytes_max >= TABLE_BYTES_MAX && self.uses_table && self.announced.is_none() {
            return;
        }
        self.uses_table = bytes_max >= INDEXED_BYTES;
        if !self.uses_table {
            self.inserted.clear();
        }
        let bytes = if self.uses_table { bytes_max.min(TABLE_BYTES_MAX) } else { 0 };
        let smallest = self.announced.map_or(bytes, |(smallest, _)| smallest.min(bytes));
        self.announced = Some((smallest, bytes));
    }

    /// Begins a header block.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, bytes)) = self.announced.take() {
            if smallest < bytes {
                put_integer(smallest, 0x20, 5, out);
            }
            put_integer(bytes, 0x20, 5, out);
        }
    }

    /// Appends `:status`.
    pub fn status(&self, status: u16, out: &mut Vec<u8>) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                // A literal value, with the name of static entry 8 (`:status`).
                out.push(8);
                let [a, b, c] = [status / 100 % 10, status / 10 % 10, status % 10]
                    .map(|digit| b'0' + digit.to_le_bytes()[0]);
                out.extend_from_slice(&[3, a, b, c]);
                return;
            }
        };
        out.push(0x80 | index);
    }

    /// Appends `content-type: application/grpc`.
    pub fn grpc_content_type(&mut self, out: &mut Vec<u8>) {
        self.indexed(Indexed::ContentType, out);
    }

    /// Appends the status of a successful gRPC response. grpc-go always sends a message, too, even if it is empty.
    pub fn grpc_status_ok(&mut self, out: &mut Vec<u8>) {
        self.indexed(Indexed::StatusOk, out);
        self.indexed(Indexed::EmptyMessage, out);
    }

    fn indexed(&mut self, field: Indexed, out: &mut Vec<u8>) {
        if let Some(position) = self.inserted.iter().position(|other| *other == field) {
            let index = STATIC_COUNT + self.inserted.len() - position;
            out.push(0x80 | index.to_le_bytes()[0]);
            return;
        }
        let (name, value) = field.texts();
        match (field, self.uses_table) {
            (Indexed::ContentType, true) => out.push(0x40 | CONTENT_TYPE),
            (Indexed::ContentType, false) => out.extend_from_slice(&[0x0f, CONTENT_TYPE - 15]),
            (Indexed::StatusOk | Indexed::EmptyMessage, uses_table) => {
                out.push(if uses_table { 0x40 } else { 0 });
                put_string(name, out);
            }
        }
        put_string(value, out);
        if self.uses_table {
            self.inserted.push(field);
        }
    }

    /// Appends a field. The fields of a successful gRPC response are added to the table.
    pub fn field(&mut self, name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
        if let Some(field) = Indexed::of(name, value) {
            return self.indexed(field, out);
        }
        if *name == http::header::CONTENT_TYPE {
            out.extend_from_slice(&[0x0f, CONTENT_TYPE - 15]);
        } else {
            out.push(if value.is_sensitive() { 0x10 } else { 0 });
            put_string(name.as_str().as_bytes(), out);
        }
        put_string(value.as_bytes(), out);
    }
}

/// The index of the name `content-type`.
const CONTENT_TYPE: u8 = 31;

fn put_integer(value: usize, first: u8, prefix_bits: u32, out: &mut Vec<u8>) {
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        return out.push(first | value.to_le_bytes()[0]);
    }
    out.push(first | mask.to_le_bytes()[0]);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    out.push(rest.to_le_bytes()[0]);
}

fn put_string(text: &[u8], out: &mut Vec<u8>) {
    put_integer(text.len(), 0, 7, out);
    out.extend_from_slice(text);
}

/// The number of entries in the static table.
const STATIC_COUNT: usize = 61;

static STATIC: LazyLock<[Field; STATIC_COUNT]> = LazyLock::new(|| {
    STATIC_TEXTS
        .map(|(name, value)| Field::new(Name::of(name.as_bytes()), name.len(), value.as_bytes()))
});

/// The static table (RFC 7541, appendix A).
const STATIC_TEXTS: [(&str, &str); STATIC_COUNT] = [
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
    use proptest::prelude::*;

    use super::*;

    fn fields(decoder: &mut Decoder, block: &[u8]) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        let text = |field: &Field| {
            let name = match &field.name {
                Name::Field(name) => name.as_str().to_owned(),
                other => format!("{other:?}"),
            };
            let value = field.value.as_ref().map(|value| value.to_str().unwrap().to_owned());
            (name, value.unwrap_or_default())
        };
        decoder.decode(block, |field| fields.push(text(field))).ok()?;
        Some(fields)
    }

    fn list(fields: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    /// The examples in RFC 7541, appendix C.4: requests with Huffman coding on one connection.
    #[test]
    fn the_example_requests_in_the_rfc_are_decoded() {
        let mut decoder = Decoder::default();
        let first = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff";
        let head = [
            ("Method", "GET"),
            ("Scheme", "http"),
            ("Path", "/"),
            ("Authority", "www.example.com"),
        ];
        assert_eq!(fields(&mut decoder, first), list(&head));
        let second = b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf";
        assert_eq!(
            fields(&mut decoder, second),
            list(&[&head[..], &[("cache-control", "no-cache")]].concat())
        );
        let third = b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf";
        let expected = [
            ("Method", "GET"),
            ("Scheme", "https"),
            ("Path", "/index.html"),
            ("Authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        assert_eq!(fields(&mut decoder, third), list(&expected));
        assert_eq!(decoder.table_bytes, 164);
    }

    #[test]
    fn response_headers_round_trip_across_table_resizes() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let name = HeaderName::from_static("grpc-message");
        for (round, resized) in
            [None, None, Some(4096), Some(50), None, Some(200), None].into_iter().enumerate()
        {
            if let Some(bytes) = resized {
                encoder.resize(bytes);
            }
            let mut block = Vec::new();
            encoder.begin(&mut block);
            encoder.status(200, &mut block);
            encoder.grpc_content_type(&mut block);
            assert_eq!(
                fields(&mut decoder, &block),
                list(&[("Status", "200"), ("content-type", "application/grpc")]),
                "{round}"
            );
            block.clear();
            encoder.begin(&mut block);
            encoder.grpc_status_ok(&mut block);
            encoder.field(&name, &HeaderValue::from_static("gone"), &mut block);
            assert_eq!(
                fields(&mut decoder, &block),
                list(&[("grpc-status", "0"), ("grpc-message", ""), ("grpc-message", "gone")]),
                "{round}"
            );
        }
        let mut block = Vec::new();
        encoder.status(418, &mut block);
        assert_eq!(fields(&mut decoder, &block), list(&[("Status", "418")]));
    }

    #[test]
    fn undecodable_header_blocks_are_refused() {
        for block in [
            &[0x80][..],
            &[0x40],
            &[0x40, 5, b'a'],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0xbe],
            &[0x82, 0x20],
            &[0x3f, 0xe2, 0x1f],
        ] {
            assert_eq!(fields(&mut Decoder::default(), block), None, "{block:x?}");
        }
        assert!(
            fields(&mut Decoder::default(), &[0x3f, 0xe1, 0x1f]).is_some(),
            "the largest table size is accepted"
        );
    }

    #[test]
    fn the_smallest_table_size_is_announced_before_the_final_size() {
        let mut encoder = Encoder::default();
        let announced = |encoder: &mut Encoder, sizes: &[usize]| {
            sizes.iter().for_each(|bytes| encoder.resize(*bytes));
            let mut block = Vec::new();
            encoder.begin(&mut block);
            block
        };
        assert_eq!(
            announced(&mut encoder, &[4096, 8192]),
            b"",
            "the default size is not announced"
        );
        assert_eq!(announced(&mut encoder, &[0, 200]), b"\x20\x3f\xa9\x01");
        assert_eq!(announced(&mut encoder, &[1000, 150, 10_000]), b"\x3f\x77\x3f\xe1\x1f");
        assert_eq!(announced(&mut encoder, &[300, 5]), b"\x20");
    }

    /// The name and value of a field.
    type Pair = (Vec<u8>, Vec<u8>);

    fn any_name() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("content-type".to_owned()),
            Just("grpc-status".to_owned()),
            Just("grpc-message".to_owned()),
            "[a-z0-9-]{1,200}"
        ]
    }

    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b'\t'), 0x20..0x7f_u8, 0x80..=0xff_u8];
        prop_oneof![
            Just(b"application/grpc".to_vec()),
            Just(b"0".to_vec()),
            prop::collection::vec(byte, 0..300),
        ]
    }

    proptest! {
        #[test]
        fn header_blocks_round_trip(
            blocks in prop::collection::vec(
                (prop::option::of(0..9000_usize), 100..600_u16, prop::collection::vec((any_name(), any_value()), 0..8)),
                1..8,
            ),
        ) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            for (resized, status, list) in blocks {
                if let Some(bytes) = resized {
                    encoder.resize(bytes);
                }
                let mut block = Vec::new();
                encoder.begin(&mut block);
                encoder.status(status, &mut block);
                let mut expected: Vec<Pair> = vec![(b":status".to_vec(), status.to_string().into_bytes())];
                for (name, value) in list {
                    let (header, value) = (HeaderName::try_from(&name).unwrap(), HeaderValue::from_bytes(&value).unwrap());
                    encoder.field(&header, &value, &mut block);
                    expected.push((name.into_bytes(), value.as_bytes().to_vec()));
                }
                let mut decoded: Vec<Pair> = Vec::new();
                let result = decoder.decode(&block, |field| {
                    let name = match &field.name {
                        Name::Field(name) => name.as_str(),
                        Name::Status => ":status",
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(field.bytes, name.len() + field.value.as_ref().unwrap().len() + ENTRY_BYTES);
                    decoded.push((name.into(), field.value.as_ref().unwrap().as_bytes().to_vec()));
                });
                prop_assert_eq!(result, Ok(()));
                prop_assert_eq!(decoded, expected);
            }
        }

        #[test]
        fn no_decoded_header_block_makes_the_dynamic_table_exceed_its_bound(
            blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..20),
        ) {
            let mut decoder = Decoder::default();
            for block in blocks {
                let is_decoded = decoder.decode(&block, |_| {}).is_ok();
                let bytes: usize = decoder.table.iter().map(|field| field.bytes).sum();
                prop_assert_eq!(bytes, decoder.table_bytes);
                prop_assert!(bytes <= decoder.table_bytes_max || !is_decoded);
                if !is_decoded {
                    break;
                }
            }
        }
    }
}
