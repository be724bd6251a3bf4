//! A request's body: counted, and one message long where a call takes one.
//!
//! What has come of a message is held until the message is whole, and that of a unary call until its answer is there:
//! it counts (`admission`), and where there is no room the call is refused.
//!
//! The library reads the first message of such a call and passes over the rest. grpc-go refuses a second
//! one on the calls that answer with a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use super::status::status;
use crate::methods::Kind;
use quorate_member::RequestError;
use quorate_member::admission::CallRoom;

/// A message's head: a flag and the length.
const HEAD_BYTES: usize = 5;

/// How much larger a message may become when it is uncompressed, at most.
const INFLATION: u64 = 1032;

/// Wraps a request's body; see the module.
#[derive(Debug)]
pub(super) struct RequestBody<B> {
    inner: B,
    kind: Kind,
    message: Message,
    room: Arc<CallRoom>,
    /// What is held besides the message: the head.
    head_bytes: u64,
    message_bytes_max: u64,
}

impl<B> RequestBody<B> {
    pub(super) fn new(
        inner: B,
        kind: Kind,
        room: Arc<CallRoom>,
        head_bytes: u64,
        message_bytes_max: usize,
    ) -> Self {
        let message_bytes_max = message_bytes_max as u64;
        Self { inner, kind, message: Message::default(), room, head_bytes, message_bytes_max }
    }

    /// Lets the next bytes pass, unless there is no room for them or they are more than the call takes.
    fn pass(&mut self, bytes: &[u8]) -> Result<(), Status> {
        match self.kind {
            Kind::BidiStream => {
                if self.message.pass_all(bytes) {
                    self.room.release();
                    self.head_bytes = 0;
                    return Ok(());
                }
            }
            // Of a unary call grpc-go reads one message and no further.
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
        let held = self.head_bytes + self.message.held_bytes(self.message_bytes_max);
        self.room.hold(held).map_err(|full| status(RequestError::from(full)))
    }
}

/// Follows a message.
#[derive(Debug, Default)]
struct Message {
    head: [u8; HEAD_BYTES],
    /// Bytes that have passed, head and all.
    passed: usize,
}

impl Message {
    /// Lets the next bytes pass, and says whether they are still of that message.
    fn pass(&mut self, bytes: &[u8]) -> bool {
        let missing = HEAD_BYTES.saturating_sub(self.passed).min(bytes.len());
        self.head[self.passed.min(HEAD_BYTES)..][..missing].copy_from_slice(&bytes[..missing]);
        self.passed += bytes.len();
        self.passed <= self.end()
    }

    /// Lets the next bytes of one message after the other pass, and says whether the last one is whole.
    fn pass_all(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            // The end is known once the head is.
            let missing =
                if self.passed < HEAD_BYTES { HEAD_BYTES } else { self.end() } - self.passed;
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            self.pass(now);
            bytes = rest;
            if self.passed >= HEAD_BYTES && self.passed == self.end() {
                *self = Self::default();
            }
        }
        self.passed == 0
    }

    /// Where it ends, as far as its head says already.
    fn end(&self) -> usize {
        if self.passed < HEAD_BYTES {
            return HEAD_BYTES;
        }
        let [_, length @ ..] = self.head;
        usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX).saturating_add(HEAD_BYTES)
    }

    /// What has passed takes, uncompressed if it is not; no message of more than `bytes_max` is taken in.
    fn held_bytes(&self, bytes_max: u64) -> u64 {
        let passed = self.passed as u64;
        let is_compressed = self.head[0] != 0;
        if is_compressed { passed.max(bytes_max.min(passed * INFLATION)) } else { passed }
    }
}

impl<B: Body<Data = Bytes, Error: Into<tonic::codegen::StdError>> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(status) = self.pass(data.chunk())
        {
            return Poll::Ready(Some(Err(Box::new(status))));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;
    use quorate_member::admission::{Caller, Calls};

    #[test]
    fn a_second_message_is_noticed_however_the_bytes_come() {
        let first = [0, 0, 0, 0, 2, 7, 7];
        let two = [first, first].concat();
        for piece in 1..=two.len() {
            let mut only = Message::default();
            assert!(first.chunks(piece).all(|bytes| only.pass(bytes)), "pieces of {piece}");
            let mut only = Message::default();
            assert!(!two.chunks(piece).all(|bytes| only.pass(bytes)), "pieces of {piece}");
        }
    }

    #[test]
    fn a_message_is_held_until_it_is_whole() {
        let message = [0, 0, 0, 0, 3, 7, 7, 7];
        let stream = message.repeat(3);
        for piece in 1..=stream.len() {
            let mut follower = Message::default();
            let mut passed = 0;
            for bytes in stream.chunks(piece) {
                passed += bytes.len();
                assert_eq!(follower.pass_all(bytes), passed % message.len() == 0);
                assert_eq!(follower.held_bytes(100), (passed % message.len()) as u64);
            }
        }
        let mut compressed = Message::default();
        compressed.pass(&[1, 0, 0, 0, 9, 7, 7, 7]);
        assert_eq!(compressed.held_bytes(100), 100, "what it may become");
        assert_eq!(compressed.held_bytes(u64::MAX), 8 * INFLATION);
    }

    fn room(calls: &Arc<Calls>) -> Arc<CallRoom> {
        Caller::begin(&Arc::new(Caller::new(Arc::clone(calls)))).unwrap()
    }

    /// The head of a message of so many bytes, and this many of them.
    fn part(bytes: u32, there: usize) -> Bytes {
        let mut part = vec![0];
        part.extend(bytes.to_be_bytes());
        part.resize(HEAD_BYTES + there, 7);
        part.into()
    }

    #[tokio::test]
    async fn bytes_that_have_come_are_counted_and_refused_where_there_is_no_room() {
        let calls = Arc::new(Calls::new(10, 100_000));
        let mut rooms = Vec::new();
        for kind in [Kind::Unary, Kind::ServerStream, Kind::BidiStream] {
            rooms.push(room(&calls));
            let room = Arc::clone(rooms.last().unwrap());
            let body = Full::new(part(1 << 20, 40_000));
            let mut body = RequestBody::new(body, kind, room, 100, 2 << 20);
            let frame = body.frame().await.unwrap();
            assert!(frame.is_ok(), "{kind:?}");
        }
        assert_eq!(calls.request_bytes.used(), 3 * (100 + 5 + 40_000));
        let body = Full::new(part(1 << 20, 40_000));
        let mut body = RequestBody::new(body, Kind::Unary, room(&calls), 100, 2 << 20);
        let refused = body.frame().await.unwrap().unwrap_err();
        let refused = Status::from_error(refused);
        assert_eq!(refused.message(), "etcdserver: too many requests");
        drop(rooms);
        assert_eq!(calls.request_bytes.used(), 0);
    }

    #[tokio::test]
    async fn a_stream_holds_nothing_of_whole_messages() {
        let calls = Arc::new(Calls::new(10, 100_000));
        let room = room(&calls);
        room.hold(50_000).unwrap();
        let body = Full::new(part(40_000, 40_000));
        let mut body = RequestBody::new(body, Kind::BidiStream, room, 50_000, 2 << 20);
        body.frame().await.unwrap().unwrap();
        assert_eq!(calls.request_bytes.used(), 0, "nor of the head");
    }
}
