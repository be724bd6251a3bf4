//! The work of processes that is due at regular intervals.

use super::{Event, World};
use crate::clock::{MILLI, Micros};

/// The housekeeping interval. In production, it is 512 ms.
const HOUSEKEEPING_EVERY: Micros = 500 * MILLI;

impl World {
    pub(super) fn run_housekeeping(&mut self, host: usize, life: u64) {
        if self.defer_if_paused(host, || Event::Housekeeping { host, life }) {
            return;
        }
        let (now, version) = (self.now, self.plan.version);
        let name = self.hosts[host].flags.name.clone();
        let Some(process) = self.process(host, life) else { return };
        process.check_leases(now);
        process.run_housekeeping(&name, version, now);
        self.queue.push(now + HOUSEKEEPING_EVERY, Event::Housekeeping { host, life });
        self.after_step(host, Ok(()));
    }

    pub(super) fn purge(&mut self, host: usize, life: u64) {
        if self.defer_if_paused(host, || Event::Purge { host, life }) {
            return;
        }
        let Some(process) = self.process(host, life) else { return };
        let done = process.purge();
        let at = self.random_time(self.plan.purge_every);
        self.queue.push(at, Event::Purge { host, life });
        self.after_step(host, done.map(drop));
    }
}
