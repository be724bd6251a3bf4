//! The names in a certificate: the common name and the alternative names.

use std::net::IpAddr;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::end_entity::split_sequence;

/// The names in a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// The common name; empty if there is none.
    pub(crate) common: String,
    pub(crate) dns: Vec<String>,
    pub(crate) ips: Vec<IpAddr>,
}

impl Names {
    /// Returns the names in a certificate, or `None` if it cannot be parsed.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        // The parser drops the rest of a subject that it cannot read. The rest could contain another common name.
        let (_, []) = split_sequence(parsed.subject().as_raw())? else { return None };
        // If there are several common names, Go uses the last one.
        let common = parsed.subject().iter_common_name().last();
        let common = common.map_or(Ok(""), |name| name.as_str()).ok()?.to_owned();
        let mut names = Self { common, ..Self::default() };
        let alternatives = parsed.subject_alternative_name().ok()?;
        for name in alternatives.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) => names.dns.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => names.ips.extend(to_ip(bytes)),
                _ => {}
            }
        }
        Some(names)
    }
}

fn to_ip(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(four.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// The names allowed in certificates that are otherwise valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// All names.
    #[default]
    All,
    /// Any of these common names.
    CommonNames(Vec<String>),
    /// An alternative name that matches any of these hosts or addresses.
    Hosts(Vec<String>),
}

impl Allowed {
    /// Returns whether a certificate contains an allowed name.
    pub(crate) fn allows(&self, certificate: &CertificateDer<'_>) -> bool {
        match self {
            Self::All => true,
            Self::CommonNames(allowed) => {
                Names::of(certificate).is_some_and(|names| allowed.contains(&names.common))
            }
            Self::Hosts(allowed) => allowed.iter().any(|host| stands_for(certificate, host)),
        }
    }
}

/// Returns whether one of a certificate's alternative names matches a host or an address.
pub(crate) fn stands_for(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let (Ok(parsed), Ok(host)) =
        (ParsedCertificate::try_from(certificate), ServerName::try_from(host))
    else {
        return false;
    };
    verify_server_name(&parsed, &host).is_ok()
}
