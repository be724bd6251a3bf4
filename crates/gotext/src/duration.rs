//! Durations as written in etcd's flags and log lines: `300ms`, `1h10m0s`, `102.706181ms`.
//!
//! Flags, the configuration file and log fields all use the format and the range of Go's durations. The range is a
//! signed 64-bit number of nanoseconds. `std::time::Duration` is not suitable, because negative durations are valid
//! input: several flags interpret a negative interval as "off".
//!
//! # Invariants
//!
//! * Printing a duration and parsing it again yields the same duration.
//! * Parsing never panics and never overflows: a value out of range is refused.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::quote::go_quote;

const NANOS_PER_MICRO: u64 = 1_000;
const NANOS_PER_MILLI: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MINUTE: u64 = 60 * NANOS_PER_SECOND;
const NANOS_PER_HOUR: u64 = 60 * NANOS_PER_MINUTE;

/// Maximum magnitude of a duration: the magnitude of the most negative 64-bit number.
const MAGNITUDE_MAX: u64 = 1 << 63;

/// A signed duration in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignedDuration {
    nanos: i64,
}

impl SignedDuration {
    /// The zero duration.
    pub const ZERO: Self = Self { nanos: 0 };

    /// Creates a duration of this many nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self { nanos }
    }

    /// Creates a duration of this many milliseconds, clamped to the valid range.
    pub const fn from_millis(millis: i64) -> Self {
        Self { nanos: millis.saturating_mul(NANOS_PER_MILLI.cast_signed()) }
    }

    /// Creates a duration of this many seconds, clamped to the valid range.
    pub const fn from_secs(secs: i64) -> Self {
        Self { nanos: secs.saturating_mul(NANOS_PER_SECOND.cast_signed()) }
    }

    /// Returns the duration in nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.nanos
    }

    /// Converts to an unsigned duration. Returns `None` if the duration is zero or negative.
    ///
    /// Most flags interpret zero and negative values as "off" or as "the default", which `None` represents.
    pub fn positive(self) -> Option<Duration> {
        u64::try_from(self.nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    }
}

impl From<Duration> for SignedDuration {
    fn from(duration: Duration) -> Self {
        Self { nanos: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX) }
    }
}

/// Why a string is not a valid duration. The error texts are the same as in Go's `time` package.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// The string does not consist of numbers and units, or the duration is out of range.
    #[error("time: invalid duration {}", go_quote(.0))]
    Invalid(String),
    /// A number has no unit.
    #[error("time: missing unit in duration {}", go_quote(.0))]
    MissingUnit(String),
    /// A unit is not one of `ns`, `us`, `ms`, `s`, `m`, `h`.
    #[error("time: unknown unit {} in duration {}", go_quote(unit), go_quote(text))]
    UnknownUnit {
        /// The unknown unit.
        unit: String,
        /// The whole string.
        text: String,
    },
}

impl FromStr for SignedDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseDurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut magnitude: u64 = 0;
        while !rest.is_empty() {
            let (term, after) = parse_term(text, rest)?;
            magnitude = magnitude
                .checked_add(term)
                .filter(|sum| *sum <= MAGNITUDE_MAX)
                .ok_or_else(invalid)?;
            rest = after;
        }
        let nanos = if negative {
            0i64.checked_sub_unsigned(magnitude)
        } else {
            i64::try_from(magnitude).ok()
        };
        nanos.map(Self::from_nanos).ok_or_else(invalid)
    }
}

/// Parses one number with its unit at the start of `rest`. `text` is the whole string, for the error.
fn parse_term<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), ParseDurationError> {
    let invalid = || ParseDurationError::Invalid(text.to_owned());
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, after) = rest.split_at(digits(rest));
    let (fraction, after) = match after.strip_prefix('.') {
        Some(tail) => tail.split_at(digits(tail)),
        None => ("", after),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let unit_bytes = after.bytes().take_while(|b| *b != b'.' && !b.is_ascii_digit()).count();
    let (unit, after) = after.split_at(unit_bytes);
    let scale = match unit {
        "" => return Err(ParseDurationError::MissingUnit(text.to_owned())),
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => NANOS_PER_MICRO,
        "ms" => NANOS_PER_MILLI,
        "s" => NANOS_PER_SECOND,
        "m" => NANOS_PER_MINUTE,
        "h" => NANOS_PER_HOUR,
        unit => {
            return Err(ParseDurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: text.to_owned(),
            });
        }
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
    let nanos = whole
        .checked_mul(scale)
        .and_then(|nanos| nanos.checked_add(fraction_nanos(fraction, scale)))
        .filter(|nanos| *nanos <= MAGNITUDE_MAX)
        .ok_or_else(invalid)?;
    Ok((nanos, after))
}

