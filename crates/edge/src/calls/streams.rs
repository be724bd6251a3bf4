//! Code shared by message streams: ending them from the server's side and, for hand-written bodies, reading requests
//! and starting responses.
//!
//! The gRPC library's decoder copies each message into a buffer and updates its state for each piece, which takes
//! longer than renewing a lease. Therefore [`Requests`] decodes a message itself if the message arrives complete and
//! uncompressed in a frame of its own. As soon as a client sends anything else, the library reads the rest of the
//! stream.

use std::error::Error as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body::{Body, Frame};
use prost::{Message, Name};
use quorate_api::codec::{Half, decode};
use quorate_grpc::ending::answer;
use quorate_grpc::framing::{HEAD_BYTES, whole_message};
use quorate_grpc::head::compression;
use tokio_stream::Stream;
use tonic::codec::{CompressionEncoding, Streaming};
use tonic::codegen::StdError;
use tonic::{Code, Status};

use super::call::ResponseFuture;
use super::client_body::ClientBody;
use super::request_body::RequestBody;
use super::status::status;
use quorate_requests::StreamEnd;
use quorate_telemetry::metrics::Metrics;

/// Returns a client's message stream and its request headers.
pub(crate) fn requests<M: Message + Name + Default + 'static>(
    request: Request<RequestBody<ClientBody>>,
    message_bytes_max: usize,
) -> (Parts, Requests<M>) {
    let (head, body) = request.into_parts();
    let encoding = compression(&head.headers);
    (head, Requests { stage: Stage::Direct(body), encoding, message_bytes_max })
}

/// The messages of a client's stream.
#[derive(Debug)]
pub(crate) struct Requests<M, B = RequestBody<ClientBody>> {
    stage: Stage<M, B>,
    /// The compression that the client has announced.
    encoding: Option<CompressionEncoding>,
    message_bytes_max: usize,
}

#[derive(Debug)]
enum Stage<M, B> {
    /// All messages so far have arrived in frames of their own, complete and uncompressed.
    Direct(B),
    /// The gRPC library reads the stream.
    Library(Box<Streaming<M>>),
    /// A placeholder while the stage is being replaced.
    Between,
}

type BodyFrame = Result<Frame<Bytes>, StdError>;

impl<M, B> Requests<M, B>
where
    M: Message + Name + Default + 'static,
    B: Body<Data = Bytes, Error = StdError> + Send + Unpin + 'static,
{
    /// Returns the next message, or an error after which the stream has no further messages.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<M, Status>>> {
        if let Stage::Direct(body) = &mut self.stage {
            let frame = ready!(Pin::new(body).poll_frame(cx));
            if let Some(message) = self.plain_message(frame.as_ref()) {
                return Poll::Ready(Some(decode(message)));
            }
            if let Stage::Direct(body) = std::mem::replace(&mut self.stage, Stage::Between) {
                let body = Resumed { next: Some(frame), body };
                let (decoder, bytes_max) = (Half::<M>::default(), Some(self.message_bytes_max));
                let library = Streaming::new_request(decoder, body, self.encoding, bytes_max);
                self.stage = Stage::Library(Box::new(library));
            }
        }
        match &mut self.stage {
            Stage::Library(library) => Pin::new(&mut **library).poll_next(cx),
            Stage::Direct(_) | Stage::Between => Poll::Ready(None),
        }
    }

    /// Returns the message in a frame, without its prefix, if the frame contains exactly one uncompressed message whose
    /// length is permitted.
    fn plain_message(&self, frame: Option<&BodyFrame>) -> Option<Bytes> {
        let data = frame?.as_ref().ok()?.data_ref()?;
        let length = whole_message(data).filter(|_| data[0] == 0)?;
        (length <= self.message_bytes_max).then(|| data.slice(HEAD_BYTES..))
    }
}

/// A body whose next frame has already been read.
struct Resumed<B> {
    /// The frame, or `Some(None)` if the body has ended; `None` after it was returned.
    next: Option<Option<BodyFrame>>,
    body: B,
}

impl<B: Body<Data = Bytes, Error = StdError> + Unpin> Body for Resumed<B> {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<BodyFrame>> {
        match self.next.take() {
            Some(frame) => Poll::Ready(frame),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && self.body.is_end_stream()
    }
}

/// The API label in the metrics of failed streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Watch,
    LeaseKeepAlive,
}

impl Api {
    const fn name(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::LeaseKeepAlive => "lease-keepalive",
        }
    }
}

