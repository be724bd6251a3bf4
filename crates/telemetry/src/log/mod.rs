//! The server's log: one line per event, in the format that etcd's tools, dashboards and runbooks read.
//!
//! Callers use the macros ([`debug!`], [`info!`], [`warn!`], [`error!`], [`fatal!`]), which take a message
//! and then fields under etcd's own names:
//!
//! ```text
//! log::info!("published local member to cluster through raft",
//!     "local-member-id" = member_id, "publish-timeout" = timeout);
//! ```
//!
//! # Decisions
//!
//! * Quorate has its own macros instead of `tracing`'s, because lists, durations and errors are typed fields, and
//!   because configuration can return lines before any output exists ([`Line`]). A program with a `tracing` subscriber
//!   receives each line as an event ([`subscriber`]).
//! * The caller formats its line on its own stack and passes it to one writer thread through a bounded queue
//!   ([`output`]). A stuck terminal or disk therefore never blocks a raft or apply thread. When the queue is
//!   full, the line is dropped and counted, and the count is logged once there is space.
//! * Callers wait, up to a limit, until lines of level `dpanic` or above are written, because the process may be about
//!   to end.
//! * There is no `stacktrace` key. A panic is logged as a line, after which the panic message and its backtrace are
//!   printed.
//!
//! # Not here
//!
//! The choice of events, which the call sites make, and the parsing of outputs and levels into [`Settings`] (`config`).

mod encode;
mod line;
mod output;
mod rotate;
mod sampler;
mod stderr;
mod subscriber;
mod value;

#[cfg(test)]
mod tests;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

pub use line::{Line, Source};
pub use output::OpenError;
pub(crate) use rotate::RotatedFile;
pub use rotate::Rotation;
pub use value::{Field, Shown, Value, error_chain};

use output::Outputs;
use sampler::Sampler;

/// The levels of lines, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Details for debugging.
    Debug,
    /// Normal events.
    Info,
    /// Events that need attention.
    Warn,
    /// Failures.
    Error,
    /// A bug that does not end the process.
    DPanic,
    /// A bug that ends the process.
    Panic,
    /// An event that ends the process.
    Fatal,
}

impl Level {
    /// All levels, in ascending order.
    pub const ALL: [Self; 7] =
        [Self::Debug, Self::Info, Self::Warn, Self::Error, Self::DPanic, Self::Panic, Self::Fatal];

    /// Returns the name of the level in log lines and in `--log-level`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::DPanic => "dpanic",
            Self::Panic => "panic",
            Self::Fatal => "fatal",
        }
    }
}

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    #[default]
    Json,
    /// Tab-separated columns, with the fields as JSON in the last column.
    Console,
}

/// The destination of log lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Output {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// The systemd journal. Lines that it refuses go to standard error.
    Journal,
    /// A file to append to. It is created if it is missing.
    File(String),
    /// A file that is rotated when it is full.
    RotatedFile(String, Rotation),
}

/// The configuration of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The minimum level of lines that are written.
    pub level: Level,
    /// The format of log lines.
    pub format: Format,
    /// The outputs. Every line is written to each output.
    pub outputs: Vec<Output>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { level: Level::Info, format: Format::Json, outputs: vec![Output::Stderr] }
    }
}

#[derive(Debug)]
struct Logger {
    format: Format,
    outputs: Outputs,
    sampler: Sampler,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();
static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Maximum time for which the caller waits for a slow output, in [`flush`] and after a line of level `dpanic` or above.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the outputs and sends all later lines to them.
///
/// Before the first call, lines of level `info` and above go to standard error as JSON. Only the first successful call
/// has an effect.
///
/// # Errors
///
/// An output cannot be opened. In this case, lines are still written to the previous outputs.
pub fn init(settings: &Settings) -> Result<(), OpenError> {
    if LOGGER.get().is_some() {
        return Ok(());
    }
    let outputs = Outputs::open(settings)?;
    let logger = Logger { format: settings.format, outputs, sampler: Sampler::new() };
    if LOGGER.set(logger).is_ok() {
        LEVEL.store(settings.level as u8, Ordering::Relaxed);
        log_panics();
    }
    Ok(())
}

/// Installs a hook that logs a panic, after all earlier lines, before the panic message is printed.
fn log_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let error = panic.to_string();
        crate::log_event!(Panic, "the process panicked", "error" = error);
        print(panic);
    }));
}

/// Returns whether lines of this level are written.
#[inline]
pub fn enabled(level: Level) -> bool {
    level as u8 >= LEVEL.load(Ordering::Relaxed)
}

