//! A limit on a count or on bytes, shared by many callers.
//!
//! Taking a permit is one atomic exchange and returning it is one atomic subtraction. Neither takes a lock. Callers may
//! also wait for a permit. All waiting callers are woken and try again when a permit is returned, so large requests do
//! not delay small ones.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// A limit on a count or on bytes, and the amount in use.
#[derive(Debug)]
pub struct Bound {
    max: u64,
    used: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicUsize,
    freed: Notify,
}

/// The bound is reached, so no permit was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Bound {
    /// Creates a bound with this maximum. Nothing is in use yet.
    pub fn new(max: u64) -> Self {
        Self {
            max,
            used: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
        }
    }

    /// Takes a permit, unless the bound is reached. The last permit may exceed the bound, because otherwise an amount
    /// larger than the bound could never receive a permit.
    pub fn take(&self, amount: u64) -> Result<Permit<&Self>, Full> {
        self.count(amount)?;
        Ok(Permit { bound: self, amount })
    }

    /// Like [`Bound::take`], for a permit that outlives the borrow.
    pub fn take_owned<B: Deref<Target = Self> + Clone>(
        this: &B,
        amount: u64,
    ) -> Result<Permit<B>, Full> {
        this.count(amount)?;
        Ok(Permit { bound: this.clone(), amount })
    }

    /// Like [`Bound::take_owned`], but a failure is not counted as a refusal.
    pub fn take_now<B: Deref<Target = Self> + Clone>(this: &B, amount: u64) -> Option<Permit<B>> {
        this.fits(amount).then(|| Permit { bound: this.clone(), amount })
    }

    /// Takes a permit for an amount that is already in use, even if the bound is reached.
    pub fn take_regardless<B: Deref<Target = Self> + Clone>(this: &B, amount: u64) -> Permit<B> {
        this.count_regardless(amount);
        Permit { bound: this.clone(), amount }
    }

    /// Takes a permit. If the bound is reached, waits for at most `timeout` until a permit is returned.
    pub async fn take_within<B: Deref<Target = Self> + Clone>(
        this: &B,
        amount: u64,
        timeout: Duration,
    ) -> Result<Permit<B>, Full> {
        let _waiting = Waiting::begin(this);
        let taken = tokio::time::timeout(timeout, async {
            loop {
                let freed = this.freed.notified();
                let mut freed = std::pin::pin!(freed);
                // The caller registers before the attempt, so that it cannot miss a permit that is returned after the
                // attempt.
                freed.as_mut().enable();
                if this.fits(amount) {
                    return Permit { bound: this.clone(), amount };
                }
                freed.await;
            }
        });
        taken.await.map_err(|_| this.refuse())
    }

    /// Returns the maximum total amount of all permits.
    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    /// Returns the amount in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether more than three quarters of the maximum are in use.
    pub fn is_nearly_full(&self) -> bool {
        self.used() > self.max - self.max / 4
    }

    /// Returns the number of refused attempts.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, amount: u64) -> Result<(), Full> {
        if self.fits(amount) { Ok(()) } else { Err(self.refuse()) }
    }

    pub(crate) fn count_regardless(&self, amount: u64) {
        self.used.fetch_add(amount, Ordering::SeqCst);
    }

    /// Takes the amount if the bound is not reached. A failed attempt never changes the count, not even briefly: a
    /// brief change could make the attempt of a woken caller fail, and that caller would not be woken again.
    fn fits(&self, amount: u64) -> bool {
        let take = |used| (used < self.max).then(|| used + amount);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    #[cold]
    pub(crate) fn refuse(&self) -> Full {
        self.refused.fetch_add(1, Ordering::Relaxed);
        Full
    }

    pub(crate) fn give_back(&self, amount: u64) {
        self.used.fetch_sub(amount, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }
}

/// Counts a caller as waiting for a permit until this value is dropped.
struct Waiting<'a>(&'a Bound);

impl<'a> Waiting<'a> {
    fn begin(bound: &'a Bound) -> Self {
        bound.waiting.fetch_add(1, Ordering::SeqCst);
        Self(bound)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A permit for a part of a bound. Dropping the permit returns it.
#[derive(Debug)]
pub struct Permit<B: Deref<Target = Bound>> {
    bound: B,
    amount: u64,
}

impl<B: Deref<Target = Bound>> Permit<B> {
    /// Returns the bound of which this permit is a part.
    pub const fn bound(&self) -> &B {
        &self.bound
    }

    /// Adds this amount to the permit, unless the bound is reached. Returns whether there was room. A failure is not
    /// counted as a refusal.
    pub fn grow(&mut self, step: u64) -> bool {
        let fits = self.bound.fits(step);
        if fits {
            self.amount += step;
        }
        fits
    }

    /// Changes the amount of the permit once the real size is known.
    pub fn resize(&mut self, amount: u64) {
        self.bound.used.fetch_add(amount, Ordering::SeqCst);
        self.bound.give_back(std::mem::replace(&mut self.amount, amount));
    }
}

impl<B: Deref<Target = Bound>> Drop for Permit<B> {
    fn drop(&mut self) {
        self.bound.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A timeout that never expires during a test.
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn permits_are_refused_at_the_bound_and_freed_when_dropped() {
        let bound = Bound::new(2);
        let first = bound.take(1).unwrap();
        let second = bound.take(1).unwrap();
        assert_eq!(bound.take(1).unwrap_err(), Full);
        assert_eq!((bound.used(), bound.refused()), (2, 1));
        drop(first);
        let third = bound.take(1).unwrap();
        drop((second, third));
        assert_eq!(bound.used(), 0);
    }

    #[test]
    fn the_last_permit_may_exceed_the_bound() {
        let bound = Arc::new(Bound::new(10));
        let small = Bound::take_owned(&bound, 9).unwrap();
        let mut large = Bound::take_owned(&bound, 1_000).unwrap();
        assert!(bound.take(1).is_err());
        large.resize(1);
        assert!(bound.take(0).is_err(), "the bound is reached");
        drop(small);
        assert_eq!(bound.used(), 1);
        drop(Bound::take_regardless(&bound, 50));
        assert_eq!(bound.used(), 1);
    }

    #[test]
    fn a_permit_grows_until_the_bound_is_reached() {
        let bound = Bound::new(10);
        let mut permit = bound.take(4).unwrap();
        assert!(permit.grow(5) && permit.grow(20), "the last step may exceed the bound");
        assert!(!permit.grow(1));
        assert_eq!((bound.used(), bound.refused()), (29, 0));
        drop(permit);
        assert_eq!(bound.used(), 0);
    }

    #[test]
    fn a_refusal_does_not_change_the_used_amount() {
        let bound = Bound::new(1);
        let _taken = bound.take(1).unwrap();
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| (0..100_000).all(|_| bound.take(1_000).is_err()));
            while !refused.is_finished() {
                assert_eq!(bound.used(), 1);
            }
            assert!(refused.join().unwrap());
        });
        assert_eq!((bound.used(), bound.refused()), (1, 100_000));
    }

    #[tokio::test]
    async fn a_waiter_receives_a_released_permit() {
        let bound = Arc::new(Bound::new(1));
        let first = Bound::take_owned(&bound, 5).unwrap();
        assert!(Bound::take_within(&bound, 1, Duration::ZERO).await.is_err());
        assert_eq!(bound.refused(), 1);
        let (next, ()) = tokio::join!(Bound::take_within(&bound, 1, LONG), async { drop(first) });
        assert_eq!((next.is_ok(), bound.used()), (true, 1));
        drop(next);
        assert_eq!((bound.used(), bound.waiting.load(Ordering::SeqCst)), (0, 0));
    }
}
