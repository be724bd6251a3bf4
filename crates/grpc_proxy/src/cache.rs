//! A cache of responses to serializable ranges.
//!
//! A cached response is returned only to the same user for the same request. A write through this proxy removes the
//! responses whose ranges overlap the written keys, except responses at past revisions. As in etcd's proxy, writes that
//! do not pass through this proxy do not invalidate the cache, because a serializable response may be arbitrarily old.
//!
//! # Guarantees
//!
//! * The response to a request for the current revision is not cached if a write to its range through this proxy came
//!   after the request was sent and before the response arrived.
//! * A response for one user is never returned to another user.
//! * After `clear`, no response whose request was sent before `clear` is returned.
//!
//! `kv` checks whether the same user may still read the response.
//!
//! # Bound
//!
//! The cache holds at most [`ENTRIES_MAX`] responses and [`BYTES_MAX`] bytes in total. The least recently requested
//! responses are evicted first. If [`PENDING_MAX`] requests are not answered yet, the responses to further requests are
//! not cached. The copies of responses that are still being forwarded use at most [`BYTES_MAX`] bytes; further responses
//! are not cached. A write therefore checks at most `ENTRIES_MAX` and `PENDING_MAX` ranges, each in a number of steps that
//! is logarithmic in the number of written spans.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::byte_limit::ByteLimit;
use crate::call::Caller;
use crate::span::{Span, Spans};

/// Maximum number of cached responses, as in etcd's proxy.
const ENTRIES_MAX: usize = 2048;

/// Maximum number of requests that are not answered yet and whose responses may be cached. More responses than this
/// would evict each other.
const PENDING_MAX: usize = ENTRIES_MAX;

/// Maximum total size of all responses and their requests, in bytes.
const BYTES_MAX: usize = 64 << 20;

/// Maximum size of a cached response and its request, in bytes.
pub(crate) const ENTRY_BYTES_MAX: usize = BYTES_MAX / 16;

/// The key of a cache entry: the request and the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey {
    pub(crate) caller: Caller,
    /// The encoded request, with `serializable` set.
    pub(crate) request: Bytes,
}

/// A cached response.
#[derive(Clone, Debug)]
pub(crate) struct CachedAnswer {
    pub(crate) answer: Bytes,
    /// The revision of the member when it responded.
    pub(crate) revision: i64,
}

#[derive(Debug)]
struct Entry {
    cache_key: CacheKey,
    span: Span,
    /// The past revision named by the request; 0 for the current revision.
    asked_revision: i64,
    cached: CachedAnswer,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.cache_key.request.len() + self.cached.answer.len()
    }
}

/// A request that was sent to a member and is not yet answered.
#[derive(Debug)]
pub(crate) struct Filling(u64);

#[derive(Debug)]
struct Pending {
    caller: Caller,
    span: Span,
    is_outdated: bool,
}

/// The cache. Its bounds and guarantees are in the module documentation.
#[derive(Debug)]
pub(crate) struct Cache {
    state: Mutex<State>,
    /// Limits the copies of responses that are not complete yet.
    pub(crate) copies: Arc<ByteLimit>,
}

impl Default for Cache {
    fn default() -> Self {
        Self { state: Mutex::default(), copies: ByteLimit::new(BYTES_MAX) }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Cache entries, from the least to the most recently requested.
    entries: BTreeMap<u64, Entry>,
    numbers: HashMap<CacheKey, u64>,
    /// For each key, the numbers (in `entries`) of the responses to single-key requests at the current revision.
    of_keys: BTreeMap<Bytes, BTreeSet<u64>>,
    /// Numbers (in `entries`) of the responses to range requests at the current revision.
    of_ranges: BTreeSet<u64>,
    bytes: usize,
    pending: BTreeMap<u64, Pending>,
    next: u64,
}

impl Cache {
    /// Returns the cached response to a request.
    pub(crate) fn get(&self, cache_key: &CacheKey) -> Option<CachedAnswer> {
        let mut state = self.state.lock();
        let number = *state.numbers.get(cache_key)?;
        let entry = state.remove(number)?;
        let cached = entry.cached.clone();
        state.insert(entry);
        Some(cached)
    }

    /// Registers a request before it is sent to a member. Until the request is answered, the cache records whether its
    /// range is written. If too many requests are not answered yet, the response will not be cached.
    pub(crate) fn begin(&self, span: Span, caller: Caller) -> Filling {
        let mut state = self.state.lock();
        let number = state.number();
        if state.pending.len() < PENDING_MAX {
            state.pending.insert(number, Pending { caller, span, is_outdated: false });
        }
        Filling(number)
    }

    /// Unregisters a request whose response will not be cached.
    pub(crate) fn give_up(&self, filling: &Filling) {
        self.state.lock().pending.remove(&filling.0);
    }

