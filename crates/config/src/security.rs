//! How connections are secured: the flags that etcd heads with "Security", and what they ask of listeners and dials.
//!
//! # Not here
//!
//! The files that are named (`tls`), and which URLs they are for (`start`).

/// A version of TLS that flags can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2.
    #[default]
    Tls12,
    /// 1.3.
    Tls13,
}

impl TlsVersion {
    /// The name that flags have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tls12 => "TLS1.2",
            Self::Tls13 => "TLS1.3",
        }
    }
}

/// What is the same for clients and for peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// Towards clients, on all ports that are for them.
    pub client: Transport,
    /// Towards peers, both ways.
    pub peer: Transport,
    /// Names of cipher suites; none for all that are sound.
    pub cipher_suites: Vec<String>,
    /// The lowest version that is spoken.
    pub tls_min_version: TlsVersion,
    /// The highest, if not the highest there is.
    pub tls_max_version: Option<TlsVersion>,
    /// For how many years certificates are made that members make for themselves.
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

/// The security of one kind of connections. Texts are paths, empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// The certificate that is shown.
    pub cert_file: String,
    /// Its key.
    pub key_file: String,
    /// The certificate that is shown when dialing, if it is another.
    pub client_cert_file: String,
    /// Its key.
    pub client_key_file: String,
    /// The authorities whose certificates are accepted; those of the system where none is named.
    pub trusted_ca_file: String,
    /// A list of certificates that are not accepted any more.
    pub crl_file: String,
    /// Whether whoever connects has to show a certificate.
    pub client_cert_auth: bool,
    /// Whether the member makes a certificate for itself.
    pub auto_tls: bool,
    /// Common names that are accepted; none for all.
    pub allowed_cns: Vec<String>,
    /// Hosts that are accepted; none for all.
    pub allowed_hostnames: Vec<String>,
    /// Whether it does not matter where the certificate's names say it comes from.
    pub skip_client_san_verification: bool,
}

impl Transport {
    /// Whether no certificate is named.
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_empty() && self.key_file.is_empty()
    }

    /// Whether whoever connects has to show a certificate.
    pub fn verifies_clients(&self) -> bool {
        self.client_cert_auth || !self.trusted_ca_file.is_empty()
    }

    /// Whether certificates are accepted by their names only.
    pub fn allows_names_only(&self) -> bool {
        !self.allowed_cns.is_empty() || !self.allowed_hostnames.is_empty()
    }
}
