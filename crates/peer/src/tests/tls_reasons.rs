//! TLS connections to peers: the reasons of failures, in the words of Go's TLS library, and slow handshakes.

use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use quorate_telemetry::log;
use quorate_tls::{
    Acceptor, AcceptorSettings, Allowed, ClientCheck, Connector, ConnectorSettings, Pair,
    Protocols, ServerCheck, Trust, find_or_make,
};

use super::*;
use crate::call::CallError;
use crate::dial::{self, DialError, PostError};
use crate::response::ResponseError;

/// A certificate that signs itself.
struct Certificate {
    pair: Pair,
    _dir: TempDir,
}

impl Certificate {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { pair: find_or_make(dir.path(), &["127.0.0.1"], 1).unwrap(), _dir: dir }
    }

    fn trust(&self) -> Trust {
        Trust::File(self.pair.cert.clone())
    }
}

fn acceptor(certificate: &Certificate, clients: Option<ClientCheck>) -> Acceptor {
    let settings = AcceptorSettings {
        pair: certificate.pair.clone(),
        protocols: Protocols::default(),
        clients,
        http2: false,
        endpoint: "peer",
    };
    Acceptor::new(settings).unwrap()
}

/// Refuses clients because they present no certificate.
async fn refuse_clients(listener: TcpListener, certificate: &Certificate) {
    let clients = ClientCheck {
        trust: certificate.trust(),
        allowed: Allowed::All,
        revocations: None,
        checks_origin: false,
        names_users: false,
    };
    let acceptor = acceptor(certificate, Some(clients));
    loop {
        let (mut stream, from) = listener.accept().await.unwrap();
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            assert!(acceptor.accept(&mut stream, Some(from)).await.is_none());
            // If the connection were closed before the request arrives, the system would reset it.
            drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
        });
    }
}

fn dialer(trust: Trust, server_name: Option<&str>) -> Dialer {
    let connector = Connector::new(ConnectorSettings {
        pair: None,
        protocols: Protocols::default(),
        check: ServerCheck::Verify(trust),
        allowed: Allowed::All,
        http2: false,
        server_name: server_name.map(str::to_owned),
    });
    Dialer { tls: Some(connector.unwrap()), from: None }
}

#[tokio::test]
async fn a_call_that_a_peers_tls_refuses_has_the_reason_in_gos_words() {
    let certificate = Certificate::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let call = async |server_name| -> CallError {
        let dialer = dialer(certificate.trust(), server_name);
        let call = Call::get(&url, "/members", Duration::from_secs(10));
        call.send(&dialer).await.unwrap_err()
    };
    let calling = async {
        let refused = call(None).await;
        let text = format!("{url}/members: remote error: tls: certificate required");
        assert_eq!((refused.to_string(), log::error_chain(&refused)), (text.clone(), text));
        let unverified = call(Some("other")).await;
        let text = format!(
            "{url}/members: tls: failed to verify certificate: x509: certificate is not valid for any names, but wanted to match other"
        );
        assert_eq!((unverified.to_string(), log::error_chain(&unverified)), (text.clone(), text));
    };
    tokio::select! {
        () = refuse_clients(listener, &certificate) => unreachable!("the listener serves forever"),
        () = calling => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_handshake_may_take_longer_than_the_dial_timeout() {
    let certificate = Certificate::new();
    let dialer = dialer(certificate.trust(), None);
    let member = TestMember::start_in(1, CLUSTER, Duration::from_secs(5), dialer);
    let local = &member.peers.local;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let accepting = async {
        let (stream, from) = listener.accept().await.unwrap();
        tokio::time::sleep(4 * local.dial_timeout).await;
        acceptor(&certificate, None).accept(stream, Some(from)).await.is_some()
    };
    let (connected, accepted) = tokio::join!(dial::connect(local, &url, None), accepting);
    assert!(accepted);
    connected.unwrap();
}

#[tokio::test]
async fn a_stream_that_a_peers_tls_refuses_has_the_reason_in_gos_words() {
    let certificate = Certificate::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let target = dial::target(&url).unwrap();
    let dialing = async {
        let refused = "remote error: tls: certificate required";
        let dialer = dialer(certificate.trust(), None);
        let mut stream = dialer.connect(&target, None).await.unwrap();
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(ResponseError::from(error).to_string(), refused);
        let stream = dialer.connect(&target, None).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let error = sender.send_request(Request::new(Empty::<Bytes>::new())).await.unwrap_err();
        assert_eq!(PostError::Http(error).to_string(), refused);
        let dialer = self::dialer(certificate.trust(), Some("other"));
        let source = dialer.connect(&target, None).await.unwrap_err();
        assert_eq!(
            DialError::Connect { target: target.clone(), source }.to_string(),
            "tls: failed to verify certificate: x509: certificate is not valid for any names, but wanted to match other"
        );
    };
    tokio::select! {
        () = refuse_clients(listener, &certificate) => unreachable!("the listener serves forever"),
        () = dialing => {}
    }
}
