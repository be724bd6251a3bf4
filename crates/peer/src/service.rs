//! The paths of the peer port under `/raft`: streams, single messages, snapshots and probes.
//!
//! The order of the checks and the error messages are etcd's, because etcd members depend on both. Messages are buffered
//! within the bounds of [`crate::body_reader`].

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use quorate_core::incoming::{Depot, NotForUs};
use quorate_net::listen::{DirectWriter, IncomingBody};
use quorate_raft::{MemberId, Message};
use tokio::sync::Semaphore;

use crate::body::PeerBody;
use crate::body_reader::{BodyReader, LARGE_BODIES_MAX};
use crate::frame::StreamKind;
use crate::handshake::{self, CLUSTER_ID, SERVER_VERSION};
use crate::local::Local;
use crate::origin::ORIGIN;
use crate::probe::{self, PROBE_PATH};
use crate::snapshot_in::{self, ReceiveError};
use crate::table::Table;
use crate::wire::{self, WireError};
use quorate_net::runtime::blocking;
use quorate_telemetry::log;
use quorate_telemetry::throttle::LogThrottle;

/// Maximum length of a message that is decoded on the thread that received it.
const DECODED_HERE_BYTES_MAX: usize = 1 << 20;

/// The metric label of unknown senders.
const UNKNOWN_SENDER: &str = "unknown";

/// The service for requests under `/raft`.
#[derive(Debug)]
pub(crate) struct Service {
    local: Arc<Local>,
    table: Arc<Table>,
    depot: Arc<Mutex<Depot>>,
    large_bodies: Arc<Semaphore>,
    refusals: LogThrottle,
}

