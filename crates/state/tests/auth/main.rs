//! Scripts that test users, roles, permissions and requests. Each line contains a request and its
//! outcome.
//!
//! ```text
//! # A comment.
//! caller  command argument argument  => outcome
//! ```
//!
//! The caller is a user's name. The user is authenticated at the newest revision of users and roles, or, with a suffix
//! such as `ann@3`, at an older revision. `-` is a caller without a token. A range is `a`, `a..c`, `a..` for all keys
//! from a on, or `all`. If the revision changes, the new revision follows the outcome. Every line is a log entry, with
//! four exceptions: members check `watch` and `admin` without the log, `show` uses a token, and `wait` advances the
//! clock by a number of seconds. `UPDATE=1` rewrites the outcomes.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod commands;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use commands::Cluster;

/// The minimum column of outcomes.
const OUTCOME_COLUMN: usize = 52;

#[test]
fn auth_scripts_produce_their_recorded_outcomes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/auth");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "testdata/auth contains no scripts");
    let mut failures = String::new();
    for path in paths {
        let script = fs::read_to_string(&path).unwrap();
        let played = play(&script);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, played).unwrap();
            continue;
        }
        let differs = |(_, (expected, actual)): &(usize, (&str, &str))| expected != actual;
        let lines = (1..).zip(script.lines().zip(played.lines()));
        for (number, (expected, actual)) in lines.filter(differs) {
            let place = format!("{}:{number}", path.display());
            writeln!(failures, "{place}\n  expected {expected}\n  actual   {actual}").unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Returns the script with the actual outcomes.
fn play(script: &str) -> String {
    let mut cluster = Cluster::new();
    let mut played = String::new();
    for line in script.lines() {
        let request = line.split("=>").next().unwrap_or_default().trim_end();
        if request.is_empty() || request.starts_with('#') {
            writeln!(played, "{line}").unwrap();
            continue;
        }
        let outcome = cluster.ask(request);
        writeln!(played, "{request:<OUTCOME_COLUMN$} => {outcome}").unwrap();
    }
    played
}
