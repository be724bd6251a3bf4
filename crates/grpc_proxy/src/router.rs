//! Dispatches calls to their services, and performs the checks that all calls share.
//!
//! Most calls are relayed as bytes. The services that the proxy implements itself have modules of their own.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use quorate_api::etcdserverpb::LeaseTimeToLiveResponse;
use quorate_api::v3electionpb::CampaignRequest;
use quorate_api::v3lockpb::LockRequest;
use quorate_grpc::head;
use quorate_grpc::methods::{Kind, Method, OF_ETCD};
use quorate_grpc::until_deadline::{UntilDeadline, deadline_exceeded};
use quorate_net::listen::IncomingBody;
use quorate_net::listen::{Activity, Ends, Http2Service, ResponseDeadline};
use quorate_telemetry::metrics::ProxyMetrics;
use tonic::Status;
use tonic::body::Body;

use crate::call::{Calls, Counted, forwarded};
use crate::cluster::Cluster;
use crate::framing;
use crate::kv::Kv;
use crate::lease::Leases;
use crate::leasing::Leasing;
use crate::message_log::{LoggedCall, Side};
use crate::namespace::Namespace;
use crate::relay::{self, REQUEST_BYTES_MAX};
use crate::request_body::{RequestBody, RequestBytes, RequestLimit};
use crate::span::Span;
use crate::upstream::Upstream;
use crate::watch::{self, Hub};

/// The services of the proxy.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) metrics: Arc<ProxyMetrics>,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) kv: Kv,
    pub(crate) watch: Arc<Hub>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) leasing: Option<Arc<Leasing>>,
    /// Whether every message is logged.
    pub(crate) logs_messages: bool,
}

/// The HTTP/2 service of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    services: Arc<Services>,
    /// Counts the calls of the connection.
    calls: Arc<Calls>,
    /// Limits the buffered requests of the connection.
    requests: RequestLimit,
    ends: Ends,
}

impl Router {
    pub(crate) fn new(services: Arc<Services>) -> Self {
        let (calls, requests, ends) = (Arc::default(), RequestLimit::new(), Ends::default());
        Self { services, calls, requests, ends }
    }
}

impl Http2Service for Router {
    fn for_connection(&self, ends: Ends) -> Self {
        let (services, requests) = (Arc::clone(&self.services), self.requests.for_connection());
        Self { services, calls: Arc::default(), requests, ends }
    }

    fn activity(&self) -> Activity {
        Activity {
            begun: self.calls.begun.load(Ordering::Relaxed),
            under_way: self.calls.under_way.load(Ordering::Relaxed),
            ..Activity::default()
        }
    }
}

impl hyper::service::Service<Request<IncomingBody>> for Router {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<IncomingBody>) -> Self::Future {
        let call = match head::Call::read(OF_ETCD, &mut request) {
            Ok(call) => call,
            Err(refusal) => return Box::pin(std::future::ready(Ok(refusal.into_http()))),
        };
        let method = (call.service, call.method);
        let counted = Counted::begin(&self.services.metrics, method, &self.calls);
        let (services, ends) = (Arc::clone(&self.services), self.ends);
        let bytes = self.requests.begin();
        Box::pin(async move {
            let answer = services.answer(call, request, &bytes, ends).await;
            Ok(counted.until(answer.unwrap_or_else(Status::into_http)))
        })
    }
}

impl Services {
    async fn answer(
        self: Arc<Self>,
        call: head::Call,
        request: Request<IncomingBody>,
        bytes: &Arc<RequestBytes>,
        ends: Ends,
    ) -> Result<Response<Body>, Status> {
        let service = &OF_ETCD[call.service];
        let method = &service.methods[call.method];
        let (head, body) = request.into_parts();
        let shown = self.logs_messages.then_some(LoggedCall {
            service: service.name,
            method: method.name,
            from: ends.remote,
        });
        let body = Body::new(body);
        let body = match &shown {
            None => body,
            Some(shown) => shown.body(Side::Request, body),
        };
        let answering = self.dispatch(service.name, method, head.headers, body, bytes);
        let answer = match call.timeout {
            None => answering.await?,
            Some(timeout) => {
                let mut deadline = Box::pin(tokio::time::sleep(timeout));
                let mut answer = tokio::select! {
                    answer = answering => answer?,
                    () = &mut deadline => return Err(deadline_exceeded()),
                };
                match method.kind {
                    Kind::Unary => answer,
                    Kind::ServerStream | Kind::BidiStream => {
                        let ends_at = ResponseDeadline(deadline.deadline());
                        answer.extensions_mut().insert(ends_at);
                        answer.map(|body| UntilDeadline::body(body, deadline))
                    }
                }
            }
        };
        Ok(match shown {
            None => answer,
            Some(shown) => answer.map(|body| shown.body(Side::Response, body)),
        })
    }

