//! Bounds on the calls in progress on all connections, and on the bytes of their unanswered requests.
//!
//! An incomplete request costs its sender nothing, but occupies memory of the member until the sender completes it. The
//! bytes of requests, including headers, are therefore counted as they arrive, across all connections. The bytes of a
//! unary call count until the call is answered, and the bytes of a stream until the current message is complete. A call
//! counts until it and its response have ended.
//!
//! # At the bound
//!
//! A call that would exceed a bound is refused. A single connection cannot use up a bound: once half of the bound is in
//! use, new calls are refused on a connection that uses a sixteenth of the bound. Many connections together can still
//! reach a bound. The last eighth of the calls is reserved for authenticated users, and logins have a bound of their
//! own (`logins`). Clients without credentials can therefore block neither an administrator nor the login of a user.
//! The bytes of requests smaller than [`COUNTED_BYTES_MIN`] are not counted. If no bytes of other requests are counted,
//! a request of any size is admitted: `--max-request-bytes` is then its only limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::logins::{LoginSource, Logins};
use crate::bound::{Bound, Full};

/// Size below which the bytes of a request are not counted. Such requests are covered by the bound on calls.
pub(crate) const COUNTED_BYTES_MIN: u64 = 4 << 10;

/// Divisor for the share of a bound that one connection may use once half of the bound is in use.
const SHARE: u64 = 16;

/// Divisor for the share of the calls that is reserved for authenticated users.
const RESERVED: u64 = 8;

/// The bounds that all clients share.
#[derive(Debug)]
pub struct Calls {
    /// Calls in progress, including logins.
    pub count: Bound,
    /// Logins in progress.
    pub logins: Logins,
    /// Bytes of unanswered requests.
    pub request_bytes: Bound,
}

impl Calls {
    /// Creates the bounds with these maximum values.
    pub fn new(count_max: u64, logins_max: u64, request_bytes_max: u64) -> Self {
        Self {
            count: Bound::new(count_max),
            logins: Logins::new(logins_max),
            request_bytes: Bound::new(request_bytes_max),
        }
    }
}

/// The share of the bounds that one connection uses.
#[derive(Debug)]
pub struct Caller {
    calls: Arc<Calls>,
    under_way: AtomicU64,
    request_bytes: AtomicU64,
    begun: AtomicU64,
}

impl Caller {
    /// Creates the share of a new connection.
    pub const fn new(calls: Arc<Calls>) -> Self {
        Self {
            calls,
            under_way: AtomicU64::new(0),
            request_bytes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
        }
    }

    /// Creates the share for another connection to the same member.
    pub fn another(&self) -> Self {
        Self::new(Arc::clone(&self.calls))
    }

    /// Begins a call. `is_of_user` returns whether an authenticated user makes the call. This function is called only
    /// when no calls are left outside the reserved share.
    pub fn begin(
        this: &Arc<Self>,
        is_of_user: impl FnOnce() -> bool,
    ) -> Result<Arc<CallPermit>, Full> {
        this.begun.fetch_add(1, Ordering::Relaxed);
        let count = &this.calls.count;
        if count.used() >= count.max() - count.max() / RESERVED && !is_of_user() {
            return Err(count.refuse());
        }
        take(count, &this.under_way, 1)?;
        Ok(this.permit(None))
    }

    /// Begins a login. A login is refused only by the bounds on logins, in total and for each source, regardless of the
    /// number of other calls.
    pub fn begin_login(this: &Arc<Self>, source: LoginSource) -> Result<Arc<CallPermit>, Full> {
        this.begun.fetch_add(1, Ordering::Relaxed);
        this.calls.logins.begin(source)?;
        this.calls.count.count_regardless(1);
        this.under_way.fetch_add(1, Ordering::Relaxed);
        Ok(this.permit(Some(source)))
    }

    fn permit(self: &Arc<Self>, login: Option<LoginSource>) -> Arc<CallPermit> {
        let (caller, request_bytes) = (Arc::clone(self), AtomicU64::new(0));
        Arc::new(CallPermit { caller, login, request_bytes })
    }

    /// Returns the number of calls begun so far, and the number in progress.
    pub fn activity(&self) -> (u64, u64) {
        (self.begun.load(Ordering::Relaxed), self.under_way.load(Ordering::Relaxed))
    }
}

/// The permit of a call. It is returned when the call and its response have ended.
#[derive(Debug)]
pub struct CallPermit {
    caller: Arc<Caller>,
    /// The source of the login, if the call is a login.
    login: Option<LoginSource>,
    request_bytes: AtomicU64,
}

impl CallPermit {
    /// Sets the number of bytes of the request that have arrived. Fails if the bound is reached.
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

    /// Returns whether bytes of the request are counted.
    pub fn holds_bytes(&self) -> bool {
        self.request_bytes.load(Ordering::Relaxed) > 0
    }

