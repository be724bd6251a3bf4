//! The credentials of a client.
//!
//! # Invariants
//!
//! * Passwords and tokens never appear in `Debug` output or in messages.

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};

use crate::failure::{Failure, exit};

/// A token, as sent in a header.
pub type Token = MetadataValue<Ascii>;

/// The credentials of a client.
#[derive(Default)]
pub enum Credentials {
    /// No credentials. A client certificate may still identify the user.
    #[default]
    None,
    /// A signed token.
    Token(Token),
    /// A user name and a password.
    Login {
        /// The user name.
        user: String,
        /// The password.
        password: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Token(_) => f.write_str("Token(…)"),
            Self::Login { user, .. } => write!(f, "Login({user:?})"),
        }
    }
}

impl Credentials {
    /// Returns whether requests contain a password or a token.
    #[must_use]
    pub const fn are_sent(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Creates credentials with a user name. The password is passed separately, follows the name after a colon, or
    /// is requested from the user with `ask`.
    pub fn login(
        user: &str,
        password: &str,
        ask: impl FnOnce() -> Result<String, String>,
    ) -> Result<Self, Failure> {
        if user.is_empty() {
            return Ok(Self::None);
        }
        let (user, password) = match (password, user.split_once(':')) {
            ("", Some((user, password))) => (user, password.to_owned()),
            ("", None) => {
                let asked = ask().map_err(|error| Failure::new(exit::ERROR, error));
                (user, asked?)
            }
            (password, _) => (user, password.to_owned()),
        };
        // As in etcd's client, an incomplete login counts as no credentials.
        if user.is_empty() || password.is_empty() {
            return Ok(Self::None);
        }
        Ok(Self::Login { user: user.to_owned(), password })
    }
}

/// Returns a token as a header value that is marked as sensitive, or `None` if the text is not valid in a header.
#[must_use]
pub fn token(text: &str) -> Option<Token> {
    let mut token = Token::try_from(text).ok()?;
    token.set_sensitive(true);
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_contains_no_secrets() {
        let login = Credentials::Login { user: "root".to_owned(), password: "SECRET".to_owned() };
        assert_eq!(format!("{login:?}"), "Login(\"root\")");
        let signed = token("SECRET").unwrap();
        assert!(!format!("{signed:?}").contains("SECRET"));
        assert!(!format!("{:?}", Credentials::Token(signed)).contains("SECRET"));
        assert!(token("a\nb").is_none());
    }
}
