//! Dispatches the gRPC calls of the client port to their services after the checks that all calls share.
//!
//! A request passes these stages in order: checks of its headers, method and compression (`grpc::head`); the checks of
//! [`Router::admit`]; the wait for a leader, if the client requires one; access control (`access`); decoding of the
//! message; access control again (`services::guarded`); the service. Every call is counted when it starts and exactly
//! once when it ends. A call that exceeds its deadline ends with grpc-go's error, unless it is a unary call whose
//! response has begun.
//!
//! # Not here
//!
//! Executing requests (`requests`, `member`), and code shared by several services (`calls`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderValue, Request};
use quorate_api::etcdserverpb::auth_server::AuthServer;
use quorate_api::etcdserverpb::cluster_server::ClusterServer;
use quorate_api::etcdserverpb::kv_server::KvServer;
use quorate_api::etcdserverpb::lease_server::LeaseServer;
use quorate_api::etcdserverpb::maintenance_server::MaintenanceServer;
use quorate_api::healthpb::health_server::HealthServer;
use quorate_api::v3electionpb::election_server::ElectionServer;
use quorate_api::v3lockpb::lock_server::LockServer;
use quorate_net::listen::IncomingBody;
use tonic::Status;
use tower_service::Service as _;

use crate::calls::access::{self, Noted};
use crate::calls::call::{Call, ResponseFuture};
use crate::calls::client_body::ClientBody;
use crate::calls::observe::{CallStats, ClientVersion};
use crate::calls::request_body::RequestBody;
use crate::calls::status::status;
use crate::calls::whole::{self, Refused};
use crate::methods::{Needs, needs_at};
use crate::services::guarded::Guarded;
use crate::services::recipes::Recipes;
use crate::services::{
    auth, cluster, election, health, keep_alive, kv, lease, lock, maintenance, watch,
};
use bytes::Bytes;
use quorate_grpc::framing::{HEAD_BYTES, whole_message};
use quorate_grpc::head::{self, requires_leader};
use quorate_grpc::methods::{Kind, SERVICES};
use quorate_grpc::observed::Observed;
use quorate_http2::head::Head;
use quorate_net::listen::{Activity, ClientCertificate, Ends, Http2Service, WholeCall};
use quorate_requests::access::{AccessControl, Credentials, Remembered};
use quorate_requests::admission::{CallPermit, Caller, Full, LoginSource};
use quorate_requests::{RequestError, ServerHandles, ServerInfo};
use quorate_telemetry::audit::Auditor;
use quorate_telemetry::trace::Tracer;

