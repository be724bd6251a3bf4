//! Metrics, log lines, traces and audit records of a whole call.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prost::Message as _;
use prost::encoding::{WireType, decode_key};
use quorate_api::etcdserverpb::ResponseHeader;
use tonic::body::Body;
use tonic::{Code, Status};

use super::access::Noted;
use super::request_stats::{self, RequestStats};
use quorate_grpc::framing::{Follower, HEAD_BYTES, Passed};
use quorate_grpc::methods::{Kind, SERVICES};
use quorate_grpc::observed::Observer;
use quorate_grpc::status::code_name;
use quorate_requests::ServerInfo;
use quorate_requests::admission::CallPermit;
use quorate_telemetry::audit::Outcome;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
#[cfg(test)]
use quorate_telemetry::metrics::MetricsLevel;
use quorate_telemetry::trace::{Attribute, SpanEnd};

/// Records metrics, traces and audit data of one call.
#[derive(Debug)]
pub struct CallStats {
    metrics: Arc<Metrics>,
    service: usize,
    method: usize,
    pub(crate) kind: Kind,
    started: Instant,
    /// The duration above which a unary call is logged as slow.
    slow: Duration,
    /// The remote address of the connection.
    remote: Option<SocketAddr>,
    /// Tracks the boundaries of the sent messages.
    sent: Follower,
    /// The permit that the call holds, if it has one.
    permit: Option<Arc<CallPermit>>,
    /// The code and the duration of the call in the metrics, once the call is counted.
    counted: Option<(Code, Duration)>,
    /// Records of a traced or audited call. Boxed, because most calls are neither traced nor audited.
    followed: Option<Box<Followed>>,
}

/// The trace and audit record of a call, and the data needed to complete them.
#[derive(Debug)]
struct Followed {
    noted: Noted,
    /// The local address of the call's connection.
    local: Option<SocketAddr>,
}

impl CallStats {
    pub(crate) fn start(
        info: &ServerInfo,
        (service, method): (usize, usize),
        kind: Kind,
        remote: Option<SocketAddr>,
    ) -> Self {
        let metrics = Arc::clone(info.metrics());
        let series = metrics.grpc.at(service, method);
        series.started.inc();
        if kind == Kind::Unary {
            series.received.inc();
        }
        Self {
            metrics,
            service,
            method,
            kind,
            started: Instant::now(),
            slow: info.limits().slow_unary,
            remote,
            sent: Follower::default(),
            permit: None,
            counted: None,
            followed: None,
        }
    }

    /// Attaches the trace and the audit record. `local` is the local address of the connection.
    pub(crate) fn noted(mut self, noted: &Noted, local: Option<SocketAddr>) -> Self {
        self.followed = Some(Box::new(Followed { noted: noted.clone(), local }));
        self
    }

    /// Returns the counter of the messages received.
    pub(crate) fn received(&self) -> Received {
        let (service, method) = (self.service, self.method);
        Received { metrics: Arc::clone(&self.metrics), service, method, kind: self.kind }
    }

    /// Makes the call hold this permit until all parts of the call are dropped.
    pub(crate) fn with_permit(mut self, permit: Arc<CallPermit>) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Counts the call under the version in the client's version header.
    pub(crate) fn count_client(&self, version: ClientVersion<'_>) {
        let call_type = if self.kind == Kind::Unary { "unary" } else { "stream" };
        self.metrics.server.client_requests.with(&[version.label, call_type]).inc();
    }

    /// Records that the response is ready to be sent. A unary call is counted now, with the code of its response: the
    /// time that the client takes to read the response is not part of the call's duration, as in etcd.
    pub(crate) fn responded(&mut self, code: Code) {
        if self.kind != Kind::Unary {
            return;
        }
        if let Some(permit) = &self.permit {
            permit.release();
        }
        if let Some(followed) = &self.followed
            && let Some(trace) = &followed.noted.trace
        {
            trace.note_response();
        }
        let took = self.started.elapsed();
        self.count(code, took);
        if took > self.slow || log::enabled(log::Level::Debug) {
            self.log_stats(took);
        }
    }

