//! The HTTP service of a listener: the endpoints, the probe of the member's state, and the gateway, which serves the
//! paths under `/v3/`.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::ORIGIN;
use http::{Method, Request, Response, StatusCode};
use quorate_api::etcdserverpb::AlarmType;
use quorate_net::listen::IncomingBody;

use super::{Addressee, Endpoints, HealthAlarm, Probe, Surface};
use super::{log_level, raft_status};
use crate::json_gateway::{AnswerBody, Gateway, RequestBytes};
use crate::router::Router;
use crate::websocket;
use quorate_http_pages::profiles::{read_body, takes_body};
use quorate_http_pages::reply::{self, Reply};
use quorate_http_pages::unread_body::pass_over;
use quorate_net::listen::{self, ClientCertificate, Ends, Takeover};
use quorate_requests::access::AccessControl;
use quorate_requests::{DataStore, RequestError, ServerHandles, ServerInfo, probe_query};

/// Reads the member's state for the HTTP endpoints.
#[derive(Debug)]
pub struct MemberProbe {
    info: Arc<ServerInfo>,
    store: Arc<dyn DataStore>,
}

impl MemberProbe {
    /// Creates a probe of this member.
    pub fn new(handles: &ServerHandles) -> Self {
        Self { info: Arc::clone(&handles.info), store: Arc::clone(&handles.store) }
    }
}

impl Probe for MemberProbe {
    fn alarms(&self) -> Vec<HealthAlarm> {
        let facts = self.info.facts();
        facts
            .alarms
            .of_kind(AlarmType::None as i32)
            .map(|alarm| match AlarmType::try_from(alarm.kind) {
                Ok(AlarmType::Nospace) => HealthAlarm::NoSpace,
                Ok(AlarmType::Corrupt) => HealthAlarm::Corrupt,
                Ok(AlarmType::None) | Err(_) => HealthAlarm::Unknown,
            })
            .collect()
    }

    async fn has_leader(&self) -> bool {
        self.info.require_leader().await.is_ok()
    }

    fn is_learner(&self) -> bool {
        self.info.is_learner()
    }

    async fn read(&self, is_serializable: bool) -> Result<(), String> {
        let read = async {
            if !is_serializable {
                self.store.read_barrier().await?;
            }
            self.store.range(&probe_query()).await.map(drop)
        };
        read.await.map_err(|error: RequestError| error.to_string())
    }

    async fn check_alive(&self) -> Result<(), String> {
        self.store.check_alive().await.map_err(|error| error.to_string())
    }

    fn request_timeout(&self) -> Duration {
        self.info.limits().request_timeout
    }

    fn server_version(&self) -> String {
        self.info.version_text()
    }

    fn cluster_version(&self) -> Option<String> {
        self.info.facts().versions.cluster().map(|version| version.to_string())
    }

    fn storage_version(&self) -> Option<String> {
        self.info.status().storage_version().map(|version| version.to_string())
    }

    fn raft_status(&self) -> String {
        raft_status::json(self.info.id(), &self.info.status().consensus())
    }
}

/// The warning about gateway clients whose certificates name a user. The text is etcd's.
const NAME_IGNORED: &str = "CommonName of client sending a request against gateway will be ignored and not used as expected";

/// The endpoints of one listener, and its gateway if it has one.
#[derive(Clone, Debug)]
pub struct HttpService {
    endpoints: Arc<Endpoints<MemberProbe>>,
    surface: Surface,
    access_control: Arc<AccessControl>,
    gateway: Option<Arc<Gateway>>,
}

impl HttpService {
    /// Creates a service with the endpoints of this kind of listener.
    pub fn new(
        handles: &ServerHandles,
        endpoints: Arc<Endpoints<MemberProbe>>,
        surface: Surface,
    ) -> Self {
        Self {
            endpoints,
            surface,
            access_control: Arc::clone(&handles.access_control),
            gateway: None,
        }
    }

    /// Adds a gateway in front of these gRPC services.
    #[must_use]
    pub fn with_gateway(self, handles: &ServerHandles, router: &Router) -> Self {
        let gateway = Some(Arc::new(Gateway::new(handles, router.clone())));
        Self { gateway, ..self }
    }

