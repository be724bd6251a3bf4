//! Identifies the caller of a call by the request headers, and counts the call in the metrics until it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Response};
use quorate_grpc::head::{HAS_LEADER, requires_leader};
use quorate_grpc::methods::{Kind, OF_ETCD};
use quorate_grpc::observed::{Observed, Observer};
use quorate_telemetry::metrics::ProxyMetrics;
use tonic::body::Body;
use tonic::{Code, Status};

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
    /// Whether the code and the duration are in the metrics.
    is_counted: bool,
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
            is_counted: false,
        }
    }

    /// Attaches the call to its response, so that the call ends together with the response body. A unary call is
    /// counted now, with the code of its response: the time that the client takes to read the response is not part of
    /// the call's duration, as in etcd.
    pub(crate) fn until(mut self, answer: Response<Body>) -> Response<Body> {
        let (service, method) = self.method;
        if OF_ETCD[service].methods[method].kind == Kind::Unary {
            let status = Status::from_header_map(answer.headers());
            self.count(status.map_or(Code::Ok, |status| status.code()));
        }
        let (mut head, body) = answer.into_parts();
        let body = Body::new(Observed::new(&mut head.headers, body, Some(self)));
        Response::from_parts(head, body)
    }

    /// Counts the call, unless it is already counted.
    fn count(&mut self, code: Code) {
        if !std::mem::replace(&mut self.is_counted, true) {
            let (service, method) = self.method;
            self.metrics.grpc.at(service, method).handled(code as i32, self.begun.elapsed());
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.calls.under_way.fetch_sub(1, Ordering::Relaxed);
        // If the call is dropped before its response has ended, the client has cancelled it.
        self.count(Code::Cancelled);
    }
}

impl Observer for Counted {
    fn ended(&mut self, code: Code, _message: &str) {
        self.count(code);
    }
}

#[cfg(test)]
mod tests {
    use quorate_grpc::methods::Method;
    use quorate_telemetry::metrics::CallCounts;

    use super::*;
    use crate::start::counted_methods;

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

    /// Returns the numbers of ended and of failed calls after each step of a call of this method: the response is
    /// ready, and the client disconnects without reading it.
    fn counts_of_unread(path: &str, response: Response<Body>) -> [(u64, u64); 2] {
        let metrics = Arc::new(ProxyMetrics::new(&counted_methods()));
        let calls = Arc::new(Calls::default());
        let is_at = |methods: &[Method]| methods.iter().position(|method| method.path == path);
        let mut services = OF_ETCD.iter().enumerate();
        let method = services.find_map(|(number, it)| Some((number, is_at(it.methods)?))).unwrap();
        let counts = || {
            let counts: Vec<_> = metrics.grpc.counts().collect();
            let sum = |of: fn(&CallCounts) -> u64| counts.iter().map(of).sum();
            (sum(|counts| counts.ended), sum(|counts| counts.failed))
        };
        let unread = Counted::begin(&metrics, method, &calls).until(response);
        let ready = counts();
        drop(unread);
        assert_eq!(calls.under_way.load(Ordering::Relaxed), 0);
        [ready, counts()]
    }

    #[test]
    fn a_unary_call_is_counted_once_when_its_response_is_ready() {
        let large = || Response::new(Body::new(http_body_util::Full::from(vec![7; 100_000])));
        let range = "/etcdserverpb.KV/Range";
        assert_eq!(counts_of_unread(range, large()), [(1, 0), (1, 0)]);
        let refused = Status::not_found("no such key").into_http();
        assert_eq!(counts_of_unread(range, refused), [(1, 1), (1, 1)]);
        // A stream ends with its last response.
        assert_eq!(counts_of_unread("/etcdserverpb.Watch/Watch", large()), [(0, 0), (1, 1)]);
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
