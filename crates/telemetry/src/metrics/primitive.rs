//! Counters, gauges and histograms: plain atomics.
//!
//! Updates are relaxed: a scrape may see one of two updates before the other, never a torn value.
//! Histograms keep whole numbers of a fine unit (nanoseconds, mostly), so that observing needs no
//! floating point and the sum no compare-and-swap loop; the exposition divides.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts several.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the number.
    #[inline]
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Sets an index or a size, which are never beyond what a signed number holds.
    #[inline]
    pub fn set_unsigned(&self, value: u64) {
        self.set(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Adds to the number, or takes from it.
    #[inline]
    pub fn add(&self, difference: i64) {
        self.0.fetch_add(difference, Ordering::Relaxed);
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Takes one.
    #[inline]
    pub fn dec(&self) {
        self.add(-1);
    }

    /// The number now.
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often values fell below each of some bounds, and their sum.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds, inclusive, rising, in the fine unit.
    bounds: Box<[u64]>,
    /// One per bound, and one for what is above them all.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    /// Fine units in a printed one.
    scale: u64,
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MILLI: u64 = 1_000_000;

impl Histogram {
    /// Spans of time printed in seconds; the first bound in microseconds, each next one the double.
    pub fn seconds(first_micros: u64, count: usize) -> Self {
        Self::new(doubling(first_micros * 1_000, count), NANOS_PER_SECOND)
    }

    /// Spans of time printed in seconds, with these bounds in milliseconds.
    pub fn seconds_with_bounds(bounds_millis: &[u64]) -> Self {
        let nanos = bounds_millis.iter().map(|millis| millis * NANOS_PER_MILLI).collect();
        Self::new(nanos, NANOS_PER_SECOND)
    }

    /// Spans of time printed in milliseconds; the first bound in microseconds, each next one the
    /// double.
    pub fn millis(first_micros: u64, count: usize) -> Self {
        Self::new(doubling(first_micros * 1_000, count), NANOS_PER_MILLI)
    }

    /// Plain numbers; each bound the double of the one before.
    pub fn numbers(first: u64, count: usize) -> Self {
        Self::new(doubling(first, count), 1)
    }

    fn new(bounds: Vec<u64>, scale: u64) -> Self {
        assert!(bounds.is_sorted(), "the bounds of a histogram rise");
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds: bounds.into(), buckets, sum: AtomicU64::new(0), scale }
    }

    /// Counts a span of time.
    #[inline]
    pub fn observe(&self, duration: Duration) {
        self.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts a plain number.
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

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// The sum of the values, in the printed unit.
    pub(super) fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / self.scale as f64
    }

    /// The bounds in the printed unit, each with the count of its own bucket; the count above them
    /// last.
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
