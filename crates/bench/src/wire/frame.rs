//! HTTP/2 frame headers (RFC 9113, section 4.1): nine bytes that contain length, type, flags and stream.

/// The length of a frame header in bytes.
pub(super) const HEADER_LEN: usize = 9;

/// The preface, which every client sends first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Frame flags. `ACK` is used by SETTINGS and PING.
pub(super) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) len: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHeader {
    /// Reads the header at the beginning of `bytes`. Returns `None` if `bytes` is too short.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, s0, s1, s2, s3] = bytes.first_chunk::<HEADER_LEN>()?;
        Some(Self {
            len: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        })
    }

    /// Appends the header to `out`.
    pub(super) fn put(self, out: &mut Vec<u8>) {
        let [_, a, b, c] = u32::try_from(self.len).unwrap_or(u32::MAX).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        out.extend_from_slice(&[a, b, c, self.kind, self.flags, s0, s1, s2, s3]);
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reads the big-endian number at the beginning of `bytes`.
pub(super) fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|chunk| u32::from_be_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_header_survives_encoding_and_decoding() {
        let header = FrameHeader { len: 0x01_02_03, kind: kind::DATA, flags: 1, stream: 77 };
        let mut out = Vec::new();
        header.put(&mut out);
        assert_eq!(out, [1, 2, 3, 0, 1, 0, 0, 0, 77]);
        assert_eq!(FrameHeader::parse(&out), Some(header));
        assert_eq!(FrameHeader::parse(&out[..8]), None);
    }
}
