//! The server side: performs the handshakes of accepted connections.
//!
//! A handshake may take up to [`HANDSHAKE_TIME_MAX`] and runs in its connection's own task. A failed handshake is
//! logged with etcd's text, at most one line per second. The line includes the number of omitted lines. A disconnection
//! by the client during the handshake is logged at debug level.
//!
//! Sessions are not resumed, because resumption would skip the verification of the client's certificate.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_telemetry::log;
use quorate_telemetry::throttle::LogThrottle;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::NoServerSessionStorage;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::authorities::{Authorities, Trust};
use crate::errors::handshake_error;
use crate::expiry::Expiry;
use crate::identity::{Identity, Pair, Side};
use crate::names::{Allowed, Names, stands_for};
use crate::observed::{Observed, observe};
use crate::origin::{self, SystemResolver};
use crate::protocols::{Protocols, SetupError};
use crate::revocation::Revocations;
use crate::verify::ClientVerifier;

/// Maximum duration of a handshake.
pub(crate) const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Minimum time between two log lines about failed handshakes.
const WARNED_EVERY: Duration = Duration::from_secs(1);

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// The rules for client certificates.
#[derive(Clone, Debug)]
pub struct ClientCheck {
    /// The trusted authorities.
    pub trust: Trust,
    /// The names allowed in certificates that are otherwise valid.
    pub allowed: Allowed,
    /// A file with the serial numbers of revoked certificates.
    pub revocations: Option<PathBuf>,
    /// Whether the certificate's names must match the connection's remote address.
    pub checks_origin: bool,
    /// Whether services receive the client's certificate, in order to identify a user by its common name or a member by
    /// its names.
    pub names_users: bool,
}

/// The TLS settings of a listener.
#[derive(Clone, Debug)]
pub struct AcceptorSettings {
    /// The server's certificate and private key.
    pub pair: Pair,
    /// TLS versions and cipher suites.
    pub protocols: Protocols,
    /// The rules for client certificates. With `None`, the server requests no client certificate.
    pub clients: Option<ClientCheck>,
    /// Whether HTTP/2 can be negotiated.
    pub http2: bool,
    /// The endpoint's name in log lines: `client`, `peer` or `console`.
    pub endpoint: &'static str,
}

/// A client's verified certificate, shared by all requests on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The subject's common name; empty if the subject has none.
    pub common_name: Arc<str>,
    certificate: CertificateDer<'static>,
}

impl ClientCertificate {
    /// Creates a certificate from its common name and its DER encoding.
    pub fn new(common_name: &str, encoded: Vec<u8>) -> Self {
        Self { common_name: common_name.into(), certificate: CertificateDer::from(encoded) }
    }

    /// Returns whether one of the certificate's alternative names matches this host name or address.
    pub fn stands_for(&self, host: &str) -> bool {
        stands_for(&self.certificate, host)
    }
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Accepted<S> {
    /// The decrypted stream.
    pub stream: TlsStream<S>,
    /// Whether HTTP/2 was negotiated.
    pub is_http2: bool,
    /// The client's certificate, if services receive it.
    pub client: Option<Arc<ClientCertificate>>,
}

/// Performs the handshakes of a listener.
#[derive(Clone, Debug)]
pub struct Acceptor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Arc<ServerConfig>,
    identity: Arc<Identity>,
    /// The verifier, if clients must present a certificate.
    verifier: Option<Arc<ClientVerifier>>,
    checks_origin: bool,
    names_users: bool,
    endpoint: &'static str,
    warnings: LogThrottle,
}