    /// Counts the call, unless it is already counted. Returns the code and the duration with which it is counted.
    fn count(&mut self, code: Code, took: Duration) -> (Code, Duration) {
        if let Some(counted) = self.counted {
            return counted;
        }
        self.counted = Some((code, took));
        let series = self.metrics.grpc.at(self.service, self.method);
        if self.kind == Kind::Unary {
            series.sent.inc();
        }
        series.handled(code as i32, took);
        (code, took)
    }

    /// Reads the first part of the response to an audited unary call, so that the audit log has the revision even if
    /// the client reads no part. Returns a body that still contains the part.
    pub(crate) fn read_ahead(&self, mut body: Body, cx: &mut Context<'_>) -> Body {
        let account = self.followed.as_ref().and_then(|followed| followed.noted.account.as_ref());
        let (Kind::Unary, Some(account)) = (self.kind, account) else { return body };
        let Poll::Ready(first) = Pin::new(&mut body).poll_frame(cx) else { return body };
        let part = first.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let Some(revision) = part.and_then(|part| revision_of(part)) {
            account.note_revision(revision);
        }
        Body::new(ReadAhead { first: Some(first), rest: body })
    }

    fn method(&self) -> (&'static str, &'static str) {
        let service = &SERVICES[self.service];
        (service.name, service.methods[self.method].name)
    }

    #[cold]
    fn log_stats(&self, took: Duration) {
        let (service, method) = self.method();
        let method = format!("/{service}/{method}");
        let started = SystemTime::now() - took;
        let remote = self
            .remote
            .map_or_else(|| "No remote client info.".to_owned(), |remote| remote.to_string());
        let RequestStats { requests, request_bytes, responses, response_bytes, text } =
            request_stats::take().unwrap_or_default();
        macro_rules! report {
            ($level:ident) => {
                log::$level!(
                    "request stats",
                    "start time" = started,
                    "time spent" = took,
                    "remote" = remote,
                    "response type" = method,
                    "request count" = requests,
                    "request size" = request_bytes,
                    "response count" = responses,
                    "response size" = response_bytes,
                    "request content" = text
                )
            };
        }
        if took > self.slow {
            report!(warn);
        } else {
            report!(debug);
        }
    }
}

/// The header with the version of the client's library. The constant avoids parsing the name for each
/// request.
const CLIENT_API_VERSION: HeaderName = HeaderName::from_static("client-api-version");

/// The version of the client's library, from the headers of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientVersion<'a> {
    /// The version's label in metrics.
    pub(crate) label: &'a str,
    /// Whether the header is valid UTF-8. A missing header counts as valid.
    pub(crate) is_valid: bool,
}

impl<'a> ClientVersion<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let Some(value) = headers.get(CLIENT_API_VERSION) else {
            return Self { label: UNKNOWN_VERSION, is_valid: true };
        };
        let label = version_label(value.to_str().unwrap_or(UNKNOWN_VERSION));
        Self { label, is_valid: std::str::from_utf8(value.as_bytes()).is_ok() }
    }
}

/// The label for clients that send no valid version.
const UNKNOWN_VERSION: &str = "unknown";

/// Maximum length of a version used as a label, in bytes.
const VERSION_BYTES_MAX: usize = 24;

