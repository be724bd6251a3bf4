//! Stores the keys owned by this proxy, with their records, and decides whether the records may be used in responses.
//!
//! # Guarantees
//!
//! * A returned record was current at some moment between the request and the response: the leasing key belonged to
//!   this proxy, the lease was certainly alive, and no write through this proxy was in flight. The clock is read after
//!   the record, so a process that was suspended in between detects that the lease may have expired.
//! * A key that is written while it is being acquired does not become owned, because the record read for the
//!   acquisition may be outdated.
//! * When ownership of a key ends, its leasing key is queued for deletion or deleted immediately, unless it is already
//!   deleted or the end of the session's lease will delete it.
//!
//! # Bound
//!
//! At most [`OWNED_BYTES_MAX`] bytes of keys and records are held. The least recently requested keys are released
//! first. No more keys are acquired while `deletion_queue` is full or `excluded_keys` has no space.
//!
//! # Not here
//!
//! Requests to members: `session` sends the queued deletions, and `guard` builds the transactions.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::answer::Known;
use super::deletion_queue::DeletionQueue;
use super::excluded_keys::ExcludedKeys;
use super::guard::Owned;
use super::names::Names;
use crate::span::{Span, Spans};

/// Maximum total size of all keys and records in bytes, including the overhead.
const OWNED_BYTES_MAX: usize = 64 << 20;

/// Maximum size of one key and its record, in bytes.
const RECORD_BYTES_MAX: usize = OWNED_BYTES_MAX / 16;

/// Memory overhead of one record, in bytes.
const OVERHEAD_BYTES: usize = 256;

/// The owned keys and the current session.
#[derive(Debug)]
pub(super) struct OwnedKeys {
    names: Names,
    state: Mutex<State>,
    /// Signals that a leasing key was queued for deletion.
    pub(super) has_released: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The session's lease; 0 if there is no session.
    lease: i64,
    /// The time until which the lease is certainly alive.
    until: Duration,
    held: BTreeMap<Bytes, OwnedKey>,
    /// Owned keys, from the least to the most recently requested.
    by_use: BTreeMap<u64, Bytes>,
    bytes: usize,
    acquiring: BTreeMap<u64, Acquiring>,
    writing: BTreeMap<u64, Spans>,
    excluded: ExcludedKeys,
    released: DeletionQueue,
    next: u64,
}

#[derive(Debug)]
struct OwnedKey {
    /// The creation revision of the leasing key.
    made: i64,
    known: Known,
    /// The revision at which the record was read. The record has been current since then, because no other proxy may
    /// write the key.
    as_of: i64,
    /// Number of in-flight writes to the key through this proxy.
    writers: usize,
    used: u64,
}

/// A key that is being acquired.
#[derive(Debug)]
struct Acquiring {
    key: Bytes,
    lease: i64,
    /// The revision of the latest event on the leasing key, or `i64::MAX` if a write to the key has begun. A leasing
    /// key created before this revision is no longer valid.
    outdated_at: i64,
}

/// An acquisition in progress, created by [`OwnedKeys::begin_acquiring`]. Dropping it ends the attempt.
#[derive(Debug)]
pub(super) struct Acquisition<'a> {
    owned_keys: &'a OwnedKeys,
    number: u64,
    pub(super) key: Bytes,
    /// The session's lease.
    pub(super) lease: i64,
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        self.owned_keys.state.lock().acquiring.remove(&self.number);
    }
}

/// A write in progress through this proxy. If it is dropped without a result, the proxy releases the owned keys that it
/// may have written.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    owned_keys: &'a OwnedKeys,
    number: u64,
    /// The owned keys among the single-key spans of the write.
    pub(super) owned: Owned,
    /// All owned keys that the write may change.
    touched: Owned,
}

/// A consistent view of the owned keys.
#[derive(Debug)]
pub(super) struct View<'a> {
    state: &'a mut State,
    as_of: i64,
}

