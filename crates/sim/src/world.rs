//! A run: hosts with their disks and processes, the network between them, clients, an operator, and faults.
//!
//! Events happen one after another in virtual time, and all random numbers come from one generator. A run is therefore
//! a function of its plan.
//!
//! # Phases of a run
//!
//! The founding members start. For the duration of the plan, faults occur while clients send requests and the operator
//! acts. Then the network and the disks are repaired, and the operator restores every member that can be restored.
//! Within a bounded time every member must serve and hold the same state. At the end the results that clients saw are
//! checked.

mod client;
mod ending;
mod faults;
mod hosts;
mod log_end;
mod operator;
mod transfers;

use std::collections::BTreeMap;
use std::time::Instant;

use quorate_history_checker::{Moment, Rules};
use quorate_raft::Message;
use quorate_seeded_random::SplitMix64;

use self::client::{Client, KnownLease, Op, Watching};
use self::ending::Ending;
use self::hosts::Host;
use self::operator::Operator;
use self::transfers::Transfer;
use crate::clock::{MILLI, Micros, SECOND};
use crate::judge::Judge;
use crate::member::{Ask, OpId, Reply, Settings, Turn};
use crate::network::Network;
use crate::plan::{Kind, Plan};
use crate::queue::Queue;
use crate::seen::Seen;
use crate::trace::{Sink, Trace};

/// More events than any run has: one that goes round in circles comes to an end.
const EVENTS_MAX: u64 = 20_000_000;

/// An event of a run.
#[derive(Debug)]
enum Event {
    /// A process is started on a host.
    Start(usize),
    Turn {
        host: usize,
        life: u64,
        turn: Turn,
    },
    Tick {
        host: usize,
        life: u64,
    },
    /// A member looks after its leases, its name, its files.
    House {
        host: usize,
        life: u64,
    },
    Purge {
        host: usize,
        life: u64,
    },
    CatchUp {
        host: usize,
        life: u64,
    },
    Message {
        from: usize,
        to: usize,
        /// On which of the connections that there were between the two.
        connection: u64,
        message: Box<Message>,
    },
    /// A peer was found not to be there.
    Gone {
        host: usize,
        life: u64,
        peer: u64,
    },
    /// Others say that this member was removed.
    ToldRemoved {
        host: usize,
        life: u64,
    },
    /// A piece of a snapshot arrives.
    Piece(u64),
    Client(usize),
    Watcher(usize),
    Ask {
        op: OpId,
        ask: Box<Ask>,
    },
    Answer {
        op: OpId,
        reply: Box<Reply>,
    },
    GiveUp(OpId),
    Strike,
    /// A full disk has room again.
    DiskHasRoom(usize),
    /// The cluster falls into two parts.
    FallApart,
    /// The same at the moment at which a leader is ahead of all others, who is looked at so many times.
    FallApartAhead(u32),
    /// The links that are cut come back.
    Mend,
    Operate,
    /// Directories that were exchanged come back.
    GiveBack(usize),
    Inspect,
    /// From now on nothing goes wrong any more.
    Calm,
    Probe,
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// Virtual time of the cluster.
    pub lasted: Micros,
    /// Which rare states it came to.
    pub seen: Seen,
    /// A number of everything that happened.
    pub sum: u64,
    /// Events.
    pub events: u64,
    /// What was wrong.
    pub wrong: Option<String>,
}

/// The whole state of a run.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    draw: SplitMix64,
    now: Micros,
    origin: Instant,
    queue: Queue<Event>,
    hosts: Vec<Host>,
    /// Where each member was last.
    places: BTreeMap<u64, usize>,
    network: Network,
    transfers: BTreeMap<u64, Transfer>,
    clients: Vec<Client>,
    watching: Vec<Watching>,
    /// Leases that clients know of.
    leases: Vec<KnownLease>,
    ops: BTreeMap<OpId, Op>,
    next_number: u64,
    operator: Operator,
    ending: Ending,
    judge: Judge,
    seen: Seen,
    trace: Trace,
    events: u64,
}