impl Service {
    pub(crate) fn new(local: Arc<Local>, table: Arc<Table>, depot: Depot) -> Self {
        Self {
            local,
            table,
            depot: Arc::new(Mutex::new(depot)),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES_MAX)),
            refusals: LogThrottle::default(),
        }
    }

    /// Returns the number of large messages that are being read.
    pub(crate) fn large_body_count(&self) -> usize {
        LARGE_BODIES_MAX - self.large_bodies.available_permits()
    }

    /// Answers a request whose path starts with `/raft`.
    pub(crate) async fn answer(&self, request: Request<IncomingBody>) -> Response<PeerBody> {
        match request.uri().path() {
            "/raft" => self.take_message(request).await,
            "/raft/snapshot" => self.take_snapshot(request).await,
            PROBE_PATH => text(StatusCode::OK, probe::answer()),
            path if path.starts_with("/raft/stream/") => self.open_stream(&request),
            _ => refusal(StatusCode::NOT_FOUND, "404 page not found"),
        }
    }

    async fn take_message(&self, request: Request<IncomingBody>) -> Response<PeerBody> {
        if let Err(refused) = self.greet(&request, &Method::POST) {
            return *refused;
        }
        let sender = handshake::sender_id(request.headers());
        let mut body = BodyReader::new(request.into_body(), self.local.read_timeout);
        let mut answer = match body.buffer_all(&self.large_bodies).await {
            Ok(body) => self.process(sender, body).await,
            Err(error) => {
                self.log_failure("failed to read Raft message", &error.to_string());
                self.count_bad_request(sender);
                refusal(StatusCode::BAD_REQUEST, "error reading raft message")
            }
        };
        self.mark(&mut answer);
        answer
    }

    /// Passes an encoded message to the consensus core, unless it must be refused or dropped. A long message is decoded
    /// on another thread, because this thread also sends and receives heartbeats.
    async fn process(&self, sender: Option<MemberId>, body: Bytes) -> Response<PeerBody> {
        let local = &self.local;
        let bytes = body.len();
        let decoded = if bytes > DECODED_HERE_BYTES_MAX {
            let local = Arc::clone(local);
            blocking(move || decode_admitted(&local, sender, &body)).await
        } else {
            decode_admitted(local, sender, &body)
        };
        let from = match &decoded {
            Ok(message) => Some(message.from),
            Err(Undelivered::NotForUs { scalars, .. }) => Some(scalars.from),
            Err(Undelivered::OtherSender | Undelivered::Invalid(_)) => None,
        };
        if let Some(from) = from {
            let from = local.label(from, UNKNOWN_SENDER);
            local.metrics.network.peer_received_bytes.with(&[&from]).add(bytes as u64);
        }
        match decoded {
            Ok(message) => {
                local.deliver(vec![message], bytes).await;
                empty(StatusCode::NO_CONTENT)
            }
            // This message is dropped even if the sender is then confirmed as a member. Consensus tolerates lost
            // messages.
            Err(Undelivered::NotForUs { scalars, error: error @ NotForUs::UnknownSender }) => {
                local.log_refused(&scalars, error);
                self.table.probe_identity(scalars.from);
                empty(StatusCode::NO_CONTENT)
            }
            Err(Undelivered::NotForUs { error, .. }) => self.refuse(error),
            Err(Undelivered::OtherSender) => self.refuse(NotForUs::OtherSender),
            Err(Undelivered::Invalid(error)) => {
                self.log_failure("failed to unmarshal Raft message", &error.to_string());
                self.count_bad_request(sender);
                refusal(StatusCode::BAD_REQUEST, "error unmarshalling raft message")
            }
        }
    }

    fn refuse(&self, error: NotForUs) -> Response<PeerBody> {
        self.log_failure("failed to process Raft message", &error.to_string());
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let mut answer = refusal(status, "error processing raft message");
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
        answer
    }

    fn open_stream(&self, request: &Request<IncomingBody>) -> Response<PeerBody> {
        if let Err(mut refused) = self.greet(request, &Method::GET) {
            self.mark_stream(&mut refused);
            return *refused;
        }
        let path = request.uri().path();
        let kind_and_id = path.rsplit_once('/').and_then(|(_, id)| {
            let is_of = |kind: &StreamKind| path.strip_suffix(id) == Some(kind.path());
            StreamKind::ALL.into_iter().find(is_of).map(|kind| (kind, id))
        });
        let mut answer = match kind_and_id {
            None => refusal(StatusCode::NOT_FOUND, "invalid path"),
            Some((kind, id)) => match handshake::parse_id(id) {
                None => refusal(StatusCode::NOT_FOUND, "invalid from"),
                Some(from) => self.open_stream_of(request, kind, from),
            },
        };
        self.mark_stream(&mut answer);
        answer
    }

    fn open_stream_of(
        &self,
        request: &Request<IncomingBody>,
        kind: StreamKind,
        from: MemberId,
    ) -> Response<PeerBody> {
        let local = &self.local;
        if local.known_members.is_removed(from) {
            self.log_refused_stream(
                "rejected stream from remote peer because it was removed",
                from,
            );
            return refusal(StatusCode::GONE, "removed member");
        }
        let Some(peer) = self.table.peer(from) else {
            if let Some((_, urls)) = handshake::sender(request.headers()) {
                self.table.add_remote(from, &urls, std::time::Instant::now());
            }
            self.log_refused_stream("failed to find remote peer in cluster", from);
            return refusal(StatusCode::NOT_FOUND, "error sender not found");
        };
        if !local.introduction.is_addressed(request.headers()) {
            self.log_refused_stream("ignored streaming request; ID mismatch", from);
            return refusal(StatusCode::PRECONDITION_FAILED, "to field mismatch");
        }
        local.settings.compare(from, request.headers());
        // Only HTTP/1.1 bodies are chunked.
        let is_chunked = request.version() == Version::HTTP_11;
        let writer = request.extensions().get::<DirectWriter>().filter(|_| is_chunked).cloned();
        // The head of the response is sent before the first message.
        Response::new(PeerBody::new(peer.open_stream(kind, writer)))
    }

    fn log_refused_stream(&self, message: &str, from: MemberId) {
        if self.refusals.admits().is_some() {
            log::warn!(message, "remote-peer-id-from" = format!("{from:x}"));
        }
    }

    fn log_failure(&self, message: &str, error: &str) {
        if self.refusals.admits().is_some() {
            log::warn!(message, "error" = error);
        }
    }

    async fn take_snapshot(&self, request: Request<IncomingBody>) -> Response<PeerBody> {
        if let Err(refused) = self.greet(&request, &Method::POST) {
            let failures = &self.local.metrics.network.snapshot_receive_failures;
            failures.with(&[snapshot_in::UNKNOWN_SENDER]).inc();
            return *refused;
        }
        let sender = handshake::sender_id(request.headers());
        // The snapshot is received by a separate task, which removes an incomplete file even if the connection ends.
        let receiving = self.local.runtime.spawn({
            let (local, depot) = (Arc::clone(&self.local), Arc::clone(&self.depot));
            let large_bodies = Arc::clone(&self.large_bodies);
            let body = request.into_body();
            async move { snapshot_in::receive(&local, &depot, &large_bodies, sender, body).await }
        });
        let Ok(received) = receiving.await else {
            // The task was cancelled, because the runtime is shutting down.
            return empty(StatusCode::INTERNAL_SERVER_ERROR);
        };
        let mut answer = match received {
            Ok(()) => empty(StatusCode::NO_CONTENT),
            Err(error) => {
                self.log_failure("failed to receive a snapshot", &error.to_string());
                let status = match error {
                    ReceiveError::Message(_) | ReceiveError::Kind | ReceiveError::Unfit(_) => {
                        StatusCode::BAD_REQUEST
                    }
                    ReceiveError::Stranger => StatusCode::NOT_FOUND,
                    ReceiveError::Save(_) | ReceiveError::NotForUs(_) => {
                        StatusCode::INTERNAL_SERVER_ERROR
                    }
                };
                if matches!(error, ReceiveError::Message(_)) {
                    self.count_bad_request(sender);
                }
                // If the probe confirms the sender as a member, the sender's next attempt is accepted.
                if let (ReceiveError::Stranger, Some(sender)) = (&error, sender) {
                    self.table.probe_identity(sender);
                }
                refusal(status, &error.to_string())
            }
        };
        self.mark(&mut answer);
        answer
    }

    /// Performs the checks that apply to every request except probes. The refusal is boxed because it is large and
    /// rare.
    fn greet(
        &self,
        request: &Request<IncomingBody>,
        method: &Method,
    ) -> Result<(), Box<Response<PeerBody>>> {
        if request.method() != method {
            let mut refused = refusal(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            if let Ok(allowed) = HeaderValue::try_from(method.as_str()) {
                refused.headers_mut().insert(header::ALLOW, allowed);
            }
            return Err(Box::new(refused));
        }
        let checked = self.local.introduction.check(request.headers());
        let checked = checked.and_then(|()| self.local.origin.check(request.headers()));
        if let Err(mismatch) = checked {
            if self.refusals.admits().is_some() {
                let header = |name: &http::HeaderName| {
                    let value = request.headers().get(name).map(HeaderValue::as_bytes);
                    String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
                };
                log::warn!(
                    "refused a request from another member",
                    "local-member-id" = self.local.introduction.member,
                    "local-member-cluster-id" = self.local.introduction.cluster,
                    "remote-peer-server-version" = header(&SERVER_VERSION),
                    "remote-peer-cluster-id" = header(&CLUSTER_ID),
                    "error" = mismatch.to_string()
                );
            }
            let mut refused = refusal(StatusCode::PRECONDITION_FAILED, &mismatch.to_string());
            self.mark(&mut refused);
            return Err(Box::new(refused));
        }
        if method == Method::POST
            && let Some((from, urls)) = handshake::sender(request.headers())
        {
            self.table.add_remote(from, &urls, std::time::Instant::now());
        }
        Ok(())
    }

    /// Adds this member's cluster id and origin to a response.
    fn mark(&self, answer: &mut Response<PeerBody>) {
        let cluster = HeaderValue::try_from(&self.local.introduction.cluster);
        answer
            .headers_mut()
            .insert(CLUSTER_ID, cluster.expect("hexadecimal digits are a valid header value"));
        if let Some(origin) = self.local.origin.header() {
            answer.headers_mut().insert(ORIGIN, origin);
        }
    }

    fn mark_stream(&self, answer: &mut Response<PeerBody>) {
        self.mark(answer);
        let version = HeaderValue::try_from(&self.local.introduction.version_text);
        answer
            .headers_mut()
            .insert(SERVER_VERSION, version.expect("a version is a valid header value"));
    }

    fn count_bad_request(&self, sender: Option<MemberId>) {
        let sender =
            sender.map_or(UNKNOWN_SENDER.into(), |id| self.local.label(id, UNKNOWN_SENDER));
        self.local.metrics.network.peer_received_failures.with(&[&sender]).inc();
    }
}

