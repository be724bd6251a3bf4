//! Messages on the wire: how they are read as bytes, and the bodies that carry them.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Response, Uri};
use http_body::{Body as HttpBody, Frame};
use prost::{Message, Name};
use tonic::body::Body;
use tonic::codec::{CompressionEncoding, DecodeBuf, Decoder, Streaming};
use tonic::{Code, Status};

/// What stands before a message: a flag and the length.
pub(crate) const HEAD_BYTES: usize = 5;

/// Takes messages as they are.
#[derive(Debug)]
struct Raw;

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}

/// Messages one behind the other.
pub(crate) type Messages = Streaming<Bytes>;

/// The messages of a request.
pub(crate) fn requests<B>(headers: &HeaderMap, body: B, bytes_max: usize) -> Messages
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    Streaming::new_request(Raw, body, encoding(headers), Some(bytes_max))
}

/// The messages of an answer; one that failed before any is an error at once.
pub(crate) fn replies<B>(answer: Response<B>, bytes_max: usize) -> Result<Messages, Status>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = answer.into_parts();
    if let Some(status) = Status::from_header_map(&head.headers)
        && status.code() != Code::Ok
    {
        return Err(status);
    }
    Ok(Streaming::new_response(Raw, body, head.status, encoding(&head.headers), Some(bytes_max)))
}

fn encoding(headers: &HeaderMap) -> Option<CompressionEncoding> {
    let gzip = headers.get("grpc-encoding").is_some_and(|value| value == "gzip");
    gzip.then_some(CompressionEncoding::Gzip)
}

/// Reads a message as the services read theirs.
pub(crate) fn decode<M: Message + Name + Default + 'static>(bytes: Bytes) -> Result<M, Status> {
    quorate_api::codec::decode(bytes)
}

/// A message with its head.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut chunk = BytesMut::with_capacity(HEAD_BYTES + length);
    chunk.put_slice(&head(length));
    message.encode_raw(&mut chunk);
    chunk.freeze()
}

/// A message that is encoded already, with its head.
pub(crate) fn with_head(message: &[u8]) -> Bytes {
    let mut chunk = BytesMut::with_capacity(HEAD_BYTES + message.len());
    chunk.put_slice(&head(message.len()));
    chunk.put_slice(message);
    chunk.freeze()
}

/// What stands before a message of this length.
pub(crate) fn head(length: usize) -> [u8; HEAD_BYTES] {
    let told = u32::try_from(length).expect("no message of a member is longer than 2 GiB");
    let [a, b, c, d] = told.to_be_bytes();
    [0, a, b, c, d]
}

/// The body of a request that is one message.
pub(crate) fn whole(message: Bytes) -> Body {
    Body::new(Pieces { pieces: [Some(head_of(&message)), Some(message)], trailers: None })
}

/// The answer to a call: one message, and that it went well.
pub(crate) fn answer(message: Bytes) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let pieces = [Some(head_of(&message)), Some(message)];
    respond(Body::new(Pieces { pieces, trailers: Some(trailers) }))
}

/// An answer with this body.
pub(crate) fn respond(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn head_of(message: &Bytes) -> Bytes {
    Bytes::copy_from_slice(&head(message.len()))
}

#[derive(Debug)]
struct Pieces {
    pieces: [Option<Bytes>; 2],
    trailers: Option<HeaderMap>,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(piece) = self.pieces.iter_mut().find_map(Option::take) {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.iter().all(Option::is_none) && self.trailers.is_none()
    }
}

/// The address of a method at a member.
pub(crate) fn at(base: &Uri, path: &'static str) -> Uri {
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static(path));
    parts.scheme.get_or_insert(Scheme::HTTP);
    Uri::from_parts(parts).expect("an authority and a path make an address")
}

/// A refusal of the library in grpc-go's words.
pub(crate) fn worded(status: Status) -> Status {
    let found = status.message().strip_prefix("Error, decoded message length too large: found ");
    match found.and_then(|rest| rest.split_once(" bytes, the limit is: ")) {
        Some((length, limit)) => {
            let limit = limit.trim_end_matches(" bytes");
            let text = format!("grpc: received message larger than max ({length} vs. {limit})");
            Status::resource_exhausted(text)
        }
        None => status,
    }
}