    /// Caches a response, unless it is too long or a write has outdated it.
    pub(crate) fn keep(
        &self,
        filling: &Filling,
        cache_key: CacheKey,
        asked_revision: i64,
        cached: CachedAnswer,
    ) {
        let mut state = self.state.lock();
        let Some(pending) = state.pending.remove(&filling.0) else { return };
        let entry = Entry { cache_key, span: pending.span, asked_revision, cached };
        let is_outdated = pending.is_outdated && asked_revision == 0;
        if is_outdated || entry.bytes() > ENTRY_BYTES_MAX {
            return;
        }
        if let Some(number) = state.numbers.get(&entry.cache_key).copied() {
            state.remove(number);
        }
        state.insert(entry);
        while state.entries.len() > ENTRIES_MAX || state.bytes > BYTES_MAX {
            let Some(oldest) = state.entries.keys().next().copied() else { break };
            state.remove(oldest);
        }
    }

    /// Removes the responses that a write to these spans outdates.
    pub(crate) fn outdate(&self, spans: &Spans) {
        let mut state = self.state.lock();
        for pending in state.pending.values_mut() {
            pending.is_outdated = pending.is_outdated || spans.overlap(&pending.span);
        }
        let entries = &state.entries;
        let overlaps =
            |number: &&u64| entries.get(number).is_some_and(|it| spans.overlap(&it.span));
        let mut numbers: Vec<u64> = state.of_ranges.iter().filter(overlaps).copied().collect();
        for span in spans.iter() {
            match span.end() {
                None => numbers.extend(state.of_keys.get(span.key()).into_iter().flatten()),
                Some(_) => {
                    let behind = state.of_keys.range(span.key().clone()..);
                    let within = behind.take_while(|(key, _)| span.passes(key));
                    numbers.extend(within.flat_map(|(_, numbers)| numbers));
                }
            }
        }
        for number in numbers {
            state.remove(number);
        }
    }

    /// Removes the responses to requests at past revisions before `revision`, because these revisions are compacted.
    pub(crate) fn compact(&self, revision: i64) {
        let mut state = self.state.lock();
        let is_gone = |entry: &Entry| (1..revision).contains(&entry.asked_revision);
        let gone: Vec<u64> =
            state.entries.iter().filter(|(_, it)| is_gone(it)).map(|it| *it.0).collect();
        for number in gone {
            state.remove(number);
        }
    }

    /// Removes all responses. Responses to in-flight requests will not be cached.
    pub(crate) fn clear(&self) {
        self.remove_of(|_| true);
    }

    /// Removes the responses for all callers for which `is_meant` returns true. Responses to in-flight requests of
    /// these callers will not be cached.
    pub(crate) fn remove_of(&self, is_meant: impl Fn(&Caller) -> bool) {
        let mut state = self.state.lock();
        let meant: Vec<u64> = state
            .entries
            .iter()
            .filter(|(_, entry)| is_meant(&entry.cache_key.caller))
            .map(|(number, _)| *number)
            .collect();
        for number in meant {
            state.remove(number);
        }
        state.pending.retain(|_, pending| !is_meant(&pending.caller));
    }

