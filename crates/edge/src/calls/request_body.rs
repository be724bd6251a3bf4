//! The body of a request. Counts the body's bytes, and limits the body to one message if the call accepts only one
//! message.
//!
//! The received part of a message is buffered until the message is complete. The message of a unary call stays buffered
//! until the response is ready. The buffer counts against a limit (`admission`), and the call is refused if the limit
//! is reached. An incomplete request must not occupy memory forever, and a client must not hold the permit of a
//! single-message call without sending the message. The call is therefore also refused if the rest of the message does
//! not keep arriving (`pace`).
//!
//! A compressed message is counted at its received size until it is complete, and then at the uncompressed size stored
//! in its last bytes, because it is decompressed immediately on the connection's thread. The decompressor ignores bytes
//! after the end of its data, so the stored size may be wrong. Compressed messages are therefore counted again after
//! decoding ([`take_in`]).
//!
//! The gRPC library reserves memory for a whole message as soon as it knows the length. An incomplete message is
//! therefore withheld from the library until the rest has arrived.
//!
//! The body of a unary call ends after its message, because grpc-go reads only one message. The call is answered even
//! if its caller has not ended the request, and the library ignores further data. For calls with a single request
//! message and a response stream, grpc-go waits for the end of the request and refuses a second message.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::observe::Received;
use super::status::status;
use quorate_grpc::framing::{HEAD_BYTES, message_len, whole_message};
use quorate_grpc::methods::Kind;
use quorate_net::pace::Pace;
use quorate_requests::RequestError;
use quorate_requests::admission::CallPermit;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

/// Number of bytes at the end of gzip data that contain the uncompressed size.
const GZIP_LENGTH_BYTES: usize = 4;

/// A request body whose bytes are counted and limited.
#[derive(Debug)]
pub(crate) struct RequestBody<B> {
    inner: B,
    kind: Kind,
    received: Received,
    message: Message,
    permit: Arc<CallPermit>,
    /// Size of the headers, which are held together with the message.
    head_bytes: u64,
    message_bytes_max: u64,
    /// The received part of an incomplete message.
    withheld: BytesMut,
    /// The deadline for the next bytes while the rest of the request is outstanding.
    pace: Option<(Pace, Pin<Box<Sleep>>)>,
}

impl<B> RequestBody<B> {
    pub(crate) fn new(
        inner: B,
        (kind, received): (Kind, Received),
        permit: Arc<CallPermit>,
        head_bytes: u64,
        message_bytes_max: usize,
    ) -> Self {
        Self {
            inner,
            kind,
            received,
            message: Message::default(),
            permit,
            head_bytes,
            message_bytes_max: message_bytes_max as u64,
            withheld: BytesMut::new(),
            pace: None,
        }
    }

    /// Admits the next bytes, unless a limit is reached or the call accepts no more bytes.
    fn pass(&mut self, bytes: &[u8]) -> Result<(), Status> {
        if let Some((pace, _)) = &mut self.pace {
            pace.received(bytes.len() as u64);
        }
        let (received, bytes_max) = (&self.received, self.message_bytes_max);
        let was_whole = self.message.is_whole();
        match self.kind {
            // Most stream messages arrive complete, uncompressed and in a frame of their own, and need no buffer.
            Kind::BidiStream if self.message.passed == 0 && is_plain(bytes) => {
                received.message((bytes.len() - HEAD_BYTES) as u64);
                self.permit.release();
                self.head_bytes = 0;
                return Ok(());
            }
            Kind::BidiStream => {
                let whole = |message: &Message| received.message(message.payload_bytes(bytes_max));
                if self.message.pass_all(bytes, whole) {
                    self.permit.release();
                    self.head_bytes = 0;
                    return Ok(());
                }
            }
            Kind::Unary => _ = self.message.pass(bytes),
            Kind::ServerStream => {
                if !self.message.pass(bytes) {
                    return Err(Status::internal(
                        "cardinality violation: received multiple request messages for \
                         non-client-streaming RPC",
                    ));
                }
            }
        }
        if self.kind != Kind::BidiStream && !was_whole && self.message.is_whole() {
            received.message(self.message.payload_bytes(bytes_max));
        }
        let held = self.head_bytes + self.message.held_bytes(self.message_bytes_max);
        self.permit.hold(held).map_err(|full| status(RequestError::from(full)))
    }

