//! Formats numbers, times and keys as short strings of known width, in printable ASCII.
//!
//! # Guarantees
//!
//! - The displayed form of a key or of a member's name contains no control character and does not extend beyond its
//!   column.

use std::time::Duration;

/// The placeholder for a missing value.
pub(super) const NONE: &str = "-";

/// Formats a key or other external text. Bytes that are not printable ASCII become `\xNN`.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(*byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

/// Truncates `text` to at most `width` columns. If the text is truncated, the last column contains `>`.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain((width > 0).then_some('>')).collect()
}

/// Formats a count or a rate in at most five columns.
pub(super) fn count(number: f64) -> String {
    let (scaled, unit) = match number {
        n if n < 99_999.5 => (n, ""),
        n if n < 999_500.0 => (n / 1e3, "k"),
        n if n < 999_500_000.0 => (n / 1e6, "M"),
        n => (n / 1e9, "G"),
    };
    // Numbers that round to an integer are shown without decimals.
    if scaled >= 9.95 || scaled.fract() == 0.0 {
        format!("{scaled:.0}{unit}")
    } else {
        format!("{scaled:.1}{unit}")
    }
}

/// Formats a latency, given in seconds, in at most six columns.
pub(super) fn latency(secs: f64) -> String {
    match secs {
        s if s < 0.000_999_5 => format!("{:.0}us", s * 1e6),
        s if s < 0.009_95 => format!("{:.1}ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0}ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1}s"),
        s => format!("{s:.0}s"),
    }
}

/// Formats a duration: `12s`, `3m05s`, `2h10m`, `3d04h`.
pub(super) fn span(span: Duration) -> String {
    let secs = span.as_secs();
    match secs {
        0..60 => format!("{secs}s"),
        60..3600 => format!("{}m{:02}s", secs / 60, secs % 60),
        3600..86_400 => format!("{}h{:02}m", secs / 3600, secs / 60 % 60),
        _ => format!("{}d{:02}h", secs / 86_400, secs / 3600 % 24),
    }
}

/// Formats the UTC time of day: `23:59:01`.
pub(super) fn time_of_day(since_1970: Duration) -> String {
    let secs = since_1970.as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}", secs / 3600, secs / 60 % 60, secs % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_keys_are_escaped() {
        assert_eq!(escaped(b"/a b\\\x1b[2J\xff\n\x7f"), "/a b\\\\\\x1b[2J\\xff\\x0a\\x7f");
        assert_eq!(escaped("ä".as_bytes()), "\\xc3\\xa4");
    }

    #[test]
    fn a_truncated_string_ends_with_a_marker() {
        for (width, text) in [(0, ""), (1, ">"), (3, "ab>"), (4, "abcd")] {
            assert_eq!(cut("abcd", width), text);
        }
    }

    #[test]
    fn counts_fit_in_five_columns() {
        for (number, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (9.94, "9.9"),
            (9.96, "10"),
            (12_345.6, "12346"),
            (99_999.4, "99999"),
            (123_456.0, "123k"),
            (1_234_567.0, "1.2M"),
            (12_345_678.0, "12M"),
            (2e9, "2G"),
        ] {
            assert_eq!(count(number), text);
            assert!(count(number).len() <= 5);
        }
    }

    #[test]
    fn durations_use_the_unit_that_fits() {
        for (secs, text) in [
            (0.000_012, "12us"),
            (0.000_999_9, "1.0ms"),
            (0.012, "12ms"),
            (1.234, "1.2s"),
            (12.0, "12s"),
        ] {
            assert_eq!(latency(secs), text);
        }
        for (secs, text) in [(5, "5s"), (65, "1m05s"), (7800, "2h10m"), (100_000, "1d03h")] {
            assert_eq!(span(Duration::from_secs(secs)), text);
        }
        assert_eq!(time_of_day(Duration::from_secs(86_400 * 3 + 3_661)), "01:01:01");
    }
}
