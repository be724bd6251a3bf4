//! The formats of a scrape: text, or protobuf for scrapers that request it.

mod protobuf;
mod text;

use super::primitive::Histogram;

#[cfg(test)]
pub(super) use self::text::number;

/// The format of a scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    #[default]
    Text,
    /// Protobuf messages of type `io.prometheus.client.MetricFamily`, each preceded by its length.
    Protobuf,
}

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// Returns the name of the type in the TYPE line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The name, help and type of a family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
}

/// The samples of one family in the output. A family without samples is omitted from the output.
#[derive(Debug)]
pub(super) enum Samples<'a> {
    Text(text::Family<'a>),
    Protobuf(protobuf::Family<'a>),
}

impl<'a> Samples<'a> {
    pub(super) fn new(format: Format, out: &'a mut Vec<u8>, head: Head) -> Self {
        match format {
            Format::Text => Self::Text(text::Family::new(out, head)),
            Format::Protobuf => Self::Protobuf(protobuf::Family::new(out, head)),
        }
    }

    /// Adds a sample with a single value.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        match self {
            Self::Text(family) => family.value(labels, value),
            Self::Protobuf(family) => family.value(labels, value),
        }
    }

    /// Adds a histogram: its cumulative buckets, its sum and its count.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        match self {
            Self::Text(family) => family.histogram(labels, histogram),
            Self::Protobuf(family) => family.histogram(labels, histogram),
        }
    }

    /// Completes the family's output.
    pub(super) fn end(self) {
        match self {
            Self::Text(_) => {}
            Self::Protobuf(family) => family.end(),
        }
    }
}
