//! Tests that the invariants of a follower's progress hold after any event.

use proptest::prelude::*;

use super::*;

/// A random event. The numbers in it are reduced to values that are possible in the current state.
#[derive(Clone, Debug)]
enum Event {
    Send { count: u64 },
    Acknowledge { ahead: u64 },
    Refuse { rejected: u64, hint: u64 },
    Unreachable,
    NeedsSnapshot { index: u64 },
    SnapshotFailed,
    SnapshotFinished,
    Heartbeat,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..4u64).prop_map(|count| Event::Send { count }),
        4 => (0..5u64).prop_map(|ahead| Event::Acknowledge { ahead }),
        2 => (0..40u64, 0..40u64).prop_map(|(rejected, hint)| Event::Refuse { rejected, hint }),
        1 => Just(Event::Unreachable),
        1 => (0..10u64).prop_map(|index| Event::NeedsSnapshot { index }),
        1 => Just(Event::SnapshotFailed),
        1 => Just(Event::SnapshotFinished),
        2 => Just(Event::Heartbeat),
    ]
}

/// Applies an event to a progress record as the core does.
fn apply_event(progress: &mut Progress, event: &Event) {
    match *event {
        Event::Send { count } if !progress.is_paused() => {
            let count = if progress.inflights.is_full() { 0 } else { count };
            progress.record_sent_entries(count, 10 * count);
            progress.record_sent_commit(progress.match_index);
        }
        Event::Send { .. } => {}
        Event::Acknowledge { ahead } => {
            let index = progress.match_index + ahead;
            let is_news = progress.acknowledge(index);
            match progress.state {
                ProgressState::Probe if is_news => progress.become_replicate(),
                ProgressState::Replicate => progress.inflights.free_up_to(index),
                _ => {}
            }
        }
        Event::Refuse { rejected, hint } => {
            let is_genuine = progress.step_back(LogIndex(rejected), LogIndex(hint));
            if is_genuine && progress.state == ProgressState::Replicate {
                progress.become_probe();
            }
        }
        Event::Unreachable if progress.state == ProgressState::Replicate => progress.become_probe(),
        Event::NeedsSnapshot { index } if progress.state != ProgressState::Snapshot => {
            progress.become_snapshot(progress.next_index + index);
        }
        Event::SnapshotFailed if progress.state == ProgressState::Snapshot => {
            progress.pending_snapshot = LogIndex(0);
            progress.become_probe();
        }
        Event::SnapshotFinished if progress.state == ProgressState::Snapshot => {
            progress.become_probe();
        }
        Event::Heartbeat => progress.is_flow_paused = false,
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn progress_invariants_hold_after_any_event(events in proptest::collection::vec(any_event(), 0..60)) {
        let mut progress = Progress::new(LogIndex(5), Inflights::new(3, 100));
        for event in &events {
            let matched = progress.match_index;
            apply_event(&mut progress, event);
            prop_assert!(progress.match_index < progress.next_index, "{progress} after {event:?}");
            prop_assert!(progress.match_index >= matched, "the match index never decreases");
            prop_assert!(progress.inflights.count() <= 3);
            let is_snapshot = progress.state == ProgressState::Snapshot;
            prop_assert!(is_snapshot || progress.pending_snapshot == LogIndex::ZERO);
            prop_assert!(!is_snapshot || progress.is_paused());
            let is_streaming = progress.state == ProgressState::Replicate;
            prop_assert!(is_streaming || progress.inflights.count() == 0);
        }
    }
}

fn replicating(match_index: u64, next_index: u64) -> Progress {
    let mut progress = Progress::new(LogIndex(1), Inflights::new(8, u64::MAX));
    progress.acknowledge(LogIndex(match_index));
    progress.become_replicate();
    progress.next_index = LogIndex(next_index);
    progress
}

#[test]
fn a_stale_rejection_does_not_change_progress() {
    let mut progress = replicating(5, 10);
    assert!(!progress.step_back(LogIndex(5), LogIndex(3)));
    assert!(progress.step_back(LogIndex(9), LogIndex(3)));
    assert_eq!(progress.next_index, LogIndex(6));
    progress.become_probe();
    // A refusal is outdated if its index is not the index of the current probe.
    assert!(!progress.step_back(LogIndex(9), LogIndex(3)));
    assert!(progress.step_back(LogIndex(5), LogIndex(3)));
    assert_eq!(progress.next_index, LogIndex(6), "acknowledged entries are not probed again");
}

#[test]
fn would_learn_commit_is_true_only_if_sent_entries_become_committed() {
    let mut progress = replicating(5, 10);
    progress.record_sent_commit(LogIndex(7));
    assert!(!progress.would_learn_commit(LogIndex(7)));
    assert!(progress.would_learn_commit(LogIndex(8)));
    progress.record_sent_commit(LogIndex(9));
    assert!(
        !progress.would_learn_commit(LogIndex(12)),
        "the follower cannot commit entries that were not sent to it"
    );
}

#[test]
fn probing_resumes_after_the_snapshot_index() {
    let mut progress = replicating(5, 10);
    progress.become_snapshot(LogIndex(20));
    assert_eq!(progress.next_index, LogIndex(21));
    progress.become_probe();
    assert_eq!((progress.next_index, progress.pending_snapshot), (LogIndex(21), LogIndex::ZERO));
}

#[test]
fn displayed_progress_lists_only_flags_that_are_set() {
    let mut progress = replicating(5, 10);
    assert_eq!(progress.to_string(), "StateReplicate match=5 next=10 inactive");
    progress.is_recently_active = true;
    progress.is_learner = true;
    progress.become_snapshot(LogIndex(20));
    let expected = "StateSnapshot match=5 next=21 learner paused pendingSnap=20";
    assert_eq!(progress.to_string(), expected);
}

#[test]
fn a_member_counts_as_responsive_only_for_some_ticks_after_its_last_response() {
    let mut progress = replicating(5, 10);
    assert!(!progress.has_responded_within(u32::MAX), "the member has not responded yet");
    progress.tick();
    assert!(!progress.has_responded_within(u32::MAX));
    progress.note_response();
    progress.is_recently_active = false;
    for _ in 0..3 {
        assert!(progress.has_responded_within(2));
        progress.tick();
    }
    assert!(!progress.has_responded_within(2));
    progress.note_response();
    assert!(progress.has_responded_within(0));
    progress.reset(LogIndex(5), false);
    assert!(!progress.has_responded_within(2), "responses to an earlier leader do not count");
}
