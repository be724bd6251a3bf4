//! What clients ask about leases, of which they all know.

use quorate_history::Request;

use super::super::World;

impl World {
    pub(super) fn draw_lease(&mut self) -> Option<i64> {
        if self.leases.is_empty() {
            return None;
        }
        // Those that are granted last live longest.
        let recent = self.leases.len().min(6);
        let back = 1 + self.draw.position(recent);
        Some(self.leases[self.leases.len() - back])
    }

    pub(super) fn draw_lease_request(&mut self) -> Request {
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
