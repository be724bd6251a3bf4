//! Tests the exact bytes of log lines, and the limits on the number of lines.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::encode::{Head, line, time_in};
use super::output::Outputs;
use super::sampler::Sampler;
use super::{Field, Format, Level, Output, Settings, Shown, Source, Value, error_chain};

const SOURCE: Source = Source { file: "crates/server/src/driver.rs", line: 7, logger: None };

fn text(format: Format, source: Source, message: &str, fields: &[(&str, Value<'_>)]) -> String {
    let head = Head { now: Timestamp::UNIX_EPOCH, level: Level::Info, source, message };
    let mut out = Vec::new();
    line(&mut out, format, &head, fields);
    String::from_utf8(out).unwrap()
}

/// Returns the part of a line after its time, because the time depends on the machine's time zone.
fn after_time(line: &str) -> &str {
    line.split_once(",\"caller\"").unwrap().1
}

#[test]
fn json_lines_have_the_same_keys_and_order_as_in_etcd() {
    let whole = text(Format::Json, SOURCE, "hello", &[]);
    assert!(whole.starts_with("{\"level\":\"info\",\"ts\":\""), "{whole}");
    assert_eq!(after_time(&whole), ":\"server/driver.rs:7\",\"msg\":\"hello\"}\n");
    let raft = Source { file: "crates/raft/src/log/mod.rs", line: 12, logger: Some("raft") };
    let whole = text(Format::Json, raft, "x", &[]);
    assert!(whole.contains("\",\"logger\":\"raft\",\"caller\":\"log/mod.rs:12\",\"msg\":\"x\"}"));
}

#[test]
fn log_fields_keep_their_types_and_order() {
    let took = Duration::from_micros(102_706);
    let nothing: Option<&str> = None;
    let fields = [
        ("member-id", Shown(format_args!("{:x}", 0xabcd)).0.to_string()),
        ("quote", "a\"b\\c\n\u{1}\u{e9}".to_owned()),
    ];
    let fields: Vec<(&str, Value<'_>)> = fields
        .iter()
        .map(|(key, value)| (*key, value.value()))
        .chain([
            ("took", took.value()),
            ("count", 3usize.value()),
            ("offset", (-3i64).value()),
            ("share", 0.5f64.value()),
            ("learner", false.value()),
            ("args", ["quorate", "--name"].value()),
            ("error", nothing.value()),
        ])
        .collect();
    assert_eq!(
        after_time(&text(Format::Json, SOURCE, "m", &fields)),
        ":\"server/driver.rs:7\",\"msg\":\"m\",\"member-id\":\"abcd\",\
         \"quote\":\"a\\\"b\\\\c\\n\\u0001\u{e9}\",\"took\":\"102.706ms\",\"count\":3,\"offset\":-3,\
         \"share\":0.5,\"learner\":false,\"args\":[\"quorate\",\"--name\"]}\n"
    );
}

#[test]
fn console_lines_have_columns_and_end_with_json() {
    let whole = text(Format::Console, SOURCE, "two\nlines", &[]);
    let columns: Vec<&str> = whole.split('\t').skip(1).collect();
    assert_eq!(columns, ["info", "server/driver.rs:7", "two lines\n"]);
    let fields = [("a", 1u64.value()), ("b", ["x", "y"].value())];
    let whole = text(Format::Console, SOURCE, "m", &fields);
    assert!(whole.ends_with("\tm\t{\"a\": 1, \"b\": [\"x\", \"y\"]}\n"), "{whole}");
}

#[test]
fn timestamps_contain_microseconds_and_the_time_zone() {
    let at = |zone: &str| {
        let mut out = Vec::new();
        let moment = Timestamp::from_microsecond(1_767_366_245_000_042).unwrap();
        time_in(&mut out, moment, &TimeZone::posix(zone).unwrap());
        String::from_utf8(out).unwrap()
    };
    assert_eq!(at("UTC0"), "2026-01-02T15:04:05.000042Z");
    assert_eq!(at("CET-1"), "2026-01-02T16:04:05.000042+0100");
    assert_eq!(at("NST3:30"), "2026-01-02T11:34:05.000042-0330");
}

#[test]
fn a_logged_error_contains_each_cause_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("open {path}")]
    struct Outer {
        path: &'static str,
        source: std::io::Error,
    }
    let error = Outer { path: "/x", source: std::io::Error::other("no room") };
    assert_eq!(error_chain(&error), "open /x: no room");
    // A cause must also be recognised if its text is in Go's form.
    for (path, code, expected) in [
        ("/x: no such file or directory", 2, "open /x: no such file or directory"),
        (
            "/x: No such file or directory (os error 2); make it",
            2,
            "open /x: No such file or directory (os error 2); make it",
        ),
        ("/x", 98, "open /x: Address already in use (os error 98)"),
    ] {
        let error = Outer { path, source: std::io::Error::from_raw_os_error(code) };
        assert_eq!(error_chain(&error), expected);
    }
}

#[test]
fn repeated_lines_within_a_second_are_sampled() {
    let sampler = Sampler::new();
    let admitted = |count: usize, second| {
        (0..count).filter(|_| sampler.admits(Level::Warn, "again", second)).count()
    };
    assert_eq!(admitted(100, 1), 100);
    assert_eq!(admitted(99, 1), 0);
    assert_eq!(admitted(1, 1), 1);
    assert_eq!(admitted(1000, 1), 10);
    assert!(sampler.admits(Level::Warn, "another", 1));
    assert!(sampler.admits(Level::Info, "again", 1));
    assert_eq!(admitted(100, 2), 100);
}

#[test]
fn log_lines_are_appended_to_files_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log").to_string_lossy().into_owned();
    std::fs::write(&path, "before\n").unwrap();
    let settings = Settings { outputs: vec![Output::File(path.clone())], ..Settings::default() };
    let outputs = Outputs::open(&settings).unwrap();
    for number in 0..500 {
        outputs.send(Level::Info, SOURCE, format!("{number}\n").into_bytes());
    }
    outputs.flush(Duration::from_secs(20));
    let expected: String =
        std::iter::once("before\n".to_owned()).chain((0..500).map(|n| format!("{n}\n"))).collect();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
}

#[test]
fn the_error_for_an_output_that_cannot_be_opened_names_the_output() {
    let path = "/nonexistent/folder/log".to_owned();
    let settings = Settings { outputs: vec![Output::File(path)], ..Settings::default() };
    let error = Outputs::open(&settings).unwrap_err().to_string();
    assert!(error.starts_with("open sink \"/nonexistent/folder/log\": open /non"), "{error}");
}
