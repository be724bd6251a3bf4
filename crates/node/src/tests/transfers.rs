//! Tests of leadership transfers and of requests that arrive during a transfer.

use quorate_raft::{LogIndex, Message, MessageKind, NONE, ProgressState, Role};

use super::{Member, exchange_messages, exchange_messages_without, three};
use crate::{Event, limits};

/// Makes the leader start a transfer to the second member, which does not receive the message.
fn begin_transfer(members: &mut [Member]) {
    members[0].handle(Event::TransferLeadership(2));
    members[0].sent.retain(|message| message.kind != MessageKind::TimeoutNow);
}

fn count_applied(member: &Member, data: &[u8]) -> usize {
    member.applied_data().into_iter().filter(|one| *one == data).count()
}

#[test]
fn requests_during_a_failed_transfer_are_executed_by_the_leader() {
    let mut members = three();
    begin_transfer(&mut members);
    members[0].propose(1, "own");
    members[2].propose(2, "forwarded");
    exchange_messages(&mut members);
    assert!(members[0].refused.is_empty() && count_applied(&members[0], b"own") == 0);
    for _ in 0..11 {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    assert_eq!(members[0].node.leadership().role, Role::Leader, "the transfer is aborted");
    for member in &members {
        assert_eq!(count_applied(member, b"own"), 1);
        assert_eq!(count_applied(member, b"forwarded"), 1);
    }
}

#[test]
fn requests_during_a_transfer_are_executed_by_the_next_leader() {
    let mut members = three();
    members[0].handle(Event::TransferLeadership(2));
    // The leader's message to the second member is in flight.
    members[0].propose(1, "own");
    members[2].propose(2, "forwarded");
    let forwarded = std::mem::take(&mut members[2].sent);
    members[0].handle(Event::Received(forwarded));
    exchange_messages(&mut members);
    assert_eq!(members[1].node.leadership().role, Role::Leader);
    assert!(members.iter().all(|member| member.refused.is_empty()));
    for member in &members {
        assert_eq!(count_applied(member, b"own"), 1);
        assert_eq!(count_applied(member, b"forwarded"), 1);
    }
}

#[test]
fn a_request_forwarded_to_a_former_leader_is_executed_by_the_next_leader() {
    let mut members = three();
    members[2].propose(2, "forwarded");
    let forwarded = std::mem::take(&mut members[2].sent);
    members[0].handle(Event::TransferLeadership(2));
    let transfer = std::mem::take(&mut members[0].sent);
    members[1].handle(Event::Received(transfer));
    members[1].finish_writes();
    let to_first = members[1].sent.iter().filter(|message| message.to == 1).cloned().collect();
    members[0].handle(Event::Received(to_first));
    assert_eq!(
        members[0].node.leadership().leader,
        NONE,
        "the former leader has voted for its successor"
    );
    members[0].handle(Event::Received(forwarded));
    exchange_messages(&mut members);
    assert_eq!(members[1].node.leadership().role, Role::Leader);
    for member in &members {
        assert_eq!(count_applied(member, b"forwarded"), 1);
    }
}

#[test]
fn the_size_of_forwarded_requests_waiting_for_a_transfer_is_bounded() {
    let mut members = three();
    begin_transfer(&mut members);
    members[2].propose(1, "forwarded");
    let message = members[2].sent.pop().unwrap();
    let large = vec![0; 1 << 20];
    let entry = quorate_raft::Entry { data: large.into(), ..message.entries[0].clone() };
    let message = Message { entries: vec![entry], ..message };
    let count = limits::FORWARDED_WAITING_BYTES_MAX >> 20;
    for _ in 0..count + 7 {
        members[0].handle(Event::Received(vec![message.clone()]));
    }
    assert!((7..=8).contains(&members[0].node.take_refused_for_room()));
}

/// Advances the group by one and a half election timeouts, during which the leader's disk is stalled and the members in
/// `answering` answer.
fn stall_leader_with(members: &mut [Member], answering: &[u64]) {
    members[0].propose(1, "stuck");
    for _ in 0..15 {
        members[0].handle(Event::Tick);
        for message in std::mem::take(&mut members[0].sent) {
            assert_ne!(message.kind, MessageKind::TimeoutNow, "no other member can become leader");
            let to = usize::try_from(message.to).unwrap() - 1;
            members[to].handle(Event::Received(vec![message.clone()]));
            // The disk of a member that does not answer is stalled as well.
            if answering.contains(&message.to) {
                members[to].finish_writes();
            }
            for answer in std::mem::take(&mut members[to].sent) {
                members[0].handle(Event::Received(vec![answer]));
            }
        }
    }
}

#[test]
fn a_leader_with_a_stalled_disk_keeps_leadership_without_a_quorum_of_other_members() {
    let mut members: Vec<_> = (1..=2).map(|id| Member::start(super::config(id, &[1, 2]))).collect();
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    stall_leader_with(&mut members, &[2]);
    assert_eq!(members[0].node.leadership().role, Role::Leader);
    members[0].handle(Event::Tick);
    assert!(members[0].sent.iter().any(|message| message.kind == MessageKind::Heartbeat));
}

#[test]
fn a_leader_with_a_stalled_disk_keeps_leadership_if_other_disks_are_also_stalled() {
    for answering in [&[][..], &[2]] {
        let mut members = three();
        stall_leader_with(&mut members, answering);
        assert_eq!(members[0].node.leadership().role, Role::Leader);
        members[0].handle(Event::Tick);
        assert!(members[0].sent.iter().any(|message| message.kind == MessageKind::Heartbeat));
    }
}

#[test]
fn the_number_of_unfinished_log_writes_is_bounded() {
    let mut members = three();
    let _ = exchange_messages_without;
    let writes = u64::try_from(limits::WRITES_MAX).unwrap();
    for request_id in 0..writes + 1 {
        members[0].propose(request_id, "x");
        members[0].sent.clear();
    }
    let full = (writes, crate::ProposalFailure::QueueFull);
    assert_eq!(members[0].refused, [full]);
    let progress = members[0].node.status().progress;
    assert!(progress.values().all(|one| one.state != ProgressState::Snapshot));
    assert!(members[0].node.status().applied < LogIndex(5));
}
