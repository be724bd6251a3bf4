//! Simple tokens, which log entries create for clients and which are valid until they expire.
//!
//! A token consists of a random string and a number derived from the entry that created it, so every member has the
//! same token, regardless of which member the client contacted. Tokens are kept only in memory. A member expires a
//! token once it has not been used on that member for the token lifetime. A connection that has looked up a token keeps
//! it, and checks it without a lock from then on.
//!
//! # Invariants
//!
//! * A revoked token never becomes valid again, even if other threads use it while it is revoked.
//! * Token texts are not kept, nor is anything from which they could be computed. Tokens are found
//!   by digest, so the duration of a lookup reveals nothing about them.
//!
//! # Bound
//!
//! There are at most [`TOKENS_MAX`] tokens. Beyond that, the oldest tokens are dropped, and their clients must
//! authenticate again.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::units::Millis;

/// The maximum number of tokens.
const TOKENS_MAX: usize = 1 << 20;

/// The number of old tokens that are checked for expiry when a token is added.
const SWEEP_STEP: usize = 4;

/// A use within this time (in milliseconds) after the last recorded use is not recorded, so a token may expire this
/// much earlier.
const NOTED_EVERY_MILLIS: u64 = 500;

/// The default token lifetime, in milliseconds.
const TTL_MILLIS_DEFAULT: u64 = 300_000;

/// The deadline that marks a token as revoked.
const REVOKED: u64 = 0;

/// The digest of a token's text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }
}

/// A client's token, without its text.
pub struct Token {
    user: Arc<str>,
    /// When the token expires, in milliseconds of the caller's clock, or [`REVOKED`].
    deadline: AtomicU64,
    ttl_millis: u64,
}

impl Token {
    /// Returns the user if the token is valid, and restarts its lifetime.
    pub fn validate(&self, now: Millis) -> Option<&Arc<str>> {
        let deadline = self.deadline.load(Ordering::Acquire);
        if deadline <= now.0 {
            return None;
        }
        let renewed = now.plus(self.ttl_millis).0;
        if deadline.saturating_add(NOTED_EVERY_MILLIS) < renewed {
            // The exchange fails if another thread has renewed or revoked the token in the meantime.
            let noted = self.deadline.compare_exchange(
                deadline,
                renewed,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if noted == Err(REVOKED) {
                return None;
            }
        }
        Some(&self.user)
    }

    fn withdraw(&self) {
        self.deadline.store(REVOKED, Ordering::Release);
    }
}

/// Prints the user, but not the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Table {
    tokens: BTreeMap<Fingerprint, Arc<Token>>,
    /// All tokens, roughly in order of age, each with the time of its next expiry check.
    queue: VecDeque<(u64, Fingerprint)>,
}

/// A handle to the tokens, for any thread.
#[derive(Clone)]
pub struct Tokens {
    table: Arc<Mutex<Table>>,
    ttl_millis: u64,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("ttl_millis", &self.ttl_millis).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Creates an empty table. A lifetime of 0 means the default.
    pub(super) fn new(ttl_millis: u64) -> Self {
        let ttl_millis = if ttl_millis == 0 { TTL_MILLIS_DEFAULT } else { ttl_millis };
        Self { table: Arc::default(), ttl_millis }
    }

    /// Returns the text of the token that the entry at this index creates. The number in the text is the index of the
    /// previous entry. etcd uses the index of the last finished entry, and an entry counts as finished only after it is
    /// applied.
    #[must_use]
    pub fn text(prefix: &str, index: u64) -> String {
        format!("{prefix}.{}", index.saturating_sub(1))
    }

    /// Returns the index of the entry that created a token, or `None` if the text does not have the
    /// form of a token.
    #[must_use]
    pub fn index(text: &str) -> Option<u64> {
        let (_, index) = text.split_once('.')?;
        let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { index.parse::<u64>().ok()?.checked_add(1) } else { None }
    }

    /// Adds a token for a user.
    pub(crate) fn add(&self, text: &str, user: &str, now: Millis) {
        let fingerprint = Fingerprint::of(text.as_bytes());
        let deadline = now.plus(self.ttl_millis).0;
        let token =
            Token { user: user.into(), deadline: deadline.into(), ttl_millis: self.ttl_millis };
        let mut table = self.table.lock();
        table.sweep(now, TOKENS_MAX);
        // An entry that is applied a second time creates the same token.
        if table.tokens.insert(fingerprint, Arc::new(token)).is_none() {
            table.queue.push_back((deadline, fingerprint));
        }
    }

