//! Simulates a group of members, their network and disks, and random faults.
//!
//! The network loses, repeats and reorders messages and is sometimes partitioned. A crash loses
//! unsynced data. Half of the groups write synchronously, and half through storage threads that
//! fall behind. In half of the groups with storage threads, entries are appended to the in-memory
//! log before their write is done.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_raft::{
    AnyConfChange, ConfChange, ConfChangeKind, ConfChangeStep, ConfChangeV2, ConfState, Config,
    Entry, EntryId, HardState, LOCAL_APPEND, LOCAL_APPLY, LogIndex, MemberId, MemoryStorage,
    Message, MessageKind, Node, Snapshot, SnapshotOutcome, StepError, Storage, Term, Transition,
};
use quorate_seeded_random::SplitMix64;

use crate::history::History;

const MEMBERS: u64 = 5;

/// The parameters of a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) changes_membership: bool,
}

#[derive(Debug)]
struct Member {
    config: Config,
    /// The running node; `None` while the member is down.
    node: Option<Node<MemoryStorage>>,
    /// The written data. `durable` contains the part that survives a crash.
    disk: MemoryStorage,
    durable: MemoryStorage,
    append_work: VecDeque<Message>,
    apply_work: VecDeque<Message>,
    /// The applied index. `durable_applied` is the value that survives a crash.
    applied: LogIndex,
    durable_applied: LogIndex,
    /// The configurations, each with the index from which it is valid.
    conf_states: BTreeMap<LogIndex, ConfState>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Deliver,
    Work,
    Tick,
    Propose,
    Read,
    ChangeMembership,
    Nudge,
    TakeSnapshot,
    CommitStateMachine,
    Crash,
    Restart,
    Partition,
}

/// The probability of each event. Every group has its own probabilities, because one kind of fault
/// may hide a problem that occurs only without that fault.
#[derive(Debug)]
struct Weather {
    weights: Vec<(Event, u64)>,
    /// The percentage of a member's turns in which its disk and state machine are idle.
    idle_disk_percent: u64,
    loss_percent: u64,
    split_percent: u64,
}

impl Weather {
    fn new(random: &mut SplitMix64, changes_membership: bool) -> Self {
        let mut up_to = |most: u64| 1 + random.below(most);
        let weights = vec![
            (Event::Deliver, 400),
            (Event::Work, 250 + up_to(250)),
            (Event::Tick, 20 + up_to(80)),
            (Event::Propose, 10 + up_to(60)),
            (Event::Read, 15),
            (Event::ChangeMembership, if changes_membership { up_to(60) } else { 0 }),
            (Event::Nudge, up_to(20)),
            (Event::TakeSnapshot, up_to(15)),
            (Event::CommitStateMachine, up_to(20)),
            (Event::Crash, up_to(4)),
            (Event::Restart, 30),
            (Event::Partition, up_to(5)),
        ];
        let (idle_disk_percent, loss_percent) = (up_to(80), up_to(10));
        Self { weights, idle_disk_percent, loss_percent, split_percent: up_to(70) }
    }

    fn pick(&self, random: &mut SplitMix64) -> Event {
        let mut at = random.below(self.weights.iter().map(|(_, weight)| weight).sum());
        for (event, weight) in &self.weights {
            if at < *weight {
                return *event;
            }
            at -= weight;
        }
        unreachable!("a number below the sum of the weights selects an event")
    }
}

/// A group of members, its network and its observed history.
#[derive(Debug)]
pub(crate) struct Cluster {
    weather: Weather,
    random: SplitMix64,
    members: BTreeMap<MemberId, Member>,
    network: Vec<Message>,
    /// For each member, its side of the network partition. Members on different sides do not
    /// receive each other's messages.
    sides: BTreeMap<MemberId, bool>,
    appends_early: bool,
    is_faulty: bool,
    history: History,
    proposal_count: u64,
}

