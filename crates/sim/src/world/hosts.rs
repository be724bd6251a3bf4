//! Hosts. Each host has a disk and at most one process, which starts, takes turns, and ends in one of several ways.

use quorate_core::bootstrap::{Cluster, Refusal};
use quorate_node::{Leadership, LogFault};
use quorate_raft::{LogIndex, NONE, Role, Term};
use quorate_state::units::MemberId;
use quorate_storage::disk::{Faults, FaultsHit, FaultyDisk, Surviving};
use quorate_storage::lost_log;

use super::{Event, World};
use crate::clock::{LocalClock, MILLI, Micros, SECOND};
use crate::member::boot::{self, Flags, FoundLog, OtherMembers, boot};
use crate::member::{Booted, Failure, Fatal, Out, Process, Promised, Refused, Reply, TURNS, Turn};
use crate::plan::{Kind, Plan};
use quorate_seeded_random::SplitMix64;

/// The time for which a process continues to run after its member is removed, as in production.
const REMOVAL_PAUSE: Micros = SECOND;

/// The number of turns within which a resumed process has read the data of all its connections.
pub(super) const RESUMED_TURNS: u64 = 4;

/// The reason why a host has no process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Down {
    /// No process has been started yet, or the operator has stopped it.
    Stopped,
    /// The process has ended and is restarted automatically.
    Ended,
    /// The process refuses to start or would fail again, so the operator must repair its files.
    Broken,
    /// The member was removed.
    Removed,
}

/// The times until which the disks of a host stall.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StalledUntil {
    pub(super) log: Micros,
    pub(super) backend: Micros,
}

/// A host on which a member may run.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) flags: Flags,
    pub(super) disk: FaultyDisk,
    pub(super) process: Option<Box<Process>>,
    pub(super) down: Down,
    /// The number of processes that the host has started so far.
    pub(super) life: u64,
    /// The time until which the process is paused.
    pub(super) paused_until: Micros,
    /// The times until which the host's disks stall.
    pub(super) stalled_until: StalledUntil,
    /// The promises of the last process.
    promised: Promised,
    /// The id of the member that last ran on this host.
    pub(super) id: u64,
    /// The time of the next turn of each component.
    due: [Option<Micros>; TURNS.len()],
    /// Microseconds that the host's clock advances per second of virtual time.
    pub(super) clock_rate: u64,
    /// An old copy of the member's directory.
    pub(super) old_copy: Option<FaultyDisk>,
    /// The host with which this host has exchanged directories.
    pub(super) exchanged_with: Option<usize>,
    /// Whether the host's directory is empty because its new member has not been added yet.
    pub(super) awaits_member: bool,
    /// Whether the host's files were tampered with.
    pub(super) is_tampered: bool,
    /// Whether the host's files contain damage that must be detected whenever a member starts.
    pub(super) is_damaged: bool,
    /// The term of a leader whose heartbeat proved that the log has lost acknowledged entries.
    pub(super) loss_proven_in: Option<Term>,
    /// Whether the host's snapshot messages may name a different index than their images.
    pub(super) names_other_index: bool,
}

impl Host {
    pub(super) fn new(at: usize, plan: &Plan, rng: &mut SplitMix64) -> Self {
        let name = format!("h{at}");
        let initial = (0..plan.founders).map(|at| (format!("h{at}"), url_of(at))).collect();
        let clock_rate = match plan.has(Kind::Drift) {
            true => 990_000 + rng.below(20_001),
            false => 1_000_000,
        };
        Self {
            flags: Flags {
                name,
                initial,
                joins: false,
                token: "sim".to_owned(),
                settings: plan.settings_of(rng),
            },
            disk: FaultyDisk::default(),
            process: None,
            down: Down::Stopped,
            life: 0,
            paused_until: 0,
            stalled_until: StalledUntil::default(),
            promised: Promised::default(),
            id: 0,
            due: [None; TURNS.len()],
            clock_rate,
            old_copy: None,
            exchanged_with: None,
            awaits_member: false,
            is_tampered: false,
            is_damaged: false,
            loss_proven_in: None,
            names_other_index: plan.has(Kind::OtherIndex) && rng.below(2) == 0,
        }
    }

