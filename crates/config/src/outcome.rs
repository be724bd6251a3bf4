//! What comes of reading a configuration: the configuration, or the end of the process with its
//! code and its texts; and the log lines of either.

use quorate_telemetry::log::{self, Line, Settings};

use super::config::Config;
use super::grammar;

/// Which log a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error, because the log is not configured yet or its configuration is the mistake.
    Early,
    /// The log that was asked for.
    Configured,
}

/// A log line that waits for its log.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Which log.
    pub destination: Destination,
    /// The line.
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

/// A configuration and the lines that its reading deserves, in order.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The configuration.
    pub config: Config,
    /// To be written by [`Parsed::open_log`].
    pub lines: Vec<Pending>,
}

/// The end of the process, as the command line or the configuration wants it.
#[derive(Clone, Debug, Default)]
pub struct Exit {
    /// The process status.
    pub code: i32,
    /// To standard output.
    pub stdout: String,
    /// To standard error, before any log line.
    pub stderr: String,
    /// The log for the lines that belong to it, where it got that far.
    pub log: Option<Settings>,
    /// The log lines, in order.
    pub lines: Vec<Pending>,
}

/// Why the reading stops.
#[derive(Debug)]
pub(super) enum Stop {
    /// A mistake, reported through the log.
    Refused(String),
    /// A mistake that is printed instead.
    Printed(String),
    /// A mistake that ends the program at once, with the status of a Go panic.
    Aborted(String),
    /// A mistake whose line stands in the log already.
    Logged,
}

impl Parsed {
    /// Opens the configured log and writes every line where it belongs.
    ///
    /// # Errors
    ///
    /// The log cannot be opened; the exit says so.
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
    /// Writes everything there is to write and returns the status to end with.
    pub fn report(&self) -> i32 {
        use std::io::Write;
        // Whoever cannot be written to cannot be told either.
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
    log::pending!(Info, "Running: ", "args" = grammar::told(arguments))
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