    async fn dispatch(
        &self,
        service: &'static str,
        method: &'static Method,
        headers: HeaderMap,
        body: Body,
        bytes: &Arc<RequestBytes>,
    ) -> Result<Response<Body>, Status> {
        let body = Body::new(RequestBody::new(body, method.kind, Arc::clone(bytes)));
        match (service, method.name) {
            ("etcdserverpb.KV", "RangeStream") => {
                Err(Status::unimplemented("RangeStream is not supported by the gRPC proxy"))
            }
            ("etcdserverpb.Watch", _) => Ok(watch::serve(&self.watch, &headers, body)),
            (_, "LeaseKeepAlive") => Ok(self.leases.serve(&headers, body)),
            _ => {
                let messages = framing::requests(&headers, body, REQUEST_BYTES_MAX);
                let message = relay::only(method.kind, messages).await?;
                // A compressed message is larger than its received bytes.
                bytes.hold(message.len())?;
                self.answer_one(service, method, &headers, message).await
            }
        }
    }

    async fn answer_one(
        &self,
        service: &'static str,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Response<Body>, Status> {
        match (service, method.name) {
            ("etcdserverpb.KV", _) => self.kv.call(method, headers, message).await,
            ("etcdserverpb.Lease", "LeaseTimeToLive") => {
                let Some(namespace) = &self.namespace else {
                    return self.relay(method, headers, message).await;
                };
                let answer =
                    relay::ask(&self.upstream, method, forwarded(headers), message).await?;
                let mut answer: LeaseTimeToLiveResponse = framing::decode(answer)?;
                answer.keys = answer.keys.iter().filter_map(|key| namespace.strip(key)).collect();
                Ok(framing::answer(answer.encode_to_vec().into()))
            }
            ("etcdserverpb.Cluster", "MemberList") => match self.cluster.members() {
                Some(members) => Ok(framing::answer(members.encode_to_vec().into())),
                None => self.relay(method, headers, message).await,
            },
            ("etcdserverpb.Auth", "Authenticate") => self.relay(method, headers, message).await,
            ("etcdserverpb.Auth", "AuthEnable") => {
                if let Some(leasing) = &self.leasing {
                    // End the leasing session while members still accept anonymous requests.
                    leasing.release_all().await;
                }
                let answer = self.relay(method, headers, message).await;
                self.kv.drop_answers();
                if let Some(leasing) = &self.leasing {
                    leasing.restart_session();
                }
                answer
            }
            ("etcdserverpb.Auth", _) if !method.only_reads => {
                let answer = self.relay(method, headers, message).await;
                self.kv.drop_answers();
                answer
            }
            ("v3lockpb.Lock", "Lock") => {
                let name = framing::decode::<LockRequest>(message.clone())?.name;
                self.queue(method, headers, message, &name).await
            }
            ("v3electionpb.Election", "Campaign") => {
                let name = framing::decode::<CampaignRequest>(message.clone())?.name;
                self.queue(method, headers, message, &name).await
            }
            _ => self.relay(method, headers, message).await,
        }
    }

    /// Forwards a request for the lock or election service. The member creates a key whose name starts with the name of
    /// the lock or election, without checking whether a proxy owns that key.
    async fn queue(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
        name: &[u8],
    ) -> Result<Response<Body>, Status> {
        // Locks and elections use keys outside all namespaces, so a proxy with a namespace cannot own them.
        let leasing = self.leasing.as_ref().filter(|_| self.namespace.is_none());
        let Some(leasing) = leasing else { return self.relay(method, headers, message).await };
        let below = Span::below(&[name, b"/"].concat().into());
        // The request is sent once no other proxy owns any of these keys.
        let _reservation = leasing.reserve(headers, below).await?;
        let answer = relay::ask(&self.upstream, method, forwarded(headers), message).await?;
        Ok(framing::answer(answer))
    }

