//! Passwords and tokens, which never appear in `Debug` output or in messages.

use std::fmt;

/// A string that must never be printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Secret {
    /// Returns the secret string.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}
