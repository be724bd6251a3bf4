//! Frames (RFC 9113, sections 4 and 6): headers of nine bytes, kinds, flags and error codes.

/// The size of a frame header, in bytes.
pub const HEADER_BYTES: usize = 9;

/// The preface that every client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The maximum payload in bytes that a peer accepts unless its settings specify another value.
pub const PAYLOAD_BYTES_DEFAULT: usize = 16_384;

/// The initial window of a connection and of each stream in bytes, unless the settings specify another value.
pub const WINDOW_DEFAULT: u32 = 65_535;

/// The maximum window, and the maximum stream id.
pub const MAX_31_BITS: u32 = 0x7fff_ffff;

/// The kinds of frames.
#[expect(missing_docs, reason = "each name is taken from the RFC")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// The flags of frames. `ACK` applies to SETTINGS and PING.
#[expect(missing_docs, reason = "each name is taken from the RFC")]
pub mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// The ids of settings.
#[expect(missing_docs, reason = "each name is taken from the RFC")]
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// An error code (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

#[expect(missing_docs, reason = "each name is taken from the RFC")]
impl Code {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The size of the payload, in bytes.
    pub len: usize,
    /// The kind of the frame.
    pub kind: u8,
    /// The flags of the frame.
    pub flags: u8,
    /// The id of the stream; 0 for the connection.
    pub stream: u32,
}

impl Header {
    /// Parses the header at the start of these bytes. Returns `None` if there are too few bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, s0, s1, s2, s3] = bytes.first_chunk::<HEADER_BYTES>()?;
        Some(Self {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & MAX_31_BITS,
        })
    }

    /// Returns the encoded header.
    #[must_use]
    pub const fn bytes(self) -> [u8; HEADER_BYTES] {
        let [.., a, b, c] = self.len.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, s0, s1, s2, s3]
    }

    /// Appends the encoded header to `out`.
    pub fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// Returns whether the flag is set.
    #[must_use]
    pub const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reads the big-endian number at the start of these bytes.
#[must_use]
pub fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|chunk| u32::from_be_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_header_survives_encoding_and_parsing() {
        let header = Header { len: 0x01_02_03, kind: kind::DATA, flags: 1, stream: 77 };
        let bytes = header.bytes();
        assert_eq!(bytes, [1, 2, 3, 0, 1, 0, 0, 0, 77]);
        assert_eq!(Header::parse(&bytes), Some(header));
        assert_eq!(Header::parse(&bytes[..8]), None);
    }
}
