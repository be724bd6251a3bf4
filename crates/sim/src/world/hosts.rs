//! Hosts: a disk and the process on it, which starts, takes its turns, and ends in one of several ways.

use quorate_core::bootstrap::{Cluster, Refusal};
use quorate_core::incoming::{self, Sender};
use quorate_node::{Leadership, LogFault};
use quorate_raft::{LogIndex, Message, MessageKind, NONE, Role, Term};
use quorate_state::units::MemberId;
use quorate_storage::disk::{Faults, FaultsHit, FaultyDisk, Surviving};
use quorate_storage::lost_log;

use super::{Event, World};
use crate::clock::{LocalClock, MILLI, Micros, SECOND};
use crate::member::boot::{self, Flags, Found, Others, boot};
use crate::member::{Booted, Failure, Fatal, Out, Process, Promised, Refused, Reply, TURNS, Turn};
use crate::plan::{Kind, Plan, Theme};
use quorate_seeded_random::SplitMix64;

/// Between two looks after leases, as in production.
const HOUSE_EVERY: Micros = 500 * MILLI;

/// How long a leader's snapshot may wait in the log of a member whose disks and process are not held up, until its image
/// is the backend file. Batches are applied meanwhile, and a batch without room is tried again every second.
const INSTALL_MAX: Micros = 10 * SECOND;

/// How long a member that was removed stays, as in production.
const REMOVAL_PAUSE: Micros = SECOND;

/// Why there is no process on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Down {
    /// None was started yet, or the operator has ended it.
    Off,
    /// It has ended, and is started again by whoever looks after processes.
    Ended,
    /// It refuses to start, or would end again: somebody has to do something about its files.
    Broken,
    /// The member was removed.
    Removed,
}

/// Until when parts of a disk stand still.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stalled {
    pub(super) log: Micros,
    pub(super) backend: Micros,
}

/// A machine that a member may run on.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) flags: Flags,
    pub(super) disk: FaultyDisk,
    pub(super) process: Option<Box<Process>>,
    pub(super) down: Down,
    /// Counts the processes that there were.
    pub(super) life: u64,
    /// Until when the process stands still.
    pub(super) paused_until: Micros,
    /// Until when its disk does.
    pub(super) stalled_until: Stalled,
    /// What the last process had promised.
    promised: Promised,
    /// The member's id when it last ran.
    pub(super) id: u64,
    /// When each machine has its next turn.
    due: [Option<Micros>; TURNS.len()],
    /// What its clock counts in a second.
    pace: u64,
    /// A copy of the directory, of another day.
    pub(super) yesterday: Option<FaultyDisk>,
    /// Whose directory it has, and who has its own.
    pub(super) exchanged_with: Option<usize>,
    /// Its directory is bare, and the cluster has no place for it yet.
    pub(super) awaits_place: bool,
    /// Somebody has done something to its files.
    pub(super) is_tampered: bool,
    /// What was done to them cannot be overlooked: no process starts on them.
    pub(super) is_damaged: bool,
    /// A leader of this term has spoken to the process of what its log does not have.
    loss_shown_in: Option<Term>,
    /// When it leads, it names another index for some snapshots than their images have.
    pub(super) names_other_index: bool,
}

impl Host {
    pub(super) fn new(at: usize, plan: &Plan, draw: &mut SplitMix64) -> Self {
        let name = format!("h{at}");
        let initial = (0..plan.founders).map(|at| (format!("h{at}"), url_of(at))).collect();
        let pace = match plan.has(Kind::Drift) {
            true => 990_000 + draw.below(20_001),
            false => 1_000_000,
        };
        Self {
            flags: Flags {
                name,
                initial,
                joins: false,
                token: "sim".to_owned(),
                settings: plan.settings_of(draw),
            },
            disk: FaultyDisk::default(),
            process: None,
            down: Down::Off,
            life: 0,
            paused_until: 0,
            stalled_until: Stalled::default(),
            promised: Promised::default(),
            id: 0,
            due: [None; TURNS.len()],
            pace,
            yesterday: None,
            exchanged_with: None,
            awaits_place: false,
            is_tampered: false,
            is_damaged: false,
            loss_shown_in: None,
            names_other_index: plan.has(Kind::OtherIndex) && draw.below(2) == 0,
        }
    }