    /// Admits the next bytes, and returns what the library may read now: these bytes, after the bytes withheld before,
    /// without those of an incomplete message.
    fn admit(&mut self, mut data: Bytes) -> Result<Bytes, Status> {
        self.pass(&data)?;
        let excess = if self.has_ended() { self.message.cut_off() } else { 0 };
        data.truncate(data.len().saturating_sub(excess));
        let incomplete = self.message.withheld_of(&data, self.message_bytes_max);
        let mut complete = data.split_to(data.len() - incomplete);
        if !complete.is_empty() && !self.withheld.is_empty() {
            self.withheld.extend_from_slice(&complete);
            complete = self.withheld.split().freeze();
        }
        self.withheld.extend_from_slice(&data);
        Ok(complete)
    }

    /// Returns whether the call accepts no more bytes.
    fn has_ended(&self) -> bool {
        self.kind == Kind::Unary && self.message.is_whole()
    }

    /// Completes if the rest of the request does not keep arriving. A client may neither keep a single-message call
    /// open without sending the message, nor leave a large message of a stream incomplete.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let waits_for_rest = match self.kind {
            Kind::Unary | Kind::ServerStream => true,
            Kind::BidiStream => self.message.passed > 0 && self.permit.holds_bytes(),
        };
        if !waits_for_rest {
            self.pace = None;
            return Poll::Pending;
        }
        let (pace, timer) = self.pace.get_or_insert_with(|| {
            let pace = Pace::new(Instant::now());
            let timer = Box::pin(tokio::time::sleep_until(pace.period_end()));
            (pace, timer)
        });
        loop {
            ready!(timer.as_mut().poll(cx));
            if !pace.is_kept(Instant::now()) {
                return Poll::Ready(status(RequestError::Timeout));
            }
            timer.as_mut().reset(pace.period_end());
        }
    }
}

/// Returns whether the bytes are exactly one uncompressed message.
fn is_plain(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0) && whole_message(bytes).is_some()
}

/// Returns a decoded message. The router attaches the call's permit to compressed messages, which are counted here at
/// their decoded size.
pub(crate) fn take_in<M: prost::Message>(
    request: tonic::Request<M>,
) -> Result<(MetadataMap, M), Status> {
    if let Some(permit) = request.extensions().get::<Arc<CallPermit>>() {
        let bytes = request.get_ref().encoded_len() as u64;
        permit.hold(bytes).map_err(|full| status(RequestError::from(full)))?;
    }
    let (metadata, _, message) = request.into_parts();
    Ok((metadata, message))
}

/// The progress of receiving one message.
#[derive(Debug, Default)]
struct Message {
    head: [u8; HEAD_BYTES],
    /// The last received bytes of a compressed message. Once the message is complete, these bytes state its
    /// uncompressed size.
    tail: [u8; GZIP_LENGTH_BYTES],
    /// Number of bytes processed, including the prefix.
    passed: usize,
}

impl Message {
    /// Processes the next bytes. Returns whether all of these bytes belong to the message.
    fn pass(&mut self, bytes: &[u8]) -> bool {
        let missing = HEAD_BYTES.saturating_sub(self.passed).min(bytes.len());
        self.head[self.passed.min(HEAD_BYTES)..][..missing].copy_from_slice(&bytes[..missing]);
        let start = self.passed;
        self.passed += bytes.len();
        let end = self.end();
        // Bytes after the end of the message do not belong to it. The compression flag is the first byte.
        if self.is_compressed() {
            self.keep_tail(&bytes[..end.saturating_sub(start).min(bytes.len())]);
        }
        self.passed <= end
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        let fresh = &bytes[bytes.len().saturating_sub(GZIP_LENGTH_BYTES)..];
        self.tail.rotate_left(fresh.len());
        self.tail[GZIP_LENGTH_BYTES - fresh.len()..].copy_from_slice(fresh);
    }