impl View<'_> {
    /// Returns the state of a key that is owned and not being written.
    pub(super) fn known(&mut self, key: &[u8]) -> Option<Known> {
        let used = self.state.number();
        let owned_key = self.state.held.get_mut(key).filter(|it| it.writers == 0)?;
        let key = self.state.by_use.remove(&owned_key.used)?;
        self.state.by_use.insert(used, key);
        owned_key.used = used;
        self.as_of = self.as_of.max(owned_key.as_of);
        Some(owned_key.known.clone())
    }
}

impl OwnedKeys {
    pub(super) fn new(names: Names) -> Self {
        Self { names, state: Mutex::default(), has_released: Notify::new() }
    }

    /// Runs `read` on a consistent view. Returns its result with the latest revision of any record it used. Returns
    /// `None` if the lease may have expired, according to the clock read afterwards.
    pub(super) fn read<T>(
        &self,
        clock: impl FnOnce() -> Duration,
        read: impl FnOnce(&mut View<'_>) -> Option<T>,
    ) -> Option<(T, i64)> {
        let mut state = self.state.lock();
        let mut view = View { state: &mut state, as_of: 0 };
        let found = read(&mut view)?;
        let as_of = view.as_of;
        (state.lease != 0 && clock() < state.until).then_some((found, as_of))
    }

    /// Starts a session whose lease is certainly alive until `until`.
    pub(super) fn begin_session(&self, lease: i64, until: Duration) {
        let mut state = self.state.lock();
        state.lease = lease;
        state.until = until;
    }

    /// Extends the time until which the lease is certainly alive.
    pub(super) fn prolong(&self, until: Duration) {
        let mut state = self.state.lock();
        state.until = state.until.max(until);
    }

    /// Ends the session, because its lease has ended or is about to end. No key is owned afterwards.
    pub(super) fn end_session(&self) {
        let mut state = self.state.lock();
        *state = State {
            next: state.next,
            writing: std::mem::take(&mut state.writing),
            acquiring: std::mem::take(&mut state.acquiring),
            excluded: std::mem::take(&mut state.excluded),
            ..State::default()
        };
    }

    /// Returns the lease of the session, if there is one.
    pub(super) fn lease(&self) -> Option<i64> {
        Some(self.state.lock().lease).filter(|lease| *lease != 0)
    }

    /// Starts to acquire a key. Returns `None` if the key must not be acquired at this time.
    pub(super) fn begin_acquiring(&self, key: &Bytes, now: Duration) -> Option<Acquisition<'_>> {
        let mut state = self.state.lock();
        let is_alive = state.lease != 0 && now < state.until;
        let is_allowed = !state.released.is_full() && state.excluded.may_acquire(key, now);
        let is_taken = state.held.contains_key(key)
            || state.acquiring.values().any(|other| other.key == *key)
            || state.writing.values().any(|spans| spans.have(key));
        if !is_alive || !is_allowed || is_taken {
            return None;
        }
        let (number, lease) = (state.number(), state.lease);
        let key = Bytes::copy_from_slice(key);
        let acquiring = Acquiring { key: key.clone(), lease, outdated_at: 0 };
        state.acquiring.insert(number, acquiring);
        Some(Acquisition { owned_keys: self, number, key, lease })
    }

