//! The names of leasing keys. A name is the prefix followed by the key.

use bytes::Bytes;

use crate::span::{Span, after};

/// The value that asks the owner of a leasing key to release it. etcd uses the same text.
pub(super) const REVOKE: &[u8] = b"REVOKE";

/// The mapping between keys and leasing keys.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: Bytes,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: Bytes::copy_from_slice(prefix.as_bytes()) }
    }

    /// Returns the leasing key for a key.
    pub(super) fn leasing_key(&self, key: &[u8]) -> Bytes {
        [&self.prefix, key].concat().into()
    }

    /// Returns the key to which a leasing key belongs, or `None` if the name has a different
    /// prefix.
    pub(super) fn key(&self, leasing_key: &Bytes) -> Option<Bytes> {
        leasing_key.starts_with(&self.prefix).then(|| leasing_key.slice(self.prefix.len()..))
    }

    /// Returns the span of all leasing keys.
    pub(super) fn all(&self) -> Span {
        Span::below(&self.prefix)
    }

    /// Returns the span of the leasing keys for a span of keys.
    pub(super) fn of(&self, span: &Span) -> Span {
        let key = self.leasing_key(span.key());
        match span.end() {
            None => Span::of(key),
            Some(end) if end.is_empty() => Span::new(&key, &after(&self.prefix)),
            Some(end) => Span::new(&key, &self.leasing_key(end)),
        }
    }

    /// Returns the part of a write's span that contains leasing keys.
    pub(super) fn touched(&self, span: &Span) -> Option<Span> {
        span.common(&self.all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(key: &'static str, end: &'static str) -> Span {
        Span::new(&Bytes::from_static(key.as_bytes()), &Bytes::from_static(end.as_bytes()))
    }

    #[test]
    fn leasing_keys_begin_with_the_leasing_prefix() {
        let names = Names::new("own/");
        assert_eq!(names.leasing_key(b"a"), &b"own/a"[..]);
        assert_eq!(names.key(&Bytes::from_static(b"own/a")).unwrap(), &b"a"[..]);
        assert_eq!(names.key(&Bytes::from_static(b"other")), None);
        assert_eq!(names.of(&span("a", "")), span("own/a", ""));
        assert_eq!(names.of(&span("a", "c")), span("own/a", "own/c"));
        assert_eq!(names.of(&span("a", "\0")), span("own/a", "own0"));
        assert_eq!(names.touched(&span("a", "z")), Some(span("own/", "own0")));
        assert_eq!(names.touched(&span("own/a", "")), Some(span("own/a", "")));
        assert_eq!(names.touched(&span("a", "b")), None);
    }
}