    /// Exchanges the directories of two hosts that have no process, together with the state that belongs to the
    /// directories.
    pub(super) fn exchange_directories(one: &mut Self, other: &mut Self) {
        std::mem::swap(&mut one.disk, &mut other.disk);
        std::mem::swap(&mut one.old_copy, &mut other.old_copy);
        std::mem::swap(&mut one.promised, &mut other.promised);
        std::mem::swap(&mut one.id, &mut other.id);
        std::mem::swap(&mut one.down, &mut other.down);
        std::mem::swap(&mut one.is_tampered, &mut other.is_tampered);
        std::mem::swap(&mut one.is_damaged, &mut other.is_damaged);
        // Request ids contain the member id and `life`, so both hosts continue after the higher `life`. Neither member
        // has used the values above it.
        let life = one.life.max(other.life);
        (one.life, other.life) = (life, life);
    }

    /// Forgets the member's promises, because it has lost the files that record them.
    pub(super) fn forget_promises(&mut self) {
        self.promised = Promised::default();
    }
}

/// Returns the peer URL of a host.
pub(super) fn url_of(host: usize) -> String {
    format!("http://h{host}:2380")
}

/// Returns the host with this URL.
pub(super) fn host_at(url: &str) -> Option<usize> {
    url.strip_prefix("http://h")?.strip_suffix(":2380")?.parse().ok()
}

/// The members that a starting process can reach.
struct ReachableMembers<'a> {
    world: &'a World,
    requester: usize,
}

impl OtherMembers for ReachableMembers<'_> {
    fn clusters(&self, urls: &[String]) -> Vec<Cluster> {
        let answers = |url: &String| {
            let at = host_at(url)?;
            let host = self.world.hosts.get(at)?;
            let network = &self.world.network;
            let is_reachable =
                network.is_open(self.requester, at) && network.is_open(at, self.requester);
            let process = host.process.as_ref().filter(|_| is_reachable)?;
            let members = process.published_state().facts().members.clone();
            let members = members.iter().map(|member| (member.id, member.clone())).collect();
            Some(Cluster { id: process.cluster_id, members })
        };
        urls.iter().filter_map(answers).collect()
    }
}

impl World {
    /// Starts a process if none is running.
    pub(super) fn start(&mut self, at: usize) {
        if self.hosts[at].process.is_some() || self.hosts[at].awaits_member {
            return;
        }
        let (flags, disk) = (self.hosts[at].flags.clone(), self.hosts[at].disk.clone());
        let numbers = (self.rng.next_u64(), self.wall_clock());
        self.interrupt_start(at);
        let booted = boot(&disk, &flags, &ReachableMembers { world: self, requester: at }, numbers);
        let hit = disk.take_faults_hit();
        let (booted, found) = match booted {
            // The process ignored the result of the operation at which it ended.
            Ok(_) if hit.power_cut || hit.killed => return self.end_process(at, hit),
            Ok(booted) => booted,
            Err(refused) => return self.note_refusal(at, &refused, hit),
        };
        let host = &mut self.hosts[at];
        host.life += 1;
        let (id, life) = (booted.id(), host.life);
        let (promised, is_damaged) = (host.promised, host.is_damaged);
        host.id = id;
        self.member_hosts.insert(id, at);
        self.log(|| {
            let applied = booted.state().applied().0;
            format!("h{at} starts as {id:x}, applied {applied}, {found:?}")
        });
        self.trace.add(found.last_index.get());
        if found.was_installed {
            self.rare_states.note("a starting member installs a snapshot that arrived earlier");
        }
        self.check_promises(at, &promised, &booted, &found);
        self.check_log_end(at);
        if is_damaged {
            self.judge.fail(|| format!("h{at} starts although its log is damaged"));
        }
        let applied = booted.state().applied();
        if found.last_index < LogIndex(applied.0) {
            self.judge.fail(|| {
                let last = found.last_index;
                format!("h{at} starts although its log ends at entry {last} and it has applied entry {}", applied.0)
            });
        }
        if applied.0 > 0 {
            self.judge.check_published(at, LogIndex(applied.0), &booted.state().published());
            self.judge.compare(at, &booted.state().published(), 0);
        }
        self.check_start(at, &booted, &found);
        let clock = LocalClock::new(self.origin, self.now, self.hosts[at].clock_rate);
        let process = Process::start(booted, clock, self.now, life);
        let vote = process.vote();
        if promised.vote.term == vote.term && promised.vote != vote {
            self.judge
                .fail(|| format!("h{at} breaks its promise {promised:?}: its vote is {vote:?}"));
        }
        let tick = flags.settings.tick;
        let host = &mut self.hosts[at];
        host.process = Some(Box::new(process));
        host.loss_proven_in = None;
        host.due = [None; TURNS.len()];
        if applied.0 == 0 && flags.joins {
            self.rare_states.note("a member joins");
        }
        let first = self.rng.below(tick);
        self.queue.push(self.now + first / 2, Event::Housekeeping { host: at, life });
        let purge = self.random_time(self.plan.purge_every);
        self.queue.push(purge, Event::Purge { host: at, life });
        self.after_step(at, Ok(()));
    }

