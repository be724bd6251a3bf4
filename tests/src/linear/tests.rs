//! Tests the checker with histories known to be linearizable or not, and against an exhaustive search of all orders.

use proptest::prelude::*;

use super::register::step;
use super::*;

const BUDGET: Duration = Duration::from_secs(60);

fn operation(
    client: usize,
    called: u64,
    action: Action,
    answer: Option<(u64, Answer)>,
) -> Operation {
    Operation { client, action, called, answer }
}

fn wrote(client: usize, called: u64, returned: u64, value: Value) -> Operation {
    operation(client, called, Action::Write(value), Some((returned, Answer::Done)))
}

fn maybe_wrote(client: usize, called: u64, value: Value) -> Operation {
    operation(client, called, Action::Write(value), None)
}

fn read(client: usize, called: u64, returned: u64, found: Option<Value>) -> Operation {
    operation(client, called, Action::Read, Some((returned, Answer::Found(found))))
}

fn swapped(client: usize, called: u64, returned: u64, from: Option<Value>, to: Value) -> Operation {
    let action = Action::Swap { expected: from, new: to };
    operation(client, called, action, Some((returned, Answer::Done)))
}

fn deleted(client: usize, called: u64, returned: u64, found: Option<Value>) -> Operation {
    operation(client, called, Action::Delete, Some((returned, Answer::Found(found))))
}

#[track_caller]
fn good(history: &[Operation]) {
    assert_eq!(check(history, BUDGET), Verdict::Linearizable);
    assert!(is_explained(history), "the exhaustive search has a different result");
}

#[track_caller]
fn bad(history: &[Operation]) {
    assert!(matches!(check(history, BUDGET), Verdict::Illegal(_)), "{history:?}");
    assert!(!is_explained(history), "the exhaustive search has a different result");
}

/// Tries every order of the answered operations with every subset of the unanswered operations.
fn is_explained(history: &[Operation]) -> bool {
    fn explained(history: &[Operation], taken: &mut Vec<usize>, state: Option<Value>) -> bool {
        let left = |number: usize| !taken.contains(&number);
        if (0..history.len()).all(|number| !left(number) || history[number].answer.is_none()) {
            return true;
        }
        // No operation that has yet to take effect may have returned before the next call.
        let returned = (0..history.len()).filter(|number| left(*number));
        let limit = returned.filter_map(|number| history[number].answer.map(|(at, _)| at)).min();
        for number in 0..history.len() {
            let next = &history[number];
            if taken.contains(&number) || limit.is_some_and(|limit| next.called > limit) {
                continue;
            }
            let answer = next.answer.map(|(_, answer)| answer);
            if let Some(state) = step(state, next.action, answer) {
                taken.push(number);
                let found = explained(history, taken, state);
                taken.pop();
                if found {
                    return true;
                }
            }
        }
        false
    }
    explained(history, &mut Vec::new(), None)
}

#[test]
fn sequential_operations_must_see_earlier_writes() {
    good(&[]);
    good(&[read(0, 0, 1, None), wrote(0, 2, 3, 1), read(1, 4, 5, Some(1))]);
    good(&[wrote(0, 0, 1, 1), deleted(1, 2, 3, Some(1)), read(0, 4, 5, None)]);
    bad(&[wrote(0, 0, 1, 1), read(1, 2, 3, None)]);
    bad(&[wrote(0, 0, 1, 1), read(1, 2, 3, Some(2))]);
    bad(&[wrote(0, 0, 1, 1), deleted(1, 2, 3, None)]);
    bad(&[read(0, 0, 1, Some(7))]);
}

#[test]
fn a_deletion_may_take_effect_before_or_after_a_concurrent_write() {
    let blind = operation(0, 0, Action::Delete, Some((10, Answer::Done)));
    good(&[wrote(1, 1, 2, 1), blind.clone(), read(1, 11, 12, None)]);
    good(&[wrote(1, 1, 2, 1), blind, read(1, 11, 12, Some(1))]);
}

#[test]
fn overlapping_operations_may_take_effect_in_either_order() {
    good(&[wrote(0, 0, 10, 1), wrote(1, 0, 10, 2), read(2, 11, 12, Some(1))]);
    good(&[wrote(0, 0, 10, 1), wrote(1, 0, 10, 2), read(2, 11, 12, Some(2))]);
    good(&[wrote(0, 0, 10, 1), read(1, 1, 2, None), read(1, 3, 4, Some(1))]);
    // Two operations overlap if one ends at the moment when the other begins.
    good(&[wrote(0, 0, 5, 1), read(1, 5, 6, None)]);
}

