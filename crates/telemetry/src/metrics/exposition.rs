//! The text format 0.0.4, byte for byte as Prometheus's own library writes it.

use std::fmt::Write;

use super::primitive::Histogram;

/// What a family's TYPE line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The samples of one family, on their way into the text.
#[derive(Debug)]
pub(super) struct Samples<'a> {
    text: &'a mut String,
    name: &'static str,
    help: &'static str,
    kind: Kind,
    /// A family without a sample has no lines at all.
    has_head: bool,
}

impl<'a> Samples<'a> {
    pub(super) fn new(
        text: &'a mut String,
        name: &'static str,
        help: &'static str,
        kind: Kind,
    ) -> Self {
        Self { text, name, help, kind, has_head: false }
    }

    /// Adds a number.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        self.head();
        self.line("", labels, None, value);
    }

    /// Adds a histogram: its buckets, cumulated, its sum and its count.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        self.head();
        let (buckets, above) = histogram.snapshot();
        let mut count = 0;
        for (bound, inside) in buckets {
            count += inside;
            self.line("_bucket", labels, Some(&number(bound)), count as f64);
        }
        count += above;
        self.line("_bucket", labels, Some("+Inf"), count as f64);
        self.line("_sum", labels, None, histogram.sum());
        self.line("_count", labels, None, count as f64);
    }

    fn head(&mut self) {
        if !self.has_head {
            self.has_head = true;
            let (name, help, kind) = (self.name, self.help, self.kind.name());
            write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
                .expect("a String takes any text");
        }
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut separator = '{';
        for (name, value) in all {
            self.text.push(separator);
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(self.text, value);
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.text.push(' ');
        self.text.push_str(&number(value));
        self.text.push('\n');
    }
}

fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

/// A number in its shortest exact form; from a million up, and below a ten-thousandth, with an
/// exponent of at least two digits.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        let text = match value {
            v if v.is_nan() => "NaN",
            v if v > 0.0 => "+Inf",
            _ => "-Inf",
        };
        return text.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
