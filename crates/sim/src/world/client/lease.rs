//! The lease requests of clients. All clients share the known leases.

use quorate_history_checker::{Moment, Request};

use super::super::World;
use crate::clock::{MILLI, Micros, SECOND};

/// Leases that clients choose from.
const RECENT: usize = 6;

/// How long after its time a lease may be found to be there still: it is ended by a look that the leader takes now and
/// then, and by an entry of the log.
const LATE: Micros = 800 * MILLI;

/// A lease that clients know of.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct KnownLease {
    id: i64,
    ttl: Micros,
    /// When it ends, unless it is renewed.
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
        // Those that are granted last live longest.
        let recent = self.leases.len().min(RECENT);
        let back = 1 + self.draw.position(recent);
        Some(self.leases[self.leases.len() - back].id)
    }

    pub(super) fn note_renewed(&mut self, id: i64, called: Moment) {
        for lease in self.leases.iter_mut().filter(|lease| lease.id == id) {
            lease.due = (called.0 / 1_000).saturating_add(lease.ttl);
        }
    }

    /// A lease whose time has just come, and whose end is under way.
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
        match self.draw.below(10) {
            0..2 => self.draw_grant(),
            2 => Request::LeaseRevoke { id },
            3..5 => Request::LeaseTimeToLive { id, keys: self.one_in(2) },
            _ => Request::LeaseKeepAlive { id },
        }
    }

    fn draw_grant(&mut self) -> Request {
        let id = match self.draw.below(4) {
            0 => 0,
            // Sometimes one that is there, or was. What has several lives can be judged less.
            1 if self.one_in(4) => self.draw_lease().unwrap_or(0),
            _ => 1_000 + i64::try_from(self.number()).unwrap_or(0),
        };
        // A name comes back with the time that it had.
        let ttl_secs = match self.draw.below(20) {
            0 => 9_000_000_001,
            // Those that a member has named.
            _ if !(1..1 << 32).contains(&id) => 4,
            _ => 1 + id % 13,
        };
        Request::LeaseGrant { id, ttl_secs }
    }
}
