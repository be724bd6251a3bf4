//! Behaviour common to all requests: sizes, encodings, metadata, unknown methods, and the list of services.

use quorate_api::etcdserverpb as pb;
use quorate_api::healthpb::HealthCheckRequest;
use quorate_api::healthpb::health_check_response::ServingStatus;
use quorate_tests::{Kind, Options, Server, key, on_both_servers, on_quorate, put, refused};
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Status};

on_both_servers! {
    a_request_of_the_maximum_size_is_accepted,
    a_message_beyond_the_receive_limit_is_refused,
    malformed_bodies_return_an_unmarshalling_error,
    unknown_services_and_methods_are_unimplemented,
    the_grpc_health_service_reports_serving,
    requests_that_require_a_leader_are_served_while_a_leader_exists,
    many_concurrent_requests_share_one_connection,
    compressed_requests_are_accepted,
}

on_quorate! {
    a_client_version_that_is_not_text_is_refused,
    known_methods_are_never_reported_as_unknown,
}

/// Returns a put with a value of `size` bytes. The size of its log entry depends on the request id, which is encoded in
/// ten bytes if it is at least 2^63, and usually in nine otherwise.
fn put_of(size: usize) -> pb::PutRequest {
    put("k", vec![b'v'; size])
}

async fn a_request_of_the_maximum_size_is_accepted(kind: Kind) {
    let server = Options::new(kind).flag("--max-request-bytes=10000").start().await;
    let client = server.client();
    let text = "etcdserver: request is too large";
    // The key, the lengths and the header of the entry take about thirty bytes in addition to the value.
    client.put(put_of(9_900)).await.unwrap();
    refused(client.put(put_of(10_000)).await, Code::InvalidArgument, text);
    refused(client.put(put_of(100_000)).await, Code::InvalidArgument, text);
    // The exact limit is found by trial. Every request below the limit is accepted.
    let mut passes = 9_900;
    let mut fails = 10_000;
    while fails - passes > 1 {
        let middle = usize::midpoint(passes, fails);
        match client.put(put_of(middle)).await {
            Ok(_) => passes = middle,
            Err(status) => {
                assert_eq!(status.message(), text);
                fails = middle;
            }
        }
    }
    let overhead = 10_000 - passes;
    assert!(
        (20..=40).contains(&overhead),
        "the key, the lengths and the header take {overhead} bytes"
    );
    assert_eq!(client.read("k").await.unwrap().len(), passes, "a refusal changes nothing");
}

async fn a_message_beyond_the_receive_limit_is_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let limit = 1_572_864 + 524_288;
    let request = put_of(limit);
    let size = prost::Message::encoded_len(&request);
    let text = format!("grpc: received message larger than max ({size} vs. {limit})");
    refused(client.put(request).await, Code::ResourceExhausted, &text);
    let text = "etcdserver: request is too large";
    refused(client.put(put_of(1_572_864)).await, Code::InvalidArgument, text);
    client.put(put_of(1_572_864 - 100)).await.unwrap();
}

/// Asserts that a body was refused because it cannot be decoded. The space after `proto:` varies between builds, so
/// only the surrounding text is compared.
fn undecodable(answer: Result<bytes::Bytes, Status>) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    assert!(status.message().starts_with("grpc: error unmarshalling request: "), "{status:?}");
}

async fn malformed_bodies_return_an_unmarshalling_error(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for method in ["/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn"] {
        // The bodies contain a length beyond the end, a field number of zero, and an incomplete number.
        for body in [&b"\x0a\x7fabc"[..], b"\x00\x01", b"\x18\xff"] {
            undecodable(client.raw(method, body).await);
        }
    }
    // The string in the body is not valid UTF-8. A health check is the only request without side effects that contains
    // a string.
    let answer = client.raw("/grpc.health.v1.Health/Check", b"\x0a\x02\xff\xfe").await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    let text = "grpc: error unmarshalling request: string field contains invalid UTF-8";
    if server.is_3_7() {
        assert_eq!(status.message(), text);
    }
    // Unknown fields are not an error.
    client.raw("/etcdserverpb.KV/Put", b"\x0a\x01k\x12\x01v\xf8\x07\x01").await.unwrap();
    assert_eq!(client.read("k").await.unwrap(), b"v");
    assert_eq!(client.revision().await, 2, "a refusal changes nothing");
}

async fn unknown_services_and_methods_are_unimplemented(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let raw = async |path| client.raw(path, "").await;
    let code = Code::Unimplemented;
    refused(raw("/no.Such/Method").await, code, "unknown service no.Such");
    let text = "unknown method Nothing for service etcdserverpb.KV";
    refused(raw("/etcdserverpb.KV/Nothing").await, code, text);
    let text = "unknown service grpc.reflection.v1.ServerReflection";
    refused(raw("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").await, code, text);
    let status = raw("/malformed").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, "malformed method name: \"/malformed\""));
}

async fn the_grpc_health_service_reports_serving(kind: Kind) {
    let server = Server::start(kind).await;
    let mut health = server.client().health();
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let answer = health.check(ask("")).await.unwrap().into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
    let answer = health.check(ask("nobody")).await.map(tonic::Response::into_inner);
    refused(answer, Code::NotFound, "unknown service");
    let mut watch = health.watch(ask("")).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let mut watch = health.watch(ask("nobody")).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);
}

async fn requests_that_require_a_leader_are_served_while_a_leader_exists(kind: Kind) {
    let server = Server::start(kind).await;
    let mut request = server.client().signed(key("a"));
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    request.metadata_mut().insert("client-api-version", "3.7".parse().unwrap());
    request.metadata_mut().insert("something-else", "x".parse().unwrap());
    server.client().kv().range(request).await.unwrap();
}

async fn a_client_version_that_is_not_text_is_refused(kind: Kind) {
    // Debian's release crashes on such a request.
    let server = Server::start(kind).await;
    let client = server.client();
    let mut request = Request::new(key("a"));
    let version = tonic::metadata::AsciiMetadataValue::try_from(&b"3.\xff\xfe"[..]).unwrap();
    request.metadata_mut().insert("client-api-version", version);
    let answer = client.kv().range(request).await.map(tonic::Response::into_inner);
    refused(answer, Code::InvalidArgument, "etcdserver: invalid client api version");
}

async fn many_concurrent_requests_share_one_connection(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..500 {
        let client = client.clone();
        tasks.spawn(async move {
            let name = format!("k{number}");
            client.write(&name, &name).await;
            // In a cluster, the leader may change in the meantime. Waiting reads then fail.
            let read = loop {
                match client.range(key(&name)).await {
                    Ok(read) => break read,
                    Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
                }
            };
            assert_eq!(read.kvs[0].value(), name.as_bytes());
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(client.revision().await, 501);
}

async fn compressed_requests_are_accepted(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let gzip = CompressionEncoding::Gzip;
    let mut kv = client.kv().send_compressed(gzip).accept_compressed(gzip);
    kv.put(client.signed(put("k", vec![b'v'; 10_000]))).await.unwrap();
    assert_eq!(client.read("k").await.unwrap().len(), 10_000);
}

async fn known_methods_are_never_reported_as_unknown(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    // No known method is reported as unknown, whether or not it is implemented.
    for method in [
        "/etcdserverpb.Auth/AuthStatus",
        "/v3lockpb.Lock/Unlock",
        "/etcdserverpb.Cluster/MemberPromote",
    ] {
        if let Err(status) = client.raw(method, "").await {
            assert!(!status.message().starts_with("unknown"), "{method}: {status:?}");
        }
    }
}
