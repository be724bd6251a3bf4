//! One call under way: its response when it is there, or the end of its deadline.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use super::body::Observed;
use super::large_reply;
use super::observe::CallStats;
use super::wording::in_grpc_gos_words;
use crate::member::RequestError;
use crate::methods::Kind;
use crate::quote::go_quote_bytes;

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
        let kind = self.stats.as_ref().map(|stats| stats.kind);
        let response = match &mut self.state {
            State::Answered(response) => response.take().expect("a call is answered once"),
            State::Running { response, deadline } => match response.as_mut().poll(cx) {
                Poll::Ready(Ok(response)) => reword(response, kind),
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
        let body = large_reply::body_of(&mut head.extensions, body);
        let body = Observed::new(&head.headers, body, self.stats.take());
        Poll::Ready(Ok(Response::from_parts(head, body)))
    }
}

/// Gives a refusal by the library the words that clients know.
fn reword(response: Response<Body>, kind: Option<Kind>) -> Response<Body> {
    let Some(kind) = kind else { return response };
    match Status::from_header_map(response.headers()) {
        None => response,
        Some(status) => in_grpc_gos_words(status, kind).into_http(),
    }
}

/// Reads a `grpc-timeout`: up to eight digits and a unit. The error is grpc-go's text.
pub(super) fn parse_timeout(value: &HeaderValue) -> Result<Duration, String> {
    let text = value.as_bytes();
    let fault = |what: &str| format!("transport: timeout {what}: {}", go_quote_bytes(text));
    let (unit, digits) = match text {
        [] | [_] => return Err(fault("string is too short")),
        [digits @ .., unit] if digits.len() <= 8 => (unit, digits),
        _ => return Err(fault("string is too long")),
    };
    let nanos_per_unit: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return Err(fault("unit is not recognized")),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        let digits = go_quote_bytes(digits);
        return Err(format!("strconv.ParseUint: parsing {digits}: invalid syntax"));
    }
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    Ok(Duration::from_nanos(count.saturating_mul(nanos_per_unit)))
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
        assert_eq!(parse("5S"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("99999999m"), Ok(Duration::from_millis(99_999_999)));
        assert_eq!(parse("4999910u"), Ok(Duration::from_micros(4_999_910)));
        assert_eq!(parse("99999999M"), Ok(Duration::from_secs(99_999_999 * 60)));
        assert!(parse("99999999H").unwrap() > Duration::from_secs(500 * 365 * 86_400));
        for (bad, text) in [
            ("", "transport: timeout string is too short: \"\""),
            ("S", "transport: timeout string is too short: \"S\""),
            ("1x", "transport: timeout unit is not recognized: \"1x\""),
            ("123456789S", "transport: timeout string is too long: \"123456789S\""),
            ("-1S", "strconv.ParseUint: parsing \"-1\": invalid syntax"),
            ("+1S", "strconv.ParseUint: parsing \"+1\": invalid syntax"),
        ] {
            assert_eq!(parse(bad), Err(text.to_owned()));
        }
    }
}
