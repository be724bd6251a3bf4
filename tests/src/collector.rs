//! A collector of spans, which receives a server's OTLP requests and keeps the spans for the test.
//!
//! The messages follow `opentelemetry/proto/collector/trace/v1`, but have only the fields that the tests read.

#![expect(missing_docs, reason = "the fields are those of the published messages")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full, combinators::WithTrailers};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::net::TcpListener;

use crate::ports::Port;

/// Size of a message's header in bytes. The header consists of a flag and the length.
const HEAD_BYTES: usize = 5;

#[derive(Clone, PartialEq, prost::Message)]
struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    /// Kind of the span: 1 for internal spans, 2 for server spans.
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    /// Status code; 2 for an error.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// Returns the value of an attribute as a string.
fn attribute_text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.as_ref()?.value.as_ref()? {
        Value::Text(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
    })
}

impl Span {
    /// Returns the value of an attribute as a string.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<String> {
        attribute_text(&self.attributes, key)
    }

    /// Returns the names of the span's events.
    pub fn events(&self) -> impl Iterator<Item = &str> {
        self.events.iter().map(|event| event.name.as_str())
    }

    /// Returns the status code, or 0 if there is none.
    #[must_use]
    pub fn status_code(&self) -> i32 {
        self.status.as_ref().map_or(0, |status| status.code)
    }
}

/// A span with the name of the service that sent it.
#[derive(Clone, Debug)]
pub struct ExportedSpan {
    pub service_name: Option<String>,
    pub instance_id: Option<String>,
    pub scope: String,
    pub span: Span,
}

/// A collector that listens until the test ends.
#[derive(Debug)]
pub struct Collector {
    port: Port,
    exported: Arc<Mutex<Vec<ExportedSpan>>>,
}

impl Collector {
    /// Creates a collector that does not listen yet.
    #[must_use]
    pub fn prepare() -> Self {
        Self { port: Port::free(), exported: Arc::default() }
    }

    /// Starts a collector that accepts all requests.
    pub async fn start() -> Self {
        let collector = Self::prepare();
        collector.listen().await;
        collector
    }

    /// Accepts all requests from now on.
    pub async fn listen(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port.number())).await.unwrap();
        let exported = Arc::clone(&self.exported);
        drop(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let exported = Arc::clone(&exported);
                let service = service_fn(move |request| take(request, Arc::clone(&exported)));
                let connection = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                drop(tokio::spawn(connection));
            }
        }));
    }

    /// Returns the address of the collector.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// Returns all spans received so far.
    #[must_use]
    pub fn exported(&self) -> Vec<ExportedSpan> {
        self.exported.lock().unwrap().clone()
    }
}

async fn take(
    request: Request<Incoming>,
    exported: Arc<Mutex<Vec<ExportedSpan>>>,
) -> Result<
    Response<WithTrailers<Full<bytes::Bytes>, std::future::Ready<Option<Trailers>>>>,
    Infallible,
> {
    assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let sent = ExportTraceServiceRequest::decode(&body[HEAD_BYTES..]).unwrap();
    for of_resource in sent.resource_spans {
        let resource = of_resource.resource.unwrap_or_default().attributes;
        for of_scope in of_resource.scope_spans {
            let scope = of_scope.scope.unwrap_or_default().name;
            exported.lock().unwrap().extend(of_scope.spans.into_iter().map(|span| ExportedSpan {
                service_name: attribute_text(&resource, "service.name"),
                instance_id: attribute_text(&resource, "service.instance.id"),
                scope: scope.clone(),
                span,
            }));
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let answer = Full::from(vec![0; HEAD_BYTES]);
    let answer = answer.with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(Response::builder().header("content-type", "application/grpc").body(answer).unwrap())
}

type Trailers = Result<HeaderMap, Infallible>;
