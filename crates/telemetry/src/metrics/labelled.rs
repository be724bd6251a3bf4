//! Families with labels: each combination of label values has one series, which is created on first use.
//!
//! The series form a list to which new series are only appended. A lookup therefore needs no lock and no reference
//! count. A lookup walks the list, which is short.
//!
//! # Invariants
//!
//! * A combination has exactly one series, even if several threads try to create it at the same time.
//! * The number of series in a family is bounded, even if clients choose the label values. Combinations beyond the
//!   bound share one series, which is not exposed.

use std::fmt;
use std::sync::OnceLock;

use super::primitive::Gauge;

/// The maximum number of combinations of label values in a metric family.
const SERIES_COUNT_MAX: usize = 1_000;

/// A metric family with one series per combination of values of its labels.
pub struct Labelled<M> {
    names: &'static [&'static str],
    first: Link<M>,
    /// The series shared by combinations beyond the bound.
    excess: M,
    make: fn() -> M,
}

type Link<M> = OnceLock<Box<Series<M>>>;

struct Series<M> {
    values: Box<[String]>,
    metric: M,
    next: Link<M>,
}

impl<M> fmt::Debug for Labelled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Labelled").field("names", &self.names).finish_non_exhaustive()
    }
}

impl<M: Default> Labelled<M> {
    /// Creates a family of counters or gauges with these labels.
    pub(super) fn new(names: &'static [&'static str]) -> Self {
        Self::made_by(names, M::default)
    }
}

impl<M> Labelled<M> {
    /// Creates a family with these labels. `make` creates the metric of each series.
    pub(super) fn made_by(names: &'static [&'static str], make: fn() -> M) -> Self {
        Self { names, first: OnceLock::new(), excess: make(), make }
    }

    /// Returns the series with these label values.
    ///
    /// # Panics
    ///
    /// Panics if the number of values differs from the number of labels, which is a bug in the caller.
    pub fn with(&self, values: &[&str]) -> &M {
        assert!(
            values.len() == self.names.len(),
            "a series has one value for each label: otherwise values would be reported under the wrong labels"
        );
        let mut link = &self.first;
        let mut count = 0;
        loop {
            match link.get() {
                Some(series) if series.values.iter().zip(values).all(|(a, b)| a == b) => {
                    return &series.metric;
                }
                Some(series) => {
                    link = &series.next;
                    count += 1;
                }
                None if count >= SERIES_COUNT_MAX => return &self.excess,
                None => {
                    let values = values.iter().map(|value| (*value).to_owned()).collect();
                    let metric = (self.make)();
                    let series = Box::new(Series { values, metric, next: OnceLock::new() });
                    // If another thread has added a series first, the loop continues with that series.
                    let _outcome = link.set(series);
                }
            }
        }
    }

    /// Returns all series with their label values, sorted by these values.
    pub(super) fn sorted(&self) -> Vec<(&[String], &M)> {
        let mut all: Vec<(&[String], &M)> =
            self.iter().map(|series| (&*series.values, &series.metric)).collect();
        all.sort_by_key(|(values, _)| *values);
        all
    }

    /// Returns the number of series.
    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn names(&self) -> &'static [&'static str] {
        self.names
    }

    fn iter(&self) -> impl Iterator<Item = &Series<M>> {
        std::iter::successors(self.first.get(), |series| series.next.get()).map(|series| &**series)
    }
}

impl Labelled<Gauge> {
    /// Sets the series with these combinations of label values to 1, and all other series to 0. Each series is set once,
    /// so that a concurrent scrape never reads 0 from a series that stays 1.
    pub fn set_only<const N: usize>(&self, current: &[[&str; N]]) {
        for series in self.iter() {
            let is_current = current.iter().any(|values| series.values.iter().eq(values));
            series.metric.set(i64::from(is_current));
        }
        for values in current {
            self.with(values).set(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Counter;

    #[test]
    fn concurrent_threads_share_one_series_for_the_same_labels() {
        let family: Labelled<Counter> = Labelled::new(&["name"]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..1_000 {
                        family.with(&[&format!("{}", number % 50)]).inc();
                    }
                });
            }
        });
        assert_eq!(family.sorted().len(), 50);
        assert!(family.sorted().iter().all(|(_, counter)| counter.value() == 80));
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let family: Labelled<Counter> = Labelled::new(&["name"]);
        for number in 0..SERIES_COUNT_MAX + 5 {
            family.with(&[&number.to_string()]).inc();
        }
        assert_eq!((family.sorted().len(), family.count()), (SERIES_COUNT_MAX, SERIES_COUNT_MAX));
        assert_eq!(family.excess.value(), 5);
        family.with(&["7"]).inc();
        assert_eq!(family.with(&["7"]).value(), 2);
    }
}
