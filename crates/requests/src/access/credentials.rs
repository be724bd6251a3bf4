//! The credentials of a request.
//!
//! Credentials are read from the head of a request and verified at each use, because a stream can last for days and
//! outlive its token.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderName, HeaderValue};
use quorate_jwt::{Claims, Keys};
use quorate_state::auth::Token;

/// The optional prefix of a token.
const BEARER: &[u8] = b"Bearer ";

/// Maximum size of a token in bytes. Streams keep their tokens, and signed tokens are a few hundred bytes long. A longer
/// token is invalid.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// The credentials of a request.
#[derive(Clone)]
pub enum Credentials {
    /// No credentials.
    Nothing,
    /// A token that has not been verified yet.
    Unread(HeaderValue),
    /// A simple token, issued through the log. It is validated at each use ([`Token::validate`]).
    Given(Arc<Token>),
    /// A signed token, with the claims that were verified when the token was read.
    Signed(Arc<Signed>),
    /// The user name from a client certificate, for a request without a token. The name may be empty.
    Named(Arc<str>),
    /// An invalid token.
    Invalid,
}

/// A signed token, its claims, and the keys that verified it.
pub struct Signed {
    pub(super) text: HeaderValue,
    pub(super) keys: Arc<Keys>,
    pub(super) claims: Claims,
}

/// Prints the user but not the token, which is a secret.
impl fmt::Debug for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signed").field("user", &self.claims.username).finish_non_exhaustive()
    }
}

/// Omits tokens, because they are secrets.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Unread(_) => f.write_str("Unread"),
            Self::Given(token) => f.debug_tuple("Given").field(token).finish(),
            Self::Signed(signed) => signed.fmt(f),
            Self::Named(user) => f.debug_tuple("Named").field(user).finish(),
            Self::Invalid => f.write_str("Invalid"),
        }
    }
}

/// The header in which etcd's clients send the token. The constant avoids parsing the name for each request.
const TOKEN: HeaderName = HeaderName::from_static("token");

impl Credentials {
    /// Returns the token in the head of a request, under either of its header names.
    #[must_use]
    pub fn in_head(headers: &HeaderMap) -> Self {
        match headers.get(TOKEN).or_else(|| headers.get(http::header::AUTHORIZATION)) {
            None => Self::Nothing,
            Some(value) if value.len() > TOKEN_BYTES_MAX => Self::Invalid,
            Some(value) => Self::Unread(value.clone()),
        }
    }

    /// Returns the credentials or, if there are none, the user of the connection's certificate. A certificate never
    /// replaces an invalid token.
    #[must_use]
    pub fn or_named(self, certificate: Option<&Arc<str>>) -> Self {
        match (self, certificate) {
            (Self::Nothing, Some(user)) => Self::Named(Arc::clone(user)),
            (credentials, _) => credentials,
        }
    }

    /// Returns the credentials of a request that another member forwarded.
    #[must_use]
    pub fn passed_on(value: Option<&HeaderValue>) -> Self {
        value.map_or(Self::Nothing, |value| Self::Unread(value.clone()))
    }
}

/// Returns the text of a token without its prefix.
pub(super) fn text_of(value: &HeaderValue) -> &[u8] {
    let text = value.as_bytes();
    text.strip_prefix(BEARER).unwrap_or(text)
}

/// Compares two tokens in constant time. Otherwise, a client behind a proxy could use the response times to guess the
/// tokens of other clients on the same connection.
fn are_same(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |found, (one, other)| found | (one ^ other));
    one.len() == other.len() && std::hint::black_box(difference) == 0
}

/// The last valid token of a connection. The next request most likely carries the same token.
#[derive(Default)]
pub struct Remembered(ArcSwapOption<(HeaderValue, Credentials)>);

impl fmt::Debug for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembered").finish_non_exhaustive()
    }
}

impl Remembered {
    /// Returns the remembered credentials if they were read from this header value.
    pub(super) fn recall(&self, value: &HeaderValue) -> Option<Credentials> {
        let remembered = self.0.load();
        let (known, credentials) = &**remembered.as_ref()?;
        are_same(known.as_bytes(), value.as_bytes()).then(|| credentials.clone())
    }

    pub(super) fn remember(&self, value: HeaderValue, credentials: &Credentials) {
        self.0.store(Some(Arc::new((value, credentials.clone()))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_too_long_is_invalid() {
        for (len, is_invalid) in [(TOKEN_BYTES_MAX, false), (TOKEN_BYTES_MAX + 1, true)] {
            let mut headers = HeaderMap::new();
            headers.insert(TOKEN, HeaderValue::from_bytes(&vec![b'a'; len]).unwrap());
            let credentials = Credentials::in_head(&headers);
            assert_eq!(matches!(credentials, Credentials::Invalid), is_invalid, "{len} bytes");
        }
    }

    #[test]
    fn a_token_is_read_from_either_header_with_or_without_the_bearer_prefix() {
        let mut headers = HeaderMap::new();
        assert!(matches!(Credentials::in_head(&headers), Credentials::Nothing));
        headers.insert("authorization", HeaderValue::from_static("Bearer second.2"));
        let text = |headers: &HeaderMap| match Credentials::in_head(headers) {
            Credentials::Unread(value) => String::from_utf8(text_of(&value).to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(&headers), "second.2");
        headers.append("token", HeaderValue::from_static("first.1"));
        headers.append("token", HeaderValue::from_static("third.3"));
        assert_eq!(text(&headers), "first.1");
        headers.clear();
        headers.insert("token", HeaderValue::from_static("bearer x.1"));
        assert_eq!(text(&headers), "bearer x.1");
    }

    #[test]
    fn a_certificate_is_used_if_there_is_no_token() {
        let user: Arc<str> = "ann".into();
        let named = Credentials::Nothing.or_named(Some(&user));
        assert!(matches!(&named, Credentials::Named(name) if **name == *"ann"), "{named:?}");
        assert!(matches!(Credentials::Nothing.or_named(None), Credentials::Nothing));
        let token = Credentials::Unread(HeaderValue::from_static("x.1"));
        assert!(matches!(token.or_named(Some(&user)), Credentials::Unread(_)));
        assert!(matches!(Credentials::Invalid.or_named(Some(&user)), Credentials::Invalid));
    }

    #[test]
    fn a_token_is_not_printed() {
        let credentials = Credentials::Unread(HeaderValue::from_static("secret.1"));
        let remembered = Remembered::default();
        remembered.remember(HeaderValue::from_static("secret.1"), &credentials);
        let printed = format!("{credentials:?} {remembered:?}");
        assert!(!printed.contains("secret"), "{printed}");
        assert!(remembered.recall(&HeaderValue::from_static("secret.1")).is_some());
        for other in ["secret.2", "secret.", "secret.11", ""] {
            assert!(remembered.recall(&HeaderValue::from_static(other)).is_none());
        }
    }
}
