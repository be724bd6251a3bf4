//! HTTP/2 over TLS, which carries both gRPC and plain HTTP requests.
//!
//! As in etcd, the content type decides: `application/grpc` requests go to gRPC, and others to the HTTP endpoints, if
//! the listener serves both. If the connection has a client certificate, the certificate is also added to the requests
//! here.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use hyper::body::{Body, Frame, SizeHint};
use hyper::service::Service;
use quorate_tls::ClientCertificate;

use super::incoming_body::IncomingBody;
use super::requests::{AnswerBody, Requests};
use super::{Activity, Ends, Http1Service, Http2Service, HttpService, WholeCall};
use quorate_http2::head::Head;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request extension that marks requests over TLS. Only the HTTP endpoints use it.
#[derive(Clone, Copy, Debug)]
pub struct Encrypted;

/// A service that adds the connection's properties to its requests.
#[derive(Clone, Debug)]
pub(super) struct WithConnection<S> {
    pub(super) inner: S,
    pub(super) client: Option<Arc<ClientCertificate>>,
    /// Whether requests are marked with [`Encrypted`].
    pub(super) is_marked: bool,
}

impl<S> WithConnection<S> {
    /// Returns the service of a connection without TLS, whose requests are passed on as they are.
    pub(super) const fn unencrypted(inner: S) -> Self {
        Self { inner, client: None, is_marked: false }
    }
}

impl<S: HttpService> Service<Request<IncomingBody>> for WithConnection<S> {
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn call(&self, mut request: Request<IncomingBody>) -> S::Future {
        if let Some(client) = &self.client {
            request.extensions_mut().insert(Arc::clone(client));
        }
        if self.is_marked {
            request.extensions_mut().insert(Encrypted);
        }
        self.inner.call(request)
    }
}

impl<S: Http1Service> Http1Service for WithConnection<S> {
    const ANSWERS_HALF_CLOSED: bool = S::ANSWERS_HALF_CLOSED;

    fn for_connection(&self, ends: Ends) -> Self {
        Self { inner: self.inner.for_connection(ends), ..self.clone() }
    }
}

/// A service that dispatches gRPC requests to one service and all others to another.
#[derive(Clone, Debug)]
pub(super) struct Mixed<G, H> {
    pub(super) grpc: Option<WithConnection<G>>,
    pub(super) http: Option<WithConnection<H>>,
    pub(super) requests: Requests,
    pub(super) ends: Ends,
}

impl<G: Http2Service, H: Http1Service> Http2Service for Mixed<G, H> {
    fn for_connection(&self, ends: Ends) -> Self {
        let own = |shared: &WithConnection<G>| WithConnection {
            inner: shared.inner.for_connection(ends),
            ..shared.clone()
        };
        let grpc = self.grpc.as_ref().map(own);
        let http = self.http.as_ref().map(|shared| shared.for_connection(ends));
        Self { grpc, http, requests: Requests::default(), ends }
    }

    fn activity(&self) -> Activity {
        let of_grpc = self.grpc.as_ref().map(|grpc| grpc.inner.activity()).unwrap_or_default();
        Activity {
            begun: of_grpc.begun + self.requests.begun(),
            under_way: of_grpc.under_way + self.requests.under_way(),
            ..of_grpc
        }
    }

    fn call_whole(
        &self,
        head: &Arc<Head>,
        _: Option<&Arc<ClientCertificate>>,
        data: &[u8],
    ) -> Option<WholeCall<Self::ResponseBody>> {
        let grpc = self.grpc.as_ref()?;
        let call = grpc.inner.call_whole(head, grpc.client.as_ref(), data)?;
        Some(Box::pin(async move { call.await.map_err(|response| response.map(MixedBody::Grpc)) }))
    }
}

impl<G: Http2Service, H: Http1Service> Service<Request<IncomingBody>> for Mixed<G, H> {
    type Response = Response<MixedBody<G::ResponseBody, H::ResponseBody>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<IncomingBody>) -> Self::Future {
        match (&self.grpc, &self.http) {
            (Some(grpc), None) => Self::answer_grpc(grpc, request),
            (Some(grpc), Some(_)) if is_grpc(&request) => Self::answer_grpc(grpc, request),
            (_, Some(http)) => {
                request.extensions_mut().insert(self.ends);
                let (answer, under_way) = (http.call(request), self.requests.begin());
                Box::pin(async move {
                    let to_body = |body| MixedBody::Http(AnswerBody::new(body, under_way));
                    answer.await.map(|answer| answer.map(to_body))
                })
            }
            (None, None) => {
                let mut answer = Response::new(MixedBody::Nothing);
                *answer.status_mut() = StatusCode::NOT_FOUND;
                Box::pin(std::future::ready(Ok(answer)))
            }
        }
    }
}

impl<G: Http2Service, H: Http1Service> Mixed<G, H> {
    fn answer_grpc(
        grpc: &WithConnection<G>,
        request: Request<IncomingBody>,
    ) -> <Self as Service<Request<IncomingBody>>>::Future {
        let answer = grpc.call(request);
        Box::pin(async move { answer.await.map(|answer| answer.map(MixedBody::Grpc)) })
    }
}

fn is_grpc(request: &Request<IncomingBody>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().windows(GRPC.len()).any(|part| part == GRPC.as_bytes()))
}

const GRPC: &str = "application/grpc";

/// The body of a response from either service.
#[derive(Debug)]
pub(super) enum MixedBody<G, H> {
    Grpc(G),
    Http(AnswerBody<H>),
    Nothing,
}

impl<G, H> Body for MixedBody<G, H>
where
    G: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    H: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Grpc(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|polled| polled.map(|read| read.map_err(Into::into))),
            Self::Http(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|polled| polled.map(|read| read.map_err(Into::into))),
            Self::Nothing => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Grpc(body) => body.is_end_stream(),
            Self::Http(body) => body.is_end_stream(),
            Self::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Grpc(body) => body.size_hint(),
            Self::Http(body) => body.size_hint(),
            Self::Nothing => SizeHint::with_exact(0),
        }
    }
}
