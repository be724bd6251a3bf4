//! Calls under way, on all connections, and the bytes of requests that are not answered yet.
//!
//! Half a request costs its sender nothing and the member its bytes, for as long as the sender likes. So they are
//! counted as they come, with what the head brought, over all connections: of a unary call until its answer is
//! there, of a stream until a message is whole. A call counts until nothing of it is left, its answer included.
//!
//! # At the bound
//!
//! The call is refused. So that one client does not take all: from half of a bound on, nobody gets more whose
//! connection holds a sixteenth of it. Many connections together can still take all, and then whoever comes next is
//! refused until they let go; what is below [`COUNTED_BYTES_MIN`] goes on. So does a request that has all that is
//! taken: how large one may be is for `--max-request-bytes` to say, and there is nobody whom it could be too much for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bound::{Bound, Full};

/// Requests of less cost no more than their call, and are not counted.
pub(crate) const COUNTED_BYTES_MIN: u64 = 4 << 10;

/// What one connection may hold of a bound that is half taken, as its divisor.
const SHARE: u64 = 16;

/// The bounds that all clients share.
#[derive(Debug)]
pub struct Calls {
    /// Calls under way.
    pub count: Bound,
    /// Bytes of requests that are not answered.
    pub request_bytes: Bound,
}

impl Calls {
    /// Bounds of this many calls, and of this many bytes.
    pub fn new(count_max: u64, request_bytes_max: u64) -> Self {
        Self { count: Bound::new(count_max), request_bytes: Bound::new(request_bytes_max) }
    }
}

/// One connection's part of them.
#[derive(Debug)]
pub struct Caller {
    calls: Arc<Calls>,
    under_way: AtomicU64,
    request_bytes: AtomicU64,
    begun: AtomicU64,
}

impl Caller {
    /// A connection that holds nothing yet.
    pub const fn new(calls: Arc<Calls>) -> Self {
        Self {
            calls,
            under_way: AtomicU64::new(0),
            request_bytes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
        }
    }

    /// Another connection of the same member's.
    pub fn another(&self) -> Self {
        Self::new(Arc::clone(&self.calls))
    }

    /// Begins a call.
    pub fn begin(this: &Arc<Self>) -> Result<Arc<CallRoom>, Full> {
        this.begun.fetch_add(1, Ordering::Relaxed);
        take(&this.calls.count, &this.under_way, 1)?;
        Ok(Arc::new(CallRoom { caller: Arc::clone(this), request_bytes: AtomicU64::new(0) }))
    }

    /// How many calls were begun, and how many of them are under way.
    pub fn activity(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.under_way.load(Ordering::Relaxed))
    }
}

/// A call's place, given back when nothing of it is left.
#[derive(Debug)]
pub struct CallRoom {
    caller: Arc<Caller>,
    request_bytes: AtomicU64,
}

