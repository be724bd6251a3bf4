//! The half of the lessor that every thread can use: lifetimes, renewals, lookups and the expiry
//! scan.
//!
//! There is one lock, which most calls hold only while they look up and update one lease. A scan releases it after
//! every [`SCAN_STEP`] entries, so that a renewal waits only for microseconds even when a hundred thousand leases
//! expire at once. Only a few calls visit every lease under the lock: [`Leases::promote`] and [`Leases::demote`], when
//! leadership changes; `load`, when a snapshot replaces the leases; and [`Leases::list`].
#![expect(clippy::disallowed_types, reason = "no result depends on the order of iteration")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::deadlines::{Deadlines, Slot};
use super::{LeaseRecord, LessorOptions};
use crate::units::{LeaseId, Millis};

/// The number of queue entries that a scan visits before it releases the lock for other threads.
const SCAN_STEP: usize = 512;

/// A new primary spreads the expiries of the leases only if there are at least this many leases.
const PILE_UP_COUNT: usize = 1000;

/// The maximum number of expiries in one second after they are spread. More leases than this can be revoked in a
/// second, so some capacity is left for leases that expire later.
const EXPIRIES_PER_SECOND: usize = 750;

/// A handle to the leases, for any thread.
#[derive(Clone, Debug)]
pub struct Leases {
    shared: Arc<Mutex<Shared>>,
    options: LessorOptions,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is renewed, and the reply contains its granted lifetime.
    Renewed {
        /// Granted lifetime, in seconds.
        ttl_secs: i64,
    },
    /// No lease has this id.
    NotFound,
    /// This member is not the primary, so the caller forwards the renewal to the leader.
    NotPrimary,
    /// The lease has expired and its revocation is in progress. The caller waits with
    /// [`Leases::poll_gone`] and then renews again, which reports the final outcome.
    Expired,
    /// The lease has a checkpoint. The caller proposes a remaining lifetime of 0, which removes the checkpoint, and
    /// then renews again.
    CheckpointFirst,
}

/// The lifetime of one lease, as returned by a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// Granted lifetime, in seconds.
    pub granted_secs: i64,
    /// Remaining lifetime, in seconds, truncated toward zero. It may be 0 or negative shortly before the lease is
    /// removed. `None` if this member is not the primary, because then its clocks are stopped.
    pub remaining_secs: Option<i64>,
}

/// A remaining lifetime that the primary proposes to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The lease.
    pub id: LeaseId,
    /// Remaining lifetime, in seconds, rounded up.
    pub remaining_secs: i64,
}

#[derive(Debug, Default)]
struct Shared {
    /// The term in which this member is leader; `None` while the clocks are stopped.
    term: Option<u64>,
    leases: HashMap<LeaseId, Lease>,
    expiries: Deadlines,
    checkpoints: Deadlines,
    /// The wakers of the tasks that wait until an expired lease is removed.
    waiters: BTreeMap<LeaseId, Vec<Waker>>,
}

#[derive(Debug)]
struct Lease {
    ttl_secs: i64,
    remaining_secs: i64,
    /// Expiry time of the lease; `None` while the clocks are stopped.
    expiry: Option<Millis>,
    expiry_slot: Slot,
    /// Whether [`Leases::expired`] has returned the lease since the clocks were started.
    has_expired: bool,
    checkpoint_slot: Slot,
    keys: BTreeSet<Arc<[u8]>>,
}

impl Leases {
    pub(super) fn new(options: LessorOptions) -> Self {
        Self { shared: Arc::default(), options }
    }

    /// Starts the clocks, after this member has become leader in `term` and has applied every entry of earlier terms.
    /// From `now`, every lease has its checkpointed or full lifetime, plus `extend_millis` for clients that could not
    /// reach a leader in the meantime. Expiries that would coincide are spread over time.
    pub fn promote(&self, term: u64, extend_millis: u64, now: Millis) {
        let mut shared = self.shared.lock();
        // A member calls this method for the empty entry that begins its term. A membership change that consensus
        // refuses also leaves an empty entry, so the call may be repeated. A repeated call must not restart the clocks.
        if shared.term == Some(term) {
            return;
        }
        let before = shared.term.replace(term);
        assert!(
            before.is_none_or(|before| before < term),
            "terms increase: otherwise the clocks of an older term would expire leases that a newer leader renewed"
        );
        let Shared { leases, expiries, checkpoints, .. } = &mut *shared;
        expiries.clear();
        checkpoints.clear();
        let mut order: Vec<(Millis, LeaseId)> = leases
            .iter()
            .map(|(id, lease)| (now.plus_secs(lease.lifetime_secs()).plus(extend_millis), *id))
            .collect();
        order.sort_unstable();
        spread(&mut order);
        for (expiry, id) in order {
            let lease = leases.get_mut(&id).expect("the ids were collected from this map");
            lease.expiry = Some(expiry);
            lease.expiry_slot = Slot::default();
            lease.has_expired = false;
            lease.checkpoint_slot = Slot::default();
            expiries.schedule(&mut lease.expiry_slot, id, expiry);
            self.queue_checkpoint(checkpoints, lease, id, now);
        }
    }

