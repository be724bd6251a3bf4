//! The TLS versions 1.2 and 1.3, and the range of versions that an operator may select.

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

/// A TLS version. Older versions are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// TLS 1.2, whose cipher suites can be selected.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// An inclusive range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The lowest version.
    pub min: Version,
    /// The highest version.
    pub max: Version,
}

impl Default for Versions {
    fn default() -> Self {
        Self { min: Version::Tls12, max: Version::Tls13 }
    }
}

impl Versions {
    pub(crate) fn include(self, version: Version) -> bool {
        (self.min..=self.max).contains(&version)
    }

    pub(crate) fn supported(self) -> Vec<&'static SupportedProtocolVersion> {
        [(Version::Tls12, &TLS12), (Version::Tls13, &TLS13)]
            .into_iter()
            .filter(|(version, _)| self.include(*version))
            .map(|(_, supported)| supported)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_tls_versions_can_be_limited_to_one() {
        let count = |min, max| Versions { min, max }.supported().len();
        assert_eq!(count(Version::Tls12, Version::Tls13), 2);
        assert_eq!(count(Version::Tls13, Version::Tls13), 1);
        assert_eq!(count(Version::Tls12, Version::Tls12), 1);
    }
}
