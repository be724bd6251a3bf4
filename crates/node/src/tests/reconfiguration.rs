//! Tests of membership changes that wait: for an earlier change, after which the leader checks again that they leave a
//! quorum, or for a leader.

use super::*;
use crate::reconfiguration::Danger;

const ADD: ConfChangeKind = ConfChangeKind::AddNode;
const REMOVE: ConfChangeKind = ConfChangeKind::RemoveNode;

/// Starts a cluster of four voters. The first three run, and the first one leads.
fn three_of_four(checks_reconfigurations: bool) -> Vec<Member> {
    let config = |id| Config { checks_reconfigurations, ..config(id, &[1, 2, 3, 4]) };
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id))).collect();
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange(&mut members);
    }
    members[0].handle(Event::Tick);
    exchange(&mut members);
    members[0].holds_applications = true;
    members
}

/// Exchanges messages between the first three members. Other members are down.
fn exchange(members: &mut [Member]) {
    exchange_if(members, |message| message.to <= 3);
}

fn propose_change(member: &mut Member, id: u64, kind: ConfChangeKind, node_id: u64) {
    let change = ConfChange { id, kind, node_id, ..ConfChange::default() };
    member.handle(Event::ProposeConfChange { request_id: id, change });
}

/// Makes a member apply all entries that it has received. The last membership change among them results in `voters`.
fn apply_change(member: &mut Member, voters: &[u64]) {
    let changes = member.applied.iter().rev().filter(|entry| entry.kind == EntryKind::ConfChange);
    let entry = changes.clone().next().expect("a change is committed");
    let members = ConfState { voters: voters.to_vec(), ..ConfState::default() };
    let change = wire::decode_v1(&entry.data).ok();
    let index = entry.index;
    member.handle(Event::ConfChangeDecided(ConfChangeDecision { index, change, members }));
    for index in std::mem::take(&mut member.unapplied) {
        member.handle(Event::Applied { index });
    }
}

/// Returns the ids of the membership changes in the leader's log, as far as they are committed.
fn committed_changes(leader: &Member) -> Vec<u64> {
    let changes = leader.applied.iter().filter(|entry| entry.kind == EntryKind::ConfChange);
    changes.map(|entry| wire::decode_v1(&entry.data).unwrap().id).collect()
}

#[test]
fn a_held_removal_is_refused_if_the_previous_removal_has_made_it_unsafe() {
    let mut members = three_of_four(true);
    // Each removal leaves two of three voters. Both removals would leave one of two voters.
    propose_change(&mut members[0], 1, REMOVE, 2);
    propose_change(&mut members[0], 2, REMOVE, 3);
    exchange(&mut members);
    apply_change(&mut members[0], &[1, 3, 4]);
    exchange(&mut members);
    assert_eq!(members[0].refused, [(2, ProposalFailure::UnsafeChange(Danger::Unhealthy))]);
    assert_eq!(committed_changes(&members[0]), [1]);
    members[0].propose(3, "a write after the changes");
    exchange(&mut members);
    assert!(members[0].applied_data().contains(&&b"a write after the changes"[..]));
    let notes = members[0].node.take_notes();
    let text = "rejecting a membership change (RemoveNode 3) that waited for an earlier change; too few voters have \
                been connected for the required time";
    assert!(notes.iter().any(|note| note.text == text), "{notes:?}");
}

#[test]
fn a_held_removal_of_another_member_is_dropped_if_it_has_become_unsafe() {
    let mut members = three_of_four(true);
    propose_change(&mut members[0], 1, REMOVE, 2);
    propose_change(&mut members[2], 2, REMOVE, 3);
    exchange(&mut members);
    assert_eq!(members[0].node.held_change_count(), 1);
    apply_change(&mut members[0], &[1, 3, 4]);
    exchange(&mut members);
    assert_eq!(committed_changes(&members[0]), [1]);
}