    /// Stops counting the bytes of the request, because its memory is freed or counted elsewhere.
    pub fn release(&self) {
        let held = self.request_bytes.load(Ordering::Relaxed);
        if held > 0 {
            self.request_bytes.store(0, Ordering::Relaxed);
            self.caller.request_bytes.fetch_sub(held, Ordering::Relaxed);
            self.caller.calls.request_bytes.give_back(held);
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.release();
        self.caller.under_way.fetch_sub(1, Ordering::Relaxed);
        self.caller.calls.count.give_back(1);
        if let Some(source) = self.login {
            self.caller.calls.logins.end(source);
        }
    }
}

/// Takes an amount from a bound for a connection that already uses the amount `own` of this bound.
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

    fn begin(caller: &Arc<Caller>) -> Result<Arc<CallPermit>, Full> {
        Caller::begin(caller, || true)
    }

    #[test]
    fn authenticated_users_and_logins_are_admitted_while_other_calls_are_refused() {
        let calls = Arc::new(Calls::new(64, 2, KIB));
        let connection = || Arc::new(Caller::new(Arc::clone(&calls)));
        let mut permits = Vec::new();
        while let Ok(permit) = Caller::begin(&connection(), || false) {
            permits.push(permit);
        }
        assert_eq!((permits.len(), calls.count.refused()), (56, 1));
        while let Ok(permit) = begin(&connection()) {
            permits.push(permit);
        }
        assert_eq!(permits.len(), 64);
        let login = Caller::begin_login(&connection(), LoginSource::default()).unwrap();
        assert_eq!((calls.count.used(), calls.logins.used()), (65, 1));
        drop((permits, login));
        assert_eq!((calls.count.used(), calls.logins.used()), (0, 0));
    }

    #[test]
    fn calls_are_refused_at_the_bounds_on_calls_and_bytes_until_permits_are_released() {
        let calls = Arc::new(Calls::new(16, 8, 64 * KIB));
        let callers: Vec<_> = (0..16).map(|_| Arc::new(Caller::new(Arc::clone(&calls)))).collect();
        let permits: Vec<_> = callers.iter().map(|one| begin(one).unwrap()).collect();
        assert_eq!(begin(&Arc::new(callers[0].another())).unwrap_err(), Full);
        for permit in &permits {
            permit.hold(COUNTED_BYTES_MIN - 1).unwrap();
            assert_eq!(
                permit.request_bytes.load(Ordering::Relaxed),
                0,
                "small requests are not counted"
            );
            permit.hold(4 * KIB).unwrap();
        }
        assert_eq!(calls.request_bytes.used(), 64 * KIB);
        assert_eq!(permits[0].hold(5 * KIB), Err(Full));
        permits[0].hold(4 * KIB).unwrap();
        permits[1].release();
        permits[0].release();
        permits[0].hold(5 * KIB).unwrap();
        assert_eq!(callers[0].activity(), (1, 1));
        drop(permits);
        assert_eq!((calls.count.used(), calls.request_bytes.used()), (0, 0));
        assert_eq!((calls.count.refused(), calls.request_bytes.refused()), (1, 1));
        assert_eq!(callers[0].activity(), (1, 0));
    }

    #[test]
    fn the_only_request_in_progress_may_exceed_the_byte_limit() {
        let calls = Arc::new(Calls::new(16, 8, 64 * KIB));
        let caller = Arc::new(Caller::new(Arc::clone(&calls)));
        let (large, next) = (begin(&caller).unwrap(), begin(&caller).unwrap());
        for arrived in 1..=100 {
            large.hold(arrived * KIB).unwrap();
        }
        assert_eq!(next.hold(COUNTED_BYTES_MIN), Err(Full));
        next.hold(COUNTED_BYTES_MIN - 1).unwrap();
        large.hold(200 * KIB).unwrap();
        drop(large);
        next.hold(COUNTED_BYTES_MIN).unwrap();
        let large = begin(&caller).unwrap();
        large.hold(63 * KIB).unwrap();
        assert_eq!(large.hold(64 * KIB), Err(Full), "another request is in progress");
        drop((large, next));
        assert_eq!(calls.request_bytes.used(), 0);
    }

    #[test]
    fn further_calls_are_refused_first_on_connections_with_many_calls() {
        let calls = Arc::new(Calls::new(64, 8, 1 << 20));
        let greedy = Arc::new(Caller::new(Arc::clone(&calls)));
        let modest = Arc::new(greedy.another());
        let mut permits = Vec::new();
        while let Ok(permit) = begin(&greedy) {
            permits.push(permit);
        }
        assert_eq!(
            permits.len(),
            32,
            "a connection may begin calls until half of the bound is in use"
        );
        let others: Vec<_> = std::iter::from_fn(|| begin(&modest).ok()).collect();
        assert_eq!(
            others.len(),
            4,
            "beyond half of the bound, a connection may have a sixteenth of the calls"
        );
        permits[0].hold(512 * KIB).unwrap();
        assert_eq!(permits[1].hold(4 * KIB), Err(Full));
        others[0].hold(64 * KIB).unwrap();
        assert_eq!(others[0].hold(65 * KIB), Err(Full));
        drop(permits);
        others[0].hold(65 * KIB).unwrap();
        begin(&modest).unwrap();
    }
}
