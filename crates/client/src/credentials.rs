//! What a client authenticates itself with.
//!
//! # Invariants
//!
//! * Passwords and tokens are in no `Debug` and no message.

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};

use crate::failure::{Failure, exit};

/// A token, as it goes with a call.
pub type Token = MetadataValue<Ascii>;

/// What a client authenticates itself with.
#[derive(Default)]
pub enum Credentials {
    /// Nothing; its certificate may still name a user.
    #[default]
    None,
    /// A token that somebody has signed.
    Token(Token),
    /// A user that logs in.
    Login {
        /// Its name.
        user: String,
        /// Its password.
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
    /// A user by name. The password is given, or stands behind the name and a colon, or is asked for.
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
        // As etcd's client has it, half a login is none.
        if user.is_empty() || password.is_empty() {
            return Ok(Self::None);
        }
        Ok(Self::Login { user: user.to_owned(), password })
    }
}

/// A token as a header, which nothing on the way shows or keeps; nothing for a text that cannot be one.
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
    fn secrets_are_in_no_debug() {
        let login = Credentials::Login { user: "root".to_owned(), password: "SECRET".to_owned() };
        assert_eq!(format!("{login:?}"), "Login(\"root\")");
        let signed = token("SECRET").unwrap();
        assert!(!format!("{signed:?}").contains("SECRET"));
        assert!(!format!("{:?}", Credentials::Token(signed)).contains("SECRET"));
        assert!(token("a\nb").is_none());
    }
}
