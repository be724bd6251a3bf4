//! Runs a seed, and reduces a failing run to the smallest one that still fails in the same way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::clock::SECOND;
use crate::plan::{Kind, Less, Plan};
use crate::seen::Seen;
use crate::trace::Sink;
use crate::world::{Run, World};

/// Runs a seed, less what is left out. A panic is what was wrong, as any other thing is.
#[must_use]
pub fn run(seed: u64, less: &Less, origin: Instant, sink: Option<Sink>) -> Run {
    let plan = Plan::draw(seed, less);
    let ran = catch_unwind(AssertUnwindSafe(|| World::new(plan, origin, sink).run()));
    ran.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let wrong = format!("panic: {}", text.unwrap_or("without words"));
        Run { lasted: 0, seen: Seen::default(), sum: 0, events: 0, wrong: Some(wrong) }
    })
}

/// Words of what was wrong that say of which kind it is.
const KIND_WORDS: usize = 6;

/// Of which kind a failure is: the first words of what was wrong, without names and numbers, which differ from run to
/// run.
fn kind_of(wrong: &str) -> String {
    let is_word = |word: &&str| word.chars().all(|c| !c.is_ascii_digit());
    let words = wrong.lines().next().unwrap_or_default().split_whitespace().filter(is_word);
    let words: Vec<&str> = words.take(KIND_WORDS).collect();
    match words.first() {
        // A property of histories says it all.
        Some(property) if property.ends_with(':') && *property != "panic:" => {
            (*property).to_owned()
        }
        _ => words.join(" "),
    }
}

/// Leaves out what a failure does without: kinds one by one, then time. What is left fails as the whole does, of which
/// this was wrong. `told` hears of each run.
pub fn shrink(seed: u64, wrong: &str, origin: Instant, mut told: impl FnMut(&Less, bool)) -> Less {
    let mut less = Less::default();
    let mut fails = |less: &Less| {
        let found = run(seed, less, origin, None).wrong;
        let fails = found.is_some_and(|found| kind_of(&found) == kind_of(wrong));
        told(less, fails);
        fails
    };
    let kinds: Vec<Kind> = Plan::draw(seed, &less).kinds.into_iter().collect();
    for kind in kinds {
        let mut fewer = less.clone();
        fewer.without.insert(kind);
        if fails(&fewer) {
            less = fewer;
        }
    }
    let mut seconds = Plan::draw(seed, &less).duration / SECOND;
    while seconds > 1 {
        let shorter = seconds * 2 / 3;
        let fewer = Less { seconds_max: Some(shorter), ..less.clone() };
        if !fails(&fewer) {
            break;
        }
        (less, seconds) = (fewer, shorter);
    }
    less
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_one_kind_differ_in_names_and_numbers_alone() {
        let same = |a: &str, b: &str| kind_of(a) == kind_of(b);
        assert!(same("h2 ends: the disk is full at 7", "h0 ends: the disk is full at 12"));
        assert!(same("WatchEvents: revision 9 was sent\n  #1: ..", "WatchEvents: an event again"));
        assert!(!same("WatchEvents: an event again", "RealTime: an event again"));
        assert!(!same("panic: a lease is gone", "panic: the log ends"));
        assert!(!same("h2 ends: the log", "h2 does not start: the log"));
    }
}
