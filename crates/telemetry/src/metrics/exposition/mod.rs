//! How families are told: as text, or as protobuf messages for scrapers that ask for them.

mod protobuf;
mod text;

use super::primitive::Histogram;

#[cfg(test)]
pub(super) use self::text::number;

/// How a scrape is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The text format 0.0.4.
    #[default]
    Text,
    /// `io.prometheus.client.MetricFamily` one behind the other, each after its length.
    Protobuf,
}

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// What a TYPE line says.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Name, help and kind of a family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
}

/// The samples of one family, on their way out. A family without a sample is not told of at all.
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

    /// Adds a number.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        match self {
            Self::Text(family) => family.value(labels, value),
            Self::Protobuf(family) => family.value(labels, value),
        }
    }

    /// Adds a histogram: its buckets, cumulated, its sum and its count.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        match self {
            Self::Text(family) => family.histogram(labels, histogram),
            Self::Protobuf(family) => family.histogram(labels, histogram),
        }
    }

    /// Ends the family.
    pub(super) fn end(self) {
        match self {
            Self::Text(_) => {}
            Self::Protobuf(family) => family.end(),
        }
    }
}
