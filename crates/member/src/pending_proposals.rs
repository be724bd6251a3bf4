//! Proposals in progress: who waits for which, from the id that travels through the log to the asker,
//! and how much memory they hold.
//!
//! A proposal is counted from when it is accepted until nothing of it is left: it is applied, or has failed. That
//! its caller has gone changes nothing for what is in the log already, so such a proposal is *withdrawn*: nobody
//! waits for it, and its place is given back when it is applied. A member that does not lead has nothing in its
//! log that it could bound; there the driver has withdrawn proposals forgotten at its next tick. So has one that
//! leads, those that it has not taken on in its own reign: they went to a predecessor, and may be lost with it.
//!
//! # Bound
//!
//! [`PROPOSALS`], in things and bytes. Further ones are refused.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;
use quorate_raft::Term;

use crate::admission::{Full, PROPOSALS};
use crate::completion::Completer;
use crate::outcome::Outcome;

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

/// Shared by the connection runtimes, which add, and the core threads, which take.
#[derive(Debug, Default)]
pub(crate) struct PendingProposals {
    state: Mutex<State>,
}

/// What a proposal holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    bytes: usize,
    /// As of when it was taken on.
    reign: Term,
}

#[derive(Debug, Default)]
struct State {
    awaited: Map<(Completer<Outcome>, Hold)>,
    /// Those that nobody waits for any more.
    withdrawn: Map<Hold>,
    load: Load,
    /// The term in which this member led last.
    reign: Term,
}

impl PendingProposals {
    /// Takes a proposal of so many bytes on.
    pub(crate) fn add(
        &self,
        request_id: u64,
        completer: Completer<Outcome>,
        bytes: usize,
    ) -> Result<(), Full> {
        let bytes = bytes + PROPOSAL_OVERHEAD_BYTES;
        let mut state = self.state.lock();
        let load = &mut state.load;
        let fits = load.count == 0
            || (load.count < PROPOSALS.count_max && load.bytes + bytes <= PROPOSALS.bytes_max);
        if !fits {
            load.refused += 1;
            return Err(Full);
        }
        load.count += 1;
        load.bytes += bytes;
        let hold = Hold { bytes, reign: state.reign };
        state.awaited.insert(request_id, (completer, hold));
        Ok(())
    }

    /// Ends a proposal. `None` when nobody waits: it came from another member, or its client has given up.
    pub(crate) fn take(&self, request_id: u64) -> Option<Completer<Outcome>> {
        let mut state = self.state.lock();
        if let Some((completer, hold)) = state.awaited.remove(&request_id) {
            state.release(hold);
            return Some(completer);
        }
        if !state.withdrawn.is_empty()
            && let Some(hold) = state.withdrawn.remove(&request_id)
        {
            state.release(hold);
        }
        None
    }

    /// Nobody waits for this proposal any more, if it is still in progress.
    pub(crate) fn withdraw(&self, request_id: u64) {
        let mut state = self.state.lock();
        if let Some((_, hold)) = state.awaited.remove(&request_id) {
            state.withdrawn.insert(request_id, hold);
        }
    }

    /// This member leads in that term: what it takes on from here goes into its own log.
    pub(crate) fn begin_reign(&self, term: Term) {
        self.state.lock().reign = term;
    }

    /// Gives back the places of withdrawn proposals, and names them, ascending: of all, or, where this member
    /// leads, of those from before its reign.
    pub(crate) fn forget_withdrawn(&self, leads: bool) -> Vec<u64> {
        let mut state = self.state.lock();
        if state.withdrawn.is_empty() {
            return Vec::new();
        }
        let reign = state.reign;
        let mut forgotten = std::mem::take(&mut state.withdrawn);
        if leads {
            state.withdrawn = forgotten.extract_if(|_, hold| hold.reign == reign).collect();
        }
        forgotten.values().for_each(|hold| state.release(*hold));
        drop(state);
        let mut ids: Vec<u64> = forgotten.into_keys().collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn load(&self) -> Load {
        self.state.lock().load
    }
}

impl State {
    fn release(&mut self, hold: Hold) {
        self.load.count -= 1;
        self.load.bytes -= hold.bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::completion::{AwaitingCell, CompletionQueue, deliver, wait};

    thread_local! {
        static AWAITING: AwaitingCell<Outcome> = const { AwaitingCell::new() };
    }

    const MIB: usize = 1 << 20;

    /// Runs `act` with a completer.
    fn with_completer(act: impl FnOnce(&Completer<Outcome>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let asking = async {
                let far = Instant::now() + Duration::from_secs(3600);
                let (completer, _waiting) = wait(&AWAITING, far).unwrap();
                act(&completer);
            };
            tokio::select! {
                biased;
                () = deliver(&AWAITING, CompletionQueue::new()) => {}
                () = asking => {}
            }
        });
    }

    #[test]
    fn proposals_are_bounded_in_number() {
        with_completer(|completer| {
            let pending = PendingProposals::default();
            let max = PROPOSALS.count_max as u64;
            for id in 0..max {
                pending.add(id, completer.clone(), 0).unwrap();
            }
            assert_eq!(pending.add(max, completer.clone(), 0), Err(Full));
            assert!(pending.take(0).is_some());
            pending.add(max, completer.clone(), 0).unwrap();
            assert_eq!(pending.load().refused, 1);
        });
    }

    #[test]
    fn proposals_are_bounded_in_bytes() {
        with_completer(|completer| {
            let pending = PendingProposals::default();
            let fitting = (PROPOSALS.bytes_max / (MIB + PROPOSAL_OVERHEAD_BYTES)) as u64;
            for id in 0..fitting {
                pending.add(id, completer.clone(), MIB).unwrap();
            }
            assert_eq!(pending.add(fitting, completer.clone(), MIB), Err(Full));
            assert!(pending.load().bytes <= PROPOSALS.bytes_max);
            for id in 0..fitting {
                assert!(pending.take(id).is_some());
            }
            assert_eq!(pending.load(), Load { refused: 1, ..Load::default() });
            pending.add(0, completer.clone(), 2 * PROPOSALS.bytes_max).unwrap();
        });
    }

    #[test]
    fn what_is_withdrawn_keeps_its_place_until_it_is_applied_or_forgotten() {
        with_completer(|completer| {
            let pending = PendingProposals::default();
            for id in [5, 3, 4] {
                pending.add(id, completer.clone(), MIB).unwrap();
                pending.withdraw(id);
            }
            pending.withdraw(6);
            assert_eq!(pending.load().count, 3);
            assert!(pending.take(4).is_none(), "applied: nobody waits");
            assert_eq!(pending.load().count, 2);
            assert_eq!(pending.forget_withdrawn(false), [3, 5]);
            assert_eq!(pending.load(), Load::default());
        });
    }

    #[test]
    fn what_went_to_a_predecessor_keeps_no_place_in_the_next_reign() {
        with_completer(|completer| {
            let pending = PendingProposals::default();
            let add = |id| pending.add(id, completer.clone(), MIB).unwrap();
            add(1);
            add(2);
            pending.begin_reign(Term(7));
            add(3);
            pending.withdraw(1);
            pending.withdraw(3);
            assert_eq!(pending.forget_withdrawn(true), [1], "the third is in the own log");
            // Told again of the same reign, and then deposed and elected once more.
            pending.begin_reign(Term(7));
            assert_eq!(pending.forget_withdrawn(true), [0; 0]);
            pending.withdraw(2);
            pending.begin_reign(Term(9));
            assert_eq!(pending.forget_withdrawn(true), [2, 3]);
            assert_eq!(pending.load(), Load::default());
        });
    }
}
