//! The TLS settings of connections to servers.

use quorate_tls::{
    Allowed, Connector, ConnectorSettings, MaterialError, Pair, Protocols, ServerCheck, SetupError,
    Trust,
};

use crate::failure::Failure;

/// The TLS settings. All strings except the server name are paths, and an empty path counts as
/// unset.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    /// The file with the trusted authorities for server certificates.
    pub cacert: String,
    /// The file with the client certificate.
    pub cert: String,
    /// The file with the private key of the client certificate.
    pub key: String,
    /// Whether to use TLS even if no other setting implies it.
    pub is_demanded: bool,
    /// Whether every server certificate is accepted without verification.
    pub trusts_all: bool,
    /// The name for which server certificates must be valid, if it differs from the host name.
    pub server_name: Option<String>,
}

impl Transport {
    /// Returns whether an endpoint without a scheme or with the scheme `unix` uses TLS.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        let is_named = [&self.cacert, &self.cert, &self.key].iter().any(|path| !path.is_empty());
        is_named || self.is_demanded
    }

    /// Returns the TLS connector for gRPC.
    pub fn connector(&self) -> Result<Connector, Failure> {
        self.connector_for(true)
    }

    /// Returns the TLS connector for HTTP/1.
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

/// Returns the reason why a file cannot be used, with etcd's text if etcd has one.
fn unusable(error: &SetupError) -> String {
    match error {
        SetupError::Material(MaterialError::Pair { cert, key, reason }) => {
            format!("tls: {reason} ({}, {})", key.display(), cert.display())
        }
        other => other.to_string(),
    }
}
