//! Passwords and tokens, which never appear in `Debug` output or messages.

use std::fmt;

/// A text that is never printed.
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
    /// The text itself.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}
