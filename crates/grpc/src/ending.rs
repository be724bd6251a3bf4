//! The start and end of responses: their headers, and the trailers with the status.

use std::task::Poll;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;

/// The content type of gRPC.
pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Returns the response to a call. `body` sends the messages of the response.
#[must_use]
pub fn answer(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// Returns the last frame of a body, which contains the status.
pub fn trailers(status: &Status) -> Result<Frame<Bytes>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}

/// The progress of a body towards its last frame, which contains the status.
#[derive(Debug)]
pub enum Ending {
    /// More messages may be sent.
    Open,
    /// The buffered messages must still be sent, followed by this status.
    With(Status),
    /// All messages and the status have been sent.
    Sent,
}

impl Ending {
    /// Returns whether more messages may be sent.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// Returns the last frame once all messages have been sent, then `None`.
    pub fn poll_frame(&mut self) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let status = match self {
            Self::Open => return Poll::Pending,
            Self::Sent => return Poll::Ready(None),
            Self::With(status) => std::mem::replace(status, Status::ok("")),
        };
        *self = Self::Sent;
        Poll::Ready(Some(trailers(&status)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_exactly_once_with_the_status_trailers() {
        let mut ending = Ending::Open;
        assert!(ending.poll_frame().is_pending());
        ending = Ending::With(Status::cancelled("why"));
        let Poll::Ready(Some(Ok(frame))) = ending.poll_frame() else {
            panic!("the body ended without trailers")
        };
        assert_eq!(frame.trailers_ref().unwrap()["grpc-message"], "why");
        assert!(matches!(ending.poll_frame(), Poll::Ready(None)));
        assert!(!ending.is_open());
    }
}
