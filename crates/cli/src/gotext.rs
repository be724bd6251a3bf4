//! Text as Go programs print and read it: quoted strings, durations, numbers, sizes.
//!
//! Scripts parse what etcd's tools print, so these forms are part of the interface.

use std::fmt::Write as _;
use std::time::Duration;

/// Quotes bytes as Go's `%q` does.
pub fn quote(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x0b' => out.push_str("\\v"),
                ' ' | '\'' => out.push(c),
                c if is_printable(c) => out.push(c),
                c if u32::from(c) < 0x80 => push(&mut out, format_args!("\\x{:02x}", u32::from(c))),
                c if u32::from(c) < 0x1_0000 => {
                    push(&mut out, format_args!("\\u{:04x}", u32::from(c)));
                }
                c => push(&mut out, format_args!("\\U{:08x}", u32::from(c))),
            }
        }
        for byte in chunk.invalid() {
            push(&mut out, format_args!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _infallible = out.write_fmt(text);
}

/// Letters, marks, numbers, punctuation and symbols; of spaces only the ASCII one, which callers handle.
fn is_printable(c: char) -> bool {
    !c.is_control() && !c.is_whitespace() && (c.is_alphanumeric() || c.escape_debug().len() == 1)
}

/// Reads a Go string literal in double quotes at the front of `text`, and returns its value and what
/// follows.
pub fn unquote(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut out = Vec::new();
    loop {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        match byte {
            b'"' => return Some((out, rest)),
            b'\n' => return None,
            b'\\' => rest = unescape(rest, &mut out)?,
            _ => out.push(byte),
        }
    }
}

fn unescape<'a>(rest: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (&kind, rest) = rest.split_first()?;
    let digits = |count, radix| {
        let (digits, tail) = rest.split_at_checked(count)?;
        let value = u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()?;
        Some((value, tail))
    };
    let plain = match kind {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'\\' | b'"' => kind,
        b'x' => {
            let (value, tail) = digits(2, 16)?;
            out.push(u8::try_from(value).ok()?);
            return Some(tail);
        }
        b'u' | b'U' => {
            let (value, tail) = digits(if kind == b'u' { 4 } else { 8 }, 16)?;
            let c = char::from_u32(value)?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(tail);
        }
        b'0'..=b'7' => {
            let (tail, value) = rest.split_at_checked(2).and_then(|(more, tail)| {
                let more = u32::from_str_radix(std::str::from_utf8(more).ok()?, 8).ok()?;
                Some((tail, u32::from(kind - b'0') * 64 + more))
            })?;
            out.push(u8::try_from(value).ok()?);
            return Some(tail);
        }
        _ => return None,
    };
    out.push(plain);
    Some(rest)
}

/// Prints a duration as Go does: `1m2.5s`, `2.345678ms`, `0s`.
pub fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let fraction = |unit: u128, digits: usize| {
        let mut text = format!("{}.{:0digits$}", nanos / unit, nanos % unit);
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
        text
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => fraction(1_000, 3) + "µs",
        1_000_000..1_000_000_000 => fraction(1_000_000, 6) + "ms",
        _ => {
            let (hours, minutes) = (nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60);
            let seconds = nanos % 60_000_000_000;
            let mut text = format!("{}.{:09}", seconds / 1_000_000_000, seconds % 1_000_000_000);
            text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
            match (hours, minutes) {
                (0, 0) => text + "s",
                (0, minutes) => format!("{minutes}m{text}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{text}s"),
            }
        }
    }
}

/// Reads a duration as Go does. Negative ones are refused, which no caller could use.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {}", quote(text.as_bytes()));
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(unit_at);
        if number.is_empty() {
            return Err(invalid());
        }
        let next_at = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(next_at);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => {
                let text = quote(text.as_bytes());
                return Err(format!("time: missing unit in duration {text}"));
            }
            unit => {
                let (unit, text) = (quote(unit.as_bytes()), quote(text.as_bytes()));
                return Err(format!("time: unknown unit {unit} in duration {text}"));
            }
        };
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid())?;
        total = total.checked_add(part).ok_or_else(invalid)?;
        rest = tail;
    }
    Ok(total)
}

/// Reads a number as Go's `strconv.ParseInt`; base 0 takes the base from the text.
pub fn parse_int(text: &str, base: u32) -> Result<i64, String> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = parse_magnitude("ParseInt", text, digits, base)?;
    let value =
        i64::try_from(if negative { -i128::from(magnitude) } else { i128::from(magnitude) });
    value.map_err(|_| out_of_range("ParseInt", text))
}

/// Reads a number as Go's `strconv.ParseUint`.
pub fn parse_uint(text: &str, base: u32) -> Result<u64, String> {
    parse_magnitude("ParseUint", text, text, base)
}

fn parse_magnitude(function: &str, text: &str, digits: &str, base: u32) -> Result<u64, String> {
    let (digits, radix) = match (base, digits.get(..2)) {
        (0, Some("0x" | "0X")) => (&digits[2..], 16),
        (0, Some("0o" | "0O")) => (&digits[2..], 8),
        (0, Some("0b" | "0B")) => (&digits[2..], 2),
        (0, _) => (digits, 10),
        (base, _) => (digits, base),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        let text = quote(text.as_bytes());
        return Err(format!("strconv.{function}: parsing {text}: invalid syntax"));
    }
    u64::from_str_radix(digits, radix).map_err(|_| out_of_range(function, text))
}

fn out_of_range(function: &str, text: &str) -> String {
    format!("strconv.{function}: parsing {}: value out of range", quote(text.as_bytes()))
}

/// Prints a number of bytes in SI units: `20 kB`, `2.1 GB`.
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
    fn quotes_and_unquotes_as_go_does() {
        for (bytes, text) in [
            (&b"it's a b"[..], r#""it's a b""#),
            (b"\"\\\n\t\x00\x7f", r#""\"\\\n\t\x00\x7f""#),
            ("é世\u{200b}\u{a0}".as_bytes(), r#""é世\u200b\u00a0""#),
            (b"\xff\xc3", r#""\xff\xc3""#),
        ] {
            assert_eq!(quote(bytes), text);
            assert_eq!(unquote(text.as_bytes()), Some((bytes.to_vec(), &b""[..])));
        }
        assert_eq!(unquote(br#""\101\u00e9" rest"#), Some(("Aé".into(), &b" rest"[..])));
        for bad in [r#""open"#, r#""\q""#, r#""\x4""#, "plain", r#""\777""#] {
            assert_eq!(unquote(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn durations_read_and_print_as_in_go() {
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
        assert_eq!(parse_duration("5").unwrap_err(), r#"time: missing unit in duration "5""#);
        assert_eq!(parse_duration("5y").unwrap_err(), r#"time: unknown unit "y" in duration "5y""#);
    }

    #[test]
    fn numbers_fail_in_gos_words() {
        assert_eq!(parse_int("-12", 10), Ok(-12));
        assert_eq!(parse_int("7B", 16), Ok(123));
        assert_eq!(parse_int("0x10", 0), Ok(16));
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
    fn sizes_are_in_si_units() {
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
