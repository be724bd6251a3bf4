//! The log outputs and the thread that writes to them.
//!
//! One writer thread owns the outputs. Callers pass whole lines through a bounded queue and never wait for an output.
//! The thread collects the queued lines and writes them to each output in one call.
//!
//! # Invariants
//!
//! * Every output receives whole lines in the order in which they were queued.
//! * If the queue is full, the new line is dropped and counted. The number of dropped lines is logged later.
//! * A failing output is not fatal: a member that cannot log still serves requests.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::rotate::RotatedFile;
use super::stderr::write_stderr;
use super::{Format, Level, Output, Settings, Source, encode};
use quorate_gotext::quote::{go_quote, go_reason};

/// The maximum number of queued lines, which usually take a few megabytes.
const QUEUE_LINE_COUNT: usize = 8192;
/// The approximate number of bytes of queued lines that the writer collects before it writes.
const WRITE_BYTES: usize = 64 << 10;

const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The reason why an output cannot be opened. The error messages are etcd's.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A log file cannot be created or appended to.
    #[error("open sink {}: open {path}: {}", go_quote(path), go_reason(source))]
    File {
        /// The path of the file, as configured.
        path: String,
        /// The system error.
        source: io::Error,
    },
    /// The journal is not available.
    #[error("can't find journal ({})", go_reason(source))]
    Journal {
        /// The system error.
        source: io::Error,
    },
    /// The writer thread cannot be started.
    #[error("cannot start the writer thread of the log: {source}")]
    Thread {
        /// The system error.
        source: io::Error,
    },
}

struct Queued {
    level: Level,
    source: Source,
    text: Vec<u8>,
}

enum Message {
    Line(Queued),
    Flush(Sender<()>),
}

/// The sending side of the queue.
#[derive(Debug)]
pub(super) struct Outputs {
    queue: Sender<Message>,
    /// The number of lines dropped since the process started.
    dropped: Arc<AtomicU64>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Line(_) => "Line",
            Self::Flush(_) => "Flush",
        })
    }
}

impl Outputs {
    /// Opens every output, and starts the writer thread.
    pub(super) fn open(settings: &Settings) -> Result<Self, OpenError> {
        let mut wanted = settings.outputs.clone();
        wanted.sort();
        wanted.dedup();
        let discards =
            |output: &Output| matches!(output, Output::File(path) if path == "/dev/null");
        if wanted.iter().any(discards) {
            wanted.clear();
        }
        let sinks = wanted.into_iter().map(Sink::open).collect::<Result<Vec<_>, _>>()?;
        let (queue, lines) = bounded(QUEUE_LINE_COUNT);
        let dropped = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            sinks,
            format: settings.format,
            lines,
            dropped: Arc::clone(&dropped),
            reported: 0,
        };
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::Thread { source })?;
        Ok(Self { queue, dropped })
    }

    /// Queues a line, or counts it as dropped if the queue is full.
    pub(super) fn send(&self, level: Level, source: Source, text: Vec<u8>) {
        let message = Message::Line(Queued { level, source, text });
        if let Err(TrySendError::Full(_)) = self.queue.try_send(message) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of lines dropped since the process started.
    pub(super) fn dropped_count(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until the queued lines are written. The timeout applies separately to queueing the request and to writing
    /// the lines.
    pub(super) fn flush(&self, timeout: Duration) {
        let (done, written) = bounded(1);
        if self.queue.send_timeout(Message::Flush(done), timeout).is_ok() {
            // A timeout means that an output blocks. The timeout cannot be reported anywhere else, so it is ignored.
            let _outcome = written.recv_timeout(timeout);
        }
    }
}

/// The receiving side of the queue, which owns the outputs.
struct Writer {
    sinks: Vec<Sink>,
    format: Format,
    lines: Receiver<Message>,
    dropped: Arc<AtomicU64>,
    /// The number of dropped lines that have been reported.
    reported: u64,
}

impl Writer {
    fn run(&mut self) {
        let mut batch: Vec<Queued> = Vec::new();
        while let Ok(first) = self.lines.recv() {
            let mut next = Some(first);
            let mut bytes = 0;
            let mut flush = None;
            while let Some(message) = next {
                match message {
                    Message::Line(line) => {
                        bytes += line.text.len();
                        batch.push(line);
                    }
                    Message::Flush(done) => flush = Some(done),
                }
                if bytes >= WRITE_BYTES || flush.is_some() {
                    break;
                }
                next = self.lines.try_recv().ok();
            }
            self.account_for_dropped(&mut batch);
            for sink in &mut self.sinks {
                sink.write(&batch);
            }
            batch.clear();
            if let Some(done) = flush {
                // The send fails if the caller has stopped waiting.
                let _outcome = done.try_send(());
            }
        }
    }

    fn account_for_dropped(&mut self, batch: &mut Vec<Queued>) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        let count = dropped - self.reported;
        if count > 0 {
            self.reported = dropped;
            let source = Source { file: file!(), line: line!(), logger: None };
            let head = encode::Head {
                now: jiff::Timestamp::now(),
                level: Level::Warn,
                source,
                message: "log lines were dropped, because the log output is too slow",
            };
            let mut text = Vec::new();
            let fields = [("dropped-line-count", super::Value::Unsigned(count))];
            encode::line(&mut text, self.format, &head, &fields);
            batch.push(Queued { level: Level::Warn, source, text });
        }
    }
}

