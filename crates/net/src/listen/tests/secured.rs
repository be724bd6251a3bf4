//! Tests protocol detection on listeners with TLS and on Unix sockets.

use std::path::PathBuf;

use http_body_util::Full;
use hyper_util::rt::TokioExecutor;
use quorate_tls::{
    AcceptorSettings, Allowed, ChannelConnector, ClientCertificate, ClientCheck, Connector,
    ConnectorSettings, Pair, Place, Protocols, ServerCheck, Trust, find_or_make,
};
use tempfile::TempDir;
use tower_service::Service as _;

use super::*;

/// A service that answers with its name, whether the request is encrypted, and the name in the client's certificate.
#[derive(Clone)]
struct Naming {
    name: &'static str,
    /// Whether this is the service of a connection, as opposed to the one that all connections share.
    is_of_connection: bool,
}

impl Naming {
    const fn shared(name: &'static str) -> Self {
        Self { name, is_of_connection: false }
    }

    const fn of_connection(&self) -> Self {
        Self { name: self.name, is_of_connection: true }
    }
}

impl Service<Request<IncomingBody>> for Naming {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        let is_encrypted = request.extensions().get::<Encrypted>().is_some();
        let client = request.extensions().get::<Arc<ClientCertificate>>();
        let name = client.map(|client| client.common_name.clone());
        assert!(self.is_of_connection, "limits of a connection would not apply to the request");
        let text = format!("{} {is_encrypted} {name:?}", self.name);
        std::future::ready(Ok(Response::new(Full::new(text.into()))))
    }
}

impl Http1Service for Naming {
    const ANSWERS_HALF_CLOSED: bool = true;

    fn for_connection(&self, _: Ends) -> Self {
        self.of_connection()
    }
}

impl Http2Service for Naming {
    fn for_connection(&self, _: Ends) -> Self {
        self.of_connection()
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }
}

/// A listener for both protocols, which serves until this value is dropped.
struct Serving {
    place: Place,
    cert: PathBuf,
    dir: TempDir,
    _stop: watch::Sender<bool>,
    _runtimes: Arc<Runtimes>,
}

const GRPC_ALONE: Services<Naming, Naming> =
    Services { grpc: Some(Naming::shared("grpc")), http: None };
const HTTP_ALONE: Services<Naming, Naming> =
    Services { grpc: None, http: Some(Naming::shared("http")) };
const BOTH: Services<Naming, Naming> = Services { grpc: GRPC_ALONE.grpc, http: HTTP_ALONE.http };

enum How {
    Plain,
    Tls,
    Both,
}

impl Serving {
    fn start(how: &How, is_file: bool, services: Services<Naming, Naming>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pair = find_or_make(&dir.path().join("own"), &["127.0.0.1", "localhost"], 1).unwrap();
        let acceptor = Acceptor::new(AcceptorSettings {
            pair: pair.clone(),
            protocols: Protocols::default(),
            clients: None::<ClientCheck>,
            http2: true,
            endpoint: "client",
        })
        .unwrap();
        let path = dir.path().join("localhost:1");
        let listener = if is_file {
            Listener::bind_file(&path).unwrap()
        } else {
            Listener::bind(([127, 0, 0, 1], 0).into(), Reuse::default()).unwrap()
        };
        let place = match listener.address() {
            Some(address) => Place::Host(address.to_string()),
            None => Place::File(path),
        };
        let listener = listener.secured(match how {
            How::Plain => Security::Plain,
            How::Tls => Security::Tls(acceptor),
            How::Both => Security::Both(acceptor),
        });
        let threads = Threads { name: "test", count: 1, stack_bytes: 1 << 20 };
        let runtimes =
            Arc::new(Runtimes::start(threads, |_| std::future::pending::<()>()).unwrap());
        let (stopper, stop) = watch::channel(false);
        let (alive, _) = mpsc::channel(1);
        listener.spawn(&runtimes, services, &limits(10), &stop, &alive);
        Self { place, cert: pair.cert, dir, _stop: stopper, _runtimes: runtimes }
    }

    fn connector(&self, http2: bool) -> Connector {
        Connector::new(ConnectorSettings {
            pair: None::<Pair>,
            protocols: Protocols::default(),
            check: ServerCheck::Verify(Trust::File(self.cert.clone())),
            allowed: Allowed::All,
            http2,
            server_name: None,
        })
        .unwrap()
    }

