//! The versions that members compare: a major and a minor number.
//!
//! # Not here
//!
//! The version that a cluster has agreed on, and the version of its files (`state::versions`).

use std::fmt;

/// A major and minor version. Its text form ends with the patch number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The major version.
    pub major: u64,
    /// The minor version.
    pub minor: u64,
}

impl Version {
    /// The version of this server, and the highest cluster version that it supports.
    pub const OWN: Self = Self::new(3, 7);

    /// The version assumed for a cluster whose version is unknown.
    pub const MINIMUM: Self = Self::new(3, 0);

    /// The oldest storage version that can be migrated.
    pub const OLDEST_FILE: Self = Self::new(3, 5);

    /// Creates a version.
    #[must_use]
    pub const fn new(major: u64, minor: u64) -> Self {
        Self { major, minor }
    }

    /// Parses `3.7.0` or `3.7`, with or without a leading `v`. The patch number and everything after it are
    /// ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| -> Option<u64> {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten()
        };
        let core = text.strip_prefix('v').unwrap_or(text).split(['-', '+']).next()?;
        let mut parts = core.split('.');
        let version = Self::new(number(parts.next()?)?, number(parts.next()?)?);
        match parts.next() {
            None => {}
            Some(patch) => {
                number(patch)?;
            }
        }
        parts.next().is_none().then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.0", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_and_printed() {
        for (text, expected) in [
            ("3.7.0", Some(Version::new(3, 7))),
            ("v3.10.99", Some(Version::new(3, 10))),
            ("3.6", Some(Version::new(3, 6))),
            ("3.7.0-rc.1+x", Some(Version::new(3, 7))),
            ("3", None),
            ("3.x.0", None),
            ("3.7.0.1", None),
            ("", None),
            ("-1.2", None),
            ("3.+7", None),
        ] {
            assert_eq!(Version::parse(text), expected, "{text}");
        }
        assert_eq!(Version::OWN.to_string(), "3.7.0");
    }
}