    /// Processes the next bytes of consecutive messages, calls `whole` for each complete message, and returns whether
    /// the last message is complete.
    fn pass_all(&mut self, mut bytes: &[u8], mut whole: impl FnMut(&Self)) -> bool {
        while !bytes.is_empty() {
            // The end of the message is known only once the prefix is complete.
            let missing =
                if self.passed < HEAD_BYTES { HEAD_BYTES } else { self.end() } - self.passed;
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            self.pass(now);
            bytes = rest;
            if self.is_whole() {
                whole(self);
                *self = Self::default();
            }
        }
        self.passed == 0
    }

    /// Returns the offset of the message's end, or of the prefix's end while the prefix is incomplete.
    fn end(&self) -> usize {
        if self.passed < HEAD_BYTES {
            return HEAD_BYTES;
        }
        message_len(&self.head).saturating_add(HEAD_BYTES)
    }

    /// Returns how many of the last bytes processed belong to an incomplete message and are withheld. The library refuses
    /// a message that is too long as soon as it knows the length, so such a message is not withheld.
    fn withheld_of(&self, bytes: &[u8], bytes_max: u64) -> usize {
        if self.is_whole() || self.end() as u64 > bytes_max + HEAD_BYTES as u64 {
            return 0;
        }
        self.passed.min(bytes.len())
    }

    /// Removes the bytes after the message's end, and returns their number.
    fn cut_off(&mut self) -> usize {
        let excess = self.passed.saturating_sub(self.end());
        self.passed -= excess;
        excess
    }

    const fn is_compressed(&self) -> bool {
        self.head[0] != 0
    }

    fn is_whole(&self) -> bool {
        self.passed >= HEAD_BYTES && self.passed >= self.end()
    }

    /// Returns the uncompressed size of a compressed message, at most `bytes_max`.
    fn becomes(&self, bytes_max: u64) -> u64 {
        bytes_max.min(u32::from_le_bytes(self.tail).into())
    }

    /// Returns the memory occupied by the message: the received bytes, or the uncompressed size once the message is
    /// complete.
    fn held_bytes(&self, bytes_max: u64) -> u64 {
        let passed = self.passed as u64;
        if self.is_compressed() && self.is_whole() {
            passed.max(self.becomes(bytes_max))
        } else {
            passed
        }
    }

