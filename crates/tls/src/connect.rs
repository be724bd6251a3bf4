//! The client's side: connections that are secured before anything is said on them.
//!
//! HTTP/2 is offered only where it is wanted: members speak HTTP/1 to one another.

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
use crate::expiry::Expiry;
use crate::identity::{Identity, Pair, Side};
use crate::names::Allowed;
use crate::observed::observe;
use crate::protocols::{Protocols, SetupError};
use crate::told::told;
use crate::verify::ServerVerifier;

/// Whom a server is taken for where its address is not a host's.
const LOCAL_NAME: &str = "localhost";

/// How servers are dialed.
#[derive(Clone, Debug)]
pub struct ConnectorSettings {
    /// What is shown to servers that ask.
    pub pair: Option<Pair>,
    /// Versions and suites.
    pub protocols: Protocols,
    /// How the server's certificate is verified.
    pub check: ServerCheck,
    /// Which names a server's certificate must have, verified or not.
    pub allowed: Allowed,
    /// Whether HTTP/2 is what will be spoken.
    pub http2: bool,
    /// The name to find in the certificate, if it is not the host's.
    pub server_name: Option<String>,
}

/// Why a server was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No certificate could stand for such a host.
    #[error("tls: {0:?} is no name of a host")]
    Name(String),
    /// It failed.
    #[error("{}", told(.0))]
    Handshake(#[source] io::Error),
    /// It did not end.
    #[error("net/http: TLS handshake timeout")]
    Timeout,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ClientConfig>,
    identity: Option<Arc<Identity>>,
    verifier: Arc<ServerVerifier>,
    server_name: Option<String>,
}

impl Connector {
    /// Reads all files once.
    ///
    /// # Errors
    ///
    /// One of them cannot be used, or the suites cannot be.
    pub fn new(settings: ConnectorSettings) -> Result<Self, SetupError> {
        let ConnectorSettings { pair, protocols, check, allowed, http2, server_name } = settings;
        let provider = protocols.provider()?;
        let authorities = match check {
            ServerCheck::Verify(trust) => Some(Authorities::load(&trust, &provider)?),
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
        // A session that goes on would pass over what has become of the certificates since.
        config.resumption = Resumption::disabled();
        if http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Ok(Self { config: Arc::new(config), identity, verifier, server_name })
    }

    /// Looks at all files, so that what is wrong with one is told before somebody is dialed, and says when they expire.
    pub fn look(&self) -> Vec<Expiry> {
        let own = self.identity.as_ref().and_then(|identity| identity.expiry());
        let authorities = self.verifier.authorities.as_ref().and_then(Authorities::expiry);
        own.into_iter().chain(authorities).collect()
    }

    /// Secures a connection to a host, whose name or address it is; `None` where it is a socket's file.
    ///
    /// # Errors
    ///
    /// The server is not accepted, or does not accept this client.
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