    /// Checks that a starting member knows what its previous process promised.
    fn check_promises(
        &mut self,
        at: usize,
        promised: &Promised,
        booted: &Booted,
        found: &FoundLog,
    ) {
        let commit = found.commit.max(LogIndex(booted.state().applied().0));
        if found.term < promised.term || found.last_index < promised.log || commit < promised.change
        {
            self.judge
                .fail(|| format!("h{at} breaks its promise {promised:?}: its log is {found:?}"));
        }
    }

    /// Checks that a member may start. A member that has run before must not start with an empty directory, and a
    /// member that has applied its own removal must not start at all.
    fn check_start(&mut self, at: usize, booted: &Booted, found: &FoundLog) {
        let id = booted.id();
        if *found == FoundLog::default() && self.is_known_to_have_run(at, id) {
            self.judge.fail(|| format!("h{at} starts empty as {id:x}, which has run before"));
        }
        if booted.state().members().is_removed(MemberId(id)) {
            self.judge.fail(|| format!("h{at} starts although it has applied its own removal"));
        }
    }

    /// Returns whether a reachable member of the host's initial cluster knows this member's client URLs, which a member
    /// publishes when it runs.
    fn is_known_to_have_run(&self, at: usize, id: u64) -> bool {
        let flags = &self.hosts[at].flags;
        let others = flags.initial.iter().filter(|(name, _)| *name != flags.name);
        let urls: Vec<String> = others.map(|(_, url)| url.clone()).collect();
        let clusters = ReachableMembers { world: self, requester: at }.clusters(&urls);
        clusters.iter().any(|cluster| {
            cluster.members.get(&MemberId(id)).is_some_and(|row| !row.client_urls.is_empty())
        })
    }

    /// Returns the wall clock time of a host, from which temporary file names are derived. The wall clock may step
    /// back.
    fn wall_clock(&mut self) -> u64 {
        if self.plan.has(Kind::WallClock) && self.one_in(2) {
            self.rare_states.note("a wall clock steps back");
            return self.rng.below(4);
        }
        self.now
    }

    fn note_refusal(&mut self, at: usize, refused: &Refused, hit: FaultsHit) {
        self.log(|| format!("h{at} refuses to start: {refused}"));
        self.trace.add(at as u64);
        if hit != FaultsHit::default() {
            return self.end_process(at, hit);
        }
        self.hosts[at].disk.end_process();
        // If the flags name an existing member, a retry may reach it.
        if matches!(refused, Refused::Bootstrap(Refusal::NoCluster(_))) && self.names_a_member(at) {
            self.hosts[at].down = Down::Ended;
            return self.queue.push(self.now + SECOND, Event::Start(at));
        }
        self.rare_states.note("a member refuses to start");
        if matches!(refused, Refused::Start(_)) {
            self.rare_states.note("a damaged file is found at startup");
        }
        self.hosts[at].down = if matches!(refused, Refused::Bootstrap(Refusal::Removed)) {
            Down::Removed
        } else {
            Down::Broken
        };
        self.check_refusal(at, refused);
    }

    /// Returns whether the initial cluster in a host's flags contains another host that has a member.
    fn names_a_member(&self, at: usize) -> bool {
        let own = url_of(at);
        let mut named = self.hosts[at].flags.initial.iter().filter(|(_, url)| *url != own);
        named.any(|(_, url)| host_at(url).is_some_and(|other| self.row_of(other).is_some()))
    }

    /// Returns the process with the sequence number `life`, unless it has ended.
    pub(super) fn process(&mut self, at: usize, life: u64) -> Option<&mut Process> {
        let host = self.hosts.get_mut(at).filter(|host| host.life == life)?;
        host.process.as_deref_mut()
    }

    /// Defers an event if the process is paused. Returns whether it deferred the event.
    pub(super) fn defer_if_paused(&mut self, at: usize, event: impl FnOnce() -> Event) -> bool {
        let until = self.hosts[at].paused_until;
        let is_paused = until > self.now;
        if is_paused {
            // The threads of a resumed process run in any order, possibly after the messages that arrived during the
            // pause are delivered.
            let at = until + self.rng.below(self.plan.step_max);
            self.queue.push(at, event());
        }
        is_paused
    }