    /// Returns the length of a complete message, uncompressed and without its prefix.
    fn payload_bytes(&self, bytes_max: u64) -> u64 {
        if self.is_compressed() {
            self.becomes(bytes_max)
        } else {
            (self.end() - HEAD_BYTES) as u64
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<tonic::codegen::StdError>> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            if self.has_ended() {
                return Poll::Ready(None);
            }
            let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) else {
                let stalled = ready!(self.poll_stalled(cx));
                return Poll::Ready(Some(Err(Box::new(stalled))));
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => match self.admit(data) {
                    Ok(complete) if complete.is_empty() => {}
                    Ok(complete) => return Poll::Ready(Some(Ok(Frame::data(complete)))),
                    Err(status) => return Poll::Ready(Some(Err(Box::new(status)))),
                },
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None if self.withheld.is_empty() => return Poll::Ready(None),
                // The library reports that the message is incomplete.
                None => {
                    let withheld = self.withheld.split().freeze();
                    return Poll::Ready(Some(Ok(Frame::data(withheld))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended() || (self.inner.is_end_stream() && self.withheld.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt as _, Full, StreamBody};
    use tokio_stream::StreamExt as _;

    use super::*;
    use quorate_requests::admission::{Caller, Calls};

    #[test]
    fn a_second_message_is_detected_however_the_bytes_are_split() {
        let first = [0, 0, 0, 0, 2, 7, 7];
        let two = [first, first].concat();
        for piece in 1..=two.len() {
            let mut only = Message::default();
            assert!(
                first.chunks(piece).all(|bytes| only.pass(bytes)),
                "body split into pieces of {piece} bytes"
            );
            let mut only = Message::default();
            assert!(
                !two.chunks(piece).all(|bytes| only.pass(bytes)),
                "body split into pieces of {piece} bytes"
            );
        }
    }

    #[test]
    fn the_bytes_of_a_message_are_counted_until_it_is_complete() {
        let message = [0, 0, 0, 0, 3, 7, 7, 7];
        let stream = message.repeat(3);
        for piece in 1..=stream.len() {
            let mut follower = Message::default();
            let (mut passed, mut whole_count) = (0, 0);
            for bytes in stream.chunks(piece) {
                passed += bytes.len();
                let is_whole = follower.pass_all(bytes, |whole| {
                    assert_eq!(whole.payload_bytes(100), 3);
                    whole_count += 1;
                });
                assert_eq!(is_whole, passed % message.len() == 0);
                assert_eq!(follower.held_bytes(100), (passed % message.len()) as u64);
            }
            assert_eq!(whole_count, 3);
        }
    }

    #[test]
    fn a_complete_compressed_message_is_counted_at_its_uncompressed_size() {
        let message = [1, 0, 0, 0, 6, 7, 7, 0x10, 0x27, 0, 0];
        for piece in 1..=message.len() {
            let mut compressed = Message::default();
            for bytes in message.chunks(piece) {
                compressed.pass(bytes);
                let (passed, becomes) = (compressed.passed as u64, compressed.held_bytes(u64::MAX));
                assert_eq!(becomes, if compressed.passed < 11 { passed } else { 10_000 });
            }
            assert_eq!(compressed.held_bytes(100), 100, "a longer message is refused");
            assert!(!compressed.pass(&[9; 5]));
            assert_eq!(compressed.held_bytes(u64::MAX), 10_000, "bytes after the end do not count");
        }
        let mut empty = Message::default();
        empty.pass(&[1, 0, 0, 0, 0]);
        assert_eq!(empty.held_bytes(3), 5);
    }

    fn counted(kind: Kind) -> (Kind, Received) {
        (kind, Received::of_any(kind).1)
    }

    #[tokio::test]
    async fn metrics_count_complete_messages_and_their_uncompressed_bytes() {
        let calls = Arc::new(Calls::new(10, 1, 100_000));
        for (kind, messages) in [(Kind::Unary, 0), (Kind::ServerStream, 1), (Kind::BidiStream, 2)] {
            let (metrics, received) = Received::of_any(kind);
            let two = [&compressed(1_000, 2_000)[..], &part(300, 300)].concat();
            let wire = if kind == Kind::BidiStream { two } else { part(300, 300).to_vec() };
            let body = Full::new(Bytes::from(wire));
            let mut body = RequestBody::new(body, (kind, received), permit(&calls), 100, 2 << 20);
            body.frame().await.unwrap().unwrap();
            let bytes = if kind == Kind::BidiStream { 2_300 } else { 300 };
            assert_eq!(metrics.network.client_received_bytes.value(), bytes, "{kind:?}");
            assert_eq!(metrics.grpc.at(0, 0).received.value(), messages, "{kind:?}");
        }
    }

    fn permit(calls: &Arc<Calls>) -> Arc<CallPermit> {
        Caller::begin(&Arc::new(Caller::new(Arc::clone(calls))), || true).unwrap()
    }

    /// Returns a prefix for a message of `bytes` bytes, followed by the first `there` bytes of the message.
    fn part(bytes: u32, there: usize) -> Bytes {
        let mut part = vec![0];
        part.extend(bytes.to_be_bytes());
        part.resize(HEAD_BYTES + there, 7);
        part.into()
    }

    #[tokio::test]
    async fn received_bytes_are_counted_and_requests_are_refused_at_the_limit() {
        let calls = Arc::new(Calls::new(10, 1, 100_000));
        let mut permits = Vec::new();
        for kind in [Kind::Unary, Kind::ServerStream, Kind::BidiStream] {
            permits.push(permit(&calls));
            let permit = Arc::clone(permits.last().unwrap());
            let body = Full::new(part(1 << 20, 40_000));
            let mut body = RequestBody::new(body, counted(kind), permit, 100, 2 << 20);
            let frame = body.frame().await.unwrap();
            assert!(frame.is_ok(), "{kind:?}");
        }
        assert_eq!(calls.request_bytes.used(), 3 * (100 + 5 + 40_000));
        let body = Full::new(part(1 << 20, 40_000));
        let mut body = RequestBody::new(body, counted(Kind::Unary), permit(&calls), 100, 2 << 20);
        let refused = body.frame().await.unwrap().unwrap_err();
        let refused = Status::from_error(refused);
        assert_eq!(refused.message(), "etcdserver: too many requests");
        drop(permits);
        assert_eq!(calls.request_bytes.used(), 0);
    }

    /// Returns a compressed message of `bytes` bytes that states the uncompressed size `becomes`.
    fn compressed(bytes: u32, becomes: u32) -> Bytes {
        let head = [&[1][..], &bytes.to_be_bytes()].concat();
        let mut message = [head, vec![7; bytes as usize]].concat();
        let length = message.len() - GZIP_LENGTH_BYTES;
        message[length..].copy_from_slice(&becomes.to_le_bytes());
        message.into()
    }

    #[tokio::test]
    async fn the_byte_limit_counts_the_uncompressed_size_of_compressed_requests() {
        let calls = Arc::new(Calls::new(10_000, 1, 512 << 20));
        let caller = Arc::new(Caller::new(Arc::clone(&calls)));
        let pass = async |message| {
            let permit = Caller::begin(&caller, || true).unwrap();
            let body = Full::new(message);
            let mut body = RequestBody::new(body, counted(Kind::Unary), permit, 100, 2 << 20);
            let passed = body.frame().await.unwrap();
            passed.map(|_| body)
        };
        let mut puts = Vec::new();
        for count in 0..1_000 {
            puts.push(pass(compressed(1_000, 2_000)).await.unwrap());
            assert_eq!(calls.request_bytes.used(), 0, "after {count} small messages");
        }
        let bomb = pass(compressed(1_100, 1 << 20)).await.unwrap();
        assert_eq!(calls.request_bytes.used(), 100 + (1 << 20));
        let beyond = pass(compressed(4_000, u32::MAX)).await.unwrap();
        assert_eq!(
            calls.request_bytes.used(),
            200 + (3 << 20),
            "a message is counted at the message limit at most"
        );
        drop((puts, bomb, beyond));
        assert_eq!(calls.request_bytes.used(), 0);
    }

    #[test]
    fn the_byte_limit_counts_the_decoded_size_of_a_message() {
        let calls = Arc::new(Calls::new(10, 1, 100_000));
        let put = |permit: &Arc<CallPermit>| {
            let value = vec![7; 90_000].into();
            let put = quorate_api::etcdserverpb::PutRequest { value, ..Default::default() };
            let mut request = tonic::Request::new(put);
            request.extensions_mut().insert(Arc::clone(permit));
            take_in(request)
        };
        let permits = [permit(&calls), permit(&calls), permit(&calls)];
        put(&permits[0]).unwrap();
        assert!(calls.request_bytes.used() > 90_000);
        put(&permits[1]).unwrap();
        assert_eq!(put(&permits[2]).unwrap_err().message(), "etcdserver: too many requests");
        drop(permits);
        assert_eq!(calls.request_bytes.used(), 0);
    }

    #[tokio::test]
    async fn complete_messages_on_a_stream_do_not_count_against_the_byte_limit() {
        let calls = Arc::new(Calls::new(10, 1, 100_000));
        let permit = permit(&calls);
        permit.hold(50_000).unwrap();
        let body = Full::new(part(40_000, 40_000));
        let mut body = RequestBody::new(body, counted(Kind::BidiStream), permit, 50_000, 2 << 20);
        body.frame().await.unwrap().unwrap();
        assert_eq!(calls.request_bytes.used(), 0, "the bytes of the headers are released too");
    }

    #[tokio::test]
    async fn the_body_of_a_unary_call_ends_after_its_message() {
        let calls = Arc::new(Calls::new(10, 1, 100_000));
        let message = part(300, 300);
        for behind in [&b""[..], b"\0\0", &message] {
            for piece in [1, 7, 305, 310, 1_000] {
                let wire = [&message, behind].concat();
                let pieces =
                    wire.chunks(piece).map(|bytes| Frame::data(Bytes::copy_from_slice(bytes)));
                let pieces: Vec<Result<_, Infallible>> = pieces.map(Ok).collect();
                // The request never ends, so the body must end without waiting for more bytes.
                let open = tokio_stream::iter(pieces).chain(tokio_stream::pending());
                let inner = StreamBody::new(open);
                let mut body =
                    RequestBody::new(inner, counted(Kind::Unary), permit(&calls), 100, 2 << 20);
                let mut read = Vec::new();
                while let Some(frame) = body.frame().await {
                    read.extend_from_slice(&frame.unwrap().into_data().unwrap());
                }
                assert!(body.is_end_stream());
                assert_eq!(
                    read,
                    message,
                    "{} bytes after the message, pieces of {piece} bytes",
                    behind.len()
                );
            }
        }
    }

    /// Returns the sizes of the frames that the library reads if a body arrives in these pieces.
    async fn frames(kind: Kind, pieces: Vec<Bytes>, message_bytes_max: usize) -> Vec<usize> {
        let calls = Arc::new(Calls::new(10, 1, 1 << 20));
        let pieces = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
        let inner = StreamBody::new(tokio_stream::iter(pieces));
        let permit = permit(&calls);
        let mut body = RequestBody::new(inner, counted(kind), permit, 100, message_bytes_max);
        let mut sizes = Vec::new();
        while let Some(frame) = body.frame().await {
            sizes.push(frame.unwrap().into_data().unwrap().len());
        }
        sizes
    }

    #[tokio::test]
    async fn the_library_reads_a_message_only_when_it_is_complete() {
        let message = part(300, 300);
        let pieces = |wire: &[u8], size| wire.chunks(size).map(Bytes::copy_from_slice).collect();
        for kind in [Kind::Unary, Kind::ServerStream, Kind::BidiStream] {
            assert_eq!(frames(kind, pieces(&message, 7), 1_000).await, [305], "{kind:?}");
            // The library reports an incomplete message when the body has ended.
            assert_eq!(frames(kind, pieces(&message[..200], 7), 1_000).await, [200], "{kind:?}");
            // The library refuses a message that is too long.
            assert_eq!(frames(kind, pieces(&message[..20], 10), 299).await, [10, 10], "{kind:?}");
        }
        let three = message.repeat(3);
        assert_eq!(frames(Kind::BidiStream, pieces(&three, 400), 1_000).await, [305, 305, 305]);
        assert_eq!(frames(Kind::BidiStream, pieces(&three, 700), 1_000).await, [610, 305]);
    }

    /// Delivers the prefix of a 1 GiB message with `first` of its bytes, and then `each` bytes every second.
    struct Trickle {
        first: usize,
        each: usize,
        next: Option<Pin<Box<Sleep>>>,
    }

    impl Body for Trickle {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let piece = if let Some(next) = &mut self.next {
                ready!(next.as_mut().poll(cx));
                vec![7; self.each].into()
            } else {
                part(1 << 30, self.first)
            };
            self.next = Some(Box::pin(tokio::time::sleep(std::time::Duration::from_secs(1))));
            Poll::Ready(Some(Ok(Frame::data(piece))))
        }
    }

    /// Returns the error, if any, that ends a [`Trickle`] body with these arguments within an hour.
    async fn ending(kind: Kind, first: usize, each: usize) -> Option<Status> {
        let calls = Arc::new(Calls::new(10, 1, 512 << 20));
        let body = Trickle { first, each, next: None };
        let mut body = RequestBody::new(body, counted(kind), permit(&calls), 100, 1 << 30);
        let reading = async {
            loop {
                if let Err(error) = body.frame().await.expect("the body has more frames") {
                    return Status::from_error(error);
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(3600), reading).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_body_that_stops_arriving_is_refused() {
        for kind in [Kind::Unary, Kind::ServerStream, Kind::BidiStream] {
            let stalled = ending(kind, 100_000, 0).await.expect("an incomplete message is refused");
            assert_eq!(stalled.message(), "etcdserver: request timed out", "{kind:?}");
            assert!(ending(kind, 100_000, 1).await.is_some(), "{kind:?}");
            assert!(
                ending(kind, 100_000, 4_000).await.is_none(),
                "{kind:?}: 4,000 bytes per second are sufficient"
            );
            // Such a small message does not count against the limit. A stream may therefore stall, but a call that
            // accepts one message may not.
            for first in [0, 1_000] {
                let ended = ending(kind, first, 0).await.is_some();
                assert_eq!(ended, kind != Kind::BidiStream, "{kind:?}: {first} bytes arrived");
            }
        }
    }
}
