//! Connections of gRPC channels: TCP or Unix sockets, with or without TLS.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tower_service::Service;

use crate::connect::Connector;
use crate::facts::CertificateFacts;
use crate::greeting::{Greeting, greeted};
use crate::staggered::first_success;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `host:port`.
    Host(String),
    /// The path of a Unix socket.
    File(PathBuf),
}

/// Returns the host name that a certificate for a Unix socket must contain. As in etcd, this is the file name up to the
/// first colon.
pub fn host_of_file(path: &std::path::Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    Some(name.split(':').next().unwrap_or(name))
}

/// A connection over TCP or a Unix socket, with or without TLS.
pub type ChannelStream = Pin<Box<dyn ChannelIo>>;

/// A stream that can carry a channel.
pub trait ChannelIo: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> ChannelIo for S {}

/// Connects a channel to a fixed address, ignoring the URI.
#[derive(Clone, Debug)]
pub struct ChannelConnector {
    place: Place,
    tls: Option<Connector>,
    /// The first connection reports here whether an HTTP/2 server has sent its greeting.
    report: Option<Arc<Mutex<Option<Report>>>>,
}

type Report = oneshot::Sender<io::Result<()>>;

impl ChannelConnector {
    /// Creates a connector to this address. Without a TLS connector, it connects in plaintext.
    pub const fn new(place: Place, tls: Option<Connector>) -> Self {
        Self { place, tls, report: None }
    }

    /// Returns the address of the server.
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// Returns a copy whose first connection reports whether an HTTP/2 server has sent its greeting.
    pub fn greeted(&self) -> (Self, Greeting) {
        let (report, greeting) = oneshot::channel();
        let report = Some(Arc::new(Mutex::new(Some(report))));
        (Self { report, ..self.clone() }, greeting)
    }

    /// Performs a handshake, and returns the content of the server's certificate. Returns `None` if TLS is off, if the
    /// server is reached over a Unix socket, or if the certificate cannot be parsed.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection or the handshake fails.
    pub async fn server_certificate(&self) -> io::Result<Option<CertificateFacts>> {
        let (Place::Host(authority), Some(tls)) = (&self.place, &self.tls) else { return Ok(None) };
        let stream = dial(authority).await?;
        let host = authority.rsplit_once(':').map_or(&**authority, |(host, _)| host);
        let stream = tls.connect(Some(host), stream).await.map_err(io::Error::other)?;
        let (_, session) = stream.get_ref();
        let first = session.peer_certificates().and_then(<[_]>::first);
        Ok(first.and_then(CertificateFacts::of))
    }

    /// Connects once.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection or the handshake fails.
    pub async fn connect(&self) -> io::Result<ChannelStream> {
        match &self.place {
            Place::Host(authority) => {
                let stream = dial(authority).await?;
                stream.set_nodelay(true)?;
                let host = authority.rsplit_once(':').map_or(&**authority, |(host, _)| host);
                secure(self.tls.as_ref(), Some(host), stream).await
            }
            Place::File(path) => {
                let stream = UnixStream::connect(path).await?;
                secure(self.tls.as_ref(), host_of_file(path), stream).await
            }
        }
    }
}

/// Connects to one of the addresses of `host:port`. An address that does not respond delays the attempt at the next
/// address only briefly.
async fn dial(authority: &str) -> io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host(authority).await?;
    let dialed = first_success(addresses.map(TcpStream::connect)).await;
    dialed.unwrap_or_else(|| {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("{authority} has no address")))
    })
}

async fn secure<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    tls: Option<&Connector>,
    host: Option<&str>,
    stream: S,
) -> io::Result<ChannelStream> {
    Ok(match tls {
        None => Box::pin(stream),
        Some(tls) => Box::pin(tls.connect(host, stream).await.map_err(io::Error::other)?),
    })
}

impl Service<Uri> for ChannelConnector {
    type Response = TokioIo<ChannelStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let stream = connector.connect().await?;
            let report = connector.report.and_then(|report| report.lock().take());
            Ok(TokioIo::new(match report {
                Some(report) => Box::pin(greeted(stream, report)),
                None => stream,
            }))
        })
    }
}
