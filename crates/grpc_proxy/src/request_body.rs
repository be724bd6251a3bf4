//! The body of a request. Counts the buffered bytes against a limit that all clients share, and refuses a request that
//! stops arriving.
//!
//! The message of a call with a single request message counts until the call is answered. On a stream, a message counts
//! only while it is incomplete. The rules are those of a member: requests shorter than [`COUNTED_BYTES_MIN`] are not
//! counted and therefore never refused, and a single connection cannot use up the limit, because once half of the limit
//! is in use, a connection that uses a sixteenth of the limit is refused further bytes.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use quorate_grpc::framing::HEAD_BYTES;
use quorate_grpc::methods::Kind;
use quorate_net::pace::Pace;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use crate::byte_limit::{ByteLimit, Share};

/// Maximum number of buffered bytes of all requests, as on a member.
const BUFFERED_BYTES_MAX: usize = 512 << 20;

/// Divisor for the share of the limit that one connection may use once half of the limit is in use.
const CONNECTION_SHARE: usize = 16;

/// Size below which the bytes of a request are not counted.
const COUNTED_BYTES_MIN: usize = 4 << 10;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The limit on buffered requests, and the share of one connection.
#[derive(Clone, Debug)]
pub(crate) struct RequestLimit {
    all: Arc<ByteLimit>,
    connection: Arc<ByteLimit>,
}

impl RequestLimit {
    pub(crate) fn new() -> Self {
        Self::of(BUFFERED_BYTES_MAX)
    }

    fn of(max: usize) -> Self {
        Self { all: ByteLimit::new(max), connection: ByteLimit::new(max / CONNECTION_SHARE) }
    }

    /// Returns the limit for another connection.
    pub(crate) fn for_connection(&self) -> Self {
        Self { all: Arc::clone(&self.all), connection: ByteLimit::new(self.connection.max()) }
    }

    /// Returns the buffered bytes of a new request.
    pub(crate) fn begin(&self) -> Arc<RequestBytes> {
        Arc::new(RequestBytes {
            limit: self.clone(),
            all: self.all.take_regardless(0),
            connection: self.connection.take_regardless(0),
        })
    }

    fn is_greedy(&self) -> bool {
        let Self { all, connection } = self;
        all.used() >= all.max() / 2 && connection.used() >= connection.max()
    }
}

/// The buffered bytes of one request.
#[derive(Debug)]
pub(crate) struct RequestBytes {
    limit: RequestLimit,
    all: Share,
    connection: Share,
}

impl RequestBytes {
    /// Raises the number of buffered bytes. Fails if the limit is reached.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), Status> {
        let more = bytes.saturating_sub(self.all.bytes());
        if more == 0 || bytes < COUNTED_BYTES_MIN {
            return Ok(());
        }
        if self.limit.is_greedy() || !self.all.grow(more) {
            return Err(Status::unknown("etcdserver: too many requests"));
        }
        self.connection.grow_regardless(more);
        Ok(())
    }

    fn release(&self) {
        self.all.release();
        self.connection.release();
    }
}

/// A request body whose buffered bytes are counted.
#[derive(Debug)]
pub(crate) struct RequestBody<B> {
    inner: B,
    kind: Kind,
    bytes: Arc<RequestBytes>,
    message: Message,
    /// The deadline for the next bytes while the rest of a message is outstanding.
    pace: Option<(Pace, Pin<Box<Sleep>>)>,
}

impl<B> RequestBody<B> {
    pub(crate) fn new(inner: B, kind: Kind, bytes: Arc<RequestBytes>) -> Self {
        Self { inner, kind, bytes, message: Message::default(), pace: None }
    }

    fn pass(&mut self, data: &[u8]) -> Result<(), Status> {
        if let Some((pace, _)) = &mut self.pace {
            pace.received(data.len() as u64);
        }
        match self.kind {
            Kind::Unary | Kind::ServerStream => self.message.received += data.len(),
            Kind::BidiStream => {
                if self.message.pass(data) {
                    self.bytes.release();
                }
            }
        }
        self.bytes.hold(self.message.received)
    }

    /// Completes if the rest of the message does not keep arriving.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let is_incomplete = match self.kind {
            Kind::Unary | Kind::ServerStream => true,
            Kind::BidiStream => self.message.received >= COUNTED_BYTES_MIN,
        };
        if !is_incomplete {
            self.pace = None;
            return Poll::Pending;
        }
        let (pace, timer) = self.pace.get_or_insert_with(|| {
            let pace = Pace::new(Instant::now());
            let timer = Box::pin(sleep_until(pace.period_end()));
            (pace, timer)
        });
        loop {
            ready!(timer.as_mut().poll(cx));
            if !pace.is_kept(Instant::now()) {
                return Poll::Ready(Status::unavailable("etcdserver: request timed out"));
            }
            timer.as_mut().reset(pace.period_end());
        }
    }
}

