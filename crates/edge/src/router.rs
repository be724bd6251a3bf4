//! Dispatches the gRPC calls of the client port to their services after the checks that all calls share.
//!
//! A request passes these stages in order: checks of its headers, method and compression (`grpc::head`); the checks of
//! [`Router::admit`]; the wait for a leader, if the client requires one; access control (`access`); decoding of the
//! message; access control again (`services::guarded`); the service. Every call is counted when it starts and exactly
//! once when it ends. A call that exceeds its deadline ends with grpc-go's error, unless part of its answer was already
//! sent.
//!
//! # Not here
//!
//! Executing requests (`member`, `state`), and code shared by several services (`calls`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderValue, Request};
use hyper::body::Incoming;
use quorate_api::etcdserverpb::auth_server::AuthServer;
use quorate_api::etcdserverpb::cluster_server::ClusterServer;
use quorate_api::etcdserverpb::kv_server::KvServer;
use quorate_api::etcdserverpb::lease_server::LeaseServer;
use quorate_api::etcdserverpb::maintenance_server::MaintenanceServer;
use quorate_api::healthpb::health_server::HealthServer;
use quorate_api::v3electionpb::election_server::ElectionServer;
use quorate_api::v3lockpb::lock_server::LockServer;
use tonic::Status;
use tower_service::Service as _;

use crate::calls::access::{self, Noted};
use crate::calls::call::{Call, ResponseFuture};
use crate::calls::client_body::ClientBody;
use crate::calls::observe::{CLIENT_API_VERSION, CallStats};
use crate::calls::request_body::RequestBody;
use crate::calls::status::status;
use crate::methods::{Needs, needs_at};
use crate::services::guarded::Guarded;
use crate::services::recipes::Recipes;
use crate::services::{
    auth, cluster, election, health, keep_alive, kv, lease, lock, maintenance, watch,
};
use quorate_grpc::head::{self, requires_leader};
use quorate_grpc::methods::{Kind, SERVICES};
use quorate_grpc::observed::Observed;
use quorate_member::access::{AccessControl, Credentials, Remembered};
use quorate_member::admission::{CallPermit, Caller, Full, LoginSource};
use quorate_member::leadership::LeaderWatch;
use quorate_member::lease_holder::LeaseHolder;
use quorate_member::{Handles, MemberInfo, RequestError};
use quorate_net::listen::{Activity, ClientCertificate, Ends, Http2Service};
use quorate_telemetry::audit::Auditor;
use quorate_telemetry::trace::Tracer;

/// Size allowed for a message in addition to the largest request, for the message's other fields.
const MESSAGE_OVERHEAD_BYTES: usize = 512 * 1024;

/// All gRPC services of the client port.
#[derive(Clone, Debug)]
pub struct Router {
    services: Arc<Services>,
    /// The caller that owns the permits of this connection's calls.
    caller: Arc<Caller>,
    /// Credentials remembered from the last call on this connection.
    remembered: Arc<Remembered>,
    /// The local and remote addresses of the connection.
    ends: Ends,
}

/// A call with valid headers.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// The call's permit, or the error if the limit on calls is reached.
    pub(crate) permit: Result<Arc<CallPermit>, Full>,
    /// Size of the call's headers in bytes.
    pub(crate) bytes: u64,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug)]
struct Services {
    info: Arc<MemberInfo>,
    access_control: Arc<AccessControl>,
    leader: LeaderWatch,
    /// The tracer and the audit log, if tracing or auditing is on.
    observers: Option<Observers>,
    message_bytes_max: usize,
    kv: KvServer<Guarded<kv::Kv>>,
    watch: watch::WatchService,
    lease: LeaseServer<Guarded<lease::LeaseService>>,
    keep_alive: keep_alive::KeepAliveService,
    cluster: ClusterServer<Guarded<cluster::ClusterService>>,
    maintenance: MaintenanceServer<Guarded<maintenance::MaintenanceService>>,
    auth: AuthServer<Guarded<auth::AuthService>>,
    lock: LockServer<Guarded<lock::LockService>>,
    election: ElectionServer<Guarded<election::ElectionService>>,
    health: HealthServer<health::HealthService>,
}

