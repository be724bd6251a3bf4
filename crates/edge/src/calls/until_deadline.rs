//! The body of a stream's response, which ends at the deadline of the call.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use quorate_grpc::ending::trailers;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use super::status::status;
use quorate_requests::RequestError;

/// A body with a deadline. At the deadline, the rest of the body is dropped, and the trailers report the error.
pub(super) struct UntilDeadline {
    /// The body and its deadline. `None` once the deadline has passed.
    rest: Option<(Body, Pin<Box<Sleep>>)>,
}

impl UntilDeadline {
    /// Returns a body that ends at this deadline.
    pub(super) fn body(inner: Body, deadline: Pin<Box<Sleep>>) -> Body {
        Body::new(Self { rest: Some((inner, deadline)) })
    }
}

impl HttpBody for UntilDeadline {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some((inner, deadline)) = &mut self.rest else { return Poll::Ready(None) };
        if deadline.as_mut().poll(cx).is_pending() {
            return Pin::new(inner).poll_frame(cx);
        }
        self.rest = None;
        Poll::Ready(Some(trailers(&status(RequestError::DeadlineExceeded))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_ref().is_none_or(|(inner, _)| inner.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;
    use tonic::Code;

    use super::*;

    fn until(inner: Body, secs: u64) -> Body {
        UntilDeadline::body(inner, Box::pin(tokio::time::sleep(Duration::from_secs(secs))))
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_open_at_the_deadline_ends_with_an_error() {
        let messages = tokio_stream::iter([Ok::<_, Status>(Frame::data(Bytes::from_static(b"1")))]);
        let messages = tokio_stream::StreamExt::chain(messages, tokio_stream::pending());
        let mut body = until(Body::new(http_body_util::StreamBody::new(messages)), 5);
        let first = body.frame().await.unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "1");
        let start = tokio::time::Instant::now();
        let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(start.elapsed().as_secs(), 5);
        let error = Status::from_header_map(&trailers).unwrap();
        assert_eq!(
            (error.code(), error.message()),
            (Code::DeadlineExceeded, "context deadline exceeded")
        );
        assert!(body.is_end_stream() && body.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_before_the_deadline_is_unchanged() {
        let mut body = until(Body::new(http_body_util::Full::new(Bytes::from_static(b"1"))), 5);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "1");
        assert!(body.is_end_stream());
    }
}
