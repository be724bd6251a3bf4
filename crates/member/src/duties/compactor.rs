//! Automatic compaction: decides when to compact, and at which revision.
//!
//! The compactor's only inputs are ticks and sampled revisions. `housekeeping` calls it and proposes the compactions
//! that it returns. Every member runs a compactor, so that a new leader has the sampled revisions. Only the leader
//! proposes compactions.

use std::collections::VecDeque;
use std::time::Duration;

use quorate_config::Retention;

const HOUR: Duration = Duration::from_secs(3600);

/// The tick interval of revision mode.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// The state of automatic compaction.
#[derive(Debug)]
pub struct Compactor(Mode);

#[derive(Debug)]
enum Mode {
    Periodic(Periodic),
    Revision { keep: i64, last: i64 },
}

impl Compactor {
    /// Creates a compactor that keeps the history that `retention` specifies.
    pub fn new(retention: Retention) -> Self {
        Self(match retention {
            Retention::Period(period) => Mode::Periodic(Periodic::new(period)),
            Retention::Revisions(keep) => Mode::Revision { keep, last: 0 },
        })
    }

    /// Returns the interval at which to call [`Compactor::tick`].
    pub fn interval(&self) -> Duration {
        match &self.0 {
            Mode::Periodic(periodic) => periodic.interval,
            Mode::Revision { .. } => REVISION_INTERVAL,
        }
    }

    /// Handles the end of an interval. `revision` is the current revision. Returns the revision to compact at if this
    /// member leads and a compaction is due. The caller reports success to [`Compactor::compacted`].
    pub fn tick(&mut self, revision: i64, leads: bool) -> Option<i64> {
        match &mut self.0 {
            Mode::Periodic(periodic) => periodic.tick(revision, leads),
            Mode::Revision { keep, last } => {
                let target = revision - *keep;
                (leads && target > 0 && target != *last).then_some(target)
            }
        }
    }

    /// Records that the keyspace was compacted at `revision`, either by this member or by a client.
    pub fn compacted(&mut self, revision: i64) {
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

/// Compacts at the revision that was current one retention period ago.
/// The minimum interval between two looks at the newest revision, for retention periods that are unreasonably short.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Periodic {
    interval: Duration,
    /// The newest sampled revisions: one for each tick of a retention period, plus one.
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
    fn new(period: Duration) -> Self {
        let base = period.min(HOUR);
        let interval = (base / 10).max(INTERVAL_MIN);
        let ticks = |span: Duration| {
            u64::try_from(span.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u64::MAX)
        };
        let per_period = ticks(period);
        Self {
            interval,
            samples: VecDeque::new(),
            sample_count: usize::try_from(per_period).unwrap_or(usize::MAX).saturating_add(1),
            ticks_since_success: 0,
            ticks_between: per_period,
            ticks_per_base: ticks(base),
            last: 0,
        }
    }

    fn tick(&mut self, revision: i64, leads: bool) -> Option<i64> {
        self.samples.push_back(revision);
        if self.samples.len() > self.sample_count {
            self.samples.pop_front();
        }
        self.ticks_since_success += 1;
        let target = *self.samples.front()?;
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
        let mut compactor = Compactor::new(Retention::Period(Duration::from_nanos(5)));
        assert_eq!(compactor.interval(), INTERVAL_MIN);
        assert!((1..10).any(|tick| compactor.tick(100 + tick, true).is_some()));
    }

    #[test]
    fn compactions_run_hourly_and_keep_an_hour_of_history() {
        let compactor = Compactor::new(Retention::Period(HOUR));
        assert_eq!(compactor.interval(), Duration::from_secs(360));
        assert_eq!(run(compactor, 3), [(10, 101), (20, 110), (30, 120)]);
    }

    #[test]
    fn hourly_compactions_start_after_a_day_if_the_retention_period_is_a_day() {
        let compactor = Compactor::new(Retention::Period(24 * HOUR));
        assert_eq!(run(compactor, 3), [(240, 101), (250, 110), (260, 120)]);
    }

    #[test]
    fn a_follower_samples_revisions_but_does_not_compact() {
        let mut compactor = Compactor::new(Retention::Period(HOUR));
        for tick in 1..=15 {
            assert_eq!(compactor.tick(tick, false), None);
        }
        assert_eq!(compactor.tick(16, true), Some(6));
    }

    #[test]
    fn the_same_revision_is_not_compacted_twice() {
        let mut compactor = Compactor::new(Retention::Period(HOUR));
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
        let mut compactor = Compactor::new(Retention::Revisions(100));
        assert_eq!(compactor.tick(100, true), None);
        assert_eq!(compactor.tick(150, true), Some(50));
        compactor.compacted(50);
        assert_eq!(compactor.tick(150, true), None);
        assert_eq!(compactor.tick(160, false), None);
        assert_eq!(compactor.tick(160, true), Some(60));
    }
}
