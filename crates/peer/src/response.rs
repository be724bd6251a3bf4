//! The HTTP/1.1 response whose body is a stream.
//!
//! Other responses from peers are read with `hyper`. Nearly all messages of the consensus core arrive through streams.
//! With `hyper`, a follower executed 19,000 instructions to receive and process a short message over TLS, and with this
//! module 14,800: `hyper` performs a separate buffered read for each byte of a chunk's length, and passes each chunk
//! through a channel.
//!
//! # Format
//!
//! RFC 9112: the head (section 4), and a body that is chunked, has a length, or ends with the connection (section 6).
//! The head must end with CR LF CR LF; its other lines may end with LF alone. In the chunked encoding, every line must
//! end with CR LF. Chunk extensions and trailers are skipped.
//!
//! # Guarantees
//!
//! * The decoded body does not depend on how the bytes are split into reads.
//! * The work is proportional to the number of received bytes, and no part of the body is buffered. The caller buffers
//!   the head.
//! * A head is at most [`HEAD_BYTES_MAX`] bytes long. The extensions of a chunk, and all trailers, are at most
//!   [`SKIPPED_BYTES_MAX`] bytes long.

use std::io;

use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};

use crate::dialer::connection_reason;

/// Maximum length of a head.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;

/// Maximum number of header fields.
const FIELDS_MAX: usize = 100;

/// Maximum length of the extensions of a chunk, and of all trailers.
const SKIPPED_BYTES_MAX: u16 = 4 << 10;

/// Maximum number of digits in the length of a chunk.
const SIZE_DIGITS_MAX: u8 = 16;