/// Counts a request that could not be read, unless the client has disconnected.
pub(crate) fn count_receive_failure(metrics: &Metrics, api: Api, failure: &Status) {
    // A status with a source is a transport error, which means that the client has disconnected.
    if failure.code() != Code::Cancelled && failure.source().is_none() {
        metrics.network.stream_failures.with(&[api.name(), "receive"]).inc();
    }
}

/// Counts a response that could not be sent.
pub(crate) fn count_send_failure(metrics: &Metrics, api: Api) {
    metrics.network.stream_failures.with(&[api.name(), "send"]).inc();
}

/// Returns a response with this body, from which the messages are sent.
pub(crate) fn respond(
    body: impl Body<Data = Bytes, Error = Status> + Send + 'static,
) -> ResponseFuture {
    Box::pin(std::future::ready(Ok(answer(tonic::body::Body::new(body)))))
}

/// Wraps a stream so that the member can end it: when `end` resolves to a reason, the stream returns the reason as an
/// error and ends.
pub(crate) fn until<T>(
    inner: impl Stream<Item = Result<T, Status>> + Send,
    end: StreamEnd,
) -> impl Stream<Item = Result<T, Status>> + Send {
    Until { inner: Box::pin(inner), end: Some(end) }
}

struct Until<S> {
    inner: Pin<Box<S>>,
    /// `None` after the member has ended the stream.
    end: Option<StreamEnd>,
}

impl<T, S: Stream<Item = Result<T, Status>>> Stream for Until<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if let Poll::Ready(why) = end.as_mut().poll(cx) {
            self.end = None;
            return Poll::Ready(Some(Err(status(why))));
        }
        self.inner.as_mut().poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use quorate_api::etcdserverpb::LeaseKeepAliveRequest;
    use quorate_grpc::framing::framed;

    use super::*;

    /// Returns the ids of the messages in a stream of these frames, and the error that ends the stream.
    async fn read(frames: Vec<BodyFrame>) -> (Vec<i64>, Option<Status>) {
        let body = StreamBody::new(tokio_stream::iter(frames));
        let stage = Stage::Direct(body);
        let mut requests = Requests::<LeaseKeepAliveRequest, _> {
            stage,
            encoding: Some(CompressionEncoding::Gzip),
            message_bytes_max: 20,
        };
        let mut ids = Vec::new();
        loop {
            match std::future::poll_fn(|cx| requests.poll_next(cx)).await {
                Some(Ok(message)) => ids.push(message.id),
                Some(Err(status)) => return (ids, Some(status)),
                None => return (ids, None),
            }
        }
    }

    fn message(id: i64) -> Bytes {
        framed(&LeaseKeepAliveRequest { id })
    }

    #[tokio::test]
    async fn messages_are_read_however_they_are_split_into_frames() {
        let wire: Vec<u8> = (1..=4).flat_map(|id| message(id << 40)).collect();
        let expected: Vec<i64> = (1..=4).map(|id| id << 40).collect();
        for piece in 1..=wire.len() {
            let frames = wire.chunks(piece).map(|data| Ok(Frame::data(data.to_vec().into())));
            let (ids, error) = read(frames.collect()).await;
            assert_eq!(ids, expected, "frames of {piece} bytes");
            assert!(error.is_none(), "{error:?}");
        }
        let frame = |data: Bytes| Ok(Frame::data(data));
        let mixed = [
            message(1),
            Bytes::new(),
            message(2),
            [message(3), message(4)].concat().into(),
            message(5),
        ];
        assert_eq!(read(mixed.map(frame).into()).await.0, [1, 2, 3, 4, 5]);
    }

    #[tokio::test]
    async fn invalid_messages_and_errors_end_a_stream_after_earlier_messages() {
        let after = async |frame: BodyFrame| {
            let first = Ok(Frame::data(message(1)));
            let (ids, error) = read(vec![first, frame]).await;
            assert_eq!(ids, [1]);
            error.map(|status| (status.code(), status.message().to_owned()))
        };
        let data = |bytes: &'static [u8]| Ok(Frame::data(Bytes::from_static(bytes)));
        let invalid =
            "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data";
        assert_eq!(after(data(&[0, 0, 0, 0, 1, 7])).await, Some((Code::Internal, invalid.into())));
        let long = after(data(&[
            0, 0, 0, 0, 21, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ]));
        assert_eq!(long.await.unwrap().0, Code::OutOfRange);
        let lost: StdError = Box::new(Status::unavailable("the connection is lost"));
        assert_eq!(
            after(Err(lost)).await,
            Some((Code::Unavailable, "the connection is lost".into()))
        );
        assert_eq!(after(Ok(Frame::trailers(http::HeaderMap::new()))).await, None);
    }
}