    /// Returns the number of responses and their total size in bytes.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.entries.len(), state.bytes)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn insert(&mut self, entry: Entry) {
        let number = self.number();
        self.bytes += entry.bytes();
        self.numbers.insert(entry.cache_key.clone(), number);
        if entry.asked_revision == 0 {
            if entry.span.is_single() {
                self.of_keys.entry(entry.span.key().clone()).or_default().insert(number);
            } else {
                self.of_ranges.insert(number);
            }
        }
        self.entries.insert(number, entry);
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.bytes -= entry.bytes();
        self.numbers.remove(&entry.cache_key);
        if entry.span.is_single() {
            if let Some(numbers) = self.of_keys.get_mut(entry.span.key()) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.of_keys.remove(entry.span.key());
                }
            }
        } else {
            self.of_ranges.remove(&number);
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(key: &'static str, end: &'static str) -> Span {
        Span::new(&Bytes::from_static(key.as_bytes()), &Bytes::from_static(end.as_bytes()))
    }

    fn cache_key(request: impl Into<Bytes>) -> CacheKey {
        CacheKey { caller: Caller::default(), request: request.into() }
    }

    fn cached(answer: impl Into<Bytes>) -> CachedAnswer {
        CachedAnswer { answer: answer.into(), revision: 1 }
    }

    fn begin(cache: &Cache, span: Span) -> Filling {
        cache.begin(span, Caller::default())
    }

    fn outdate(cache: &Cache, span: Span) {
        cache.outdate(&Spans::new(vec![span]));
    }

    fn keep(cache: &Cache, name: &'static str, span: Span, asked_revision: i64) {
        let filling = begin(cache, span);
        cache.keep(&filling, cache_key(name), asked_revision, cached("answer"));
    }

    #[test]
    fn a_write_invalidates_the_cached_responses_for_its_keys() {
        let cache = Cache::default();
        keep(&cache, "a", span("a", ""), 0);
        keep(&cache, "b", span("b", ""), 0);
        keep(&cache, "a..c", span("a", "c"), 0);
        keep(&cache, "d..f", span("d", "f"), 0);
        keep(&cache, "a at 5", span("a", ""), 5);
        outdate(&cache, span("a", ""));
        let there = |name: &'static str| cache.get(&cache_key(name)).is_some();
        assert!(!there("a") && !there("a..c"));
        assert!(there("b") && there("d..f") && there("a at 5"));
        outdate(&cache, span("b", "e"));
        assert!(!there("b") && !there("d..f"));
        cache.compact(5);
        assert!(there("a at 5"));
        cache.compact(6);
        assert!(!there("a at 5"));
        assert_eq!(cache.load(), (0, 0));
    }

    #[test]
    fn a_response_older_than_a_write_to_its_keys_is_not_cached() {
        let cache = Cache::default();
        let (overtaken, other) = (begin(&cache, span("a", "c")), begin(&cache, span("x", "")));
        outdate(&cache, span("b", ""));
        cache.keep(&overtaken, cache_key("a..c"), 0, cached("old"));
        cache.keep(&other, cache_key("x"), 0, cached("good"));
        assert!(cache.get(&cache_key("a..c")).is_none());
        assert!(cache.get(&cache_key("x")).is_some());
        let given_up = begin(&cache, span("a", ""));
        cache.give_up(&given_up);
        assert!(cache.state.lock().pending.is_empty());
    }

    #[test]
    fn a_write_to_all_keys_invalidates_all_responses_at_the_current_revision() {
        let cache = Cache::default();
        keep(&cache, "a", span("a", ""), 0);
        keep(&cache, "b..", span("b", "\0"), 0);
        keep(&cache, "a at 5", span("a", ""), 5);
        let overtaken = begin(&cache, span("c", "d"));
        cache.outdate(&Spans::all());
        cache.keep(&overtaken, cache_key("c..d"), 0, cached("old"));
        assert_eq!(cache.load().0, 1);
        assert!(cache.get(&cache_key("a at 5")).is_some());
    }

    #[test]
    fn responses_to_requests_beyond_the_limit_of_unanswered_requests_are_not_cached() {
        let cache = Cache::default();
        let pending: Vec<Filling> =
            (0..PENDING_MAX).map(|_| begin(&cache, span("a", ""))).collect();
        keep(&cache, "beyond", span("a", ""), 0);
        assert_eq!(cache.load().0, 0);
        cache.give_up(&pending[0]);
        keep(&cache, "within", span("a", ""), 0);
        assert_eq!(cache.load().0, 1);
    }

    #[test]
    fn cached_responses_are_returned_only_to_the_same_user() {
        let cache = Cache::default();
        keep(&cache, "a", span("a", ""), 0);
        let mut headers = http::HeaderMap::new();
        headers.insert("token", http::HeaderValue::from_static("t"));
        let caller = Caller::of(&headers);
        assert!(cache.get(&CacheKey { caller, request: Bytes::from_static(b"a") }).is_none());
    }

    #[test]
    fn clearing_the_cache_also_discards_in_flight_responses() {
        let cache = Cache::default();
        let mut headers = http::HeaderMap::new();
        headers.insert("token", http::HeaderValue::from_static("t"));
        let of_user =
            |request: &'static str| CacheKey { caller: Caller::of(&headers), ..cache_key(request) };
        keep(&cache, "a", span("a", ""), 0);
        let filling = begin(&cache, span("a", ""));
        cache.keep(&filling, of_user("b"), 0, cached("answer"));
        let (on_its_way, of_the_past) =
            (begin(&cache, span("a", "")), begin(&cache, span("a", "")));
        cache.remove_of(Caller::is_anonymous);
        assert!(cache.get(&cache_key("a")).is_none());
        assert!(cache.get(&of_user("b")).is_some());
        cache.keep(&on_its_way, cache_key("a"), 0, cached("old"));
        cache.keep(&of_the_past, cache_key("a at 5"), 5, cached("old"));
        assert_eq!(cache.load().0, 1);
        cache.clear();
        assert_eq!(cache.load(), (0, 0));
    }

    #[test]
    fn the_number_and_size_of_cached_responses_are_bounded() {
        let cache = Cache::default();
        let fill = |count: usize, bytes: usize| {
            for number in 0..count {
                let filling = begin(&cache, span("a", ""));
                cache.keep(
                    &filling,
                    cache_key(format!("{bytes} {number}")),
                    0,
                    cached(vec![0; bytes]),
                );
            }
        };
        fill(ENTRIES_MAX + 10, 1);
        assert_eq!(cache.load().0, ENTRIES_MAX);
        assert!(cache.get(&cache_key("1 0")).is_none());
        assert!(cache.get(&cache_key("1 10")).is_some());
        fill(40, ENTRY_BYTES_MAX - 100);
        let (count, bytes) = cache.load();
        assert!(count <= 16 && bytes <= BYTES_MAX, "{count} {bytes}");
        fill(1, ENTRY_BYTES_MAX);
        assert_eq!(cache.load(), (count, bytes));
    }
}
