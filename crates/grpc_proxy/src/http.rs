//! The HTTP/1 endpoints: the health of the cluster, the metrics of a member and of this proxy, and, if enabled, the
//! profiles of this process.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use quorate_api::etcdserverpb::RangeRequest;
use quorate_grpc::methods;
use quorate_http_pages::profiles::{Profiles, read_body, takes_body};
use quorate_http_pages::reply::{self, Reply};
use quorate_net::listen::Http1Service;
use quorate_net::listen::IncomingBody;
use tonic::{Code, Status};

use crate::relay;
use crate::router::Services;

/// Maximum time for a member to answer the health check.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(1);

/// Maximum time for a member to answer a scrape.
const SCRAPE_TIME_MAX: Duration = Duration::from_secs(30);

/// The key that the health check reads.
const HEALTH_KEY: &[u8] = b"a";

/// The HTTP/1 service of the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    services: Arc<Services>,
    profiles: Option<Arc<Profiles>>,
}

impl Pages {
    pub(crate) const fn new(services: Arc<Services>) -> Self {
        Self { services, profiles: None }
    }

    /// Adds the profiling endpoints of this process.
    pub(crate) fn with_profiles(self) -> Self {
        Self { profiles: Some(Arc::default()), ..self }
    }

    async fn answer(&self, request: Request<IncomingBody>) -> Reply {
        if self.profiles.is_some() && takes_body(&request) {
            return self.page(&read_body(request).await).await;
        }
        self.page(&request).await
    }

    async fn page<B>(&self, request: &Request<B>) -> Reply {
        let path = request.uri().path();
        if let Some(profiles) = &self.profiles {
            let arguments: Vec<String> = std::env::args().collect();
            if let Some(page) = profiles.answer(path, request, &arguments).await {
                return page;
            }
        }
        if !matches!(path, "/metrics" | "/health" | "/proxy/metrics" | "/proxy/health") {
            return reply::not_found();
        }
        match path {
            "/metrics" => match self.scrape().await {
                Some(body) => reply::typed("text/plain; version=0.0.4", body),
                None => reply::error(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error"),
            },
            "/proxy/metrics" => {
                let text = self.services.metrics.render();
                reply::typed("text/plain; version=0.0.4; charset=utf-8; escaping=underscores", text)
            }
            _ if request.method() != Method::GET => reply::method_not_allowed(),
            _ => self.health().await,
        }
    }

    async fn health(&self) -> Reply {
        let reason = self.unhealthy().await;
        let health = if reason.is_none() { "true" } else { "false" };
        let reason_json = serde_json::Value::from(reason.as_deref().unwrap_or_default());
        let text = format!("{{\"health\":\"{health}\",\"reason\":{reason_json}}}");
        match reason {
            None => reply::typed(reply::PLAIN_TEXT, text),
            Some(_) => reply::error(StatusCode::SERVICE_UNAVAILABLE, &text),
        }
    }

    /// Returns the reason why the cluster is unhealthy, or `None` if it is healthy.
    async fn unhealthy(&self) -> Option<String> {
        let message =
            RangeRequest { key: Bytes::from_static(HEALTH_KEY), ..RangeRequest::default() };
        let method = methods::named("/etcdserverpb.KV/Range");
        let message = message.encode_to_vec().into();
        let asking = relay::ask(&self.services.upstream, method, HeaderMap::new(), message);
        let status = match tokio::time::timeout(HEALTH_TIME_MAX, asking).await {
            Ok(Ok(_)) => return None,
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("context deadline exceeded"),
        };
        // A member that returns "permission denied" is healthy.
        (status.code() != Code::PermissionDenied).then(|| format!("GET ERROR:{}", status.message()))
    }

    /// Fetches the metrics of a member.
    async fn scrape(&self) -> Option<Bytes> {
        let target = self.services.upstream.any_target()?;
        let scraping = async {
            let stream = target.http_connector.connect().await.ok()?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
            let driving = tokio::spawn(connection);
            let host = target.uri.authority().map_or("localhost", |it| it.as_str());
            let request = Request::get("/metrics").header(HOST, host).body(Empty::<Bytes>::new());
            let answer = sender.send_request(request.ok()?).await.ok()?;
            let body = answer.into_body().collect().await.ok()?.to_bytes();
            driving.abort();
            Some(body)
        };
        tokio::time::timeout(SCRAPE_TIME_MAX, scraping).await.ok().flatten()
    }
}

impl Http1Service for Pages {
    const ANSWERS_HALF_CLOSED: bool = true;
}

impl hyper::service::Service<Request<IncomingBody>> for Pages {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let pages = self.clone();
        Box::pin(async move { Ok(pages.answer(request).await) })
    }
}
