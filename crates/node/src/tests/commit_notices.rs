//! Tests of the notices with which a leader announces its commit index.

use super::*;

/// Returns three members, of which the first leads and no member has forwarded a request recently.
fn quiet_three() -> Vec<Member> {
    let mut members = three();
    for _ in 0..10 {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    members
}

/// Returns three members, of which the first defers its commit notices. The last of its two entries is not announced.
fn deferring_three() -> Vec<Member> {
    let mut members = quiet_three();
    for id in 1..=2 {
        members[0].propose(id, "x");
        exchange_messages(&mut members);
    }
    assert!(members[0].node.defers_commit_notices());
    members
}

/// Exchanges messages, and returns the number of appends without entries.
fn notices(members: &mut [Member]) -> usize {
    let mut notices = 0;
    exchange_if(members, |message| {
        notices += usize::from(message.kind == MessageKind::Append && message.entries.is_empty());
        true
    });
    notices
}

fn commit_indexes(members: &[Member]) -> Vec<u64> {
    members.iter().map(|member| member.node.commit_index().get()).collect()
}

#[test]
fn frequent_commits_are_announced_with_the_next_append() {
    let mut members = quiet_three();
    let before = members[0].node.commit_index().get();
    let counts: Vec<usize> = (1..=4)
        .map(|id| {
            members[0].propose(id, "x");
            notices(&mut members)
        })
        .collect();
    assert_eq!(counts, [2, 0, 0, 0]);
    assert_eq!(commit_indexes(&members), [before + 4, before + 3, before + 3]);
    assert!(members[0].node.defers_commit_notices());
    members[0].handle(Event::CommitInterval);
    assert_eq!(notices(&mut members), 0, "entries were committed in the interval");
    members[0].handle(Event::CommitInterval);
    assert_eq!(notices(&mut members), 2);
    assert_eq!(commit_indexes(&members), [before + 4; 3]);
    assert!(!members[0].node.defers_commit_notices());
}

/// The entries of the last append are committed one after the other, and no further append carries the commit index.
#[test]
fn commits_without_appends_are_announced_after_an_interval() {
    let mut members = quiet_three();
    members[0].propose(1, "x");
    exchange_messages(&mut members);
    let before = members[0].node.commit_index().get();
    assert!(members[0].node.defers_commit_notices());
    for id in 2..=5 {
        members[0].propose(id, "x");
    }
    members[0].finish_writes();
    let mut answers = Vec::new();
    for message in std::mem::take(&mut members[0].sent) {
        let to = usize::try_from(message.to).unwrap() - 1;
        members[to].handle(Event::Received(vec![message]));
        members[to].finish_writes();
        answers.append(&mut members[to].sent);
    }
    let mut known = Vec::new();
    for answer in answers.into_iter().filter(|answer| answer.from == 2) {
        members[0].handle(Event::Received(vec![answer]));
        members[0].handle(Event::CommitInterval);
        exchange_messages_without(&mut members, 3);
        known.push(commit_indexes(&members)[1]);
    }
    assert_eq!(known.len(), 4, "{known:?}");
    // After each interval, the follower knows at least the commit index of its beginning.
    for (commit, known) in (before..).zip(known) {
        assert!(known >= commit, "{known} < {commit}");
    }
}

#[test]
fn separate_commits_are_announced_at_once() {
    let mut members = quiet_three();
    for id in 1..=20 {
        members[0].propose(id, "x");
        assert_eq!(notices(&mut members), 2);
        members[0].handle(Event::CommitInterval);
        assert_eq!(notices(&mut members), 0);
    }
}

#[test]
fn a_commit_is_announced_at_once_to_a_member_that_forwards_requests() {
    let mut members = deferring_three();
    let indexes = commit_indexes(&members);
    assert!(indexes[1] < indexes[0]);
    // The reader on the second member waits until that member has applied the last entry.
    members[1].handle(Event::ReadBarrier { round: 1 });
    exchange_messages(&mut members);
    assert_eq!(members[1].passed, [(1, LogIndex(indexes[0]))]);
    assert_eq!(commit_indexes(&members), [indexes[0]; 3]);
    for id in 3..=5 {
        members[1].propose(id, "x");
        exchange_messages(&mut members);
        let indexes = commit_indexes(&members);
        assert_eq!(indexes, [indexes[0]; 3]);
    }
}

/// A removed member receives no append after the leader has applied its removal.
#[test]
fn the_commit_of_a_membership_change_is_announced_at_once() {
    let mut members = deferring_three();
    members[0].holds_applications = true;
    let change =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 3, ..ConfChange::default() };
    members[0].handle(Event::ProposeConfChange { request_id: 3, change });
    exchange_messages(&mut members);
    assert_eq!(members[0].unapplied.len(), 1);
    for member in &members {
        assert_eq!(member.applied.last().unwrap().kind, EntryKind::ConfChange);
    }
}