impl<B: HttpBody<Data = Bytes, Error: Into<Error>> + Unpin> HttpBody for RequestBody<B> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Poll::Ready(read) = Pin::new(&mut self.inner).poll_frame(cx) else {
            return self.poll_stalled(cx).map(|stalled| Some(Err(stalled.into())));
        };
        Poll::Ready(read.map(|read| {
            let frame = read.map_err(Into::into)?;
            if let Some(data) = frame.data_ref() {
                self.pass(data)?;
            }
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The incomplete message of a stream.
#[derive(Debug, Default)]
struct Message {
    head: [u8; HEAD_BYTES],
    /// Number of received bytes, including the prefix; 0 after the end of a message.
    received: usize,
}

impl Message {
    /// Processes the next bytes of the stream. Returns whether they complete a message.
    fn pass(&mut self, mut data: &[u8]) -> bool {
        let mut has_ended = false;
        while !data.is_empty() {
            let end = if self.received < HEAD_BYTES { HEAD_BYTES } else { self.end() };
            let (part, rest) = data.split_at(data.len().min(end - self.received));
            if self.received < HEAD_BYTES {
                self.head[self.received..][..part.len()].copy_from_slice(part);
            }
            self.received += part.len();
            if self.received >= HEAD_BYTES && self.received == self.end() {
                self.received = 0;
                has_ended = true;
            }
            data = rest;
        }
        has_ended
    }

    fn end(&self) -> usize {
        let [_, length @ ..] = self.head;
        HEAD_BYTES + u32::from_be_bytes(length) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http_body_util::{BodyExt as _, StreamBody};
    use quorate_grpc::framing::with_head;
    use tokio_stream::StreamExt as _;

    use super::*;

    const KIB: usize = 1 << 10;

    /// Returns the part with this length of a message of 1 MiB.
    fn part(bytes: usize) -> Bytes {
        with_head(&vec![7; KIB << 10]).slice(..bytes)
    }

    /// Returns a body that delivers these pieces, and then nothing more.
    fn body(limit: &RequestLimit, kind: Kind, pieces: Vec<Bytes>) -> RequestBody<impl Inner> {
        let pieces = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
        let stream = tokio_stream::iter(pieces).chain(tokio_stream::pending());
        RequestBody::new(StreamBody::new(stream), kind, limit.begin())
    }

    trait Inner: HttpBody<Data = Bytes, Error = Infallible> + Unpin {}
    impl<B: HttpBody<Data = Bytes, Error = Infallible> + Unpin> Inner for B {}

    async fn read<B: Inner>(body: &mut RequestBody<B>) -> Result<(), String> {
        let read = body.frame().await.expect("the body never ends");
        read.map(drop).map_err(|error| Status::from_error(error).message().to_owned())
    }

    #[tokio::test]
    async fn large_requests_are_refused_at_the_limit_of_buffered_bytes() {
        let limit = RequestLimit::of(160 * KIB);
        let connections: Vec<RequestLimit> = (0..16).map(|_| limit.for_connection()).collect();
        let part = |bytes| vec![part(bytes)];
        let mut bodies = Vec::new();
        for connection in &connections {
            let mut body = body(connection, Kind::Unary, part(10 * KIB));
            read(&mut body).await.unwrap();
            bodies.push(body);
        }
        let refused = Err("etcdserver: too many requests".to_owned());
        let next = || body(&limit, Kind::Unary, part(4 * KIB));
        assert_eq!(read(&mut next()).await, refused);
        read(&mut body(&limit, Kind::Unary, part(4 * KIB - 1))).await.unwrap();
        drop(bodies.pop());
        read(&mut next()).await.unwrap();
        drop(bodies);
        assert_eq!(limit.all.used(), 0);
    }

    #[tokio::test]
    async fn a_connection_with_large_requests_leaves_half_of_the_limit_to_others() {
        let limit = RequestLimit::of(160 * KIB);
        let connection = limit.for_connection();
        let [mut first, mut second, mut other] = [&connection, &connection, &limit]
            .map(|it| body(it, Kind::Unary, vec![part(90 * KIB)]));
        read(&mut first).await.unwrap();
        assert!(read(&mut second).await.is_err());
        drop(second);
        let mut small = body(&limit, Kind::Unary, vec![part(9 * KIB)]);
        read(&mut small).await.unwrap();
        assert!(read(&mut other).await.is_err(), "less than this is left of the limit");
    }

    #[tokio::test]
    async fn complete_messages_of_a_stream_are_not_counted() {
        let limit = RequestLimit::of(160 * KIB);
        let whole = with_head(&vec![7; 20 * KIB]);
        let wire: Bytes = [&whole[..], &whole, &whole[..9 * KIB]].concat().into();
        for piece in [3, 5, 1_000, wire.len()] {
            let pieces: Vec<Bytes> = wire.chunks(piece).map(Bytes::copy_from_slice).collect();
            let mut body = body(&limit, Kind::BidiStream, pieces.clone());
            for _ in &pieces {
                read(&mut body).await.unwrap();
                assert!(limit.all.used() <= whole.len());
            }
            assert_eq!(limit.all.used(), 9 * KIB);
            drop(body);
            assert_eq!(limit.all.used(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_stops_arriving_is_refused() {
        let limit = RequestLimit::new();
        for (kind, bytes, is_refused) in [
            (Kind::Unary, 0, true),
            (Kind::Unary, 5 * KIB, true),
            (Kind::ServerStream, 5 * KIB, true),
            (Kind::BidiStream, 5 * KIB, true),
            (Kind::BidiStream, KIB, false),
        ] {
            let mut body = body(&limit, kind, vec![part(bytes)]);
            read(&mut body).await.unwrap();
            let next = tokio::time::timeout(Duration::from_secs(3600), read(&mut body)).await;
            let refused = next.ok().map(|read| read.unwrap_err());
            let expected = is_refused.then_some("etcdserver: request timed out");
            assert_eq!(refused.as_deref(), expected, "{kind:?} {bytes}");
        }
    }
}