/// Number of bytes by which a message may exceed the limit on request sizes, to leave room for the message's other
/// fields.
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
    info: Arc<ServerInfo>,
    access_control: Arc<AccessControl>,
    /// The tracer and the audit log, if tracing or auditing is on.
    observers: Option<Observers>,
    message_bytes_max: usize,
    kv: KvServer<Guarded<kv::Kv>>,
    whole_kv: Arc<kv::Kv>,
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
    pub fn new(handles: &ServerHandles, observers: Option<Observers>) -> Self {
        let bytes_max =
            handles.info.limits().request_bytes_max.saturating_add(MESSAGE_OVERHEAD_BYTES);
        macro_rules! server {
            ($server:ident, $service:expr) => {
                $server::new($service)
                    .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
                    .max_decoding_message_size(bytes_max)
                    .max_encoding_message_size(i32::MAX as usize)
            };
        }
        macro_rules! guarded {
            ($server:ident, $service:expr) => {
                server!($server, Guarded::new(&handles.access_control, $service))
            };
        }
        let kv = Arc::new(kv::Kv::new(handles));
        let lease = Arc::new(lease::LeaseService::new(handles));
        let recipes = Recipes::new(handles, Arc::clone(&kv), Arc::clone(&lease));
        let recipes = Arc::new(recipes);
        let caller = Arc::new(Caller::new(Arc::clone(&handles.info.admission().calls)));
        let services = Services {
            whole_kv: Arc::clone(&kv),
            kv: guarded!(KvServer, kv),
            watch: watch::WatchService::new(handles, bytes_max),
            lease: guarded!(LeaseServer, lease),
            keep_alive: keep_alive::KeepAliveService::new(handles, bytes_max),
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
            observers,
            message_bytes_max: bytes_max,
        };
        let (remembered, ends) = (Arc::default(), Ends::default());
        Self { services: Arc::new(services), caller, remembered, ends }
    }

    /// Takes a permit for a call whose headers have this size in bytes.
    pub(crate) fn take_permit(
        &self,
        method: (usize, usize),
        (headers, extensions): (&HeaderMap, &Extensions),
        head_bytes: u64,
    ) -> Result<Arc<CallPermit>, Full> {
        let access_control = &self.services.access_control;
        self.take_permit_of(method, head_bytes, || {
            let credentials = access_control.recall(headers, &self.remembered);
            access_control.is_of_user(&credentials.or_named(access::named(headers, extensions)))
        })
    }

    /// Takes a permit for a call that holds this many bytes. `is_of_user` returns whether the caller is an
    /// authenticated user.
    fn take_permit_of(
        &self,
        method: (usize, usize),
        bytes: u64,
        is_of_user: impl FnOnce() -> bool,
    ) -> Result<Arc<CallPermit>, Full> {
        let permit = if is_login(method) {
            Caller::begin_login(&self.caller, LoginSource::of(self.ends.remote))?
        } else {
            Caller::begin(&self.caller, is_of_user)?
        };
        permit.hold(bytes)?;
        Ok(permit)
    }

    /// Counts the call and performs the checks that every call must pass. If a call fails several checks, the first of
    /// them determines its error.
    fn check_in(
        &self,
        method: (usize, usize),
        stats: CallStats,
        permit: Result<Arc<CallPermit>, Full>,
        version: ClientVersion<'_>,
    ) -> Result<(CallStats, Arc<CallPermit>), Box<Refused>> {
        let permit = match permit {
            Ok(permit) => permit,
            Err(full) => return Err(Box::new((status(RequestError::from(full)), stats))),
        };
        let stats = stats.with_permit(Arc::clone(&permit));
        match self.admit(method, version, &stats) {
            Ok(()) => Ok((stats, permit)),
            Err(refusal) => Err(Box::new((refusal, stats))),
        }
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
        let version = ClientVersion::of(request.headers());
        let (stats, permit) = match self.check_in((service, method), stats, permit, version) {
            Ok(admitted) => admitted,
            Err(refused) => return Call::refused(&refused.0, refused.1),
        };
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
        version: ClientVersion<'_>,
        stats: &CallStats,
    ) -> Result<(), Status> {
        if self.services.info.is_learner() && !learner_answers(service, method) {
            return Err(status(RequestError::NotSupportedForLearner));
        }
        if !version.is_valid {
            return Err(status(RequestError::InvalidClientApiVersion));
        }
        stats.count_client(version);
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
            match router.services.info.require_leader().await {
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

/// Returns whether a learner accepts calls of this method. A learner refuses linearizable range requests, but only
/// later, when the message is decoded.
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
            name => unreachable!("the router has no branch for the service {name}"),
        }
    }
}

