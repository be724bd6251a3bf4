//! A member driven by hand: what it hands out, and what it refuses.

use super::*;
use crate::Snapshot;
use crate::storage::MemoryStorage;

/// Storage of a member of a group of `voters` that has applied everything up to index 10, term 1.
fn storage(voters: &[MemberId]) -> MemoryStorage {
    let mut snapshot = Snapshot::default();
    snapshot.metadata.index = 10;
    snapshot.metadata.term = 1;
    snapshot.metadata.conf_state.voters = voters.to_vec();
    MemoryStorage::recover(HardState { term: 1, vote: 0, commit: 10 }, snapshot, Vec::new())
}

fn node(voters: &[MemberId]) -> Node<MemoryStorage> {
    Node::new(Config { pre_vote: false, ..Config::new(1, 1) }, storage(voters)).unwrap()
}

/// Deals with all outstanding work; returns what was committed and sent.
fn settle(node: &mut Node<MemoryStorage>) -> (Vec<Entry>, Vec<Message>) {
    let (mut committed, mut sent) = (Vec::new(), Vec::new());
    while node.has_ready() {
        let ready = node.ready();
        node.storage_mut().append(ready.entries);
        committed.extend(ready.committed_entries);
        sent.extend(ready.messages);
        node.advance();
    }
    (committed, sent)
}

#[test]
fn single_member_elects_itself_and_commits() {
    let mut node = node(&[1]);
    node.campaign();
    let (committed, sent) = settle(&mut node);
    assert!(node.is_leader());
    assert!(sent.is_empty());
    assert_eq!(committed, vec![Entry { term: 2, index: 11, ..Entry::default() }]);
    assert!(node.has_committed_in_term());

    node.propose_batch([Bytes::from_static(b"a"), Bytes::from_static(b"b")]).unwrap();
    let (committed, _) = settle(&mut node);
    let data: Vec<_> = committed.iter().map(|entry| entry.data.as_ref()).collect();
    assert_eq!(data, [b"a", b"b"]);
    assert_eq!((node.commit_index(), node.applied_index()), (13, 13));

    node.read_index(Bytes::from_static(b"read"));
    let ready = node.ready();
    assert_eq!(ready.read_states.len(), 1);
    assert_eq!(ready.read_states[0].index, 13);
}
