//! Log lines on standard error, in JSON like `etcdctl`'s and in columns like `etcdutl`'s.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// A JSON log line in the format of etcd's loggers.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The level of the line.
    pub level: &'a str,
    /// The name of the logger.
    pub logger: Option<&'a str>,
    /// The position in the source code.
    pub caller: Option<&'a str>,
    /// The message of the line.
    pub message: &'a str,
    /// The fields after the message, in order.
    pub fields: &'a [(&'a str, Value)],
}

impl Line<'_> {
    /// Writes the line.
    pub fn write(&self, out: &mut dyn Write) {
        let quoted = |text: &str| Value::from(text).to_string();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut text = format!("{{\"level\":\"{}\",\"ts\":\"{}\"", self.level, timestamp(since));
        let fields =
            [("logger", self.logger), ("caller", self.caller), ("msg", Some(self.message))];
        for (key, value) in fields {
            text.extend(value.map(|value| format!(",\"{key}\":{}", quoted(value))));
        }
        for (key, value) in self.fields {
            text.push_str(&format!(",{}:{value}", quoted(key)));
        }
        text.push_str("}\n");
        // The line is lost if standard error is closed.
        drop(out.write_all(text.as_bytes()));
    }
}

/// Writes one line of JSON. `fields` follow the message in order.
pub fn line(
    out: &mut dyn Write,
    level: &str,
    logger: Option<&str>,
    message: &str,
    fields: &[(&str, String)],
) {
    let fields: Vec<_> =
        fields.iter().map(|(key, value)| (*key, Value::from(value.as_str()))).collect();
    Line { level, logger, caller: None, message, fields: &fields }.write(out);
}

/// Writes one line in columns: time, level, message, and the fields as JSON.
pub fn columns(out: &mut dyn Write, level: &str, message: &str, fields: &[(&str, Value)]) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = Duration::from_secs(since.as_secs());
    let moment = timestamp(seconds).replace(".000000Z", "Z");
    let quoted = |text: &str| Value::from(text).to_string();
    let field = |(key, value): &(&str, Value)| format!("{}: {value}", quoted(key));
    let fields: Vec<String> = fields.iter().map(field).collect();
    let mut text = format!("{moment}\t{level}\t{message}");
    if !fields.is_empty() {
        text.push_str(&format!("\t{{{}}}", fields.join(", ")));
    }
    text.push('\n');
    // The line is lost if standard error is closed.
    drop(out.write_all(text.as_bytes()));
}

/// Formats a time since 1970 as RFC 3339 in UTC, with microseconds.
#[must_use]
pub fn timestamp(since: Duration) -> String {
    let (seconds, days) = (since.as_secs(), since.as_secs() / 86_400);
    // Days are counted from 1 March of year 0, in eras of 400 years, so that a leap day is the last day of its year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_795_219_199, "2026-11-20T23:59:59.000000Z"),
        ] {
            assert_eq!(timestamp(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn columns_are_separated_by_tabs() {
        let mut out = Vec::new();
        columns(&mut out, "info", "done", &[("a", "x\"y".into()), ("b", 2.into())]);
        let text = String::from_utf8(out).unwrap();
        let (moment, rest) = text.split_once('\t').unwrap();
        assert_eq!((moment.len(), moment.ends_with('Z')), (20, true), "{moment}");
        assert_eq!(rest, "info\tdone\t{\"a\": \"x\\\"y\", \"b\": 2}\n");
    }

    #[test]
    fn log_lines_are_written_as_json() {
        let mut out = Vec::new();
        line(&mut out, "warn", Some("client"), "it \"happened\"", &[("path", "/a".to_owned())]);
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&value["level"], &value["logger"]), (&"warn".into(), &"client".into()));
        assert_eq!((&value["msg"], &value["path"]), (&"it \"happened\"".into(), &"/a".into()));
        let (fields, mut out) = ([("attempt", Value::from(2))], Vec::new());
        let caller = Some("a.rs:1");
        Line { level: "warn", logger: None, caller, message: "m", fields: &fields }.write(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with(",\"caller\":\"a.rs:1\",\"msg\":\"m\",\"attempt\":2}\n"), "{text}");
    }
}
