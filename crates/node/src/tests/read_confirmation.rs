//! Tests of how many members a leader asks to confirm its reads.

use super::*;

/// Starts a round of the read barrier at the leader. Returns the members that are asked to confirm the round. They
/// answer, except `absent`.
fn read(members: &mut [Member], round: u64, absent: u64) -> Vec<u64> {
    members[0].handle(Event::ReadBarrier { round });
    asked(members, absent)
}

/// Exchanges messages without those to `absent`, and returns the recipients of heartbeats.
fn asked(members: &mut [Member], absent: u64) -> Vec<u64> {
    let mut recipients = Vec::new();
    exchange_if(members, |message| {
        if message.kind == MessageKind::Heartbeat {
            recipients.push(message.to);
        }
        message.to != absent
    });
    recipients
}

fn has_passed(members: &[Member], round: u64) -> bool {
    members[0].passed.iter().any(|(passed, _)| *passed == round)
}

/// Ends a batch of events of the leader at this time.
fn end_batch(members: &mut [Member], millis: u64) {
    members[0].node.note_time(millis);
    members[0].node.end_batch();
    members[0].collect();
}

#[test]
fn one_follower_confirms_the_reads_of_a_leader_of_three() {
    let mut members = three();
    assert_eq!(read(&mut members, 1, NONE), [2, 3]);
    for round in 2..=5 {
        assert_eq!(read(&mut members, round, NONE), [2]);
        assert!(has_passed(&members, round));
    }
    // After an election timeout, all voters are asked again, because another one may have become faster.
    for _ in 0..10 {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    assert_eq!(read(&mut members, 6, 2), [2, 3]);
    assert_eq!(read(&mut members, 7, NONE), [3]);
}

#[test]
fn the_other_voters_are_asked_once_a_read_is_late_or_a_connection_has_ended() {
    let events: [fn(&mut [Member]); 3] = [
        |members| members[0].handle(Event::Unreachable(2)),
        |members| members[0].handle(Event::Gone(2)),
        |members| end_batch(members, limits::READ_CONFIRMATION_MILLIS),
    ];
    for event in events {
        let mut members = three();
        read(&mut members, 1, NONE);
        assert_eq!(read(&mut members, 2, 2), [2]);
        end_batch(&mut members, 0);
        end_batch(&mut members, limits::READ_CONFIRMATION_MILLIS - 1);
        members[0].handle(Event::Unreachable(3));
        assert!(asked(&mut members, 2).is_empty(), "the read is not late yet");
        assert!(!has_passed(&members, 2));
        event(&mut members);
        assert_eq!(asked(&mut members, 2), [3]);
        assert!(has_passed(&members, 2));
        assert_eq!(read(&mut members, 3, 2), [2, 3]);
        assert_eq!(read(&mut members, 4, 2), [3], "a follower that did not answer is replaced");
    }
}

#[test]
fn a_late_read_is_confirmed_at_the_next_tick_and_followed_by_a_survey() {
    let mut members = three();
    read(&mut members, 1, NONE);
    assert_eq!(read(&mut members, 2, 2), [2]);
    end_batch(&mut members, 0);
    members[0].handle(Event::Tick);
    assert_eq!(asked(&mut members, 2), [2, 3]);
    assert!(has_passed(&members, 2));
    end_batch(&mut members, limits::READ_CONFIRMATION_MILLIS);
    assert_eq!(read(&mut members, 3, NONE), [2, 3]);
}

#[test]
fn a_leader_of_two_asks_the_other_voter() {
    let mut members: Vec<_> = (1..=2).map(|id| Member::start(config(id, &[1, 2]))).collect();
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    for round in 1..=3 {
        members[0].handle(Event::ReadBarrier { round });
        assert!(!members[0].node.has_asked_few_to_confirm_reads());
        assert_eq!(asked(&mut members, NONE), [2]);
        assert!(has_passed(&members, round));
    }
}

#[test]
fn a_follower_whose_connection_has_ended_is_not_asked_alone() {
    for event in [Event::Unreachable(2), Event::Gone(2)] {
        let mut members = three();
        read(&mut members, 1, NONE);
        members[0].handle(event);
        exchange_messages(&mut members);
        assert_eq!(read(&mut members, 2, 2), [2, 3]);
        assert!(has_passed(&members, 2));
    }
}

/// The leader's choice also applies to the reads of other members, because the chosen follower may be much faster than
/// the member that has forwarded a read.
#[test]
fn one_follower_confirms_the_reads_of_another_member() {
    let mut members = three();
    read(&mut members, 1, NONE);
    for round in 2..=4 {
        members[2].handle(Event::ReadBarrier { round });
        assert_eq!(asked(&mut members, NONE), [2]);
        assert!(members[2].passed.iter().any(|(passed, _)| *passed == round));
    }
}

#[test]
fn a_late_answer_to_an_earlier_question_does_not_win_the_survey() {
    let mut members = three();
    read(&mut members, 1, NONE);
    members[0].handle(Event::ReadBarrier { round: 2 });
    let late = std::mem::take(&mut members[0].sent);
    end_batch(&mut members, 0);
    end_batch(&mut members, limits::READ_CONFIRMATION_MILLIS);
    members[1].handle(Event::Received(late));
    exchange_messages(&mut members);
    assert!(has_passed(&members, 2));
    assert_eq!(read(&mut members, 3, 2), [2, 3]);
    assert_eq!(read(&mut members, 4, NONE), [3]);
}

/// Makes the leader apply the removal of a member that the read of round 2 waits for.
#[test]
fn a_read_that_waits_for_a_removed_member_is_confirmed_by_the_others() {
    let mut members = three();
    read(&mut members, 1, NONE);
    members[0].holds_applications = true;
    let change =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 2, ..ConfChange::default() };
    members[0].handle(Event::ProposeConfChange { request_id: 2, change: change.clone() });
    exchange_messages(&mut members);
    assert_eq!(read(&mut members, 2, 2), [2]);
    let index = members[0].applied.last().unwrap().index;
    let voters = ConfState { voters: vec![1, 3], ..ConfState::default() };
    let decision = ConfChangeDecision { index, change: Some(change), members: voters };
    members[0].handle(Event::ConfChangeDecided(decision));
    assert_eq!(asked(&mut members, 2), [3]);
    assert!(has_passed(&members, 2));
    assert_eq!(read(&mut members, 3, 2), [3]);
}

#[test]
fn a_read_barrier_without_an_answer_fails_after_the_request_timeout() {
    let mut member = Member::start(Config { proposal_ticks_max: 12, ..config(1, &[1, 2]) });
    member.handle(Event::ReadBarrier { round: 1 });
    let mut texts = Vec::new();
    for tick in 1..=12 {
        assert!(member.failed.is_empty(), "tick {tick}");
        member.handle(Event::Tick);
        let notes = member.node.take_notes().into_iter();
        texts.extend(notes.map(|note| note.text).filter(|text| text.contains("waiting for")));
    }
    assert_eq!(member.failed, [(1, BarrierFailure::TimedOut)]);
    let (retry, timeout) = (
        "waiting for ReadIndex response took too long, retrying",
        "timed out waiting for read index response (local node might have slow network)",
    );
    assert_eq!(texts, [retry, retry, timeout]);
}