impl World {
    /// The world of a plan. The origin is any instant: clocks of members count from it.
    #[must_use]
    pub fn new(plan: Plan, origin: Instant, sink: Option<Sink>) -> Self {
        let mut draw = SplitMix64::new(plan.seed ^ 0x5eed);
        let hosts = (0..plan.hosts).map(|at| Host::new(at, &plan, &mut draw)).collect();
        let clients = (0..plan.clients).map(|_| Client::default()).collect();
        let watching = (0..plan.watchers).map(|_| Watching::default()).collect();
        let mut world = Self {
            network: Network::new(plan.hosts),
            judge: Judge::new(plan.settings.learner_max),
            draw,
            now: 0,
            origin,
            queue: Queue::default(),
            hosts,
            places: BTreeMap::new(),
            transfers: BTreeMap::new(),
            clients,
            watching,
            leases: Vec::new(),
            ops: BTreeMap::new(),
            next_number: 0,
            operator: Operator::default(),
            ending: Ending::default(),
            seen: Seen::default(),
            trace: Trace::new(sink),
            events: 0,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let kinds: Vec<String> = self.plan.kinds.iter().map(ToString::to_string).collect();
        let (founders, seconds) = (self.plan.founders, self.plan.duration / SECOND);
        self.tell(|| format!("{founders} founders for {seconds} s with {}", kinds.join(" ")));
        for host in 0..self.plan.founders {
            let at = self.draw.below(200 * MILLI);
            self.queue.put(at, Event::Start(host));
        }
        for client in 0..self.clients.len() {
            self.queue.put(self.draw.below(SECOND), Event::Client(client));
        }
        if self.plan.has(Kind::Watches) {
            for watcher in 0..self.watching.len() {
                self.queue.put(self.draw.below(SECOND), Event::Watcher(watcher));
            }
        }
        self.queue.put(2 * SECOND, Event::Strike);
        self.queue.put(2 * SECOND, Event::Operate);
        self.queue.put(SECOND, Event::Inspect);
        self.queue.put(self.plan.duration, Event::Calm);
    }

    /// Lets everything happen.
    #[must_use]
    pub fn run(mut self) -> Run {
        while self.judge.verdict().is_none() && !self.ending.is_over {
            let Some((at, event)) = self.queue.take() else { break };
            self.events += 1;
            if self.events > EVENTS_MAX {
                self.judge.object(|| "the run does not come to its end".to_owned());
                break;
            }
            self.now = at;
            self.trace.count(at);
            self.happen(event);
        }
        if self.judge.verdict().is_none() {
            self.finish_ops();
            self.check_history();
        }
        let wrong = self.judge.verdict().map(str::to_owned);
        if let Some(wrong) = &wrong {
            self.trace.tell(self.now, || format!("WRONG: {wrong}"));
        }
        self.trace.count(self.judge.committed().get());
        Run { lasted: self.now, seen: self.seen, sum: self.trace.sum(), events: self.events, wrong }
    }

    fn check_history(&mut self) {
        let has_jumps = self.plan.has(Kind::ClockJump);
        let lease_slack = (!has_jumps).then_some(400 * MILLI * 1_000);
        // Members that wait for an election longer than others lengthen leases by more.
        let settings = || self.hosts.iter().map(|host| &host.flags.settings);
        let extension = settings().map(|one| one.pace.lease_extension_millis).max();
        let lease_extension = extension.unwrap_or(0) * MILLI * 1_000;
        let fault_free = self.fault_free_for_leases(lease_extension);
        // A leader that was deposed and does not know it renews leases for an election timeout more, by its own clock.
        let timeout = settings().map(Settings::election_timeout_millis).max();
        let renewal_slack = timeout.unwrap_or(0) * MILLI * 1_000 * 102 / 100;
        let rules = Rules { lease_slack, lease_extension, renewal_slack, fault_free };
        self.judge.check_history(&rules);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(host) => self.start(host),
            Event::Turn { host, life, turn } => self.take_turn(host, life, turn),
            Event::Tick { host, life } => self.tick(host, life),
            Event::House { host, life } => self.keep_house(host, life),
            Event::Purge { host, life } => self.purge(host, life),
            Event::CatchUp { host, life } => self.catch_up(host, life),
            Event::Message { from, to, connection, message } => {
                self.deliver((from, to), connection, *message);
            }
            Event::Gone { host, life, peer } => self.note_gone(host, life, peer),
            Event::ToldRemoved { host, life } => self.note_removed(host, life),
            Event::Piece(transfer) => self.carry_piece(transfer),
            Event::Client(client) => self.act(client),
            Event::Watcher(watcher) => self.watch(watcher),
            Event::Ask { op, ask } => self.ask(op, *ask),
            Event::Answer { op, reply } => self.answer(op, *reply),
            Event::GiveUp(op) => self.give_up(op),
            Event::Strike => self.strike(),
            Event::DiskHasRoom(host) => self.lift_full_disk(host),
            Event::FallApart => self.fall_apart(),
            Event::FallApartAhead(looks) => self.fall_apart_ahead(looks),
            Event::Mend => self.network.mend(),
            Event::Operate => self.operate(),
            Event::GiveBack(host) => self.give_back(host),
            Event::Inspect => self.inspect(),
            Event::Calm => self.calm(),
            Event::Probe => self.probe(),
        }
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.trace.tell(self.now, line);
    }

    fn moment(&self) -> Moment {
        Moment(self.now * 1_000)
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A time from now, about as far as this in the mean.
    fn about(&mut self, mean: Micros) -> Micros {
        self.now + mean / 4 + self.draw.below(mean * 3 / 2 + 1)
    }

    /// Whether one in so many.
    const fn one_in(&mut self, count: u64) -> bool {
        self.draw.below(count) == 0
    }

    const fn is_calm(&self) -> bool {
        self.ending.is_calm
    }
}