impl Router {
    /// Creates the services of this member. `observers` trace and audit the calls.
    pub fn new(handles: &Handles, observers: Option<Observers>) -> Self {
        let bytes_max = handles.info.limits().request_bytes_max + MESSAGE_OVERHEAD_BYTES;
        macro_rules! server {
            ($server:ident, $service:expr) => {
                $server::new($service)
                    .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
                    .max_decoding_message_size(bytes_max)
                    .max_encoding_message_size(i32::MAX as usize)
            };
        }
        let leases = Arc::new(LeaseHolder::new(handles));
        macro_rules! guarded {
            ($server:ident, $service:expr) => {
                server!($server, Guarded::new(&handles.access_control, $service))
            };
        }
        let kv = Arc::new(kv::Kv::new(handles));
        let lease = Arc::new(lease::LeaseService::new(handles, Arc::clone(&leases)));
        let recipes = Recipes::new(handles, Arc::clone(&kv), Arc::clone(&lease));
        let recipes = Arc::new(recipes);
        let caller = Arc::new(Caller::new(Arc::clone(&handles.reader.admission().calls)));
        let services = Services {
            kv: guarded!(KvServer, kv),
            watch: watch::WatchService::new(handles, bytes_max),
            lease: guarded!(LeaseServer, lease),
            keep_alive: keep_alive::KeepAliveService::new(handles, leases, bytes_max),
            cluster: guarded!(ClusterServer, Arc::new(cluster::ClusterService::new(handles))),
            maintenance: guarded!(
                MaintenanceServer,
                Arc::new(maintenance::MaintenanceService::new(handles))
            ),
            auth: guarded!(AuthServer, Arc::new(auth::AuthService::new(handles))),
            lock: guarded!(LockServer, Arc::new(lock::LockService::new(Arc::clone(&recipes)))),
            election: guarded!(ElectionServer, Arc::new(election::ElectionService::new(recipes))),
            health: server!(HealthServer, health::HealthService::new(handles)),
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            leader: LeaderWatch::new(handles),
            observers,
            message_bytes_max: bytes_max,
        };
        let (remembered, ends) = (Arc::default(), Ends::default());
        Self { services: Arc::new(services), caller, remembered, ends }
    }

    /// Takes a permit for a call with this many bytes of headers.
    pub(crate) fn take_permit(
        &self,
        method: (usize, usize),
        (headers, extensions): (&HeaderMap, &Extensions),
        head_bytes: u64,
    ) -> Result<Arc<CallPermit>, Full> {
        let permit = if is_login(method) {
            Caller::begin_login(&self.caller, LoginSource::of(self.ends.remote))?
        } else {
            Caller::begin(&self.caller, || {
                let access_control = &self.services.access_control;
                let credentials = access_control.recall(headers, &self.remembered);
                access_control.is_of_user(&credentials.or_named(access::named(headers, extensions)))
            })?
        };
        permit.hold(head_bytes)?;
        Ok(permit)
    }

    /// Starts a call received over gRPC or from the JSON gateway.
    pub(crate) fn begin(
        &self,
        (service, method): (usize, usize),
        kind: Kind,
        mut request: Request<ClientBody>,
        Admitted { permit, bytes, timeout }: Admitted,
    ) -> Call {
        let mut stats =
            CallStats::start(&self.services.info, (service, method), kind, self.ends.remote);
        let mut noted = None;
        if let Some(observers) = &self.services.observers {
            let found = observers.note(&request, self.ends.remote);
            stats = stats.noted(&found, self.ends.local);
            if !observers.admit() {
                return Call::refused(&status(RequestError::TooManyRequests), stats);
            }
            noted = Some(found);
        }
        let permit = match permit {
            Ok(permit) => permit,
            Err(full) => return Call::refused(&status(RequestError::from(full)), stats),
        };
        let stats = stats.with_permit(Arc::clone(&permit));
        if let Err(status) = self.admit((service, method), request.headers(), &stats) {
            return Call::refused(&status, stats);
        }
        if is_login((service, method)) {
            request.extensions_mut().insert(LoginSource::of(self.ends.remote));
        }
        let bytes_max = self.services.message_bytes_max;
        let received = stats.received();
        let request =
            request.map(|body| RequestBody::new(body, (kind, received), permit, bytes, bytes_max));
        Call::started(self.start((service, method), request, noted), stats, timeout)
    }

