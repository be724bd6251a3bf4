//! Tests of stalled disks, and of leaders that may have been deposed.

use quorate_raft::{ConfChange, ConfChangeKind, Message, MessageKind, NONE, Role, Term};

use super::{Member, config, exchange_messages, three};
use crate::{Config, Event};

/// Returns three members that have exchanged messages for some ticks. The first one leads.
fn three_after_ticks() -> Vec<Member> {
    let mut members = three();
    for _ in 0..3 {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    members
}

/// Advances a member whose disk is stalled until an election timeout has passed.
fn stall(member: &mut Member) {
    for _ in 0..10 {
        member.sent.clear();
        member.handle(Event::Tick);
    }
}

/// Delivers the leader's messages to the other members, and their answers to the leader.
fn answer(members: &mut [Member], sent: Vec<Message>) {
    for message in sent {
        let to = usize::try_from(message.to).unwrap() - 1;
        members[to].handle(Event::Received(vec![message]));
        members[to].finish_writes();
        for answer in std::mem::take(&mut members[to].sent) {
            members[0].handle(Event::Received(vec![answer]));
        }
    }
}

/// Advances the leader, whose disk is stalled, until an election timeout has passed. The other members answer but do
/// not receive the leader's last messages. Returns the kinds of those messages.
fn stall_leader(members: &mut [Member]) -> Vec<MessageKind> {
    for tick in 1..=10 {
        members[0].handle(Event::Tick);
        let sent = std::mem::take(&mut members[0].sent);
        if tick == 10 {
            return sent.iter().map(|message| message.kind).collect();
        }
        answer(members, sent);
    }
    Vec::new()
}

#[test]
fn a_leader_with_a_stalled_disk_transfers_leadership_and_sends_no_heartbeats() {
    let mut members = three_after_ticks();
    members[0].propose(1, "stuck");
    let last = stall_leader(&mut members);
    assert_eq!(last, [MessageKind::TimeoutNow]);
    for _ in 0..20 {
        members[0].sent.clear();
        members[0].handle(Event::Tick);
        let mut sent = members[0].sent.iter();
        assert!(
            sent.all(|message| message.kind == MessageKind::TimeoutNow),
            "the leader sends no heartbeats"
        );
    }
    let notes = members[0].node.take_notes();
    assert!(notes.iter().any(|note| note.text.contains("longer than an election timeout")));
}

#[test]
fn a_leader_that_cannot_write_a_commit_index_does_not_transfer_leadership() {
    let mut members = three_after_ticks();
    let change =
        ConfChange { kind: ConfChangeKind::AddLearnerNode, node_id: 4, ..ConfChange::default() };
    members[0].handle(Event::ProposeConfChange { request_id: 1, change });
    members[0].finish_writes();
    let sent = std::mem::take(&mut members[0].sent);
    answer(&mut members, sent);
    assert_eq!(members[0].unfinished_writes.len(), 1, "the commit index of the change");
    let last = stall_leader(&mut members);
    assert!(!last.is_empty());
    assert!(last.iter().all(|kind| *kind == MessageKind::Heartbeat), "{last:?}");
    // A write that only the other members have completed shows that their disks work.
    members[0].propose(2, "stuck");
    let sent = std::mem::take(&mut members[0].sent);
    answer(&mut members, sent);
    members[0].handle(Event::Tick);
    assert!(members[0].sent.iter().any(|message| message.kind == MessageKind::TimeoutNow));
}

#[test]
fn a_follower_with_a_stalled_disk_does_not_campaign() {
    let mut members = three();
    members[0].propose(1, "x");
    let append = members[0].sent.iter().find(|message| message.to == 2).cloned().unwrap();
    members[1].handle(Event::Received(vec![append]));
    stall(&mut members[1]);
    for _ in 0..50 {
        members[1].handle(Event::Tick);
        assert!(members[1].sent.is_empty());
    }
    members[1].finish_writes();
    for _ in 0..25 {
        members[1].handle(Event::Tick);
    }
    assert!(members[1].sent.iter().any(|message| message.kind == MessageKind::PreVote));
}

#[test]
fn a_leader_with_a_stalled_disk_and_no_quorum_steps_down() {
    let mut members = three_after_ticks();
    members[0].propose(1, "stuck");
    // The stall is noticed after one election timeout. Within two more, the leader steps down, because no quorum has
    // responded in the time between two of its quorum checks.
    for _ in 0..31 {
        members[0].sent.clear();
        members[0].handle(Event::Tick);
    }
    let now = members[0].node.leadership();
    assert_eq!((now.role, now.leader), (Role::Follower, NONE));
}

#[test]
fn a_leader_with_a_stalled_disk_sends_only_transfer_messages_until_it_steps_down() {
    let mut members = three_after_ticks();
    members[0].propose(1, "stuck");
    stall_leader(&mut members);
    members[0].propose(2, "during the transfer");
    let mut kinds = Vec::new();
    for _ in 0..25 {
        members[0].handle(Event::Tick);
        if members[0].node.leadership().role == Role::Leader {
            members[0].propose(3, "during the transfer");
        }
        kinds.extend(std::mem::take(&mut members[0].sent).iter().map(|message| message.kind));
    }
    assert_eq!(members[0].node.leadership().role, Role::Follower);
    // The transfer is retried after each election timeout. The leader sends no heartbeats or appends, because they
    // would prevent an election.
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == MessageKind::TimeoutNow));
}