enum Sink {
    Stderr,
    Stdout,
    File(File),
    RotatedFile(RotatedFile),
    Journal(UnixDatagram),
}

impl Sink {
    fn open(output: Output) -> Result<Self, OpenError> {
        match output {
            Output::Stderr => Ok(Self::Stderr),
            Output::Stdout => Ok(Self::Stdout),
            Output::File(path) => OpenOptions::new()
                .append(true)
                .create(true)
                .open(&path)
                .map(Self::File)
                .map_err(|source| OpenError::File { path, source }),
            Output::RotatedFile(path, rotation) => RotatedFile::open(&path, rotation)
                .map(Self::RotatedFile)
                .map_err(|source| OpenError::File { path, source }),
            Output::Journal => UnixDatagram::unbound()
                .and_then(|socket| socket.connect(JOURNAL_SOCKET).map(|()| Self::Journal(socket)))
                .map_err(|source| OpenError::Journal { source }),
        }
    }

    fn write(&mut self, batch: &[Queued]) {
        let text = || batch.iter().flat_map(|line| line.text.iter().copied()).collect::<Vec<u8>>();
        match self {
            Self::Stderr => write_stderr(&text()),
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                let _outcome = stdout.write_all(&text()).and_then(|()| stdout.flush());
            }
            Self::File(file) => {
                let _outcome = file.write_all(&text());
            }
            Self::RotatedFile(file) => {
                let _outcome = file.write(batch.iter().map(|line| line.text.as_slice()));
            }
            Self::Journal(socket) => {
                for line in batch {
                    if socket.send(&journal_entry(line)).is_err() {
                        write_stderr(&line.text);
                    }
                }
            }
        }
    }
}

/// Encodes a line in the journal's native protocol, as `KEY=value` lines. The message has no line break, so the
/// length-prefixed form is not needed.
fn journal_entry(line: &Queued) -> Vec<u8> {
    let priority = match line.level {
        Level::Debug => 7,
        Level::Info => 6,
        Level::Warn => 4,
        Level::Error => 3,
        Level::DPanic | Level::Panic | Level::Fatal => 2,
    };
    let program = std::env::args().next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let package = encode::package(line.source);
    let heads = format!("PRIORITY={priority}\nPACKAGE={package}\nSYSLOG_IDENTIFIER={program}\n");
    let mut entry = heads.into_bytes();
    entry.extend_from_slice(b"MESSAGE=");
    entry.extend_from_slice(&line.text);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_beyond_the_queue_limit_are_dropped_and_their_number_is_logged() {
        let (queue, lines) = bounded(QUEUE_LINE_COUNT);
        let dropped = Arc::new(AtomicU64::new(0));
        let outputs = Outputs { queue, dropped: Arc::clone(&dropped) };
        let source = Source { file: "x.rs", line: 1, logger: None };
        // No thread drains the queue in this test.
        for _ in 0..QUEUE_LINE_COUNT + 3 {
            outputs.send(Level::Info, source, b"line\n".to_vec());
        }
        let (sinks, format) = (Vec::new(), Format::Json);
        let mut writer = Writer { sinks, format, lines, dropped, reported: 0 };
        assert_eq!(writer.lines.len(), QUEUE_LINE_COUNT);
        let mut batch = Vec::new();
        writer.account_for_dropped(&mut batch);
        writer.account_for_dropped(&mut batch);
        let [reported] = &batch[..] else {
            panic!("the loss is logged once, not {} times", batch.len())
        };
        let text = std::str::from_utf8(&reported.text).unwrap();
        assert!(text.contains("\"dropped-line-count\":3"), "{text}");
        outputs.send(Level::Info, source, b"line\n".to_vec());
        writer.account_for_dropped(&mut batch);
        let text = std::str::from_utf8(&batch[1].text).unwrap();
        assert!(text.contains("\"dropped-line-count\":1"), "{text}");
        assert_eq!(outputs.dropped_count(), 4);
    }
}
