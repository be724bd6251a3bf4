//! Tests of the bounds of a node: the log of a follower that receives entries faster than it applies them, the log of a
//! follower that has applied all entries, and the appends that a leader sends before earlier appends are acknowledged.

use super::*;
use quorate_raft::confchange::wire as change_wire;
use quorate_raft::{LogIndex, Term};

#[test]
fn a_follower_with_too_many_unapplied_entries_drops_appends_and_recovers() {
    const PIECE_BYTES: u64 = 1 << 20;
    let mut members = three();
    let leader = members.iter().position(|one| one.node.leadership().role == Role::Leader).unwrap();
    let slow = (leader + 1) % 3;
    members[slow].holds_applications = true;
    let data = Bytes::from(vec![0; usize::try_from(PIECE_BYTES).unwrap()]);
    let piece_count = 2 * limits::UNAPPLIED_BYTES_MAX / PIECE_BYTES;
    for request_id in 0..piece_count {
        let proposal = Proposal { request_id, data: data.clone() };
        members[leader].handle(Event::Propose(vec![proposal]));
        exchange_messages(&mut members);
    }
    assert!(members[leader].refused.is_empty(), "the other members continue");
    let held = members[slow].node.log_bytes();
    assert!(
        (limits::UNAPPLIED_BYTES_MAX..limits::UNAPPLIED_BYTES_MAX + 4 * PIECE_BYTES)
            .contains(&held),
        "{held}"
    );
    assert!(members[slow].node.take_refused_for_room() > 0);
    // During this time, the leader repeats at most one append per heartbeat.
    for _ in 0..20 {
        members[leader].handle(Event::Tick);
        exchange_messages(&mut members);
        assert!(members[slow].node.take_refused_for_room() <= 1);
    }
    let last = |member: &Member| member.applied.last().map(|entry| entry.index);
    while !members[slow].unapplied.is_empty() {
        let index = members[slow].unapplied.remove(0);
        members[slow].handle(Event::Applied { index });
    }
    members[slow].holds_applications = false;
    // The leader has dropped entries in the meantime and sends a snapshot instead.
    for _ in 0..100 {
        members.iter_mut().for_each(|member| member.handle(Event::Tick));
        exchange_messages(&mut members);
        let reached = last(&members[slow]).max(members[slow].installed.last().copied());
        if reached == last(&members[leader]) {
            return;
        }
    }
    panic!("the follower did not catch up");
}

#[test]
fn a_follower_accepts_uncommitted_entries_up_to_the_log_limit() {
    const PIECE_BYTES: u64 = 64 << 20;
    let mut follower = Member::start(config(1, &[1, 2, 3]));
    let data = Bytes::from(vec![0; usize::try_from(PIECE_BYTES).unwrap()]);
    let mut append = |index: u64| {
        let entry = |index| Entry {
            term: Term(1),
            index: LogIndex(index),
            data: data.clone(),
            ..Entry::default()
        };
        let append = Message {
            from: 2,
            // A new leader cannot commit entries of older terms until this log contains all of
            // them.
            term: Term(2),
            log_term: Term(u64::from(index > 1)),
            index: LogIndex(index - 1),
            entries: vec![entry(index)],
            ..Message::new(MessageKind::Append, 1)
        };
        follower.handle(Event::Received(vec![append]));
        follower.finish_writes();
        follower.node.take_refused_for_room()
    };
    let fitting = limits::LOG_BYTES_MAX / PIECE_BYTES;
    assert!(fitting * PIECE_BYTES > limits::UNCOMMITTED_BYTES_MAX + PIECE_BYTES);
    for index in 1..=fitting {
        assert_eq!(append(index), 0, "entry {index}");
    }
    assert_eq!(append(fitting + 1), 1);
}