/// Returns the nanoseconds in a decimal fraction of a unit. Digits below a nanosecond are dropped.
fn fraction_nanos(digits: &str, scale: u64) -> u64 {
    // 18 digits are enough, because further digits are below a nanosecond in every unit. The product fits in 128 bits.
    let kept = &digits[..digits.len().min(18)];
    let value = kept.bytes().fold(0u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    let divisor = 10u128.pow(u32::try_from(kept.len()).expect("a fraction has at most 18 digits"));
    u64::try_from(value * u128::from(scale) / divisor).expect("a fraction is less than its unit")
}

impl fmt::Display for SignedDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.nanos.unsigned_abs();
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        match magnitude {
            0 => f.write_str("0s"),
            1..NANOS_PER_MICRO => write!(f, "{magnitude}ns"),
            NANOS_PER_MICRO..NANOS_PER_MILLI => decimal(f, magnitude, NANOS_PER_MICRO, "\u{b5}s"),
            NANOS_PER_MILLI..NANOS_PER_SECOND => decimal(f, magnitude, NANOS_PER_MILLI, "ms"),
            _ => {
                let hours = magnitude / NANOS_PER_HOUR;
                let minutes = magnitude % NANOS_PER_HOUR / NANOS_PER_MINUTE;
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                decimal(f, magnitude % NANOS_PER_MINUTE, NANOS_PER_SECOND, "s")
            }
        }
    }
}

/// Prints `nanos` in a unit of `scale` nanoseconds, with as many decimals as necessary.
fn decimal(f: &mut fmt::Formatter<'_>, nanos: u64, scale: u64, unit: &str) -> fmt::Result {
    write!(f, "{}", nanos / scale)?;
    let fraction = nanos % scale;
    if fraction > 0 {
        let width = scale.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    f.write_str(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, nanos: i64) {
        assert_eq!(text.parse::<SignedDuration>().map(SignedDuration::as_nanos), Ok(nanos));
    }

    #[test]
    fn go_durations_are_parsed() {
        check("0", 0);
        check("-0", 0);
        check("300ms", 300_000_000);
        check("1h10m", 4_200_000_000_000);
        check("1.5h", 5_400_000_000_000);
        check("-1.5s", -1_500_000_000);
        check("+5s", 5_000_000_000);
        check(".5s", 500_000_000);
        check("5.s", 5_000_000_000);
        check("2us", 2_000);
        check("2\u{b5}s2\u{3bc}s", 4_000);
        check("1ns1ns", 2);
        check("0.1234567891s", 123_456_789);
        check("9223372036854775807ns", i64::MAX);
        check("-9223372036854775808ns", i64::MIN);
    }

    #[test]
    fn invalid_durations_are_refused_with_the_errors_of_go() {
        let refused = |text: &str| text.parse::<SignedDuration>().unwrap_err().to_string();
        assert_eq!(refused("5"), "time: missing unit in duration \"5\"");
        assert_eq!(refused(""), "time: invalid duration \"\"");
        assert_eq!(refused("s"), "time: invalid duration \"s\"");
        assert_eq!(refused("-"), "time: invalid duration \"-\"");
        assert_eq!(refused("1d"), "time: unknown unit \"d\" in duration \"1d\"");
        assert_eq!(refused("1.2.3s"), "time: missing unit in duration \"1.2.3s\"");
        assert_eq!(
            refused("9223372036854775808ns"),
            "time: invalid duration \"9223372036854775808ns\""
        );
        assert_eq!(refused("2562048h"), "time: invalid duration \"2562048h\"");
    }

    #[test]
    fn durations_are_printed_as_in_go() {
        let print = |nanos| SignedDuration::from_nanos(nanos).to_string();
        assert_eq!(print(0), "0s");
        assert_eq!(print(1), "1ns");
        assert_eq!(print(1_500), "1.5\u{b5}s");
        assert_eq!(print(102_706_181), "102.706181ms");
        assert_eq!(print(7_000_000_000), "7s");
        assert_eq!(print(60_000_000_000), "1m0s");
        assert_eq!(print(7_200_000_000_000), "2h0m0s");
        assert_eq!(print(3_661_500_000_000), "1h1m1.5s");
        assert_eq!(print(-300_000_000), "-300ms");
        assert_eq!(print(i64::MIN), "-2562047h47m16.854775808s");
    }

    proptest! {
        #[test]
        fn parsing_a_printed_duration_restores_its_value(nanos in any::<i64>()) {
            let span = SignedDuration::from_nanos(nanos);
            prop_assert_eq!(span.to_string().parse::<SignedDuration>(), Ok(span));
        }

        #[test]
        fn parsing_any_text_as_a_duration_never_panics(text in "[-+0-9.a-z\u{b5}]{0,24}") {
            let _outcome = text.parse::<SignedDuration>();
        }
    }
}
