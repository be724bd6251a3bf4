//! The server's log: one line per event, in the form that etcd's tools, dashboards and runbooks
//! read.
//!
//! Callers use the macros ([`debug!`], [`info!`], [`warn!`], [`error!`], [`fatal!`]), which take a
//! message and then fields under etcd's own names:
//!
//! ```text
//! log::info!("published local member to cluster through raft",
//!     "local-member-id" = member_id, "publish-timeout" = timeout);
//! ```
//!
//! # Decisions
//!
//! * Macros of our own and not `tracing`: lists, spans of time and error texts are fields with a
//!   type here, and configuration can hand back lines before any output exists ([`Line`]). A
//!   program with a subscriber of `tracing` is told each line as an event ([`subscriber`]).
//! * The caller formats its line on its own stack and hands it to one writer thread through a
//!   bounded queue ([`output`]). A stuck terminal or disk therefore never holds up a raft or apply
//!   thread: when the queue is full the line is dropped, counted, and the count is logged once
//!   there is room.
//! * Lines from `dpanic` upward wait, up to a bound, until they are written, because the process is
//!   about to end.
//! * No `stacktrace` key: a panic is a line of the log and then prints its own trace.
//!
//! # Not here
//!
//! What is worth a line: that stands at the call sites. Which outputs and levels there are:
//! `config` decides, and hands over [`Settings`].

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

/// How much a line matters, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Details for whoever hunts a fault.
    Debug,
    /// What the member does.
    Info,
    /// Something to look at.
    Warn,
    /// Something failed.
    Error,
    /// A bug that the member survives.
    DPanic,
    /// A bug that it does not.
    Panic,
    /// The process ends.
    Fatal,
}

impl Level {
    /// Every level, in rising order.
    pub const ALL: [Self; 7] =
        [Self::Debug, Self::Info, Self::Warn, Self::Error, Self::DPanic, Self::Panic, Self::Fatal];

    /// The name in a line and in `--log-level`.
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

/// How a line is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    #[default]
    Json,
    /// Columns between tabs, the fields as JSON in the last one.
    Console,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Output {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// The systemd journal, with standard error behind it.
    Journal,
    /// A file, appended to and created where missing.
    File(String),
    /// The same, set aside when it is full.
    RotatedFile(String, Rotation),
}

/// What the log does with lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lines below this level are not written.
    pub level: Level,
    /// The layout of a line.
    pub format: Format,
    /// Every line goes to each of these.
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

/// How long an important line or a [`flush`] waits for a slow output.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the outputs and sends every line there from now on.
///
/// Until then lines go to standard error, as JSON, from `info` upward. Only the first call counts:
/// a second one opens nothing and changes nothing.
///
/// # Errors
///
/// An output cannot be opened; the log stays as it was.
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

/// Puts a panic into the log before the process dies of it, behind every line that came before.
fn log_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let error = panic.to_string();
        crate::log_event!(Panic, "the process panicked", "error" = error);
        print(panic);
    }));
}

/// Whether lines of this level are written at all.
#[inline]
pub fn enabled(level: Level) -> bool {
    level as u8 >= LEVEL.load(Ordering::Relaxed)
}

/// Sets the level below which lines are not written.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// How many lines were dropped since the start because the outputs were too slow.
pub(crate) fn dropped_line_count() -> u64 {
    LOGGER.get().map_or(0, |logger| logger.outputs.dropped_count())
}

/// Waits until everything logged so far is written, for a second at most.
pub fn flush() {
    if let Some(logger) = LOGGER.get() {
        logger.outputs.flush(FLUSH_TIMEOUT);
    }
}

/// Writes one line; the macros call this once they know that the level is enabled.
pub fn write(level: Level, source: Source, message: &str, fields: &[(&str, Value<'_>)]) {
    let has_subscriber = subscriber::is_there();
    if has_subscriber {
        subscriber::tell(level, source, message, fields);
    }
    let head = encode::Head { now: jiff::Timestamp::now(), level, source, message };
    let Some(logger) = LOGGER.get() else {
        // A program that listens and has opened no outputs wants none.
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

/// Appends a value as a line has it, in JSON.
pub(crate) fn put_value(text: &mut Vec<u8>, value: &Value<'_>) {
    encode::value(text, value, false);
}

/// Writes a line to standard error as JSON, whatever log there is, from `info` upward.
///
/// For what happens before the log is configured, or instead of it.
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

/// Writes a line of the given level, if it is enabled; the fields are evaluated only then.
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
/// Says that the process ends now; ending it is the caller's.
pub use crate::log_fatal as fatal;
pub use crate::log_info as info;
/// Makes a [`Line`] to be written later, by whoever knows where lines go.
pub use crate::log_pending as pending;
pub use crate::log_warn as warn;
