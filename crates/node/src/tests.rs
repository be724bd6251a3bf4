//! Nodes driven by hand: a disk that finishes when told, a state machine that counts.

use bytes::Bytes;
use quorate_raft::{ConfState, Entry, HardState, Message, Role};

use crate::{BarrierFailure, Config, Effect, Event, Node, Proposal, SnapshotPolicy, StartError};

fn config(id: u64, voters: &[u64]) -> Config {
    Config {
        id,
        election_ticks: 10,
        pre_vote: true,
        initial_tick_advance: true,
        seed: id,
        first_read_request_id: id << 48,
        proposal_ticks_max: 70,
        fences_stalled_disk: true,
        snapshot_policy: SnapshotPolicy::default(),
        hard_state: HardState::default(),
        conf_state: ConfState { voters: voters.to_vec(), ..ConfState::default() },
        snapshot_index: 0,
        snapshot_term: 0,
        entries: Vec::new(),
        applied: 0,
    }
}

/// A node and what has come out of it.
struct Member {
    node: Node,
    applied: Vec<Entry>,
    sent: Vec<Message>,
    unfinished_writes: Vec<u64>,
    passed: Vec<(u64, u64)>,
    failed: Vec<(u64, BarrierFailure)>,
    snapshots: usize,
    installed: Vec<u64>,
}

impl Member {
    fn start(config: Config) -> Self {
        let mut member = Self {
            node: Node::new(config).unwrap(),
            applied: Vec::new(),
            sent: Vec::new(),
            unfinished_writes: Vec::new(),
            passed: Vec::new(),
            failed: Vec::new(),
            snapshots: 0,
            installed: Vec::new(),
        };
        member.node.start();
        member.collect();
        member
    }

    fn handle(&mut self, event: Event) {
        self.node.handle(event);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(effect) = self.node.poll_effect() {
            match effect {
                Effect::Persist(persist) => self.unfinished_writes.push(persist.token),
                Effect::Send(message) | Effect::SendSnapshot(message) => self.sent.push(message),
                Effect::InstallSnapshot(snapshot) => {
                    let index = snapshot.metadata.index;
                    self.installed.push(index);
                    self.node.handle(Event::Applied { index });
                }
                Effect::Apply(applying) => {
                    let index = applying.entries.last().unwrap().index;
                    self.applied.extend(applying.entries);
                    self.node.handle(Event::Applied { index });
                }
                Effect::BarrierPassed { round, index } => self.passed.push((round, index)),
                Effect::BarrierFailed { round, failure } => self.failed.push((round, failure)),
                Effect::TakeSnapshot => self.snapshots += 1,
                Effect::Leadership(_) | Effect::ProposalFailed { .. } => {}
            }
        }
    }

    fn finish_writes(&mut self) {
        while let Some(token) = self.unfinished_writes.pop() {
            self.unfinished_writes.clear();
            self.handle(Event::Persisted { token });
        }
    }

    fn propose(&mut self, request_id: u64, data: &'static str) {
        let data = Bytes::from_static(data.as_bytes());
        self.handle(Event::Propose(vec![Proposal { request_id, data }]));
    }

    fn applied_data(&self) -> Vec<&[u8]> {
        self.applied.iter().map(|entry| &entry.data[..]).collect()
    }
}

/// Lets members talk until nobody has anything to say.
fn converse(members: &mut [Member]) {
    loop {
        for member in &mut *members {
            member.finish_writes();
        }
        let messages: Vec<Message> =
            members.iter_mut().flat_map(|member| std::mem::take(&mut member.sent)).collect();
        if messages.is_empty() {
            break;
        }
        for message in messages {
            let to = usize::try_from(message.to).unwrap() - 1;
            members[to].handle(Event::Received(vec![message]));
        }
    }
}

fn three() -> Vec<Member> {
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id, &[1, 2, 3]))).collect();
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        converse(&mut members);
    }
    members
}

#[test]
fn a_lone_voter_leads_at_once_and_applies_only_what_is_durable() {
    let mut member = Member::start(config(1, &[1]));
    member.finish_writes();
    assert_eq!(member.node.leadership().role, Role::Leader);
    assert!(member.node.is_sole_voter());
    assert_eq!(member.applied.len(), 1, "the entry that opens the term");
    member.propose(1, "a");
    member.propose(2, "b");
    assert_eq!(member.applied.len(), 1, "nothing is durable yet");
    member.finish_writes();
    assert_eq!(member.applied_data(), [&b""[..], b"a", b"b"]);
}