    /// Sends a request over a new connection. Over TLS, HTTP/2 is negotiated.
    async fn ask(&self, is_secured: bool, http2: bool, kind: &str) -> Result<String, String> {
        self.ask_over(is_secured.then(|| self.connector(http2)), http2, kind).await
    }

    /// Sends a request over a new connection, with or without TLS.
    async fn ask_over(
        &self,
        tls: Option<Connector>,
        http2: bool,
        kind: &str,
    ) -> Result<String, String> {
        let mut connector = ChannelConnector::new(self.place.clone(), tls);
        let io = connector.call("http://localhost".parse().unwrap()).await;
        let io = io.map_err(|error| error.to_string())?;
        let request = Request::post("http://localhost/")
            .header("host", "localhost")
            .header("content-type", kind)
            .body(Full::<Bytes>::default())
            .unwrap();
        let answer = if http2 {
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
            let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
            tokio::spawn(connection);
            sender.send_request(request).await
        } else {
            let handshake = hyper::client::conn::http1::handshake(io).await;
            let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
            tokio::spawn(connection);
            sender.send_request(request).await
        };
        let body = answer.map_err(|error| error.to_string())?.into_body();
        let body =
            http_body_util::BodyExt::collect(body).await.map_err(|error| error.to_string())?;
        Ok(String::from_utf8(body.to_bytes().to_vec()).unwrap())
    }
}

#[tokio::test]
async fn over_tls_the_content_type_selects_grpc_or_http() {
    for is_file in [false, true] {
        let serving = Serving::start(&How::Tls, is_file, BOTH);
        for (http2, kind, expected) in [
            (true, "application/grpc+proto", "grpc false None"),
            (true, "application/json", "http true None"),
            (false, "application/json", "http true None"),
            (false, "application/grpc", "http true None"),
        ] {
            assert_eq!(serving.ask(true, http2, kind).await.as_deref(), Ok(expected), "{kind}");
        }
        assert!(serving.ask(false, false, "").await.is_err(), "plaintext was not refused");
    }
    let serving = Serving::start(&How::Tls, false, GRPC_ALONE);
    let alone = serving.ask(true, true, "application/json").await;
    assert_eq!(alone.as_deref(), Ok("grpc false None"), "gRPC is the only service");
}

#[tokio::test]
async fn a_tls_listener_without_grpc_serves_http2_only_if_it_was_negotiated() {
    let serving = Serving::start(&How::Tls, false, HTTP_ALONE);
    for (is_negotiated, http2, is_served) in
        [(true, true, true), (false, true, false), (false, false, true)]
    {
        let tls = Some(serving.connector(is_negotiated));
        let answer = serving.ask_over(tls, http2, "application/json").await;
        let expected = is_served.then_some("http true None");
        assert_eq!(answer.as_deref().ok(), expected, "{is_negotiated} {http2}: {answer:?}");
    }
}

#[tokio::test]
async fn one_address_can_serve_plaintext_and_tls() {
    for is_file in [false, true] {
        let serving = Serving::start(&How::Both, is_file, BOTH);
        for http2 in [false, true] {
            let grpc = "application/grpc";
            let expected = |text: &'static str| if http2 { "grpc false None" } else { text };
            let secured = serving.ask(true, http2, grpc).await;
            assert_eq!(secured.as_deref(), Ok(expected("http true None")));
            let plain = serving.ask(false, http2, grpc).await;
            assert_eq!(plain.as_deref(), Ok(expected("http false None")));
        }
    }
}

#[tokio::test]
async fn a_socket_file_is_created_and_removed_with_its_listener() {
    let serving = Serving::start(&How::Plain, true, BOTH);
    assert_eq!(serving.ask(false, false, "").await.as_deref(), Ok("http false None"));
    let path = serving.dir.path().join("another");
    let first = Listener::bind_file(&path).unwrap();
    // Creates a socket file like one left over from a killed process.
    drop(std::os::unix::net::UnixListener::bind(serving.dir.path().join("left")).unwrap());
    drop(Listener::bind_file(&serving.dir.path().join("left")).unwrap());
    assert!(!serving.dir.path().join("left").exists());
    drop(first);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    assert!(Listener::bind_file(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}
