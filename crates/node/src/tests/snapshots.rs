//! Tests of a member that lags too far behind: the snapshot that it receives, the entries written
//! during the transfer, and the member's state afterwards.

use super::*;

/// Returns a group whose leader has dropped entries that the third member lacks. Returns the third member separately.
fn leader_and_laggard() -> (Vec<Member>, Member) {
    let policy = SnapshotPolicy {
        entry_count: 1 << 30,
        catch_up_count: 0,
        catch_up_bytes: 10_000,
        transfer_bytes: 100_000,
    };
    let start = |id| Member::start(Config { snapshot_policy: policy, ..config(id, &[1, 2, 3]) });
    let mut members: Vec<_> = (1..=3).map(start).collect();
    let laggard = members.pop().unwrap();
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange_messages_without(&mut members, 3);
    }
    for request_id in 0..400 {
        members[0].propose(request_id, "x");
        exchange_messages_without(&mut members, 3);
    }
    (members, laggard)
}

/// Returns the last index covered by the snapshot that a member is about to send.
fn snapshot_at(member: &Member) -> Option<LogIndex> {
    let found = member.sent.iter().find_map(|message| message.snapshot.as_ref());
    found.map(|snapshot| snapshot.metadata.index)
}

/// Delivers messages until the leader sends a snapshot to the lagging member. That member must
/// first answer a heartbeat, because a leader sends snapshots only to active members.
fn until_a_snapshot_is_sent(members: &mut [Member]) {
    members[0].handle(Event::Unreachable(3));
    while snapshot_at(&members[0]).is_none() {
        members[0].handle(Event::Tick);
        let sent = std::mem::take(&mut members[0].sent);
        for message in sent {
            if message.kind == MessageKind::Snapshot {
                members[0].sent.push(message);
                continue;
            }
            let to = usize::try_from(message.to).unwrap() - 1;
            members[to].handle(Event::Received(vec![message]));
            members[to].finish_writes();
            for answer in std::mem::take(&mut members[to].sent) {
                members[0].handle(Event::Received(vec![answer]));
            }
        }
    }
}