#[test]
fn proposals_wait_for_a_leader() {
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id, &[1, 2, 3]))).collect();
    members[0].propose(1, "early");
    assert!(members[0].sent.is_empty());
    while members[0].applied.is_empty() {
        members[0].handle(Event::Tick);
        converse(&mut members);
    }
    assert_eq!(members[2].applied_data(), [&b""[..], b"early"]);
}

#[test]
fn a_barrier_passes_with_a_quorum_and_fails_with_the_leader() {
    let mut members = three();
    members[0].propose(1, "a");
    converse(&mut members);
    members[1].handle(Event::ReadBarrier { round: 7 });
    assert!(members[1].passed.is_empty());
    converse(&mut members);
    assert_eq!(members[1].passed, [(7, 2)]);
    // The leader falls silent with a barrier under way; another one comes up.
    members[1].handle(Event::ReadBarrier { round: 8 });
    members[1].sent.clear();
    let mut others = members.split_off(1);
    for member in &mut others {
        for _ in 0..10 {
            member.handle(Event::Tick);
            member.sent.clear();
        }
    }
    for _ in 0..20 {
        others[1].handle(Event::Tick);
        let messages = std::mem::take(&mut others[1].sent);
        for message in messages.into_iter().filter(|message| message.to == 2) {
            others[0].handle(Event::Received(vec![message]));
            others[0].finish_writes();
        }
        for message in std::mem::take(&mut others[0].sent) {
            if message.to == 3 {
                others[1].handle(Event::Received(vec![message]));
                others[1].finish_writes();
            }
        }
        if others[0].node.leadership().leader == 3 {
            break;
        }
    }
    assert_eq!(others[0].node.leadership().leader, 3);
    assert_eq!(others[0].failed, [(8, BarrierFailure::LeaderChanged)]);
}

#[test]
fn a_snapshot_is_asked_for_once_until_it_is_taken() {
    let policy = SnapshotPolicy { entry_count: 10, catch_up_count: 5, catch_up_bytes: 1 << 20 };
    let mut member = Member::start(Config { snapshot_policy: policy, ..config(1, &[1]) });
    for request_id in 0..30 {
        member.propose(request_id, "x");
        member.finish_writes();
    }
    assert_eq!(member.snapshots, 1);
    member.handle(Event::SnapshotTaken { index: 11 });
    member.propose(31, "x");
    member.finish_writes();
    assert_eq!(member.snapshots, 2);
}

#[test]
fn the_log_in_memory_is_bounded_in_bytes() {
    let policy =
        SnapshotPolicy { entry_count: 1 << 30, catch_up_count: 1 << 30, catch_up_bytes: 10_000 };
    let mut member = Member::start(Config { snapshot_policy: policy, ..config(1, &[1]) });
    let data = Bytes::from(vec![0; 1000]);
    for request_id in 0..50 {
        member.handle(Event::Propose(vec![Proposal { request_id, data: data.clone() }]));
        member.finish_writes();
        assert!(member.node.log_bytes() <= 11_100);
    }
    assert_eq!(member.applied.len(), 51);
}

#[test]
fn a_restart_goes_on_where_the_state_machine_is() {
    let mut first = Member::start(config(1, &[1]));
    first.finish_writes();
    for request_id in 0..5 {
        first.propose(request_id, "x");
        first.finish_writes();
    }
    let entries = first.applied.clone();
    // The commit index on disk lags behind what was applied, as after any kill.
    let hard_state = HardState { term: entries[0].term, vote: 1, commit: 1 };
    let again = Config { hard_state, entries: entries.clone(), applied: 4, ..config(1, &[1]) };
    let mut second = Member::start(again.clone());
    second.finish_writes();
    let indexes: Vec<u64> = second.applied.iter().map(|entry| entry.index).collect();
    assert_eq!(indexes, [5, 6, 7]);
    let lost = Config { applied: 9, ..again };
    assert!(matches!(Node::new(lost), Err(StartError::LogLost { last_index: 6, applied: 9 })));
}
