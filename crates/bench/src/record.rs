//! The outcomes of a run's operations: latencies, errors and bytes.
//!
//! Each connection has its own records, which are merged at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::wire::Status;

/// The maximum number of distinct errors that are listed. Further errors are only counted.
const ERROR_TEXTS_MAX: usize = 16;
/// The highest latency that can be recorded: one hour.
const LATENCY_NANOS_MAX: u64 = 3_600_000_000_000;

/// The outcomes of one kind of operation.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The latencies of successful operations, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    pub(crate) errors: u64,
    /// The number of occurrences of each error.
    pub(crate) error_texts: BTreeMap<String, u64>,
    pub(crate) reply_bytes: u64,
}

impl Record {
    pub(crate) fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, 3)
            .expect("the bounds are in order and 3 significant digits are allowed");
        Self { latency, errors: 0, error_texts: BTreeMap::new(), reply_bytes: 0 }
    }

    /// Records the outcome of one operation.
    pub(crate) fn add(&mut self, latency: Duration, status: &Status, reply_bytes: u64) {
        self.reply_bytes += reply_bytes;
        if status.code == 0 {
            self.add_latency(latency);
        } else {
            self.add_error(format!("{} (gRPC code {})", status.message, status.code), 1);
        }
    }

    pub(crate) fn add_latency(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(nanos);
    }

    pub(crate) fn add_error(&mut self, text: String, count: u64) {
        self.errors += count;
        if self.error_texts.len() < ERROR_TEXTS_MAX || self.error_texts.contains_key(&text) {
            *self.error_texts.entry(text).or_default() += count;
        }
    }

    /// Adds the outcomes in another record to this record.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latency.add(&other.latency).expect("all histograms have the same bounds");
        self.errors += other.errors;
        self.reply_bytes += other.reply_bytes;
        for (text, count) in &other.error_texts {
            *self.error_texts.entry(text.clone()).or_default() += count;
        }
    }

    /// Returns the number of operations, successful or not.
    pub(crate) fn count(&self) -> u64 {
        self.latency.len() + self.errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_two_records_adds_their_counts() {
        let mut one = Record::new();
        one.add(Duration::from_micros(10), &Status::default(), 7);
        let mut two = Record::new();
        two.add(Duration::from_secs(100), &Status::default(), 1);
        let refused = Status { code: 8, message: "too many".to_owned() };
        two.add(Duration::ZERO, &refused, 2);
        one.merge(&two);
        assert_eq!((one.count(), one.errors, one.reply_bytes), (3, 1, 10));
        assert_eq!(one.error_texts.keys().collect::<Vec<_>>(), ["too many (gRPC code 8)"]);
        assert!(one.latency.max() >= 99_000_000_000);
    }
}
