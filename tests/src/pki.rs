//! CAs for tests, and certificates that they sign.
//!
//! By default, certificates are valid today, for this machine (`localhost`, 127.0.0.1), and for both servers and
//! clients.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Contents of a certificate.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Subject's common name; omitted if empty.
    pub common_name: String,
    /// Alternative names and addresses.
    pub hosts: Vec<String>,
    /// Whether the certificate is for servers.
    pub for_servers: bool,
    /// Whether the certificate is for clients.
    pub for_clients: bool,
    /// Serial number.
    pub serial: u64,
    /// Start of the validity period.
    pub from: SystemTime,
    /// End of the validity period.
    pub until: SystemTime,
}

impl Leaf {
    /// Returns the contents of a valid certificate.
    #[must_use]
    pub fn new(common_name: &str) -> Self {
        Self {
            common_name: common_name.to_owned(),
            hosts: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            for_servers: true,
            for_clients: true,
            serial: 1,
            from: SystemTime::now() - DAY,
            until: SystemTime::now() + DAY * 90,
        }
    }

    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::new(self.hosts.clone()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if !self.common_name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, self.common_name.as_str());
        }
        let usages = [
            (self.for_servers, ExtendedKeyUsagePurpose::ServerAuth),
            (self.for_clients, ExtendedKeyUsagePurpose::ClientAuth),
        ];
        let usages = usages.into_iter().filter(|(is_for, _)| *is_for);
        params.extended_key_usages = usages.map(|(_, usage)| usage).collect();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(SerialNumber::from(self.serial));
        params.not_before = self.from.into();
        params.not_after = self.until.into();
        params
    }

    /// Creates a self-signed certificate.
    #[must_use]
    pub fn self_signed(&self) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let cert = self.params().self_signed(&key).unwrap().pem();
        Credentials { cert, key: key.serialize_pem() }
    }
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Credentials {
    /// The certificate.
    pub cert: String,
    /// The key.
    pub key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("cert", &self.cert).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Writes the certificate and the key as `name` and `name.key`, each atomically, and returns their paths.
    pub fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = (dir.join(name), dir.join(format!("{name}.key")));
        replace(&cert, self.cert.as_bytes());
        replace(&key, self.key.as_bytes());
        (cert, key)
    }
}

/// Replaces a file atomically, as a careful operator does, so that readers find either the old file or the new one.
pub fn replace(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

/// A CA.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates a CA.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        // The name is derived from the public key, because two CAs with the same name would be confused with each
        // other.
        let key = KeyPair::generate().unwrap();
        let name: String =
            key.public_key_raw()[1..9].iter().map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self { issuer: CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    /// Returns the certificate of the CA.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate for a new key.
    #[must_use]
    pub fn sign(&self, leaf: &Leaf) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let cert = leaf.params().signed_by(&key, &self.issuer).unwrap().pem();
        Credentials { cert, key: key.serialize_pem() }
    }

    /// Creates a revocation list with these serial numbers, in DER.
    #[must_use]
    pub fn revoke(&self, serials: &[u64]) -> Vec<u8> {
        self.revoke_until(serials, SystemTime::now() + DAY)
    }

    /// Creates a revocation list with these serial numbers and this time of the next update, in DER.
    #[must_use]
    pub fn revoke_until(&self, serials: &[u64], next_update: SystemTime) -> Vec<u8> {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: (SystemTime::now() - DAY).into(),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: (next_update - DAY * 2).into(),
            next_update: next_update.into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().der().to_vec()
    }
}
