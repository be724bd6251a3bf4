//! The body of a stream's response, which ends at the deadline of the call.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use tonic::Status;
use tonic::body::Body;

use crate::ending::trailers;

/// A body with a deadline. At the deadline, the rest of the body is dropped, and the trailers report the error.
#[derive(Debug)]
pub struct UntilDeadline<D> {
    /// The body, and the future that completes at the deadline. `None` once the deadline has passed.
    rest: Option<(Body, D)>,
}

impl<D: Future<Output = ()> + Send + Unpin + 'static> UntilDeadline<D> {
    /// Returns a body that ends when `deadline` completes.
    pub fn body(inner: Body, deadline: D) -> Body {
        Body::new(Self { rest: Some((inner, deadline)) })
    }
}

/// Returns the status of a call that has exceeded its deadline, with etcd's text.
#[must_use]
pub fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

impl<D: Future<Output = ()> + Send + Unpin + 'static> HttpBody for UntilDeadline<D> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some((inner, deadline)) = &mut self.rest else { return Poll::Ready(None) };
        if Pin::new(deadline).poll(cx).is_pending() {
            return Pin::new(inner).poll_frame(cx);
        }
        self.rest = None;
        Poll::Ready(Some(trailers(&deadline_exceeded())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_ref().is_none_or(|(inner, _)| inner.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Waker;

    use tonic::Code;

    use super::*;

    /// A body that sends one message and then stays open, or ends.
    struct One {
        message: Option<&'static str>,
        ends: bool,
    }

    impl HttpBody for One {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.message.take() {
                Some(message) => Poll::Ready(Some(Ok(Frame::data(message.into())))),
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }

        fn is_end_stream(&self) -> bool {
            self.ends && self.message.is_none()
        }
    }

    /// A deadline that passes when the test sets the flag.
    struct Deadline(Arc<AtomicBool>);

    impl Future for Deadline {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if self.0.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    /// Returns a body with a deadline, and the flag that lets the deadline pass.
    fn until_deadline(ends: bool) -> (Body, Arc<AtomicBool>) {
        let has_passed = Arc::new(AtomicBool::new(false));
        let one = Body::new(One { message: Some("1"), ends });
        (UntilDeadline::body(one, Deadline(Arc::clone(&has_passed))), has_passed)
    }

    fn poll(body: &mut Body) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns the next frame, which must be ready.
    fn next(body: &mut Body) -> Option<Frame<Bytes>> {
        match poll(body) {
            Poll::Ready(frame) => frame.transpose().unwrap(),
            Poll::Pending => panic!("no frame is ready"),
        }
    }

    #[test]
    fn a_stream_that_is_open_at_the_deadline_ends_with_an_error() {
        let (mut body, has_passed) = until_deadline(false);
        assert_eq!(next(&mut body).unwrap().into_data().unwrap(), "1");
        assert!(poll(&mut body).is_pending());
        has_passed.store(true, Ordering::Relaxed);
        let trailers = next(&mut body).unwrap().into_trailers().unwrap();
        let error = Status::from_header_map(&trailers).unwrap();
        assert_eq!(
            (error.code(), error.message()),
            (Code::DeadlineExceeded, "context deadline exceeded")
        );
        assert!(body.is_end_stream() && next(&mut body).is_none());
    }

    #[test]
    fn a_stream_that_ends_before_the_deadline_is_unchanged() {
        let (mut body, _) = until_deadline(true);
        assert_eq!(next(&mut body).unwrap().into_data().unwrap(), "1");
        assert!(body.is_end_stream() && next(&mut body).is_none());
    }
}