    /// Gives each of two hosts the directory of the other, with all that is known of it. Neither runs a process.
    pub(super) fn exchange_directories(one: &mut Self, other: &mut Self) {
        std::mem::swap(&mut one.disk, &mut other.disk);
        std::mem::swap(&mut one.yesterday, &mut other.yesterday);
        std::mem::swap(&mut one.promised, &mut other.promised);
        std::mem::swap(&mut one.id, &mut other.id);
        std::mem::swap(&mut one.down, &mut other.down);
        std::mem::swap(&mut one.is_tampered, &mut other.is_tampered);
        std::mem::swap(&mut one.is_damaged, &mut other.is_damaged);
        // Members number their requests by these: what comes next is new for both.
        let life = one.life.max(other.life);
        (one.life, other.life) = (life, life);
    }

    /// Forgets what was promised: the memory of it is gone.
    pub(super) fn forget(&mut self) {
        self.promised = Promised::default();
    }
}

/// Where peers reach a host.
pub(super) fn url_of(host: usize) -> String {
    format!("http://h{host}:2380")
}

/// The host at this URL.
pub(super) fn host_at(url: &str) -> Option<usize> {
    url.strip_prefix("http://h")?.strip_suffix(":2380")?.parse().ok()
}

/// Who answers a process that starts.
struct Neighbours<'a> {
    world: &'a World,
    asker: usize,
}

impl Others for Neighbours<'_> {
    fn clusters(&self, urls: &[String]) -> Vec<Cluster> {
        let answers = |url: &String| {
            let at = host_at(url)?;
            let host = self.world.hosts.get(at)?;
            let network = &self.world.network;
            let hears = network.is_open(self.asker, at) && network.is_open(at, self.asker);
            let process = host.process.as_ref().filter(|_| hears)?;
            let members = process.readers().facts().members.clone();
            let members = members.iter().map(|member| (member.id, member.clone())).collect();
            Some(Cluster { id: process.cluster_id, members })
        };
        urls.iter().filter_map(answers).collect()
    }
}

impl World {
    /// Starts a process, if there is none.
    pub(super) fn start(&mut self, at: usize) {
        if self.hosts[at].process.is_some() || self.hosts[at].awaits_place {
            return;
        }
        let (flags, disk) = (self.hosts[at].flags.clone(), self.hosts[at].disk.clone());
        let numbers = (self.draw.next_u64(), self.wall_clock());
        // What a start finds, and does not clear away, the next one finds again.
        let one_in = if self.plan.theme == Theme::Crashes { 3 } else { 20 };
        disk.set_faults(Faults { power_cut_after: self.drawn_power_cut(one_in), ..disk.faults() });
        let booted = boot(&disk, &flags, &Neighbours { world: self, asker: at }, numbers);
        let struck = disk.take_faults_hit();
        let (booted, found) = match booted {
            Ok(booted) => booted,
            Err(refused) => return self.note_refusal(at, &refused, struck),
        };
        let host = &mut self.hosts[at];
        host.life += 1;
        let (id, life) = (booted.id(), host.life);
        let (promised, is_damaged) = (host.promised, host.is_damaged);
        host.id = id;
        self.places.insert(id, at);
        self.tell(|| {
            let applied = booted.state().applied().0;
            format!("h{at} starts as {id:x}, applied {applied}, {found:?}")
        });
        self.trace.count(found.last_index.get());
        if found.was_installed {
            self.seen.note("a start finds a snapshot to be installed");
        }
        if found.term < promised.term || found.last_index < promised.log {
            self.judge.object(|| format!("h{at} has promised {promised:?} and has {found:?}"));
        }
        self.check_log_end(at);
        if is_damaged {
            self.judge.object(|| format!("h{at} starts, though its log is damaged"));
        }
        let applied = booted.state().applied();
        if found.last_index < LogIndex(applied.0) {
            self.judge.object(|| {
                let last = found.last_index;
                format!("h{at} starts, though its log ends at {last} and {} is applied", applied.0)
            });
        }
        if applied.0 > 0 {
            self.judge.note_published(at, LogIndex(applied.0), &booted.state().readers());
            self.judge.compare(at, &booted.state().readers(), 0);
        }
        self.judge_past(at, &booted, &found);
        let clock = LocalClock::new(self.origin, self.now, self.hosts[at].pace);
        let process = Process::start(booted, clock, self.now, life);
        let vote = process.vote();
        if promised.vote.term == vote.term && promised.vote != vote {
            self.judge.object(|| format!("h{at} has promised {promised:?}, and knows of {vote:?}"));
        }
        let tick = flags.settings.tick;
        let host = &mut self.hosts[at];
        host.process = Some(Box::new(process));
        host.loss_shown_in = None;
        host.due = [None; TURNS.len()];
        if applied.0 == 0 && flags.joins {
            self.seen.note("a member joins");
        }
        let first = self.draw.below(tick);
        self.queue.put(self.now + first, Event::Tick { host: at, life });
        self.queue.put(self.now + first / 2, Event::House { host: at, life });
        let purge = self.about(self.plan.purge_every);
        self.queue.put(purge, Event::Purge { host: at, life });
        self.after_step(at, Ok(()));
    }

