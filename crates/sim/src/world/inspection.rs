//! The periodic inspection, which compares a member with the reference state and detects snapshots that are not
//! installed in time.

use super::{Event, World};
use crate::clock::{Micros, SECOND};

/// The maximum time until a member has installed a leader's snapshot, provided its disks are not stalled and its
/// process is not paused. The time includes applying the batches before the snapshot. A batch that does not fit on the
/// disk is retried every second.
const INSTALL_MAX: Micros = 10 * SECOND;

impl World {
    /// Compares the state of a random member with the reference state, at a random revision.
    pub(super) fn inspect(&mut self) {
        self.check_installs();
        let at = self.rng.position(self.hosts.len());
        let next = self.now + SECOND / 2 + self.rng.below(SECOND);
        self.queue.push(next, Event::Inspect);
        let back = i64::try_from(self.rng.below(30)).unwrap_or(0);
        let Some(process) = self.hosts[at].process.as_deref() else { return };
        let current = process.published_state().view().current_revision();
        self.judge.compare(at, process.published_state(), (current - back).max(1));
        self.judge.compare_state(at, process.state());
        if process.is_at_rest() {
            self.judge.compare_members(at, process.state(), &process.status().config);
        }
        self.judge.compare_hash(at, process.published_state(), current);
        self.judge.compare_hash(at, process.published_state(), (current - back).max(1));
    }

    /// Checks that snapshots are installed within a bounded time, even while the disk has no room for earlier batches.
    fn check_installs(&mut self) {
        for at in 0..self.hosts.len() {
            let host = &self.hosts[at];
            let Some(since) = host.process.as_ref().and_then(|process| process.installing_since())
            else {
                continue;
            };
            let stalled = host.stalled_until.backend.max(host.stalled_until.log);
            let since = since.max(host.paused_until).max(stalled);
            if self.now > since + INSTALL_MAX {
                self.judge.fail(|| format!("h{at} did not install a snapshot in time"));
            }
        }
    }
}
