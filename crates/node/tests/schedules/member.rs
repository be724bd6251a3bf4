//! Simulates one node with its disk and its state machine.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_node::{Config, Effect, Event, FlowLimits, Node, Persist, SnapshotPolicy};
use quorate_raft::{
    ConfState, Entry, HardState, LogIndex, MemberId, Message, MessageKind, Snapshot, Term,
};
use quorate_seeded_random::SplitMix64;

/// The state of the state machine after all entries up to an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) index: LogIndex,
    pub(crate) term: Term,
    /// Digest of all applied data.
    pub(crate) digest: u64,
}

impl Image {
    pub(crate) fn apply(&mut self, entry: &Entry) {
        assert_eq!(
            entry.index,
            self.index + 1,
            "each entry is applied directly after the previous one"
        );
        self.index = entry.index;
        self.term = entry.term;
        for byte in entry.data.iter().chain(b"|") {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The state that survives a crash.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    hard_state: HardState,
    /// The position before the first entry of the log.
    base: (LogIndex, Term),
    entries: Vec<Entry>,
    /// The last committed state of the state machine.
    image: Image,
    /// Received images, by the index of their snapshot.
    pub(crate) received: BTreeMap<LogIndex, Image>,
}

impl Disk {
    fn write(&mut self, persist: &Persist) {
        if let Some(snapshot) = &persist.snapshot {
            self.base = (snapshot.metadata.index, snapshot.metadata.term);
            self.entries.clear();
        }
        if let Some(first) = persist.entries.first() {
            let kept = first.index - self.base.0 - 1;
            self.entries.truncate(usize::try_from(kept).unwrap());
            self.entries.extend(persist.entries.iter().cloned());
        }
        if let Some(hard_state) = persist.hard_state {
            self.hard_state = hard_state;
        }
    }
}

/// Pending work of the state machine.
#[derive(Debug)]
enum Work {
    Apply(Vec<Entry>),
    Install(Snapshot),
    Send(Message),
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) node: Option<Node>,
    /// The time in milliseconds, which advances with each event.
    now: u64,
    pub(crate) disk: Disk,
    writes: VecDeque<Persist>,
    work: VecDeque<Work>,
    pub(crate) image: Image,
    /// Messages not yet on the network. A snapshot message comes with its image.
    pub(crate) outbox: Vec<(Message, Option<Image>)>,
    /// Entries applied since the group last checked them.
    pub(crate) applied: Vec<Entry>,
    pub(crate) passed: Vec<(u64, LogIndex)>,
    pub(crate) installed_count: usize,
    life: u64,
}

const VOTERS: [MemberId; 3] = [1, 2, 3];

impl Member {
    pub(crate) fn new(id: MemberId) -> Self {
        let mut member = Self {
            id,
            node: None,
            now: 0,
            disk: Disk::default(),
            writes: VecDeque::new(),
            work: VecDeque::new(),
            image: Image::default(),
            outbox: Vec::new(),
            applied: Vec::new(),
            passed: Vec::new(),
            installed_count: 0,
            life: 0,
        };
        member.start();
        member
    }

    /// Starts the node from the state on disk. Like a server, it first installs a snapshot whose
    /// image is not installed yet.
    pub(crate) fn start(&mut self) {
        assert!(self.node.is_none());
        if self.disk.image.index < self.disk.base.0 {
            self.disk.image = self.disk.received.remove(&self.disk.base.0).unwrap();
        }
        self.image = self.disk.image.clone();
        self.life += 1;
        let policy = SnapshotPolicy {
            entry_count: 60,
            catch_up_count: 10,
            catch_up_bytes: 1500,
            transfer_bytes: 15_000,
        };
        let mut node = Node::new(Config {
            id: self.id,
            election_ticks: 10,
            pre_vote: true,
            initial_tick_advance: true,
            seed: self.id + 100 * self.life,
            first_read_request_id: (self.id << 48) + (self.life << 32),
            proposal_ticks_max: 30,
            fences_stalled_disk: true,
            checks_reconfigurations: true,
            snapshot_policy: policy,
            flow_limits: FlowLimits::default(),
            hard_state: self.disk.hard_state,
            conf_state: ConfState { voters: VOTERS.to_vec(), ..ConfState::default() },
            snapshot_index: self.disk.base.0,
            snapshot_term: self.disk.base.1,
            entries: self.disk.entries.clone(),
            applied: self.image.index,
        })
        .unwrap();
        node.start();
        self.node = Some(node);
        self.collect();
    }

