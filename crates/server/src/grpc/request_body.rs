//! A request's body, in which a call that takes one message has one.
//!
//! The library reads the first message of such a call and passes over the rest. grpc-go refuses a second
//! one on the calls that answer with a stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::methods::Kind;

/// A message's head: a flag and the length.
const HEAD_BYTES: usize = 5;

/// Wraps a request's body; see the module.
#[derive(Debug)]
pub(super) struct RequestBody<B> {
    inner: B,
    /// Where in the only message the body is; `None` where there may be several.
    only: Option<OnlyMessage>,
}

impl<B> RequestBody<B> {
    pub(super) fn new(inner: B, kind: Kind) -> Self {
        let only = match kind {
            Kind::ServerStream => Some(OnlyMessage::default()),
            // Of a unary call grpc-go reads one message and no further.
            Kind::Unary | Kind::BidiStream => None,
        };
        Self { inner, only }
    }
}

/// Follows one message.
#[derive(Debug, Default)]
struct OnlyMessage {
    head: [u8; HEAD_BYTES],
    /// Bytes that have passed, head and all.
    passed: usize,
}

impl OnlyMessage {
    /// Lets the next bytes pass, and says whether they are still of that message.
    fn pass(&mut self, bytes: &[u8]) -> bool {
        let missing = HEAD_BYTES.saturating_sub(self.passed).min(bytes.len());
        self.head[self.passed.min(HEAD_BYTES)..][..missing].copy_from_slice(&bytes[..missing]);
        self.passed += bytes.len();
        let [_, length @ ..] = self.head;
        self.passed <= HEAD_BYTES
            || self.passed - HEAD_BYTES
                <= usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)
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
        if let Some(only) = &mut self.only
            && let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && !only.pass(data.chunk())
        {
            return Poll::Ready(Some(Err(Box::new(Status::internal(
                "cardinality violation: received multiple request messages for non-client-streaming RPC",
            )))));
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
    use super::*;

    #[test]
    fn a_second_message_is_noticed_however_the_bytes_come() {
        let first = [0, 0, 0, 0, 2, 7, 7];
        let two = [first, first].concat();
        for piece in 1..=two.len() {
            let mut only = OnlyMessage::default();
            assert!(first.chunks(piece).all(|bytes| only.pass(bytes)), "pieces of {piece}");
            let mut only = OnlyMessage::default();
            assert!(!two.chunks(piece).all(|bytes| only.pass(bytes)), "pieces of {piece}");
        }
    }
}
