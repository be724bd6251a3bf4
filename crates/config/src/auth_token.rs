//! The value of `--auth-token`: the type of tokens, and the keys and options of signed tokens.
//!
//! ```text
//! simple
//! jwt,sign-method=RS256,pub-key=FILE,priv-key=FILE,ttl=5m
//! ```
//!
//! # Not here
//!
//! The signing methods, and the contents of the key files (`jwt`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use quorate_gotext::duration::SignedDuration;

/// The type of the tokens, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthToken {
    /// Random tokens, which the replicated log distributes.
    Simple,
    /// Signed tokens (JSON Web Tokens).
    Jwt(Jwt),
    /// No tokens, so that no user can log in.
    Nothing,
}

/// The options of signed tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// The name of the signing method.
    pub sign_method: String,
    /// The path of the public key file.
    pub public_key: Option<PathBuf>,
    /// The path of the private key file.
    pub private_key: Option<PathBuf>,
    /// How long a token is valid.
    pub ttl: Duration,
    /// The names of unknown options.
    pub unknown: Vec<String>,
}

/// The reason why the setting is invalid. The error does not repeat the setting, which may contain a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthTokenFault {
    /// The token type is unknown.
    #[error("auth: invalid auth options: --auth-token must begin with simple or jwt")]
    Type,
    /// An option has no value or several values, or is given twice.
    #[error(
        "auth: invalid auth options: each option of --auth-token must be given once, as NAME=VALUE"
    )]
    Option,
    /// `ttl` is not a valid duration.
    #[error("auth: invalid auth options: ttl must be a duration, such as 5m")]
    Ttl,
    /// The signing method is missing.
    #[error("auth: invalid auth options: jwt requires sign-method")]
    NoMethod,
    /// The signing method is unknown.
    #[error(
        "auth: invalid auth options: sign-method must be EdDSA, or RS, PS, ES or HS followed by 256, 384 or 512"
    )]
    Method,
}

const OPTIONS: [&str; 4] = ["sign-method", "pub-key", "priv-key", "ttl"];

/// How long a token is valid by default.
const TTL: Duration = Duration::from_secs(300);

impl AuthToken {
    /// Parses the value of `--auth-token`.
    pub fn parse(text: &str) -> Result<Self, AuthTokenFault> {
        let mut items = text.split(',');
        let kind = items.next().unwrap_or_default();
        let mut options = BTreeMap::new();
        for item in items {
            let (key, value) = item.split_once('=').ok_or(AuthTokenFault::Option)?;
            if value.contains('=') || options.insert(key, value).is_some() {
                return Err(AuthTokenFault::Option);
            }
        }
        match kind {
            "simple" => Ok(Self::Simple),
            "jwt" => Jwt::read(&options).map(Self::Jwt),
            "" => Ok(Self::Nothing),
            _ => Err(AuthTokenFault::Type),
        }
    }
}

impl Jwt {
    fn read(options: &BTreeMap<&str, &str>) -> Result<Self, AuthTokenFault> {
        let given = |name: &str| options.get(name).copied().filter(|value| !value.is_empty());
        let ttl = match given("ttl") {
            None => TTL,
            Some(text) => {
                let ttl: SignedDuration = text.parse().map_err(|_| AuthTokenFault::Ttl)?;
                // A negative `ttl` is treated as zero.
                ttl.positive().unwrap_or_default()
            }
        };
        let unknown = options.keys().filter(|key| !OPTIONS.contains(key));
        Ok(Self {
            sign_method: given("sign-method").ok_or(AuthTokenFault::NoMethod)?.to_owned(),
            public_key: given("pub-key").map(PathBuf::from),
            private_key: given("priv-key").map(PathBuf::from),
            ttl,
            unknown: unknown.map(|key| (*key).to_owned()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_token_options_are_parsed_as_in_etcd() {
        assert_eq!(AuthToken::parse("simple"), Ok(AuthToken::Simple));
        assert_eq!(AuthToken::parse(""), Ok(AuthToken::Nothing));
        let jwt = AuthToken::parse("jwt,pub-key=a,priv-key=b,sign-method=RS256,ttl=10m,x=y");
        let expected = Jwt {
            sign_method: "RS256".into(),
            public_key: Some("a".into()),
            private_key: Some("b".into()),
            ttl: Duration::from_secs(600),
            unknown: vec!["x".into()],
        };
        assert_eq!(jwt, Ok(AuthToken::Jwt(expected)));
        let AuthToken::Jwt(short) = AuthToken::parse("jwt,sign-method=HS256").unwrap() else {
            panic!("the value was not parsed as AuthToken::Jwt")
        };
        assert_eq!((short.ttl, short.private_key), (TTL, None));
        for (bad, fault) in [
            ("jwt", AuthTokenFault::NoMethod),
            ("jwt,sign-method", AuthTokenFault::Option),
            ("jwt,sign-method=", AuthTokenFault::NoMethod),
            ("jwt,sign-method=RS256,ttl=x", AuthTokenFault::Ttl),
            ("jwt,sign-method=RS256,sign-method=RS256", AuthTokenFault::Option),
            ("jwt,sign-method=RS256=", AuthTokenFault::Option),
            ("paper", AuthTokenFault::Type),
            ("simple,x", AuthTokenFault::Option),
        ] {
            assert_eq!(AuthToken::parse(bad), Err(fault), "{bad}");
            assert!(fault.to_string().starts_with("auth: invalid auth options: "), "{fault}");
        }
    }
}
