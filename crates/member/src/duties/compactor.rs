//! Automatic compaction: decides when to compact, and at which revision.
//!
//! The compactor's only inputs are ticks and sampled revisions. [`compact_automatically`] calls it and carries out the
//! compactions that it returns. Every member runs a compactor, so that a new leader has the sampled revisions. Only the
//! leader proposes compactions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use quorate_config::Retention;
use quorate_requests::RequestError;
use quorate_state::apply::Refusal;
use quorate_telemetry::log;
use tokio::time::{MissedTickBehavior, interval};

const HOUR: Duration = Duration::from_secs(3600);

/// The tick interval of revision mode.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// The minimum interval between two looks at the newest revision, for retention periods that are unreasonably short.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Logs etcd's line about an automatic compaction.
macro_rules! log_compaction {
    ($level:ident, $step:literal, $retention:expr, $revision:expr $(, $key:literal = $value:expr)*) => {
        match $retention {
            Retention::Period(period) => log::$level!(
                concat!($step, " auto periodic compaction"),
                "revision" = $revision,
                "compact-period" = period
                $(, $key = $value)*
            ),
            Retention::Revisions(count) => log::$level!(
                concat!($step, " auto revision compaction"),
                "revision" = $revision,
                "revision-compaction-retention" = count
                $(, $key = $value)*
            ),
        }
    };
}

/// Compacts the keyspace automatically, until the future is dropped.
///
/// `status` returns the current revision, and whether this server leads. `point` may replace the revision at which the
/// keyspace is to be compacted by an older one. `compact` compacts the keyspace.
pub async fn compact_automatically<C>(
    retention: Retention,
    status: impl Fn() -> (i64, bool),
    point: impl Fn(i64) -> i64,
    compact: impl Fn(i64) -> C,
) where
    C: Future<Output = Result<(), RequestError>>,
{
    let mut compactor = Compactor::new(retention, status().0);
    let mut ticks = interval(compactor.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes immediately, when there is nothing to compact yet.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let (revision, leads) = status();
        let Some(target) = compactor.tick(revision, leads) else { continue };
        let target = point(target);
        log_compaction!(info, "starting", retention, target);
        let started = Instant::now();
        match compact(target).await {
            Ok(()) | Err(RequestError::Refused(Refusal::Compacted)) => {
                compactor.compacted(target);
                let took = started.elapsed();
                log_compaction!(info, "completed", retention, target, "took" = took);
            }
            Err(error) => log_compaction!(
                warn,
                "failed",
                retention,
                target,
                "retry-interval" = compactor.interval(),
                "error" = error.to_string()
            ),
        }
    }
}

/// The state of automatic compaction.
#[derive(Debug)]
struct Compactor(Mode);

#[derive(Debug)]
enum Mode {
    Periodic(Periodic),
    Revision { keep: i64, last: i64 },
}

impl Compactor {
    /// Creates a compactor that keeps the history that `retention` specifies. `revision` is the current revision.
    fn new(retention: Retention, revision: i64) -> Self {
        Self(match retention {
            Retention::Period(period) => Mode::Periodic(Periodic::new(period, revision)),
            Retention::Revisions(keep) => Mode::Revision { keep, last: 0 },
        })
    }

    /// Returns the interval at which to call [`Compactor::tick`].
    fn interval(&self) -> Duration {
        match &self.0 {
            Mode::Periodic(periodic) => periodic.interval,
            Mode::Revision { .. } => REVISION_INTERVAL,
        }
    }

    /// Handles the end of an interval. `revision` is the current revision. Returns the revision to compact at if this
    /// member leads and a compaction is due. The caller reports success to [`Compactor::compacted`].
    fn tick(&mut self, revision: i64, leads: bool) -> Option<i64> {
        match &mut self.0 {
            Mode::Periodic(periodic) => periodic.tick(revision, leads),
            Mode::Revision { keep, last } => {
                let target = revision - *keep;
                (leads && target > 0 && target != *last).then_some(target)
            }
        }
    }

    /// Records that the keyspace was compacted at `revision`, either by this member or by a client.
    fn compacted(&mut self, revision: i64) {
        match &mut self.0 {
            Mode::Periodic(periodic) => {
                periodic.last = revision;
                periodic.ticks_since_success = 0;
                periodic.ticks_between = periodic.ticks_per_base;
            }
            Mode::Revision { last, .. } => *last = revision,
        }
    }
}

