//! The key ranges that commands specify.

/// A single key, or all keys from `key` up to but excluding `end`. An `end` of `\0` means that the
/// range has no end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The single key, or the first key of the range.
    pub key: Vec<u8>,
    /// The end of the range, or empty for a single key.
    pub end: Vec<u8>,
}

impl KeyRange {
    /// Returns the range of all keys that begin with `key`. An empty `key` selects every key.
    #[must_use]
    pub fn prefix(key: Vec<u8>) -> Self {
        if key.is_empty() {
            return Self { key: vec![0], end: vec![0] };
        }
        let end = prefix_end(&key);
        Self { key, end }
    }

    /// Returns the range of all keys from `key` on.
    #[must_use]
    pub fn from(key: Vec<u8>) -> Self {
        Self { key: if key.is_empty() { vec![0] } else { key }, end: vec![0] }
    }
}

/// Returns the end of the range of all keys that begin with `prefix`.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // The prefix is empty or consists only of 0xff bytes, so the range has no end.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_prefix_ends_before_the_next_prefix() {
        for (key, end) in
            [(&b"a"[..], &b"b"[..]), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"ab", b"ac")]
        {
            let range = KeyRange::prefix(key.to_vec());
            assert_eq!((&range.key[..], &range.end[..]), (key, end));
        }
        let all = KeyRange { key: vec![0], end: vec![0] };
        assert_eq!(KeyRange::prefix(Vec::new()), all);
        assert_eq!(KeyRange::from(Vec::new()), all);
    }
}
