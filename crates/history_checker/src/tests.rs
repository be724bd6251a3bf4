//! Tests of the checker with generated histories that are correct by construction, with an exhaustive search of all
//! orders, and with histories in which one detail is falsified.

mod cases;
mod exhaustive;
mod generate;
mod reference;

use quorate_seeded_random::SplitMix64;

use super::*;
use generate::Shape;

const RULES: Rules =
    Rules { lease_slack: Some(0), lease_extension: 0, renewal_slack: 0, fault_free: None };

fn verdict(history: &History) -> Result<Counts, Box<Violation>> {
    check(history, &RULES)
}

/// Returns a random history from a seed, with the generator for further choices.
fn random_history(seed: u64, shape: Shape) -> (History, SplitMix64) {
    let mut random = SplitMix64::new(seed);
    (generate::history(&mut random, shape), random)
}

#[test]
fn histories_of_a_correct_store_pass() {
    let mut sum = Counts::default();
    for seed in 0..2_000 {
        let (history, _) = random_history(seed, Shape::LARGE);
        match verdict(&history) {
            Ok(counts) => {
                sum.responses += counts.responses;
                sum.refusals += counts.refusals;
                sum.unknown += counts.unknown;
                sum.events += counts.events;
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    assert!(sum.responses > 100_000, "{sum:?}");
    assert!(sum.refusals > 10_000, "{sum:?}");
    assert!(sum.unknown > 10_000, "{sum:?}");
    assert!(sum.events > 20_000, "{sum:?}");
}

/// Falsifies one detail of an operation or of the event log.
fn corrupt(history: &mut History, random: &mut SplitMix64) {
    let at = random.position(history.operations.len());
    let operation = &mut history.operations[at];
    match (random.below(6), &mut operation.outcome) {
        (0, Outcome::Succeeded { revision: Some(revision), .. }) => *revision += 1,
        (1, Outcome::Succeeded { revision: Some(revision), .. }) if *revision > 1 => *revision -= 1,
        (2, Outcome::Succeeded { at, .. } | Outcome::Refused { at, .. }) => {
            *at = operation.called;
        }
        (3, Outcome::Succeeded { at, .. } | Outcome::Refused { at, .. }) => {
            operation.called = *at;
        }
        (4, outcome) => *outcome = Outcome::Unknown,
        (_, Outcome::Succeeded { response: Response::Kv(response), .. }) => {
            falsify_response(response, random);
        }
        (_, Outcome::Succeeded { .. } | Outcome::Refused { .. } | Outcome::Unknown) => {
            let mut event_log = EventLog::default();
            let last = history.event_log.last();
            for revision in 2..=last - 1 {
                event_log.record(revision, history.event_log.events(revision).to_vec()).unwrap();
            }
            history.event_log = event_log;
        }
    }
}

fn falsify_response(response: &mut KvResponse, random: &mut SplitMix64) {
    match response {
        KvResponse::Put { previous } => match previous {
            Some(kv) => kv.version += 1,
            None => *previous = Some(KeyValue::default()),
        },
        KvResponse::Delete { deleted, .. } => *deleted += 1,
        KvResponse::Range { kvs, count, .. } => match kvs.first_mut() {
            Some(kv) if random.below(2) == 0 => kv.value = "forged".into(),
            Some(kv) if random.below(2) == 0 => kv.mod_revision += 1,
            Some(_) => *count += 1,
            None => *count += 1,
        },
        KvResponse::Txn { succeeded, responses } => match responses.first_mut() {
            Some(response) if random.below(2) == 0 => falsify_response(response, random),
            Some(_) | None => *succeeded = !*succeeded,
        },
    }
}

fn describe(history: &History) -> String {
    let operations = history.operations.iter().map(|operation| format!("{operation:?}\n"));
    let events = (2..=history.event_log.last())
        .map(|revision| format!("{revision}: {:?}\n", history.event_log.events(revision)));
    operations.chain(events).collect()
}

#[test]
fn an_exhaustive_search_reaches_the_same_verdict_on_small_histories() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..15_000 {
        let (mut history, mut random) = random_history(seed, Shape::SMALL);
        for _ in 0..random.below(3) {
            corrupt(&mut history, &mut random);
        }
        let (verdict, explained) = (verdict(&history), exhaustive::is_explained(&history));
        assert_eq!(verdict.is_ok(), explained, "seed {seed}: {verdict:?}\n{}", describe(&history));
        *(if explained { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 4_000, "too few of one kind: {good} valid and {bad} invalid histories");
    assert!(bad > 4_000, "too few of one kind: {good} valid and {bad} invalid histories");
}

/// Falsifies the messages of one watcher so that no correct cluster could have sent them. Returns a description of the
/// change, or `None` if there are no events.
fn corrupt_watcher(history: &mut History, random: &mut SplitMix64) -> Option<&'static str> {
    let watcher = history.watchers.iter_mut().find(|watcher| {
        watcher.messages.iter().any(|(_, message)| matches!(message, WatchMessage::Events { .. }))
    })?;
    let places = watcher.messages.iter().enumerate();
    let of_events =
        places.filter(|(_, (_, message))| matches!(message, WatchMessage::Events { .. }));
    let of_events: Vec<usize> = of_events.map(|(at, _)| at).collect();
    let at = of_events[random.position(of_events.len())];
    let message = watcher.messages[at].clone();
    let WatchMessage::Events { events, .. } = &mut watcher.messages[at].1 else { unreachable!() };
    match random.below(6) {
        0 => {
            watcher.messages.remove(at);
            Some("a missing event")
        }
        1 => {
            watcher.messages.insert(at, message);
            Some("a duplicated event")
        }
        2 => {
            events[0].kv.version += 1;
            Some("a changed event")
        }
        3 => {
            events[0].previous = Some(KeyValue::default());
            Some("a changed previous value")
        }
        4 => {
            let revision = events[0].revision();
            watcher.messages.insert(at, (message.0, WatchMessage::Progress { revision }));
            Some("premature progress")
        }
        _ => {
            let revision = history.event_log.last() + 7;
            watcher.messages.insert(at, (message.0, WatchMessage::Compacted { revision }));
            Some("a cancellation because of a compaction that did not happen")
        }
    }
}

#[test]
fn falsified_watch_messages_are_detected() {
    let mut found = 0;
    for seed in 0..2_000 {
        let (mut history, mut random) = random_history(seed, Shape::LARGE);
        let Some(description) = corrupt_watcher(&mut history, &mut random) else { continue };
        let violation = verdict(&history).expect_err(description);
        assert!(
            violation.watcher.is_some() || violation.property == Property::RealTime,
            "{description}: {violation}"
        );
        found += 1;
    }
    assert!(found > 1_500, "{found}");
}

#[test]
fn ten_thousand_operations_are_checked_quickly() {
    let shape = Shape { operations: 10_000, unknown: 5, ..Shape::LARGE };
    let (history, _) = random_history(1, shape);
    let counts = verdict(&history).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(counts.responses + counts.refusals > 8_000, "{counts:?}");
}
