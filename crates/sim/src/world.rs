//! The world of a run: hosts with their disks and processes, the network between them, clients, an operator, and
//! faults.
//!
//! Events happen one after another in virtual time, and all random numbers come from one generator. A run is therefore
//! a function of its plan.
//!
//! # Phases of a run
//!
//! The founding members start. For the duration of the plan, faults occur while clients send requests and the operator
//! acts. Then the network and the disks are repaired, and the operator restores every member that can be restored.
//! Within a bounded time, every member must serve requests and have the same state. At the end, the results that
//! clients received are checked.

mod client;
mod ending;
mod faults;
mod hosts;
mod inspection;
mod log_end;
mod messages;
mod operator;
mod timers;
mod transfers;

use std::collections::BTreeMap;
use std::time::Instant;

use quorate_history_checker::{Moment, Rules};
use quorate_raft::Message;
use quorate_seeded_random::SplitMix64;

use self::client::{Client, KnownLease, Op, WatchClient};
use self::ending::Ending;
use self::hosts::Host;
use self::operator::Operator;
use self::transfers::Transfer;
use crate::clock::{MILLI, Micros, SECOND};
use crate::judge::Judge;
use crate::member::{ClientRequest, OpId, Reply, Settings, Turn};
use crate::network::Network;
use crate::plan::{Kind, Plan};
use crate::queue::Queue;
use crate::rare_states::RareStates;
use crate::trace::{Sink, Trace};

/// The maximum number of events in a run. A run that exceeds this number is assumed to be in an endless loop.
const EVENTS_MAX: u64 = 20_000_000;

/// An event of a run.
#[derive(Debug)]
enum Event {
    /// A process starts on a host.
    Start(usize),
    Turn {
        host: usize,
        life: u64,
        turn: Turn,
    },
    /// A member does its housekeeping: it checks leases, publishes its name, and sets the cluster version.
    Housekeeping {
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
        /// The connection on which the message was sent.
        connection: u64,
        message: Box<Message>,
    },
    /// A member notices that a peer has ended.
    PeerGone {
        host: usize,
        life: u64,
        peer: u64,
    },
    /// A process ends because its member was removed.
    MemberRemoved {
        host: usize,
        life: u64,
    },
    /// A piece of a snapshot arrives.
    SnapshotPiece(u64),
    Client(usize),
    Watcher(usize),
    Request {
        op: OpId,
        request: Box<ClientRequest>,
    },
    Reply {
        op: OpId,
        reply: Box<Reply>,
    },
    GiveUp(OpId),
    Fault,
    /// A full disk has room again.
    DiskHasRoom(usize),
    /// A network partition begins.
    Partition,
    /// A network partition begins once the leader has a higher commit index than all other members. The number is the
    /// maximum number of checks for this condition.
    PartitionAhead(u32),
    /// All cut links are restored.
    RestoreLinks,
    Operate,
    /// The exchange of two directories is reversed.
    ReverseExchange(usize),
    Inspect,
    /// All faults stop.
    EndFaults,
    Probe,
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// The duration of the run in virtual time.
    pub duration: Micros,
    /// The rare states that the run reached.
    pub rare_states: RareStates,
    /// The checksum of all events.
    pub sum: u64,
    /// The number of events.
    pub events: u64,
    /// The reason for the failure, if the run failed.
    pub failure: Option<String>,
}

/// The whole state of a run.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    rng: SplitMix64,
    now: Micros,
    origin: Instant,
    queue: Queue<Event>,
    hosts: Vec<Host>,
    /// The host on which each member last ran.
    member_hosts: BTreeMap<u64, usize>,
    network: Network,
    transfers: BTreeMap<u64, Transfer>,
    clients: Vec<Client>,
    watch_clients: Vec<WatchClient>,
    /// Leases granted to clients.
    leases: Vec<KnownLease>,
    ops: BTreeMap<OpId, Op>,
    next_number: u64,
    operator: Operator,
    ending: Ending,
    judge: Judge,
    rare_states: RareStates,
    trace: Trace,
    events: u64,
}

impl World {
    /// Creates the world of a plan. The members' clocks count from `origin`, which may be any instant.
    #[must_use]
    pub fn new(plan: Plan, origin: Instant, sink: Option<Sink>) -> Self {
        let mut rng = SplitMix64::new(plan.seed ^ 0x5eed);
        let hosts = (0..plan.hosts).map(|at| Host::new(at, &plan, &mut rng)).collect();
        let clients = (0..plan.clients).map(|_| Client::default()).collect();
        let watch_clients = (0..plan.watchers).map(|_| WatchClient::default()).collect();
        let mut world = Self {
            network: Network::new(plan.hosts),
            judge: Judge::new(plan.settings.learner_max),
            rng,
            now: 0,
            origin,
            queue: Queue::default(),
            hosts,
            member_hosts: BTreeMap::new(),
            transfers: BTreeMap::new(),
            clients,
            watch_clients,
            leases: Vec::new(),
            ops: BTreeMap::new(),
            next_number: 0,
            operator: Operator::default(),
            ending: Ending::default(),
            rare_states: RareStates::default(),
            trace: Trace::new(sink),
            events: 0,
            plan,
        };
        world.schedule_first_events();
        world
    }

