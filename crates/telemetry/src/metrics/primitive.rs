//! Counters, gauges and histograms, implemented with atomics.
//!
//! Updates are relaxed: a scrape may see two updates in either order, but never a torn value. Histograms record
//! integers in a small unit (usually nanoseconds), so that an observation needs no floating-point arithmetic and the
//! sum needs no compare-and-swap loop. The exposition converts the unit.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A number that never decreases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Increments the counter by one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Increments the counter by `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that may rise and fall.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the value.
    #[inline]
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Sets the value to an index or a size, which always fits in a signed number.
    #[inline]
    pub fn set_unsigned(&self, value: u64) {
        self.set(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Adds a positive or negative number.
    #[inline]
    pub fn add(&self, difference: i64) {
        self.0.fetch_add(difference, Ordering::Relaxed);
    }

    /// Increments the gauge by one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Decrements the gauge by one.
    #[inline]
    pub fn dec(&self) {
        self.add(-1);
    }

    /// Returns the current value.
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of values by bucket, and the sum of all values.
#[derive(Debug)]
pub struct Histogram {
    /// The inclusive upper bounds in ascending order, in the recorded unit.
    bounds: Box<[u64]>,
    /// The count for each bound, followed by the count of values above all bounds.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    /// The number of recorded units (such as nanoseconds) in one reported unit (such as seconds).
    scale: u64,
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MILLI: u64 = 1_000_000;

impl Histogram {
    /// Creates a histogram of durations that is reported in seconds. The first bound is in microseconds, and each
    /// further bound is twice the previous bound.
    pub fn seconds(first_micros: u64, count: usize) -> Self {
        Self::new(doubling(first_micros * 1_000, count), NANOS_PER_SECOND)
    }

    /// Creates a histogram of durations that is reported in seconds. The bounds are in milliseconds.
    pub fn seconds_with_bounds(bounds_millis: &[u64]) -> Self {
        let nanos = bounds_millis.iter().map(|millis| millis * NANOS_PER_MILLI).collect();
        Self::new(nanos, NANOS_PER_SECOND)
    }

    /// Creates a histogram of durations that is reported in milliseconds. The first bound is in microseconds, and each
    /// further bound is twice the previous bound.
    pub fn millis(first_micros: u64, count: usize) -> Self {
        Self::new(doubling(first_micros * 1_000, count), NANOS_PER_MILLI)
    }

    /// Creates a histogram of plain numbers. Each bound is twice the previous bound.
    pub fn numbers(first: u64, count: usize) -> Self {
        Self::new(doubling(first, count), 1)
    }

    fn new(bounds: Vec<u64>, scale: u64) -> Self {
        assert!(
            bounds.is_sorted(),
            "the bounds of a histogram are in ascending order: otherwise observations would be counted in the wrong \
             buckets"
        );
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds: bounds.into(), buckets, sum: AtomicU64::new(0), scale }
    }

    /// Records a duration.
    #[inline]
    pub fn observe(&self, duration: Duration) {
        self.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records a plain number.
    #[inline]
    pub fn observe_number(&self, number: u64) {
        self.record(number.saturating_mul(self.scale));
    }

    #[inline]
    fn record(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Returns the number of recorded values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// Returns the sum of the recorded values in the reported unit.
    pub(super) fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / self.scale as f64
    }

    /// Returns the bounds in the reported unit, each with the count of its bucket, and the count of values above all
    /// bounds.
    pub(super) fn snapshot(&self) -> (Vec<(f64, u64)>, u64) {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let mut counts: Vec<u64> = counts.collect();
        let above = counts.pop().unwrap_or(0);
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / self.scale as f64);
        (bounds.zip(counts).collect(), above)
    }
}

fn doubling(first: u64, count: usize) -> Vec<u64> {
    (0..count).map(|step| first << step).collect()
}