#[test]
fn a_held_removal_of_a_disconnected_voter_is_proposed() {
    let mut members = three_of_four(true);
    propose_change(&mut members[0], 1, REMOVE, 2);
    propose_change(&mut members[0], 2, REMOVE, 4);
    exchange(&mut members);
    apply_change(&mut members[0], &[1, 3, 4]);
    exchange(&mut members);
    assert_eq!(committed_changes(&members[0]), [1, 2]);
    assert!(members[0].refused.is_empty());
}

#[test]
fn held_additions_are_refused_once_too_few_voters_have_started() {
    let mut members = three();
    members[0].holds_applications = true;
    for id in 1..=3 {
        propose_change(&mut members[0], id, ADD, 10 + id);
    }
    exchange(&mut members);
    apply_change(&mut members[0], &[1, 2, 3, 11]);
    exchange(&mut members);
    apply_change(&mut members[0], &[1, 2, 3, 11, 12]);
    exchange(&mut members);
    assert_eq!(committed_changes(&members[0]), [1, 2], "three of five voters have started");
    assert_eq!(members[0].refused, [(3, ProposalFailure::UnsafeChange(Danger::Unhealthy))]);
}

#[test]
fn held_changes_are_not_checked_without_the_strict_reconfiguration_check() {
    let mut members = three_of_four(false);
    propose_change(&mut members[0], 1, REMOVE, 2);
    propose_change(&mut members[0], 2, REMOVE, 3);
    exchange(&mut members);
    apply_change(&mut members[0], &[1, 3, 4]);
    exchange(&mut members);
    assert!(members[0].refused.is_empty());
    assert_eq!(members[0].node.held_change_count(), 0);
}

#[test]
fn a_change_that_waits_only_for_the_first_entry_of_a_new_leader_is_not_checked_again() {
    // The log has an entry that the leader has not applied, so the leader holds membership changes at first.
    let entries = vec![Entry { term: Term(1), index: LogIndex(1), ..Entry::default() }];
    let hard_state = HardState { term: Term(1), ..HardState::default() };
    let config = |id| Config { hard_state, entries: entries.clone(), ..config(id, &[1, 2, 3]) };
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id))).collect();
    propose_change(&mut members[0], 1, REMOVE, 2);
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        // The new leader has not received any response from the third member yet.
        exchange_messages_without(&mut members, 3);
    }
    exchange_messages_without(&mut members, 3);
    assert!(members[0].refused.is_empty());
    assert_eq!(committed_changes(&members[0]), [1]);
}

#[test]
fn a_withdrawn_membership_change_is_not_proposed() {
    let removal = |request_id, node_id| {
        let kind = ConfChangeKind::RemoveNode;
        let change = ConfChange { id: request_id, kind, node_id, ..ConfChange::default() };
        Event::ProposeConfChange { request_id, change }
    };
    // The first change waits for a leader.
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id, &[1, 2, 3]))).collect();
    members[0].handle(removal(7, 3));
    members[0].handle(Event::Withdraw(vec![7]));
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    // The third change waits until the second one is applied.
    members[0].handle(removal(8, 3));
    members[0].handle(removal(9, 2));
    assert_eq!(members[0].node.held_change_count(), 1);
    members[0].handle(Event::Withdraw(vec![9]));
    assert_eq!(members[0].node.held_change_count(), 0);
    exchange_messages(&mut members);
    let proposed: Vec<_> = members[0].changes().iter().map(|change| change.id).collect();
    assert_eq!(proposed, [8]);
}

#[test]
fn a_forwarded_membership_change_does_not_wait_for_a_leader() {
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id, &[1, 2, 3]))).collect();
    let change =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 3, ..ConfChange::default() };
    let data = wire::encode_v1(&change);
    let forwarded = Entry { kind: EntryKind::ConfChange, data, ..Entry::default() };
    let wanted = Entry { data: Bytes::from_static(b"x"), ..Entry::default() };
    let entries = vec![forwarded, wanted];
    let message = Message { from: 2, entries, ..Message::new(MessageKind::Propose, 1) };
    members[0].handle(Event::Received(vec![message]));
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    assert!(members[0].applied_data().contains(&&b"x"[..]));
    assert!(members[0].changes().is_empty());
}