    /// Performs the checks that every call must pass.
    fn admit(
        &self,
        (service, method): (usize, usize),
        headers: &HeaderMap,
        stats: &CallStats,
    ) -> Result<(), Status> {
        if self.services.info.is_learner() && !learner_answers(service, method) {
            return Err(status(RequestError::NotSupportedForLearner));
        }
        let version = headers.get(CLIENT_API_VERSION);
        if version.is_some_and(|version| std::str::from_utf8(version.as_bytes()).is_err()) {
            return Err(status(RequestError::InvalidClientApiVersion));
        }
        stats.count_client(headers);
        Ok(())
    }

    /// Starts the call once there is a leader, if the call requires one, and once access control has admitted it.
    fn start(
        &self,
        method: (usize, usize),
        request: Request<RequestBody<ClientBody>>,
        noted: Option<Noted>,
    ) -> ResponseFuture {
        if !requires_leader(request.headers()) || self.services.info.has_leader() {
            return self.enter(method, request, noted);
        }
        let router = self.clone();
        Box::pin(async move {
            match router.services.leader.require_leader().await {
                Ok(()) => router.enter(method, request, noted).await,
                Err(error) => Ok(status(error).into_http()),
            }
        })
    }

    /// Passes the call to its service if its caller meets the requirement of the method.
    fn enter(
        &self,
        method: (usize, usize),
        mut request: Request<RequestBody<ClientBody>>,
        noted: Option<Noted>,
    ) -> ResponseFuture {
        let needs = needs_at(method);
        let access_control = &self.services.access_control;
        if needs == Needs::Nothing || access_control.is_open() {
            if let Some(noted) = noted {
                access::leave(&mut request, noted);
            }
            return self.services.dispatch(method, request);
        }
        let noted = noted.unwrap_or_default();
        let recalled = access_control.recall(request.headers(), &self.remembered);
        match recalled.or_named(access::named(request.headers(), request.extensions())) {
            unread @ Credentials::Unread(_) => {
                let router = self.clone();
                Box::pin(async move {
                    let credentials =
                        router.services.access_control.read(unread, &router.remembered).await;
                    let client = noted.of(credentials);
                    match access::admit(
                        &router.services.access_control,
                        needs,
                        &mut request,
                        client,
                    ) {
                        Ok(()) => router.services.dispatch(method, request).await,
                        Err(error) => Ok(status(error).into_http()),
                    }
                })
            }
            credentials => {
                match access::admit(access_control, needs, &mut request, noted.of(credentials)) {
                    Ok(()) => self.services.dispatch(method, request),
                    Err(error) => Box::pin(std::future::ready(Ok(status(error).into_http()))),
                }
            }
        }
    }
}

/// Returns whether the method is the login method.
fn is_login((service, method): (usize, usize)) -> bool {
    let service = &SERVICES[service];
    service.name == "etcdserverpb.Auth" && service.methods[method].name == "Authenticate"
}

/// Returns whether a learner accepts calls of this method. A learner answers only serializable range requests, which
/// are recognised later, when the message is decoded.
fn learner_answers(service: usize, method: usize) -> bool {
    let service = &SERVICES[service];
    matches!(
        (service.name, service.methods[method].name),
        ("etcdserverpb.KV", "Range") | ("etcdserverpb.Maintenance", "Status" | "Snapshot")
    )
}

impl Services {
    /// Calls the method at this position in [`SERVICES`].
    fn dispatch(
        &self,
        (service, method): (usize, usize),
        request: Request<RequestBody<ClientBody>>,
    ) -> ResponseFuture {
        let service = &SERVICES[service];
        match service.name {
            "etcdserverpb.KV" => self.kv.clone().call(request),
            "etcdserverpb.Watch" => self.watch.call(request),
            "etcdserverpb.Lease" if service.methods[method].name == "LeaseKeepAlive" => {
                self.keep_alive.call(request)
            }
            "etcdserverpb.Lease" => self.lease.clone().call(request),
            "etcdserverpb.Cluster" => self.cluster.clone().call(request),
            "etcdserverpb.Maintenance" => self.maintenance.clone().call(request),
            "etcdserverpb.Auth" => self.auth.clone().call(request),
            "v3lockpb.Lock" => self.lock.clone().call(request),
            "v3electionpb.Election" => self.election.clone().call(request),
            "grpc.health.v1.Health" => self.health.clone().call(request),
            name => unreachable!("{name} is not in the table"),
        }
    }
}

