//! Measures what a proposal costs the leader: appending the proposal, sending it, committing it and
//! returning it for applying. Followers acknowledge immediately, and writes take no time.
//!
//! `cargo bench -p quorate-raft`

#![expect(clippy::cast_possible_truncation, reason = "tests convert only small numbers")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::print_stdout, reason = "the benchmark prints its results")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_raft::{
    Config, HardState, LOCAL_APPEND, LOCAL_APPLY, LogIndex, MemberId, MemoryStorage, Message,
    MessageKind, Node, Snapshot, Term,
};

const PROPOSALS: usize = 1_000_000;
const LOG_BYTES_MAX: u64 = 4 << 20;

fn main() {
    println!("ns per proposal, leader only, 256 bytes each");
    println!("{:>7} {:>6} {:>8} {:>8}", "voters", "batch", "batched", "single");
    for voters in [1, 3, 5] {
        for batch in [1, 50, 1000] {
            let batched = run(voters, batch, true).as_nanos() / PROPOSALS as u128;
            let single = run(voters, batch, false).as_nanos() / PROPOSALS as u128;
            println!("{voters:>7} {batch:>6} {batched:>8} {single:>8}");
        }
    }
}

fn run(voters: u64, batch: usize, is_batched: bool) -> Duration {
    let mut leader = leader(voters);
    let data = Bytes::from(vec![7; 256]);
    let mut mailbox = Vec::new();
    settle(&mut leader, &mut mailbox);
    let started = Instant::now();
    for _ in 0..PROPOSALS / batch {
        if is_batched {
            let batch = std::iter::repeat_n(data.clone(), batch);
            leader.propose_batch(batch).expect("a leader accepts proposals");
        } else {
            for _ in 0..batch {
                leader.propose(data.clone()).expect("a leader accepts proposals");
            }
        }
        settle(&mut leader, &mut mailbox);
    }
    let elapsed = started.elapsed();
    assert!(leader.applied_index().get() as usize >= PROPOSALS, "all proposals were applied");
    elapsed
}

fn leader(voters: u64) -> Node<MemoryStorage> {
    let mut snapshot = Snapshot::default();
    snapshot.metadata.index = LogIndex(1);
    snapshot.metadata.term = Term(1);
    snapshot.metadata.conf_state.voters = (1..=voters).collect();
    let state = HardState { term: Term(1), vote: 0, commit: LogIndex(1) };
    let storage = MemoryStorage::recover(state, snapshot, Vec::new());
    let config = Config { pre_vote: false, async_storage_writes: true, ..Config::new(1, 1) };
    let mut node = Node::new(config, storage).expect("the configuration is valid");
    node.campaign();
    node
}

/// Does all of the leader's pending work, and acknowledges appends on behalf of all other members.
fn settle(leader: &mut Node<MemoryStorage>, mailbox: &mut Vec<Message>) {
    while leader.has_ready() {
        let ready = leader.ready();
        for message in ready.messages {
            match message.to {
                LOCAL_APPEND => {
                    leader.storage_mut().append(message.entries);
                    mailbox.extend(message.responses);
                }
                LOCAL_APPLY => mailbox.extend(message.responses),
                follower => mailbox.extend(answer(follower, &message)),
            }
        }
        for message in mailbox.drain(..) {
            let is_own = message.from == 1 || message.from >= LOCAL_APPLY;
            let stepped = if is_own { leader.step_local(message) } else { leader.step(message) };
            stepped.expect("the leader accepts a valid message");
        }
    }
    let applied = leader.applied_index();
    if let Some(index) = leader.storage().compact_index_for(LOG_BYTES_MAX) {
        leader.storage_mut().compact(index.min(applied)).expect("the index is in the log");
    }
}

fn answer(follower: MemberId, message: &Message) -> Option<Message> {
    let kind = match message.kind {
        MessageKind::Append => MessageKind::AppendResponse,
        MessageKind::Vote => MessageKind::VoteResponse,
        _ => return None,
    };
    let mut answer = Message::new(kind, 1);
    answer.from = follower;
    answer.term = message.term;
    answer.index = message.index + message.entries.len() as u64;
    Some(answer)
}