/// The reason why a connection was rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("{}", handshake_error(.0))]
    Handshake(#[from] io::Error),
    #[error("tls: the handshake took longer than {} s", HANDSHAKE_TIME_MAX.as_secs())]
    Timeout,
    #[error(transparent)]
    Elsewhere(#[from] origin::ElsewhereError),
    #[error("the client's certificate cannot be parsed")]
    Unreadable,
}

impl Acceptor {
    /// Creates an acceptor. Reads all files once.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or the selection of cipher suites is invalid.
    pub fn new(settings: AcceptorSettings) -> Result<Self, SetupError> {
        let AcceptorSettings { pair, protocols, clients, http2, endpoint } = settings;
        let provider = protocols.provider()?;
        let identity = Arc::new(Identity::load(pair, Side::Server, &provider)?);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&protocols.versions.supported())?;
        let (checks_origin, names_users) = clients
            .as_ref()
            .map_or((false, false), |check| (check.checks_origin, check.names_users));
        let verifier = match clients {
            None => None,
            Some(check) => Some(Arc::new(ClientVerifier {
                authorities: Authorities::load(&check.trust)?,
                allowed: check.allowed,
                revocations: check.revocations.as_deref().map(Revocations::new),
                algorithms: provider.signature_verification_algorithms,
            })),
        };
        let builder = match &verifier {
            None => builder.with_no_client_auth(),
            Some(verifier) => {
                builder.with_client_cert_verifier(Arc::<ClientVerifier>::clone(verifier))
            }
        };
        let mut config = builder.with_cert_resolver(Arc::<Identity>::clone(&identity));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let offered = if http2 { vec![HTTP2, HTTP1] } else { vec![HTTP1] };
        config.alpn_protocols = offered.into_iter().map(<[u8]>::to_vec).collect();
        let (config, warnings) = (Arc::new(config), LogThrottle::every(WARNED_EVERY));
        let shared =
            Shared { config, identity, verifier, checks_origin, names_users, endpoint, warnings };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Checks all files, so that errors are reported before a client connects. Returns the expiry times of the files.
    pub fn look(&self) -> Vec<Expiry> {
        let Shared { identity, verifier, .. } = &*self.shared;
        let revocations = verifier.as_ref().and_then(|check| check.revocations.as_ref());
        let revocations = revocations.and_then(Revocations::expiry);
        let authorities = verifier.as_ref().and_then(|check| check.authorities.expiry());
        identity.expiry().into_iter().chain(authorities).chain(revocations).collect()
    }

    /// Performs the handshake. `from` is the remote address, if there is one.
    ///
    /// If the connection is rejected, logs the reason and returns `None`.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        from: Option<SocketAddr>,
    ) -> Option<Accepted<S>> {
        let handshake = tokio::time::timeout(HANDSHAKE_TIME_MAX, self.shake_hands(stream, from));
        let (outcome, mut observed) = observe(handshake).await;
        match outcome.unwrap_or(Err(Rejection::Timeout)) {
            Ok(accepted) => Some(accepted),
            Err(rejection) => {
                let rejection = match rejection {
                    Rejection::Handshake(error) => Rejection::Handshake(observed.explain(error)),
                    other => other,
                };
                self.tell(&rejection, from, &observed);
                None
            }
        }
    }

    async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        from: Option<SocketAddr>,
    ) -> Result<Accepted<S>, Rejection> {
        let shared = &self.shared;
        let stream = TlsAcceptor::from(Arc::clone(&shared.config)).accept(stream).await?;
        let connection = stream.get_ref().1;
        let mut names = Names::default();
        if let Some(shown) = connection.peer_certificates().and_then(<[_]>::first) {
            names = Names::of(shown).ok_or(Rejection::Unreadable)?;
            if let Some(from) = from.filter(|_| shared.checks_origin) {
                check_origin(&names, from.ip()).await?;
            }
        }
        let is_http2 = connection.alpn_protocol() == Some(HTTP2);
        let verified = connection.peer_certificates().and_then(<[_]>::first);
        let client = verified.filter(|_| shared.names_users).map(|certificate| {
            Arc::new(ClientCertificate::new(&names.common, certificate.to_vec()))
        });
        Ok(Accepted { stream, is_http2, client })
    }

    fn tell(&self, rejection: &Rejection, from: Option<SocketAddr>, observed: &Observed) {
        let Observed { server_name, names, .. } = observed;
        let text = format!("rejected connection on {} endpoint", self.shared.endpoint);
        let from = from.map(|from| from.to_string()).unwrap_or_default();
        if matches!(rejection, Rejection::Handshake(error) if error.kind() == io::ErrorKind::UnexpectedEof)
        {
            log::debug!(&text, "remote-addr" = from, "error" = "EOF");
            return;
        }
        let Some(left_out) = self.shared.warnings.admits() else { return };
        let ips: Vec<String> = names.ips.iter().map(ToString::to_string).collect();
        log::warn!(
            &text,
            "remote-addr" = from,
            "server-name" = server_name,
            "ip-addresses" = ips,
            "dns-names" = names.dns,
            "error" = rejection.to_string(),
            "lines-left-out" = left_out
        );
    }
}

async fn check_origin(names: &Names, from: IpAddr) -> Result<(), Rejection> {
    if !origin::needs_lookup(names, from) {
        return Ok(origin::check(names, from, &SystemResolver)?);
    }
    let names = names.clone();
    let checked = tokio::task::spawn_blocking(move || origin::check(&names, from, &SystemResolver));
    Ok(checked.await.map_err(|error| io::Error::other(error.to_string()))??)
}
