//! A run by its seed, and the smallest run that still fails as it does.

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

/// Leaves out what a failure does without: kinds one by one, then time. `told` hears of each run.
pub fn shrink(seed: u64, origin: Instant, mut told: impl FnMut(&Less, bool)) -> Less {
    let mut less = Less::default();
    let mut fails = |less: &Less| {
        let fails = run(seed, less, origin, None).wrong.is_some();
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