impl Router {
    /// Returns a router for one request of the JSON gateway. The request counts as a connection of its own with these
    /// addresses. All requests of the gateway share one cached token.
    pub(crate) fn for_request(&self, ends: Ends) -> Self {
        Self {
            services: Arc::clone(&self.services),
            caller: Arc::new(self.caller.another()),
            remembered: Arc::clone(&self.remembered),
            ends,
        }
    }

    /// Returns the maximum size of a request message in bytes.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.services.message_bytes_max
    }

    /// Returns whether authentication is on.
    pub(crate) fn is_guarded(&self) -> bool {
        !self.services.access_control.is_open()
    }
}

impl Http2Service for Router {
    fn for_connection(&self, ends: Ends) -> Self {
        Self {
            services: Arc::clone(&self.services),
            caller: Arc::new(self.caller.another()),
            remembered: Arc::default(),
            ends,
        }
    }

    fn activity(&self) -> Activity {
        let (begun, under_way) = self.caller.activity();
        Activity { begun, under_way, ..Activity::default() }
    }
}

impl hyper::service::Service<Request<Incoming>> for Router {
    type Response = http::Response<Observed<CallStats>>;
    type Error = std::convert::Infallible;
    type Future = Call;

    fn call(&self, mut request: Request<Incoming>) -> Call {
        let head::Call { service, method, kind, timeout, is_compressed, bytes } =
            match head::Call::read(SERVICES, &mut request) {
                Ok(call) => call,
                Err(refusal) => return Call::answered(refusal.into_http()),
            };
        let head = (request.headers(), request.extensions());
        let permit = self.take_permit((service, method), head, bytes);
        if is_compressed && let Ok(permit) = &permit {
            let permit = Arc::clone(permit);
            request.extensions_mut().insert(permit);
        }
        let request = request.map(ClientBody::Grpc);
        self.begin((service, method), kind, request, Admitted { permit, bytes, timeout })
    }
}

/// The tracer and the audit log.
#[derive(Clone, Debug)]
pub struct Observers {
    /// Traces calls.
    pub tracer: Option<Arc<Tracer>>,
    /// Audits calls.
    pub auditor: Option<Arc<Auditor>>,
}

impl Observers {
    /// Starts the trace and the audit record of a call from the remote address.
    #[cold]
    fn note<B>(&self, request: &Request<B>, remote: Option<SocketAddr>) -> Noted {
        let text = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
        let trace = self.tracer.as_ref().and_then(|tracer| {
            tracer.follow(text("traceparent"), text("tracestate")).map(Arc::new)
        });
        let account = self.auditor.as_ref().map(|auditor| {
            let certificate = request.extensions().get::<Arc<ClientCertificate>>();
            let name = certificate.map(|certificate| Arc::clone(&certificate.common_name));
            Arc::new(auditor.begin(remote, name))
        });
        Noted { trace, account }
    }

    /// Returns whether the audit log admits a new call.
    fn admit(&self) -> bool {
        self.auditor.as_ref().is_none_or(|auditor| auditor.admits())
    }
}

#[cfg(test)]
mod tests {
    use quorate_grpc::methods::{Route, route};

    use super::*;

    #[test]
    fn a_learner_serves_only_range_status_and_snapshot_calls() {
        let answered = |path: &str| match route(SERVICES, path) {
            Route::Method { service, method, .. } => learner_answers(service, method),
            other => panic!("{path} is routed to {other:?}"),
        };
        assert!(answered("/etcdserverpb.KV/Range"));
        assert!(answered("/etcdserverpb.Maintenance/Status"));
        assert!(answered("/etcdserverpb.Maintenance/Snapshot"));
        for path in [
            "/etcdserverpb.KV/RangeStream",
            "/etcdserverpb.Watch/Watch",
            "/etcdserverpb.Lease/LeaseKeepAlive",
            "/etcdserverpb.Cluster/MemberList",
            "/etcdserverpb.Maintenance/HashKV",
            "/grpc.health.v1.Health/Check",
        ] {
            assert!(!answered(path), "{path}");
        }
    }
}
