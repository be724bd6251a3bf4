//! The JSON gateway: offers the gRPC services over plain HTTP, for `curl`, Patroni and many scripts.
//!
//! A request is converted to a gRPC call and then handled in this process like a client's gRPC call, with the same
//! admission, access control, limits and metrics. This module therefore contains no method-specific code. A table in
//! `quorate_json` defines the messages and their JSON form.
//!
//! ```text
//! HTTP ── routes ── metadata ── request body ──► Router ────────► answer ── HTTP
//!                               JSON to wire                      wire to JSON
//! ```
//!
//! # Invariants
//!
//! * The caller is the user that the request's token identifies. A request without a token has no user, even if its
//!   connection has a certificate.
//! * A call is cancelled when the client of its HTTP request disconnects. A client that does not read a stream after its
//!   deadline is disconnected.
//! * Buffered request data always counts against its limit. Large unary replies count against the limit on replies
//!   until they are sent. Only one message of a response stream is buffered at a time.
//!
//! # Not here
//!
//! Hosts, origins and redirects (`http`), request bodies over a WebSocket (`websocket`).

mod answer;
mod metadata;
mod request_body;
mod routes;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Extensions, HeaderValue, Method, Request, Response, Uri};
use quorate_json::Conversion;
use tokio::time::Instant;
use tonic::Status;

use self::answer::Messages;
pub(crate) use self::answer::{AnswerBody, http_status};
use self::metadata::Metadata;
pub(crate) use self::request_body::RequestBytes;
use self::request_body::{JsonBody, JsonMessages, read_message};
use crate::calls::client_body::ClientBody;
use crate::router::{Admitted, Router};
use quorate_grpc::methods::{Kind, Route, SERVICES, route};
use quorate_net::listen::{Ends, EndsWithClient};
use quorate_requests::ServerHandles;
use quorate_requests::admission::Bound;

/// Maximum size of a message's JSON, as a multiple of the message size. Base64 enlarges bytes by a third. Text that
/// consists only of escapes would grow sixfold, but does not occur in practice.
const JSON_FACTOR: usize = 4;

/// The gRPC path of the only unary method with large replies that never writes.
const RANGE: &str = "/etcdserverpb.KV/Range";

/// The gateway to the services of one member.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    router: Router,
    replies: Arc<Bound>,
    /// Maximum time that a reply waits for a permit.
    timeout: Duration,
}

/// The method that a path refers to.
#[derive(Clone, Copy, Debug)]
struct Target {
    method: (usize, usize),
    kind: Kind,
    conversion: Conversion,
    /// The gRPC path of the method.
    path: &'static str,
}

impl Gateway {
    pub(crate) fn new(handles: &ServerHandles, router: Router) -> Self {
        let replies = Arc::clone(&handles.info.admission().replies);
        Self { router, replies, timeout: handles.info.limits().request_timeout }
    }

    /// Returns the gateway for a connection with these addresses.
    pub(crate) fn for_connection(&self, ends: Ends) -> Self {
        let router = self.router.for_gateway(ends);
        Self { router, replies: Arc::clone(&self.replies), timeout: self.timeout }
    }

    /// Returns whether authentication is on.
    pub(crate) fn is_guarded(&self) -> bool {
        self.router.is_guarded()
    }

    /// Answers a request for a path under `/v3/`.
    pub(crate) async fn answer(
        &self,
        path: &str,
        request: Request<RequestBytes>,
    ) -> Response<AnswerBody> {
        let target = match target(path) {
            Some(target) if is_post(&request) => target,
            found => {
                request.into_body().pass_over().await;
                return answer::refusal(&if found.is_some() {
                    Status::unimplemented("Method Not Allowed")
                } else {
                    Status::not_found("Not Found")
                });
            }
        };
        match self.call(target, request).await {
            Ok(answer) => answer,
            Err(status) => answer::refusal(&status),
        }
    }

    async fn call(
        &self,
        target: Target,
        request: Request<RequestBytes>,
    ) -> Result<Response<AnswerBody>, Status> {
        let Metadata { headers, timeout, bytes } = match Metadata::of(request.headers()) {
            Ok(metadata) => metadata,
            Err(refused) => {
                request.into_body().pass_over().await;
                return Err(refused);
            }
        };
        let router = &self.router;
        let client = request.extensions().get::<EndsWithClient>().cloned();
        let bytes_max = router.message_bytes_max().saturating_mul(JSON_FACTOR);
        let permit = router.take_permit(target.method, (&headers, &Extensions::new()), bytes);
        let body = match (&permit, target.kind) {
            // The call is refused and counted before any part of its body is read.
            (Err(_), _) => ClientBody::Message(None),
            (Ok(permit), Kind::BidiStream) => {
                let body = JsonBody::new(request.into_body(), Arc::clone(permit), bytes, bytes_max);
                ClientBody::Messages(Box::pin(JsonMessages::new(body, target.conversion)))
            }
            (Ok(permit), Kind::Unary | Kind::ServerStream) => {
                let body = JsonBody::new(request.into_body(), Arc::clone(permit), bytes, bytes_max);
                ClientBody::Message(Some(read_message(body, target.conversion).await?))
            }
        };
        if let Some(client) = client {
            client.ask();
        }
        let mut call = Request::new(body);
        *call.method_mut() = Method::POST;
        *call.uri_mut() = Uri::from_static(target.path);
        *call.headers_mut() = headers;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let admitted = Admitted { permit, bytes, timeout };
        let Ok(response) = router.begin(target.method, target.kind, call, admitted).await;
        let messages = Messages::of(response);
        match target.kind {
            Kind::Unary => {
                let may_write = target.path != RANGE;
                let bound = (&self.replies, self.timeout);
                answer::unary(messages, target.conversion, may_write, bound).await
            }
            Kind::ServerStream | Kind::BidiStream => {
                let mut answer = answer::stream(messages, target.conversion).await;
                if let Some(deadline) = deadline {
                    answer.extensions_mut().insert(answer::read_until(deadline));
                }
                Ok(answer)
            }
        }
    }
}

/// Returns whether the method is POST. As in etcd's gateway, a header may override the method of a form.
fn is_post(request: &Request<RequestBytes>) -> bool {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let is_form = header(CONTENT_TYPE.as_str()) == Some(b"application/x-www-form-urlencoded");
    let given = header("x-http-method-override").filter(|name| is_form && !name.is_empty());
    request.method() == Method::POST && given.is_none_or(|name| name.eq_ignore_ascii_case(b"POST"))
}

fn target(path: &str) -> Option<Target> {
    let path = routes::grpc_path(path)?;
    let Route::Method { service, method, kind } = route(SERVICES, path) else { return None };
    let (of_service, of_method) = path.strip_prefix('/')?.rsplit_once('/')?;
    let conversion = Conversion::of(of_service, of_method)?;
    Some(Target { method: (service, method), kind, conversion, path })
}
