//! Addresses of requests that wait in a core thread's list.
//!
//! A caller that gives up cannot take its address back out of the list, so those whose callers have gone are
//! swept, whenever the list has doubled since the last time. It never holds more than twice as many addresses as
//! somebody waits at, or [`SWEEP_MIN`].

use crate::answer::Answer;
use crate::mailbox::Address;

/// Shorter lists are not swept.
const SWEEP_MIN: usize = 1024;

/// When a list is to be swept.
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

    /// So many are left after a sweep.
    pub(crate) fn set_after(&mut self, len: usize) {
        self.0 = (2 * len).max(SWEEP_MIN);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Waitlist {
    addresses: Vec<Address<Answer>>,
    mark: SweepMark,
}

impl Waitlist {
    pub(crate) fn push(&mut self, address: Address<Answer>) {
        if self.mark.is_reached(self.addresses.len()) {
            self.addresses.retain(Address::is_awaited);
            self.mark.set_after(self.addresses.len());
        }
        self.addresses.push(address);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Address<Answer>> {
        self.mark = SweepMark::default();
        self.addresses.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::mailbox::{DeskCell, Mailbox, run_postman, wait};

    thread_local! {
        static DESK: DeskCell<Answer> = const { DeskCell::new() };
    }

    #[tokio::test]
    async fn callers_that_have_gone_do_not_pile_up() {
        let far = Instant::now() + Duration::from_secs(3600);
        let callers = async {
            let mut list = Waitlist::default();
            let (address, staying) = wait(&DESK, far).unwrap();
            list.push(address);
            for _ in 0..100 * SWEEP_MIN {
                let (address, gone) = wait(&DESK, far).unwrap();
                drop(gone);
                list.push(address);
                assert!(list.addresses.len() <= SWEEP_MIN);
            }
            let all: Vec<_> = (0..3 * SWEEP_MIN).map(|_| wait(&DESK, far).unwrap()).collect();
            let (addresses, waiting): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            addresses.into_iter().for_each(|address| list.push(address));
            for address in list.drain() {
                address.send(Answer::Ready);
            }
            assert!(list.is_empty());
            for one in waiting.into_iter().chain([staying]) {
                assert!(one.await.is_some(), "who stays is answered");
            }
        };
        tokio::select! {
            biased;
            () = run_postman(&DESK, Mailbox::new()) => {}
            () = callers => {}
        }
    }
}
