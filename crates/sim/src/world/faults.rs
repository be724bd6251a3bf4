//! Injects host, disk, clock and link faults, one at a time, as determined by the plan.

use quorate_raft::Role;
use quorate_storage::disk::{Fault, Faults, FaultsHit, IO_ERROR, NO_SPACE, Operation};

use super::hosts::{Down, Host, StalledUntil};
use super::{Event, World};
use crate::clock::{MILLI, Micros, SECOND};
use crate::plan::{Kind, Theme};

/// Kinds that are injected from time to time. All other kinds last for the whole run, accompany other events, or are
/// actions of the operator or of clients.
const INJECTED: [Kind; 18] = [
    Kind::Kill,
    Kind::PowerCut,
    Kind::PowerCutInAStep,
    Kind::KillInAStep,
    Kind::DiskFailure,
    Kind::DiskFull,
    Kind::BackendFull,
    Kind::DiskStall,
    Kind::Cut,
    Kind::OneWayCut,
    Kind::Flap,
    Kind::Pause,
    Kind::ClockJump,
    Kind::Transfer,
    Kind::HostHang,
    Kind::Refusal,
    Kind::Suspension,
    Kind::Reset,
];

/// The interval between checks for the right moment to partition the network.
const CHECK_EVERY: Micros = MILLI / 2;

impl World {
    /// Injects a random fault.
    pub(super) fn inject_fault(&mut self) {
        if self.faults_ended() {
            return;
        }
        let at = self.random_time(self.plan.fault_every);
        self.queue.push(at, Event::Fault);
        let kinds: Vec<Kind> = INJECTED.into_iter().filter(|kind| self.plan.has(*kind)).collect();
        if kinds.is_empty() {
            return;
        }
        let kind = kinds[self.rng.position(kinds.len())];
        let mut host = self.rng.position(self.hosts.len());
        let matters_for_leaders =
            matches!(kind, Kind::HostHang | Kind::Refusal | Kind::Suspension | Kind::Reset);
        if matters_for_leaders && self.one_in(2) {
            // These faults have the greatest effect on a leader, so half of them are injected on the leader's host, if
            // there is a leader.
            host = self.leader().unwrap_or(host);
        }
        self.log(|| format!("{kind} at h{host}"));
        self.trace.add(kind as u64);
        if matches!(kind, Kind::Cut | Kind::OneWayCut | Kind::Flap) {
            self.cut_links(kind, host);
        } else if kind == Kind::Transfer {
            self.transfer_leadership(host);
        } else if self.hosts[host].process.is_some() {
            self.inject_host_fault(kind, host);
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "no other kind is a fault of a single host")]
    fn inject_host_fault(&mut self, kind: Kind, at: usize) {
        match kind {
            Kind::Kill => self.end_process(at, FaultsHit::default()),
            Kind::PowerCut => {
                self.cut_power(at);
                // Several hosts may lose power together, because they may share a power line.
                while self.one_in(3) {
                    let other = self.rng.position(self.hosts.len());
                    if self.hosts[other].process.is_some() {
                        self.cut_power(other);
                    }
                }
            }
            Kind::PowerCutInAStep => {
                let after = Some(self.rng.below(40));
                self.add_faults(at, |faults| faults.power_cut_after = after);
            }
            Kind::KillInAStep => {
                let after = Some(self.rng.below(40));
                self.add_faults(at, |faults| faults.kill_after = after);
            }
            Kind::DiskFailure => self.fail_disk(at),
            Kind::DiskFull => {
                if self.one_in(3) {
                    return self.refuse_names(at);
                }
                let room = if self.one_in(2) { Some(self.rng.below(60_000)) } else { None };
                self.add_faults(at, |faults| faults.room = room);
            }
            Kind::BackendFull => {
                // A leader without disk space would make the whole cluster refuse writes.
                let leads = self.hosts[at]
                    .process
                    .as_ref()
                    .is_some_and(|process| process.leadership().role == Role::Leader);
                let is_full = !leads && !self.one_in(3);
                self.add_faults(at, |faults| faults.is_backend_full = is_full);
            }
            Kind::DiskStall => {
                let until = self.now + self.draw_duration();
                // The log and the backend may be on separate disks, so either of them may stall alone.
                let choice = self.rng.below(3);
                let stalled = &mut self.hosts[at].stalled_until;
                if choice != 0 {
                    stalled.log = until;
                }
                if choice != 1 {
                    stalled.backend = until;
                }
            }
            Kind::HostHang => self.hang(at),
            Kind::Refusal => self.refuse(at),
            Kind::Suspension => {
                let until = self.now + 3 * SECOND + self.rng.below(17 * SECOND);
                self.pause(at, until);
                self.rare_states.note("a process is suspended for longer than a lease");
            }
            Kind::Reset => self.reset(at),
            Kind::Pause => {
                let until = self.now + self.draw_duration();
                self.pause(at, until);
            }
            Kind::ClockJump => {
                let by = self.draw_duration();
                if let Some(process) = self.hosts[at].process.as_mut() {
                    process.clock_mut().jump(by);
                }
            }
            _ => {}
        }
    }