    /// What a member that starts has done before must not keep it from starting.
    fn judge_past(&mut self, at: usize, booted: &Booted, found: &Found) {
        let id = booted.id();
        if *found == Found::default() && self.is_known_to_have_run(at, id) {
            self.judge.object(|| format!("h{at} starts with nothing as {id:x}, which has run"));
        }
        if booted.state().members().is_removed(MemberId(id)) {
            self.judge.object(|| format!("h{at} starts, though it has applied its own removal"));
        }
    }

    /// Whether a member that this host's flags name, and that it reaches, knows where clients reach the host's member.
    fn is_known_to_have_run(&self, at: usize, id: u64) -> bool {
        let flags = &self.hosts[at].flags;
        let others = flags.initial.iter().filter(|(name, _)| *name != flags.name);
        let urls: Vec<String> = others.map(|(_, url)| url.clone()).collect();
        let clusters = Neighbours { world: self, asker: at }.clusters(&urls);
        clusters.iter().any(|cluster| {
            cluster.members.get(&MemberId(id)).is_some_and(|row| !row.client_urls.is_empty())
        })
    }

    /// What a host's wall clock shows, of which temporary names are made. It may have stepped back to where it was before.
    fn wall_clock(&mut self) -> u64 {
        if self.plan.has(Kind::WallClock) && self.one_in(2) {
            self.seen.note("a wall clock steps back");
            return self.draw.below(4);
        }
        self.now
    }

    fn note_refusal(&mut self, at: usize, refused: &Refused, struck: FaultsHit) {
        self.tell(|| format!("h{at} refuses to start: {refused}"));
        self.trace.count(at as u64);
        if struck.power_cut || struck.failure || struck.no_room {
            return self.end_process(at, struck);
        }
        self.hosts[at].disk.end_process();
        // Asking again may help, as long as those who are asked are members.
        if matches!(refused, Refused::Verdict(Refusal::NoCluster(_))) && self.names_a_member(at) {
            self.hosts[at].down = Down::Ended;
            return self.queue.put(self.now + SECOND, Event::Start(at));
        }
        self.seen.note("a member refuses to start");
        if matches!(refused, Refused::Start(_)) {
            self.seen.note("a damaged file is found at the start");
        }
        self.hosts[at].down = if matches!(refused, Refused::Verdict(Refusal::Removed)) {
            Down::Removed
        } else {
            Down::Broken
        };
        self.judge_refusal(at, refused);
    }

    /// Whether a host's flags name another one that is a member.
    fn names_a_member(&self, at: usize) -> bool {
        let own = url_of(at);
        let mut named = self.hosts[at].flags.initial.iter().filter(|(_, url)| *url != own);
        named.any(|(_, url)| host_at(url).is_some_and(|other| self.row_of(other).is_some()))
    }

    /// The process of that life, unless it has ended.
    fn process(&mut self, at: usize, life: u64) -> Option<&mut Process> {
        let host = self.hosts.get_mut(at).filter(|host| host.life == life)?;
        host.process.as_deref_mut()
    }

    /// Whether something that would happen now has to wait, because the process stands still.
    fn waits(&mut self, at: usize, event: impl FnOnce() -> Event) -> bool {
        let until = self.hosts[at].paused_until;
        let is_paused = until > self.now;
        if is_paused {
            // The threads of a resumed process run in any order, and after messages that have arrived meanwhile, too.
            let at = until + self.draw.below(self.plan.step_max);
            self.queue.put(at, event());
        }
        is_paused
    }