#[test]
fn entries_written_during_a_snapshot_transfer_are_kept_for_the_receiver() {
    let (mut members, laggard) = leader_and_laggard();
    members.push(laggard);
    until_a_snapshot_is_sent(&mut members);
    let under_way = std::mem::take(&mut members[0].sent);
    for request_id in 1000..1080 {
        let data = Bytes::from(vec![0; 1000]);
        members[0].handle(Event::Propose(vec![Proposal { request_id, data }]));
        exchange_messages_without(&mut members, 3);
    }
    assert!((80_000..100_000).contains(&members[0].node.log_bytes()));
    members[0].sent = under_way;
    exchange_messages(&mut members);
    members[0].handle(Event::SnapshotSent { to: 3, outcome: SnapshotOutcome::Finished });
    for _ in 0..3 {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    assert_eq!(members[2].installed.len(), 1, "the log has the remaining entries");
    assert_eq!(members[2].applied.last(), members[0].applied.last());
    // From now on, no member needs that many entries.
    for request_id in 2000..2200 {
        members[0].propose(request_id, "x");
        exchange_messages(&mut members);
    }
    assert!(members[0].node.log_bytes() <= 11_000);
}

#[test]
fn the_size_of_entries_kept_for_a_snapshot_receiver_is_bounded() {
    let (mut members, laggard) = leader_and_laggard();
    members.push(laggard);
    until_a_snapshot_is_sent(&mut members);
    for request_id in 1000..1300 {
        let data = Bytes::from(vec![0; 1000]);
        members[0].handle(Event::Propose(vec![Proposal { request_id, data }]));
        exchange_messages_without(&mut members, 3);
        assert!(members[0].node.log_bytes() <= 102_000);
    }
}

#[test]
fn a_member_that_is_too_far_behind_installs_a_snapshot() {
    let (mut members, laggard) = leader_and_laggard();
    let applied = members[0].applied.last().unwrap().index;
    members.push(laggard);
    until_a_snapshot_is_sent(&mut members);
    assert!(snapshot_at(&members[0]).unwrap() <= applied);
    exchange_messages(&mut members);
    members[0].handle(Event::SnapshotSent { to: 3, outcome: SnapshotOutcome::Finished });
    members[0].propose(1000, "after");
    for _ in 0..3 {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    let third = &members[2];
    assert_eq!(third.installed.len(), 1);
    assert_eq!(third.applied_data().last(), Some(&&b"after"[..]));
    assert_eq!(
        third.applied[0].index,
        third.installed[0].next(),
        "the snapshot replaces the other entries"
    );
}

#[test]
fn a_leader_that_steps_down_drops_the_entries_kept_for_a_snapshot_receiver() {
    let (mut members, laggard) = leader_and_laggard();
    members.push(laggard);
    until_a_snapshot_is_sent(&mut members);
    for request_id in 1000..1080 {
        let data = Bytes::from(vec![0; 1000]);
        members[0].handle(Event::Propose(vec![Proposal { request_id, data }]));
        exchange_messages_without(&mut members, 3);
    }
    assert!((80_000..100_000).contains(&members[0].node.log_bytes()));
    let term = Term(members[0].node.leadership().term.0 + 1);
    let heartbeat = Message { from: 2, term, ..Message::new(MessageKind::Heartbeat, 1) };
    members[0].handle(Event::Received(vec![heartbeat]));
    assert_eq!(members[0].node.leadership().role, Role::Follower);
    let bytes = members[0].node.log_bytes();
    assert!(bytes <= 10_000, "{bytes} bytes");
}

#[test]
fn entries_for_a_silent_member_are_dropped_although_no_entries_follow() {
    let policy =
        SnapshotPolicy { entry_count: 10, catch_up_count: 10, ..SnapshotPolicy::default() };
    let start = |id| Member::start(Config { snapshot_policy: policy, ..config(id, &[1, 2, 3]) });
    let mut members: Vec<_> = (1..=3).map(start).collect();
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    members[0].handle(Event::Unreachable(3));
    for request_id in 0..30 {
        let data = Bytes::from(vec![0; 1000]);
        members[0].handle(Event::Propose(vec![Proposal { request_id, data }]));
        exchange_messages_without(&mut members, 3);
    }
    let kept = |members: &[Member]| members[0].node.log_bytes() / 1000;
    assert_eq!(kept(&members), 30, "member 3 may only be late");
    for _ in 0..20 {
        members[0].handle(Event::Tick);
        exchange_messages_without(&mut members, 3);
    }
    assert_eq!(kept(&members), 10);
    until_a_snapshot_is_sent(&mut members);
}

#[test]
fn the_only_voter_keeps_entries_for_a_learner_that_receives_a_snapshot() {
    let policy =
        SnapshotPolicy { entry_count: 10, catch_up_count: 10, ..SnapshotPolicy::default() };
    let start = |id, learners| {
        let conf_state = ConfState { voters: vec![1], learners, ..ConfState::default() };
        Member::start(Config { conf_state, snapshot_policy: policy, ..config(id, &[1]) })
    };
    let mut voter = start(1, vec![2]);
    voter.finish_writes();
    let propose = |voter: &mut Member, request_id| {
        voter.propose(request_id, "x");
        voter.finish_writes();
    };
    for request_id in 0..400 {
        propose(&mut voter, request_id);
    }
    // The learner has an empty log. It answers, so it receives a snapshot.
    let mut members = vec![voter, start(2, vec![2])];
    while snapshot_at(&members[0]).is_none() {
        members[0].handle(Event::Tick);
        let sent = std::mem::take(&mut members[0].sent);
        let (snapshots, others): (Vec<_>, Vec<_>) =
            sent.into_iter().partition(|message| message.kind == MessageKind::Snapshot);
        members[0].sent = snapshots;
        members[1].handle(Event::Received(others));
        members[1].finish_writes();
        let answers = std::mem::take(&mut members[1].sent);
        members[0].handle(Event::Received(answers));
    }
    let snapshot = snapshot_at(&members[0]).unwrap();
    for request_id in 400..800 {
        propose(&mut members[0], request_id);
    }
    exchange_messages(&mut members);
    members[0].handle(Event::SnapshotSent { to: 2, outcome: SnapshotOutcome::Finished });
    for _ in 0..10 {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    assert_eq!(members[1].installed, [snapshot]);
    assert_eq!(members[1].applied[0].index, snapshot.next(), "no second snapshot is needed");
    assert_eq!(members[1].applied.last(), members[0].applied.last());
}

/// Returns a lagging member, a snapshot message for it (from a group of the members 1, 2 and 3), and the snapshot's
/// index.
fn member_and_snapshot() -> (Member, Message, LogIndex) {
    let (members, laggard) = leader_and_laggard();
    let index = members[0].applied.last().unwrap().index;
    let conf_state = ConfState { voters: vec![1, 2, 3], ..ConfState::default() };
    let metadata = quorate_raft::SnapshotMetadata { conf_state, index, term: Term(1) };
    let snapshot = quorate_raft::Snapshot { data: Bytes::new(), metadata };
    let message = Message {
        from: 1,
        term: members[0].node.leadership().term,
        snapshot: Some(Box::new(snapshot)),
        ..Message::new(MessageKind::Snapshot, 3)
    };
    (laggard, message, index)
}

/// Returns the event which reports that the entry at this index has removed member 2.
fn removal_of_second(index: LogIndex) -> Event {
    let change =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 2, ..ConfChange::default() };
    let members = ConfState { voters: vec![1, 3], ..ConfState::default() };
    Event::ConfChangeDecided(ConfChangeDecision { index, change: Some(change), members })
}

#[test]
fn a_membership_change_older_than_a_snapshot_is_not_applied_after_its_installation() {
    let (mut third, message, index) = member_and_snapshot();
    third.handle(Event::Received(vec![message]));
    third.finish_writes();
    assert_eq!(third.installed, [index]);
    third.handle(removal_of_second(LogIndex(3)));
    assert_eq!(third.node.status().config.conf_state().voters, [1, 2, 3]);
    third.handle(removal_of_second(index.next()));
    assert_eq!(third.node.status().config.conf_state().voters, [1, 3]);
}

#[test]
fn a_membership_change_older_than_a_snapshot_is_not_applied_while_the_snapshot_is_written() {
    let (mut third, message, index) = member_and_snapshot();
    third.handle(Event::Received(vec![message]));
    assert!(third.installed.is_empty(), "the snapshot is not durable yet");
    third.handle(removal_of_second(LogIndex(3)));
    third.handle(removal_of_second(index));
    assert_eq!(third.node.status().config.conf_state().voters, [1, 2, 3]);
    third.finish_writes();
    assert_eq!(third.installed, [index]);
    assert_eq!(third.node.status().config.conf_state().voters, [1, 2, 3]);
}

#[test]
fn a_membership_change_refused_before_any_voter_exists_has_no_effect() {
    let mut joining = Member::start(config(3, &[]));
    let (index, members) = (LogIndex(1), ConfState::default());
    let decision = ConfChangeDecision { index, change: None, members };
    joining.handle(Event::ConfChangeDecided(decision));
    assert_eq!(joining.node.configuration().conf_state(), ConfState::default());
}

#[test]
#[should_panic(expected = "consensus has the same members as the state machine")]
fn a_member_panics_if_raft_and_its_state_machine_have_different_members() {
    let (mut third, _, _) = member_and_snapshot();
    let change =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 1, ..ConfChange::default() };
    let members = ConfState { voters: vec![1, 3], ..ConfState::default() };
    let (index, change) = (LogIndex(4), Some(change));
    third.handle(Event::ConfChangeDecided(ConfChangeDecision { index, change, members }));
}

#[test]
#[should_panic(expected = "is reported before its entry counts as applied")]
fn a_member_panics_if_a_membership_change_is_decided_after_its_entry_counts_as_applied() {
    let (mut members, _) = leader_and_laggard();
    let applied = members[0].applied.last().unwrap().index;
    members[0].handle(removal_of_second(applied));
}

#[test]
fn an_installed_snapshot_cancels_the_members_own_snapshot_in_progress() {
    let (_, message, index) = member_and_snapshot();
    let policy = SnapshotPolicy { entry_count: 5, ..SnapshotPolicy::default() };
    let mut third = Member::start(Config { snapshot_policy: policy, ..config(3, &[1, 2, 3]) });
    let term = message.term;
    let append = |after: LogIndex, log_term, count: u64| Message {
        from: 1,
        term,
        log_term,
        index: after,
        commit: after + count,
        entries: (1..=count)
            .map(|one| Entry { term, index: after + one, ..Entry::default() })
            .collect(),
        ..Message::new(MessageKind::Append, 3)
    };
    third.handle(Event::Received(vec![append(LogIndex(0), Term(0), 10)]));
    third.finish_writes();
    assert_eq!(third.snapshots, 1, "a snapshot is requested but never reported");
    third.handle(Event::Received(vec![message]));
    third.finish_writes();
    assert_eq!(third.installed, [index]);
    third.handle(Event::Received(vec![append(index, Term(1), 10)]));
    third.finish_writes();
    assert_eq!(third.snapshots, 2);
}