#[test]
fn a_follower_with_a_stalled_disk_detects_the_loss_of_the_leader() {
    let mut members = three();
    members[0].propose(1, "x");
    let append = members[0].sent.iter().find(|message| message.to == 2).cloned().unwrap();
    members[1].handle(Event::Received(vec![append]));
    stall(&mut members[1]);
    for _ in 0..20 {
        members[1].handle(Event::Tick);
    }
    assert_eq!(members[1].node.leadership().leader, NONE);
    assert!(members[1].sent.is_empty(), "the member does not campaign");
    // The member does not campaign at a leader's request either.
    let ask = Message { from: 1, term: Term(1), ..Message::new(MessageKind::TimeoutNow, 2) };
    members[1].handle(Event::Received(vec![ask]));
    assert_eq!(members[1].node.leadership().role, Role::Follower);
}

/// Sets the leader's time, advances it one tick, and makes the members in `answering` answer its heartbeats.
fn exchange_heartbeats(members: &mut [Member], now_millis: u64, answering: &[u64]) {
    members[0].node.note_time(now_millis);
    members[0].handle(Event::Tick);
    for message in std::mem::take(&mut members[0].sent) {
        let Some(at) = answering.iter().find(|id| **id == message.to) else { continue };
        let member = usize::try_from(*at).unwrap() - 1;
        members[member].handle(Event::Received(vec![message]));
        members[member].finish_writes();
        for answer in std::mem::take(&mut members[member].sent) {
            members[0].handle(Event::Received(vec![answer]));
        }
    }
}

#[test]
fn a_quorum_of_heartbeat_responses_confirms_the_leader() {
    let mut members = three();
    assert_eq!(members[1].node.confirmed_at(), None, "a follower has no confirmation");
    exchange_heartbeats(&mut members, 1_000, &[2]);
    assert_eq!(
        members[0].node.confirmed_at(),
        Some(1_000),
        "two of three members confirm the leader"
    );
    exchange_heartbeats(&mut members, 1_100, &[]);
    assert_eq!(
        members[0].node.confirmed_at(),
        Some(1_000),
        "no member has responded to the second heartbeat"
    );
    exchange_heartbeats(&mut members, 1_200, &[3]);
    assert_eq!(members[0].node.confirmed_at(), Some(1_200));
    // While a read is being confirmed, the heartbeats also contain the id of its read index request.
    members[0].handle(Event::ReadBarrier { round: 1 });
    exchange_heartbeats(&mut members, 1_300, &[2, 3]);
    assert_eq!(members[0].node.confirmed_at(), Some(1_300));
    assert_eq!(members[0].passed.len(), 1);
}

#[test]
fn a_late_response_confirms_only_the_time_of_its_heartbeat() {
    let mut members = three();
    members[0].node.note_time(1_000);
    members[0].handle(Event::Tick);
    let late = std::mem::take(&mut members[0].sent);
    // The process is suspended at this point.
    members[0].node.note_time(60_000);
    for message in late.into_iter().filter(|message| message.to == 2) {
        members[1].handle(Event::Received(vec![message]));
    }
    for answer in std::mem::take(&mut members[1].sent) {
        members[0].handle(Event::Received(vec![answer]));
    }
    assert_eq!(members[0].node.confirmed_at(), Some(1_000));
}

#[test]
fn a_member_with_a_stalled_disk_campaigns_if_fencing_is_disabled() {
    let mut member = Member::start(Config { fences_stalled_disk: false, ..config(1, &[1, 2]) });
    for _ in 0..25 {
        member.handle(Event::Tick);
    }
    // The member's own vote was never written, but the member continues to request votes.
    assert!(!member.unfinished_writes.is_empty() || !member.sent.is_empty());
    member.sent.clear();
    for _ in 0..40 {
        member.handle(Event::Tick);
    }
    assert!(!member.sent.is_empty());
}
