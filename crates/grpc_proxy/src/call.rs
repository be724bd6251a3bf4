//! Identifies the caller of a call by the request headers, and counts the call in the metrics until it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Response};
use quorate_grpc::head::{HAS_LEADER, requires_leader};
use quorate_grpc::observed::{Observed, Observer};
use quorate_telemetry::metrics::ProxyMetrics;
use tonic::Code;
use tonic::body::Body;

/// Headers that apply only to the connection between client and proxy and are not forwarded.
const HOP_HEADERS: [&str; 11] = [
    "host",
    "te",
    "connection",
    "content-type",
    "content-length",
    "user-agent",
    "grpc-encoding",
    "grpc-accept-encoding",
    "accept-encoding",
    "transfer-encoding",
    "date",
];

/// Returns the headers that are forwarded to members: the token, the deadline and the client's own metadata.
pub(crate) fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = headers.clone();
    for name in HOP_HEADERS {
        forwarded.remove(name);
    }
    forwarded
}

/// The identity of a caller and the options of its requests. The proxy merges requests only if their callers have the
/// same identity and options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    token: Option<HeaderValue>,
    authorization: Option<HeaderValue>,
    requires_leader: bool,
}

impl Caller {
    /// Reads the caller from request headers.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let of = |name| headers.get(name).cloned();
        Self {
            token: of("token"),
            authorization: of("authorization"),
            requires_leader: requires_leader(headers),
        }
    }

    /// Returns the headers that express this identity and these options.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let lines = [("token", &self.token), ("authorization", &self.authorization)];
        for (name, value) in lines {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
        if self.requires_leader {
            headers.insert(HAS_LEADER, HeaderValue::from_static("true"));
        }
        headers
    }

    /// Returns whether the caller sent no token.
    pub(crate) const fn is_anonymous(&self) -> bool {
        self.token.is_none() && self.authorization.is_none()
    }

    /// Returns whether the caller requires a member with a leader.
    pub(crate) const fn requires_leader(&self) -> bool {
        self.requires_leader
    }
}

/// Counts the calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) begun: AtomicU64,
    pub(crate) under_way: AtomicU64,
}

/// A call that is counted in the metrics exactly once, however it ends.
#[derive(Debug)]
pub(crate) struct Counted {
    metrics: Arc<ProxyMetrics>,
    method: (usize, usize),
    calls: Arc<Calls>,
    begun: Instant,
    code: Option<i32>,
}

impl Counted {
    pub(crate) fn begin(
        metrics: &Arc<ProxyMetrics>,
        method: (usize, usize),
        calls: &Arc<Calls>,
    ) -> Self {
        metrics.grpc.at(method.0, method.1).started.inc();
        calls.begun.fetch_add(1, Ordering::Relaxed);
        calls.under_way.fetch_add(1, Ordering::Relaxed);
        Self {
            metrics: Arc::clone(metrics),
            method,
            calls: Arc::clone(calls),
            begun: Instant::now(),
            code: None,
        }
    }

    /// Attaches the call to its response, so that the call ends together with the response body.
    pub(crate) fn until(self, answer: Response<Body>) -> Response<Body> {
        let (head, body) = answer.into_parts();
        let body = Body::new(Observed::new(&head.headers, body, Some(self)));
        Response::from_parts(head, body)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.calls.under_way.fetch_sub(1, Ordering::Relaxed);
        // If the call is dropped before its response has ended, the client has cancelled it.
        let code = self.code.unwrap_or(Code::Cancelled as i32);
        let (service, method) = self.method;
        self.metrics.grpc.at(service, method).handled(code, self.begun.elapsed());
    }
}

impl Observer for Counted {
    fn ended(&mut self, code: Code, _message: &str) {
        self.code = Some(code as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (http::HeaderName::from_static(name), HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn client_metadata_is_forwarded_without_hop_by_hop_headers() {
        let lines =
            headers(&[("token", "t"), ("user-agent", "x"), ("te", "trailers"), ("other", "o")]);
        assert_eq!(forwarded(&lines), headers(&[("token", "t"), ("other", "o")]));
    }

    #[test]
    fn callers_with_different_tokens_or_leader_requirements_are_distinguished() {
        let lines = headers(&[("token", "t"), ("hasleader", "true")]);
        let caller = Caller::of(&lines);
        assert_eq!(caller.headers(), lines);
        assert!(caller.requires_leader());
        assert_ne!(caller, Caller::of(&headers(&[("token", "t")])));
    }
}