/// Compacts at a revision that was current at least one retention period ago.
#[derive(Debug)]
struct Periodic {
    interval: Duration,
    /// The newest sampled revisions, at most `sample_count`: one for each tick of a retention period, plus one. The
    /// first sample is taken at the start, and one at each tick.
    samples: VecDeque<i64>,
    sample_count: usize,
    ticks_since_success: u64,
    /// The number of ticks between compactions. The first compaction happens after a full period, and later ones at
    /// most an hour apart.
    ticks_between: u64,
    ticks_per_base: u64,
    last: i64,
}

impl Periodic {
    fn new(period: Duration, revision: i64) -> Self {
        let base = period.min(HOUR);
        let interval = (base / 10).max(INTERVAL_MIN);
        let ticks = |span: Duration| {
            u64::try_from(span.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u64::MAX)
        };
        let per_period = ticks(period);
        Self {
            interval,
            samples: VecDeque::from([revision]),
            sample_count: usize::try_from(per_period).unwrap_or(usize::MAX).saturating_add(1),
            ticks_since_success: 0,
            ticks_between: per_period,
            ticks_per_base: ticks(base),
            last: 0,
        }
    }

    fn tick(&mut self, revision: i64, leads: bool) -> Option<i64> {
        self.ticks_since_success += 1;
        // The target is chosen before this tick's sample is added. Otherwise, the oldest sample would be one interval
        // younger than the retention period.
        let target = *self.samples.front()?;
        self.samples.push_back(revision);
        if self.samples.len() > self.sample_count {
            self.samples.pop_front();
        }
        let due = self.ticks_since_success >= self.ticks_between;
        (leads && due && target != self.last).then_some(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `tick` until `count` compactions have happened. One revision is written per tick. Returns the tick and the
    /// revision of each compaction.
    fn run(mut compactor: Compactor, count: usize) -> Vec<(i64, i64)> {
        let mut compactions = Vec::new();
        for tick in 1.. {
            if let Some(revision) = compactor.tick(100 + tick, true) {
                compactions.push((tick, revision));
                compactor.compacted(revision);
                if compactions.len() == count {
                    break;
                }
            }
        }
        compactions
    }

    #[test]
    fn the_interval_of_the_shortest_retention_period_is_not_zero() {
        let mut compactor = Compactor::new(Retention::Period(Duration::from_nanos(5)), 100);
        assert_eq!(compactor.interval(), INTERVAL_MIN);
        assert!((1..10).any(|tick| compactor.tick(100 + tick, true).is_some()));
    }

    #[test]
    fn compactions_run_hourly_and_keep_an_hour_of_history() {
        let compactor = Compactor::new(Retention::Period(HOUR), 100);
        assert_eq!(compactor.interval(), Duration::from_secs(360));
        assert_eq!(run(compactor, 3), [(10, 100), (20, 109), (30, 119)]);
    }

    #[test]
    fn hourly_compactions_start_after_a_day_if_the_retention_period_is_a_day() {
        let compactor = Compactor::new(Retention::Period(24 * HOUR), 100);
        assert_eq!(run(compactor, 3), [(240, 100), (250, 109), (260, 119)]);
    }

    #[test]
    fn a_follower_samples_revisions_but_does_not_compact() {
        let mut compactor = Compactor::new(Retention::Period(HOUR), 0);
        for tick in 1..=15 {
            assert_eq!(compactor.tick(tick, false), None);
        }
        assert_eq!(compactor.tick(16, true), Some(5));
    }

    #[test]
    fn the_same_revision_is_not_compacted_twice() {
        let mut compactor = Compactor::new(Retention::Period(HOUR), 7);
        let hits: Vec<_> = (0..40)
            .filter_map(|_| {
                let hit = compactor.tick(7, true);
                if let Some(revision) = hit {
                    compactor.compacted(revision);
                }
                hit
            })
            .collect();
        assert_eq!(hits, [7]);
    }

    #[test]
    fn revision_mode_keeps_the_configured_number_of_revisions() {
        let mut compactor = Compactor::new(Retention::Revisions(100), 1);
        assert_eq!(compactor.tick(100, true), None);
        assert_eq!(compactor.tick(150, true), Some(50));
        compactor.compacted(50);
        assert_eq!(compactor.tick(150, true), None);
        assert_eq!(compactor.tick(160, false), None);
        assert_eq!(compactor.tick(160, true), Some(60));
    }
}
