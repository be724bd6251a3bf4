//! One call under way: its response when it is there, or the end of its deadline.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use super::body::Observed;
use super::large_reply;
use super::observe::CallStats;
use crate::member::RequestError;

pub(super) type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A call; see the module.
pub(crate) struct Call {
    state: State,
    stats: Option<CallStats>,
}

enum State {
    Answered(Option<Response<Body>>),
    Running { response: ResponseFuture, deadline: Option<Pin<Box<Sleep>>> },
}

impl Call {
    /// A call that never reached a method, and is not counted.
    pub(super) const fn answered(response: Response<Body>) -> Self {
        Self { state: State::Answered(Some(response)), stats: None }
    }

    /// A call that a common check has refused.
    pub(super) fn refused(status: &Status, stats: CallStats) -> Self {
        let response = status.clone().into_http();
        Self { state: State::Answered(Some(response)), stats: Some(stats) }
    }

    pub(super) fn started(
        response: ResponseFuture,
        stats: CallStats,
        timeout: Option<Duration>,
    ) -> Self {
        let deadline = timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        Self { state: State::Running { response, deadline }, stats: Some(stats) }
    }
}

impl Future for Call {
    type Output = Result<Response<Observed<CallStats>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = match &mut self.state {
            State::Answered(response) => response.take().expect("a call is answered once"),
            State::Running { response, deadline } => match response.as_mut().poll(cx) {
                Poll::Ready(Ok(response)) => reword(response),
                Poll::Pending => match deadline.as_mut().map(|sleep| sleep.as_mut().poll(cx)) {
                    Some(Poll::Ready(())) => {
                        Status::from(RequestError::DeadlineExceeded).into_http()
                    }
                    Some(Poll::Pending) | None => return Poll::Pending,
                },
            },
        };
        if let Some(stats) = &self.stats {
            stats.responded();
        }
        let (mut head, body) = response.into_parts();
        let body = large_reply::take_body(&mut head.extensions).unwrap_or(body);
        let body = Observed::new(&head.headers, body, self.stats.take());
        Poll::Ready(Ok(Response::from_parts(head, body)))
    }
}

/// Gives the library's refusal of an oversized message grpc-go's code and words.
fn reword(response: Response<Body>) -> Response<Body> {
    let Some(status) = Status::from_header_map(response.headers()) else { return response };
    if status.code() != Code::OutOfRange
        || !status.message().starts_with("Error, decoded message length too large")
    {
        return response;
    }
    let mut numbers =
        status.message().split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let (found, limit) = (numbers.next().unwrap_or("?"), numbers.next().unwrap_or("?"));
    let text = format!("grpc: received message larger than max ({found} vs. {limit})");
    Status::resource_exhausted(text).into_http()
}

/// The answer to a request that is no gRPC, or `None` if it is.
pub(super) fn refuse_content_type(content_type: Option<&HeaderValue>) -> Option<Response<Body>> {
    let given = content_type.map_or(&b""[..], HeaderValue::as_bytes);
    if given.starts_with(b"application/grpc") {
        return None;
    }
    let given = String::from_utf8_lossy(given);
    let text = format!("invalid gRPC request content-type {given:?}");
    let mut response = Status::invalid_argument(text).into_http();
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Some(response)
}

/// Reads a `grpc-timeout`: up to eight digits and a unit. A malformed one is no deadline.
pub(super) fn parse_timeout(value: &HeaderValue) -> Option<Duration> {
    let (unit, digits) = value.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// First value of a metadata key, or `default`.
pub(super) fn metadata<'a>(headers: &'a HeaderMap, key: &str, default: &'a str) -> &'a str {
    headers.get(key).and_then(|value| value.to_str().ok()).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_eight_digits_and_a_unit() {
        let parse = |text: &'static str| parse_timeout(&HeaderValue::from_static(text));
        assert_eq!(parse("5S"), Some(Duration::from_secs(5)));
        assert_eq!(parse("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(parse("4999910u"), Some(Duration::from_micros(4_999_910)));
        for bad in ["", "S", "1", "1x", "123456789S", "-1S"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_oversized_message_is_refused_in_grpc_gos_words() {
        let text = "Error, decoded message length too large: found 3000000 bytes, the limit is: 2097152 bytes";
        let reworded = reword(Status::out_of_range(text).into_http());
        let status = Status::from_header_map(reworded.headers()).unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(
            status.message(),
            "grpc: received message larger than max (3000000 vs. 2097152)"
        );
    }
}