    /// Ends the process. The disk has completed a random part of the requested writes.
    pub(crate) fn crash(&mut self, random: &mut SplitMix64) {
        self.node = None;
        let done = random.position(self.writes.len() + 1);
        for persist in self.writes.drain(..).take(done) {
            self.disk.write(&persist);
        }
        self.writes.clear();
        self.work.clear();
        self.outbox.clear();
    }

    pub(crate) fn handle(&mut self, event: Event) {
        if let Some(node) = &mut self.node {
            self.now += 1;
            node.note_time(self.now);
            node.handle(event);
            node.end_batch();
            self.collect();
        }
    }

    fn collect(&mut self) {
        let Some(node) = &mut self.node else { return };
        while let Some(effect) = node.poll_effect() {
            match effect {
                Effect::Persist(persist) => self.writes.push_back(persist),
                Effect::Send(message) => {
                    assert_ne!(message.kind, MessageKind::Snapshot);
                    self.outbox.push((message, None));
                }
                Effect::SendSnapshot(message) => self.work.push_back(Work::Send(message)),
                Effect::Apply(applying) => self.work.push_back(Work::Apply(applying.entries)),
                Effect::InstallSnapshot(snapshot) => self.work.push_back(Work::Install(snapshot)),
                Effect::BarrierPassed { round, index } => self.passed.push((round, index)),
                Effect::TakeSnapshot => {
                    // The state at the snapshot's index is on disk before the snapshot counts as
                    // taken.
                    self.disk.image = self.image.clone();
                    let index = self.image.index;
                    node.handle(Event::SnapshotTaken { index });
                }
                Effect::Stop(fault) => {
                    panic!("the member stopped, although no disk loses synced data here: {fault}")
                }
                Effect::Leadership(_)
                | Effect::BarrierFailed { .. }
                | Effect::ProposalFailed { .. }
                | Effect::RefuseWrites(_) => {}
            }
        }
    }

    /// Completes a random part of the requested writes on the disk.
    pub(crate) fn write(&mut self, random: &mut SplitMix64) {
        let count = random.position(self.writes.len() + 1);
        let mut token = None;
        for persist in self.writes.drain(..count) {
            self.disk.write(&persist);
            token = Some(persist.token);
        }
        if let Some(token) = token {
            self.handle(Event::Persisted { token });
        }
    }

    /// Performs one item of the state machine's pending work.
    pub(crate) fn work(&mut self) {
        match self.work.pop_front() {
            None => {}
            Some(Work::Apply(entries)) => {
                for entry in &entries {
                    self.image.apply(entry);
                }
                let index = self.image.index;
                self.applied.extend(entries);
                self.handle(Event::Applied { index });
            }
            Some(Work::Install(snapshot)) => {
                let index = snapshot.metadata.index;
                assert!(index > self.image.index, "a snapshot never reverts applied entries");
                self.image = self.disk.received.remove(&index).unwrap();
                assert_eq!(self.image.index, index);
                self.disk.image = self.image.clone();
                self.installed_count += 1;
                self.handle(Event::Applied { index });
            }
            Some(Work::Send(mut message)) => {
                let asked = message.snapshot.take().unwrap();
                assert!(
                    asked.metadata.index <= self.image.index,
                    "a snapshot covers only applied entries"
                );
                let mut snapshot = *asked;
                snapshot.data = Bytes::new();
                snapshot.metadata.index = self.image.index;
                snapshot.metadata.term = self.image.term;
                message.snapshot = Some(Box::new(snapshot));
                self.outbox.push((message, Some(self.image.clone())));
            }
        }
    }

    /// Commits the state machine to the disk.
    pub(crate) fn commit(&mut self) {
        self.disk.image = self.image.clone();
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.writes.is_empty() || !self.work.is_empty() || !self.outbox.is_empty()
    }
}
