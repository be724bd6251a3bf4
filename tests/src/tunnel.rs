//! A tunnel to a server that requires certificates, for clients without certificates.
//!
//! Each connection to the tunnel's port becomes a TLS connection to the server with the tunnel's certificate. As a
//! result, tests without TLS and tools without TLS options can connect to a server that requires certificates. The
//! first bytes determine the protocol to negotiate, so the server is not dialled until they have arrived.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use quorate_tls::{Allowed, Connector, ConnectorSettings, Pair, Protocols, ServerCheck, Trust};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use crate::Client;
use crate::pki::{Credentials, replace};

/// First bytes of an HTTP/2 connection.
const HTTP2: &[u8] = b"PRI";

/// A running tunnel. Dropping it closes its connections.
#[derive(Debug)]
pub struct Tunnel {
    port: u16,
    task: JoinHandle<()>,
}

impl Tunnel {
    /// Starts a tunnel to a port of this machine. The folder contains `ca`, `client` and `client.key`.
    #[must_use]
    pub fn start(to: u16, dir: &Path) -> Self {
        let connector = |http2| {
            Connector::new(ConnectorSettings {
                pair: Some(Pair::new(dir.join("client"), dir.join("client.key"))),
                protocols: Protocols::default(),
                check: ServerCheck::Verify(Trust::File(dir.join("ca"))),
                allowed: Allowed::All,
                http2,
                server_name: None,
            })
            .unwrap()
        };
        let way = Way { to, http1: connector(false), http2: connector(true) };
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = runtime().spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((stream, _)) = accepted else { continue };
                        // Errors are ignored because both ends of the connection notice them.
                        let way = way.clone();
                        connections.spawn(async move { drop(way.carry(stream).await) });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Self { port, task }
    }

    /// Returns the port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a separate runtime, because tests that compute or block must not delay the connections that they wait for.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    })
}

#[derive(Clone)]
struct Way {
    to: u16,
    http1: Connector,
    http2: Connector,
}

impl Way {
    async fn carry(&self, mut near: TcpStream) -> io::Result<()> {
        let connector = if begins_http2(&near).await? { &self.http2 } else { &self.http1 };
        let far = TcpStream::connect(("127.0.0.1", self.to)).await?;
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let far = connector.connect(Some("127.0.0.1"), far).await;
        let mut far = far.map_err(io::Error::other)?;
        tokio::io::copy_bidirectional(&mut near, &mut far).await.map(drop)
    }
}

async fn begins_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2.len()];
    loop {
        let count = stream.peek(&mut first).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if count == first.len() || !HTTP2.starts_with(&first[..count]) {
            return Ok(first[..count] == *HTTP2);
        }
        // Only some of the first bytes have arrived. `peek` would return them again at once, so other tasks run first.
        tokio::task::yield_now().await;
    }
}

/// A client with its own certificate.
#[derive(Debug)]
pub struct Visitor {
    client: Client,
    tunnel: Tunnel,
    _dir: TempDir,
}

impl Visitor {
    pub(crate) fn new(to: u16, credentials: &Credentials, authority: &str) -> Self {
        let dir = TempDir::new().unwrap();
        replace(&dir.path().join("ca"), authority.as_bytes());
        credentials.write(dir.path(), "client");
        let tunnel = Tunnel::start(to, dir.path());
        Self { client: Client::new(tunnel.port()), tunnel, _dir: dir }
    }

    /// Returns the port for other clients with the same certificate.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.tunnel.port()
    }

    /// Returns a client without a token.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }
}
