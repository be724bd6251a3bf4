//! Proposals in progress: who waits for which, from the id that travels through the log to the asker,
//! and how much memory they hold.
//!
//! A proposal is counted from when it is accepted until nothing of it is left: it is applied, or has failed. That
//! its caller has gone changes nothing for what is in the log already, so such a proposal is *withdrawn*: nobody
//! waits for it, and its place is given back when it is applied. A member that does not lead has nothing in its
//! log that it could bound; there withdrawn proposals are forgotten at the next tick. So are those of one that
//! leads, if it has not taken them on in its own reign: they went to a predecessor, and may be lost with it.
//!
//! # Bound
//!
//! In things and bytes, given by the caller. Further ones are refused.
#![expect(
    clippy::disallowed_types,
    reason = "proposals are looked up one by one; lists of them are sorted"
)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use quorate_raft::Term;

/// What a proposal takes besides its bytes: its call, its places in queues and maps, its entry in the log.
const PROPOSAL_OVERHEAD_BYTES: usize = 1024;

/// Request ids are unique and count up: their low bits are as good as a hash.
#[derive(Clone, Copy, Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 is hashed");
    }

    fn write_u64(&mut self, id: u64) {
        // The table looks at the top bits too.
        self.0 = id ^ id << 57;
    }
}

type Map<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

/// What the proposals in progress come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How many there are.
    pub count: usize,
    /// What they hold.
    pub bytes: usize,
    /// How many were not taken on.
    pub refused: u64,
}

/// What a proposal holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    bytes: usize,
    /// As of when it was taken on.
    reign: Term,
}

/// See the module. `W` is who waits.
#[derive(Debug)]
pub struct Pending<W> {
    awaited: Map<(W, Hold)>,
    /// Those that nobody waits for any more.
    withdrawn: Map<Hold>,
    load: Load,
    /// The term in which this member led last.
    reign: Term,
    count_max: usize,
    bytes_max: usize,
}

impl<W> Pending<W> {
    /// For so many proposals, of so many bytes together.
    #[must_use]
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        Self {
            awaited: Map::default(),
            withdrawn: Map::default(),
            load: Load::default(),
            reign: Term::ZERO,
            count_max,
            bytes_max,
        }
    }

    /// Takes a proposal of so many bytes on; says whether there is room for it. There always is for one by itself.
    #[must_use]
    pub fn add(&mut self, request_id: u64, waiter: W, bytes: usize) -> bool {
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
        self.awaited.insert(request_id, (waiter, Hold { bytes, reign: self.reign }));
        true
    }

    /// Ends a proposal. `None` when nobody waits: it came from another member, or its client has given up.
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

    /// Nobody waits for this proposal any more, if it is still in progress.
    pub fn withdraw(&mut self, request_id: u64) {
        if let Some((_, hold)) = self.awaited.remove(&request_id) {
            self.withdrawn.insert(request_id, hold);
        }
    }

    /// This member leads in that term: what it takes on from here goes into its own log.
    pub const fn begin_reign(&mut self, term: Term) {
        self.reign = term;
    }

    /// Gives back the places of withdrawn proposals, and names them, ascending: of all, or, where this member
    /// leads, of those from before its reign.
    pub fn forget_withdrawn(&mut self, leads: bool) -> Vec<u64> {
        if self.withdrawn.is_empty() {
            return Vec::new();
        }
        let reign = self.reign;
        let mut forgotten = std::mem::take(&mut self.withdrawn);
        if leads {
            self.withdrawn = forgotten.extract_if(|_, hold| hold.reign == reign).collect();
        }
        forgotten.values().for_each(|hold| self.release(*hold));
        let mut ids: Vec<u64> = forgotten.into_keys().collect();
        ids.sort_unstable();
        ids
    }

    /// Who waits, in no order.
    pub fn waiters(&self) -> impl Iterator<Item = &W> {
        self.awaited.values().map(|(waiter, _)| waiter)
    }

    /// What they come to.
    #[must_use]
    pub const fn load(&self) -> Load {
        self.load
    }

    fn release(&mut self, hold: Hold) {
        assert!(
            self.load.count > 0,
            "a place is given back once: otherwise the bound counts nothing"
        );
        self.load.count -= 1;
        self.load.bytes -= hold.bytes;
    }
}