    async fn answer(&self, request: Request<IncomingBody>) -> Response<AnswerBody> {
        let is_tls = request.extensions().get::<listen::Encrypted>().is_some();
        if let Some(gateway) = &self.gateway {
            match self.endpoints.addressee(&request, is_tls) {
                Addressee::Gateway(path) => return self.answer_by(gateway, &path, request).await,
                Addressee::Answered(answer) => {
                    pass_over(request.into_body()).await;
                    return answer.map(AnswerBody::whole);
                }
                Addressee::Endpoint => {}
            }
        }
        if self.surface == Surface::Client && log_level::is_at(&request) {
            return self.answer_log_level(request, is_tls).await.map(AnswerBody::whole);
        }
        if takes_body(&request) {
            let request = read_body(request).await;
            let answer = self.endpoints.answer(&request, self.surface, is_tls).await;
            return answer.map(AnswerBody::whole);
        }
        let answer = self.endpoints.answer(&request, self.surface, is_tls).await;
        pass_over(request.into_body()).await;
        answer.map(AnswerBody::whole)
    }

    async fn answer_log_level(&self, request: Request<IncomingBody>, is_tls: bool) -> Reply {
        if let Some(refused) = self.endpoints.refuse(&request, is_tls) {
            pass_over(request.into_body()).await;
            return refused;
        }
        let origin = request.headers().get(ORIGIN).cloned();
        let mut answer = log_level::answer(&self.access_control, request).await;
        self.endpoints.allow_origin(origin.as_ref(), answer.headers_mut());
        answer
    }

    async fn answer_by(
        &self,
        gateway: &Arc<Gateway>,
        path: &str,
        request: Request<IncomingBody>,
    ) -> Response<AnswerBody> {
        let certificate = request.extensions().get::<Arc<ClientCertificate>>();
        if certificate.is_some_and(|one| !one.common_name.is_empty()) && gateway.is_guarded() {
            pass_over(request.into_body()).await;
            return reply::error(StatusCode::BAD_REQUEST, NAME_IGNORED).map(AnswerBody::whole);
        }
        let origin = request.headers().get(ORIGIN).cloned();
        let mut answer = match request.extensions().get::<Takeover>().cloned() {
            Some(_)
                if websocket::is_wanted(&request)
                    && !self.endpoints.admits_web_socket(request.headers()) =>
            {
                pass_over(request.into_body()).await;
                let text = "--cors does not allow the origin of the page";
                return reply::error(StatusCode::FORBIDDEN, text).map(AnswerBody::whole);
            }
            Some(takeover) if websocket::is_wanted(&request) => {
                match begin_websocket(gateway, path, &request, &takeover) {
                    Ok(accepted) => return accepted.map(AnswerBody::whole),
                    Err(unfit) => {
                        pass_over(request.into_body()).await;
                        unfit.answer().map(AnswerBody::whole)
                    }
                }
            }
            Some(_) | None => gateway.answer(path, request.map(RequestBytes::Http)).await,
        };
        self.endpoints.allow_origin(origin.as_ref(), answer.headers_mut());
        answer
    }
}

/// Accepts a WebSocket that carries one call to this path.
fn begin_websocket(
    gateway: &Arc<Gateway>,
    path: &str,
    request: &Request<IncomingBody>,
    takeover: &Takeover,
) -> Result<Reply, websocket::Unfit> {
    let accepted = websocket::accept(request)?;
    let headers = websocket::forwarded(request.headers());
    let (gateway, path) = (Arc::clone(gateway), path.to_owned());
    takeover.begin(move |connection| {
        websocket::serve(connection, move |lines| async move {
            let mut call = Request::new(RequestBytes::Lines(lines));
            *call.method_mut() = Method::POST;
            *call.headers_mut() = headers;
            gateway.answer(&path, call).await
        })
    });
    Ok(accepted)
}

impl listen::Http1Service for HttpService {
    // A request must be answered even if the client has closed its sending side, as some clients do after the request.
    // Go's server does the same.
    const ANSWERS_HALF_CLOSED: bool = true;

    fn for_connection(&self, ends: Ends) -> Self {
        let gateway = self.gateway.as_ref().map(|shared| Arc::new(shared.for_connection(ends)));
        Self { gateway, ..self.clone() }
    }
}

impl hyper::service::Service<Request<IncomingBody>> for HttpService {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.answer(request).await) })
    }
}
