//! The server's side: handshakes of connections that were accepted.
//!
//! A handshake has [`HANDSHAKE_TIME_MAX`], whoever waits meanwhile; each is its connection's own task's affair. One that
//! fails is told in the log in etcd's words, a line a second at most, with how many were left out; one whose client just
//! went away only to who debugs.
//!
//! Sessions are not resumed: that would pass over what has become of the client's certificate since.

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
use crate::expiry::Expiry;
use crate::identity::{Identity, Pair, Side};
use crate::names::{Allowed, Names, stands_for};
use crate::observed::{Observed, observe};
use crate::origin::{self, SystemResolver};
use crate::protocols::{Protocols, SetupError};
use crate::revocation::Revocations;
use crate::told::told;
use crate::verify::ClientVerifier;

/// How long a handshake may take.
pub(crate) const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Between two lines about handshakes that failed.
const WARNED_EVERY: Duration = Duration::from_secs(1);

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Which clients are let in.
#[derive(Clone, Debug)]
pub struct ClientCheck {
    /// Whose signatures count.
    pub trust: Trust,
    /// Who, of those with a certificate that is in order.
    pub allowed: Allowed,
    /// A file of revoked serials.
    pub revocations: Option<PathBuf>,
    /// Whether the certificate's names have to fit where the connection comes from.
    pub checks_origin: bool,
    /// Whether services get the client's certificate: its common name is a user's, or its names are a member's.
    pub names_users: bool,
}

/// How a listener does TLS.
#[derive(Clone, Debug)]
pub struct AcceptorSettings {
    /// What is shown to clients.
    pub pair: Pair,
    /// Versions and suites.
    pub protocols: Protocols,
    /// `None` asks clients for no certificate.
    pub clients: Option<ClientCheck>,
    /// Whether HTTP/2 can be agreed on.
    pub http2: bool,
    /// Whose port it is, for the log: `client` or `peer`.
    pub endpoint: &'static str,
}

/// The verified certificate of a client. All requests of the connection share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The subject's common name; empty where it has none.
    pub common_name: Arc<str>,
    certificate: CertificateDer<'static>,
}

impl ClientCertificate {
    /// A certificate with this common name, and its encoding.
    pub fn new(common_name: &str, encoded: Vec<u8>) -> Self {
        Self { common_name: common_name.into(), certificate: CertificateDer::from(encoded) }
    }

    /// Whether an alternative name of the certificate stands for this host name or address.
    pub fn stands_for(&self, host: &str) -> bool {
        stands_for(&self.certificate, host)
    }
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Accepted<S> {
    /// What was said on it since.
    pub stream: TlsStream<S>,
    /// Whether HTTP/2 was agreed on.
    pub is_http2: bool,
    /// Who asks, if the listener is to tell.
    pub client: Option<Arc<ClientCertificate>>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Acceptor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Arc<ServerConfig>,
    identity: Arc<Identity>,
    /// Of clients, where they have to show a certificate.
    verifier: Option<Arc<ClientVerifier>>,
    checks_origin: bool,
    names_users: bool,
    endpoint: &'static str,
    warnings: LogThrottle,
}

/// Why a connection is not accepted.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("{}", told(.0))]
    Handshake(#[from] io::Error),
    #[error("tls: the handshake took too long")]
    Timeout,
    #[error(transparent)]
    Elsewhere(#[from] origin::ElsewhereError),
    #[error("the client's certificate cannot be read")]
    Unreadable,
}

impl Acceptor {
    /// Reads all files once.
    ///
    /// # Errors
    ///
    /// One of them cannot be used, or the suites cannot be.
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
                authorities: Authorities::load(&check.trust, &provider)?,
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

    /// Looks at all files, so that what is wrong with one is told before somebody connects, and says when they expire.
    pub fn look(&self) -> Vec<Expiry> {
        let Shared { identity, verifier, .. } = &*self.shared;
        let revocations = verifier.as_ref().and_then(|check| check.revocations.as_ref());
        let revocations = revocations.and_then(Revocations::expiry);
        let authorities = verifier.as_ref().and_then(|check| check.authorities.expiry());
        identity.expiry().into_iter().chain(authorities).chain(revocations).collect()
    }

    /// Does the handshake. `from` is where the connection comes from, if that is a host.
    ///
    /// Returns nothing where the connection was rejected, which has been told then.
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