    /// Starts a write to these spans.
    pub(super) fn begin_writing(&self, spans: &Spans) -> Writing<'_> {
        let mut state = self.state.lock();
        let number = state.number();
        let (mut owned, mut touched) = (Owned::new(), Owned::new());
        for span in spans.iter() {
            for key in state.held_within(span) {
                let Some(owned_key) = state.held.get_mut(&key) else { continue };
                if touched.insert(key.clone(), owned_key.made).is_none() {
                    owned_key.writers += 1;
                }
                if span.is_single() {
                    owned.insert(key, owned_key.made);
                }
            }
        }
        for acquiring in state.acquiring.values_mut().filter(|it| spans.have(&it.key)) {
            acquiring.outdated_at = i64::MAX;
        }
        state.writing.insert(number, spans.clone());
        Writing { owned_keys: self, number, owned, touched }
    }

    /// Processes an event on a leasing key: leasing keys created before `revision` are no longer valid.
    pub(super) fn lose(&self, key: &[u8], revision: i64) {
        self.state.lock().lose(key, revision);
    }

    /// Queues the leasing key created at `made` for deletion, and temporarily excludes the key from acquisition.
    pub(super) fn give_up(&self, key: &[u8], made: i64, now: Duration) {
        let mut state = self.state.lock();
        state.lose(key, made + 1);
        state.excluded.add(Bytes::copy_from_slice(key), now);
        self.queue(&mut state, key, made);
    }

    fn queue(&self, state: &mut State, key: &[u8], made: i64) {
        state.released.push(self.names.leasing_key(key), made);
        self.has_released.notify_one();
    }

    /// Takes the leasing keys for the next deletion transaction.
    pub(super) fn take_released(&self) -> Vec<(Bytes, i64)> {
        self.state.lock().released.take()
    }

    /// Returns leasing keys to the queue because their deletion failed.
    pub(super) fn requeue_released(&self, taken: Vec<(Bytes, i64)>, lease: i64) {
        let mut state = self.state.lock();
        if state.lease == lease {
            for (name, made) in taken {
                state.released.return_key(name, made);
            }
            self.has_released.notify_one();
        }
    }

    /// Returns the number of owned keys and their total size in bytes.
    pub(super) fn load(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.held.len(), state.bytes)
    }

    /// Releases keys until the remaining keys fit within the byte limit.
    fn fit(&self, state: &mut State) {
        while state.bytes > OWNED_BYTES_MAX {
            let Some(key) = state.by_use.first_key_value().map(|(_, key)| key.clone()) else {
                break;
            };
            if let Some(owned_key) = state.remove(&key) {
                self.queue(state, &key, owned_key.made);
            }
        }
    }
}

impl Acquisition<'_> {
    /// Completes the acquisition. `made` is the revision at which the leasing key was created and the record was read.
    pub(super) fn succeed(self, made: i64, known: Known, now: Duration) {
        let mut state = self.owned_keys.state.lock();
        let Some(acquiring) = state.acquiring.remove(&self.number) else { return };
        if acquiring.lease != state.lease {
            // The leasing key need not be queued, because it is deleted when the lease of its session ends.
            return;
        }
        let fits = bytes_of(&self.key, &known) <= RECORD_BYTES_MAX;
        if !fits {
            state.excluded.add(self.key.clone(), now);
        }
        if acquiring.outdated_at > made || !fits {
            self.owned_keys.queue(&mut state, &self.key, made);
            return;
        }
        state.insert(self.key.clone(), made, known);
        self.owned_keys.fit(&mut state);
    }

    /// Ends the acquisition without ownership.
    pub(super) fn decline(self, now: Duration) {
        self.owned_keys.state.lock().excluded.add(self.key.clone(), now);
    }
}

impl Writing<'_> {
    /// Ends a write that was performed at `revision`. `refreshed` contains the resulting states of owned keys.
    pub(super) fn done(mut self, revision: i64, refreshed: Vec<(Bytes, Known)>) {
        let mut state = self.owned_keys.state.lock();
        for (key, known) in refreshed {
            let Some(made) = self.touched.remove(&key) else { continue };
            let lease = known.as_ref().map_or(0, |record| record.fields().lease);
            let fits = bytes_of(&key, &known) <= RECORD_BYTES_MAX;
            if !state.settle(&key, made) {
                continue;
            }
            if lease != 0 || !fits {
                // The key is released, because its new record is attached to a lease and could expire at any time, or
                // because the record is too large.
                state.remove(&key);
                self.owned_keys.queue(&mut state, &key, made);
            } else {
                state.replace(&key, known, revision);
            }
        }
        self.owned_keys.fit(&mut state);
    }

    /// Ends a write that was not performed.
    pub(super) fn not_performed(mut self) {
        let mut state = self.owned_keys.state.lock();
        for (key, made) in std::mem::take(&mut self.touched) {
            state.settle(&key, made);
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut state = self.owned_keys.state.lock();
        for (key, made) in std::mem::take(&mut self.touched) {
            if state.settle(&key, made) {
                state.remove(&key);
                self.owned_keys.queue(&mut state, &key, made);
            }
        }
        state.writing.remove(&self.number);
    }
}