impl Cluster {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut random = SplitMix64::new(settings.seed);
        let voters = if settings.changes_membership { 3 } else { 3 + 2 * random.below(2) };
        let template = Config {
            election_tick: 8,
            pre_vote: random.below(100) < 50,
            check_quorum: random.below(100) < 50,
            max_size_per_message: [0, 40, 1 << 20][random.position(3)],
            max_committed_size_per_ready: 1 + random.below(200),
            max_inflight_count: 1 + random.position(5),
            max_uncommitted_size: random.below(2) * 100,
            step_down_on_removal: random.below(100) < 50,
            async_storage_writes: random.below(100) < 50,
            asks_few_to_confirm_reads: random.below(100) < 50,
            ..Config::new(1, 0)
        };
        let members = (1..=MEMBERS).map(|id| {
            let config = Config { id, seed: random.next_u64(), ..template.clone() };
            (id, Member::new(config, if id <= voters { voters } else { 0 }))
        });
        let members = members.collect();
        Self {
            weather: Weather::new(&mut random, settings.changes_membership),
            members,
            network: Vec::new(),
            sides: BTreeMap::new(),
            appends_early: random.below(100) < 50,
            is_faulty: true,
            history: History::default(),
            proposal_count: 0,
            random,
        }
    }

    /// Executes `steps` random events.
    pub(crate) fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let id = 1 + self.random.below(MEMBERS);
            match self.weather.pick(&mut self.random) {
                Event::Deliver => (0..3).for_each(|_| self.deliver_any()),
                Event::Work => self.work(id),
                Event::Tick => self.with(id, Node::tick),
                Event::Propose => self.propose(id),
                Event::Read => self.read(id),
                Event::ChangeMembership => self.change_membership(id),
                Event::Nudge => self.nudge(id),
                Event::TakeSnapshot => self.take_snapshot(id),
                Event::CommitStateMachine => self.commit_state_machine(id),
                Event::Crash => self.crash(id),
                Event::Restart => self.restart(id),
                Event::Partition => self.partition(),
            }
            self.observe(id);
        }
    }

    /// Simulates an action of an operator, of the transport, or of the caller.
    fn nudge(&mut self, id: MemberId) {
        let other = 1 + self.random.below(MEMBERS);
        match self.random.below(8) {
            0 | 1 => self.with(id, |node| node.report_unreachable(other)),
            2 => self.with(id, |node| node.transfer_leader(other)),
            3 => self.with(id, Node::forget_leader),
            4 => self.with(id, |node| node.defer_commit_notices(true)),
            5 => self.with(id, |node| node.defer_commit_notices(false)),
            6 => self.with(id, |node| node.announce_commit(node.commit_index())),
            _ => self.with(id, Node::campaign),
        }
    }

    /// Stops injecting faults, and checks that a leader is then elected and that all voters apply its entries.
    pub(crate) fn heal_and_converge(&mut self) {
        self.is_faulty = false;
        self.sides.clear();
        for id in 1..=MEMBERS {
            self.restart(id);
            // The proposals below follow each other, so followers would learn of each commit only with the next one.
            self.with(id, |node| node.defer_commit_notices(false));
        }
        let last = Bytes::from_static(b"last proposal");
        for _ in 0..400 {
            for id in 1..=MEMBERS {
                self.with(id, Node::tick);
            }
            while !self.network.is_empty() || self.is_busy() {
                (1..=MEMBERS).for_each(|id| self.work(id));
                self.deliver_any();
            }
            let is_applied_by_voters = self.history.index_of(&last).is_some_and(|index| {
                let voters = self.members.values().filter(|member| member.is_in_group());
                voters.clone().count() > 0 && voters.clone().all(|member| member.applied >= index)
            });
            if is_applied_by_voters {
                return;
            }
            let data = last.clone();
            let leader = self.members.values_mut().filter_map(|member| member.node.as_mut());
            for leader in leader.filter(|node| node.is_leader()) {
                let proposed = leader.propose(data.clone());
                assert!(matches!(proposed, Ok(()) | Err(StepError::ProposalDropped)));
            }
        }
        panic!("the last proposal was not applied by all voters: {:#?}", self.describe());
    }

    fn describe(&self) -> Vec<String> {
        let describe = |member: &Member| {
            let node = member.node.as_ref().unwrap();
            let (role, term, applied) = (node.role(), node.term(), member.applied);
            format!("{}: {role:?} term {term} applied {applied}", node.id())
        };
        self.members.values().map(describe).collect()
    }

    fn is_busy(&self) -> bool {
        let is_busy = |member: &Member| {
            let has_ready = member.node.as_ref().is_some_and(Node::has_ready);
            has_ready || !member.append_work.is_empty() || !member.apply_work.is_empty()
        };
        self.members.values().any(is_busy)
    }

    fn member(&mut self, id: MemberId) -> &mut Member {
        self.members.get_mut(&id).expect("there is a member for every id")
    }

    fn with(&mut self, id: MemberId, action: impl FnOnce(&mut Node<MemoryStorage>)) {
        if let Some(node) = &mut self.member(id).node {
            action(node);
        }
    }

    fn observe(&mut self, id: MemberId) {
        if let Some(node) = &self.members[&id].node {
            self.history.observe(node);
        }
    }

    fn propose(&mut self, id: MemberId) {
        self.proposal_count += 1;
        let count = 1 + self.random.below(3);
        let data = Bytes::from(format!("proposal {}", self.proposal_count));
        self.with(id, |node| {
            let proposed = node.propose_batch((0..count).map(|_| data.clone()));
            assert!(matches!(proposed, Ok(()) | Err(StepError::ProposalDropped)));
        });
    }

    fn read(&mut self, id: MemberId) {
        self.proposal_count += 1;
        let context = Bytes::from(format!("read {}", self.proposal_count));
        self.history.observe_read(context.clone());
        self.with(id, |node| node.read_index(context));
    }

    fn change_membership(&mut self, id: MemberId) {
        let mut step = || {
            use ConfChangeKind::{AddLearnerNode, AddNode, RemoveNode, UpdateNode};
            let kinds = [AddNode, AddNode, AddNode, RemoveNode, AddLearnerNode, UpdateNode];
            let kind = kinds[self.random.position(kinds.len())];
            ConfChangeStep { kind, node_id: 1 + self.random.below(MEMBERS) }
        };
        let steps = [step(), step(), step()];
        let change: AnyConfChange = if self.random.below(100) < 60 {
            let ConfChangeStep { kind, node_id } = steps[0];
            ConfChange { kind, node_id, ..ConfChange::default() }.into()
        } else {
            let count = self.random.position(steps.len() + 2) % (steps.len() + 1);
            let transition = Transition::from_wire(self.random.below(3)).unwrap();
            let changes = steps[..count].to_vec();
            ConfChangeV2 { transition, changes, ..ConfChangeV2::default() }.into()
        };
        self.with(id, |node| {
            let proposed = node.propose_conf_change(change);
            assert!(matches!(proposed, Ok(()) | Err(StepError::ProposalDropped)));
        });
    }

    fn partition(&mut self) {
        self.sides.clear();
        if self.random.below(100) < self.weather.split_percent {
            self.sides = (1..=MEMBERS).map(|id| (id, self.random.below(100) < 50)).collect();
        }
    }

    fn deliver_any(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let mut position =
            if self.is_faulty { self.random.position(self.network.len()) } else { 0 };
        // Messages usually arrive in order, as they do on a connection.
        if self.random.below(100) < 70 {
            position = 0;
        }
        let message = if self.is_faulty && self.random.below(100) < 5 {
            self.network[position].clone()
        } else {
            self.network.remove(position)
        };
        let is_cut = self.sides.get(&message.from) != self.sides.get(&message.to);
        let is_lost =
            is_cut || (self.is_faulty && self.random.below(100) < self.weather.loss_percent);
        if message.kind == MessageKind::Snapshot {
            let outcome = if is_lost { SnapshotOutcome::Failed } else { SnapshotOutcome::Finished };
            self.with(message.from, |node| node.report_snapshot(message.to, outcome));
        }
        if is_lost {
            return;
        }
        let to = message.to;
        self.with(to, |node| {
            let described = format!("{message:?}");
            match node.step(message) {
                Ok(()) | Err(StepError::ProposalDropped | StepError::PeerNotFound) => {}
                Err(error) => panic!("member {to} refused {described}: {error}"),
            }
        });
        self.observe(to);
    }

    /// Does some of a member's pending work.
    fn work(&mut self, id: MemberId) {
        if self.members[&id].node.as_ref().is_some_and(Node::has_ready) {
            self.take_ready(id);
        }
        if self.is_faulty && self.random.below(100) < self.weather.idle_disk_percent {
            return;
        }
        if let Some(work) = self.member(id).append_work.pop_front() {
            self.do_append_work(id, work);
        }
        if let Some(work) = self.member(id).apply_work.pop_front() {
            self.apply(id, work.entries);
            self.respond(id, work.responses);
        }
        self.observe(id);
    }

    fn take_ready(&mut self, id: MemberId) {
        let appends_early = self.appends_early;
        let member = self.members.get_mut(&id).unwrap();
        let node = member.node.as_mut().unwrap();
        let is_async = member.config.async_storage_writes;
        let ready = node.ready();
        for state in &ready.read_states {
            self.history.observe_answer(&state.context, state.index);
        }
        let early = ready.messages.iter().filter(|message| message.to == LOCAL_APPEND);
        for work in early.filter(|_| appends_early) {
            node.storage_mut().take(work.snapshot.clone(), work.entries.clone());
        }
        if !is_async {
            let hard_state = ready.hard_state.unwrap_or_default();
            member.write(&mut self.history, hard_state, &ready.entries, ready.snapshot.as_ref());
            if ready.must_sync || ready.snapshot.is_some() {
                member.durable = member.disk.clone();
            }
            member.install(ready.snapshot.as_ref());
            let node = member.node.as_mut().unwrap();
            node.storage_mut().take(ready.snapshot.map(Box::new), ready.entries);
            self.apply(id, ready.committed_entries);
        }
        for message in ready.messages {
            match message.to {
                LOCAL_APPEND => self.member(id).append_work.push_back(message),
                LOCAL_APPLY => self.member(id).apply_work.push_back(message),
                _ => self.network.push(message),
            }
        }
        if !is_async {
            self.with(id, Node::advance);
        }
    }

    fn do_append_work(&mut self, id: MemberId, work: Message) {
        let appends_early = self.appends_early;
        let state = HardState { term: work.term, vote: work.vote, commit: work.commit };
        let member = self.members.get_mut(&id).unwrap();
        member.write(&mut self.history, state, &work.entries, work.snapshot.as_deref());
        if !work.responses.is_empty() {
            member.durable = member.disk.clone();
        }
        member.install(work.snapshot.as_deref());
        if !appends_early {
            let node =
                member.node.as_mut().expect("the pending work of a crashed member is dropped");
            node.storage_mut().take(work.snapshot, work.entries);
        }
        self.respond(id, work.responses);
    }

    fn apply(&mut self, id: MemberId, entries: Vec<Entry>) {
        let member = self.members.get_mut(&id).unwrap();
        let node = member.node.as_mut().expect("the pending work of a crashed member is dropped");
        for entry in entries {
            if entry.index <= member.applied {
                // A snapshot was installed before the state machine reached this entry.
                continue;
            }
            assert_eq!(entry.index, member.applied + 1, "entries are applied in log order");
            self.history.observe_apply(&entry);
            member.applied = entry.index;
            let change =
                AnyConfChange::from_entry(&entry).expect("a membership change can be decoded");
            let applied = change.map(|change| node.apply_conf_change(change));
            // Every member refuses a change that cannot be applied.
            if let Some(Ok(conf_state)) = applied {
                member.conf_states.insert(entry.index, conf_state);
            }
        }
    }

    fn respond(&mut self, id: MemberId, responses: Vec<Message>) {
        for response in responses {
            if response.to != id {
                self.network.push(response);
                continue;
            }
            self.with(id, |node| match node.step_local(response) {
                Ok(()) | Err(StepError::PeerNotFound) => {}
                Err(error) => panic!("{error}"),
            });
        }
    }

    fn take_snapshot(&mut self, id: MemberId) {
        let keep = self.random.below(4);
        let member = self.member(id);
        let Some(node) = &mut member.node else { return };
        let (applied, conf_state) = (node.applied_index(), member.conf_states.clone());
        let conf_state = conf_state.range(..=applied).next_back().map(|(_, state)| state.clone());
        let Some(conf_state) = conf_state else { return };
        // While writes are pending, the node's log may lag behind the disk. In that case no
        // snapshot is taken.
        for storage in [node.storage_mut(), &mut member.disk, &mut member.durable] {
            let created = storage.create_snapshot(applied, conf_state.clone(), Bytes::new());
            if created.is_err() || storage.last_index() < applied {
                return;
            }
        }
        member.durable_applied = member.durable_applied.max(applied);
        let index = applied.saturating_sub(keep);
        for storage in [node.storage_mut(), &mut member.disk, &mut member.durable] {
            if storage.first_index() <= index {
                storage.compact(index).expect("an applied entry is in the log");
            }
        }
    }

    fn commit_state_machine(&mut self, id: MemberId) {
        let member = self.member(id);
        if let Some(node) = &member.node {
            member.durable_applied = member.durable_applied.max(node.applied_index());
        }
    }

    fn crash(&mut self, id: MemberId) {
        let member = self.member(id);
        member.node = None;
        member.append_work.clear();
        member.apply_work.clear();
        member.disk = member.durable.clone();
        member.applied = member.durable_applied;
        member.conf_states.split_off(&(member.applied + 1));
    }

    fn restart(&mut self, id: MemberId) {
        let member = self.member(id);
        if member.node.is_none() {
            member.start();
        }
        self.observe(id);
    }
}

