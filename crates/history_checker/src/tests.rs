//! The checkers are held against histories that are good by their making, against trying every order, and
//! against histories in which one thing was changed.

mod brute;
mod cases;
mod draw;
mod store;

use quorate_seeded_random::SplitMix64;

use super::*;
use draw::Shape;

const RULES: Rules =
    Rules { lease_slack: Some(0), lease_extension: 0, renewal_slack: 0, calm: None };

fn verdict(history: &History) -> Result<Counts, Box<Contradiction>> {
    check(history, &RULES)
}

/// Histories of small size, drawn from a seed.
fn drawn(seed: u64, shape: Shape) -> (History, SplitMix64) {
    let mut random = SplitMix64::new(seed);
    (draw::history(&mut random, shape), random)
}

#[test]
fn what_a_store_answers_can_have_been() {
    let mut sum = Counts::default();
    for seed in 0..2_000 {
        let (history, _) = drawn(seed, Shape::LARGE);
        match verdict(&history) {
            Ok(counts) => {
                sum.answers += counts.answers;
                sum.refusals += counts.refusals;
                sum.unknown += counts.unknown;
                sum.events += counts.events;
            }
            Err(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(sum.answers > 100_000, "{sum:?}");
    assert!(sum.refusals > 10_000, "{sum:?}");
    assert!(sum.unknown > 10_000, "{sum:?}");
    assert!(sum.events > 20_000, "{sum:?}");
}

/// Changes something of what clients were told, or of what the cluster came to.
fn meddle(history: &mut History, random: &mut SplitMix64) {
    let at = random.position(history.operations.len());
    let operation = &mut history.operations[at];
    match (random.below(6), &mut operation.outcome) {
        (0, Outcome::Answered { revision: Some(revision), .. }) => *revision += 1,
        (1, Outcome::Answered { revision: Some(revision), .. }) if *revision > 1 => *revision -= 1,
        (2, Outcome::Answered { at, .. } | Outcome::Refused { at, .. }) => {
            *at = operation.called;
        }
        (3, Outcome::Answered { at, .. } | Outcome::Refused { at, .. }) => {
            operation.called = *at;
        }
        (4, outcome) => *outcome = Outcome::Unknown,
        (_, Outcome::Answered { answer: Answer::Kv(answer), .. }) => falsify(answer, random),
        (_, Outcome::Answered { .. } | Outcome::Refused { .. } | Outcome::Unknown) => {
            let mut chronicle = Chronicle::default();
            let last = history.chronicle.last();
            for revision in 2..=last - 1 {
                chronicle.tell(revision, history.chronicle.events(revision).to_vec()).unwrap();
            }
            history.chronicle = chronicle;
        }
    }
}

fn falsify(answer: &mut KvAnswer, random: &mut SplitMix64) {
    match answer {
        KvAnswer::Put { previous } => match previous {
            Some(kv) => kv.version += 1,
            None => *previous = Some(KeyValue::default()),
        },
        KvAnswer::Delete { deleted, .. } => *deleted += 1,
        KvAnswer::Range { kvs, count, .. } => match kvs.first_mut() {
            Some(kv) if random.below(2) == 0 => kv.value = "forged".into(),
            Some(kv) if random.below(2) == 0 => kv.mod_revision += 1,
            Some(_) => *count += 1,
            None => *count += 1,
        },
        KvAnswer::Txn { succeeded, answers } => match answers.first_mut() {
            Some(answer) if random.below(2) == 0 => falsify(answer, random),
            Some(_) | None => *succeeded = !*succeeded,
        },
    }
}

fn tell(history: &History) -> String {
    let operations = history.operations.iter().map(|operation| format!("{operation:?}\n"));
    let events = (2..=history.chronicle.last())
        .map(|revision| format!("{revision}: {:?}\n", history.chronicle.events(revision)));
    operations.chain(events).collect()
}

#[test]
fn small_histories_are_judged_as_by_trying_every_order() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..15_000 {
        let (mut history, mut random) = drawn(seed, Shape::SMALL);
        for _ in 0..random.below(3) {
            meddle(&mut history, &mut random);
        }
        let (verdict, explained) = (verdict(&history), brute::is_explained(&history));
        assert_eq!(verdict.is_ok(), explained, "seed {seed}: {verdict:?}\n{}", tell(&history));
        *(if explained { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 4_000, "{good} good, {bad} bad");
    assert!(bad > 4_000, "{good} good, {bad} bad");
}

/// Changes what a watcher was told so that no watcher can have been told it. Nothing if there was nothing.
fn meddle_with_watcher(history: &mut History, random: &mut SplitMix64) -> Option<&'static str> {
    let watcher = history
        .watchers
        .iter_mut()
        .find(|watcher| watcher.told.iter().any(|(_, told)| matches!(told, Told::Events { .. })))?;
    let places = watcher.told.iter().enumerate();
    let of_events = places.filter(|(_, (_, told))| matches!(told, Told::Events { .. }));
    let of_events: Vec<usize> = of_events.map(|(at, _)| at).collect();
    let at = of_events[random.position(of_events.len())];
    let told = watcher.told[at].clone();
    let Told::Events { events, .. } = &mut watcher.told[at].1 else { unreachable!() };
    match random.below(6) {
        0 => {
            watcher.told.remove(at);
            Some("without an event")
        }
        1 => {
            watcher.told.insert(at, told);
            Some("an event twice")
        }
        2 => {
            events[0].kv.version += 1;
            Some("another event")
        }
        3 => {
            events[0].previous = Some(KeyValue::default());
            Some("another previous value")
        }
        4 => {
            let revision = events[0].revision();
            watcher.told.insert(at, (told.0, Told::Progress { revision }));
            Some("progress too early")
        }
        _ => {
            let revision = history.chronicle.last() + 7;
            watcher.told.insert(at, (told.0, Told::Compacted { revision }));
            Some("ended by a compaction that was not")
        }
    }
}

#[test]
fn what_no_watcher_can_be_told_is_found() {
    let mut found = 0;
    for seed in 0..2_000 {
        let (mut history, mut random) = drawn(seed, Shape::LARGE);
        let Some(what) = meddle_with_watcher(&mut history, &mut random) else { continue };
        let why = verdict(&history).expect_err(what);
        assert!(why.watcher.is_some() || why.property == Property::RealTime, "{what}: {why}");
        found += 1;
    }
    assert!(found > 1_500, "{found}");
}

#[test]
fn ten_thousand_operations_are_few() {
    let shape = Shape { operations: 10_000, unknown: 5, ..Shape::LARGE };
    let (history, _) = drawn(1, shape);
    let counts = verdict(&history).unwrap_or_else(|why| panic!("{why}"));
    assert!(counts.answers + counts.refusals > 8_000, "{counts:?}");
}