const HEAD_START: &[u8] = b"HTTP/1.";
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Why a response could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResponseError {
    #[error("malformed HTTP response: {0}")]
    Head(#[from] httparse::Error),
    #[error("malformed HTTP response: the head is longer than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    #[error("malformed HTTP response: invalid field {0}")]
    Field(String),
    #[error("malformed chunked encoding")]
    Chunk,
    #[error("the response is too long")]
    TooLong,
    #[error("unexpected EOF")]
    UnexpectedEnd,
    #[error("{}", connection_reason(.0))]
    Io(#[from] io::Error),
}

/// Encodes a request without a body. The URI of the request is a path.
pub(crate) fn encode_request(request: &Request<()>) -> Vec<u8> {
    let mut out = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri()).into_bytes();
    for (name, value) in request.headers() {
        out.extend_from_slice(name.as_ref());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

impl Head {
    /// Parses the head at the beginning of `bytes`, and returns it with its length. Returns `None` if the head is
    /// incomplete. The first `searched` bytes are known not to contain the end of the head.
    pub(crate) fn parse(
        bytes: &[u8],
        searched: usize,
    ) -> Result<Option<(Self, usize)>, ResponseError> {
        // A server with another protocol is recognised by its first bytes, because the end of a head may never arrive.
        if bytes.iter().zip(HEAD_START).any(|(byte, expected)| byte != expected) {
            return Err(httparse::Error::Version.into());
        }
        let from = searched.saturating_sub(HEAD_END.len() - 1);
        let end = bytes[from..].windows(HEAD_END.len()).position(|window| window == HEAD_END);
        let len = end.map(|end| from + end + HEAD_END.len());
        if len.unwrap_or(bytes.len() + 1) > HEAD_BYTES_MAX {
            return Err(ResponseError::HeadTooLong);
        }
        let Some(len) = len else { return Ok(None) };
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        if response.parse(&bytes[..len])? != httparse::Status::Complete(len) {
            // There is an empty line before the end.
            return Err(httparse::Error::NewLine.into());
        }
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(httparse::Error::Status)?;
        let mut headers = HeaderMap::new();
        for field in response.headers {
            let wrong = || ResponseError::Field(field.name.to_owned());
            let name = HeaderName::try_from(field.name).map_err(|_| wrong())?;
            headers.append(name, HeaderValue::from_bytes(field.value).map_err(|_| wrong())?);
        }
        Ok(Some((Self { status, headers }, len)))
    }
}

/// Decodes the body of a response.
#[derive(Debug)]
pub(crate) enum Body {
    /// The body ends with the connection.
    UntilEnd,
    /// The number of bytes that are left.
    Length(u64),
    Chunked(Chunked),
}

/// The part of the chunked encoding to which the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunked {
    Size { size: u64, digits: u8 },
    Extensions { size: u64, left: u16 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataEnd { has_return: bool },
    Trailers { is_line_empty: bool, left: u16 },
    TrailerEnd { is_line_empty: bool, left: u16 },
    Over,
}

impl Chunked {
    const START: Self = Self::Size { size: 0, digits: 0 };

    /// Processes a byte that is not data.
    fn after(self, byte: u8) -> Result<Self, ResponseError> {
        let next = match (self, byte) {
            (Self::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
                if digits < SIZE_DIGITS_MAX =>
            {
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                Self::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (Self::Size { size, digits: 1.. }, b';' | b' ' | b'\t') => {
                Self::Extensions { size, left: SKIPPED_BYTES_MAX }
            }
            (Self::Size { size, digits: 1.. } | Self::Extensions { size, .. }, b'\r') => {
                Self::SizeEnd { size }
            }
            (Self::Extensions { size, left: left @ 1.. }, other) if other != b'\n' => {
                Self::Extensions { size, left: left - 1 }
            }
            (Self::SizeEnd { size: 0 }, b'\n') => {
                Self::Trailers { is_line_empty: true, left: SKIPPED_BYTES_MAX }
            }
            (Self::SizeEnd { size }, b'\n') => Self::Data { left: size },
            (Self::DataEnd { has_return: false }, b'\r') => Self::DataEnd { has_return: true },
            (Self::DataEnd { has_return: true }, b'\n') => Self::START,
            (Self::Trailers { is_line_empty, left }, b'\r') => {
                Self::TrailerEnd { is_line_empty, left }
            }
            (Self::Trailers { left: left @ 1.., .. }, other) if other != b'\n' => {
                Self::Trailers { is_line_empty: false, left: left - 1 }
            }
            (Self::TrailerEnd { is_line_empty: true, .. }, b'\n') => Self::Over,
            (Self::TrailerEnd { is_line_empty: false, left: left @ 2.. }, b'\n') => {
                // The end of the line also counts, so that the number of lines is limited.
                Self::Trailers { is_line_empty: true, left: left - 2 }
            }
            _ => return Err(ResponseError::Chunk),
        };
        Ok(next)
    }
}

impl Body {
    /// Creates a decoder for the body of a response with this head.
    pub(crate) fn of(head: &Head) -> Result<Self, ResponseError> {
        let wrong = |name: HeaderName| ResponseError::Field(name.to_string());
        if matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
            return Ok(Self::Length(0));
        }
        let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
        if let Some(coding) = codings.next() {
            let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
            return if is_chunked && codings.next().is_none() {
                Ok(Self::Chunked(Chunked::START))
            } else {
                Err(wrong(header::TRANSFER_ENCODING))
            };
        }
        let mut lengths = head.headers.get_all(header::CONTENT_LENGTH).iter();
        let Some(length) = lengths.next() else { return Ok(Self::UntilEnd) };
        let text = length.to_str().unwrap_or_default();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(count) if is_number && lengths.all(|other| other == length) => {
                Ok(Self::Length(count))
            }
            _ => Err(wrong(header::CONTENT_LENGTH)),
        }
    }

    /// Removes and returns the next part of the body from the beginning of `input`. Returns `None` if `input` contains
    /// no further part.
    pub(crate) fn decode<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<&'a [u8]>, ResponseError> {
        loop {
            let left = match self {
                Self::UntilEnd => u64::MAX,
                Self::Length(left) | Self::Chunked(Chunked::Data { left }) => *left,
                Self::Chunked(Chunked::Over) => 0,
                Self::Chunked(state) => {
                    let Some((byte, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    *state = state.after(*byte)?;
                    continue;
                }
            };
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
            if count == 0 {
                return Ok(None);
            }
            let (part, rest) = input.split_at(count);
            *input = rest;
            let left = left - count as u64;
            match self {
                Self::Chunked(state) if left == 0 => {
                    *state = Chunked::DataEnd { has_return: false }
                }
                Self::Chunked(state) => *state = Chunked::Data { left },
                Self::Length(old) => *old = left,
                Self::UntilEnd => {}
            }
            return Ok(Some(part));
        }
    }

    /// Returns whether the body is known to have ended. Always false for [`Self::UntilEnd`].
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunked::Over))
    }

    /// Returns an error if the connection must not end at this point of the body.
    pub(crate) const fn end(&self) -> Result<(), ResponseError> {
        if self.is_over() || matches!(self, Self::UntilEnd) {
            Ok(())
        } else {
            Err(ResponseError::UnexpectedEnd)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Result<Option<(Head, usize)>, ResponseError> {
        Head::parse(text.as_bytes(), 0)
    }

    fn body(fields: &str) -> Result<Body, String> {
        let (head, _) = head(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n")).unwrap().unwrap();
        Body::of(&head).map_err(|error| error.to_string())
    }

    /// Decodes a chunked body that arrives in pieces of the given length. Returns the body, the rest of the input, and
    /// whether the body has ended.
    fn decode(input: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), ResponseError> {
        let mut body = Body::Chunked(Chunked::START);
        let (mut decoded, mut used) = (Vec::new(), 0);
        for piece in input.chunks(piece) {
            let mut rest = piece;
            while let Some(part) = body.decode(&mut rest)? {
                decoded.extend_from_slice(part);
            }
            used += piece.len() - rest.len();
        }
        Ok((decoded, input.len() - used, body.is_over()))
    }

    #[test]
    fn a_head_is_parsed_once_it_is_complete() {
        let text = "HTTP/1.1 412 Precondition Failed\r\nX-Etcd-Cluster-Id: 7\r\n\r\nrest";
        let len = text.len() - "rest".len();
        for cut in 0..len {
            assert!(head(&text[..cut]).unwrap().is_none());
            let (parsed, used) = Head::parse(text.as_bytes(), cut).unwrap().unwrap();
            assert_eq!((parsed.status, used), (StatusCode::PRECONDITION_FAILED, len));
            assert_eq!(parsed.headers["x-etcd-cluster-id"], "7");
        }
    }

    #[test]
    fn an_invalid_or_long_head_is_refused() {
        for text in [
            "HTTP/2 200 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 200 OK\n\n\r\n\r\n",
        ] {
            assert!(head(text).is_err(), "{text:?}");
        }
        for prefix in ["S", "HTTP/2", "\0", "\x15\x03\x03"] {
            assert!(head(prefix).is_err(), "{prefix:?}");
        }
        let mut long = b"HTTP/1.1 200 OK\r\na: ".to_vec();
        long.resize(HEAD_BYTES_MAX, b'x');
        assert!(Head::parse(&long[..HEAD_BYTES_MAX - 1], 0).unwrap().is_none());
        assert!(matches!(Head::parse(&long, 0), Err(ResponseError::HeadTooLong)));
        let fields = "a: b\r\n".repeat(FIELDS_MAX + 1);
        assert!(head(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n")).is_err());
    }

    #[test]
    fn the_fields_of_the_head_determine_where_the_body_ends() {
        assert!(matches!(body(""), Ok(Body::UntilEnd)));
        assert!(matches!(body("Content-Length: 12\r\n"), Ok(Body::Length(12))));
        assert!(matches!(body("Transfer-Encoding: Chunked\r\n"), Ok(Body::Chunked(_))));
        for fields in [
            "Content-Length: -1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length:\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ] {
            assert!(body(fields).is_err(), "{fields:?}");
        }
    }

    #[test]
    fn a_body_with_a_length_ends_after_that_length() {
        let mut body = Body::Length(3);
        let mut input = &b"abcdef"[..];
        assert!(matches!(body.end(), Err(ResponseError::UnexpectedEnd)));
        assert_eq!(body.decode(&mut input).unwrap(), Some(&b"abc"[..]));
        assert_eq!(body.decode(&mut input).unwrap(), None);
        assert_eq!((input, body.is_over()), (&b"def"[..], true));
        assert!(body.end().is_ok());
    }

    #[test]
    fn chunk_extensions_and_trailers_are_skipped() {
        let encoded = b"3;a=b\r\nabc\r\n0A \r\n0123456789\r\n0\r\nx: y\r\nz:\r\n\r\nrest";
        for piece in 1..encoded.len() {
            let (decoded, rest, is_over) = decode(encoded, piece).unwrap();
            assert_eq!(decoded, b"abc0123456789");
            assert_eq!((rest, is_over), (4, true));
        }
    }

    #[test]
    fn an_invalid_chunked_encoding_is_refused() {
        let skipped = usize::from(SKIPPED_BYTES_MAX);
        for encoded in [
            "\r\n".to_owned(),
            ";\r\n".to_owned(),
            "g\r\n".to_owned(),
            "-1\r\n".to_owned(),
            "1\nx".to_owned(),
            "1\rx".to_owned(),
            "1;\nx".to_owned(),
            "1\r\nxy".to_owned(),
            "1\r\nx\n".to_owned(),
            "0\r\na\n".to_owned(),
            "0\r\n\rx".to_owned(),
            "11111111111111111\r\n".to_owned(),
            format!("1;{}", "x".repeat(skipped + 1)),
            format!("0\r\n{}", "x".repeat(skipped + 1)),
            format!("0\r\n{}", "x\r\n".repeat(skipped / 3 + 1)),
        ] {
            assert!(
                matches!(decode(encoded.as_bytes(), 7), Err(ResponseError::Chunk)),
                "{encoded:?}"
            );
        }
        // The largest possible length is accepted.
        assert_eq!(decode(b"ffffffffffffffff\r\nx", 5).unwrap(), (b"x".to_vec(), 0, false));
    }

    proptest! {
        #[test]
        fn a_chunked_body_is_decoded_regardless_of_how_it_arrives(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..20),
            piece in 1usize..700,
        ) {
            let mut encoded = Vec::new();
            for chunk in &chunks {
                encoded.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                encoded.extend_from_slice(chunk);
                encoded.extend_from_slice(b"\r\n");
            }
            let (decoded, rest, is_over) = decode(&encoded, piece).unwrap();
            prop_assert_eq!((&decoded, rest, is_over), (&chunks.concat(), 0, false));
            encoded.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(decode(&encoded, piece).unwrap(), (decoded, 0, true));
        }
    }
}