    /// Makes a disk operation fail.
    fn fail_disk(&mut self, at: usize) {
        let kinds = [
            Operation::Open,
            Operation::Write,
            Operation::SetLen,
            Operation::Allocate,
            Operation::Sync,
            Operation::SyncDir,
            Operation::Rename,
            Operation::Remove,
            Operation::CreateDir,
        ];
        let kind = kinds[self.rng.position(kinds.len())];
        let fault = Fault::nth(kind, self.rng.below(10), IO_ERROR);
        self.add_faults(at, |faults| faults.failing = vec![fault]);
    }

    /// Makes the disk refuse some new names, as if it had no free inode or the directory needed another block.
    fn refuse_names(&mut self, at: usize) {
        let kinds = [Operation::Open, Operation::Rename, Operation::CreateDir];
        let kind = kinds[self.rng.position(kinds.len())];
        let full = Fault::nth(kind, self.rng.below(10), NO_SPACE);
        let fault = Fault { fail_count: 1 + self.rng.below(10), ..full };
        self.add_faults(at, |faults| faults.failing = vec![fault]);
    }

    /// Makes the disk and the network of a host hang together, as with a network disk. Clients still reach the host
    /// over another network.
    fn hang(&mut self, at: usize) {
        let span = self.rng.below(20 * SECOND);
        let until = self.now + span;
        self.hosts[at].stalled_until = StalledUntil { log: until, backend: until };
        self.network.isolate(at);
        self.queue.push(until, Event::RestoreLinks);
        self.rare_states.note("a host hangs");
    }

    /// Breaks the connections of a host and makes it refuse new ones while its process continues to run. Peers that
    /// notice this assume that the process has ended.
    fn refuse(&mut self, at: usize) {
        self.notify_peers_of_end(at);
        self.network.isolate(at);
        let span = self.draw_duration() + SECOND / 2;
        self.queue.push(self.now + span, Event::RestoreLinks);
        self.rare_states.note("a host refuses connections while its process runs");
    }

    /// Resets the connections of a host. In-flight messages are lost, and later messages arrive.
    fn reset(&mut self, at: usize) {
        self.network.reset(at);
        self.interrupt_transfers(at);
        let life = self.hosts[at].life;
        self.fail_ops(at, life);
        self.rare_states.note("connections are reset while the process runs");
    }

    /// Fills a follower's disk for some time after a snapshot has arrived.
    pub(super) fn fill_disk(&mut self, at: usize) {
        if !self.plan.has(Kind::FullAtSnapshot) || self.faults_ended() || self.one_in(2) {
            return;
        }
        let room = Some(self.rng.below(20_000));
        self.add_faults(at, |faults| faults.room = room);
        let until = self.now + self.draw_duration();
        self.queue.push(until, Event::DiskHasRoom(at));
        self.rare_states.note("a disk is full when a snapshot arrives");
    }

    pub(super) fn free_disk(&self, at: usize) {
        self.add_faults(at, |faults| faults.room = None);
    }