fn bytes_of(key: &[u8], known: &Known) -> usize {
    // The map and the order of use share the bytes of the key. The name of the leasing key, which contains the key
    // again, takes memory only while it is queued for deletion.
    OVERHEAD_BYTES + key.len() + known.as_ref().map_or(0, |record| record.encoded().len())
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn held_within(&self, span: &Span) -> Vec<Bytes> {
        if span.is_single() {
            return self
                .held
                .get_key_value(span.key())
                .map(|(key, _)| key.clone())
                .into_iter()
                .collect();
        }
        let behind = self.held.range(span.key().clone()..).map(|(key, _)| key);
        behind.take_while(|key| span.has(key)).cloned().collect()
    }

    fn insert(&mut self, key: Bytes, made: i64, known: Known) {
        self.remove(&key);
        let used = self.number();
        self.bytes += bytes_of(&key, &known);
        self.by_use.insert(used, key.clone());
        self.held.insert(key, OwnedKey { made, known, as_of: made, writers: 0, used });
    }

    fn remove(&mut self, key: &[u8]) -> Option<OwnedKey> {
        let owned_key = self.held.remove(key)?;
        self.by_use.remove(&owned_key.used);
        self.bytes -= bytes_of(key, &owned_key.known);
        Some(owned_key)
    }

    fn lose(&mut self, key: &[u8], revision: i64) {
        for acquiring in self.acquiring.values_mut().filter(|it| it.key == key) {
            acquiring.outdated_at = acquiring.outdated_at.max(revision);
        }
        if self.held.get(key).is_some_and(|owned_key| owned_key.made < revision) {
            self.remove(key);
        }
    }

    /// Ends a write to a key. Returns whether the key is still owned under the same leasing key.
    fn settle(&mut self, key: &[u8], made: i64) -> bool {
        match self.held.get_mut(key).filter(|owned_key| owned_key.made == made) {
            Some(owned_key) => {
                owned_key.writers -= 1;
                true
            }
            None => false,
        }
    }

    /// Stores the record that a write produced, unless a later record is known.
    fn replace(&mut self, key: &[u8], known: Known, revision: i64) {
        let Some(owned_key) = self.held.get_mut(key) else { return };
        if revision > owned_key.as_of {
            self.bytes -= bytes_of(key, &owned_key.known);
            self.bytes += bytes_of(key, &known);
            owned_key.known = known;
            owned_key.as_of = revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_api::record::{Fields, KeyValue};

    use super::super::deletion_queue::RELEASED_BYTES_MAX;
    use super::super::excluded_keys::{EXCLUDED_BYTES_MAX, EXCLUSION};
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn owned_keys() -> OwnedKeys {
        let owned_keys = OwnedKeys::new(Names::new("own/"));
        owned_keys.begin_session(5, NOW + EXCLUSION * 10);
        owned_keys
    }

    fn key(number: usize) -> Bytes {
        format!("{number:05}").into()
    }

    fn known(bytes: usize) -> Known {
        Some(KeyValue::new(&Fields { value: &vec![1; bytes], ..Fields::default() }))
    }

    fn own(owned_keys: &OwnedKeys, key: &Bytes, made: i64, bytes: usize) {
        let acquisition = owned_keys.begin_acquiring(key, NOW).unwrap();
        acquisition.succeed(made, known(bytes), NOW);
    }

    fn is_owned(owned_keys: &OwnedKeys, key: &Bytes, now: Duration) -> bool {
        owned_keys.read(|| now, |view| view.known(key)).is_some()
    }

    #[test]
    fn owned_keys_are_readable_until_the_lease_deadline() {
        let owned_keys = owned_keys();
        own(&owned_keys, &key(1), 7, 10);
        assert!(is_owned(&owned_keys, &key(1), NOW));
        assert!(!is_owned(&owned_keys, &key(2), NOW));
        let end = NOW + EXCLUSION * 10;
        assert!(!is_owned(&owned_keys, &key(1), end));
        assert!(owned_keys.begin_acquiring(&key(2), end).is_none());
        owned_keys.prolong(end + EXCLUSION);
        assert!(is_owned(&owned_keys, &key(1), end));
        // The clock is read after the record, and shows that the lease may have expired.
        let mut has_read = false;
        let read = |view: &mut View<'_>| view.known(&key(1)).inspect(|_| has_read = true);
        assert!(owned_keys.read(|| end + EXCLUSION, read).is_none());
        assert!(has_read);
        owned_keys.end_session();
        assert!(!is_owned(&owned_keys, &key(1), NOW));
        assert_eq!(owned_keys.load(), (0, 0));
    }

    #[test]
    fn a_key_released_on_request_is_not_acquired_again_for_a_while() {
        let owned_keys = owned_keys();
        own(&owned_keys, &key(1), 7, 10);
        // An event for an earlier owner has no effect.
        owned_keys.lose(&key(1), 6);
        assert!(is_owned(&owned_keys, &key(1), NOW));
        owned_keys.lose(&key(1), 9);
        owned_keys.give_up(&key(1), 7, NOW);
        assert!(!is_owned(&owned_keys, &key(1), NOW));
        assert_eq!(owned_keys.take_released(), [(Bytes::from_static(b"own/00001"), 7)]);
        assert!(owned_keys.begin_acquiring(&key(1), NOW).is_none());
        assert!(owned_keys.begin_acquiring(&key(1), NOW + EXCLUSION).is_some());
    }

    #[test]
    fn a_newer_event_during_an_acquisition_prevents_ownership() {
        let owned_keys = owned_keys();
        for (news, is_kept) in [(6, true), (8, false)] {
            let acquisition = owned_keys.begin_acquiring(&key(1), NOW).unwrap();
            assert!(
                owned_keys.begin_acquiring(&key(1), NOW).is_none(),
                "a key that is being acquired is not acquired again"
            );
            owned_keys.lose(&key(1), news);
            acquisition.succeed(7, known(1), NOW);
            assert_eq!(is_owned(&owned_keys, &key(1), NOW), is_kept);
            assert_eq!(owned_keys.take_released().is_empty(), is_kept);
            owned_keys.lose(&key(1), 8);
        }
        let acquisition = owned_keys.begin_acquiring(&key(1), NOW).unwrap();
        owned_keys.begin_writing(&Spans::new(vec![Span::of(key(1))])).not_performed();
        acquisition.succeed(7, known(1), NOW);
        assert!(!is_owned(&owned_keys, &key(1), NOW));
        // A leasing key created with the lease of an earlier session is deleted when that session ends.
        let acquisition = owned_keys.begin_acquiring(&key(2), NOW).unwrap();
        owned_keys.end_session();
        owned_keys.begin_session(6, NOW + EXCLUSION);
        acquisition.succeed(9, known(1), NOW);
        assert!(!is_owned(&owned_keys, &key(2), NOW));
    }

    #[test]
    fn an_owned_key_is_unreadable_while_any_write_to_it_is_in_progress() {
        let owned_keys = owned_keys();
        own(&owned_keys, &key(1), 7, 10);
        let (one, other) = (
            owned_keys.begin_writing(&Spans::new(vec![Span::of(key(1))])),
            owned_keys.begin_writing(&Spans::new(vec![Span::new(&key(0), &key(9))])),
        );
        assert_eq!(one.owned, Owned::from([(key(1), 7)]));
        assert!(other.owned.is_empty(), "only single keys are listed as owned");
        assert!(!is_owned(&owned_keys, &key(1), NOW));
        one.done(9, vec![(key(1), known(20))]);
        assert!(!is_owned(&owned_keys, &key(1), NOW));
        other.not_performed();
        let read = owned_keys.read(|| NOW, |view| view.known(&key(1)));
        assert_eq!(read, Some((known(20), 9)));
        // The result of a write at an older revision does not replace the record. A write without a result releases the
        // key.
        owned_keys
            .begin_writing(&Spans::new(vec![Span::of(key(1))]))
            .done(8, vec![(key(1), known(3))]);
        assert_eq!(owned_keys.read(|| NOW, |view| view.known(&key(1))), Some((known(20), 9)));
        drop(owned_keys.begin_writing(&Spans::new(vec![Span::of(key(1))])));
        assert!(!is_owned(&owned_keys, &key(1), NOW));
        assert_eq!(owned_keys.take_released().len(), 1);
    }

    #[test]
    fn the_memory_of_owned_keys_is_bounded() {
        let owned_keys = owned_keys();
        let bytes = RECORD_BYTES_MAX - 1000;
        for number in 0..20 {
            own(&owned_keys, &key(number), 7, bytes);
            // The first key is requested in every round, so it is never released.
            assert!(is_owned(&owned_keys, &key(0), NOW));
        }
        let (count, held) = owned_keys.load();
        assert!(
            count == 16 && held <= OWNED_BYTES_MAX,
            "{count} keys with {held} bytes in total are owned"
        );
        assert!(!is_owned(&owned_keys, &key(1), NOW));
        assert_eq!(owned_keys.take_released().len(), 4);
        own(&owned_keys, &key(99), 7, RECORD_BYTES_MAX);
        assert!(!is_owned(&owned_keys, &key(99), NOW));
        assert_eq!(owned_keys.load().0, 16);
    }

    /// Length of a long key in bytes.
    const LONG: usize = 1 << 20;

    fn long_key(number: usize) -> Bytes {
        format!("{number:8}").repeat(LONG / 8).into()
    }

    #[test]
    fn no_key_is_acquired_while_the_deletion_queue_is_full() {
        let owned_keys = owned_keys();
        let count = RELEASED_BYTES_MAX / LONG;
        for number in 0..count {
            own(&owned_keys, &long_key(number), 7, 10);
        }
        // A deletion of the range that ends without a result releases all owned keys in the range.
        drop(owned_keys.begin_writing(&Spans::all()));
        assert!(owned_keys.begin_acquiring(&key(1), NOW).is_none());
        let take_all = || -> Vec<_> {
            let take = || Some(owned_keys.take_released()).filter(|taken| !taken.is_empty());
            std::iter::from_fn(take).flatten().collect()
        };
        let taken = take_all();
        assert!(owned_keys.begin_acquiring(&key(1), NOW).is_some());
        owned_keys.requeue_released(taken, 5);
        assert!(owned_keys.begin_acquiring(&key(1), NOW).is_none());
        assert_eq!(take_all().len(), count);
        assert!(owned_keys.begin_acquiring(&key(1), NOW).is_some());
    }

    #[test]
    fn no_key_is_acquired_while_the_list_of_excluded_keys_is_full() {
        let owned_keys = owned_keys();
        let decline = |number| {
            let acquisition = owned_keys.begin_acquiring(&long_key(number), NOW)?;
            acquisition.decline(NOW);
            Some(())
        };
        let count = (0..100).map_while(decline).count();
        assert!(count * LONG < EXCLUDED_BYTES_MAX, "{count} keys are excluded");
        let later = NOW + EXCLUSION;
        assert!(owned_keys.begin_acquiring(&long_key(count), later).is_some());
    }
}