    pub(super) fn take_turn(&mut self, host: usize, life: u64, turn: Turn) {
        let now = self.now;
        let is_due = self.hosts[host].due[turn as usize] == Some(now);
        if !is_due || self.process(host, life).is_none() {
            // It was given an earlier turn instead.
            return;
        }
        let stalled = match turn {
            Turn::Sync => self.hosts[host].stalled_until.log,
            Turn::Backend => self.hosts[host].stalled_until.backend,
            Turn::Consensus | Turn::Append | Turn::Machine => 0,
        };
        let until = self.hosts[host].paused_until.max(stalled);
        if until > now {
            self.hosts[host].due[turn as usize] = Some(until);
            return self.queue.put(until, Event::Turn { host, life, turn });
        }
        self.hosts[host].due[turn as usize] = None;
        let Some(process) = self.process(host, life) else { return };
        if process.wants(turn, now).is_none_or(|at| at > now) {
            // What it was for has come to nothing, or is not due yet.
            return self.schedule(host);
        }
        let done = process.take_turn(turn, now);
        self.trace.count((host as u64) << 8 | turn as u64);
        self.after_step(host, done);
        if turn == Turn::Consensus {
            self.check_loss(host, life);
        }
    }

    /// Whoever was shown by its leader that its log has lost what it had acknowledged has stopped.
    fn check_loss(&mut self, host: usize, life: u64) {
        let Some(shown) = self.hosts[host].loss_shown_in.take() else { return };
        let Some(process) = self.process(host, life) else { return };
        // One of a later term has not listened.
        if process.status().hard_state.term == shown {
            self.judge.object(|| format!("h{host} goes on, and was shown that its log is lost"));
        }
    }

    pub(super) fn tick(&mut self, host: usize, life: u64) {
        if self.waits(host, || Event::Tick { host, life }) {
            return;
        }
        let now = self.now;
        let pace = self.hosts[host].pace;
        let Some(process) = self.process(host, life) else { return };
        let next = now + process.settings.tick * 1_000_000 / pace;
        let done = process.tick(now);
        self.queue.put(next, Event::Tick { host, life });
        self.after_step(host, done);
    }

    pub(super) fn keep_house(&mut self, host: usize, life: u64) {
        if self.waits(host, || Event::House { host, life }) {
            return;
        }
        let (now, version) = (self.now, self.plan.version);
        let name = self.hosts[host].flags.name.clone();
        let Some(process) = self.process(host, life) else { return };
        process.look_after_leases(now);
        process.keep_house(&name, version, now);
        self.queue.put(now + HOUSE_EVERY, Event::House { host, life });
        self.after_step(host, Ok(()));
    }

    pub(super) fn purge(&mut self, host: usize, life: u64) {
        if self.waits(host, || Event::Purge { host, life }) {
            return;
        }
        let Some(process) = self.process(host, life) else { return };
        let done = process.purge();
        let at = self.about(self.plan.purge_every);
        self.queue.put(at, Event::Purge { host, life });
        self.after_step(host, done.map(drop));
    }

    /// Carries what a process has let out to where it belongs, and lets its machines have their next turns.
    pub(super) fn after_step(&mut self, at: usize, done: Result<(), Fatal>) {
        let Some(process) = self.hosts[at].process.as_mut() else { return };
        let out = process.take_out();
        let life = self.hosts[at].life;
        // Of what a turn has let out that came to a bad end, others may have heard, or not.
        let is_heard = done.is_ok() || self.one_in(2);
        if is_heard {
            for out in out {
                self.carry(at, out);
            }
        }
        if self.process(at, life).is_none() {
            return;
        }
        let struck = self.hosts[at].disk.take_faults_hit();
        if let Err(fatal) = done {
            self.tell(|| format!("h{at} ends: {fatal} {struck:?}"));
            if struck == FaultsHit::default() {
                self.judge.object(|| format!("h{at} ends: {fatal}"));
            }
            return self.end_process(at, struck);
        }
        if struck.power_cut {
            // It has struck where nobody looks at what came of it.
            return self.end_process(at, struck);
        }
        self.schedule(at);
    }