    /// Returns a host whose process considers itself the leader.
    fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| {
            let process = host.process.as_ref();
            process.is_some_and(|process| process.leadership().role == Role::Leader)
        })
    }

    /// Draws a duration that is usually short and sometimes longer than any timeout.
    fn draw_duration(&mut self) -> Micros {
        match self.rng.below(4) {
            0 => self.rng.below(8 * SECOND),
            1 => self.rng.below(2 * SECOND),
            _ => self.rng.below(300 * MILLI),
        }
    }

    fn add_faults(&self, at: usize, add: impl FnOnce(&mut Faults)) {
        let disk = &self.hosts[at].disk;
        let mut faults = disk.faults();
        add(&mut faults);
        disk.set_faults(faults);
    }

    /// Cuts the power or kills the process while it starts, in some runs. The next process then finds files that this
    /// process did not remove, and names that it did not sync.
    pub(super) fn interrupt_start(&mut self, at: usize) {
        let power_cut_after = self.draw_fault_at_start(Kind::PowerCutInAStep);
        let kill_after = self.draw_fault_at_start(Kind::KillInAStep);
        self.add_faults(at, |faults| {
            (faults.power_cut_after, faults.kill_after) = (power_cut_after, kill_after);
        });
    }

    /// Draws the number of disk operations after which a fault of this kind occurs while a process starts, or `None` if
    /// it does not occur.
    fn draw_fault_at_start(&mut self, kind: Kind) -> Option<u64> {
        let one_in = if self.plan.theme == Theme::Crashes { 3 } else { 20 };
        let has = self.plan.has(kind) && !self.faults_ended();
        (has && self.one_in(one_in)).then(|| self.rng.below(30))
    }

    fn cut_links(&mut self, kind: Kind, at: usize) {
        if !self.network.is_whole() && self.one_in(2) {
            self.network.restore_links();
        }
        if kind == Kind::Cut && self.one_in(2) {
            self.partition_randomly();
        } else if kind == Kind::OneWayCut && self.one_in(2) {
            // The host receives all messages, but all its own messages are lost.
            for other in (0..self.hosts.len()).filter(|other| *other != at) {
                self.network.cut(at, other);
            }
        } else if kind == Kind::OneWayCut {
            let other = self.rng.position(self.hosts.len());
            if other != at {
                self.network.cut(at, other);
            }
        } else {
            self.network.isolate(at);
        }
        let span = match kind == Kind::Flap {
            true => self.rng.below(200 * MILLI),
            false => self.draw_duration() + SECOND / 2,
        };
        let rounds = if kind == Kind::Flap { 1 + self.rng.below(4) } else { 1 };
        for round in 1..=rounds {
            self.queue.push(self.now + span * round, Event::RestoreLinks);
        }
    }

    fn partition_randomly(&mut self) {
        let side: Vec<bool> = self.hosts.iter().map(|_| self.rng.below(2) == 0).collect();
        self.cut_between(&side);
    }

    fn cut_between(&mut self, side: &[bool]) {
        self.rare_states.note("the network is partitioned");
        for from in 0..side.len() {
            for to in 0..side.len() {
                if side[from] != side[to] {
                    self.network.cut(from, to);
                }
            }
        }
    }

    /// Partitions the network during a membership change, so that members receive the change at different times.
    pub(super) fn partition(&mut self) {
        if self.faults_ended() {
            return;
        }
        if self.one_in(2) {
            self.partition_randomly();
        } else {
            // The leader is on the same side as the hosts that may join, and most other members are on the other side.
            let is_with_leader = |host: &Host| {
                let role = host.process.as_ref().map(|process| process.leadership().role);
                role.is_none_or(|role| role == Role::Leader)
            };
            let mut side: Vec<bool> = self.hosts.iter().map(is_with_leader).collect();
            let one = self.rng.position(side.len());
            side[one] |= self.one_in(2);
            self.cut_between(&side);
        }
        let span = self.draw_duration() + 2 * SECOND;
        self.queue.push(self.now + span, Event::RestoreLinks);
    }

    /// Partitions the network during two membership changes, when only the leader knows that they are committed. The
    /// leader's side contains at most one other host and the hosts that may join, and uses the new configuration. The
    /// other side uses the old configuration.
    pub(super) fn partition_ahead(&mut self, checks: u32) {
        if self.faults_ended() || checks == 0 {
            return;
        }
        let Some(leader) = self.leader_ahead().filter(|_| self.one_in(3)) else {
            return self.queue.push(self.now + CHECK_EVERY, Event::PartitionAhead(checks - 1));
        };
        let mut side: Vec<bool> = self.hosts.iter().map(|host| host.process.is_none()).collect();
        side[leader] = true;
        let one = self.rng.position(side.len());
        side[one] = true;
        self.cut_between(&side);
        let span = self.draw_duration() + 3 * SECOND;
        self.queue.push(self.now + span, Event::RestoreLinks);
    }

    /// Returns the leader's host if the leader's commit index is higher than the commit indexes of all other members.
    fn leader_ahead(&self) -> Option<usize> {
        let leader = self.leader()?;
        let committed = |at: usize| {
            let process = self.hosts[at].process.as_ref();
            process.map(|process| process.status().hard_state.commit)
        };
        let others = (0..self.hosts.len()).filter(|at| *at != leader);
        (committed(leader) > others.filter_map(committed).max()).then_some(leader)
    }

    fn transfer_leadership(&mut self, to: usize) {
        let id = self.hosts[to].id;
        for host in &mut self.hosts {
            if let Some(process) = host.process.as_mut() {
                process.transfer_leadership(id);
            }
        }
        self.rare_states.note("leadership is transferred");
        (0..self.hosts.len()).for_each(|at| self.schedule(at));
    }

    /// Pauses a process. Its events are deferred until the pause ends, at the latest with the fault phase. Later events
    /// must not overtake them, so nothing ends a pause early, except the end of the process.
    fn pause(&mut self, at: usize, until: Micros) {
        let host = &mut self.hosts[at];
        host.paused_until = host.paused_until.max(until.min(self.plan.duration));
    }

    /// Ends all faults of hosts and links.
    pub(super) fn repair_hosts(&mut self) {
        self.network.end_faults();
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            host.stalled_until = StalledUntil::default();
            host.disk.set_faults(Faults::default());
            if host.process.is_none() && host.down == Down::Ended {
                self.queue.push(self.now + 10 * MILLI, Event::Start(at));
            }
        }
    }
}
