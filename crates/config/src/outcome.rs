//! The result of reading a configuration: the configuration, or an exit code with text to print. In both cases, the
//! result contains log lines.

use quorate_telemetry::log::{self, Line, Settings};

use super::config::Config;
use super::grammar;

/// The destination of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error, because the log is not configured yet or its configuration is invalid.
    Early,
    /// The configured log.
    Configured,
}

/// A log line that has not been written yet.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The destination of the line.
    pub destination: Destination,
    /// The line without its timestamp.
    pub line: Line,
}

impl Pending {
    pub(super) fn early(line: Line) -> Self {
        Self { destination: Destination::Early, line }
    }

    pub(super) fn configured(line: Line) -> Self {
        Self { destination: Destination::Configured, line }
    }
}

/// A configuration, and the log lines produced while reading it, in order.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The configuration.
    pub config: Config,
    /// The log lines, which [`Parsed::open_log`] writes.
    pub lines: Vec<Pending>,
}

/// The instruction to end the process, with text to print, log lines and the exit code.
#[derive(Clone, Debug, Default)]
pub struct Exit {
    /// The exit code of the process.
    pub code: i32,
    /// The text for standard output.
    pub stdout: String,
    /// The text for standard error, which is printed before any log line.
    pub stderr: String,
    /// The log settings, if they are valid.
    pub log: Option<Settings>,
    /// The log lines, in order.
    pub lines: Vec<Pending>,
}

/// The reason for ending the process while the configuration is read.
#[derive(Debug)]
pub(super) enum Stop {
    /// An error that is reported in the log.
    Refused(String),
    /// An error that is printed to standard error and not logged.
    Printed(String),
    /// An error that ends the program at once, with the exit code of a Go panic.
    Aborted(String),
    /// An error that has been logged already.
    Logged,
}

impl Parsed {
    /// Opens the configured log and writes every line to its destination.
    ///
    /// # Errors
    ///
    /// The log cannot be opened. The returned [`Exit`] contains the error.
    pub fn open_log(self, arguments: &[String]) -> Result<Config, Exit> {
        if let Err(error) = log::init(&self.config.log) {
            let mut lines = self.lines;
            lines.retain(|pending| pending.destination == Destination::Early);
            refuse(&mut lines, Destination::Early, arguments, &error.to_string());
            return Err(Exit { code: 1, lines, ..Exit::default() });
        }
        write_all(&self.lines);
        Ok(self.config)
    }
}

impl Exit {
    /// Writes the output and the log lines, and returns the exit code.
    pub fn report(&self) -> i32 {
        use std::io::Write;
        // Errors are ignored, because the text has no other destination.
        let _outcome = std::io::stderr().write_all(self.stderr.as_bytes());
        let _outcome = std::io::stdout().write_all(self.stdout.as_bytes());
        if self.log.as_ref().is_some_and(|settings| log::init(settings).is_ok()) {
            write_all(&self.lines);
            log::flush();
        } else {
            self.lines.iter().for_each(|pending| log::write_early(&pending.line));
        }
        self.code
    }
}

fn write_all(lines: &[Pending]) {
    for pending in lines {
        match pending.destination {
            Destination::Early => log::write_early(&pending.line),
            Destination::Configured => pending.line.emit(),
        }
    }
}

pub(super) fn running(arguments: &[String]) -> Line {
    log::pending!(Info, "Running: ", "args" = grammar::redacted(arguments))
}

pub(super) fn refuse(
    lines: &mut Vec<Pending>,
    destination: Destination,
    arguments: &[String],
    text: &str,
) {
    let failed = log::pending!(Warn, "failed to verify flags", "error" = text);
    lines.extend([running(arguments), failed].map(|line| Pending { destination, line }));
}