/// Returns the metric label for a client's version: two or three numbers, possibly with a pre-release suffix. Any other
/// text becomes [`UNKNOWN_VERSION`], because clients could otherwise create arbitrarily many labels.
fn version_label(text: &str) -> &str {
    let (numbers, suffix) = text.split_once('-').unwrap_or((text, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = text.len() <= VERSION_BYTES_MAX
        && (2..=3).contains(&numbers.split('.').count())
        && numbers.split('.').all(is_number)
        && !suffix.is_empty()
        && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    if is_version { text } else { UNKNOWN_VERSION }
}

impl Followed {
    /// Writes the audit line, and ends the span with the attributes that OpenTelemetry defines for RPC, as
    /// etcd's library does.
    fn report(
        &self,
        (service, method): (&str, &str),
        (code, message): (Code, &str),
        took: Duration,
    ) {
        let name = format!("{service}/{method}");
        if let Some(account) = &self.noted.account {
            // The text of an internal error is omitted, because it may contain request data.
            let error = if code == Code::Internal { "" } else { message };
            let (code, took) = (code_name(code), Some(took));
            account.end(Outcome { method: &format!("/{name}"), code, error, took });
        }
        let Some(trace) = &self.noted.trace else { return };
        let mut attributes = vec![
            Attribute::text("rpc.method", name.as_bytes()),
            Attribute::text("rpc.system.name", b"grpc"),
        ];
        if let Some(local) = self.local {
            attributes.push(Attribute::text("server.address", local.ip().to_string().as_bytes()));
            attributes.push(Attribute::number("server.port", local.port().into()));
        }
        let code_text = code_name(code).as_bytes();
        attributes.push(Attribute::text("rpc.response.status_code", code_text));
        let error = is_own_fault(code).then_some(message);
        trace.end(&SpanEnd { name: &name, attributes: &attributes, error });
    }
}

/// A body whose first part has been read ahead.
struct ReadAhead {
    first: Option<Option<Result<Frame<Bytes>, Status>>>,
    rest: Body,
}

impl HttpBody for ReadAhead {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(first),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.first.is_some() { SizeHint::default() } else { self.rest.size_hint() }
    }
}

/// Returns the revision in the header of a response that starts with these bytes. The header is the first field of
/// every response. The bytes may end in the middle of a later field.
fn revision_of(part: &[u8]) -> Option<i64> {
    let (head, mut message) = part.split_at_checked(HEAD_BYTES)?;
    if head[0] != 0 || decode_key(&mut message).ok()? != HEADER {
        return None;
    }
    let len = prost::decode_length_delimiter(&mut message).ok()?;
    Some(ResponseHeader::decode(message.get(..len)?).ok()?.revision)
}

/// The field number and wire type of the header field, which are the same in all responses.
const HEADER: (u32, WireType) = (1, WireType::LengthDelimited);

/// Returns whether OpenTelemetry counts a call with this code as a failure of the server.
const fn is_own_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// Counts the messages received on one call.
#[derive(Debug)]
pub(crate) struct Received {
    metrics: Arc<Metrics>,
    service: usize,
    method: usize,
    kind: Kind,
}

impl Received {
    /// Returns the counter for a call of an arbitrary method, and the metrics that the counter updates.
    #[cfg(test)]
    pub(crate) fn of_any(kind: Kind) -> (Arc<Metrics>, Self) {
        let metrics = Metrics::new(&crate::methods::counted(), MetricsLevel::Basic);
        let metrics = Arc::new(metrics);
        (Arc::clone(&metrics), Self { metrics, service: 0, method: 0, kind })
    }

    /// Counts a message with this uncompressed size.
    pub(crate) fn message(&self, bytes: u64) {
        self.metrics.network.client_received_bytes.add(bytes);
        // The message of a unary call was already counted when the call started.
        if self.kind != Kind::Unary {
            self.metrics.grpc.at(self.service, self.method).received.inc();
        }
    }
}

impl Observer for CallStats {
    fn passed(&mut self, part: &[u8]) {
        let Passed { messages, bytes } = self.sent.pass(part);
        self.metrics.network.client_sent_bytes.add(bytes);
        if self.kind != Kind::Unary {
            self.metrics.grpc.at(self.service, self.method).sent.add(messages);
        }
    }

    fn ended(&mut self, code: Code, message: &str) {
        let (counted, took) = self.count(code, self.started.elapsed());
        // The outcome of a unary call does not depend on whether its client reads the response.
        let message = if counted == code { message } else { "" };
        if let Some(followed) = self.followed.take() {
            followed.report(self.method(), (counted, message), took);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use http::Response;
    use http_body_util::{BodyExt as _, Full};
    use quorate_api::etcdserverpb::RangeResponse;
    use quorate_api::record::{Fields, KeyValue};
    use quorate_requests::admission::Bound;

    use super::super::call::Call;
    use super::super::large_reply::{Reply, body_of};
    use super::*;

    /// Returns the statistics of a unary call, and the metrics in which it is counted.
    fn unary() -> (Arc<Metrics>, CallStats) {
        let (metrics, _) = Received::of_any(Kind::Unary);
        let stats = CallStats {
            metrics: Arc::clone(&metrics),
            service: 0,
            method: 0,
            kind: Kind::Unary,
            started: Instant::now(),
            slow: Duration::MAX,
            remote: None,
            sent: Follower::default(),
            permit: None,
            counted: None,
            followed: None,
        };
        (metrics, stats)
    }

    /// Returns the numbers of ended and of failed calls.
    fn counts(metrics: &Metrics) -> (u64, u64) {
        let counts = metrics.grpc.counts().next().unwrap();
        (counts.ended, counts.failed)
    }

    #[tokio::test]
    async fn a_unary_call_is_counted_once_when_its_response_is_ready() {
        let large = Response::new(Body::new(Full::from(vec![7; 100_000])));
        let refused = Status::not_found("no such key").into_http();
        for (response, expected) in [(large, (1, 0)), (refused, (1, 1))] {
            let (metrics, stats) = unary();
            let response = Box::pin(std::future::ready(Ok(response)));
            let unread = Call::started(response, stats, None).await.unwrap();
            assert_eq!(counts(&metrics), expected, "the client has not read the response");
            drop(unread);
            assert_eq!(counts(&metrics), expected, "the client has disconnected");
        }
    }

    #[test]
    fn a_unary_call_that_ends_before_its_response_is_counted_as_cancelled() {
        let (metrics, stats) = unary();
        drop(Call::started(Box::pin(std::future::pending()), stats, None));
        assert_eq!(counts(&metrics), (1, 1));
    }

    /// Returns the first part of a range response with one value of this size, at revision 5.
    async fn first_part(value_bytes: usize) -> Bytes {
        let header = Some(ResponseHeader { revision: 5, ..ResponseHeader::default() });
        let value = vec![7; value_bytes];
        let record = KeyValue::new(&Fields { key: b"k", value: &value, ..Fields::default() });
        let message = RangeResponse { header, kvs: vec![record], more: false, count: 1 };
        let reply = Reply::new(message, None).admit(&Arc::new(Bound::new(1))).unwrap();
        let mut response = reply.into_response().unwrap();
        let body = body_of(response.extensions_mut(), Body::empty());
        pin!(body).frame().await.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn the_revision_of_a_large_response_is_read_from_its_first_part() {
        for value_bytes in [5_000, 8 << 10, 1 << 20] {
            assert_eq!(revision_of(&first_part(value_bytes).await), Some(5), "{value_bytes} bytes");
        }
    }

    #[test]
    fn only_valid_versions_become_metric_labels() {
        for version in ["3.5", "3.5.16", "3.6.0-alpha.0", "3.4.0-rc.1", "unknown"] {
            assert_eq!(version_label(version), version);
        }
        let long = format!("3.5.{}", "1".repeat(100));
        for text in ["", "3", "3.5.1.2", "3.5.x", "3..5", "3.5.1-", "3.5.1-a\"b", "x y", &long] {
            assert_eq!(version_label(text), UNKNOWN_VERSION, "{text}");
        }
    }
}
