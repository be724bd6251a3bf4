//! How connections to servers are secured.

use quorate_tls::{
    Allowed, Connector, ConnectorSettings, MaterialError, Pair, Protocols, ServerCheck, SetupError,
    Trust,
};

use crate::failure::Failure;

/// How connections are secured. Texts are paths, empty for none.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    /// Certificates of authorities that servers are trusted by.
    pub cacert: String,
    /// The certificate to show.
    pub cert: String,
    /// Its private key.
    pub key: String,
    /// Whether connections are secured even if nothing else asks for it.
    pub is_demanded: bool,
    /// Whether any certificate of a server is accepted.
    pub trusts_all: bool,
    /// The name that certificates of servers have to be valid for, if it is not that of their own host.
    pub server_name: Option<String>,
}

impl Transport {
    /// Whether a connection is secured whose endpoint does not say.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        let is_named = [&self.cacert, &self.cert, &self.key].iter().any(|path| !path.is_empty());
        is_named || self.is_demanded
    }

    /// What secures a connection for gRPC.
    pub fn connector(&self) -> Result<Connector, Failure> {
        self.connector_for(true)
    }

    /// What secures a connection for HTTP/1.
    pub fn http_connector(&self) -> Result<Connector, Failure> {
        self.connector_for(false)
    }

    fn connector_for(&self, http2: bool) -> Result<Connector, Failure> {
        let trust = match self.cacert.as_str() {
            "" => Trust::System,
            path => Trust::File(path.into()),
        };
        if self.cert.is_empty() != self.key.is_empty() {
            let (key, cert) = (&self.key, &self.cert);
            let text =
                format!("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]");
            return Err(Failure::bad_args(text));
        }
        Connector::new(ConnectorSettings {
            pair: (!self.cert.is_empty()).then(|| Pair::new(&self.cert, &self.key)),
            protocols: Protocols::default(),
            check: ServerCheck::by(trust, self.trusts_all),
            allowed: Allowed::All,
            http2,
            server_name: self.server_name.clone(),
        })
        .map_err(|error| Failure::bad_args(unusable(&error)))
    }
}

/// Why a file cannot be used, as etcd tells it where it has words for that.
fn unusable(error: &SetupError) -> String {
    match error {
        SetupError::Material(MaterialError::Pair { cert, key, reason }) => {
            format!("tls: {reason} ({}, {})", key.display(), cert.display())
        }
        other => other.to_string(),
    }
}
