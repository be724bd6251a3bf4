//! Sends a member random messages. The member may refuse, ignore or accept them, but must not
//! panic.
//!
//! The member's state is meaningless afterwards, so the test does not check anything else.

use bytes::Bytes;
use quorate_raft::{
    AnyConfChange, ConfState, Config, Entry, EntryKind, HardState, LogIndex, MemoryStorage,
    Message, MessageKind, Node, ReadOnlyOption, Snapshot, Term,
};
use quorate_seeded_random::SplitMix64;

pub(crate) fn feed(seed: u64) {
    let mut random = SplitMix64::new(seed);
    let mut node = node(&mut random);
    for _ in 0..300 {
        match random.below(20) {
            0 => node.tick(),
            1 => node.campaign(),
            2 => drop(node.propose(Bytes::from_static(b"data"))),
            3 => node.read_index(Bytes::from_static(b"context")),
            4 => work(&mut node),
            _ => drop(node.step(message(&mut random, &node))),
        }
    }
    work(&mut node);
}

fn node(random: &mut SplitMix64) -> Node<MemoryStorage> {
    let mut snapshot = Snapshot::default();
    snapshot.metadata.index = LogIndex(5);
    snapshot.metadata.term = Term(2);
    snapshot.metadata.conf_state.voters = vec![1, 2, 3];
    let entries =
        (6..9).map(|index| Entry { term: Term(2), index: LogIndex(index), ..Entry::default() });
    let state = HardState { term: Term(2), vote: 0, commit: LogIndex(6) };
    let storage = MemoryStorage::recover(state, snapshot, entries.collect());
    let config = Config {
        election_tick: 3,
        check_quorum: true,
        pre_vote: random.below(100) < 50,
        read_only: if random.below(100) < 80 {
            ReadOnlyOption::Safe
        } else {
            ReadOnlyOption::LeaseBased
        },
        max_inflight_count: 2,
        ..Config::new(1, random.next_u64())
    };
    Node::new(config, storage).expect("the configuration is valid")
}

fn work(node: &mut Node<MemoryStorage>) {
    while node.has_ready() {
        let ready = node.ready();
        if let Some(snapshot) = ready.snapshot {
            node.storage_mut().apply_snapshot(snapshot).expect("a snapshot is newer than the log");
        }
        node.storage_mut().append(ready.entries);
        for entry in &ready.committed_entries {
            if let Ok(Some(change)) = AnyConfChange::from_entry(entry) {
                drop(node.apply_conf_change(change));
            }
        }
        node.advance();
    }
}

/// Returns a random message, which is often nearly valid.
fn message(random: &mut SplitMix64, node: &Node<MemoryStorage>) -> Message {
    let kind = MessageKind::from_wire(i32::try_from(random.below(24)).unwrap()).unwrap();
    let mut message = Message::new(kind, random.below(3));
    message.from = near(random, 2);
    message.term = Term(near(random, node.term().get()));
    message.log_term = Term(near(random, node.term().get()));
    message.index = LogIndex(near(random, node.last_index().get()));
    message.commit = LogIndex(near(random, node.last_index().get()));
    message.vote = near(random, 2);
    message.reject = random.below(100) < 30;
    message.reject_hint = LogIndex(near(random, node.last_index().get()));
    message.entries = entries(random, message.index, message.log_term);
    message.context = bytes(random);
    if random.below(100) < 50 {
        message.snapshot = Some(Box::new(snapshot(random, node)));
    }
    message
}

/// Returns a number that is usually near `center` and sometimes extreme.
fn near(random: &mut SplitMix64, center: u64) -> u64 {
    match random.below(20) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX / 2,
        3 => u64::MAX - 1,
        4..12 => center,
        _ => center.saturating_add(random.below(5)).saturating_sub(2),
    }
}

fn entries(random: &mut SplitMix64, index: LogIndex, term: Term) -> Vec<Entry> {
    let is_in_order = random.below(100) < 70;
    let count = random.below(4);
    let entry = |offset: u64| Entry {
        term: if is_in_order { term } else { Term(near(random, term.get())) },
        index: LogIndex(if is_in_order {
            index.get().wrapping_add(offset + 1)
        } else {
            near(random, index.get())
        }),
        kind: EntryKind::from_wire(i32::try_from(random.below(3)).unwrap()).unwrap(),
        data: bytes(random),
    };
    (0..count).map(entry).collect()
}

fn bytes(random: &mut SplitMix64) -> Bytes {
    match random.below(4) {
        0 => Bytes::new(),
        1 => Bytes::copy_from_slice(&near(random, 2).to_le_bytes()),
        // Adds or removes one of the first few members.
        2 => {
            let (kind, id) = (random.below(4), random.below(6));
            Bytes::from(vec![0x10, kind.to_le_bytes()[0], 0x18, id.to_le_bytes()[0]])
        }
        _ => (0..random.below(12)).map(|_| random.next_u64().to_le_bytes()[0]).collect(),
    }
}

fn snapshot(random: &mut SplitMix64, node: &Node<MemoryStorage>) -> Snapshot {
    let mut list = || -> Vec<u64> { (0..random.below(4)).map(|_| random.below(6)).collect() };
    let conf_state = ConfState {
        voters: list(),
        learners: list(),
        voters_outgoing: list(),
        learners_next: list(),
        auto_leave: false,
    };
    let mut snapshot = Snapshot::default();
    snapshot.metadata.index = LogIndex(near(random, node.last_index().get()));
    snapshot.metadata.term = Term(near(random, node.term().get()));
    snapshot.metadata.conf_state = if random.below(100) < 50 {
        conf_state
    } else {
        ConfState { voters: vec![1, 2, 3], ..ConfState::default() }
    };
    snapshot
}