/// Sets the minimum level of lines that are written.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Returns how many lines this process has dropped because the outputs were too slow.
pub(crate) fn dropped_line_count() -> u64 {
    LOGGER.get().map_or(0, |logger| logger.outputs.dropped_count())
}

/// Waits until all earlier lines are written. Waits at most [`FLUSH_TIMEOUT`] for space in the queue, and then at most
/// [`FLUSH_TIMEOUT`] until the lines are written.
pub fn flush() {
    if let Some(logger) = LOGGER.get() {
        logger.outputs.flush(FLUSH_TIMEOUT);
    }
}

/// Writes one line. The macros check the level before they call this function.
pub fn write(level: Level, source: Source, message: &str, fields: &[(&str, Value<'_>)]) {
    let has_subscriber = subscriber::is_there();
    if has_subscriber {
        subscriber::tell(level, source, message, fields);
    }
    let head = encode::Head { now: jiff::Timestamp::now(), level, source, message };
    let Some(logger) = LOGGER.get() else {
        // If a program has a subscriber but no outputs, lines must not go to standard error.
        if !has_subscriber {
            write_stderr(&head, fields);
        }
        return;
    };
    if !logger.sampler.admits(level, message, head.now.as_second()) {
        return;
    }
    let mut text = Vec::with_capacity(256);
    encode::line(&mut text, logger.format, &head, fields);
    logger.outputs.send(level, source, text);
    if level >= Level::DPanic {
        logger.outputs.flush(FLUSH_TIMEOUT);
    }
}

/// Appends a value as JSON, as in a log line.
pub(crate) fn put_value(text: &mut Vec<u8>, value: &Value<'_>) {
    encode::value(text, value, false);
}

/// Writes a line of level `info` or above to standard error as JSON, independently of the configured log.
///
/// Used before the log is configured.
pub fn write_early(line: &Line) {
    if line.level >= Level::Info {
        let now = jiff::Timestamp::now();
        let (level, source) = (line.level, line.source);
        write_stderr(&encode::Head { now, level, source, message: &line.message }, &line.fields);
    }
}

fn write_stderr(head: &encode::Head<'_>, fields: &[(&str, Value<'_>)]) {
    let mut text = Vec::with_capacity(256);
    encode::line(&mut text, Format::Json, head, fields);
    stderr::write_stderr(&text);
}

/// Writes a line of the given level, if it is enabled. Otherwise the fields are not evaluated.
#[doc(hidden)]
#[macro_export]
macro_rules! log_event {
    ($level:ident, logger: $logger:literal, $message:expr $(, $key:literal = $value:expr)* $(,)?) => {
        $crate::log_event!(@write $level, Some($logger), $message $(, $key = $value)*)
    };
    ($level:ident, $message:expr $(, $key:literal = $value:expr)* $(,)?) => {
        $crate::log_event!(@write $level, None, $message $(, $key = $value)*)
    };
    (@write $level:ident, $logger:expr, $message:expr $(, $key:literal = $value:expr)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::write(
                $crate::log::Level::$level,
                $crate::log::Source { file: file!(), line: line!(), logger: $logger },
                $message,
                &[$(($key, $crate::log::Field::value(&$value))),*],
            );
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_pending {
    ($level:ident, $message:expr $(, $key:literal = $value:expr)* $(,)?) => {
        $crate::log::Line {
            level: $crate::log::Level::$level,
            source: $crate::log::Source { file: file!(), line: line!(), logger: None },
            message: String::from($message),
            fields: vec![$(($key, $crate::log::Field::value(&$value).into_owned())),*],
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_debug {
    ($($line:tt)*) => { $crate::log_event!(Debug, $($line)*) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_info {
    ($($line:tt)*) => { $crate::log_event!(Info, $($line)*) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_warn {
    ($($line:tt)*) => { $crate::log_event!(Warn, $($line)*) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_error {
    ($($line:tt)*) => { $crate::log_event!(Error, $($line)*) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! log_fatal {
    ($($line:tt)*) => { $crate::log_event!(Fatal, $($line)*) };
}

pub use crate::log_debug as debug;
pub use crate::log_error as error;
/// Logs that the process is ending. The caller must then end the process.
pub use crate::log_fatal as fatal;
pub use crate::log_info as info;
/// Creates a [`Line`] that is written later, when the outputs are known.
pub use crate::log_pending as pending;
pub use crate::log_warn as warn;
