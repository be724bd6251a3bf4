//! A follower that is sent more than it applies, one that has applied what its log still has, and how much a leader
//! sends ahead.

use super::*;
use quorate_raft::{LogIndex, Term};

#[test]
fn a_follower_that_does_not_apply_drops_what_it_cannot_hold_and_comes_back() {
    const PIECE_BYTES: u64 = 64 << 20;
    let mut members = three();
    let leader = members.iter().position(|one| one.node.leadership().role == Role::Leader).unwrap();
    let slow = (leader + 1) % 3;
    members[slow].holds_applications = true;
    let data = Bytes::from(vec![0; usize::try_from(PIECE_BYTES).unwrap()]);
    let piece_count = 2 * limits::LOG_BYTES_MAX / PIECE_BYTES;
    for request_id in 0..piece_count {
        let proposal = Proposal { request_id, data: data.clone() };
        members[leader].handle(Event::Propose(vec![proposal]));
        converse(&mut members);
    }
    assert!(members[leader].refused.is_empty(), "the others go on");
    let held = members[slow].node.log_bytes();
    assert!(
        (limits::LOG_BYTES_MAX..limits::LOG_BYTES_MAX + 2 * PIECE_BYTES).contains(&held),
        "{held}"
    );
    assert!(members[slow].node.take_refused_for_room() > 0);
    members[slow].holds_applications = false;
    let last = |member: &Member| member.applied.last().map(|entry| entry.index);
    // What the leader has forgotten meanwhile comes as a snapshot.
    for _ in 0..100 {
        for index in std::mem::take(&mut members[slow].unapplied) {
            members[slow].handle(Event::Applied { index });
        }
        members.iter_mut().for_each(|member| member.handle(Event::Tick));
        converse(&mut members);
        let reached = last(&members[slow]).max(members[slow].installed.last().copied());
        if reached == last(&members[leader]) {
            return;
        }
    }
    panic!("the follower does not come back");
}

#[test]
fn a_follower_whose_long_log_is_applied_takes_what_comes_after_a_restart() {
    const PIECE_BYTES: u64 = 64 << 20;
    let data = Bytes::from(vec![0; usize::try_from(PIECE_BYTES).unwrap()]);
    let applied = 2 * limits::LOG_BYTES_MAX / PIECE_BYTES;
    let entry = |index| Entry {
        term: Term(1),
        index: LogIndex(index),
        data: data.clone(),
        ..Entry::default()
    };
    let end = LogIndex(applied);
    let hard_state = HardState { term: Term(1), vote: 2, commit: end };
    let entries = (1..=applied).map(entry).collect();
    let mut member =
        Member::start(Config { hard_state, entries, applied: end, ..config(1, &[1, 2, 3]) });
    assert!(member.node.log_bytes() < limits::LOG_BYTES_MAX, "what is applied is let go");
    let append = Message {
        from: 2,
        term: Term(1),
        log_term: Term(1),
        index: end,
        commit: end,
        entries: vec![Entry { term: Term(1), index: end.next(), ..Entry::default() }],
        ..Message::new(MessageKind::Append, 1)
    };
    member.handle(Event::Received(vec![append]));
    member.finish_writes();
    assert_eq!(member.node.take_refused_for_room(), 0);
    let is_ack = |message: &Message| {
        message.kind == MessageKind::AppendResponse
            && !message.reject
            && message.index == end.next()
    };
    assert!(member.sent.iter().any(is_ack));
}

/// What a leader has sent to member 2 since it was looked at last, appends alone.
fn appends_to_two(leader: &mut Member) -> Vec<Message> {
    let mut sent = std::mem::take(&mut leader.sent);
    sent.retain(|message| message.to == 2 && message.kind == MessageKind::Append);
    sent
}

#[test]
fn a_member_that_does_not_answer_is_sent_no_more_appends_than_the_bound_says() {
    let mut members = three();
    converse(&mut members);
    let count = u64::try_from(2 * limits::INFLIGHT_APPENDS_MAX).unwrap();
    for request_id in 0..count {
        members[0].propose(request_id, "x");
    }
    let sent = appends_to_two(&mut members[0]);
    assert_eq!(sent.len(), limits::INFLIGHT_APPENDS_MAX);
    // With the answers it goes on.
    members[1].handle(Event::Received(sent));
    members[1].finish_writes();
    let answers = std::mem::take(&mut members[1].sent);
    members[0].handle(Event::Received(answers));
    let rest = appends_to_two(&mut members[0]);
    assert_eq!(
        rest.iter().map(|append| append.entries.len()).sum::<usize>(),
        limits::INFLIGHT_APPENDS_MAX
    );
}

#[test]
fn an_append_is_no_longer_than_the_bound_says() {
    let mut members = three();
    converse(&mut members);
    let data = Bytes::from(vec![0; 400 << 10]);
    let batch = (0..7).map(|request_id| Proposal { request_id, data: data.clone() }).collect();
    members[0].handle(Event::Propose(batch));
    let mut sent = appends_to_two(&mut members[0]);
    let mut entry_counts = Vec::new();
    while !sent.is_empty() {
        entry_counts.extend(sent.iter().map(|append| append.entries.len()));
        members[1].handle(Event::Received(sent));
        members[1].finish_writes();
        let answers = std::mem::take(&mut members[1].sent);
        members[0].handle(Event::Received(answers));
        sent = appends_to_two(&mut members[0]);
    }
    entry_counts.retain(|count| *count > 0);
    assert_eq!(entry_counts, [2, 2, 2, 1], "of 400 KiB, in appends of 1 MiB");
}