    fn schedule_first_events(&mut self) {
        let kinds: Vec<String> = self.plan.kinds.iter().map(ToString::to_string).collect();
        let (founders, seconds) = (self.plan.founders, self.plan.duration / SECOND);
        self.log(|| format!("{founders} founders for {seconds} s with {}", kinds.join(" ")));
        for host in 0..self.plan.founders {
            let at = self.rng.below(200 * MILLI);
            self.queue.push(at, Event::Start(host));
        }
        for client in 0..self.clients.len() {
            self.queue.push(self.rng.below(SECOND), Event::Client(client));
        }
        if self.plan.has(Kind::Watches) {
            for watcher in 0..self.watch_clients.len() {
                self.queue.push(self.rng.below(SECOND), Event::Watcher(watcher));
            }
        }
        self.queue.push(2 * SECOND, Event::Fault);
        self.queue.push(2 * SECOND, Event::Operate);
        self.queue.push(SECOND, Event::Inspect);
        self.queue.push(self.plan.duration, Event::EndFaults);
    }

    /// Runs until the end of the run or the first failure.
    #[must_use]
    pub fn run(mut self) -> Run {
        while self.judge.failure().is_none() && !self.ending.is_over {
            let Some((at, event)) = self.queue.pop() else { break };
            self.events += 1;
            if self.events > EVENTS_MAX {
                self.judge.fail(|| format!("the run did not end within {EVENTS_MAX} events"));
                break;
            }
            self.now = at;
            self.trace.add(at);
            self.handle(event);
        }
        if self.judge.failure().is_none() {
            self.finish_ops();
            self.check_history();
        }
        let failure = self.judge.failure().map(str::to_owned);
        if let Some(failure) = &failure {
            self.trace.log(self.now, || format!("FAILURE: {failure}"));
        }
        self.trace.add(self.judge.committed().get());
        Run {
            duration: self.now,
            rare_states: self.rare_states,
            sum: self.trace.sum(),
            events: self.events,
            failure,
        }
    }

    fn check_history(&mut self) {
        let has_jumps = self.plan.has(Kind::ClockJump);
        let lease_slack = (!has_jumps).then_some(400 * MILLI * 1_000);
        // All members have the same lease extension ([`Plan::settings_of`]).
        let settings = || self.hosts.iter().map(|host| &host.flags.settings);
        let extension = settings().map(|one| one.pace.lease_extension_millis).max();
        let lease_extension = extension.unwrap_or(0) * MILLI * 1_000;
        let fault_free = self.fault_free_for_leases(lease_extension);
        // Until a deposed leader notices its successor, it renews leases for up to one more election timeout, measured
        // by its own clock.
        let timeout = settings().map(Settings::election_timeout_millis).max();
        let renewal_slack = timeout.unwrap_or(0) * MILLI * 1_000 * 102 / 100;
        let rules = Rules { lease_slack, lease_extension, renewal_slack, fault_free };
        self.judge.check_history(&rules);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(host) => self.start(host),
            Event::Turn { host, life, turn } => self.take_turn(host, life, turn),
            Event::Housekeeping { host, life } => self.run_housekeeping(host, life),
            Event::Purge { host, life } => self.purge(host, life),
            Event::CatchUp { host, life } => self.catch_up(host, life),
            Event::Message { from, to, connection, message } => {
                self.deliver((from, to), connection, *message);
            }
            Event::PeerGone { host, life, peer } => self.note_peer_ended(host, life, peer),
            Event::MemberRemoved { host, life } => self.note_removed(host, life),
            Event::SnapshotPiece(transfer) => self.handle_piece(transfer),
            Event::Client(client) => self.send_next_request(client),
            Event::Watcher(watcher) => self.watch(watcher),
            Event::Request { op, request } => self.deliver_request(op, *request),
            Event::Reply { op, reply } => self.deliver_reply(op, *reply),
            Event::GiveUp(op) => self.give_up(op),
            Event::Fault => self.inject_fault(),
            Event::DiskHasRoom(host) => self.free_disk(host),
            Event::Partition => self.partition(),
            Event::PartitionAhead(checks) => self.partition_ahead(checks),
            Event::RestoreLinks => self.network.restore_links(),
            Event::Operate => self.operate(),
            Event::ReverseExchange(host) => self.reverse_exchange(host),
            Event::Inspect => self.inspect(),
            Event::EndFaults => self.end_faults(),
            Event::Probe => self.probe(),
        }
    }

    fn log(&mut self, line: impl FnOnce() -> String) {
        self.trace.log(self.now, line);
    }

    fn moment(&self) -> Moment {
        Moment(self.now * 1_000)
    }

    fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Returns a random time in the future, on average `mean` from now.
    fn random_time(&mut self, mean: Micros) -> Micros {
        self.now + mean / 4 + self.rng.below(mean * 3 / 2 + 1)
    }

    /// Returns true with a probability of 1 in `count`.
    const fn one_in(&mut self, count: u64) -> bool {
        self.rng.below(count) == 0
    }

    const fn faults_ended(&self) -> bool {
        self.ending.faults_ended
    }
}
