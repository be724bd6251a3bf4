//! Encodes `io.prometheus.client.MetricFamily` of Prometheus's `metrics.proto`. Writes the same fields as Prometheus's
//! own library, including fields with the value zero, as in proto2.

use quorate_protobuf::{put_bytes, put_number, put_varint};

use super::super::primitive::Histogram;
use super::{Head, Kind};

/// A family in the output.
#[derive(Debug)]
pub(in super::super) struct Family<'a> {
    out: &'a mut Vec<u8>,
    head: Head,
    /// The samples that have been encoded.
    metrics: Vec<u8>,
    /// A reusable buffer for one sample.
    metric: Vec<u8>,
}

impl<'a> Family<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, head: Head) -> Self {
        Self { out, head, metrics: Vec::new(), metric: Vec::new() }
    }

    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        let field = match self.head.kind {
            Kind::Gauge => 2,
            Kind::Counter | Kind::Histogram => 3,
        };
        let mut number = Vec::new();
        put_double(1, value, &mut number);
        self.metric(labels, field, &number);
    }

    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let (buckets, above) = histogram.snapshot();
        let count = above + buckets.iter().map(|(_, inside)| inside).sum::<u64>();
        let mut encoded = Vec::new();
        put_number(1, count, &mut encoded);
        put_double(2, histogram.sum(), &mut encoded);
        let mut below = 0;
        for (bound, inside) in buckets {
            below += inside;
            let mut bucket = Vec::new();
            put_number(1, below, &mut bucket);
            put_double(2, bound, &mut bucket);
            put_bytes(3, &bucket, &mut encoded);
        }
        self.metric(labels, 7, &encoded);
    }

    fn metric(&mut self, labels: &[(&str, &str)], field: u32, value: &[u8]) {
        self.metric.clear();
        for (name, value) in labels {
            let mut label = Vec::new();
            put_bytes(1, name.as_bytes(), &mut label);
            put_bytes(2, value.as_bytes(), &mut label);
            put_bytes(1, &label, &mut self.metric);
        }
        put_bytes(field, value, &mut self.metric);
        put_bytes(4, &self.metric, &mut self.metrics);
    }

    pub(super) fn end(self) {
        if self.metrics.is_empty() {
            return;
        }
        let mut head = Vec::new();
        put_bytes(1, self.head.name.as_bytes(), &mut head);
        put_bytes(2, self.head.help.as_bytes(), &mut head);
        let kind = match self.head.kind {
            Kind::Counter => 0,
            Kind::Gauge => 1,
            Kind::Histogram => 4,
        };
        put_number(3, kind, &mut head);
        put_varint((head.len() + self.metrics.len()) as u64, self.out);
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(&self.metrics);
    }
}

/// Appends a field of type `double`.
fn put_double(field: u32, value: f64, out: &mut Vec<u8>) {
    const FIXED64: u64 = 1;
    put_varint(u64::from(field) << 3 | FIXED64, out);
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Checks the family's length prefix, and returns the bytes after it.
    fn encoded(kind: Kind, add: impl FnOnce(&mut Family<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        let mut family = Family::new(&mut out, Head { name: "n", help: "h", kind });
        add(&mut family);
        family.end();
        let (len, message) = out.split_first().unwrap();
        assert_eq!(usize::from(*len), message.len());
        message.to_vec()
    }

    #[test]
    fn metric_families_are_encoded_as_in_prometheus() {
        let one = 1.0_f64.to_le_bytes();
        let counter = encoded(Kind::Counter, |family| family.value(&[("a", "b")], 1.0));
        let metric = [&b"\x0a\x06\x0a\x01a\x12\x01b\x1a\x09\x09"[..], &one].concat();
        let head = b"\x0a\x01n\x12\x01h\x18\x00\x22\x13";
        assert_eq!(counter, [&head[..], &metric].concat());

        let gauge = encoded(Kind::Gauge, |family| family.value(&[], 1.0));
        let head = b"\x0a\x01n\x12\x01h\x18\x01\x22\x0b\x12\x09\x09";
        assert_eq!(gauge, [&head[..], &one].concat());

        let histogram = Histogram::seconds(1_000_000, 1);
        histogram.observe(Duration::from_secs(1));
        histogram.observe(Duration::from_secs(2));
        let three = 3.0_f64.to_le_bytes();
        let histogram = encoded(Kind::Histogram, |family| family.histogram(&[], &histogram));
        let head = b"\x0a\x01n\x12\x01h\x18\x04\x22\x1a\x3a\x18\x08\x02\x11";
        let bucket = b"\x1a\x0b\x08\x01\x11";
        assert_eq!(histogram, [&head[..], &three, bucket, &one].concat());
    }

    #[test]
    fn a_metric_family_without_samples_is_omitted() {
        let mut out = Vec::new();
        Family::new(&mut out, Head { name: "n", help: "h", kind: Kind::Gauge }).end();
        assert!(out.is_empty());
    }
}
