//! The source of a request's body: a gRPC client, or the gateway, which converts JSON to messages.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use quorate_net::listen::IncomingBody;
use tokio_stream::Stream;
use tonic::Status;
use tonic::codegen::StdError;

/// The body of a request.
pub(crate) enum ClientBody {
    /// The body as received from a gRPC client.
    Grpc(IncomingBody),
    /// One framed message; `None` after it has been read.
    Message(Option<Bytes>),
    /// A stream of framed messages.
    Messages(Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>),
}

impl fmt::Debug for ClientBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grpc(_) => "Grpc",
            Self::Message(_) => "Message",
            Self::Messages(_) => "Messages",
        })
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        match &mut *self {
            Self::Grpc(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|read| read.map_err(Into::into))),
            Self::Message(message) => {
                Poll::Ready(message.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Self::Messages(messages) => messages.as_mut().poll_next(cx).map(|message| {
                let refused = |status: Status| -> StdError { Box::new(status) };
                message.map(|read| read.map(Frame::data).map_err(refused))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Grpc(body) => body.is_end_stream(),
            Self::Message(message) => message.is_none(),
            Self::Messages(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Grpc(body) => body.size_hint(),
            Self::Message(message) => {
                SizeHint::with_exact(message.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Messages(_) => SizeHint::default(),
        }
    }
}