impl Member {
    /// Creates a founding member of a group of `voters`, or a member that waits to be added to the
    /// group.
    fn new(config: Config, voters: u64) -> Self {
        let mut disk = MemoryStorage::new();
        let mut applied = LogIndex::ZERO;
        let conf_state = ConfState { voters: (1..=voters).collect(), ..ConfState::default() };
        if voters > 0 {
            let mut snapshot = Snapshot::default();
            snapshot.metadata.index = LogIndex(1);
            snapshot.metadata.term = Term(1);
            snapshot.metadata.conf_state = conf_state.clone();
            let state = HardState { term: Term(1), vote: 0, commit: LogIndex(1) };
            disk = MemoryStorage::recover(state, snapshot, Vec::new());
            applied = LogIndex(1);
        }
        let mut member = Self {
            config,
            node: None,
            durable: disk.clone(),
            disk,
            append_work: VecDeque::new(),
            apply_work: VecDeque::new(),
            applied,
            durable_applied: applied,
            conf_states: [(applied, conf_state)].into(),
        };
        member.start();
        member
    }

    /// Starts the node from the state on disk. The applied index and the configuration come from the state machine, and
    /// may be newer than the start of the log.
    fn start(&mut self) {
        let applied = self.applied;
        let mut state = self.disk.hard_state();
        state.commit = state.commit.max(applied);
        let first = self.disk.first_index();
        let entries = self.disk.entries(first, self.disk.last_index() + 1, u64::MAX).unwrap();
        let mut begin = Snapshot::default();
        begin.metadata.index = first.prev();
        begin.metadata.term = self.disk.term(first.prev()).unwrap();
        let (_, conf_state) = self.conf_states.range(..=applied).next_back().unwrap();
        begin.metadata.conf_state = conf_state.clone();
        let mut storage = MemoryStorage::recover(state, begin, entries);
        if applied >= first {
            storage.create_snapshot(applied, conf_state.clone(), Bytes::new()).unwrap();
        }
        let config = Config { applied, ..self.config.clone() };
        self.node = Some(Node::new(config, storage).expect("the disk holds a valid state"));
    }

