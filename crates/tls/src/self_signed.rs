//! A member's self-signed certificates (`--auto-tls`, `--peer-auto-tls`), created like etcd's.
//!
//! The certificate and its key are stored in a subdirectory of the data directory. They are reused if both files exist,
//! even after expiry. The paths are etcd's, so Quorate and etcd can use each other's certificates.

use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use quorate_telemetry::log;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P521_SHA512, SanType,
};

use crate::identity::Pair;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time since the Unix epoch at which the year 10000 begins. A certificate cannot state a later time.
const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);

/// The reason why no certificate is available.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// The validity period is zero.
    #[error("selfSignedCertValidity is invalid,it should be greater than 0")]
    Validity,
    /// The validity period is too long.
    #[error(
        "selfSignedCertValidity is invalid: the certificate would be valid beyond the year 9999"
    )]
    ValidityTooLong,
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate cannot be created.
    #[error("cannot generate x509 certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// Returns the certificate in this directory, or creates one for these hosts.
///
/// # Errors
///
/// Returns an error if the validity period is zero or too long, or the files cannot be written.
pub fn find_or_make(dir: &Path, hosts: &[&str], years: u32) -> Result<Pair, SelfSignedError> {
    let Some(validity) = YEAR.checked_mul(years).filter(|validity| !validity.is_zero()) else {
        return Err(SelfSignedError::Validity);
    };
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| SelfSignedError::File { path, source }
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
    let dir = dir.canonicalize().map_err(failed(dir))?;
    let pair = Pair::new(dir.join("cert.pem"), dir.join("key.pem"));
    if pair.cert.exists() && pair.key.exists() {
        return Ok(pair);
    }
    let (cert, key) = make(hosts, validity)?;
    write(&pair.cert, 0o644, &cert).map_err(failed(&pair.cert))?;
    log::info!("created cert file", "path" = pair.cert.display().to_string());
    write(&pair.key, 0o600, &key).map_err(failed(&pair.key))?;
    log::info!("created key file", "path" = pair.key.display().to_string());
    Ok(pair)
}

fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn make(hosts: &[&str], validity: Duration) -> Result<(String, String), SelfSignedError> {
    let now = SystemTime::now();
    let until = now
        .checked_add(validity)
        .filter(|until| {
            until.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|time| time < YEAR_10000)
        })
        .ok_or(SelfSignedError::ValidityTooLong)?;
    log::warn!(
        "automatically generate certificates",
        "certificate-validity-bound-not-after" = until
    );
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "etcd");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::CrlSign,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = now.into();
    params.not_after = until.into();
    for host in hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName((*host).try_into()?),
        });
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512)?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}
