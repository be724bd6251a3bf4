//! The end of a run: faults stop, and the cluster must recover within a bounded time.
//!
//! The cluster has recovered when every member serves requests, all members have applied the same entries, and no host
//! needs the operator. A cluster that has permanently lost its quorum is exempt.

use quorate_history_checker::{FaultFree, Moment};

use super::client::Requester;
use super::{Event, World};
use crate::clock::{MILLI, Micros, SECOND};
use crate::member::{ClientRequest, Reply};
use crate::plan::Kind;

/// The maximum time until a repaired cluster serves requests again. It must be long enough for a sequence of elections,
/// restarts, replacements and snapshots.
const RECOVERY_MAX: Micros = 90 * SECOND;

/// The maximum time until pending requests and entries complete.
const COMPLETION_MAX: Micros = 10 * SECOND;

/// The minimum time without requests at the end of a run.
const QUIET_MIN: Micros = 3 * SECOND;

/// The minimum time without requests at the end of a run with leases. All leases expire within this time, except leases
/// with a very long TTL.
const QUIET_WITH_LEASES_MIN: Micros = 18 * SECOND;

/// The maximum delay of a lease's expiry while all members serve requests. Leaders check leases twice a second, and
/// revoke expired leases through the log.
const LEASE_GRACE: Micros = 2 * SECOND;

/// The interval between two probes of every member.
const PROBE_EVERY: Micros = 500 * MILLI;

/// The state of the final phase of a run.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Whether all faults have stopped.
    pub(super) faults_ended: bool,
    faults_ended_at: Micros,
    /// The time of each host's last reply.
    answered: std::collections::BTreeMap<usize, Micros>,
    /// Whether clients have stopped.
    pub(super) clients_stopped: bool,
    clients_stopped_at: Micros,
    pub(super) is_over: bool,
}

impl World {
    /// Stops all faults and repairs the hosts.
    pub(super) fn end_faults(&mut self) {
        self.log(|| "faults end".to_owned());
        self.ending.faults_ended = true;
        self.ending.faults_ended_at = self.now;
        (0..self.hosts.len()).for_each(|at| self.reverse_exchange(at));
        self.repair_hosts();
        self.queue.push(self.now + SECOND, Event::Probe);
    }

    /// Checks whether the cluster has recovered, and sends a request to every member.
    pub(super) fn probe(&mut self) {
        if self.ending.clients_stopped {
            return self.await_agreement();
        }
        if self.has_recovered() {
            self.log(|| "the cluster has recovered".to_owned());
            self.ending.clients_stopped = true;
            self.ending.clients_stopped_at = self.now;
        } else if !self.can_keep_quorum() && self.now > self.ending.faults_ended_at + 30 * SECOND {
            self.rare_states.note("the cluster has lost its quorum for good");
            self.ending.is_over = true;
        } else if self.now > self.ending.faults_ended_at + RECOVERY_MAX {
            let state = self.describe();
            self.judge
                .fail(|| format!("the repaired cluster did not serve clients again: {state}"));
        } else {
            for host in 0..self.hosts.len() {
                if self.hosts[host].process.is_some() {
                    let delete = quorate_api::etcdserverpb::DeleteRangeRequest {
                        key: b"probe".as_slice().into(),
                        ..Default::default()
                    };
                    self.send_request(Requester::Probe, host, ClientRequest::Delete(delete), None);
                }
            }
        }
        self.queue.push(self.now + PROBE_EVERY, Event::Probe);
    }

    pub(super) fn note_probe(&mut self, host: usize, reply: &Reply) {
        if matches!(reply, Reply::Done(_)) {
            self.ending.answered.insert(host, self.now);
        }
    }

    fn has_recovered(&self) -> bool {
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
                let (leadership, published) = (process.leadership(), process.published());
                format!(
                    "{:x} {leadership:?} published {published} of {}",
                    process.id,
                    process.committed()
                )
            });
            format!("\n  h{at}: row {row:?}, {:?}, process {process:?}", host.down)
        });
        format!("{committed} committed{}", hosts.collect::<String>())
    }

    /// Waits until all members have applied the same entries, then compares them.
    fn await_agreement(&mut self) {
        let committed = self.judge.committed();
        let is_done =
            self.hosts.iter().filter_map(|host| host.process.as_ref()).all(|process| {
                process.published() == committed && process.committed() == committed
            });
        let waited = self.now - self.ending.clients_stopped_at;
        let quiet = if self.plan.has(Kind::Leases) { QUIET_WITH_LEASES_MIN } else { QUIET_MIN };
        if is_done && waited > quiet {
            return self.finish();
        }
        if waited > COMPLETION_MAX + 30 * SECOND {
            let state = self.describe();
            return self
                .judge
                .fail(|| format!("the members have not applied the same entries: {state}"));
        }
        self.queue.push(self.now + PROBE_EVERY, Event::Probe);
    }

    /// Returns the period without faults and requests at the end of the run, if the run reached it. The last leader may
    /// have extended all leases by `extension_nanos`.
    pub(super) fn fault_free_for_leases(&self, extension_nanos: u64) -> Option<FaultFree> {
        let grace = LEASE_GRACE * 1_000 + extension_nanos;
        let since = Moment(self.ending.clients_stopped_at * 1_000);
        self.ending.clients_stopped.then(|| FaultFree {
            since,
            until: self.moment(),
            lease_grace: grace,
        })
    }

    fn finish(&mut self) {
        let revision = self.judge.revision();
        for at in 0..self.hosts.len() {
            let Some(process) = self.hosts[at].process.as_deref() else { continue };
            self.judge.compare(at, process.published_state(), 0);
            self.judge.compare_state(at, process.state());
            if process.is_at_rest() {
                self.judge.compare_members(at, process.state(), &process.status().config);
            }
            self.judge.compare_hash(at, process.published_state(), revision);
        }
        if self.plan.has(Kind::Watches) {
            self.finish_watchers();
        }
        self.ending.is_over = true;
    }
}
