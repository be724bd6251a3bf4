//! Text formats that etcd's tools print and parse: Go's formats (`quorate-gotext`) with the tools' error texts, and
//! human-readable sizes.
//!
//! Scripts parse the output of etcd's tools, so these formats are part of the interface.

use std::time::Duration;

use quorate_gotext::SignedDuration;
use quorate_gotext::number::{self, NumberError};
pub use quorate_gotext::quote::{go_quote_bytes as quote, go_reason as reason, unquote};

/// Formats a duration as Go does: `1m2.5s`, `2.345678ms`, `0s`.
pub fn duration(duration: Duration) -> String {
    SignedDuration::from(duration).to_string()
}

/// Parses a duration as Go does. Negative durations are refused, because no caller can use them.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let span: SignedDuration = text.parse().map_err(|error| format!("{error}"))?;
    let nanos = u64::try_from(span.as_nanos());
    let negative = |_| format!("time: invalid duration {}", quote(text.as_bytes()));
    nanos.map(Duration::from_nanos).map_err(negative)
}

/// Parses a number like Go's `strconv.ParseInt`. With base 0, a prefix in the text determines the base.
pub fn parse_int(text: &str, base: u32) -> Result<i64, String> {
    number::parse_int(text, base).map_err(|error| refusal("ParseInt", text, error))
}

/// Parses a number like Go's `strconv.ParseUint`.
pub fn parse_uint(text: &str, base: u32) -> Result<u64, String> {
    number::parse_uint(text, base, u64::MAX).map_err(|error| refusal("ParseUint", text, error))
}

fn refusal(function: &str, text: &str, error: NumberError) -> String {
    let (text, reason) = (quote(text.as_bytes()), error.strconv_reason());
    format!("strconv.{function}: parsing {text}: {reason}")
}

/// Formats a number of bytes in SI units: `20 kB`, `2.1 GB`.
pub fn size(bytes: u64) -> String {
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let (mut unit, mut scale) = (0, 1.0);
    while bytes as f64 / scale >= 1000.0 && unit < 6 {
        scale *= 1000.0;
        unit += 1;
    }
    let name = ["B", "kB", "MB", "GB", "TB", "PB", "EB"][unit];
    let value = (bytes as f64 / scale * 10.0 + 0.5).floor() / 10.0;
    if value < 10.0 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_printed_as_in_go() {
        for (nanos, text) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1.5µs"),
            (2_345_678, "2.345678ms"),
            (1_000_000_000, "1s"),
            (62_500_000_000, "1m2.5s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)));
        }
        assert_eq!(parse_duration("x").unwrap_err(), r#"time: invalid duration "x""#);
        assert_eq!(parse_duration("-5s").unwrap_err(), r#"time: invalid duration "-5s""#);
        assert_eq!(parse_duration("5").unwrap_err(), r#"time: missing unit in duration "5""#);
        assert_eq!(parse_duration("5y").unwrap_err(), r#"time: unknown unit "y" in duration "5y""#);
    }

    #[test]
    fn number_errors_are_worded_as_in_go() {
        assert_eq!(parse_int("-12", 10), Ok(-12));
        assert_eq!(parse_int("7B", 16), Ok(123));
        assert_eq!(parse_int("0x10", 0), Ok(16));
        assert_eq!(parse_int("017", 0), Ok(15));
        assert_eq!(parse_int("017", 10), Ok(17));
        assert_eq!(parse_int("-9223372036854775808", 10), Ok(i64::MIN));
        assert_eq!(
            parse_int("x", 10).unwrap_err(),
            r#"strconv.ParseInt: parsing "x": invalid syntax"#
        );
        assert_eq!(
            parse_int("9223372036854775808", 10).unwrap_err(),
            r#"strconv.ParseInt: parsing "9223372036854775808": value out of range"#
        );
        assert!(parse_uint("-1", 16).is_err() && parse_uint("ffffffffffffffff", 16).is_ok());
    }

    #[test]
    fn sizes_are_printed_in_si_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (9, "9 B"),
            (999, "999 B"),
            (20_480, "20 kB"),
            (2_147_483_648, "2.1 GB"),
            (1_000_000, "1.0 MB"),
            (25_000_000, "25 MB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
