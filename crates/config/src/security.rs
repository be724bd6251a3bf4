//! The security settings of listeners and of outgoing connections: the flags under etcd's heading "Security".
//!
//! # Not here
//!
//! Reading the certificate and key files (`tls`), and deciding which URLs need them (`start`).

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl TlsVersion {
    /// Returns the name of the version in flags.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tls12 => "TLS1.2",
            Self::Tls13 => "TLS1.3",
        }
    }
}

/// The security settings of client and peer connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// The settings for connections from clients, on all client ports.
    pub client: Transport,
    /// The settings for connections with peers, in both directions.
    pub peer: Transport,
    /// The accepted cipher suites; empty for all secure suites.
    pub cipher_suites: Vec<String>,
    /// The minimum TLS version.
    pub tls_min_version: TlsVersion,
    /// The maximum TLS version; `None` for the newest.
    pub tls_max_version: Option<TlsVersion>,
    /// The validity of self-signed certificates, in years.
    pub self_signed_cert_validity: u64,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            client: Transport::default(),
            peer: Transport::default(),
            cipher_suites: Vec::new(),
            tls_min_version: TlsVersion::default(),
            tls_max_version: None,
            self_signed_cert_validity: 1,
        }
    }
}

/// The security settings of client or peer connections. Strings are paths; an empty path is unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// The path of this member's certificate.
    pub cert_file: String,
    /// The path of the private key of `cert_file`.
    pub key_file: String,
    /// The path of the certificate for outgoing connections, if it differs from `cert_file`.
    pub client_cert_file: String,
    /// The path of the private key of `client_cert_file`.
    pub client_key_file: String,
    /// The path of the trusted authorities' certificates; if empty, the system's authorities are trusted.
    pub trusted_ca_file: String,
    /// The path of the certificate revocation list.
    pub crl_file: String,
    /// Whether clients must present a certificate.
    pub client_cert_auth: bool,
    /// Whether the member creates a self-signed certificate.
    pub auto_tls: bool,
    /// The accepted common names in certificates; empty for all.
    pub allowed_cns: Vec<String>,
    /// The accepted host names in certificates; empty for all.
    pub allowed_hostnames: Vec<String>,
    /// Whether a peer's certificate is accepted even if its names do not match the peer's address.
    pub skip_client_san_verification: bool,
}

impl Transport {
    /// Returns whether no certificate is configured.
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_empty() && self.key_file.is_empty()
    }

    /// Returns whether clients must present a certificate.
    pub fn verifies_clients(&self) -> bool {
        self.client_cert_auth || !self.trusted_ca_file.is_empty()
    }

    /// Returns whether only certificates with certain names are accepted.
    pub fn allows_names_only(&self) -> bool {
        !self.allowed_cns.is_empty() || !self.allowed_hostnames.is_empty()
    }
}