    pub(super) fn take_turn(&mut self, host: usize, life: u64, turn: Turn) {
        let now = self.now;
        let is_due = self.hosts[host].due[turn as usize] == Some(now);
        if !is_due || self.process(host, life).is_none() {
            // The component has been scheduled for an earlier turn instead, or the process has ended.
            return;
        }
        let stalled = match turn {
            Turn::Sync => self.hosts[host].stalled_until.log,
            Turn::Backend => self.hosts[host].stalled_until.backend,
            Turn::Consensus | Turn::Tick | Turn::Append | Turn::Machine => 0,
        };
        let until = self.hosts[host].paused_until.max(stalled);
        if until > now {
            self.hosts[host].due[turn as usize] = Some(until);
            return self.queue.push(until, Event::Turn { host, life, turn });
        }
        self.hosts[host].due[turn as usize] = None;
        let Some(process) = self.process(host, life) else { return };
        if process.work_at(turn, now).is_none_or(|at| at > now) {
            // The work has already been done in another turn, or is not due yet.
            return self.schedule(host);
        }
        let done = process.take_turn(turn, now);
        self.trace.add((host as u64) << 8 | turn as u64);
        self.after_step(host, done);
        if turn == Turn::Consensus {
            self.check_loss(host, life);
        }
    }

    /// Checks that a member stops once it has received proof that its log has lost acknowledged entries.
    fn check_loss(&mut self, host: usize, life: u64) {
        let Some(term) = self.hosts[host].loss_proven_in.take() else { return };
        let Some(process) = self.process(host, life) else { return };
        // A member that has entered a later term may continue, because it ignores the leader that sent the proof.
        if process.status().hard_state.term == term {
            self.judge.fail(|| format!("h{host} continues after proof that its log is lost"));
        }
    }

    /// Processes the outputs of a process, and schedules the next turns of its components.
    pub(super) fn after_step(&mut self, at: usize, done: Result<(), Fatal>) {
        let Some(process) = self.hosts[at].process.as_mut() else { return };
        let out = process.take_outputs();
        let life = self.hosts[at].life;
        // The outputs of a failed turn may or may not have left the process before the failure.
        let are_outputs_sent = done.is_ok() || self.one_in(2);
        if are_outputs_sent {
            for out in out {
                self.handle_output(at, out);
            }
        }
        if self.process(at, life).is_none() {
            return;
        }
        let hit = self.hosts[at].disk.take_faults_hit();
        if let Err(fatal) = done {
            self.log(|| format!("h{at} ends: {fatal} {hit:?}"));
            if hit == FaultsHit::default() {
                self.judge.fail(|| format!("h{at} ends: {fatal}"));
            }
            return self.end_process(at, hit);
        }
        if hit.power_cut || hit.killed {
            // The process ignored the result of the operation at which it ended, so the turn itself has succeeded.
            return self.end_process(at, hit);
        }
        self.schedule(at);
    }

    fn handle_output(&mut self, at: usize, out: Out) {
        match out {
            Out::Send(message) => self.send(at, message),
            Out::Image { message, image } => self.begin_transfer(at, message, image),
            Out::Reply(op, reply) => self.send_reply(op, reply),
            Out::Applying(entries) => {
                self.judge.note_committed(at, &entries);
                self.note_committing(at);
            }
            Out::Published(index) => self.note_published(at, index),
            Out::Installed => {
                self.rare_states.note("a leader's snapshot is installed");
                self.log(|| format!("h{at} has installed a snapshot"));
                if let Some(process) = &self.hosts[at].process {
                    self.judge.compare(at, process.published_state(), 0);
                }
            }
            Out::Members(members) => self.log(|| {
                let rows = members
                    .iter()
                    .map(|one| format!("{:x}{}", one.id.0, if one.is_learner { "?" } else { "" }));
                format!("h{at} knows members {}", rows.collect::<Vec<_>>().join(" "))
            }),
            Out::Leadership(leadership) => {
                self.log(|| format!("h{at} {leadership:?}"));
                self.trace.add(leadership.term.get());
                self.note_leadership(at, leadership);
                if leadership.leader != NONE && leadership.term > Term(2) {
                    self.rare_states.note("leadership changes");
                }
            }
            Out::Removed => {
                // As in production, the process continues to run for a while, because other members may not know about
                // the removal yet.
                let life = self.hosts[at].life;
                self.queue.push(self.now + REMOVAL_PAUSE, Event::MemberRemoved { host: at, life });
            }
            Out::Dropped(dropped) => self.judge.check_dropped(at, dropped),
            Out::Fault(fault) => self.note_fault(at, &fault),
            Out::RareState(what) => self.rare_states.note(what),
        }
    }