    /// Stops the clocks, because this member is no longer the leader. Waiting renewals are woken,
    /// and then return [`Renewal::NotPrimary`].
    pub fn demote(&self) {
        let waiters = {
            let mut shared = self.shared.lock();
            shared.stop_clocks();
            std::mem::take(&mut shared.waiters)
        };
        wake(waiters.into_values().flatten());
    }

    /// Returns the term in which this member's clocks run, or `None` while they are stopped.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.shared.lock().term
    }

    /// Restarts the lifetime of a lease, as measured by the clock of the leader of `term`.
    #[must_use]
    pub fn renew(&self, id: LeaseId, term: u64, now: Millis) -> Renewal {
        let mut shared = self.shared.lock();
        if shared.term != Some(term) {
            return Renewal::NotPrimary;
        }
        let Shared { leases, expiries, .. } = &mut *shared;
        let Some(lease) = leases.get_mut(&id) else { return Renewal::NotFound };
        // The caller may have read the clock before the expiry scan that has returned this lease.
        if lease.has_expired || lease.expiry.is_some_and(|expiry| expiry <= now) {
            return Renewal::Expired;
        }
        if self.options.checkpoints && lease.remaining_secs > 0 {
            return Renewal::CheckpointFirst;
        }
        let expiry = now.plus_secs(lease.lifetime_secs());
        lease.expiry = Some(expiry);
        expiries.schedule(&mut lease.expiry_slot, id, expiry);
        Renewal::Renewed { ttl_secs: lease.ttl_secs }
    }

    /// Waits until the lease is removed or this member is no longer the primary.
    pub fn poll_gone(&self, id: LeaseId, cx: &Context<'_>) -> Poll<()> {
        let mut shared = self.shared.lock();
        if shared.term.is_none() || !shared.leases.contains_key(&id) {
            return Poll::Ready(());
        }
        let wakers = shared.waiters.entry(id).or_default();
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Returns the lifetime of a lease.
    #[must_use]
    pub fn time_to_live(&self, id: LeaseId, now: Millis) -> Option<TimeToLive> {
        let shared = self.shared.lock();
        let lease = shared.leases.get(&id)?;
        let remaining = lease.expiry.map(|expiry| expiry.0.cast_signed() - now.0.cast_signed());
        // Part of the current millisecond has passed, so a lease that was just renewed does not have its full TTL any
        // more. Clients of etcd rely on this.
        let to_secs = |millis: i64| if millis > 0 { (millis - 1) / 1000 } else { millis / 1000 };
        Some(TimeToLive { granted_secs: lease.ttl_secs, remaining_secs: remaining.map(to_secs) })
    }

    /// Returns whether the lease exists.
    #[must_use]
    pub fn contains(&self, id: LeaseId) -> bool {
        self.shared.lock().leases.contains_key(&id)
    }

    /// Returns the keys attached to a lease, in ascending order, or `None` if the lease does not
    /// exist.
    #[must_use]
    pub fn keys(&self, id: LeaseId) -> Option<Vec<Arc<[u8]>>> {
        let shared = self.shared.lock();
        shared.leases.get(&id).map(|lease| lease.keys.iter().cloned().collect())
    }

    /// Checks the keys of a lease with `check`. For a key that passes, `check` returns the end of a range in which all
    /// keys pass. `check` is called once for each such range, so the cost does not grow with the number of keys. A
    /// lease that does not exist has no keys.
    pub fn check_keys<'a, E>(
        &self,
        id: LeaseId,
        mut check: impl FnMut(&[u8]) -> Result<Bound<&'a [u8]>, E>,
    ) -> Result<(), E> {
        let shared = self.shared.lock();
        let Some(lease) = shared.leases.get(&id) else { return Ok(()) };
        let mut unchecked: Bound<&[u8]> = Bound::Unbounded;
        while let Some(key) = lease.keys.range::<[u8], _>((unchecked, Bound::Unbounded)).next() {
            unchecked = match check(key)? {
                Bound::Excluded(end) => {
                    assert!(
                        end > &key[..],
                        "the end of a range is after every key in it: otherwise the check would never end"
                    );
                    Bound::Included(end)
                }
                Bound::Included(last) => {
                    assert!(
                        last >= &key[..],
                        "the end of a range is after every key in it: otherwise the check would never end"
                    );
                    Bound::Excluded(last)
                }
                Bound::Unbounded => return Ok(()),
            };
        }
        Ok(())
    }

    /// Returns all leases, sorted by remaining lifetime while the clocks run, and by id otherwise.
    #[must_use]
    pub fn list(&self) -> Vec<LeaseId> {
        let mut all: Vec<_> = {
            let shared = self.shared.lock();
            shared.leases.iter().map(|(id, lease)| (lease.expiry, *id)).collect()
        };
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the number of leases.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.lock().leases.len()
    }

    /// Returns at most `count_max` leases that have expired according to the clock of the leader of `term`. The caller
    /// revokes them through the log, and they are not renewed until then. A lease that still exists after
    /// [`LessorOptions::resubmit_millis`] is returned again.
    #[must_use]
    pub fn expired(&self, term: u64, now: Millis, count_max: usize) -> Vec<LeaseId> {
        let again = now.plus(self.options.resubmit_millis);
        let mut expired = Vec::new();
        let mut more = true;
        while more && expired.len() < count_max {
            let mut shared = self.shared.lock();
            if shared.term != Some(term) {
                break;
            }
            let Shared { leases, expiries, .. } = &mut *shared;
            for _ in 0..SCAN_STEP {
                more = expired.len() < count_max;
                let Some((at, id)) = more.then(|| expiries.pop_due(now)).flatten() else {
                    more = false;
                    break;
                };
                let Some(lease) = leases.get_mut(&id) else { continue };
                let Some(expiry) = lease.expiry else { continue };
                if !lease.expiry_slot.take(at) {
                    continue;
                }
                assert!(
                    at <= now,
                    "a lease is visited only at or after its deadline: otherwise every scan would visit all leases"
                );
                if expiry <= now {
                    expired.push(id);
                    lease.has_expired = true;
                    expiries.schedule(&mut lease.expiry_slot, id, again);
                } else {
                    expiries.schedule(&mut lease.expiry_slot, id, expiry);
                }
            }
        }
        expired
    }

    /// Returns whether [`Self::expired`] has returned this lease in this term. A lease that was revoked since then and
    /// granted again with the same id counts as another lease.
    #[must_use]
    pub fn has_expired(&self, id: LeaseId, term: u64) -> bool {
        let shared = self.shared.lock();
        shared.term == Some(term) && shared.leases.get(&id).is_some_and(|lease| lease.has_expired)
    }

    /// Returns at most `count_max` checkpoints that are due according to the clock of the leader of `term`. The caller
    /// proposes them.
    #[must_use]
    pub fn due_checkpoints(&self, term: u64, now: Millis, count_max: usize) -> Vec<Checkpoint> {
        let mut due = Vec::new();
        let mut more = self.options.checkpoints;
        while more && due.len() < count_max {
            let mut shared = self.shared.lock();
            if shared.term != Some(term) {
                break;
            }
            let Shared { leases, checkpoints, .. } = &mut *shared;
            for _ in 0..SCAN_STEP {
                more = due.len() < count_max;
                let Some((at, id)) = more.then(|| checkpoints.pop_due(now)).flatten() else {
                    more = false;
                    break;
                };
                let Some(lease) = leases.get_mut(&id) else { continue };
                if !lease.checkpoint_slot.take(at) {
                    continue;
                }
                let Some(left) = lease.expiry.and_then(|expiry| expiry.0.checked_sub(now.0)) else {
                    continue;
                };
                let remaining_secs = left.div_ceil(1000).cast_signed();
                assert!(
                    remaining_secs >= 0,
                    "a checkpointed remaining TTL is not negative: otherwise members would replace it with the full TTL"
                );
                if remaining_secs > 0 && remaining_secs < lease.ttl_secs {
                    due.push(Checkpoint { id, remaining_secs });
                }
                if remaining_secs.cast_unsigned() > self.options.checkpoint_interval_secs {
                    self.queue_checkpoint(checkpoints, lease, id, now);
                }
            }
        }
        due
    }

    pub(super) fn load(&self, records: impl IntoIterator<Item = LeaseRecord>) {
        let waiters = {
            let mut shared = self.shared.lock();
            shared.stop_clocks();
            shared.leases =
                records.into_iter().map(|record| (record.id, Lease::new(record))).collect();
            std::mem::take(&mut shared.waiters)
        };
        wake(waiters.into_values().flatten());
    }

    /// Adds a lease. Returns whether the id was free.
    pub(super) fn insert(&self, record: LeaseRecord, now: Millis) -> bool {
        let mut shared = self.shared.lock();
        let Shared { term, leases, expiries, checkpoints, .. } = &mut *shared;
        let std::collections::hash_map::Entry::Vacant(entry) = leases.entry(record.id) else {
            return false;
        };
        let lease = entry.insert(Lease::new(record));
        if term.is_some() {
            let expiry = now.plus_secs(lease.lifetime_secs());
            lease.expiry = Some(expiry);
            expiries.schedule(&mut lease.expiry_slot, record.id, expiry);
            self.queue_checkpoint(checkpoints, lease, record.id, now);
        }
        true
    }

    /// Removes a lease and returns its keys.
    pub(super) fn remove(&self, id: LeaseId) -> Option<BTreeSet<Arc<[u8]>>> {
        let (lease, waiters) = {
            let mut shared = self.shared.lock();
            let Shared { leases, expiries, checkpoints, waiters, .. } = &mut *shared;
            let lease = leases.remove(&id)?;
            let live = leases.len();
            expiries.trim(live, |at, id| {
                leases.get(&id).is_some_and(|lease| lease.expiry_slot.holds(at))
            });
            checkpoints.trim(live, |at, id| {
                leases.get(&id).is_some_and(|lease| lease.checkpoint_slot.holds(at))
            });
            (lease, waiters.remove(&id))
        };
        wake(waiters.into_iter().flatten());
        Some(lease.keys)
    }

    pub(super) fn checkpoint(
        &self,
        id: LeaseId,
        remaining_secs: i64,
        now: Millis,
    ) -> Option<LeaseRecord> {
        let mut shared = self.shared.lock();
        let Shared { term, leases, checkpoints, .. } = &mut *shared;
        let lease = leases.get_mut(&id)?;
        lease.remaining_secs = remaining_secs;
        if term.is_some() {
            self.queue_checkpoint(checkpoints, lease, id, now);
        }
        Some(LeaseRecord { id, ttl_secs: lease.ttl_secs, remaining_secs })
    }

    /// Moves a key from one lease to another. Either lease may be [`LeaseId::NONE`]. Returns
    /// whether the key is now attached to `to`.
    pub(super) fn move_key(&self, key: &Arc<[u8]>, from: LeaseId, to: LeaseId) -> bool {
        let mut shared = self.shared.lock();
        if let Some(lease) = shared.leases.get_mut(&from) {
            lease.keys.remove(key);
        }
        let Some(lease) = shared.leases.get_mut(&to) else { return false };
        lease.keys.insert(Arc::clone(key));
        true
    }

    fn queue_checkpoint(
        &self,
        checkpoints: &mut Deadlines,
        lease: &mut Lease,
        id: LeaseId,
        now: Millis,
    ) {
        let interval_secs = self.options.checkpoint_interval_secs;
        if self.options.checkpoints && lease.lifetime_secs() > interval_secs {
            checkpoints.schedule(&mut lease.checkpoint_slot, id, now.plus_secs(interval_secs));
        }
    }

    #[cfg(test)]
    pub(super) fn queue_len(&self) -> usize {
        self.shared.lock().expiries.len()
    }
}

