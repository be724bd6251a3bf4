//! One run of the tool: its flags, arguments and output streams.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use quorate_cli::flags::{Flag, Matches};
use quorate_cli::log;
use serde_json::Value;

use crate::failure::Failure;
use crate::report::{Format, Report};

/// Flags that every command accepts.
pub(crate) const GLOBAL_FLAGS: &[Flag] = &[
    Flag::text(
        "write-out",
        "simple",
        "set the output format (fields, json, protobuf, simple, table)",
    )
    .short('w'),
    Flag::duration(
        "timeout",
        "0s",
        "how long to wait for a file that a running member has open (0s waits forever); without this flag, the file is \
         refused immediately",
    ),
];

/// Output streams of a run.
pub struct Terminal {
    /// Standard output.
    pub output: Box<dyn Write>,
    /// Standard error.
    pub errors: Box<dyn Write>,
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminal").finish_non_exhaustive()
    }
}

/// One run of a command.
pub(crate) struct Session {
    /// Name under which the tool was called.
    pub(crate) program: &'static str,
    pub(crate) matches: Matches,
    terminal: RefCell<Terminal>,
}

impl Session {
    pub(crate) const fn new(program: &'static str, matches: Matches, terminal: Terminal) -> Self {
        Self { program, matches, terminal: RefCell::new(terminal) }
    }

    pub(crate) fn format(&self) -> Result<Format, Failure> {
        Format::named(self.matches.text("write-out")).ok_or(Failure::Format)
    }

    /// Returns the arguments, or an error if there are not exactly `N` arguments.
    pub(crate) fn arguments<const N: usize>(&self, wanted: &str) -> Result<[OsString; N], Failure> {
        let given: Vec<OsString> = self.given().collect();
        given.try_into().map_err(|_| Failure::arguments(wanted))
    }

    /// Returns the only argument as a path. The error for another number of arguments is cobra's.
    pub(crate) fn only_path(&self) -> Result<PathBuf, Failure> {
        match (self.matches.path_arg(0), self.matches.args.len()) {
            (Some(path), 1) => Ok(path.to_owned()),
            (_, given) => Err(Failure::ArgumentCount { expected: 1, given }),
        }
    }

    /// Returns the arguments as paths, or an error if there are none.
    pub(crate) fn paths(&self, wanted: &str) -> Result<Vec<PathBuf>, Failure> {
        let given: Vec<PathBuf> = self.given().map(PathBuf::from).collect();
        if given.is_empty() { Err(Failure::arguments(wanted)) } else { Ok(given) }
    }

    fn given(&self) -> impl Iterator<Item = OsString> {
        self.matches.args.iter().map(|arg| OsString::from_vec(arg.clone()))
    }

    /// Returns an error that names those of the flags that were not given.
    pub(crate) fn require(&self, flags: &[&'static str]) -> Result<(), Failure> {
        let missing = flags.iter().copied().filter(|flag| !self.matches.changed(flag));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() { Ok(()) } else { Err(Failure::Required(missing)) }
    }

    /// Returns the value of a required flag that names a file or directory.
    pub(crate) fn required_path(&self, flag: &'static str) -> Result<PathBuf, Failure> {
        self.matches.path(flag).map(PathBuf::from).ok_or_else(|| Failure::Required(vec![flag]))
    }

    /// Prints a report in the chosen format.
    pub(crate) fn show(&self, report: &Report) -> Result<(), Failure> {
        self.print(&self.format()?.render(report)?)
    }

    /// Prints text to standard output.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        self.print_bytes(text.as_bytes())
    }

    /// Prints bytes, which need not be text, to standard output.
    pub(crate) fn print_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.put(bytes)?;
        self.flush()
    }

    /// Prints part of the output. [`Session::flush`] must be called at the end.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.terminal.borrow_mut().output.write_all(bytes).map_err(output_failure)
    }

    pub(crate) fn flush(&self) -> Result<(), Failure> {
        self.terminal.borrow_mut().output.flush().map_err(output_failure)
    }

    /// Prints to standard error.
    pub(crate) fn print_error(&self, text: &str) {
        // If standard error is closed, the message is lost.
        drop(self.terminal.borrow_mut().errors.write_all(text.as_bytes()));
    }

    /// Writes a log line to standard error.
    pub(crate) fn log(&self, level: &str, message: &str, fields: &[(&str, String)]) {
        let fields: Vec<_> =
            fields.iter().map(|(key, value)| (*key, Value::from(value.as_str()))).collect();
        self.log_values(level, message, &fields);
    }

    /// Writes a log line to standard error, with field values of any type.
    pub(crate) fn log_values(&self, level: &str, message: &str, fields: &[(&str, Value)]) {
        log::columns(&mut *self.terminal.borrow_mut().errors, level, message, fields);
    }
}

fn output_failure(source: std::io::Error) -> Failure {
    match source.kind() {
        // The reader of the output has closed the pipe.
        ErrorKind::BrokenPipe => Failure::BrokenPipe,
        _ => Failure::Io { action: "write", path: PathBuf::from("standard output"), source },
    }
}
