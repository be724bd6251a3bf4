//! Signed tokens (JSON Web Tokens), as etcd issues and accepts them. A token contains a user name and the auth revision
//! at which the user was authenticated.
//!
//! # Invariants
//!
//! * A token is accepted only if it is signed with the method of the configured keys. The method named in the token
//!   never determines how the token is verified.
//! * No part of a key or of a token is ever printed.
//!
//! # Not here
//!
//! Access to files and clocks: keys are passed as bytes, and the time is an argument. The settings are parsed in
//! `config`.

mod keys;
mod pem;

#[cfg(test)]
mod tests;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub use keys::{KeyFault, Keys};

/// A signing method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each name is taken from RFC 7518")]
pub enum Method {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 13] = [
        Self::Hs256,
        Self::Hs384,
        Self::Hs512,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::Es512,
        Self::EdDsa,
    ];

    /// Returns the method's name in tokens and settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Es512 => "ES512",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Returns the method with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }
}

/// The content of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The user name.
    pub username: String,
    /// The auth revision at which the token was issued.
    pub revision: u64,
    /// The time from which the token is valid, in Unix seconds, or `None` if there is no such limit.
    pub not_before: Option<i64>,
    /// The time at which the token expires, in Unix seconds, or `None` if it does not expire.
    pub expires: Option<i64>,
}

impl Claims {
    /// Returns whether the token is valid at this time, in Unix seconds.
    #[must_use]
    pub fn are_good_at(&self, now: i64) -> bool {
        self.not_before.is_none_or(|since| since <= now)
            && self.expires.is_none_or(|until| now < until)
    }
}

/// The reason why a token could not be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignFault {
    /// Only the public key is known.
    #[error("auth: token signing attempted with verify-only key")]
    VerifyOnly,
    /// The signing operation failed.
    #[error("auth: the token could not be signed")]
    Failed,
}

/// Signs a token for a user. `expires` is its expiry time in Unix seconds.
pub fn sign(keys: &Keys, username: &str, revision: u64, expires: i64) -> Result<String, SignFault> {
    let head = json!({"alg": keys.method().name(), "typ": "JWT"}).to_string();
    let claims = json!({"exp": expires, "revision": revision, "username": username}).to_string();
    let (head, claims) =
        (BASE64_URL_SAFE_NO_PAD.encode(head), BASE64_URL_SAFE_NO_PAD.encode(claims));
    let signed = format!("{head}.{claims}");
    let signature = keys.sign(signed.as_bytes())?;
    Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
}

/// Verifies and parses a token. Returns `None` if the token is not signed with these keys. The caller uses [`Claims`]
/// to check whether the token is currently valid.
#[must_use]
pub fn read(keys: &Keys, token: &str) -> Option<Claims> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (head, claims) = signed.split_once('.')?;
    let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
    let parse = |part: &str| serde_json::from_slice::<Value>(&decode(part)?).ok();
    if parse(head)?.get("alg")?.as_str()? != keys.method().name() {
        return None;
    }
    if !keys.verify(signed.as_bytes(), &decode(signature)?) {
        return None;
    }
    let claims = parse(claims)?;
    Some(Claims {
        username: claims.get("username")?.as_str()?.to_owned(),
        revision: revision(claims.get("revision")?)?,
        not_before: seconds(claims.get("nbf"))?,
        expires: seconds(claims.get("exp"))?,
    })
}

/// Parses the revision in a token. As in Go, the fraction of a number is dropped. A negative number is invalid.
fn revision(claim: &Value) -> Option<u64> {
    claim.as_u64().or_else(|| {
        let number = claim.as_f64().filter(|number| *number >= 0.0)?;
        format!("{:.0}", number.trunc()).parse().ok()
    })
}

/// Parses a time in a token. If the time is missing, there is no limit. An invalid time makes the token invalid.
#[expect(
    clippy::option_option,
    reason = "a missing, an invalid and a valid time are different results"
)]
fn seconds(claim: Option<&Value>) -> Option<Option<i64>> {
    let Some(claim) = claim else { return Some(None) };
    let whole = claim.as_i64().or_else(|| format!("{:.0}", claim.as_f64()?.trunc()).parse().ok());
    whole.map(Some)
}