#[test]
fn a_stale_read_is_detected() {
    bad(&[wrote(0, 0, 1, 1), wrote(0, 2, 3, 2), read(1, 4, 5, Some(1))]);
    // Once a read has returned the new value, no later read may return the old one.
    bad(&[wrote(0, 0, 1, 1), wrote(0, 2, 20, 2), read(1, 3, 4, Some(2)), read(2, 5, 6, Some(1))]);
}

#[test]
fn a_lost_update_is_detected() {
    bad(&[wrote(0, 0, 1, 1), swapped(1, 2, 10, Some(1), 2), swapped(2, 2, 10, Some(1), 3)]);
    bad(&[wrote(0, 0, 1, 1), wrote(1, 2, 3, 2), read(2, 4, 5, Some(1)), read(2, 6, 7, Some(1))]);
}

#[test]
fn a_write_applied_twice_is_detected() {
    bad(&[wrote(0, 0, 1, 1), wrote(1, 2, 3, 2), read(2, 4, 5, Some(2)), read(2, 6, 7, Some(1))]);
    bad(&[maybe_wrote(0, 0, 1), read(1, 1, 2, Some(1)), wrote(1, 3, 4, 2), read(1, 5, 6, Some(1))]);
}

#[test]
fn a_write_with_an_unknown_outcome_may_take_effect_late_or_never() {
    good(&[maybe_wrote(0, 0, 1), wrote(1, 1, 2, 2), read(1, 3, 4, Some(2))]);
    good(&[
        maybe_wrote(0, 0, 1),
        wrote(1, 1, 2, 2),
        read(1, 3, 4, Some(2)),
        read(1, 5, 6, Some(1)),
    ]);
    // A read that returns before the write is called must not see the written value.
    bad(&[read(1, 0, 1, Some(1)), maybe_wrote(0, 2, 1)]);
    // A deletion without an answer explains the absence of the key only once.
    let maybe_deleted = operation(0, 0, Action::Delete, None);
    good(&[maybe_deleted.clone(), wrote(1, 1, 2, 1), read(1, 3, 4, None)]);
    bad(&[
        maybe_deleted,
        wrote(1, 1, 2, 1),
        read(1, 3, 4, None),
        wrote(1, 5, 6, 2),
        read(1, 7, 8, None),
    ]);
}

#[test]
fn a_swap_returns_the_previous_value() {
    let failed = |found| {
        let action = Action::Swap { expected: Some(9), new: 3 };
        operation(1, 2, action, Some((3, Answer::Found(found))))
    };
    good(&[wrote(0, 0, 1, 1), failed(Some(1))]);
    bad(&[wrote(0, 0, 1, 1), failed(None)]);
    bad(&[wrote(0, 0, 1, 9), failed(Some(9))]);
    good(&[swapped(0, 0, 1, None, 1), swapped(1, 2, 3, Some(1), 2)]);
    bad(&[swapped(0, 0, 1, None, 1), swapped(1, 2, 3, None, 2)]);
}

#[test]
fn a_violation_names_the_operation_and_the_state() {
    let history = [wrote(0, 0, 1, 1), wrote(0, 2, 3, 2), read(1, 4, 5, Some(1))];
    let Verdict::Illegal(why) = check(&history, BUDGET) else {
        panic!("a stale read was accepted")
    };
    assert!(why.contains("state is Some(2)"), "{why}");
    assert!(why.contains("client 1 4..5: found Some(1) Read"), "{why}");
}

#[test]
fn keys_are_checked_independently() {
    let mut operations = Operations::default();
    operations.push("a", wrote(0, 0, 1, 1));
    operations.push("b", read(0, 2, 3, None));
    assert_eq!(operations.len(), 2);
    operations.check(BUDGET);
}

/// Returns the history of a register used by eight clients in turn, with overlapping operations.
fn long(count: u64) -> Vec<Operation> {
    let mut state = None;
    let mut history = Vec::new();
    for moment in 0..count {
        let (called, returned) = (moment * 10, moment * 10 + 75);
        let client = usize::try_from(moment % 8).unwrap();
        history.push(match moment % 3 {
            0 => {
                state = Some(moment);
                wrote(client, called, returned, moment)
            }
            _ => read(client, called, returned, state),
        });
    }
    history
}

