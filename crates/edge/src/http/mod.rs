//! The HTTP endpoints for clients, probes and scrapers: `/health`, `/livez`, `/readyz`, `/version`, `/metrics`,
//! `/debug/vars`, `/debug/requests` and `/debug/pprof/`. Statuses, headers and bodies are the same as in etcd.
//!
//! [`Endpoints::answer`] turns a request into a response without access to the connection. It reads the member's state
//! through a [`Probe`].
//!
//! # Not here
//!
//! The format of responses and the debug pages (`http_pages`), the assignment of endpoints to listeners (`server`),
//! gRPC on the same port, and the JSON gateway, to which [`Endpoints::addressee`] sends some paths.

mod access;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod health;
mod log_level;
mod raft_status;
mod scrape;
mod service;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, ORIGIN};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;

use quorate_http_pages::profiles::Profiles;
use quorate_http_pages::reply::{self, Reply};
use quorate_http_pages::{query, requests};
use quorate_telemetry::metrics::Metrics;

pub use access::Access;
use scrape::Agreement;
pub use service::{HttpService, MemberProbe};

/// An alarm raised by a member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthAlarm {
    /// The backend of a member is full.
    NoSpace,
    /// The data of a member is corrupt.
    Corrupt,
    /// An alarm introduced in a later release.
    Unknown,
}

/// The parts of the member's state that the endpoints read.
pub trait Probe: Send + Sync + 'static {
    /// Returns the active alarms in the order in which they are stored.
    fn alarms(&self) -> Vec<HealthAlarm>;

    /// Returns whether there is a leader. Waits while an election is in progress.
    fn has_leader(&self) -> impl Future<Output = bool> + Send;

    /// Returns whether this member is a learner.
    fn is_learner(&self) -> bool;

    /// Executes a read with root's permissions, either from this member only or linearizably.
    ///
    /// The error is the text that a client would receive.
    fn read(&self, is_serializable: bool) -> impl Future<Output = Result<(), String>> + Send;

    /// Checks that this server can execute reads, so that an orchestrator can restart a server that cannot. The error is
    /// the text that a client would receive.
    fn check_alive(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns the timeout of a request.
    fn request_timeout(&self) -> Duration;

    /// Returns the version that this member reports, such as `3.7.1`.
    fn server_version(&self) -> String;

    /// Returns the cluster version, such as `3.7.0`, once it is decided.
    fn cluster_version(&self) -> Option<String>;

    /// Returns the storage version, such as `3.7.0`, if it is known.
    fn storage_version(&self) -> Option<String>;

    /// Returns the state of consensus as a JSON object.
    fn raft_status(&self) -> String;
}

/// The set of endpoints that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// All endpoints, subject to the rules of [`Access`].
    Client,
    /// Metrics and health, without access rules.
    Metrics,
}

/// The destination of a request.
#[derive(Debug)]
pub(crate) enum Addressee {
    /// The JSON gateway, which receives the request under this path.
    Gateway(String),
    /// An HTTP endpoint.
    Endpoint,
    /// No handler is called, because this reply already answers the request.
    Answered(Reply),
}

/// The HTTP endpoints of one member.
#[derive(Debug)]
pub struct Endpoints<P> {
    probe: Arc<P>,
    metrics: Arc<Metrics>,
    access: Access,
    arguments: Vec<String>,
    profiles: Option<Profiles>,
}

impl<P: Probe> Endpoints<P> {
    /// Creates the endpoints. `arguments` is the command line of the process, which `/debug/vars` shows.
    pub fn new(
        probe: Arc<P>,
        metrics: Arc<Metrics>,
        access: Access,
        arguments: Vec<String>,
    ) -> Self {
        Self { probe, metrics, access, arguments, profiles: None }
    }

    /// Adds the profiling endpoints to the client listeners.
    #[must_use]
    pub fn with_profiles(self) -> Self {
        Self { profiles: Some(Profiles::default()), ..self }
    }

    /// Applies the access rules and returns the destination of a request. The gateway receives paths under `/v3/`.
    pub(crate) fn addressee<B>(&self, request: &Request<B>, is_tls: bool) -> Addressee {
        let path = query::decode_path(request.uri().path());
        let path = match path.strip_prefix("/v3beta/") {
            Some(rest) => format!("/v3/{rest}"),
            None => path.into_owned(),
        };
        if path != "/v3" && !path.starts_with("/v3/") {
            return Addressee::Endpoint;
        }
        if let Some(refused) = self.refuse(request, is_tls) {
            return Addressee::Answered(refused);
        }
        let mut clean = query::clean_path(&path);
        if path == "/v3" {
            clean.push('/');
        }
        let mut answer = if request.method() == Method::OPTIONS {
            reply::empty(StatusCode::OK)
        } else if clean != path {
            reply::redirect(request, &clean)
        } else {
            return Addressee::Gateway(path);
        };
        self.allow_origin(request.headers().get(ORIGIN), answer.headers_mut());
        Addressee::Answered(answer)
    }

