//! Faults of machines, disks, clocks and links, one at a time, as the plan determines.

use quorate_raft::Role;
use quorate_storage::disk::{Fault, Faults, FaultsHit, IO_ERROR, Operation};

use super::hosts::{Down, Host, Stalled};
use super::{Event, World};
use crate::clock::{MILLI, Micros, SECOND};
use crate::plan::Kind;

/// Kinds that strike now and then. The others are there all the time, or are acts of the operator and of clients.
const STRIKING: [Kind; 17] = [
    Kind::Kill,
    Kind::PowerCut,
    Kind::PowerCutInAStep,
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

/// Between two looks for the moment to cut links.
const LOOK_EVERY: Micros = MILLI / 2;

impl World {
    /// Something goes wrong.
    pub(super) fn strike(&mut self) {
        if self.is_calm() {
            return;
        }
        let at = self.about(self.plan.fault_every);
        self.queue.put(at, Event::Strike);
        let kinds: Vec<Kind> = STRIKING.into_iter().filter(|kind| self.plan.has(*kind)).collect();
        if kinds.is_empty() {
            return;
        }
        let kind = kinds[self.draw.position(kinds.len())];
        let mut host = self.draw.position(self.hosts.len());
        let is_of_leaders =
            matches!(kind, Kind::HostHang | Kind::Refusal | Kind::Suspension | Kind::Reset);
        if is_of_leaders && self.one_in(2) {
            // It matters most for the leader.
            host = self.leader().unwrap_or(host);
        }
        self.tell(|| format!("{kind} strikes h{host}"));
        self.trace.count(kind as u64);
        if matches!(kind, Kind::Cut | Kind::OneWayCut | Kind::Flap) {
            self.cut_links(kind, host);
        } else if kind == Kind::Transfer {
            self.hand_over(host);
        } else if self.hosts[host].process.is_some() {
            self.strike_host(kind, host);
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the kinds of hosts, of those that strike")]
    fn strike_host(&mut self, kind: Kind, at: usize) {
        match kind {
            Kind::Kill => self.end_process(at, FaultsHit::default()),
            Kind::PowerCut => {
                self.cut_power(at);
                // Of one power line hang more than one.
                while self.one_in(3) {
                    let other = self.draw.position(self.hosts.len());
                    if self.hosts[other].process.is_some() {
                        self.cut_power(other);
                    }
                }
            }
            Kind::PowerCutInAStep => {
                let after = Some(self.draw.below(40));
                self.add_faults(at, |faults| faults.power_cut_after = after);
            }
            Kind::DiskFailure => self.fail_disk(at),
            Kind::DiskFull => {
                let room = if self.one_in(2) { Some(self.draw.below(60_000)) } else { None };
                self.add_faults(at, |faults| faults.room = room);
            }
            Kind::BackendFull => {
                // A leader would have the whole cluster refuse writes.
                let leads = self.hosts[at]
                    .process
                    .as_ref()
                    .is_some_and(|process| process.leadership().role == Role::Leader);
                let is_full = !leads && !self.one_in(3);
                self.add_faults(at, |faults| faults.is_backend_full = is_full);
            }
            Kind::DiskStall => {
                let until = self.now + self.drawn_span();
                // Log and backend may lie on disks of their own.
                let which = self.draw.below(3);
                let stalled = &mut self.hosts[at].stalled_until;
                if which != 0 {
                    stalled.log = until;
                }
                if which != 1 {
                    stalled.backend = until;
                }
            }
            Kind::HostHang => self.hang(at),
            Kind::Refusal => self.refuse(at),
            Kind::Suspension => {
                let until = self.now + 3 * SECOND + self.draw.below(17 * SECOND);
                // What is put off until the process goes on must not be put off beyond the beginning of the calm.
                self.hosts[at].paused_until = until.min(self.plan.duration);
                self.seen.note("a process is suspended for longer than a lease");
            }
            Kind::Reset => self.reset(at),
            Kind::Pause => {
                let until = self.now + self.drawn_span();
                self.hosts[at].paused_until = until;
            }
            Kind::ClockJump => {
                let by = self.drawn_span();
                if let Some(process) = self.hosts[at].process.as_mut() {
                    process.clock_mut().jump(by);
                }
            }
            _ => {}
        }
    }

    /// Some operation of the disk is going to fail.
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
        let kind = kinds[self.draw.position(kinds.len())];
        let fault = Fault::nth(kind, self.draw.below(10), IO_ERROR);
        self.add_faults(at, |faults| faults.failing = vec![fault]);
    }

    /// Disk and network of a host stand still, as where both are one. Clients that reach it another way still do.
    fn hang(&mut self, at: usize) {
        let span = self.draw.below(20 * SECOND);
        let until = self.now + span;
        self.hosts[at].stalled_until = Stalled { log: until, backend: until };
        self.network.isolate(at);
        self.queue.put(until, Event::Mend);
        self.seen.note("a host hangs");
    }

    /// The connections of a host break, and new ones to it are refused, while its process lives: a peer that notices
    /// takes the process for ended.
    fn refuse(&mut self, at: usize) {
        self.tell_peers_gone(at);
        self.network.isolate(at);
        let span = self.drawn_span() + SECOND / 2;
        self.queue.put(self.now + span, Event::Mend);
        self.seen.note("a host refuses connections while its process lives");
    }

    /// The connections of a host are reset: what is on its way is lost, and the next messages arrive.
    fn reset(&mut self, at: usize) {
        self.network.reset(at);
        self.break_transfers(at);
        let life = self.hosts[at].life;
        self.break_ops(at, life);
        self.seen.note("connections are reset while the process lives");
    }

    /// A snapshot has arrived at a follower, whose disk is full now, for some time.
    pub(super) fn fill_disk(&mut self, at: usize) {
        if !self.plan.has(Kind::FullAtSnapshot) || self.is_calm() || self.one_in(2) {
            return;
        }
        let room = Some(self.draw.below(20_000));
        self.add_faults(at, |faults| faults.room = room);
        let again = self.now + self.drawn_span();
        self.queue.put(again, Event::DiskHasRoom(at));
        self.seen.note("a disk is full when a snapshot arrives");
    }

    pub(super) fn lift_full_disk(&self, at: usize) {
        self.add_faults(at, |faults| faults.room = None);
    }

    /// A host whose process leads, as far as it knows.
    fn leader(&self) -> Option<usize> {
        self.hosts.iter().position(|host| {
            let process = host.process.as_ref();
            process.is_some_and(|process| process.leadership().role == Role::Leader)
        })
    }

    /// Mostly short, sometimes longer than any timeout.
    fn drawn_span(&mut self) -> Micros {
        match self.draw.below(4) {
            0 => self.draw.below(8 * SECOND),
            1 => self.draw.below(2 * SECOND),
            _ => self.draw.below(300 * MILLI),
        }
    }

    fn add_faults(&self, at: usize, add: impl FnOnce(&mut Faults)) {
        let disk = &self.hosts[at].disk;
        let mut faults = disk.faults();
        add(&mut faults);
        disk.set_faults(faults);
    }

    /// When the power goes during a start, if it does.
    pub(super) fn drawn_power_cut(&mut self, one_in: u64) -> Option<u64> {
        let has = self.plan.has(Kind::PowerCutInAStep) && !self.is_calm();
        (has && self.one_in(one_in)).then(|| self.draw.below(30))
    }

    fn cut_links(&mut self, kind: Kind, at: usize) {
        if !self.network.is_whole() && self.one_in(2) {
            self.network.mend();
        }
        if kind == Kind::Cut && self.one_in(2) {
            self.cut_apart();
        } else if kind == Kind::OneWayCut && self.one_in(2) {
            // It hears everybody, and nobody hears it.
            for other in (0..self.hosts.len()).filter(|other| *other != at) {
                self.network.cut(at, other);
            }
        } else if kind == Kind::OneWayCut {
            let other = self.draw.position(self.hosts.len());
            if other != at {
                self.network.cut(at, other);
            }
        } else {
            self.network.isolate(at);
        }
        let span = match kind == Kind::Flap {
            true => self.draw.below(200 * MILLI),
            false => self.drawn_span() + SECOND / 2,
        };
        let again = if kind == Kind::Flap { 1 + self.draw.below(4) } else { 1 };
        for round in 1..=again {
            self.queue.put(self.now + span * round, Event::Mend);
        }
    }

    fn cut_apart(&mut self) {
        let side: Vec<bool> = self.hosts.iter().map(|_| self.draw.below(2) == 0).collect();
        self.cut_between(&side);
    }

    fn cut_between(&mut self, side: &[bool]) {
        self.seen.note("two parts of the cluster are cut apart");
        for from in 0..side.len() {
            for to in 0..side.len() {
                if side[from] != side[to] {
                    self.network.cut(from, to);
                }
            }
        }
    }

    /// Something is under way that members are to hear of at different times.
    pub(super) fn fall_apart(&mut self) {
        if self.is_calm() {
            return;
        }
        if self.one_in(2) {
            self.cut_apart();
        } else {
            // Whoever leads has those who are to come, and most others have each other.
            let is_with_leader = |host: &Host| {
                let role = host.process.as_ref().map(|process| process.leadership().role);
                role.is_none_or(|role| role == Role::Leader)
            };
            let mut side: Vec<bool> = self.hosts.iter().map(is_with_leader).collect();
            let one = self.draw.position(side.len());
            side[one] |= self.one_in(2);
            self.cut_between(&side);
        }
        let span = self.drawn_span() + 2 * SECOND;
        self.queue.put(self.now + span, Event::Mend);
    }

    /// Two changes are under way: whoever leads is cut off with one other when it alone knows that they are committed,
    /// and goes on by the members of then, the others by those of before.
    pub(super) fn fall_apart_ahead(&mut self, looks: u32) {
        if self.is_calm() || looks == 0 {
            return;
        }
        let Some(leader) = self.leader_ahead().filter(|_| self.one_in(3)) else {
            return self.queue.put(self.now + LOOK_EVERY, Event::FallApartAhead(looks - 1));
        };
        let mut side: Vec<bool> = self.hosts.iter().map(|host| host.process.is_none()).collect();
        side[leader] = true;
        let one = self.draw.position(side.len());
        side[one] = true;
        self.cut_between(&side);
        let span = self.drawn_span() + 3 * SECOND;
        self.queue.put(self.now + span, Event::Mend);
    }

    /// Who leads and knows more to be committed than anybody else.
    fn leader_ahead(&self) -> Option<usize> {
        let leader = self.leader()?;
        let committed = |at: usize| {
            let process = self.hosts[at].process.as_ref();
            process.map(|process| process.status().hard_state.commit)
        };
        let others = (0..self.hosts.len()).filter(|at| *at != leader);
        (committed(leader) > others.filter_map(committed).max()).then_some(leader)
    }

    fn hand_over(&mut self, to: usize) {
        let id = self.hosts[to].id;
        for host in &mut self.hosts {
            if let Some(process) = host.process.as_mut() {
                process.transfer_leadership(id);
            }
        }
        self.seen.note("the lead is handed over");
        (0..self.hosts.len()).for_each(|at| self.schedule(at));
    }

    /// Nothing goes wrong from now on, and what went wrong with machines is mended.
    pub(super) fn mend_machines(&mut self) {
        self.network.calm();
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            host.paused_until = 0;
            host.stalled_until = Stalled::default();
            host.disk.set_faults(Faults::default());
            if host.process.is_none() && host.down == Down::Ended {
                self.queue.put(self.now + 10 * MILLI, Event::Start(at));
            }
        }
    }
}
