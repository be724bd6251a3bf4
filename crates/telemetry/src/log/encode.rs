//! Encodes log lines.
//!
//! JSON: `level`, `ts`, `logger` (if there is one), `caller`, `msg`, then the fields in the given order.
//! Console: the same parts separated by tabs, with the fields as JSON in the last column. Field names and
//! values are escaped, so a line never contains a line break.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Format, Level, Source, Value};

/// The parts common to all lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    pub(super) now: Timestamp,
    pub(super) level: Level,
    pub(super) source: Source,
    pub(super) message: &'a str,
}

/// Appends a whole line, including its line break.
pub(super) fn line(
    out: &mut Vec<u8>,
    format: Format,
    head: &Head<'_>,
    fields: &[(&str, Value<'_>)],
) {
    match format {
        Format::Json => json_line(out, head, fields),
        Format::Console => console_line(out, head, fields),
    }
    out.push(b'\n');
}

fn json_line(out: &mut Vec<u8>, head: &Head<'_>, fields: &[(&str, Value<'_>)]) {
    out.extend_from_slice(b"{\"level\":\"");
    out.extend_from_slice(head.level.name().as_bytes());
    out.extend_from_slice(b"\",\"ts\":\"");
    time(out, head.now);
    out.push(b'"');
    if let Some(logger) = head.source.logger {
        out.extend_from_slice(b",\"logger\":");
        string(out, logger);
    }
    out.extend_from_slice(b",\"caller\":\"");
    caller(out, head.source);
    out.extend_from_slice(b"\",\"msg\":");
    string(out, head.message);
    members(out, b",", fields);
    out.push(b'}');
}

/// Appends fields as one JSON object.
pub(super) fn object(out: &mut Vec<u8>, fields: &[(&str, Value<'_>)]) {
    out.push(b'{');
    members(out, b"", fields);
    out.push(b'}');
}

/// Appends fields as members of a JSON object, preceded by `before` if there is any field.
fn members(out: &mut Vec<u8>, before: &[u8], fields: &[(&str, Value<'_>)]) {
    let mut separator = before;
    for (key, field) in fields {
        if !matches!(field, Value::Absent) {
            out.extend_from_slice(separator);
            string(out, key);
            out.push(b':');
            value(out, field, false);
            separator = b",";
        }
    }
}

fn console_line(out: &mut Vec<u8>, head: &Head<'_>, fields: &[(&str, Value<'_>)]) {
    time(out, head.now);
    out.push(b'\t');
    out.extend_from_slice(head.level.name().as_bytes());
    out.push(b'\t');
    if let Some(logger) = head.source.logger {
        out.extend_from_slice(logger.as_bytes());
        out.push(b'\t');
    }
    caller(out, head.source);
    out.push(b'\t');
    out.extend(head.message.bytes().map(|byte| if byte == b'\n' { b' ' } else { byte }));
    let mut separator: &[u8] = b"\t{";
    for (key, field) in fields {
        if !matches!(field, Value::Absent) {
            out.extend_from_slice(separator);
            string(out, key);
            out.extend_from_slice(b": ");
            value(out, field, true);
            separator = b", ";
        }
    }
    if separator == b", " {
        out.push(b'}');
    }
}

/// Formats a value as in a log line.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        value(&mut text, self, false);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

/// Appends a value as JSON, with a space after each comma if `spaced` is set.
pub(super) fn value(out: &mut Vec<u8>, field: &Value<'_>, spaced: bool) {
    match field {
        Value::Text(text) => string(out, text),
        Value::Signed(number) => display(out, number),
        Value::Unsigned(number) => display(out, number),
        Value::Float(number) if number.is_finite() => display(out, number),
        Value::Float(number) if number.is_nan() => out.extend_from_slice(b"\"NaN\""),
        Value::Float(number) if *number > 0.0 => out.extend_from_slice(b"\"+Inf\""),
        Value::Float(_) => out.extend_from_slice(b"\"-Inf\""),
        Value::Bool(flag) => display(out, flag),
        Value::Duration(span) => quoted(out, span),
        Value::Time(moment) => {
            out.push(b'"');
            time(out, timestamp(*moment));
            out.push(b'"');
        }
        Value::List(values) => {
            out.push(b'[');
            for (position, element) in values.iter().enumerate() {
                if position > 0 {
                    out.extend_from_slice(if spaced { b", " } else { b"," });
                }
                value(out, element, spaced);
            }
            out.push(b']');
        }
        Value::Shown(shown) => quoted(out, shown),
        Value::Absent => out.extend_from_slice(b"null"),
    }
}

/// Writes text with JSON escapes.
struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '"' => self.0.extend_from_slice(b"\\\""),
                '\\' => self.0.extend_from_slice(b"\\\\"),
                '\n' => self.0.extend_from_slice(b"\\n"),
                '\r' => self.0.extend_from_slice(b"\\r"),
                '\t' => self.0.extend_from_slice(b"\\t"),
                '\u{8}' => self.0.extend_from_slice(b"\\b"),
                '\u{c}' => self.0.extend_from_slice(b"\\f"),
                c if u32::from(c) < 0x20 => {
                    display(self.0, &format_args!("\\u{:04x}", u32::from(c)));
                }
                c => self.0.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Ok(())
    }
}