    fn carry(&mut self, at: usize, out: Out) {
        match out {
            Out::Send(message) => self.send(at, message),
            Out::Image { message, image } => self.begin_transfer(at, message, image),
            Out::Reply(op, reply) => self.reply(op, reply),
            Out::Applying(entries) => {
                self.judge.note_committed(at, &entries);
                self.note_committing(at);
            }
            Out::Published(index) => self.note_published(at, index),
            Out::Installed => {
                self.seen.note("a leader's snapshot is installed");
                self.tell(|| format!("h{at} has installed a snapshot"));
                if let Some(process) = &self.hosts[at].process {
                    self.judge.compare(at, process.readers(), 0);
                }
            }
            Out::Members(members) => self.tell(|| {
                let rows = members
                    .iter()
                    .map(|one| format!("{:x}{}", one.id.0, if one.is_learner { "?" } else { "" }));
                format!("h{at} knows members {}", rows.collect::<Vec<_>>().join(" "))
            }),
            Out::Leadership(leadership) => {
                self.tell(|| format!("h{at} {leadership:?}"));
                self.trace.count(leadership.term.get());
                self.note_leadership(at, leadership);
                if leadership.leader != NONE && leadership.term > Term(2) {
                    self.seen.note("leadership changes");
                }
            }
            Out::Removed => {
                // It stays for a while, as production does: others may not know yet that it may go.
                let life = self.hosts[at].life;
                self.queue.put(self.now + REMOVAL_PAUSE, Event::ToldRemoved { host: at, life });
            }
            Out::GivenUp(given_up) => self.judge.note_given_up(at, given_up),
            Out::Fault(fault) => self.note_fault(at, &fault),
            Out::Seen(what) => self.seen.note(what),
        }
    }

    /// Who leads has everything that was committed before.
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

    /// A leader counts who has an entry only where the entry is of its own term.
    fn note_committing(&mut self, at: usize) {
        let Some(process) = &self.hosts[at].process else { return };
        let status = process.status();
        if status.soft_state.role == Role::Leader {
            self.judge.check_commit(at, status.hard_state.term, status.hard_state.commit);
        }
    }

    fn note_published(&mut self, at: usize, index: LogIndex) {
        self.trace.count(index.get());
        let Some(process) = &self.hosts[at].process else { return };
        self.judge.note_published(at, index, process.readers());
        let life = self.hosts[at].life;
        let soon = self.now + self.draw.below(5 * MILLI);
        if self.plan.has(Kind::Watches) {
            self.queue.put(soon, Event::CatchUp { host: at, life });
        }
    }

    /// Ends the process of a member that was removed, in order.
    fn remove_process(&mut self, at: usize) {
        self.tell(|| format!("h{at} was removed, and ends"));
        self.stop_process(at);
        self.hosts[at].down = Down::Removed;
    }

    fn note_fault(&mut self, at: usize, fault: &LogFault) {
        self.tell(|| format!("h{at} ends: {fault:?}"));
        self.seen.note("a member that has lost its log is told so");
        self.judge_log_fault(at, fault);
        let host = &mut self.hosts[at];
        if let (LogFault::LogLost(_), Some(process)) = (fault, &host.process) {
            // As production does before it ends. What fails here the next start finds out again.
            drop(lost_log::mark(&**process.disk(), process.dirs(), "lost"));
        }
        self.end_process(at, FaultsHit::default());
        self.hosts[at].down = Down::Broken;
    }

    /// Ends a process in order.
    pub(super) fn stop_process(&mut self, at: usize) {
        let now = self.now;
        let host = &mut self.hosts[at];
        let Some(process) = host.process.take() else { return };
        host.promised = process.promised;
        let stopped = process.stop(now);
        let struck = host.disk.take_faults_hit();
        if let Err(fatal) = stopped
            && struck == FaultsHit::default()
        {
            self.judge.object(|| format!("h{at} does not stop in order: {fatal}"));
        }
        self.hosts[at].down = Down::Off;
        self.clean_after(at, struck);
    }

    /// Ends a process at once, with or without the power of its disk.
    pub(super) fn end_process(&mut self, at: usize, struck: FaultsHit) {
        let host = &mut self.hosts[at];
        if let Some(process) = host.process.take() {
            host.promised = process.promised;
        }
        host.down = Down::Ended;
        if struck.power_cut {
            self.seen.note("a power cut strikes in a step");
        }
        if struck.failure {
            self.seen.note("the disk fails in a step");
        }
        if struck.no_room {
            self.seen.note("a full disk ends a process");
        }
        self.clean_after(at, struck);
    }