impl Shared {
    fn stop_clocks(&mut self) {
        self.term = None;
        self.expiries.clear();
        self.checkpoints.clear();
        for lease in self.leases.values_mut() {
            lease.expiry = None;
            lease.expiry_slot = Slot::default();
            lease.has_expired = false;
            lease.checkpoint_slot = Slot::default();
        }
    }
}

impl Lease {
    fn new(record: LeaseRecord) -> Self {
        Self {
            ttl_secs: record.ttl_secs,
            remaining_secs: record.remaining_secs,
            expiry: None,
            expiry_slot: Slot::default(),
            has_expired: false,
            checkpoint_slot: Slot::default(),
            keys: BTreeSet::new(),
        }
    }

    /// Returns the checkpointed remaining lifetime if there is a checkpoint, and the granted
    /// lifetime otherwise.
    fn lifetime_secs(&self) -> u64 {
        let secs = if self.remaining_secs > 0 { self.remaining_secs } else { self.ttl_secs };
        u64::try_from(secs).unwrap_or(0)
    }
}

/// Postpones expiries so that at most [`EXPIRIES_PER_SECOND`] leases expire in any second. `order` is ascending and
/// stays ascending.
fn spread(order: &mut [(Millis, LeaseId)]) {
    if order.len() < PILE_UP_COUNT {
        return;
    }
    for position in EXPIRIES_PER_SECOND..order.len() {
        let earliest = order[position - EXPIRIES_PER_SECOND].0.plus_secs(1);
        let expiry = &mut order[position].0;
        *expiry = earliest.max(*expiry);
        assert!(
            order[position - 1].0 <= order[position].0,
            "expiries stay ascending: otherwise more leases could expire in a second than can be revoked in a second"
        );
    }
}

fn wake(wakers: impl Iterator<Item = Waker>) {
    for waker in wakers {
        waker.wake();
    }
}
