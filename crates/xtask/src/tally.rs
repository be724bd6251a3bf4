//! Counts tests: runs `cargo test`, prints its output, and sums up the results.
//!
//! The test runner cannot mark a test as skipped at run time. A test whose material is missing prints a line that
//! begins with [`SKIPPED`] and passes. Therefore the runner also prints the output of passing tests, which this module
//! parses but does not show.
//!
//! The output of a whole run is long, and a failure may be far from its end. Therefore the summary repeats the name and
//! the first lines of the output of each failed test.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::Outcome;

/// The start of the line that a skipped test prints.
const SKIPPED: &str = "skipped: ";

/// The maximum number of lines of a failed test's output that the summary repeats.
const FAILURE_LINES_MAX: usize = 8;

/// The results of all tests so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// For each failed test, a line with its name, and the first lines of its output.
    failures: Vec<Vec<String>>,
    /// The distinct reasons why tests were skipped.
    reasons: BTreeSet<String>,
}

/// The state of parsing one test program's output.
#[derive(Debug, Default)]
struct Reading {
    /// Whether the current lines are the output of passing tests.
    in_successes: bool,
    /// Whether the current lines are the output of a failed test.
    in_failure: bool,
    /// Whether the current test was skipped.
    is_skipped: bool,
    skipped: u64,
}

impl Tally {
    /// Runs `cargo test` with arguments for the tests, and counts the results.
    #[expect(clippy::print_stdout, reason = "the output of the tests is passed on to the user")]
    pub(crate) fn run(&mut self, command: &mut Command, args: &[&str]) -> Outcome {
        command.arg("--").arg("--show-output").args(args).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let output = process.stdout.take().expect("standard output is piped");
        let (mut reading, mut results) = (Reading::default(), 0);
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("{command:?}: {error}"))?;
            let line = String::from_utf8_lossy(&line);
            results += u64::from(line.starts_with("test result: "));
            if self.read(&mut reading, &line) {
                println!("{line}");
            }
        }
        drop(std::io::stdout().flush());
        let status = process.wait().map_err(|error| format!("{command:?}: {error}"))?;
        if !status.success() && (results == 0 || self.failed == 0) {
            // Cargo failed before the tests ran, or a test program ended without a summary. No other line reports this
            // failure.
            self.failed += 1;
        }
        if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
    }

    /// Parses a line, and returns whether to print it.
    fn read(&mut self, reading: &mut Reading, line: &str) -> bool {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let count = |name: &str| {
                let field =
                    rest.split([';', '.']).find_map(|field| field.trim().strip_suffix(name));
                field.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default()
            };
            let skipped = std::mem::take(reading).skipped;
            self.passed += count("passed").saturating_sub(skipped);
            self.failed += count("failed");
            self.skipped += skipped + count("ignored");
            return true;
        }
        let section = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        match (line, section) {
            ("successes:", _) => reading.in_successes = true,
            // This heading appears before the outputs, and again before the list of names.
            ("failures:", _) => (reading.in_successes, reading.in_failure) = (false, false),
            (_, Some(name)) if !reading.in_successes => {
                self.failures.push(vec![format!("failed: {name}")]);
                reading.in_failure = true;
            }
            _ if reading.in_failure => {
                let failure = self.failures.last_mut().expect("a failure has begun");
                if !line.is_empty() && failure.len() <= FAILURE_LINES_MAX {
                    failure.push(format!("    {line}"));
                }
            }
            _ if reading.in_successes && line.starts_with("---- ") => reading.is_skipped = false,
            _ => {
                if let Some(reason) = line.strip_prefix(SKIPPED).filter(|_| reading.in_successes) {
                    reading.skipped += u64::from(!std::mem::replace(&mut reading.is_skipped, true));
                    self.reasons.insert(reason.to_owned());
                }
            }
        }
        !reading.in_successes
    }

    /// Returns the reasons why tests were skipped, the failures, and the summary line.
    pub(crate) fn text(&self) -> String {
        let Self { passed, failed, skipped, .. } = self;
        let reasons = self.reasons.iter().map(|reason| format!("skipped: {reason}"));
        let failures = self.failures.iter().flatten().cloned();
        let summary = format!("{passed} passed, {failed} failed, {skipped} skipped");
        reasons.chain(failures).chain([summary]).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test a ... ok
test b ... ok
test c ... FAILED
test d ... ignored

successes:

---- a stdout ----
skipped: there is no etcd
skipped: there is no tool
---- b stdout ----
something

successes:
    a
    b

failures:

---- c stdout ----
skipped: this line of a failing test does not count

thread 'c' panicked at c.rs:1:1:

failures:
    c

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.1s
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s";

    #[test]
    fn a_skipped_test_does_not_count_as_passed() {
        let (mut tally, mut reading) = (Tally::default(), Reading::default());
        let shown: Vec<_> = OUTPUT.lines().filter(|line| tally.read(&mut reading, line)).collect();
        assert!(tally.text().starts_with("skipped: there is no etcd\nskipped: there is no tool\n"));
        assert!(tally.text().ends_with("\n8 passed, 1 failed, 2 skipped"));
        assert!(shown.contains(&"---- c stdout ----") && !shown.contains(&"something"));
        assert!(shown.iter().filter(|line| line.starts_with("test result: ")).count() == 2);
    }

    #[test]
    fn the_summary_contains_the_output_of_failed_tests() {
        let (mut tally, mut reading) = (Tally::default(), Reading::default());
        for line in OUTPUT.lines() {
            tally.read(&mut reading, line);
        }
        let failure = "\
failed: c
    skipped: this line of a failing test does not count
    thread 'c' panicked at c.rs:1:1:
8 passed, 1 failed, 2 skipped";
        assert!(tally.text().ends_with(failure), "{}", tally.text());
    }
}
