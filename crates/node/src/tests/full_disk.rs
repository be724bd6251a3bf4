//! Tests of a leader whose disk has no space for its backend file.

use quorate_raft::Role;

use super::{Member, config, exchange_messages, exchange_messages_without, three};
use crate::Event;

fn note(members: &mut [Member], id: usize, is_short: bool) {
    members[id - 1].handle(Event::BackendSpace { is_short });
}

fn leader(members: &[Member]) -> Option<usize> {
    (1..).zip(members).find(|(_, it)| it.node.leadership().role == Role::Leader).map(|(id, _)| id)
}

fn tick(members: &mut [Member], count: usize) {
    for _ in 0..count {
        members.iter_mut().for_each(|member| member.handle(Event::Tick));
        exchange_messages(members);
    }
}

#[test]
fn a_leader_without_disk_space_transfers_leadership_to_a_member_with_space() {
    let mut members = three();
    note(&mut members, 1, true);
    tick(&mut members, 1);
    assert_eq!(leader(&members), Some(2));
    assert!(members.iter().all(|member| !member.refuses_writes));
}

#[test]
fn a_member_without_disk_space_does_not_accept_leadership() {
    let mut members = three();
    note(&mut members, 1, true);
    note(&mut members, 2, true);
    tick(&mut members, 15);
    assert_eq!(leader(&members), Some(3));
    assert!(members.iter().all(|member| !member.refuses_writes));
}

#[test]
fn writes_are_refused_while_no_member_has_disk_space() {
    let mut members = three();
    (1..=3).for_each(|id| note(&mut members, id, true));
    tick(&mut members, 60);
    assert_eq!(leader(&members), Some(1));
    let refusing = |members: &[Member]| -> Vec<bool> {
        members.iter().map(|member| member.refuses_writes).collect()
    };
    assert_eq!(refusing(&members), [true, false, false]);
    note(&mut members, 3, false);
    tick(&mut members, 700);
    assert_eq!((leader(&members), &*refusing(&members)), (Some(3), &[false; 3][..]));
}

#[test]
fn a_leader_without_disk_space_refuses_writes_while_other_members_are_silent() {
    let mut members = three();
    note(&mut members, 1, true);
    members[0].handle(Event::Tick);
    // The test drops the transfer message, and all messages to the third member, whose responses would keep it eligible
    // to lead.
    members[0].sent.retain(|message| message.to == 2);
    members[0].sent.retain(|it| it.kind != quorate_raft::MessageKind::TimeoutNow);
    for _ in 0..60 {
        members[0].handle(Event::Tick);
        members[0].sent.retain(|it| it.kind != quorate_raft::MessageKind::TimeoutNow);
        exchange_messages_without(&mut members, 3);
    }
    assert_eq!(leader(&members), Some(1));
    assert!(members[0].refuses_writes);
    note(&mut members, 1, false);
    tick(&mut members, 1);
    assert!(!members[0].refuses_writes);
}

#[test]
fn a_sole_voter_without_disk_space_refuses_writes_at_once() {
    let mut members = [Member::start(config(1, &[1]))];
    members[0].finish_writes();
    note(&mut members, 1, true);
    tick(&mut members, 1);
    assert!(members[0].refuses_writes);
    note(&mut members, 1, false);
    tick(&mut members, 1);
    assert!(!members[0].refuses_writes);
}
