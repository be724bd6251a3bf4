//! Proposals in progress, shared by the threads: connection runtimes add them, core threads remove them.
//!
//! # Bound
//!
//! [`PROPOSALS`] limits the count and the bytes. Further proposals are refused.
//!
//! # Not here
//!
//! When proposals are withdrawn and forgotten: [`quorate_core::Pending`].

use parking_lot::Mutex;
pub use quorate_core::Load;
use quorate_core::Pending;
use quorate_node::Event;
use quorate_raft::Term;

use crate::threads::completion::Completer;
use crate::threads::outcome::Outcome;
use quorate_requests::bound::Full;

/// Limit on the proposals that this member has accepted but not yet applied.
pub(crate) const PROPOSALS: ProposalLimit =
    ProposalLimit { count_max: quorate_node::limits::WAITING_PROPOSALS_MAX, bytes_max: 512 << 20 };

/// Maximum count and maximum total bytes of pending proposals. A single proposal may have any size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProposalLimit {
    pub(crate) count_max: usize,
    pub(crate) bytes_max: usize,
}

/// The proposals in progress, with the completers of their requests.
#[derive(Debug)]
pub(crate) struct PendingProposals {
    pending: Mutex<Pending<Completer<Outcome>>>,
}

impl Default for PendingProposals {
    fn default() -> Self {
        let pending = Pending::new(PROPOSALS.count_max, PROPOSALS.bytes_max);
        Self { pending: Mutex::new(pending) }
    }
}

impl PendingProposals {
    /// Adds a proposal of this many bytes. Returns how many proposals are in progress, including this one.
    pub(crate) fn add(
        &self,
        request_id: u64,
        completer: Completer<Outcome>,
        bytes: usize,
    ) -> Result<usize, Full> {
        let mut pending = self.pending.lock();
        if pending.add(request_id, completer, bytes) { Ok(pending.load().count) } else { Err(Full) }
    }

    /// Adds a membership change of this many bytes.
    pub(crate) fn add_change(
        &self,
        request_id: u64,
        completer: Completer<Outcome>,
        bytes: usize,
    ) -> Result<(), Full> {
        let is_added = self.pending.lock().add_change(request_id, completer, bytes);
        is_added.then_some(()).ok_or(Full)
    }

    /// Removes a proposal that has ended; see [`Pending::take`].
    pub(crate) fn take(&self, request_id: u64) -> Option<Completer<Outcome>> {
        self.pending.lock().take(request_id)
    }

    /// Withdraws a proposal whose client no longer waits, if it is still in progress. Returns an event for consensus if
    /// the proposal is a membership change.
    #[must_use]
    pub(crate) fn withdraw(&self, request_id: u64) -> Option<Event> {
        self.pending.lock().withdraw(request_id)
    }

    /// Records that this member leads in this term.
    pub(crate) fn begin_term(&self, term: Term) {
        self.pending.lock().begin_term(term);
    }

    /// Frees the space of withdrawn proposals, and returns their ids; see [`Pending::forget_withdrawn`].
    pub(crate) fn forget_withdrawn(&self, leads: bool) -> Vec<u64> {
        self.pending.lock().forget_withdrawn(leads)
    }

    pub(crate) fn load(&self) -> Load {
        self.pending.lock().load()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::threads::completion::{AwaitingCell, deliver, wait};

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
                () = deliver(&AWAITING) => {}
                () = asking => {}
            }
        });
    }

    #[test]
    fn the_number_of_pending_proposals_is_bounded() {
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
    fn the_total_size_of_pending_proposals_is_bounded() {
        with_completer(|completer| {
            let pending = PendingProposals::default();
            let fitting = (PROPOSALS.bytes_max / (MIB + 1024)) as u64;
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
    fn a_withdrawn_proposal_counts_towards_the_limit_until_it_is_applied_or_forgotten() {
        with_completer(|completer| {
            let pending = PendingProposals::default();
            for id in [5, 3, 4] {
                pending.add(id, completer.clone(), MIB).unwrap();
                assert!(pending.withdraw(id).is_none());
            }
            assert!(pending.withdraw(6).is_none());
            assert_eq!(pending.load().count, 3);
            assert!(
                pending.take(4).is_none(),
                "the proposal was applied, so no request is waiting for it"
            );
            assert_eq!(pending.load().count, 2);
            assert_eq!(pending.forget_withdrawn(false), [3, 5]);
            assert_eq!(pending.load(), Load::default());
        });
    }

    #[test]
    fn withdrawn_proposals_of_earlier_terms_are_forgotten() {
        with_completer(|completer| {
            let pending = PendingProposals::default();
            let add = |id| pending.add(id, completer.clone(), MIB).unwrap();
            add(1);
            add(2);
            pending.begin_term(Term(7));
            add(3);
            assert!(pending.withdraw(1).is_none() && pending.withdraw(3).is_none());
            assert_eq!(
                pending.forget_withdrawn(true),
                [1],
                "the third proposal is in this member's log"
            );
            // If the same term is reported twice, the second report has no effect. A report of a later term means that
            // the member was deposed and then elected again.
            pending.begin_term(Term(7));
            assert_eq!(pending.forget_withdrawn(true), [0; 0]);
            assert!(pending.withdraw(2).is_none());
            pending.begin_term(Term(9));
            assert_eq!(pending.forget_withdrawn(true), [2, 3]);
            assert_eq!(pending.load(), Load::default());
        });
    }
}
