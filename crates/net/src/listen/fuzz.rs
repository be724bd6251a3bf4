//! Fuzz targets: the inspection of request headers before they reach the HTTP library.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use super::authority::AnyAuthority;
use super::field_section;

/// Replaces the authorities in arbitrary bytes one at a time, and checks that this terminates.
pub fn field_section(data: &[u8]) {
    let mut section = data.to_vec();
    // Each round replaces one field.
    for _ in 0..=data.len() {
        let Some((place, line)) = field_section::mend(&section) else { return };
        assert!(place.start < place.end, "a replaced field has at least one byte");
        section.splice(place, line);
    }
    panic!("the section has more replaced fields than bytes");
}

/// Passes arbitrary bytes through a connection, and checks that the output does not depend on how the bytes are split.
/// The first two bytes select the size of the pieces and of the reads.
pub fn authority(data: &[u8]) {
    let [piece, room, bytes @ ..] = data else { return };
    let whole = pass(bytes, bytes.len().max(1), 1 << 17);
    let pieces = pass(bytes, usize::from(*piece).max(1), usize::from(*room).max(1));
    assert!(whole == pieces, "{whole:x?}: {pieces:x?}");
}

/// A socket whose reads return a fixed number of bytes.
struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.piece.min(self.rest.len()).min(buf.remaining());
        let (now, rest) = self.rest.split_at(count);
        buf.put_slice(now);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// Returns the complete output.
fn pass(bytes: &[u8], piece: usize, room: usize) -> Vec<u8> {
    let mut connection = AnyAuthority::new(Pieces { rest: bytes, piece }, 0);
    let mut read = vec![0; room];
    let mut passed = Vec::new();
    loop {
        let mut buf = ReadBuf::new(&mut read);
        let cx = &mut Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(())) = Pin::new(&mut connection).poll_read(cx, &mut buf) else {
            panic!("a read from an in-memory socket failed");
        };
        if buf.filled().is_empty() {
            return passed;
        }
        passed.extend_from_slice(buf.filled());
    }
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    /// A section with an invalid authority that is not Huffman-coded.
    const SECTION: &[u8] = b"\x83\x86\x44\x02/x\x41\x13unix:/run/etcd.sock\x5f\x01t";
    /// A section with a Huffman-coded authority and a literal name.
    const CODED: &[u8] = b"\x83\x40\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x84\x1d\xc8\xee\x13\x81";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn replacing_invalid_authorities_terminates_for_any_field_section() {
        let samples = [("plain", SECTION.to_vec()), ("coded", CODED.to_vec())];
        bounded("net_field_section", &samples, 20_000, super::field_section);
    }

    #[test]
    fn the_output_does_not_depend_on_how_bytes_are_split() {
        let padded = [&b"\x03\0\0\0\0\x10"[..], SECTION, b"\0\0\0"].concat();
        let connection = [
            b"\x05\x07".to_vec(),
            frame(4, 0, b"\x00\x03\x00\x00\x00\x64"),
            frame(1, 4, SECTION),
            frame(0, 1, b"body"),
            frame(1, 0x2c, &padded),
        ];
        let samples = [("connection", connection.concat())];
        bounded("net_authority", &samples, 20_000, super::authority);
    }
}