    fn clean_after(&mut self, at: usize, struck: FaultsHit) {
        // Where the machine is not started anew, what it shows of a file need not be on the medium.
        let reboots = struck.power_cut || struck.failure && self.one_in(2);
        let mercy = match self.draw.below(3) {
            0 => Surviving::None,
            1 => Surviving::All,
            _ => Surviving::Drawn,
        };
        let host = &mut self.hosts[at];
        match reboots {
            true => host.disk.cut_power(mercy, &mut self.draw),
            false => host.disk.end_process(),
        }
        host.paused_until = 0;
        host.stalled_until = Stalled::default();
        let life = host.life;
        self.break_transfers(at);
        self.break_ops(at, life);
        self.tell_peers_gone(at);
        let restart = self.now + 10 * MILLI + self.draw.below(4 * SECOND);
        if self.hosts[at].down == Down::Ended {
            self.queue.put(restart, Event::Start(at));
        }
    }

    /// Cuts the power of a host.
    pub(super) fn cut_power(&mut self, at: usize) {
        self.end_process(at, FaultsHit { power_cut: true, ..FaultsHit::default() });
    }

    /// Peers that see connections break and nobody listen know that a process has ended.
    pub(super) fn tell_peers_gone(&mut self, gone: usize) {
        let id = self.hosts[gone].id;
        for host in 0..self.hosts.len() {
            let hears = self.network.is_open(gone, host) && self.network.is_open(host, gone);
            if host != gone && hears && self.hosts[host].process.is_some() && !self.one_in(3) {
                let at = self.now + self.draw.below(50 * MILLI);
                let life = self.hosts[host].life;
                self.queue.put(at, Event::Gone { host, life, peer: id });
            }
        }
    }

    pub(super) fn note_gone(&mut self, host: usize, life: u64, peer: u64) {
        if let Some(process) = self.process(host, life) {
            process.note_gone(peer);
            self.schedule(host);
        }
    }

    pub(super) fn note_removed(&mut self, host: usize, life: u64) {
        if self.process(host, life).is_some() {
            self.remove_process(host);
        }
    }

    /// Gives machines that have something to do their next turns.
    pub(super) fn schedule(&mut self, at: usize) {
        let life = self.hosts[at].life;
        for turn in TURNS {
            let Some(process) = self.hosts[at].process.as_deref() else { return };
            let Some(wanted) = process.wants(turn, self.now) else { continue };
            let due = self.hosts[at].due[turn as usize];
            if due.is_some_and(|due| due <= wanted.max(self.now)) {
                continue;
            }
            let longest = match turn {
                Turn::Sync | Turn::Backend => self.plan.sync_max,
                Turn::Consensus | Turn::Append | Turn::Machine => self.plan.step_max,
            };
            let when = wanted.max(self.now) + 1 + self.draw.below(longest);
            if due.is_some_and(|due| due <= when) {
                continue;
            }
            self.hosts[at].due[turn as usize] = Some(when);
            self.queue.put(when, Event::Turn { host: at, life, turn });
        }
    }

    /// Where a message goes.
    fn send(&mut self, from: usize, message: Message) {
        self.trace.count(message.kind.to_wire().unsigned_abs().into());
        self.trace.count(message.index.get() ^ message.term.get() << 32);
        self.judge.note_sent(&message);
        let Some(to) = self.places.get(&message.to).copied() else {
            return self.note_lost(from, message.to);
        };
        let may_repeat = message.kind != MessageKind::Propose;
        let (now, link) = (self.now, (from, to));
        let arrivals = self.network.send(link, may_repeat, now, &self.plan, &mut self.draw);
        if arrivals.is_empty() {
            return self.note_lost(from, message.to);
        }
        let connection = self.network.connection(from, to);
        for at in arrivals {
            let message = Box::new(message.clone());
            self.queue.put(at, Event::Message { from, to, connection, message });
        }
    }

    pub(super) fn note_lost(&mut self, from: usize, peer: u64) {
        if let Some(process) = self.hosts[from].process.as_mut() {
            process.note_lost(peer);
        }
    }

