//! Runs seeds, and reduces a failing run to a smaller run that still fails in the same way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::clock::SECOND;
use crate::plan::{Kind, Plan, Reduction};
use crate::rare_states::RareStates;
use crate::trace::Sink;
use crate::world::{Run, World};

/// Runs a seed with the reduction. A panic counts as a failure of the run.
#[must_use]
pub fn run(seed: u64, reduction: &Reduction, origin: Instant, sink: Option<Sink>) -> Run {
    let plan = Plan::draw(seed, reduction);
    let ran = catch_unwind(AssertUnwindSafe(|| World::new(plan, origin, sink).run()));
    ran.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let failure = format!("panic: {}", text.unwrap_or("no message"));
        Run {
            duration: 0,
            rare_states: RareStates::default(),
            sum: 0,
            events: 0,
            failure: Some(failure),
        }
    })
}

/// Number of words at the beginning of a failure text that determine the kind of failure.
const KIND_WORDS: usize = 6;

/// Returns the kind of a failure: the first words of its text without names and numbers, which differ between runs.
fn failure_kind(failure: &str) -> String {
    let is_word = |word: &&str| word.chars().all(|c| !c.is_ascii_digit());
    let words = failure.lines().next().unwrap_or_default().split_whitespace().filter(is_word);
    let words: Vec<&str> = words.take(KIND_WORDS).collect();
    match words.first() {
        // For a violated history property, the kind is the name of the property.
        Some(property) if property.ends_with(':') && *property != "panic:" => {
            (*property).to_owned()
        }
        _ => words.join(" "),
    }
}

/// Reduces a failing run: removes one kind of fault after another, then shortens the run. The reduced run still fails
/// with the same kind of failure as `failure`.
pub fn shrink(
    seed: u64,
    failure: &str,
    origin: Instant,
    mut on_run: impl FnMut(&Reduction, bool),
) -> Reduction {
    let mut reduction = Reduction::default();
    let mut fails = |reduction: &Reduction| {
        let found = run(seed, reduction, origin, None).failure;
        let fails = found.is_some_and(|found| failure_kind(&found) == failure_kind(failure));
        on_run(reduction, fails);
        fails
    };
    let kinds: Vec<Kind> = Plan::draw(seed, &reduction).kinds.into_iter().collect();
    for kind in kinds {
        let mut candidate = reduction.clone();
        candidate.without.insert(kind);
        if fails(&candidate) {
            reduction = candidate;
        }
    }
    let mut seconds = Plan::draw(seed, &reduction).duration / SECOND;
    while seconds > 1 {
        let shorter = seconds * 2 / 3;
        let candidate = Reduction { seconds_max: Some(shorter), ..reduction.clone() };
        if !fails(&candidate) {
            break;
        }
        (reduction, seconds) = (candidate, shorter);
    }
    reduction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_differ_only_in_names_and_numbers_have_the_same_kind() {
        let same = |a: &str, b: &str| failure_kind(a) == failure_kind(b);
        assert!(same("h2 ends: the disk is full at 7", "h0 ends: the disk is full at 12"));
        assert!(same("WatchEvents: revision 9 was sent\n  #1: ..", "WatchEvents: an event again"));
        assert!(!same("WatchEvents: an event again", "RealTime: an event again"));
        assert!(!same("panic: a lease is gone", "panic: the log ends"));
        assert!(!same("h2 ends: the log", "h2 failed to start: the log"));
    }
}
