//! The security settings of connections: the flags under etcd's heading "Security", for listeners and outgoing
//! connections.
//!
//! # Not here
//!
//! The files that the flags name (`tls`), and for which URLs they are needed (`start`).

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2.
    #[default]
    Tls12,
    /// 1.3.
    Tls13,
}

impl TlsVersion {
    /// The name of the version in flags.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tls12 => "TLS1.2",
            Self::Tls13 => "TLS1.3",
        }
    }
}

/// The settings of client and peer connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// For connections of clients, on all client ports.
    pub client: Transport,
    /// For connections with peers, in both directions.
    pub peer: Transport,
    /// The cipher suites; empty for all secure ones.
    pub cipher_suites: Vec<String>,
    /// The minimum version of TLS.
    pub tls_min_version: TlsVersion,
    /// The maximum version of TLS; `None` for the newest.
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

/// The security of client or peer connections. Texts are paths; an empty path is unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// The certificate of this member.
    pub cert_file: String,
    /// Its key.
    pub key_file: String,
    /// The certificate for outgoing connections, if it is a different one.
    pub client_cert_file: String,
    /// Its key.
    pub client_key_file: String,
    /// The trusted authorities; those of the system if empty.
    pub trusted_ca_file: String,
    /// The certificate revocation list.
    pub crl_file: String,
    /// Whether clients must present a certificate.
    pub client_cert_auth: bool,
    /// Whether the member creates a self-signed certificate.
    pub auto_tls: bool,
    /// The accepted common names; empty for all.
    pub allowed_cns: Vec<String>,
    /// The accepted host names; empty for all.
    pub allowed_hostnames: Vec<String>,
    /// Whether the names in a peer's certificate need not match its address.
    pub skip_client_san_verification: bool,
}

impl Transport {
    /// Whether no certificate is configured.
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_empty() && self.key_file.is_empty()
    }

    /// Whether clients must present a certificate.
    pub fn verifies_clients(&self) -> bool {
        self.client_cert_auth || !self.trusted_ca_file.is_empty()
    }

    /// Whether certificates are accepted only with certain names.
    pub fn allows_names_only(&self) -> bool {
        !self.allowed_cns.is_empty() || !self.allowed_hostnames.is_empty()
    }
}
