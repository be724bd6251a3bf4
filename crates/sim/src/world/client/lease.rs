//! Draws the clients' lease requests. All clients share the known leases.

use quorate_history_checker::{Moment, Request};

use super::super::World;
use crate::clock::{MILLI, Micros, SECOND};

/// The number of recent leases from which clients choose.
const RECENT: usize = 6;

/// The time during which a lease may still exist after its expiry, because the leader checks leases periodically and
/// revokes expired leases through the log.
const LATE: Micros = 800 * MILLI;

/// A lease that was granted to a client.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct KnownLease {
    id: i64,
    ttl: Micros,
    /// The time at which the lease expires unless it is renewed.
    due: Micros,
}

impl KnownLease {
    pub(super) fn granted(id: i64, ttl_secs: i64, called: Moment) -> Self {
        let ttl = u64::try_from(ttl_secs).unwrap_or(0).saturating_mul(SECOND);
        Self { id, ttl, due: (called.0 / 1_000).saturating_add(ttl) }
    }
}

impl World {
    pub(super) fn draw_lease(&mut self) -> Option<i64> {
        if self.leases.is_empty() {
            return None;
        }
        // Older leases have usually expired.
        let recent = self.leases.len().min(RECENT);
        let back = 1 + self.rng.position(recent);
        Some(self.leases[self.leases.len() - back].id)
    }

    pub(super) fn note_renewed(&mut self, id: i64, called: Moment) {
        for lease in self.leases.iter_mut().filter(|lease| lease.id == id) {
            lease.due = (called.0 / 1_000).saturating_add(lease.ttl);
        }
    }

    /// Returns a lease that has just expired and that the leader has possibly not revoked yet.
    fn late_lease(&self) -> Option<i64> {
        let is_late = |lease: &&KnownLease| {
            lease.due <= self.now && self.now < lease.due.saturating_add(LATE)
        };
        self.leases.iter().rev().take(4 * RECENT).find(is_late).map(|lease| lease.id)
    }

    pub(super) fn draw_lease_request(&mut self) -> Request {
        if let Some(id) = self.late_lease()
            && self.one_in(2)
        {
            return Request::LeaseKeepAlive { id };
        }
        let Some(id) = self.draw_lease() else { return self.draw_grant() };
        match self.rng.below(10) {
            0..2 => self.draw_grant(),
            2 => Request::LeaseRevoke { id },
            3..5 => Request::LeaseTimeToLive { id, keys: self.one_in(2) },
            _ => Request::LeaseKeepAlive { id },
        }
    }

    fn draw_grant(&mut self) -> Request {
        let id = match self.rng.below(4) {
            0 => 0,
            // Sometimes choose an id that is or was in use. This is rare, because ids that are granted several times
            // are checked less strictly.
            1 if self.one_in(4) => self.draw_lease().unwrap_or(0),
            _ => 1_000 + i64::try_from(self.new_number()).unwrap_or(0),
        };
        // Some requests exceed the maximum TTL. Otherwise the TTL depends only on the id, so that a lease that is
        // granted again keeps its TTL.
        let ttl_secs = match self.rng.below(20) {
            0 => 9_000_000_001,
            // If the id is 0, the member chooses one. Other ids outside this range were chosen for earlier requests.
            _ if !(1..1 << 32).contains(&id) => 4,
            _ => 1 + id % 13,
        };
        Request::LeaseGrant { id, ttl_secs }
    }
}