impl CallRoom {
    /// So many bytes of its request have come in all, unless there is no room for them.
    pub fn hold(&self, bytes: u64) -> Result<(), Full> {
        let held = self.request_bytes.load(Ordering::Relaxed);
        if bytes < COUNTED_BYTES_MIN || bytes <= held {
            return Ok(());
        }
        let more = bytes - held;
        let bound = &self.caller.calls.request_bytes;
        let is_alone = bound.used() == held;
        if is_alone {
            bound.count_regardless(more);
            self.caller.request_bytes.fetch_add(more, Ordering::Relaxed);
        } else {
            take(bound, &self.caller.request_bytes, more)?;
        }
        self.request_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Whether bytes of its request are counted.
    pub fn holds_bytes(&self) -> bool {
        self.request_bytes.load(Ordering::Relaxed) > 0
    }

    /// Nothing of the request is left, or its owner counts it elsewhere.
    pub fn release(&self) {
        let held = self.request_bytes.load(Ordering::Relaxed);
        if held > 0 {
            self.request_bytes.store(0, Ordering::Relaxed);
            self.caller.request_bytes.fetch_sub(held, Ordering::Relaxed);
            self.caller.calls.request_bytes.give_back(held);
        }
    }
}

impl Drop for CallRoom {
    fn drop(&mut self) {
        self.release();
        self.caller.under_way.fetch_sub(1, Ordering::Relaxed);
        self.caller.calls.count.give_back(1);
    }
}

/// Takes from a bound for a connection that holds `own` of it.
fn take(bound: &Bound, own: &AtomicU64, amount: u64) -> Result<(), Full> {
    if bound.used() >= bound.max() / 2 && own.load(Ordering::Relaxed) >= bound.max() / SHARE {
        return Err(bound.refuse());
    }
    bound.count(amount)?;
    own.fetch_add(amount, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn calls_and_bytes_are_refused_at_their_bounds_and_come_back() {
        let calls = Arc::new(Calls::new(16, 64 * KIB));
        let callers: Vec<_> = (0..16).map(|_| Arc::new(Caller::new(Arc::clone(&calls)))).collect();
        let rooms: Vec<_> = callers.iter().map(|one| Caller::begin(one).unwrap()).collect();
        assert_eq!(Caller::begin(&Arc::new(callers[0].another())).unwrap_err(), Full);
        for room in &rooms {
            room.hold(COUNTED_BYTES_MIN - 1).unwrap();
            assert_eq!(room.request_bytes.load(Ordering::Relaxed), 0, "too few to count");
            room.hold(4 * KIB).unwrap();
        }
        assert_eq!(calls.request_bytes.used(), 64 * KIB);
        assert_eq!(rooms[0].hold(5 * KIB), Err(Full));
        rooms[0].hold(4 * KIB).unwrap();
        rooms[1].release();
        rooms[0].release();
        rooms[0].hold(5 * KIB).unwrap();
        assert_eq!(callers[0].activity(), (1, 1));
        drop(rooms);
        assert_eq!((calls.count.used(), calls.request_bytes.used()), (0, 0));
        assert_eq!((calls.count.refused(), calls.request_bytes.refused()), (1, 1));
        assert_eq!(callers[0].activity(), (1, 0));
    }

    #[test]
    fn a_request_that_is_alone_may_be_larger_than_the_bound() {
        let calls = Arc::new(Calls::new(16, 64 * KIB));
        let caller = Arc::new(Caller::new(Arc::clone(&calls)));
        let (large, next) = (Caller::begin(&caller).unwrap(), Caller::begin(&caller).unwrap());
        for arrived in 1..=100 {
            large.hold(arrived * KIB).unwrap();
        }
        assert_eq!(next.hold(COUNTED_BYTES_MIN), Err(Full));
        next.hold(COUNTED_BYTES_MIN - 1).unwrap();
        large.hold(200 * KIB).unwrap();
        drop(large);
        next.hold(COUNTED_BYTES_MIN).unwrap();
        let large = Caller::begin(&caller).unwrap();
        large.hold(63 * KIB).unwrap();
        assert_eq!(large.hold(64 * KIB), Err(Full), "not alone");
        drop((large, next));
        assert_eq!(calls.request_bytes.used(), 0);
    }

    #[test]
    fn who_holds_much_is_refused_first() {
        let calls = Arc::new(Calls::new(64, 1 << 20));
        let greedy = Arc::new(Caller::new(Arc::clone(&calls)));
        let modest = Arc::new(greedy.another());
        let mut rooms = Vec::new();
        while let Ok(room) = Caller::begin(&greedy) {
            rooms.push(room);
        }
        assert_eq!(rooms.len(), 32, "half, which nobody else wants yet");
        let others: Vec<_> = std::iter::from_fn(|| Caller::begin(&modest).ok()).collect();
        assert_eq!(others.len(), 4, "a sixteenth");
        rooms[0].hold(512 * KIB).unwrap();
        assert_eq!(rooms[1].hold(4 * KIB), Err(Full));
        others[0].hold(64 * KIB).unwrap();
        assert_eq!(others[0].hold(65 * KIB), Err(Full));
        drop(rooms);
        others[0].hold(65 * KIB).unwrap();
        Caller::begin(&modest).unwrap();
    }
}
