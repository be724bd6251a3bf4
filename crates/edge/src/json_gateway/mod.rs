//! The JSON gateway: the gRPC services over plain HTTP, as `curl`, Patroni and many a script speak to them.
//!
//! A request is turned into the call that a gRPC client would have made and takes its way from there on, in this
//! process: the same admission, gate, limits and counts. So there is nothing here that knows what a method does; which
//! messages there are, and how they look as JSON, a table says (`quorate_json`).
//!
//! ```text
//! HTTP ── routes ── metadata ── request body ──► Router ────────► answer ── HTTP
//!                               JSON to wire                      wire to JSON
//! ```
//!
//! # Invariants
//!
//! * A request is whoever its token says, and nobody without: never the user of a certificate.
//! * A call ends with the request that it was made for.
//! * Of a body no more is held than is counted; replies of any length are counted until they have been sent; of a
//!   stream one message at a time is held.
//!
//! # Not here
//!
//! Hosts, origins and redirections (`http`), and how a body comes over a WebSocket (`websocket`).

mod answer;
mod metadata;
mod request_body;
mod routes;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, Method, Request, Response, Uri};
use quorate_json::Conversion;
use tonic::Status;

use self::answer::Messages;
pub(crate) use self::answer::{AnswerBody, http_status};
use self::metadata::Metadata;
pub(crate) use self::request_body::RequestBytes;
use self::request_body::{JsonBody, JsonMessages, read_message};
use crate::calls::client_body::ClientBody;
use crate::router::{Admitted, Router};
use quorate_grpc::methods::{Kind, Route, SERVICES, route};
use quorate_member::Handles;
use quorate_member::admission::Bound;
use quorate_net::listen::{Ends, EndsWithClient};

/// How long JSON may be, as a multiple of the message that comes of it: bytes grow by a third, and a text of escapes
/// alone, which nobody writes, sixfold.
const JSON_FACTOR: usize = 4;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    router: Router,
    replies: Arc<Bound>,
    /// For how long a reply may wait for room.
    patience: Duration,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug)]
struct Target {
    method: (usize, usize),
    kind: Kind,
    conversion: Conversion,
    /// The path of the method, as gRPC has it.
    path: &'static str,
}

impl Gateway {
    pub(crate) fn new(handles: &Handles, router: Router) -> Self {
        let replies = Arc::clone(&handles.reader.admission().replies);
        Self { router, replies, patience: handles.profile.limits().request_timeout }
    }

    /// Whether it asks who calls.
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
            Some(target) if request.method() == Method::POST => target,
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
        let ends = request.extensions().get::<Ends>().copied().unwrap_or_default();
        let router = self.router.for_request(ends);
        let client = request.extensions().get::<EndsWithClient>().cloned();
        let bytes_max = router.message_bytes_max() * JSON_FACTOR;
        let room = router.take_room(target.method, (&headers, &Extensions::new()), bytes);
        let body = match (&room, target.kind) {
            // It is refused, and counted, before anything of it is read.
            (Err(_), _) => ClientBody::Message(None),
            (Ok(room), Kind::BidiStream) => {
                let body = JsonBody::new(request.into_body(), Arc::clone(room), bytes, bytes_max);
                ClientBody::Messages(Box::pin(JsonMessages::new(body, target.conversion)))
            }
            (Ok(room), Kind::Unary | Kind::ServerStream) => {
                let body = JsonBody::new(request.into_body(), Arc::clone(room), bytes, bytes_max);
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
        let admitted = Admitted { room, bytes, timeout };
        let Ok(response) = router.begin(target.method, target.kind, call, admitted).await;
        let messages = Messages::of(response);
        match target.kind {
            Kind::Unary => {
                answer::unary(messages, target.conversion, &self.replies, self.patience).await
            }
            Kind::ServerStream | Kind::BidiStream => {
                Ok(answer::stream(messages, target.conversion).await)
            }
        }
    }
}

fn target(path: &str) -> Option<Target> {
    let path = routes::grpc_path(path)?;
    let Route::Method { service, method, kind } = route(SERVICES, path) else { return None };
    let (of_service, of_method) = path.strip_prefix('/')?.rsplit_once('/')?;
    let conversion = Conversion::of(of_service, of_method)?;
    Some(Target { method: (service, method), kind, conversion, path })
}
