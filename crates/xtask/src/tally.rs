//! Runs test programs, prints their output, and sums up the results.
//!
//! The test runner cannot mark a test as skipped at run time. A test whose material is missing prints a line that
//! begins with [`SKIPPED`] and passes. Therefore the runner also prints the output of passing tests, which this module
//! parses but does not show.
//!
//! The output of a whole run is long, and a failure may be far from its end. Therefore the summary repeats the name and
//! the first lines of the output of each failed test.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use crate::Outcome;

/// The start of the line that a skipped test prints.
const SKIPPED: &str = "skipped: ";

/// The maximum number of lines of a failed test's output that the summary repeats.
const FAILURE_LINES_MAX: usize = 8;

/// The results of all tests so far.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Prints a line of the output of tests.
    print: fn(&str),
    passed: u64,
    failed: u64,
    skipped: u64,
    /// For each failed test, a line with its name, and the first lines of its output.
    failures: Vec<Vec<String>>,
    /// The distinct reasons why tests were skipped.
    reasons: BTreeSet<String>,
}

/// The state of parsing the output of a run.
#[derive(Debug, Default)]
struct Reading {
    heading: String,
    /// Whether the current lines are the output of passing tests.
    in_successes: bool,
    /// Whether the current lines are the output of a failed test.
    in_failure: bool,
    /// Whether the current test was skipped.
    is_skipped: bool,
    skipped: u64,
    /// Whether a line with the result of a test program was read.
    has_result: bool,
    /// The number of failures before the run.
    failed_before: u64,
}

/// A run of a test program, or of several programs by `cargo test`.
#[derive(Debug)]
pub(crate) struct Run {
    /// The line that is printed before the output.
    heading: String,
    command: Command,
}

impl Run {
    /// Prepares a command whose last arguments are for the test program.
    pub(crate) fn new(heading: String, mut command: Command) -> Self {
        command.arg("--show-output").stdout(Stdio::piped());
        Self { heading, command }
    }
}

impl Tally {
    /// Begins with no results. `print` receives each line of output.
    pub(crate) fn new(print: fn(&str)) -> Self {
        let (failures, reasons) = (Vec::new(), BTreeSet::new());
        Self { print, passed: 0, failed: 0, skipped: 0, failures, reasons }
    }

    /// Runs test programs one after another, prints their output and counts the results. All programs run, even if
    /// earlier ones fail.
    pub(crate) fn run(&mut self, runs: Vec<Run>) -> Outcome {
        let mut outcome = Ok(());
        for Run { heading, command } in runs {
            let mut reading = self.begin(heading);
            let status = complete(command, |line| self.read_and_print(&mut reading, line));
            outcome = outcome.and(self.end(reading, status));
        }
        outcome
    }

    fn begin(&self, heading: String) -> Reading {
        (self.print)(&format!("\n{heading}"));
        Reading { heading, failed_before: self.failed, ..Reading::default() }
    }

    fn read_and_print(&mut self, reading: &mut Reading, line: &str) {
        if self.read(reading, line) {
            (self.print)(line);
        }
    }

    /// Checks how a run ended. A failure that no line of the output has reported is counted here: the program did not
    /// start, or it ended without a result.
    fn end(&mut self, reading: Reading, status: io::Result<ExitStatus>) -> Outcome {
        let Reading { heading, has_result, failed_before, .. } = reading;
        let why = match status {
            Ok(status) if status.success() && has_result => return Ok(()),
            Ok(status) if status.success() => format!("{heading}: no test result"),
            Ok(status) => format!("{heading}: {status}"),
            Err(error) => format!("{heading}: {error}"),
        };
        if self.failed == failed_before {
            self.failed += 1;
            self.failures.push(vec![format!("failed: {why}")]);
        }
        Err(why)
    }

    /// Parses a line, and returns whether to print it.
    fn read(&mut self, reading: &mut Reading, line: &str) -> bool {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let count = |name: &str| {
                let field =
                    rest.split([';', '.']).find_map(|field| field.trim().strip_suffix(name));
                field.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default()
            };
            let skipped = reading.skipped;
            let (heading, failed_before) =
                (std::mem::take(&mut reading.heading), reading.failed_before);
            *reading = Reading { heading, failed_before, has_result: true, ..Reading::default() };
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
                self.failures.push(vec![format!("failed: {name}, in {}", reading.heading)]);
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

/// Runs a command, passes each line of its standard output to `read`, and returns its status.
fn complete(mut command: Command, mut read: impl FnMut(&str)) -> io::Result<ExitStatus> {
    let mut process = command.spawn()?;
    let output = process.stdout.take().expect("standard output is piped");
    for line in BufReader::new(output).split(b'\n') {
        read(&String::from_utf8_lossy(&line?));
    }
    process.wait()
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
        let (mut tally, mut reading) = (Tally::new(|_| {}), Reading::default());
        let shown: Vec<_> = OUTPUT.lines().filter(|line| tally.read(&mut reading, line)).collect();
        assert!(tally.text().starts_with("skipped: there is no etcd\nskipped: there is no tool\n"));
        assert!(tally.text().ends_with("\n8 passed, 1 failed, 2 skipped"));
        assert!(shown.contains(&"---- c stdout ----") && !shown.contains(&"something"));
        assert!(shown.iter().filter(|line| line.starts_with("test result: ")).count() == 2);
    }

    #[test]
    fn the_summary_contains_the_output_of_failed_tests() {
        let mut tally = Tally::new(|_| {});
        let mut reading = tally.begin("a package".to_owned());
        for line in OUTPUT.lines() {
            tally.read(&mut reading, line);
        }
        let failure = "\
failed: c, in a package
    skipped: this line of a failing test does not count
    thread 'c' panicked at c.rs:1:1:
8 passed, 1 failed, 2 skipped";
        assert!(tally.text().ends_with(failure), "{}", tally.text());
    }

    fn sh(script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]);
        Run::new(script.to_owned(), command)
    }

    #[test]
    fn all_programs_run_and_a_program_without_a_result_is_a_failure() {
        const PASS: &str = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
        const FAIL: &str = "echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101";
        const CRASH: &str = "echo 'test a ... ok'; exit 3";
        let mut tally = Tally::new(|_| {});
        let runs = [FAIL, PASS, CRASH, "true", PASS].map(sh).into();
        assert!(tally.run(runs).is_err());
        let summary = tally.text();
        assert!(summary.contains(&format!("failed: {CRASH}: exit status: 3\n")), "{summary}");
        assert!(summary.contains("failed: true: no test result\n"), "{summary}");
        assert!(summary.ends_with("5 passed, 3 failed, 0 skipped"), "{summary}");
        let mut tally = Tally::new(|_| {});
        assert_eq!(tally.run(vec![sh(PASS), sh(PASS)]), Ok(()));
        let mut missing = Tally::new(|_| {});
        let run = Run::new("missing".to_owned(), Command::new("/nowhere"));
        assert!(missing.run(vec![run]).is_err());
        assert!(missing.text().ends_with("0 passed, 1 failed, 0 skipped"));
    }
}