    /// Returns the number of tokens in memory. Expired tokens are included until they are dropped.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().tokens.len()
    }

    /// Finds a token by its text. [`Token::validate`] checks whether it is valid.
    #[must_use]
    pub fn find(&self, text: &[u8]) -> Option<Arc<Token>> {
        let fingerprint = Fingerprint::of(text);
        self.table.lock().tokens.get(&fingerprint).cloned()
    }

    /// Revokes the tokens of a user.
    pub(super) fn revoke_of_user(&self, user: &str) {
        self.revoke_where(|other| other == user);
    }

    /// Revokes the tokens of all users for which `is_affected` holds.
    pub(super) fn revoke_where(&self, is_affected: impl Fn(&str) -> bool) {
        let mut table = self.table.lock();
        table.tokens.retain(|_, token| {
            let stays = !is_affected(&token.user);
            if !stays {
                token.withdraw();
            }
            stays
        });
    }

    /// Revokes all tokens.
    pub(super) fn revoke_all(&self) {
        let mut table = self.table.lock();
        for token in table.tokens.values() {
            token.withdraw();
        }
        *table = Table::default();
    }
}

impl Table {
    /// Drops a few expired tokens, and also the oldest ones if there are `count_max` tokens or
    /// more.
    fn sweep(&mut self, now: Millis, count_max: usize) {
        for _ in 0..SWEEP_STEP {
            let is_full = self.tokens.len() >= count_max;
            let Some((look_at, fingerprint)) = self.queue.front().copied() else { return };
            if look_at > now.0 && !is_full {
                return;
            }
            self.queue.pop_front();
            let Some(token) = self.tokens.get(&fingerprint) else { continue };
            let deadline = token.deadline.load(Ordering::Acquire);
            if deadline > now.0 && !is_full {
                self.queue.push_back((deadline, fingerprint));
            } else {
                token.withdraw();
                self.tokens.remove(&fingerprint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        Tokens::new(1000)
    }

    fn user_of(tokens: &Tokens, text: &str, now: u64) -> Option<String> {
        Some(tokens.find(text.as_bytes())?.validate(Millis(now))?.to_string())
    }

    #[test]
    fn a_token_expires_one_ttl_after_its_last_use() {
        let tokens = tokens();
        tokens.add("abc.7", "ann", Millis(100));
        assert_eq!(user_of(&tokens, "abc.7", 1099).as_deref(), Some("ann"));
        assert_eq!(user_of(&tokens, "abc.7", 2098).as_deref(), Some("ann"));
        assert_eq!(user_of(&tokens, "abc.7", 3098), None);
        assert_eq!(user_of(&tokens, "abc.8", 3098), None);
    }

    #[test]
    fn a_revoked_token_is_invalid_for_streams_that_hold_it() {
        let tokens = tokens();
        tokens.add("a.1", "ann", Millis(0));
        tokens.add("b.2", "bob", Millis(0));
        let (ann, bob) = (tokens.find(b"a.1").unwrap(), tokens.find(b"b.2").unwrap());
        tokens.revoke_of_user("ann");
        assert!(ann.validate(Millis(1)).is_none());
        assert!(tokens.find(b"a.1").is_none());
        assert!(bob.validate(Millis(1)).is_some());
        tokens.revoke_all();
        assert!(bob.validate(Millis(1)).is_none());
        assert!(tokens.find(b"b.2").is_none());
    }

    #[test]
    fn expired_tokens_are_dropped_when_tokens_are_added() {
        let tokens = tokens();
        for index in 0..100 {
            tokens.add(&Tokens::text("old", index + 1), "ann", Millis(0));
        }
        // This token is used, so it is kept.
        assert!(user_of(&tokens, "old.0", 999).is_some());
        for index in 100..200 {
            tokens.add(&Tokens::text("new", index + 1), "ann", Millis(1500));
        }
        assert_eq!(tokens.count(), 101);
        assert!(user_of(&tokens, "old.0", 1500).is_some());
    }

    #[test]
    fn the_token_with_the_earliest_expiry_is_dropped_at_the_limit() {
        let tokens = tokens();
        for index in 1..=3 {
            tokens.add(&Tokens::text("good", index), "ann", Millis(index));
        }
        let oldest = tokens.find(b"good.0").unwrap();
        tokens.table.lock().sweep(Millis(4), 4);
        assert_eq!(tokens.count(), 3);
        tokens.table.lock().sweep(Millis(4), 3);
        assert!(tokens.find(b"good.0").is_none());
        assert!(
            oldest.validate(Millis(4)).is_none(),
            "a dropped token is also invalid for a connection that keeps it"
        );
        for text in ["good.1", "good.2"] {
            assert_eq!(user_of(&tokens, text, 4).as_deref(), Some("ann"));
        }
    }

    #[test]
    fn the_text_of_a_token_ends_with_the_index_of_the_previous_entry() {
        assert_eq!(Tokens::text("AbC", 42), "AbC.41");
        assert_eq!(Tokens::index(&Tokens::text("AbC", 42)), Some(42));
        for bad in
            ["", "abc", "abc.", "abc.x", "a.b.1", "abc.-1", "abc.+1", "abc.99999999999999999999"]
        {
            assert_eq!(Tokens::index(bad), None, "{bad}");
        }
    }

    #[test]
    fn tokens_are_not_printed() {
        let tokens = tokens();
        tokens.add("secret.1", "ann", Millis(0));
        let printed = format!("{tokens:?} {:?}", tokens.find(b"secret.1"));
        assert!(printed.contains("ann") && !printed.contains("secret"), "{printed}");
    }
}
