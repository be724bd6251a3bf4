//! What the peer port answers a member that has no peers: who is in the cluster, and which versions run.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::member::Member;
use crate::peer::PeerBody;
use crate::release::ETCD_VERSION;

/// The service of the peer listener.
#[derive(Clone, Debug)]
pub(crate) struct PeerService {
    member: Arc<Member>,
}

impl PeerService {
    pub(crate) const fn new(member: Arc<Member>) -> Self {
        Self { member }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        match path {
            "/members" | "/version" if method != Method::GET => {
                let mut refusal =
                    text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".to_owned());
                let allow = header::HeaderValue::from_static("GET");
                refusal.headers_mut().insert(header::ALLOW, allow);
                refusal
            }
            "/members" => json(self.members()),
            "/version" => json(self.versions()),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        }
    }

    fn members(&self) -> String {
        let facts = self.member.facts();
        let rows: Vec<String> = facts.members.iter().map(|member| member.to_json()).collect();
        format!("[{}]\n", rows.join(","))
    }

    fn versions(&self) -> String {
        let cluster = self.member.facts().versions.cluster();
        let storage = self.member.standing().storage_version();
        format!(
            "{{\"etcdserver\":\"{ETCD_VERSION}\",\"etcdcluster\":\"{}\",\"storage\":\"{}\"}}",
            cluster.map_or_else(|| "not_decided".to_owned(), |version| version.to_string()),
            storage.map_or_else(|| "unknown".to_owned(), |version| version.to_string()),
        )
    }

    fn mark(&self, mut response: Response<Full<Bytes>>, path: &str) -> Response<Full<Bytes>> {
        if path == "/members"
            && let Ok(id) = header::HeaderValue::try_from(format!("{:x}", self.member.cluster_id()))
        {
            response.headers_mut().insert("x-etcd-cluster-id", id);
        }
        response
    }
}

impl hyper::service::Service<Request<Incoming>> for PeerService {
    type Response = Response<PeerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if request.uri().path().starts_with("/raft") {
            let peers = Arc::clone(self.member.peers());
            return Box::pin(async move { Ok(peers.handle(request).await) });
        }
        let path = request.uri().path();
        let response = self.mark(self.answer(request.method(), path), path);
        let response = response.map(|body| body.map_err(|never| match never {}).boxed_unsync());
        Box::pin(std::future::ready(Ok(response)))
    }
}

fn json(body: String) -> Response<Full<Bytes>> {
    with_type(StatusCode::OK, "application/json", body)
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", body)
}

fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
