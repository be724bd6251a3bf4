//! The client side: performs the handshake before any data is sent.
//!
//! HTTP/2 is offered only on request, because members use HTTP/1 among themselves.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::accept::HANDSHAKE_TIME_MAX;
use crate::authorities::{Authorities, ServerCheck};
use crate::errors::handshake_error;
use crate::expiry::Expiry;
use crate::identity::{Identity, Pair, Side};
use crate::names::Allowed;
use crate::observed::observe;
use crate::protocols::{Protocols, SetupError};
use crate::verify::ServerVerifier;

/// The server name for an address without a host name.
const LOCAL_NAME: &str = "localhost";

/// The TLS settings for connections to servers.
#[derive(Clone, Debug)]
pub struct ConnectorSettings {
    /// The client's certificate and private key, for servers that request one.
    pub pair: Option<Pair>,
    /// TLS versions and cipher suites.
    pub protocols: Protocols,
    /// How to verify the server's certificate.
    pub check: ServerCheck,
    /// The names allowed in the server's certificate. They are checked even if verification is skipped.
    pub allowed: Allowed,
    /// Whether the connection uses HTTP/2.
    pub http2: bool,
    /// The name that the certificate must contain, if it differs from the host name.
    pub server_name: Option<String>,
}

/// The reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host name cannot occur in a certificate.
    #[error("tls: {0:?} is not a valid host name")]
    Name(String),
    /// The handshake with the server failed.
    #[error("{}", handshake_error(.0))]
    Handshake(#[source] io::Error),
    /// The handshake exceeded its time limit.
    #[error("net/http: TLS handshake timeout")]
    Timeout,
}

/// Performs the handshakes of a client.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ClientConfig>,
    identity: Option<Arc<Identity>>,
    verifier: Arc<ServerVerifier>,
    server_name: Option<String>,
}

impl Connector {
    /// Creates a connector. Reads all files once.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or the selection of cipher suites is invalid.
    pub fn new(settings: ConnectorSettings) -> Result<Self, SetupError> {
        let ConnectorSettings { pair, protocols, check, allowed, http2, server_name } = settings;
        let provider = protocols.provider()?;
        let authorities = match check {
            ServerCheck::Verify(trust) => Some(Authorities::load(&trust)?),
            ServerCheck::Skip => None,
        };
        let verifier = Arc::new(ServerVerifier::new(authorities, allowed, &provider));
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&protocols.versions.supported())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::<ServerVerifier>::clone(&verifier));
        let identity =
            pair.map(|pair| Identity::load(pair, Side::Client, &provider)).transpose()?;
        let identity = identity.map(Arc::new);
        let mut config = match &identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::<Identity>::clone(identity)),
        };
        // Resuming a session would skip the verification of the current certificates.
        config.resumption = Resumption::disabled();
        if http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Ok(Self { config: Arc::new(config), identity, verifier, server_name })
    }

    /// Checks all files, so that errors are reported before a connection is opened. Returns the expiry times of the
    /// files.
    pub fn look(&self) -> Vec<Expiry> {
        let own = self.identity.as_ref().and_then(|identity| identity.expiry());
        let authorities = self.verifier.authorities.as_ref().and_then(Authorities::expiry);
        own.into_iter().chain(authorities).collect()
    }

    /// Performs the handshake with a server. `host` is the name or address for which the server's certificate must be
    /// valid, unless the settings give another name. `None` stands for `localhost`.
    ///
    /// # Errors
    ///
    /// Returns an error if the host name is invalid, or if the handshake fails or takes too long.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: Option<&str>,
        stream: S,
    ) -> Result<TlsStream<S>, ConnectError> {
        let name = self.server_name.as_deref().or(host).unwrap_or(LOCAL_NAME);
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| ConnectError::Name(name.to_owned()))?;
        let handshake = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream);
        let (shaken, mut observed) =
            observe(tokio::time::timeout(HANDSHAKE_TIME_MAX, handshake)).await;
        match shaken {
            Ok(shaken) => shaken.map_err(|error| ConnectError::Handshake(observed.explain(error))),
            Err(_) => Err(ConnectError::Timeout),
        }
    }
}