#[test]
fn a_follower_with_a_long_applied_log_accepts_appends_after_a_restart() {
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
    assert!(member.node.log_bytes() < limits::LOG_BYTES_MAX, "applied entries are dropped");
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

/// Removes and returns the appends that a leader has sent to member 2 since the last call.
fn appends_to_two(leader: &mut Member) -> Vec<Message> {
    let mut sent = std::mem::take(&mut leader.sent);
    sent.retain(|message| message.to == 2 && message.kind == MessageKind::Append);
    sent
}

#[test]
fn appends_to_an_unresponsive_member_do_not_exceed_the_inflight_limit() {
    let mut members = three();
    exchange_messages(&mut members);
    let count = u64::try_from(2 * limits::INFLIGHT_APPENDS_MAX).unwrap();
    for request_id in 0..count {
        members[0].propose(request_id, "x");
    }
    let sent = appends_to_two(&mut members[0]);
    assert_eq!(sent.len(), limits::INFLIGHT_APPENDS_MAX);
    // After the responses, the leader continues to send appends.
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
fn unacknowledged_appends_to_a_member_do_not_exceed_the_byte_limit() {
    let mut members = three();
    exchange_messages(&mut members);
    let data = Bytes::from(vec![0; 1 << 20]);
    for request_id in 0..40 {
        let proposal = Proposal { request_id, data: data.clone() };
        members[0].handle(Event::Propose(vec![proposal]));
    }
    let mut entry_count = 0;
    loop {
        let sent = appends_to_two(&mut members[0]);
        if sent.is_empty() {
            break;
        }
        let entries = || sent.iter().flat_map(|append| &append.entries);
        let bytes: usize = entries().map(|entry| entry.data.len()).sum();
        assert!(u64::try_from(bytes).unwrap() <= limits::INFLIGHT_BYTES_MAX, "{bytes} bytes");
        entry_count += entries().count();
        members[1].handle(Event::Received(sent));
        members[1].finish_writes();
        let answers = std::mem::take(&mut members[1].sent);
        members[0].handle(Event::Received(answers));
    }
    assert_eq!(entry_count, 40);
}

#[test]
fn an_append_does_not_exceed_the_size_limit() {
    let mut members = three();
    exchange_messages(&mut members);
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
    assert_eq!(
        entry_counts,
        [2, 2, 2, 1],
        "an append holds at most 1 MiB of entries, of 400 KiB each"
    );
}

#[test]
fn proposals_that_waited_for_a_leader_are_forwarded_in_messages_of_limited_size() {
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id, &[1, 2, 3]))).collect();
    let kib = [400, 400, 400, 3_000, 400, 400, 400];
    for (request_id, size) in (0..).zip(kib) {
        let data = Bytes::from(vec![0; size << 10]);
        members[1].handle(Event::Propose(vec![Proposal { request_id, data }]));
    }
    let mut forwarded: Vec<Vec<usize>> = Vec::new();
    while members[0].node.leadership().role != Role::Leader || forwarded.is_empty() {
        members[0].handle(Event::Tick);
        exchange_if(&mut members, |message| {
            if message.kind == MessageKind::Propose {
                forwarded
                    .push(message.entries.iter().map(|entry| entry.data.len() >> 10).collect());
            }
            true
        });
    }
    let expected: [Vec<usize>; 5] =
        [vec![400, 400], vec![400], vec![3_000], vec![400, 400], vec![400]];
    assert_eq!(forwarded, expected, "a message holds at most 1 MiB or a single proposal");
}

#[test]
fn the_log_keeps_entries_until_raft_counts_them_as_applied() {
    const CHANGE: u64 = 250;
    // An unapplied membership change, for which the consensus core searches the log before it campaigns.
    let change =
        ConfChange { kind: ConfChangeKind::AddLearnerNode, node_id: 9, ..ConfChange::default() };
    let entry = |index| {
        let is_change = index == CHANGE;
        let kind = if is_change { EntryKind::ConfChange } else { EntryKind::Normal };
        let data = if is_change { change_wire::encode_v1(&change) } else { Bytes::new() };
        Entry { term: Term(1), index: LogIndex(index), kind, data }
    };
    let hard_state = HardState { term: Term(1), vote: 1, commit: LogIndex(300) };
    let entries = (1..=300).map(entry).collect();
    // A sole voter keeps no applied entries for other members.
    let mut member = Member::start_with(Config { hard_state, entries, ..config(1, &[1]) }, true);
    assert_eq!(member.unapplied, [LogIndex(300)]);
    member.handle(Event::Applied { index: LogIndex(CHANGE - 1) });
    // The entries were returned together, so the core does not count any of them as applied yet. The core searches
    // these entries for membership changes whenever an election is due.
    for _ in 0..30 {
        member.handle(Event::Tick);
    }
    assert_eq!(
        member.node.leadership().role,
        Role::Follower,
        "the membership change is not applied yet"
    );
}

#[test]
fn a_membership_change_beyond_the_uncommitted_limit_is_refused_like_other_requests() {
    const PIECE_BYTES: u64 = 64 << 20;
    let mut member = Member::start(config(1, &[1]));
    member.finish_writes();
    let data = Bytes::from(vec![0; usize::try_from(PIECE_BYTES).unwrap()]);
    for request_id in 0..limits::UNCOMMITTED_BYTES_MAX / PIECE_BYTES {
        let proposal = Proposal { request_id, data: data.clone() };
        member.handle(Event::Propose(vec![proposal]));
    }
    let change =
        ConfChange { kind: ConfChangeKind::AddLearnerNode, node_id: 7, ..ConfChange::default() };
    member.handle(Event::ProposeConfChange { request_id: 99, change });
    assert_eq!(member.refused, [(99, ProposalFailure::QueueFull)]);
    assert_eq!(member.node.take_refused_for_room(), 1);
}

#[test]
fn a_leader_drops_and_counts_forwarded_requests_beyond_the_limit_of_log_writes() {
    let mut members = three();
    let writes = u64::try_from(limits::WRITES_MAX).unwrap();
    for request_id in 0..writes {
        members[0].propose(request_id, "x");
        members[0].sent.clear();
    }
    let entry = Entry { data: Bytes::from_static(b"y"), ..Entry::default() };
    let forwarded =
        Message { from: 2, entries: vec![entry], ..Message::new(MessageKind::Propose, 1) };
    members[0].handle(Event::Received(vec![forwarded]));
    assert_eq!(members[0].node.take_refused_for_room(), 1);
    assert!(!members[0].sent.iter().any(|message| message.kind == MessageKind::Append));
}
