//! Reads messages from streams as raw bytes, creates bodies with a single message, and translates transport errors.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Response, Uri};
use http_body::{Body as HttpBody, Frame};
use prost::{Message, Name};
use quorate_grpc::ending::{self, trailers};
use quorate_grpc::framing::message_head;
use quorate_grpc::head::compression;
use tonic::body::Body;
use tonic::codec::{DecodeBuf, Decoder, Streaming};
use tonic::{Code, Status};

/// A decoder that returns each message as bytes.
#[derive(Debug)]
struct Raw;

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}

/// A stream of undecoded messages.
pub(crate) type Messages = Streaming<Bytes>;

/// Returns the messages of a request.
pub(crate) fn requests<B>(headers: &HeaderMap, body: B, bytes_max: usize) -> Messages
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    Streaming::new_request(Raw, body, compression(headers), Some(bytes_max))
}

/// Returns the messages of a response. If the response failed before its first message, returns the error.
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
    Ok(Streaming::new_response(Raw, body, head.status, compression(&head.headers), Some(bytes_max)))
}

/// Decodes a message. Errors have the same texts as a member's errors.
pub(crate) fn decode<M: Message + Name + Default + 'static>(bytes: Bytes) -> Result<M, Status> {
    quorate_api::codec::decode(bytes)
}

/// Returns a request body with one message.
pub(crate) fn whole(message: Bytes) -> Body {
    Body::new(Pieces { pieces: [Some(head_of(&message)), Some(message)], end: None })
}

/// Returns a successful response with one message.
pub(crate) fn answer(message: Bytes) -> Response<Body> {
    let pieces = [Some(head_of(&message)), Some(message)];
    ending::answer(Body::new(Pieces { pieces, end: Some(Status::ok("")) }))
}

fn head_of(message: &Bytes) -> Bytes {
    let head = message_head(message.len()).expect("no message from a member is longer than 2 GiB");
    Bytes::copy_from_slice(&head)
}

#[derive(Debug)]
struct Pieces {
    pieces: [Option<Bytes>; 2],
    /// The status that ends the body, if the body is a response.
    end: Option<Status>,
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
        Poll::Ready(self.end.take().map(|status| trailers(&status)))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.iter().all(Option::is_none) && self.end.is_none()
    }
}

/// Returns the URI of a method on a member.
pub(crate) fn at(base: &Uri, path: &'static str) -> Uri {
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static(path));
    parts.scheme.get_or_insert(Scheme::HTTP);
    Uri::from_parts(parts).expect("an authority and a path form a URI")
}

/// Returns the status for a transport error.
pub(crate) fn transport_error(error: &hyper::Error) -> Status {
    Status::unavailable(format!("error reading from server: {}", innermost(error)))
}

/// Returns the text of the error that is the cause of this error.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
