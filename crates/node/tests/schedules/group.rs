//! Simulates the nodes and their network with random events.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_node::{Event, Proposal};
use quorate_raft::{LogIndex, MemberId, Message, Role, SnapshotOutcome, Term};
use quorate_seeded_random::SplitMix64;

use crate::member::{Image, Member};

#[derive(Debug)]
pub(crate) struct Group {
    random: SplitMix64,
    members: Vec<Member>,
    network: Vec<(Message, Option<Image>)>,
    /// The member whose messages are lost in both directions.
    isolated: Option<MemberId>,
    /// For each index, the term and data of the entry as first applied by any member, and the digest of all entries up
    /// to that index.
    history: BTreeMap<LogIndex, (Term, Bytes, u64)>,
    next_request: u64,
    /// For each pending read, the highest commit index of any member at the time of the request.
    reads: BTreeMap<(MemberId, u64), LogIndex>,
}

impl Group {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            members: (1..=3).map(Member::new).collect(),
            network: Vec::new(),
            isolated: None,
            history: BTreeMap::new(),
            next_request: 0,
            reads: BTreeMap::new(),
        }
    }

    pub(crate) fn installed_count(&self) -> usize {
        self.members.iter().map(|member| member.installed_count).sum()
    }

    pub(crate) fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let position = self.random.position(self.members.len());
            self.take_random_step(position);
            self.observe();
        }
    }

    fn take_random_step(&mut self, position: usize) {
        let chance = self.random.below(1000);
        let (random, member) = (&mut self.random, &mut self.members[position]);
        match chance {
            0..100 => member.handle(Event::Tick),
            100..350 => member.write(random),
            350..550 => member.work(),
            550..850 => self.deliver(),
            850..930 => self.propose(position),
            930..950 => self.read(position),
            950..960 => member.commit(),
            960..964 => {
                member.crash(random);
                self.reads.retain(|(id, _), _| *id != member.id);
            }
            964..990 => {
                if member.node.is_none() {
                    member.start();
                }
            }
            990..994 => self.isolated = Some(member.id),
            994..998 => self.isolated = None,
            998 => {
                let to = 1 + random.below(3);
                member.handle(Event::TransferLeadership(to));
            }
            // Reports that a peer's process has ended, whether or not it has.
            _ => {
                let peer = 1 + random.below(3);
                member.handle(Event::Gone(peer));
            }
        }
    }

    fn propose(&mut self, position: usize) {
        let count = 1 + self.random.below(4);
        let proposals = (0..count).map(|_| {
            self.next_request += 1;
            let request_id = self.next_request;
            Proposal { request_id, data: Bytes::from(format!("request {request_id}")) }
        });
        let proposals = proposals.collect();
        self.members[position].handle(Event::Propose(proposals));
    }

    fn read(&mut self, position: usize) {
        self.next_request += 1;
        let round = self.next_request;
        let nodes = self.members.iter().filter_map(|member| member.node.as_ref());
        let committed = nodes.map(quorate_node::Node::commit_index).max().unwrap_or_default();
        let member = &mut self.members[position];
        if member.node.is_some() {
            self.reads.insert((member.id, round), committed);
            member.handle(Event::ReadBarrier { round });
        }
    }

    /// Delivers, loses or repeats an in-flight message.
    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        // Usually takes the oldest message, sometimes a random one.
        let any = self.random.below(5) == 0;
        let position = if any { self.random.position(self.network.len()) } else { 0 };
        let (message, image) = self.network.remove(position);
        let isolates = |id| self.isolated == Some(id);
        let lost = isolates(message.to) || isolates(message.from) || self.random.below(30) == 0;
        if !lost && image.is_none() && self.random.below(30) == 0 {
            self.network.push((message.clone(), None));
        }
        let (from, to) = (message.from, message.to);
        let outcome = if lost { SnapshotOutcome::Failed } else { SnapshotOutcome::Finished };
        let is_snapshot = image.is_some();
        if !lost {
            let receiver = self.member(to);
            if let Some(image) = image
                && receiver.node.is_some()
            {
                receiver.disk.received.insert(image.index, image);
            }
            receiver.handle(Event::Received(vec![message]));
        }
        let sender = self.member(from);
        if is_snapshot {
            sender.handle(Event::SnapshotSent { to, outcome });
        } else if lost {
            sender.handle(Event::Unreachable(to));
        }
    }

    fn member(&mut self, id: MemberId) -> &mut Member {
        &mut self.members[usize::try_from(id).unwrap() - 1]
    }

    /// Moves sent messages to the network, and checks the results of applied entries.
    fn observe(&mut self) {
        for member in &mut self.members {
            self.network.append(&mut member.outbox);
            let mut digests = Vec::new();
            for entry in member.applied.drain(..) {
                let known = self.history.get(&entry.index);
                if let Some((term, data, _)) = known {
                    assert_eq!(
                        (*term, data),
                        (entry.term, &entry.data),
                        "all members apply the same entries"
                    );
                } else {
                    digests.push(entry);
                }
            }
            for entry in digests {
                let before = self.history.get(&entry.index.prev());
                let mut image = Image {
                    index: entry.index.prev(),
                    term: Term::ZERO,
                    digest: before.map_or(0, |(_, _, digest)| *digest),
                };
                image.apply(&entry);
                self.history.insert(entry.index, (entry.term, entry.data, image.digest));
            }
            if let Some((term, _, digest)) = self.history.get(&member.image.index) {
                let image = &member.image;
                assert_eq!(
                    (image.term, image.digest),
                    (*term, *digest),
                    "the image contains the state at its index"
                );
            }
            for (round, index) in member.passed.drain(..) {
                if let Some(committed) = self.reads.remove(&(member.id, round)) {
                    assert!(
                        index >= committed,
                        "a read sees all entries that were committed before it"
                    );
                }
            }
        }
    }

    /// Stops injecting faults, and checks that all members then reach the same state.
    pub(crate) fn heal_and_converge(&mut self) {
        self.isolated = None;
        for member in &mut self.members {
            if member.node.is_none() {
                member.start();
            }
        }
        for _ in 0..2_000 {
            for position in 0..self.members.len() {
                self.members[position].handle(Event::Tick);
                self.observe();
            }
            for _ in 0..10_000 {
                if self.network.is_empty() && !self.members.iter().any(Member::is_busy) {
                    break;
                }
                for position in 0..self.members.len() {
                    self.members[position].write(&mut self.random);
                    self.members[position].work();
                    self.observe();
                }
                self.deliver();
                self.observe();
            }
            if self.is_converged() {
                return;
            }
            if self.random.below(20) == 0 {
                self.propose(0);
            }
        }
        panic!("the group did not converge");
    }

    fn is_converged(&self) -> bool {
        let first = &self.members[0].image;
        let leads = |member: &Member| {
            member.node.as_ref().is_some_and(|node| node.leadership().role == Role::Leader)
        };
        self.members.iter().all(|member| member.image == *first)
            && self.members.iter().filter(|member| leads(member)).count() == 1
            && self.history.len() > 50
    }
}