#[test]
fn long_histories_are_checked_within_the_time_limit() {
    let mut history = long(20_000);
    assert_eq!(check(&history, BUDGET), Verdict::Linearizable);
    // Unanswered writes whose values were never seen must not add to the search time.
    history.extend((0..500).map(|number| maybe_wrote(9, number * 100, 1_000_000 + number)));
    assert_eq!(check(&history, BUDGET), Verdict::Linearizable);
    history.push(read(1, 200_000, 200_001, Some(0)));
    assert!(matches!(check(&history[19_000..], BUDGET), Verdict::Illegal(_)));
}

#[test]
fn many_deletions_with_unknown_outcomes_are_checked_quickly() {
    let mut history: Vec<Operation> =
        (0..64).map(|client| operation(client, 0, Action::Delete, None)).collect();
    for step in 0..40 {
        history.push(wrote(99, step * 4 + 1, step * 4 + 2, step));
        history.push(read(99, step * 4 + 3, step * 4 + 4, None));
    }
    assert_eq!(check(&history, BUDGET), Verdict::Linearizable);
    history.push(read(99, 1_000, 1_001, Some(77)));
    assert!(matches!(check(&history, BUDGET), Verdict::Illegal(_)));
}

#[test]
fn a_check_that_takes_too_long_returns_unknown() {
    // All writes overlap, so any of them may have been the last, after any subset of the others.
    let mut history: Vec<Operation> =
        (0..40).map(|value| wrote(0, value, 100 + value, value)).collect();
    history.push(read(1, 1_000, 1_001, Some(77)));
    assert_eq!(check(&history, Duration::from_millis(100)), Verdict::Unknown);
}

fn any_value() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![Just(None), (0..4_u64).prop_map(Some)]
}

/// Generates an action on one of a few values, with an answer that may be wrong. The caller replaces each stored value
/// by one derived from the operation's number.
fn any_operation() -> impl Strategy<Value = Operation> {
    let action = (0..4_u8, any_value());
    (action, 0..12_u64, 0..6_u64, 0..4_u8, any_value()).prop_map(
        |((action, expected), called, length, answered, found)| {
            let action = match action {
                0 => Action::Read,
                1 => Action::Write(0),
                2 => Action::Swap { expected, new: 0 },
                _ => Action::Delete,
            };
            let found = Answer::Found(found);
            let answer = match (action, answered) {
                (_, 0) => None,
                (Action::Read, _) => Some(found),
                (Action::Write(_), _) => Some(Answer::Done),
                (Action::Swap { .. } | Action::Delete, 1) => Some(found),
                (Action::Swap { .. } | Action::Delete, _) => Some(Answer::Done),
            };
            operation(0, called, action, answer.map(|answer| (called + length, answer)))
        },
    )
}

fn any_history() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(any_operation(), 0..8).prop_map(|mut history| {
        for (number, operation) in history.iter_mut().enumerate() {
            operation.client = number;
            if let Action::Write(value) | Action::Swap { new: value, .. } = &mut operation.action {
                *value = u64::try_from(number).unwrap() % 4;
            }
        }
        history
    })
}

/// Generates a history that some order explains. The answers come from a register that executes each operation at one
/// moment between its call and its return.
fn explained_history() -> impl Strategy<Value = Vec<Operation>> {
    let operations = prop::collection::vec((any_operation(), 0..6_u64, any::<bool>()), 0..8);
    operations.prop_map(|operations| {
        let mut history: Vec<(u64, bool, Operation)> = operations
            .into_iter()
            .map(|(operation, lead, lost)| (operation.called + lead, lost, operation))
            .collect();
        history.sort_by_key(|(moment, _, _)| *moment);
        let mut state = None;
        for (number, (moment, lost, operation)) in history.iter_mut().enumerate() {
            operation.client = number;
            if let Action::Write(value) | Action::Swap { new: value, .. } = &mut operation.action {
                *value = u64::try_from(number).unwrap() % 4;
            }
            let honest = [Answer::Done, Answer::Found(state)];
            let (answer, next) = honest
                .into_iter()
                .filter(|answer| operation.action != Action::Read || *answer != Answer::Done)
                .find_map(|answer| Some((answer, step(state, operation.action, Some(answer))?)))
                .unwrap();
            state = next;
            operation.answer = (!*lost).then_some((*moment, answer));
        }
        history.into_iter().map(|(_, _, operation)| operation).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_checker_agrees_with_an_exhaustive_search(history in any_history()) {
        let verdict = check(&history, BUDGET);
        prop_assert_eq!(verdict == Verdict::Linearizable, is_explained(&history));
    }

    #[test]
    fn histories_of_a_correct_register_are_linearizable(history in explained_history()) {
        prop_assert_eq!(check(&history, BUDGET), Verdict::Linearizable);
    }
}
