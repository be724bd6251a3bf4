//! The end of a run: faults stop, and the cluster must recover within a bounded time.
//!
//! It has recovered when every member serves, all members have applied the same entries, and no host needs the
//! operator. A cluster that has permanently lost its quorum is exempt.

use quorate_history_checker::{FaultFree, Moment};

use super::client::Asker;
use super::{Event, World};
use crate::clock::{MILLI, Micros, SECOND};
use crate::member::{Ask, Reply};
use crate::plan::Kind;

/// By then a mended cluster serves. Elections, restarts, replacements and snapshots take their time, one after the
/// other.
const SERVES_WITHIN: Micros = 90 * SECOND;

/// The time in which requests and entries under way complete.
const SETTLE: Micros = 10 * SECOND;

/// Clients have stopped for so long at least.
const QUIET: Micros = 3 * SECOND;

/// The same where there are leases, all of which end meanwhile, unless they were asked to last for ever.
const QUIET_WITH_LEASES: Micros = 18 * SECOND;

/// How much later than its time a lease may end while everybody serves: leaders look after leases twice a second, and
/// an entry of the log ends one.
const LEASE_GRACE: Micros = 2 * SECOND;

/// Between two questions to every member.
const PROBE_EVERY: Micros = 500 * MILLI;

/// The progress of the end of a run.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Faults have stopped.
    pub(super) is_calm: bool,
    since: Micros,
    /// When each host has answered last.
    answered: std::collections::BTreeMap<usize, Micros>,
    /// Clients have stopped.
    pub(super) is_settling: bool,
    settled_at: Micros,
    pub(super) is_over: bool,
}

impl World {
    /// Stops all faults and repairs the machines.
    pub(super) fn calm(&mut self) {
        self.tell(|| "calm".to_owned());
        self.ending.is_calm = true;
        self.ending.since = self.now;
        (0..self.hosts.len()).for_each(|at| self.give_back(at));
        self.mend_machines();
        self.queue.put(self.now + SECOND, Event::Probe);
    }

    /// Looks whether the cluster is back, and asks every member for something.
    pub(super) fn probe(&mut self) {
        if self.ending.is_settling {
            return self.settle();
        }
        if self.is_back() {
            self.tell(|| "the cluster is back".to_owned());
            self.ending.is_settling = true;
            self.ending.settled_at = self.now;
        } else if !self.has_quorum_for_good() && self.now > self.ending.since + 30 * SECOND {
            self.seen.note("the cluster has lost its quorum for good");
            self.ending.is_over = true;
        } else if self.now > self.ending.since + SERVES_WITHIN {
            let state = self.describe();
            self.judge.object(|| format!("the mended cluster does not serve: {state}"));
        } else {
            for host in 0..self.hosts.len() {
                if self.hosts[host].process.is_some() {
                    let delete = quorate_api::etcdserverpb::DeleteRangeRequest {
                        key: b"probe".as_slice().into(),
                        ..Default::default()
                    };
                    self.question(Asker::Probe, host, Ask::Delete(delete), None);
                }
            }
        }
        self.queue.put(self.now + PROBE_EVERY, Event::Probe);
    }

    pub(super) fn note_probe(&mut self, host: usize, reply: &Reply) {
        if matches!(reply, Reply::Done(_)) {
            self.ending.answered.insert(host, self.now);
        }
    }

    fn is_back(&self) -> bool {
        let members = self.judge.members();
        if members.iter().len() == 0 || members.iter().any(|row| row.is_learner) {
            return false;
        }
        (0..self.hosts.len()).all(|at| {
            let host = &self.hosts[at];
            let answered = self.ending.answered.get(&at);
            match (self.row_of(at), &host.process) {
                (None, None) => true,
                (Some(row), Some(process)) => {
                    process.id == row.id.0
                        && answered.is_some_and(|when| *when + 3 * SECOND > self.now)
                }
                (None, Some(_)) | (Some(_), None) => false,
            }
        })
    }

    fn describe(&self) -> String {
        let committed = self.judge.committed();
        let hosts = self.hosts.iter().enumerate().map(|(at, host)| {
            let row = self.row_of(at).map(|row| {
                format!("{:x}{}", row.id.0, if row.is_learner { " learner" } else { "" })
            });
            let process = host.process.as_ref().map(|process| {
                let (led, shown) = (process.leadership(), process.published());
                format!("{:x} {led:?} published {shown} of {}", process.id, process.committed())
            });
            format!("\n  h{at}: row {row:?}, {:?}, process {process:?}", host.down)
        });
        format!("{committed} committed{}", hosts.collect::<String>())
    }

    /// Clients have stopped: everybody comes to the same, and is compared.
    fn settle(&mut self) {
        let committed = self.judge.committed();
        let is_done =
            self.hosts.iter().filter_map(|host| host.process.as_ref()).all(|process| {
                process.published() == committed && process.committed() == committed
            });
        let waited = self.now - self.ending.settled_at;
        let quiet = if self.plan.has(Kind::Leases) { QUIET_WITH_LEASES } else { QUIET };
        if is_done && waited > quiet {
            return self.finish();
        }
        if waited > SETTLE + 30 * SECOND {
            let state = self.describe();
            return self.judge.object(|| format!("members do not come to the same: {state}"));
        }
        self.queue.put(self.now + PROBE_EVERY, Event::Probe);
    }

    /// When nothing was broken and nobody asked for anything, if the run came to that. The last leader may have given
    /// leases the time of its election.
    pub(super) fn fault_free_for_leases(&self, extension_nanos: u64) -> Option<FaultFree> {
        let grace = LEASE_GRACE * 1_000 + extension_nanos;
        let since = Moment(self.ending.settled_at * 1_000);
        self.ending.is_settling.then(|| FaultFree {
            since,
            until: self.moment(),
            lease_grace: grace,
        })
    }

    fn finish(&mut self) {
        let revision = self.judge.revision();
        for at in 0..self.hosts.len() {
            let Some(process) = self.hosts[at].process.as_deref() else { continue };
            self.judge.compare(at, process.readers(), 0);
            self.judge.compare_rest(at, process.state());
            if process.is_at_rest() {
                self.judge.compare_members(at, process.state(), &process.status().config);
            }
            self.judge.compare_hash(at, process.readers(), revision);
        }
        if self.plan.has(Kind::Watches) {
            self.finish_watchers();
        }
        self.ending.is_over = true;
    }
}