    pub(super) fn deliver(
        &mut self,
        (from, to): (usize, usize),
        connection: u64,
        message: Message,
    ) {
        let until = self.hosts[to].paused_until;
        if until > self.now {
            let message = Box::new(message);
            return self.queue.put(until, Event::Message { from, to, connection, message });
        }
        self.network.note_arrival(from, to);
        if connection != self.network.connection(from, to) {
            return self.note_lost(from, message.to);
        }
        // What was on its way when the link was cut may come to nothing.
        if !self.network.is_open(from, to) && self.one_in(2) {
            return;
        }
        let sender = self.sender_of(from, to, &message);
        let Some(own) = self.hosts[to].process.as_ref().map(|process| process.id) else { return };
        if sender.is_none_or(|sender| incoming::admit(own, &message, sender).is_err()) {
            return;
        }
        let host = &mut self.hosts[to];
        if let Some(process) = host.process.as_mut() {
            let is_beyond = process.terms().at(message.commit).is_err();
            if message.kind == MessageKind::Heartbeat && is_beyond {
                host.loss_shown_in = Some(message.term);
            }
            process.receive(message);
            self.schedule(to);
        }
    }

    /// What the sender is to the receiver: a member that it knows, or one that lists both when it is asked. Nothing, if
    /// a connection between the two ends with a greeting: they are of different clusters.
    pub(super) fn sender_of(
        &mut self,
        from: usize,
        to: usize,
        message: &Message,
    ) -> Option<Sender> {
        let sender = self.hosts[from].process.as_deref();
        let receiver = self.hosts[to].process.as_deref()?;
        if sender.is_some_and(|sender| sender.cluster_id != receiver.cluster_id) {
            return None;
        }
        if receiver.removed.contains(&message.from) {
            // It is told, and ends.
            let life = self.hosts[from].life;
            if self.network.is_open(to, from) && self.hosts[from].id == message.from {
                let at = self.now + self.draw.below(20 * MILLI);
                self.queue.put(at, Event::ToldRemoved { host: from, life });
            }
            return Some(Sender::Removed);
        }
        let lists = |id| {
            let members = sender.map(|process| process.readers().facts().members.clone());
            members.is_some_and(|members| members.get(MemberId(id)).is_some())
        };
        let is_member =
            receiver.members.contains(&message.from) || lists(message.from) && lists(message.to);
        Some(if is_member { Sender::Member } else { Sender::Unknown })
    }

    /// Looks at somebody's state, at a revision of chance.
    pub(super) fn inspect(&mut self) {
        self.check_installs();
        let at = self.draw.position(self.hosts.len());
        let next = self.now + SECOND / 2 + self.draw.below(SECOND);
        self.queue.put(next, Event::Inspect);
        let back = i64::try_from(self.draw.below(30)).unwrap_or(0);
        let Some(process) = self.hosts[at].process.as_deref() else { return };
        let current = process.readers().view().current_revision();
        self.judge.compare(at, process.readers(), (current - back).max(1));
        self.judge.compare_rest(at, process.state());
        if process.is_at_rest() {
            self.judge.compare_members(at, process.state(), &process.status().config);
        }
        self.judge.compare_hash(at, process.readers(), current);
        self.judge.compare_hash(at, process.readers(), (current - back).max(1));
    }

    /// A snapshot is installed in bounded time, also where the disk has no room for batches that wait before it.
    fn check_installs(&mut self) {
        for at in 0..self.hosts.len() {
            let host = &self.hosts[at];
            let Some(since) = host.process.as_ref().and_then(|process| process.installs_since())
            else {
                continue;
            };
            let stalled = host.stalled_until.backend.max(host.stalled_until.log);
            let since = since.max(host.paused_until).max(stalled);
            if self.now > since + INSTALL_MAX {
                self.judge.object(|| format!("h{at} does not install a snapshot"));
            }
        }
    }

    /// Fails what clients have asked of a process that has ended.
    pub(super) fn break_ops(&mut self, at: usize, life: u64) {
        let broken: Vec<u64> = self
            .ops
            .iter()
            .filter(|(_, op)| op.host == at && op.life == life)
            .map(|(id, _)| *id)
            .collect();
        for op in broken {
            let failure = Failure::Unknown("the connection has broken");
            self.reply(op, Reply::Failed(failure));
        }
        self.break_watchers(at, life);
    }

    /// A bare directory for a member to come.
    pub(super) fn wipe(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.disk.wipe();
        host.disk.set_faults(Faults::default());
        host.forget();
        host.yesterday = None;
        host.is_damaged = false;
        host.awaits_place = true;
        host.down = Down::Off;
    }

    /// Where the files of a host's member are.
    pub(super) fn dirs() -> quorate_storage::data_dir::DataDir {
        boot::dirs()
    }
}
