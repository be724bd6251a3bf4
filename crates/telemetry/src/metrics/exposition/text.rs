//! The text format 0.0.4, byte for byte as Prometheus's own library writes it.

use std::io::Write as _;

use super::super::primitive::Histogram;
use super::Head;

/// A family in the output.
#[derive(Debug)]
pub(in super::super) struct Family<'a> {
    text: &'a mut Vec<u8>,
    head: Head,
    /// Whether the HELP and TYPE lines have been written. A family without samples has neither.
    has_head: bool,
}

impl<'a> Family<'a> {
    pub(super) const fn new(text: &'a mut Vec<u8>, head: Head) -> Self {
        Self { text, head, has_head: false }
    }

    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: f64) {
        self.head();
        self.line("", labels, None, value);
    }

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
            let Head { name, help, kind } = self.head;
            let kind = kind.name();
            write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
                .expect("writing to memory cannot fail");
        }
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: f64) {
        self.push(self.head.name);
        self.push(suffix);
        let all = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let mut separator = "{";
        for (name, value) in all {
            self.push(separator);
            self.push(name);
            self.push("=\"");
            escape(self.text, value);
            self.push("\"");
            separator = ",";
        }
        if separator == "," {
            self.push("}");
        }
        self.push(" ");
        self.push(&number(value));
        self.push("\n");
    }

    fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }
}

fn escape(text: &mut Vec<u8>, value: &str) {
    for byte in value.bytes() {
        match byte {
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'"' => text.extend_from_slice(b"\\\""),
            b'\n' => text.extend_from_slice(b"\\n"),
            byte => text.push(byte),
        }
    }
}

/// Formats a number in its shortest exact form. Values of a million and above, and values below a ten-thousandth, are
/// written with an exponent of at least two digits.
pub(in super::super) fn number(value: f64) -> String {
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
