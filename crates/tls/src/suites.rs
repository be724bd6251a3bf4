//! Cipher suites, selected by the IANA names that etcd's flag accepts.
//!
//! Only TLS 1.2 suites can be selected. The names of TLS 1.3 suites have no effect. A name unknown to Go is refused
//! with etcd's text. A suite that Go supports but rustls does not (without forward secrecy, or with CBC) is refused
//! too, because a server must not silently use suites other than the requested ones.
//!
//! # Not here
//!
//! The order of the suites, which is the server's own preference, as in Go.

use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;

use crate::versions::{Version, Versions};

/// TLS 1.2 suites supported by both Go and rustls. Two of them also have older names.
const SPOKEN: &[(&str, CipherSuite)] = &[
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// TLS 1.3 suites, which are always enabled with that version.
const NOT_FOR_CHOOSING: &[&str] =
    &["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Suites that rustls does not support. Go supports them, but most of them only on request.
const NOT_SPOKEN: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// HTTP/2 over TLS 1.2 requires at least one of these suites.
const HTTP2_SUITES: [CipherSuite; 2] = [
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
];

/// The reason why a selection of suites is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuiteError {
    /// The name is unknown.
    #[error("unexpected TLS cipher suite {0:?}")]
    Unknown(String),
    /// etcd supports the suite, but Quorate does not.
    #[error(
        "TLS cipher suite {0:?} is not supported; remove it, or choose one with ECDHE and GCM or CHACHA20"
    )]
    NotSpoken(String),
    /// All given names are names of TLS 1.3 suites, which have no effect.
    #[error(
        "none of the given TLS cipher suites belongs to TLS1.2; add one, or set the minimum version \
         to TLS1.3"
    )]
    Nothing,
    /// HTTP/2 cannot be served with the selected suites.
    #[error(
        "http2: TLSConfig.CipherSuites is missing an HTTP/2-required AES_128_GCM_SHA256 cipher (need at least one of \
         TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)"
    )]
    NoneForHttp2,
}

/// The selected TLS 1.2 suites. An empty selection means all supported suites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suites {
    chosen: Vec<CipherSuite>,
    are_named: bool,
}

impl Suites {
    /// Parses the names of suites.
    ///
    /// # Errors
    ///
    /// Returns an error if a name is unknown, or its suite is not supported.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, SuiteError> {
        let mut suites = Self::default();
        for name in names {
            suites.are_named = true;
            if let Some((_, suite)) = SPOKEN.iter().find(|(spoken, _)| *spoken == name) {
                suites.chosen.push(*suite);
            } else if NOT_SPOKEN.contains(&name) {
                return Err(SuiteError::NotSpoken(name.to_owned()));
            } else if !NOT_FOR_CHOOSING.contains(&name) {
                return Err(SuiteError::Unknown(name.to_owned()));
            }
        }
        Ok(suites)
    }

    /// Checks that HTTP/2 can be served with these suites.
    ///
    /// # Errors
    ///
    /// Returns an error if suites were selected, but none of those that HTTP/2 requires.
    pub fn check_http2(&self, versions: Versions) -> Result<(), SuiteError> {
        let is_choice = self.are_named && versions.include(Version::Tls12);
        let demanded = HTTP2_SUITES.iter().any(|suite| self.chosen.contains(suite));
        if is_choice && !demanded { Err(SuiteError::NoneForHttp2) } else { Ok(()) }
    }

    /// Returns the crypto provider, restricted to these suites and the suites of TLS 1.3.
    pub(crate) fn provider(&self, versions: Versions) -> Result<CryptoProvider, SuiteError> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        if self.are_named {
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || self.chosen.contains(&suite.suite()));
        }
        let speaks_12 = provider.cipher_suites.iter().any(|suite| suite.tls13().is_none());
        let is_mute = !speaks_12 && !versions.include(Version::Tls13);
        if is_mute { Err(SuiteError::Nothing) } else { Ok(provider) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Versions = Versions { min: Version::Tls12, max: Version::Tls13 };

    #[test]
    fn cipher_suite_names_select_only_tls_1_2_suites() {
        let chosen = |names: &[&str]| {
            let provider = Suites::named(names.iter().copied()).unwrap().provider(BOTH).unwrap();
            provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count()
        };
        assert_eq!(chosen(&[]), 6);
        assert_eq!(chosen(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]), 1);
        let twice = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";
        assert_eq!(chosen(&[twice, &format!("{twice}_SHA256")]), 1);
        assert_eq!(chosen(NOT_FOR_CHOOSING), 0);
    }

    #[test]
    fn each_supported_cipher_suite_name_has_an_implementation() {
        let provider = Suites::default().provider(BOTH).unwrap();
        for (name, suite) in SPOKEN {
            assert!(provider.cipher_suites.iter().any(|found| found.suite() == *suite), "{name}");
        }
    }

    #[test]
    fn unsupported_cipher_suite_names_are_refused() {
        let refusal = |name| Suites::named([name]).unwrap_err().to_string();
        assert_eq!(refusal("x"), "unexpected TLS cipher suite \"x\"");
        for name in NOT_SPOKEN {
            assert!(
                refusal(name).starts_with(&format!("TLS cipher suite \"{name}\" is not supported"))
            );
        }
    }

    #[test]
    fn http2_needs_one_of_its_two_mandatory_cipher_suites() {
        let suites = Suites::named(["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]).unwrap();
        assert_eq!(suites.check_http2(BOTH), Err(SuiteError::NoneForHttp2));
        let newest = Versions { min: Version::Tls13, ..BOTH };
        assert_eq!(suites.check_http2(newest), Ok(()));
        let demanded = Suites::named(["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]).unwrap();
        assert_eq!(demanded.check_http2(BOTH), Ok(()));
        assert_eq!(Suites::default().check_http2(BOTH), Ok(()));
    }

    #[test]
    fn a_selection_without_usable_cipher_suites_is_refused() {
        let oldest = Versions { max: Version::Tls12, ..BOTH };
        let suites = Suites::named(["TLS_AES_128_GCM_SHA256"]).unwrap();
        assert_eq!(suites.provider(oldest).unwrap_err(), SuiteError::Nothing);
    }
}