    async fn relay(
        &self,
        method: &'static Method,
        headers: &HeaderMap,
        message: Bytes,
    ) -> Result<Response<Body>, Status> {
        relay::relay(&self.upstream, method, forwarded(headers), message).await
    }
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use parking_lot::Mutex;
    use quorate_cli::flags::Matches;
    use quorate_grpc::methods;
    use tokio::net::TcpListener;
    use tokio::runtime::Handle;
    use tokio_stream::wrappers::ReceiverStream;
    use tonic::Code;

    use super::*;
    use crate::line::{FLAGS, Options};
    use crate::security::targets;
    use crate::start;

    const TXN: &str = "/etcdserverpb.KV/Txn";
    const LOCK: &str = "/v3lockpb.Lock/Lock";
    const CAMPAIGN: &str = "/v3electionpb.Election/Campaign";

    /// The paths of the requests that the test member has received.
    type IncomingBody = Arc<Mutex<Vec<String>>>;

    /// Starts a member that grants locks and fails transactions with this status. Returns its address.
    async fn member(refusal: &Status, received: &IncomingBody) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (refusal, received) = (refusal.clone(), Arc::clone(received));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (refusal, received) = (refusal.clone(), Arc::clone(&received));
                let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                    let path = request.uri().path();
                    received.lock().push(path.to_owned());
                    let answer = match path {
                        TXN => refusal.clone().into_http(),
                        _ => framing::answer(Bytes::new()),
                    };
                    std::future::ready(Ok::<Response<Body>, Infallible>(answer))
                });
                let connection = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        address
    }

    fn proxy_of(member: &str) -> Arc<Services> {
        let line = ["--experimental-leasing-prefix=own/", &format!("--endpoints={member}")];
        let words = line.map(|word| word.as_bytes().to_vec());
        let options = Options::of(&Matches::parse(FLAGS, &words).unwrap()).unwrap();
        let upstream = Upstream::new(
            &options.endpoints,
            targets(&options, false).unwrap(),
            options.dial_keep_alive,
            options.limits,
            Handle::current(),
        );
        start::services(&options, upstream.unwrap(), Arc::new(ProxyMetrics::new(&[])))
    }

    #[tokio::test]
    async fn after_a_failed_owner_check_a_lock_is_forwarded_only_if_the_check_was_denied_access() {
        for (code, paths) in [
            (Code::Unavailable, &[TXN][..]),
            (Code::ResourceExhausted, &[TXN]),
            // The client may lack access to the leasing keys. The lock is then forwarded unguarded.
            (Code::PermissionDenied, &[TXN, LOCK]),
        ] {
            let (refusal, received) = (Status::new(code, "refused"), IncomingBody::default());
            let proxy = proxy_of(&member(&refusal, &received).await);
            let request = LockRequest { name: Bytes::from_static(b"lock"), lease: 1 };
            let message = request.encode_to_vec().into();
            let method = methods::named(LOCK);
            let answer =
                proxy.answer_one("v3lockpb.Lock", method, &HeaderMap::new(), message).await;
            assert_eq!(*received.lock(), paths, "{code:?}");
            let failed = answer.err().map(|status| status.code());
            assert_eq!(failed, (paths.len() == 1).then_some(code));
        }
    }

    #[tokio::test]
    async fn locks_and_elections_below_the_leasing_prefix_are_forwarded_without_an_owner_check() {
        for (path, name) in [(LOCK, "own/lock"), (LOCK, "own"), (CAMPAIGN, "own/election")] {
            let refusal = Status::new(Code::Unavailable, "refused");
            let received = IncomingBody::default();
            let proxy = proxy_of(&member(&refusal, &received).await);
            // The name has the same field number in both requests.
            let request = LockRequest { name: Bytes::from_static(name.as_bytes()), lease: 1 };
            let message = request.encode_to_vec().into();
            let (service, method) = (&path[1..path.rfind('/').unwrap()], methods::named(path));
            let answer = proxy.answer_one(service, method, &HeaderMap::new(), message).await;
            assert_eq!(*received.lock(), [path], "{name}");
            assert!(answer.is_ok(), "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_message_does_not_arrive_is_refused() {
        let proxy = proxy_of("127.0.0.1:1");
        let (_frames, body) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Status>>(1);
        let body = Body::new(StreamBody::new(ReceiverStream::new(body)));
        let (method, bytes) = (methods::named("/etcdserverpb.KV/Put"), RequestLimit::new().begin());
        let answer =
            proxy.dispatch("etcdserverpb.KV", method, HeaderMap::new(), body, &bytes).await;
        assert_eq!(answer.unwrap_err().message(), "etcdserver: request timed out");
    }
}