/// Why a received message is not passed to the consensus core.
#[derive(Debug)]
enum Undelivered {
    Invalid(WireError),
    /// The request's headers name another sender than the message.
    OtherSender,
    /// The rules for senders do not admit the message, of which only the numeric fields are decoded.
    NotForUs {
        scalars: Box<Message>,
        error: NotForUs,
    },
}

/// Decodes a message. Only its numeric fields are decoded if its sender or recipient does not permit its delivery, so an
/// unknown sender cannot make this member allocate memory for a decoded message.
fn decode_admitted(
    local: &Local,
    sender: Option<MemberId>,
    body: &Bytes,
) -> Result<Message, Undelivered> {
    let scalars = wire::decode_scalars(body).map_err(Undelivered::Invalid)?;
    if is_of_another(sender, &scalars) {
        return Err(Undelivered::OtherSender);
    }
    if let Err(error) = local.admit(&scalars) {
        return Err(Undelivered::NotForUs { scalars: Box::new(scalars), error });
    }
    wire::decode_message(body).map_err(Undelivered::Invalid)
}

/// Returns whether the sender in a message differs from the sender in the request's headers, if the headers name a
/// sender. Messages that members forward to their leader keep their original sender, so these messages are not
/// compared.
fn is_of_another(sender: Option<MemberId>, message: &Message) -> bool {
    message.kind.carries_term() && sender.is_some_and(|sender| sender != message.from)
}

fn empty(status: StatusCode) -> Response<PeerBody> {
    let mut response = Response::new(body(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn refusal(status: StatusCode, message: &str) -> Response<PeerBody> {
    text(status, format!("{message}\n"))
}

fn text(status: StatusCode, text: String) -> Response<PeerBody> {
    let mut response = Response::new(body(text.into()));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

fn body(bytes: Bytes) -> PeerBody {
    PeerBody::new(Full::new(bytes).map_err(|never| match never {}))
}
