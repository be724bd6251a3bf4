//! Counters, gauges and histograms, implemented with atomics.
//!
//! Updates are relaxed: a scrape may see one of two updates before the other, but never a torn value.
//! Histograms store integers in a small unit (usually nanoseconds), so that an observation needs no
//! floating-point arithmetic and the sum needs no compare-and-swap loop. The exposition converts the unit.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds several.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the value.
    #[inline]
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Sets an index or a size, which always fits in a signed number.
    #[inline]
    pub fn set_unsigned(&self, value: u64) {
        self.set(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Adds a positive or negative difference.
    #[inline]
    pub fn add(&self, difference: i64) {
        self.0.fetch_add(difference, Ordering::Relaxed);
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Subtracts one.
    #[inline]
    pub fn dec(&self) {
        self.add(-1);
    }

    /// Returns the value.
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The number of values in each bucket, and their sum.
#[derive(Debug)]
pub struct Histogram {
    /// The inclusive upper bounds, rising, in the small unit.
    bounds: Box<[u64]>,
    /// One bucket per bound, and one for values above all bounds.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    /// The number of small units in one exposed unit.
    scale: u64,
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MILLI: u64 = 1_000_000;

impl Histogram {
    /// A histogram of durations, exposed in seconds; the first bound is in microseconds, and each bound
    /// doubles the one before.
    pub fn seconds(first_micros: u64, count: usize) -> Self {
        Self::new(doubling(first_micros * 1_000, count), NANOS_PER_SECOND)
    }

    /// A histogram of durations, exposed in seconds, with these bounds in milliseconds.
    pub fn seconds_with_bounds(bounds_millis: &[u64]) -> Self {
        let nanos = bounds_millis.iter().map(|millis| millis * NANOS_PER_MILLI).collect();
        Self::new(nanos, NANOS_PER_SECOND)
    }

    /// A histogram of durations, exposed in milliseconds; the first bound is in microseconds, and each bound
    /// doubles the one before.
    pub fn millis(first_micros: u64, count: usize) -> Self {
        Self::new(doubling(first_micros * 1_000, count), NANOS_PER_MILLI)
    }

    /// A histogram of plain numbers; each bound doubles the one before.
    pub fn numbers(first: u64, count: usize) -> Self {
        Self::new(doubling(first, count), 1)
    }

    fn new(bounds: Vec<u64>, scale: u64) -> Self {
        assert!(bounds.is_sorted(), "the bounds of a histogram rise");
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

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// Returns the sum of the values in the exposed unit.
    pub(super) fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / self.scale as f64
    }

    /// Returns the bounds in the exposed unit with the counts of their buckets, and the count above all
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
