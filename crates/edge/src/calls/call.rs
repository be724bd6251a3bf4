//! A call in progress, which completes with its response or at its deadline. The deadline of a stream also ends its
//! response.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use super::large_reply;
use super::observe::CallStats;
use super::status::status;
use quorate_grpc::methods::Kind;
use quorate_grpc::observed::{Observed, Observer as _};
use quorate_grpc::until_deadline::UntilDeadline;
use quorate_grpc::wording::in_grpc_gos_words;
use quorate_net::listen::ResponseDeadline;
use quorate_requests::RequestError;

pub(crate) type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A call in progress.
#[expect(
    missing_debug_implementations,
    reason = "a response in progress has no useful debug output"
)]
pub struct Call {
    state: State,
    stats: Option<CallStats>,
}

enum State {
    Answered(Option<Response<Body>>),
    Running { response: ResponseFuture, deadline: Option<Pin<Box<Sleep>>> },
}

impl Call {
    /// Creates a call that returns a given response without calling a method. The call is not counted.
    pub(crate) const fn answered(response: Response<Body>) -> Self {
        Self { state: State::Answered(Some(response)), stats: None }
    }

    /// Creates a call that one of the common checks refused.
    pub(crate) fn refused(status: &Status, stats: CallStats) -> Self {
        let response = status.clone().into_http();
        Self { state: State::Answered(Some(response)), stats: Some(stats) }
    }

    pub(crate) fn started(
        response: ResponseFuture,
        stats: CallStats,
        timeout: Option<Duration>,
    ) -> Self {
        let deadline = timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        Self { state: State::Running { response, deadline }, stats: Some(stats) }
    }
}

/// Records the call as cancelled if it is dropped before its response, which happens when the client disconnects.
impl Drop for Call {
    fn drop(&mut self) {
        if let Some(mut stats) = self.stats.take() {
            stats.ended(Code::Cancelled, "");
        }
    }
}

impl Future for Call {
    type Output = Result<Response<Observed<CallStats>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let kind = self.stats.as_ref().map(|stats| stats.kind);
        let response = match &mut self.state {
            State::Answered(response) => response.take().expect("the response is taken only once"),
            State::Running { response, deadline } => match response.as_mut().poll(cx) {
                Poll::Ready(Ok(response)) => {
                    let mut response = reword(response, kind);
                    match deadline.take() {
                        Some(deadline) if kind != Some(Kind::Unary) => {
                            let ends_at = ResponseDeadline(deadline.deadline());
                            response.extensions_mut().insert(ends_at);
                            response.map(|body| UntilDeadline::body(body, deadline))
                        }
                        Some(_) | None => response,
                    }
                }
                Poll::Pending => match deadline.as_mut().map(|sleep| sleep.as_mut().poll(cx)) {
                    Some(Poll::Ready(())) => status(RequestError::DeadlineExceeded).into_http(),
                    Some(Poll::Pending) | None => return Poll::Pending,
                },
            },
        };
        if let Some(stats) = &mut self.stats {
            let status = Status::from_header_map(response.headers());
            stats.responded(status.map_or(Code::Ok, |status| status.code()));
        }
        let (mut head, body) = response.into_parts();
        let body = large_reply::body_of(&mut head.extensions, body);
        let body = match &self.stats {
            Some(stats) => stats.read_ahead(body, cx),
            None => body,
        };
        let body = Observed::new(&mut head.headers, body, self.stats.take());
        Poll::Ready(Ok(Response::from_parts(head, body)))
    }
}

/// Replaces the text of an error from the gRPC library with the text that clients expect.
fn reword(response: Response<Body>, kind: Option<Kind>) -> Response<Body> {
    let Some(kind) = kind else { return response };
    match Status::from_header_map(response.headers()) {
        None => response,
        Some(status) => in_grpc_gos_words(status, kind).into_http(),
    }
}