impl Router {
    /// Returns a router for the JSON requests of a connection with these addresses. All connections of the gateway share
    /// one cached token, because a JSON client often opens a connection for each request.
    pub(crate) fn for_gateway(&self, ends: Ends) -> Self {
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

    fn call_whole(
        &self,
        head: &Arc<Head>,
        certificate: Option<&Arc<ClientCertificate>>,
        data: &[u8],
    ) -> Option<WholeCall<Observed<CallStats>>> {
        let known = head.derived(Known::of);
        let (hot, call) = (known.hot?, known.call?);
        let services = &self.services;
        let length = whole_message(data)?;
        if data[0] != 0
            || length > services.message_bytes_max
            || services.observers.is_some()
            || known.requires_leader && !services.info.has_leader()
        {
            return None;
        }
        let headers = &head.headers;
        let access_control = &services.access_control;
        let credentials = if access_control.is_open() {
            let named = if known.is_of_gateway { None } else { certificate };
            known.credentials.clone().or_named(named.map(|named| &named.common_name))
        } else {
            let named = || access::named_by(headers, certificate);
            match access_control.recall(headers, &self.remembered).or_named(named()) {
                Credentials::Unread(_) => return None,
                credentials => credentials,
            }
        };
        let method = (call.service, call.method);
        let stats = CallStats::start(&services.info, method, Kind::Unary, self.ends.remote);
        let bytes = call.bytes + data.len() as u64;
        let permit = self.take_permit_of(method, bytes, || access_control.is_of_user(&credentials));
        let stats = match self.check_in(method, stats, permit, known.version()) {
            Ok((stats, _)) => stats,
            Err(refused) => return Some(whole::refused(*refused)),
        };
        stats.received().message(length as u64);
        let client = Noted::default().of(credentials);
        let guard = (Arc::clone(access_control), needs_at(method));
        let message = (guard, client, Bytes::copy_from_slice(&data[HEAD_BYTES..]));
        let kv = Arc::clone(&services.whole_kv);
        let timeout = call.timeout;
        Some(match hot {
            Hot::Range => Box::pin(async move {
                whole::answer_whole(stats, timeout, message, |request| kv.range(request)).await
            }),
            Hot::Put => Box::pin(async move {
                whole::answer_whole(stats, timeout, message, |request| kv.put(request)).await
            }),
            Hot::DeleteRange => Box::pin(async move {
                whole::answer_whole(stats, timeout, message, |request| kv.delete_range(request))
                    .await
            }),
            Hot::Txn => Box::pin(async move {
                whole::answer_whole(stats, timeout, message, |request| kv.txn(request)).await
            }),
        })
    }
}

/// A KV method whose calls, if received complete and uncompressed, are handled without the HTTP library's request and
/// response types (`whole`).
#[derive(Clone, Copy, Debug)]
enum Hot {
    Range,
    Put,
    DeleteRange,
    Txn,
}

/// The properties of a call that depend only on its head.
#[derive(Debug)]
struct Known {
    call: Option<head::Call>,
    hot: Option<Hot>,
    requires_leader: bool,
    version_label: String,
    is_version_valid: bool,
    credentials: Credentials,
    is_of_gateway: bool,
}

impl Known {
    fn version(&self) -> ClientVersion<'_> {
        ClientVersion { label: &self.version_label, is_valid: self.is_version_valid }
    }

    fn of(head: &Head) -> Self {
        let mut request = Request::new(());
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = head.headers.clone();
        let call = head::Call::read(SERVICES, &mut request).ok().filter(|call| !call.is_compressed);
        let hot = call.and_then(|call| match SERVICES[call.service].methods[call.method].path {
            "/etcdserverpb.KV/Range" => Some(Hot::Range),
            "/etcdserverpb.KV/Put" => Some(Hot::Put),
            "/etcdserverpb.KV/DeleteRange" => Some(Hot::DeleteRange),
            "/etcdserverpb.KV/Txn" => Some(Hot::Txn),
            _ => None,
        });
        let version = ClientVersion::of(&head.headers);
        Self {
            call,
            hot,
            requires_leader: requires_leader(&head.headers),
            version_label: version.label.to_owned(),
            is_version_valid: version.is_valid,
            credentials: Credentials::in_head(&head.headers),
            is_of_gateway: access::is_of_gateway(&head.headers),
        }
    }
}

impl hyper::service::Service<Request<IncomingBody>> for Router {
    type Response = http::Response<Observed<CallStats>>;
    type Error = std::convert::Infallible;
    type Future = Call;

    fn call(&self, mut request: Request<IncomingBody>) -> Call {
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
    /// The tracer, if calls are traced.
    pub tracer: Option<Arc<Tracer>>,
    /// The audit log, if calls are audited.
    pub auditor: Option<Arc<Auditor>>,
}

impl Observers {
    /// Starts the trace and the audit record of a call that arrived from the address `remote`.
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
            other => panic!("{path} is not routed to a method: {other:?}"),
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
