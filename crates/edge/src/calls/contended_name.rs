//! A name for which clients contend in a lock or election, and the location of their keys.

use bytes::Bytes;

/// The key range of all contenders for a name.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) prefix: Bytes,
    /// Exclusive end of the range.
    pub(crate) end: Bytes,
}

impl Name {
    pub(crate) fn new(name: &[u8]) -> Self {
        /// The separator between the name and the lease. In the exclusive end of the key range, it is replaced by the
        /// next byte value.
        const SEPARATOR: u8 = b'/';
        let with = |last: u8| [name, &[last]].concat().into();
        Self { prefix: with(SEPARATOR), end: with(SEPARATOR + 1) }
    }

    /// Returns the key of the contender that holds this lease.
    pub(crate) fn key(&self, lease: i64) -> Bytes {
        let sign = if lease < 0 { "-" } else { "" };
        let id = format!("{sign}{:x}", lease.unsigned_abs());
        [&self.prefix, id.as_bytes()].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_lock_waiter_is_the_lock_name_and_the_lease_id_in_hex() {
        let name = Name::new(b"a");
        assert_eq!((&name.prefix[..], &name.end[..]), (&b"a/"[..], &b"a0"[..]));
        for (lease, key) in [
            (0x0abc, "a/abc"),
            (-1, "a/-1"),
            (i64::MIN, "a/-8000000000000000"),
            (i64::MAX, "a/7fffffffffffffff"),
        ] {
            assert_eq!(name.key(lease), key);
        }
        assert_eq!(Name::new(b"").key(1), "/1");
    }
}