    fn write(
        &mut self,
        history: &mut History,
        state: HardState,
        entries: &[Entry],
        snapshot: Option<&Snapshot>,
    ) {
        if !state.is_empty() {
            self.disk.set_hard_state(state);
        }
        if let Some(snapshot) = snapshot {
            self.disk
                .apply_snapshot(snapshot.clone())
                .expect("a snapshot is newer than the log and the state machine");
        }
        if let Some(first) = entries.first() {
            let index = first.index.prev();
            let term = self.disk.term(index).expect("writes leave no gap");
            history.observe_write(EntryId { term, index }, entries);
            self.disk.append(entries.iter().cloned());
        }
    }

    /// Replaces the state machine with a snapshot.
    fn install(&mut self, snapshot: Option<&Snapshot>) {
        let Some(snapshot) = snapshot else { return };
        let index = snapshot.metadata.index;
        assert!(index > self.applied, "a snapshot is newer than the log and the state machine");
        self.applied = index;
        self.durable_applied = index;
        self.conf_states = [(index, snapshot.metadata.conf_state.clone())].into();
    }

    /// Returns whether the member is an incoming voter according to its own configuration.
    fn is_in_group(&self) -> bool {
        let configuration = self.node.as_ref().map(Node::configuration);
        configuration.is_some_and(|members| members.voters.incoming.0.contains(&self.config.id))
    }
}

/// Writes the snapshot and the entries that a node returned for writing.
trait Take {
    fn take(&mut self, snapshot: Option<Box<Snapshot>>, entries: Vec<Entry>);
}

impl Take for MemoryStorage {
    fn take(&mut self, snapshot: Option<Box<Snapshot>>, entries: Vec<Entry>) {
        if let Some(snapshot) = snapshot {
            self.apply_snapshot(*snapshot)
                .expect("a snapshot is newer than the log and the state machine");
        }
        self.append(entries);
    }
}
