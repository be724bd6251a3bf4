//! The peer port. Consensus traffic goes to `peer`. All other requests between members are answered here: the member
//! list, versions, whether a downgrade is enabled, hashes, forwarded promotions and lease requests, and the whole state
//! of a member.
//!
//! Statuses, headers and bodies are etcd's, because members that run etcd depend on them. The request
//! for the whole state of a member is our own: only members that run Quorate send it.
//!
//! # Bounds
//!
//! The body of a request is limited to [`BODY_BYTES_MAX`] bytes and must arrive within [`BODY_TIMEOUT`].
//!
//! # Not here
//!
//! The senders of these requests (`versions`, `membership`, `lease_holder`), and paths under `/raft` (`peer`).

mod image;
mod leases;
mod members;
mod route;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use quorate_net::listen::IncomingBody;
use quorate_state::members::Member;

pub use self::image::ImagePolicy;
use self::route::{Endpoint, Routed, route};
use quorate_http_pages::reply::{self, Reply};
use quorate_member::lease_holder::LeaseHolder;
use quorate_member::membership::Membership;
use quorate_member::{Administrator, Handles, MemberInfo, Reader};
use quorate_peer::image::{CLUSTER_HEADER, IMAGE_PATH};
use quorate_peer::{PeerBody, Peers};
use quorate_requests::access::AccessControl;
use quorate_telemetry::throttle::LogThrottle;

/// Maximum size of a request body. Bodies contain only ids and revisions.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Maximum time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The service of the peer listeners.
#[derive(Clone, Debug)]
pub struct PeerService {
    info: Arc<MemberInfo>,
    access_control: Arc<AccessControl>,
    reader: Arc<Reader>,
    leases: Arc<LeaseHolder>,
    membership: Arc<Membership>,
    peers: Arc<Peers>,
    administrator: Arc<Administrator>,
    images: ImagePolicy,
    image_refusals: Arc<LogThrottle>,
    /// The members known at startup, used until the log contains members.
    known_at_start: Arc<[Member]>,
}

impl PeerService {
    /// Creates the service of this member.
    pub fn new(handles: &Handles, known_at_start: Arc<[Member]>, images: ImagePolicy) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            reader: Arc::clone(&handles.reader),
            leases: Arc::new(LeaseHolder::new(handles)),
            membership: Arc::new(Membership::new(handles)),
            peers: Arc::clone(&handles.peers),
            administrator: Arc::clone(&handles.administrator),
            images,
            image_refusals: Arc::default(),
            known_at_start,
        }
    }

    async fn answer(&self, request: Request<IncomingBody>) -> Reply {
        let endpoint = match route(request.method(), request.uri().path()) {
            Routed::To(endpoint) => endpoint,
            Routed::NotAllowed { allowed } => return not_allowed(allowed),
            Routed::Nowhere => return reply::not_found(),
        };
        match endpoint {
            Endpoint::Members => self.members(),
            Endpoint::Promote(id) => self.promote(&id, request.headers()).await,
            Endpoint::HashKv => self.hash_kv(request).await,
            Endpoint::Versions => self.versions(),
            Endpoint::DowngradeEnabled => self.downgrade_enabled().await,
            Endpoint::RenewLease => self.renew_lease(request).await,
            Endpoint::LeaseTimeToLive => self.lease_time_to_live(request).await,
        }
    }

    fn versions(&self) -> Reply {
        let cluster = self.info.facts().versions.cluster();
        let storage = self.info.member_status().storage_version();
        let json = format!(
            "{{\"etcdserver\":\"{}\",\"etcdcluster\":\"{}\",\"storage\":\"{}\"}}",
            self.info.version_text(),
            cluster.map_or_else(|| "not_decided".to_owned(), |version| version.to_string()),
            storage.map_or_else(|| "unknown".to_owned(), |version| version.to_string()),
        );
        reply::typed(JSON, json)
    }

    async fn downgrade_enabled(&self) -> Reply {
        let answer = match self.reader.read_barrier().await {
            Ok(()) => {
                let enabled = self.info.facts().versions.downgrade().enabled;
                reply::typed("text/plain", enabled.to_string())
            }
            Err(error) => {
                let text = format!("failed linearized read: {error}");
                reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text)
            }
        };
        self.named(answer)
    }

    /// Adds the cluster id to the headers of a response.
    fn named<B>(&self, mut answer: Response<B>) -> Response<B> {
        let id = header::HeaderValue::try_from(format!("{:x}", self.info.cluster_id()))
            .expect("hexadecimal digits are a valid header value");
        answer.headers_mut().insert(CLUSTER_HEADER, id);
        answer
    }
}

const JSON: &str = "application/json";

/// Returns the response to a request with a method that the path does not support. The response names the allowed
/// method, except on the lease paths.
fn not_allowed(allowed: Option<Method>) -> Reply {
    let mut answer = reply::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    if let Some(allowed) = allowed {
        let allowed = header::HeaderValue::try_from(allowed.as_str())
            .expect("a method name is a valid header value");
        answer.headers_mut().insert(header::ALLOW, allowed);
    }
    answer
}

/// Reads a body, or returns the reply that refuses it.
async fn read_body(body: IncomingBody) -> Result<Bytes, Reply> {
    let reading = Limited::new(body, BODY_BYTES_MAX).collect();
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let mut answer = reply::error(StatusCode::PAYLOAD_TOO_LARGE, "request body too large");
            let close = header::HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
            Err(answer)
        }
        Ok(Err(_)) | Err(_) => Err(reply::error(StatusCode::BAD_REQUEST, "error reading body")),
    }
}

impl quorate_net::listen::Http1Service for PeerService {
    // No response is sent on a half-closed connection, because a member that receives a message stream closes its side
    // of the connection to end the stream.
    const ANSWERS_HALF_CLOSED: bool = false;
}

impl hyper::service::Service<Request<IncomingBody>> for PeerService {
    type Response = Response<PeerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if route::is_consensus(request.uri().path()) {
                return Ok(service.peers.handle(request).await);
            }
            if request.uri().path() == IMAGE_PATH {
                return Ok(service.image(&request).await);
            }
            let answer = service.answer(request).await;
            Ok(answer.map(|body| PeerBody::new(body.map_err(|never| match never {}))))
        })
    }
}
