//! Proposals in progress, with their waiters (by the request id in the log entry) and their memory use.
//!
//! A proposal counts towards the limits from its acceptance until it is applied or fails. If its caller disconnects,
//! its entry may already be in the log. Such a proposal is *withdrawn*: it has no waiter, but counts until it is
//! applied. A member that does not lead forgets withdrawn proposals at the next tick: only the leader appends entries,
//! so counting these proposals would not bound any log. A leader forgets the withdrawn proposals that it accepted
//! before its own term, because they were sent to an earlier leader and may be lost.
//!
//! A membership change that still waits when its client gives up must not take effect. Consensus is therefore told at
//! once of a withdrawn change, so that it drops the change if it has neither appended nor forwarded it. The change no
//! longer counts, because it may never be applied, and its entry is small.
//!
//! # Bound
//!
//! The caller sets the maximum number of proposals and of bytes. Proposals beyond that are refused.
#![expect(
    clippy::disallowed_types,
    reason = "proposals are only looked up, and lists of them are sorted"
)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use quorate_node::Event;
use quorate_raft::Term;

/// The estimated memory of a proposal in bytes, excluding its data: the client's call, slots in queues and maps, and
/// the log entry.
const PROPOSAL_OVERHEAD_BYTES: usize = 1024;

/// A hasher for request ids. They are unique and ascending, so their low bits serve as the hash.
#[derive(Clone, Copy, Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed");
    }

    fn write_u64(&mut self, id: u64) {
        // The hash table also uses the top bits, so they must depend on the id too.
        self.0 = id ^ id << 57;
    }
}

type Map<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

/// Totals of the proposals in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of proposals in progress.
    pub count: usize,
    /// Memory used by these proposals, in bytes.
    pub bytes: usize,
    /// The number of proposals refused so far.
    pub refused: u64,
}

/// The bookkeeping of a proposal in progress.
#[derive(Clone, Copy, Debug)]
struct Hold {
    bytes: usize,
    /// The value of [`Pending::led_term`] when this member accepted the proposal.
    led_term: Term,
    is_change: bool,
}

/// The proposals in progress, and their limits. `W` identifies a waiter.
#[derive(Debug)]
pub struct Pending<W> {
    awaited: Map<(W, Hold)>,
    /// Proposals without a waiter.
    withdrawn: Map<Hold>,
    load: Load,
    /// The last term in which this member led.
    led_term: Term,
    count_max: usize,
    bytes_max: usize,
}

impl<W> Pending<W> {
    /// Creates an empty set with these limits on the number of proposals and their bytes.
    #[must_use]
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        Self {
            awaited: Map::default(),
            withdrawn: Map::default(),
            load: Load::default(),
            led_term: Term::ZERO,
            count_max,
            bytes_max,
        }
    }

    /// Adds a proposal of this size. Returns whether there was room. If no other proposal is in progress, there is
    /// always room.
    #[must_use]
    pub fn add(&mut self, request_id: u64, waiter: W, bytes: usize) -> bool {
        self.insert(request_id, waiter, bytes, false)
    }

    /// Adds a membership change; see [`Pending::add`].
    #[must_use]
    pub fn add_change(&mut self, request_id: u64, waiter: W, bytes: usize) -> bool {
        self.insert(request_id, waiter, bytes, true)
    }

    fn insert(&mut self, request_id: u64, waiter: W, bytes: usize, is_change: bool) -> bool {
        let bytes = bytes + PROPOSAL_OVERHEAD_BYTES;
        let load = &mut self.load;
        let fits = load.count == 0
            || (load.count < self.count_max && load.bytes + bytes <= self.bytes_max);
        if !fits {
            load.refused += 1;
            return false;
        }
        load.count += 1;
        load.bytes += bytes;
        let hold = Hold { bytes, led_term: self.led_term, is_change };
        self.awaited.insert(request_id, (waiter, hold));
        true
    }

    /// Removes a finished proposal and returns its waiter. Returns `None` if the proposal came from another member or
    /// its client has disconnected.
    pub fn take(&mut self, request_id: u64) -> Option<W> {
        if let Some((waiter, hold)) = self.awaited.remove(&request_id) {
            self.release(hold);
            return Some(waiter);
        }
        if !self.withdrawn.is_empty()
            && let Some(hold) = self.withdrawn.remove(&request_id)
        {
            self.release(hold);
        }
        None
    }

    /// Removes the waiter of this proposal, if the proposal is still in progress. Returns an event for consensus if the
    /// proposal is a membership change.
    #[must_use]
    pub fn withdraw(&mut self, request_id: u64) -> Option<Event> {
        let (_, hold) = self.awaited.remove(&request_id)?;
        if hold.is_change {
            self.release(hold);
            return Some(Event::Withdraw(vec![request_id]));
        }
        self.withdrawn.insert(request_id, hold);
        None
    }

    /// Records that this member leads in this term. From now on it appends accepted proposals to its own log.
    pub const fn begin_term(&mut self, term: Term) {
        self.led_term = term;
    }

    /// Forgets withdrawn proposals, and returns their request ids in ascending order. A leader forgets only those that
    /// it accepted before its term.
    pub fn forget_withdrawn(&mut self, leads: bool) -> Vec<u64> {
        if self.withdrawn.is_empty() {
            return Vec::new();
        }
        let led_term = self.led_term;
        let mut forgotten = std::mem::take(&mut self.withdrawn);
        if leads {
            self.withdrawn = forgotten.extract_if(|_, hold| hold.led_term == led_term).collect();
        }
        forgotten.values().for_each(|hold| self.release(*hold));
        let mut ids: Vec<u64> = forgotten.into_keys().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the waiters in no particular order.
    pub fn waiters(&self) -> impl Iterator<Item = &W> {
        self.awaited.values().map(|(waiter, _)| waiter)
    }

    /// Returns the totals.
    #[must_use]
    pub const fn load(&self) -> Load {
        self.load
    }

    fn release(&mut self, hold: Hold) {
        assert!(
            self.load.count > 0,
            "each proposal is released once: otherwise the bound would have no effect"
        );
        self.load.count -= 1;
        self.load.bytes -= hold.bytes;
        assert!(
            self.load.count > 0 || self.load.bytes == 0,
            "no bytes are counted when no proposal is left: otherwise new proposals would be refused forever"
        );
    }
}