    /// Returns whether a page of the request's origin may open a WebSocket.
    pub(crate) fn admits_web_socket(&self, headers: &HeaderMap) -> bool {
        self.access.admits_web_socket(headers)
    }

    /// Refuses a request whose host is not allowed.
    pub(crate) fn refuse<B>(&self, request: &Request<B>, is_tls: bool) -> Option<Reply> {
        self.access.refuse_host(request, is_tls)
    }

    /// Adds the CORS headers to a response.
    pub(crate) fn allow_origin(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        self.access.allow_origin(origin, headers);
    }

    /// Answers a request and ignores its body.
    pub async fn answer<B>(&self, request: &Request<B>, surface: Surface, is_tls: bool) -> Reply {
        if surface == Surface::Metrics {
            return self.route(request, surface).await;
        }
        if let Some(refused) = self.refuse(request, is_tls) {
            return refused;
        }
        let mut answer = if request.method() == Method::OPTIONS {
            reply::empty(StatusCode::OK)
        } else {
            self.route(request, surface).await
        };
        self.allow_origin(request.headers().get(ORIGIN), answer.headers_mut());
        answer
    }

    async fn route<B>(&self, request: &Request<B>, surface: Surface) -> Reply {
        let path = query::decode_path(request.uri().path());
        let clean = query::clean_path(&path);
        if clean != path && request.method() != Method::CONNECT {
            return reply::redirect(request, &clean);
        }
        let method = request.method();
        if surface == Surface::Client
            && let Some(profiles) = &self.profiles
            && let Some(page) = profiles.answer(&path, request, &self.arguments).await
        {
            return page;
        }
        match path.as_ref() {
            "/metrics" => self.metrics_page(request.headers()),
            "/health" if method == Method::GET => self.health(request.uri().query()).await,
            "/version" if surface == Surface::Client && method == Method::GET => self.version(),
            "/debug/vars" if surface == Surface::Client && method == Method::GET => self.vars(),
            requests::PATH if surface == Surface::Client && self.profiles.is_some() => {
                reply::typed("text/html; charset=utf-8", requests::page(&self.metrics))
            }
            "/health" => reply::method_not_allowed(),
            "/version" | "/debug/vars" if surface == Surface::Client => reply::method_not_allowed(),
            other => match health::checks_at(other) {
                Some(_) if method != Method::GET => {
                    quorate_telemetry::log::warn!(
                        "Health request error",
                        "path" = other,
                        "status-code" = StatusCode::METHOD_NOT_ALLOWED.as_u16()
                    );
                    reply::method_not_allowed()
                }
                Some(checks) => self.check(other, &checks, request.uri().query()).await,
                None => reply::not_found(),
            },
        }
    }

    fn metrics_page(&self, headers: &HeaderMap) -> Reply {
        let Agreement { format, content_type, is_gzip } = Agreement::with(headers);
        self.metrics.http.in_flight.inc();
        let scrape = self.metrics.render_as(format);
        let body = if is_gzip { scrape::compress(&scrape) } else { scrape };
        self.metrics.http.in_flight.dec();
        self.metrics.http.requests.with(&["200"]).inc();
        let mut reply = Response::new(Full::from(body));
        let content_type = HeaderValue::try_from(content_type).expect("the content type is ASCII");
        reply.headers_mut().insert(CONTENT_TYPE, content_type);
        if is_gzip {
            reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        reply
    }

    fn version(&self) -> Reply {
        let or = |version: Option<String>, unknown: &'static str| {
            version.map_or(Cow::Borrowed(unknown), Cow::Owned)
        };
        let cluster = or(self.probe.cluster_version(), "not_decided");
        let storage = or(self.probe.storage_version(), "unknown");
        let server = self.probe.server_version();
        let text = format!(
            "{{\"etcdserver\":\"{server}\",\"etcdcluster\":\"{cluster}\",\"storage\":\"{storage}\"}}"
        );
        reply::typed("application/json", text)
    }

    /// Returns etcd's `expvar` variables, except the memory statistics of Go, and Quorate's own variables.
    fn vars(&self) -> Reply {
        let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let arguments: Vec<String> = self.arguments.iter().map(|word| reply::json(word)).collect();
        let waiting = self.metrics.waiting();
        let waiting: Vec<String> =
            waiting.map(|queue| format!("\"{}\": {}", queue.name, queue.count)).collect();
        let text = format!(
            "{{\n\"cmdline\": [{}],\n\"file_descriptor_limit\": {},\n\"quorate.queues\": {{{}}},\n\
             \"quorate.version\": {},\n\"raft.status\": {}\n}}\n",
            arguments.join(","),
            limits.current.unwrap_or(u64::MAX),
            waiting.join(", "),
            reply::json(quorate_version::QUORATE_VERSION),
            self.probe.raft_status(),
        );
        reply::typed("application/json; charset=utf-8", text)
    }
}