/// Writes text without escapes.
struct Plain<'a>(&'a mut Vec<u8>);

impl fmt::Write for Plain<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

fn display(out: &mut Vec<u8>, shown: &dyn fmt::Display) {
    write!(Plain(out), "{shown}").expect("writing to memory cannot fail");
}

fn quoted(out: &mut Vec<u8>, shown: &dyn fmt::Display) {
    out.push(b'"');
    // A `Display` implementation may fail after it has written text. That text is kept.
    if write!(Escaped(out), "{shown}").is_err() {
        out.extend_from_slice(b"?");
    }
    out.push(b'"');
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    Escaped(out).write_str(text).expect("writing to memory cannot fail");
    out.push(b'"');
}

fn timestamp(moment: SystemTime) -> Timestamp {
    Timestamp::try_from(moment).unwrap_or(Timestamp::MIN)
}

/// Appends the local time with microseconds: `2026-01-02T15:04:05.000000Z`, or with an offset such as `+0100` if local
/// time is not UTC.
fn time(out: &mut Vec<u8>, moment: Timestamp) {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    let zone = ZONE.get_or_init(|| TimeZone::try_system().unwrap_or(TimeZone::UTC));
    time_in(out, moment, zone);
}

pub(super) fn time_in(out: &mut Vec<u8>, moment: Timestamp, zone: &TimeZone) {
    let offset = zone.to_offset(moment);
    let at = offset.to_datetime(moment);
    let date = format_args!("{:04}-{:02}-{:02}", at.year(), at.month(), at.day()).to_string();
    let micros = at.subsec_nanosecond() / 1_000;
    display(
        out,
        &format_args!("{date}T{:02}:{:02}:{:02}.{micros:06}", at.hour(), at.minute(), at.second()),
    );
    let minutes = offset.seconds() / 60;
    if minutes == 0 {
        out.push(b'Z');
    } else {
        let sign = if minutes < 0 { '-' } else { '+' };
        let minutes = minutes.abs();
        display(out, &format_args!("{sign}{:02}{:02}", minutes / 60, minutes % 60));
    }
}

/// Appends the last two parts of the source path, without the directory `src`, and the line number.
pub(super) fn caller(out: &mut Vec<u8>, source: Source) {
    let mut parts = source.file.rsplit(['/', '\\']).filter(|part| *part != "src");
    let file = parts.next().unwrap_or("?");
    if let Some(folder) = parts.next() {
        out.extend_from_slice(folder.as_bytes());
        out.push(b'/');
    }
    display(out, &format_args!("{file}:{}", source.line));
}

/// Returns the directory part of the caller, which is the field `PACKAGE` in the journal.
pub(super) fn package(source: Source) -> &'static str {
    source.file.rsplit(['/', '\\']).filter(|part| *part != "src").nth(1).unwrap_or(".")
}
