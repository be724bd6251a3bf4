//! TLS connections to the database, which follow the rules of `quorate_tls`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use quorate_tls::client::TlsStream;
use quorate_tls::{
    Allowed, ConnectError, Connector, ConnectorSettings, Pair, Protocols, ServerCheck, SetupError,
    Trust,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{self, ChannelBinding, MakeTlsConnect, TlsConnect};

use crate::url::{DatabaseUrl, Verification};

/// Creates the TLS connections to the database.
#[derive(Clone, Debug)]
pub(super) struct DatabaseTls {
    connector: Connector,
}

/// Performs the TLS handshake with one host.
#[derive(Debug)]
pub(super) struct HostTls {
    connector: Connector,
    host: String,
}

/// An encrypted connection.
#[derive(Debug)]
pub(super) struct Encrypted<S>(TlsStream<S>);

impl DatabaseTls {
    /// Creates the connector that a URL describes. Reads all certificate files once.
    pub(super) fn new(url: &DatabaseUrl) -> Result<Self, SetupError> {
        let trust = url.root_certificate.clone().map_or(Trust::System, Trust::File);
        let check = match url.verification {
            Verification::Full => ServerCheck::Verify(trust),
            Verification::NoTls | Verification::Preferred | Verification::Encrypted => {
                ServerCheck::Skip
            }
        };
        let settings = ConnectorSettings {
            pair: url.client_certificate.as_ref().map(|(cert, key)| Pair::new(cert, key)),
            protocols: Protocols::default(),
            check,
            allowed: Allowed::default(),
            http2: false,
            server_name: None,
        };
        Ok(Self { connector: Connector::new(settings)? })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for DatabaseTls {
    type Stream = Encrypted<S>;
    type TlsConnect = HostTls;
    type Error = ConnectError;

    fn make_tls_connect(&mut self, host: &str) -> Result<HostTls, ConnectError> {
        Ok(HostTls { connector: self.connector.clone(), host: host.to_owned() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for HostTls {
    type Stream = Encrypted<S>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Encrypted<S>, ConnectError>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(
            async move { self.connector.connect(Some(&self.host), stream).await.map(Encrypted) },
        )
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> tls::TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