    /// Checks that a new leader has all committed entries and is the only leader of its term.
    fn note_leadership(&mut self, at: usize, leadership: Leadership) {
        if leadership.role != Role::Leader {
            return;
        }
        let id = self.hosts[at].id;
        let Some(process) = &self.hosts[at].process else { return };
        self.judge.note_leader(leadership.term, id, process.committed());
        let terms = process.terms();
        self.judge.check_leader(at, leadership.term, |index| terms.at(index));
    }

    /// Checks that a leader commits an entry of an older term only together with a later entry of its own term.
    fn note_committing(&mut self, at: usize) {
        let Some(process) = &self.hosts[at].process else { return };
        let status = process.status();
        if status.soft_state.role == Role::Leader {
            self.judge.check_commit(at, status.hard_state.term, status.hard_state.commit);
        }
    }

    fn note_published(&mut self, at: usize, index: LogIndex) {
        self.trace.add(index.get());
        let Some(process) = &self.hosts[at].process else { return };
        self.judge.check_published(at, index, process.published_state());
        let life = self.hosts[at].life;
        let soon = self.now + self.rng.below(5 * MILLI);
        if self.plan.has(Kind::Watches) {
            self.queue.push(soon, Event::CatchUp { host: at, life });
        }
    }

    /// Shuts down the process of a removed member cleanly.
    fn remove_process(&mut self, at: usize) {
        self.log(|| format!("h{at} ends, because its member was removed"));
        self.stop_process(at);
        self.hosts[at].down = Down::Removed;
    }

    fn note_fault(&mut self, at: usize, fault: &LogFault) {
        self.log(|| format!("h{at} ends: {fault:?}"));
        self.rare_states.note("a member detects that its log is lost");
        self.check_log_fault(at, fault);
        let host = &mut self.hosts[at];
        if let (LogFault::LogLost(_), Some(process)) = (fault, &host.process) {
            // As in production, mark the log as lost before the process ends. If writing the mark fails, the member
            // detects the loss when it restarts.
            drop(lost_log::mark(&**process.disk(), process.dirs(), "lost"));
        }
        self.end_process(at, FaultsHit::default());
        self.hosts[at].down = Down::Broken;
    }

    /// Shuts down a process cleanly.
    pub(super) fn stop_process(&mut self, at: usize) {
        let now = self.now;
        let Some(process) = self.hosts[at].process.as_mut() else { return };
        let stopped = process.stop(now);
        for out in process.take_outputs() {
            match out {
                Out::Reply(..)
                | Out::Applying(_)
                | Out::Leadership(_)
                | Out::Dropped(_)
                | Out::RareState(_) => self.handle_output(at, out),
                // The exchange with other members has ended, and the state has changed since these outputs.
                Out::Send(_)
                | Out::Image { .. }
                | Out::Published(_)
                | Out::Installed
                | Out::Members(_)
                | Out::Removed
                | Out::Fault(_) => {}
            }
        }
        let host = &mut self.hosts[at];
        let Some(process) = host.process.take() else { return };
        host.promised = process.promised;
        let hit = host.disk.take_faults_hit();
        if hit == FaultsHit::default() {
            if let Err(fatal) = stopped {
                self.judge.fail(|| format!("h{at} failed to shut down cleanly: {fatal}"));
            } else if let Some(work) = process.work_left() {
                self.judge.fail(|| format!("h{at} has shut down too early: {work}"));
            }
        }
        self.hosts[at].down = Down::Stopped;
        self.clean_up(at, hit);
    }

    /// Ends a process abruptly. The power of its disk may have failed.
    pub(super) fn end_process(&mut self, at: usize, hit: FaultsHit) {
        let host = &mut self.hosts[at];
        if let Some(process) = host.process.take() {
            host.promised = process.promised;
        }
        host.down = Down::Ended;
        if hit.power_cut {
            self.rare_states.note("the power fails during a step");
        }
        if hit.killed {
            self.rare_states.note("a process is killed between two disk operations");
        }
        if hit.failure {
            self.rare_states.note("the disk fails during a step");
        }
        if hit.no_room {
            self.rare_states.note("a full disk ends a process");
        }
        self.clean_up(at, hit);
    }

