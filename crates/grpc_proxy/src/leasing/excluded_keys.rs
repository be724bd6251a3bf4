//! Keys that this proxy must not acquire for some time, because an attempt to acquire them failed or they were released
//! on request.
//!
//! # Bound
//!
//! The list holds at most [`EXCLUDED_BYTES_MAX`] bytes of keys, including the overhead. A key for which there is no
//! space is not listed, but it cannot be acquired either.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;

/// Maximum total size of the excluded keys, in bytes. The key of any request fits into an empty list.
pub(super) const EXCLUDED_BYTES_MAX: usize = 8 << 20;

/// Memory overhead of one key, in bytes.
const OVERHEAD_BYTES: usize = 256;

/// Duration for which a key is excluded.
pub(super) const EXCLUSION: Duration = Duration::from_secs(2);

/// The excluded keys, each with the end time of its exclusion.
#[derive(Debug, Default)]
pub(super) struct ExcludedKeys {
    ends: HashMap<Bytes, Duration>,
    by_end: BTreeSet<(Duration, Bytes)>,
    bytes: usize,
}

impl ExcludedKeys {
    /// Excludes a key for [`EXCLUSION`], starting at `now`, if there is space for it.
    pub(super) fn add(&mut self, key: Bytes, now: Duration) {
        self.remove_ended(now);
        if let Some(end) = self.ends.get(&key) {
            self.by_end.remove(&(*end, key.clone()));
        } else if self.has_space(&key) {
            self.bytes += bytes_of(&key);
        } else {
            return;
        }
        self.ends.insert(key.clone(), now + EXCLUSION);
        self.by_end.insert((now + EXCLUSION, key));
    }

    /// Returns whether a key may be acquired: it is not excluded, and there is space to exclude it later.
    pub(super) fn may_acquire(&mut self, key: &Bytes, now: Duration) -> bool {
        self.remove_ended(now);
        !self.ends.contains_key(key) && self.has_space(key)
    }

    fn has_space(&self, key: &Bytes) -> bool {
        self.bytes + bytes_of(key) <= EXCLUDED_BYTES_MAX
    }

    fn remove_ended(&mut self, now: Duration) {
        while self.by_end.first().is_some_and(|(end, _)| *end <= now)
            && let Some((_, key)) = self.by_end.pop_first()
        {
            self.ends.remove(&key);
            self.bytes -= bytes_of(&key);
        }
    }
}

fn bytes_of(key: &Bytes) -> usize {
    OVERHEAD_BYTES + key.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn adding_a_key_again_restarts_its_exclusion_period() {
        let (mut keys, key) = (ExcludedKeys::default(), Bytes::from_static(b"a"));
        keys.add(key.clone(), NOW);
        keys.add(key.clone(), NOW + EXCLUSION / 2);
        assert!(!keys.may_acquire(&key, NOW + EXCLUSION));
        assert!(keys.may_acquire(&key, NOW + EXCLUSION * 3 / 2));
        assert_eq!((keys.bytes, keys.ends.len(), keys.by_end.len()), (0, 0, 0));
    }

    #[test]
    fn the_memory_of_excluded_keys_is_bounded() {
        let mut keys = ExcludedKeys::default();
        let key = |number: usize| Bytes::from(format!("{number:8}").repeat(1 << 17));
        let mut count = 0;
        while count < 100 && keys.may_acquire(&key(count), NOW) {
            keys.add(key(count), NOW);
            count += 1;
        }
        assert_eq!(count, 7);
        // A key that is released on request may find no space in the list.
        keys.add(key(count), NOW);
        assert!(keys.bytes <= EXCLUDED_BYTES_MAX, "{} bytes", keys.bytes);
        assert!(!keys.may_acquire(&key(count), NOW));
        // The next call removes keys whose exclusion has ended.
        assert!(keys.may_acquire(&key(0), NOW + EXCLUSION));
        assert_eq!((keys.bytes, keys.ends.len(), keys.by_end.len()), (0, 0, 0));
    }
}
