//! Lists of waiting requests in the core threads.
//!
//! A caller that gives up cannot remove its completer from the list. Abandoned completers are therefore swept whenever
//! the list has doubled since the last sweep. The list never holds more than twice as many completers as callers were
//! waiting at the last sweep, or [`SWEEP_MIN`] if that is greater.

use crate::threads::completion::Completer;
use crate::threads::outcome::Outcome;

/// Length below which a list is not swept.
const SWEEP_MIN: usize = 1024;

/// The length at which a list is swept next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SweepMark(usize);

impl Default for SweepMark {
    fn default() -> Self {
        Self(SWEEP_MIN)
    }
}

impl SweepMark {
    pub(crate) const fn is_reached(self, len: usize) -> bool {
        len >= self.0
    }

    /// Sets the length at which the list is swept next, after a sweep that left `len` completers in it.
    pub(crate) fn set_after(&mut self, len: usize) {
        self.0 = (2 * len).max(SWEEP_MIN);
    }
}

/// A list of completers that is swept as it grows.
#[derive(Debug, Default)]
pub(crate) struct Waitlist {
    completers: Vec<Completer<Outcome>>,
    mark: SweepMark,
}

impl Waitlist {
    pub(crate) fn push(&mut self, completer: Completer<Outcome>) {
        if self.mark.is_reached(self.completers.len()) {
            self.completers.retain(Completer::is_awaited);
            self.mark.set_after(self.completers.len());
        }
        self.completers.push(completer);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.completers.is_empty()
    }

    /// Removes and returns all completers.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Completer<Outcome>> {
        self.mark = SweepMark::default();
        self.completers.drain(..)
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

    #[tokio::test]
    async fn cancelled_waits_do_not_accumulate() {
        let far = Instant::now() + Duration::from_secs(3600);
        let callers = async {
            let mut list = Waitlist::default();
            let (completer, staying) = wait(&AWAITING, far).unwrap();
            list.push(completer);
            for _ in 0..100 * SWEEP_MIN {
                let (completer, gone) = wait(&AWAITING, far).unwrap();
                drop(gone);
                list.push(completer);
                assert!(list.completers.len() <= SWEEP_MIN);
            }
            let all: Vec<_> = (0..3 * SWEEP_MIN).map(|_| wait(&AWAITING, far).unwrap()).collect();
            let (completers, waiting): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            completers.into_iter().for_each(|completer| list.push(completer));
            for completer in list.drain() {
                completer.send(Outcome::Ready);
            }
            assert!(list.is_empty());
            for one in waiting.into_iter().chain([staying]) {
                assert!(one.await.is_some(), "a caller that is still waiting is notified");
            }
        };
        tokio::select! {
            biased;
            () = deliver(&AWAITING) => {}
            () = callers => {}
        }
    }
}