    fn clean_up(&mut self, at: usize, hit: FaultsHit) {
        // Without a reboot, reads of a file may return bytes that are not on the medium.
        let reboots = hit.power_cut || hit.failure && self.one_in(2);
        let surviving = match self.rng.below(3) {
            0 => Surviving::None,
            1 => Surviving::All,
            _ => Surviving::Drawn,
        };
        let host = &mut self.hosts[at];
        match reboots {
            true => host.disk.cut_power(surviving, &mut self.rng),
            false => host.disk.end_process(),
        }
        host.paused_until = 0;
        host.stalled_until = StalledUntil::default();
        let life = host.life;
        self.interrupt_transfers(at);
        self.fail_ops(at, life);
        self.notify_peers_of_end(at);
        let restart = self.now + 10 * MILLI + self.rng.below(4 * SECOND);
        if self.hosts[at].down == Down::Ended {
            self.queue.push(restart, Event::Start(at));
        }
    }

    /// Cuts the power of a host.
    pub(super) fn cut_power(&mut self, at: usize) {
        self.end_process(at, FaultsHit { power_cut: true, ..FaultsHit::default() });
    }

    /// Makes peers notice that a process has ended, because their connections to it break and new ones are refused.
    pub(super) fn notify_peers_of_end(&mut self, ended: usize) {
        let id = self.hosts[ended].id;
        for host in 0..self.hosts.len() {
            let is_reachable =
                self.network.is_open(ended, host) && self.network.is_open(host, ended);
            if host != ended
                && is_reachable
                && self.hosts[host].process.is_some()
                && !self.one_in(3)
            {
                let at = self.now + self.rng.below(50 * MILLI);
                let life = self.hosts[host].life;
                self.queue.push(at, Event::PeerGone { host, life, peer: id });
            }
        }
    }

    pub(super) fn note_peer_ended(&mut self, host: usize, life: u64, peer: u64) {
        if self.hosts.iter().any(|other| other.id == peer && other.process.is_some()) {
            self.rare_states.note("a running process is reported as ended");
        }
        if let Some(process) = self.process(host, life) {
            process.note_peer_ended(peer);
            self.schedule(host);
        }
    }

    pub(super) fn note_removed(&mut self, host: usize, life: u64) {
        if self.process(host, life).is_some() {
            self.remove_process(host);
        }
    }

    /// Schedules the next turns of components that have work.
    pub(super) fn schedule(&mut self, at: usize) {
        let life = self.hosts[at].life;
        let Some(process) = self.hosts[at].process.as_deref() else { return };
        if process.has_asked_few_to_confirm_reads() {
            self.rare_states.note("a leader asks only some of the voters to confirm a read");
        }
        if process.defers_commit_notices() {
            self.rare_states.note("a leader defers its commit notices");
        }
        for turn in TURNS {
            let Some(process) = self.hosts[at].process.as_deref() else { return };
            let Some(wanted) = process.work_at(turn, self.now) else { continue };
            let due = self.hosts[at].due[turn as usize];
            if due.is_some_and(|due| due <= wanted.max(self.now)) {
                continue;
            }
            let longest = match turn {
                Turn::Sync | Turn::Backend => self.plan.sync_max,
                Turn::Consensus | Turn::Tick | Turn::Append | Turn::Machine => self.plan.step_max,
            };
            let time = wanted.max(self.now) + 1 + self.rng.below(longest);
            if due.is_some_and(|due| due <= time) {
                continue;
            }
            self.hosts[at].due[turn as usize] = Some(time);
            self.queue.push(time, Event::Turn { host: at, life, turn });
        }
    }

    /// Fails the pending requests of a process that has ended or whose connections were reset.
    pub(super) fn fail_ops(&mut self, at: usize, life: u64) {
        let broken: Vec<u64> = self
            .ops
            .iter()
            .filter(|(_, op)| op.host == at && op.life == life)
            .map(|(id, _)| *id)
            .collect();
        for op in broken {
            let failure = Failure::Unknown("the connection has broken");
            self.send_reply(op, Reply::Failed(failure));
        }
        self.end_watchers(at, life);
    }

    /// Empties a host's directory for a new member.
    pub(super) fn wipe(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.disk.wipe();
        host.disk.set_faults(Faults::default());
        host.forget_promises();
        host.old_copy = None;
        host.is_damaged = false;
        host.awaits_member = true;
        host.down = Down::Stopped;
    }

    /// Returns the directories of a member.
    pub(super) fn dirs() -> quorate_storage::data_dir::DataDir {
        boot::dirs()
    }
}
