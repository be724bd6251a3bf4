//! The queue of audit lines and the thread that writes them.
//!
//! # Bound
//!
//! The queue holds at most [`LINE_BYTES_QUEUED_MAX`] bytes, including the lines that are being written. Lines that
//! would exceed this limit, and lines that cannot be written, are dropped and counted. The loss is logged at most once
//! a minute. Calls never wait for the disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quorate_gotext::quote::go_reason;

use crate::log::{self, Output, RotatedFile};
use crate::metrics::AuditMetrics;
use crate::throttle::LogThrottle;

/// The maximum size of all queued lines, in bytes.
const LINE_BYTES_QUEUED_MAX: usize = 16 << 20;

/// The maximum time for which the member's shutdown waits for a slow disk.
const FINISH_TIME_MAX: Duration = Duration::from_secs(2);

/// The minimum time between two log lines about lost audit lines.
const LOSS_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The permissions of the audit log file. Only the owner of the file may read it.
const FILE_MODE: u32 = 0o600;

/// The reason why the audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened.
    #[error("cannot open the audit log {path}: {}", go_reason(source))]
    File {
        /// The path of the file.
        path: String,
        /// The system error.
        source: io::Error,
    },
    /// The journal accepts only lines of the member's log.
    #[error("the audit log cannot be written to the journal; specify a file, stderr or stdout")]
    Journal,
    /// The thread cannot be started.
    #[error("cannot start the writer thread of the audit log: {0}")]
    Thread(#[source] io::Error),
}

/// The sending side of the queue.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Signals that lines were queued or written, or that the writer thread must end.
    changed: Condvar,
    metrics: AuditMetrics,
    losses: LogThrottle,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// The size of the lines being written, in bytes.
    in_hand: usize,
    is_ending: bool,
}

impl Waiting {
    const fn bytes(&self) -> usize {
        self.lines.len() + self.in_hand
    }
}

impl Writer {
    pub(super) fn open(output: Output, metrics: AuditMetrics) -> Result<Self, OpenError> {
        let mut sink = Sink::open(output)?;
        let writer = Self::over(metrics);
        let shared = Arc::clone(&writer.shared);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || {
                while let Some(lines) = shared.take() {
                    shared.note_written(&lines, sink.write(&lines));
                }
            })
            .map_err(OpenError::Thread)?;
        Ok(writer)
    }

    fn over(metrics: AuditMetrics) -> Self {
        let losses = LogThrottle::every(LOSS_LOG_INTERVAL);
        let (waiting, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { waiting, changed, metrics, losses }) }
    }

    /// Queues a line, or drops it if the queue is full.
    pub(super) fn push(&self, line: Vec<u8>) {
        let shared = &self.shared;
        let mut waiting = shared.waiting.lock();
        if waiting.bytes() + line.len() > LINE_BYTES_QUEUED_MAX {
            drop(waiting);
            shared.note_lost(1, "lines are queued faster than they can be written");
            return;
        }
        let was_empty = waiting.lines.is_empty();
        waiting.lines.extend_from_slice(&line);
        drop(waiting);
        shared.metrics.waiting_bytes.add(length(line.len()));
        if was_empty {
            shared.changed.notify_all();
        }
    }

    /// Returns whether at most half of the queue's capacity is used.
    pub(super) fn is_half_empty(&self) -> bool {
        self.shared.waiting.lock().bytes() <= LINE_BYTES_QUEUED_MAX / 2
    }

    /// Waits until all lines are written, for at most [`FINISH_TIME_MAX`].
    pub(super) fn finish(&self) {
        let deadline = Instant::now() + FINISH_TIME_MAX;
        let mut waiting = self.shared.waiting.lock();
        while waiting.bytes() > 0 {
            if self.shared.changed.wait_until(&mut waiting, deadline).timed_out() {
                break;
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.waiting.lock().is_ending = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Waits for lines and takes all of them. Returns `None` if the writer thread must end.
    fn take(&self) -> Option<Vec<u8>> {
        let mut waiting = self.waiting.lock();
        while waiting.lines.is_empty() {
            if waiting.is_ending {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
        let lines = std::mem::take(&mut waiting.lines);
        waiting.in_hand = lines.len();
        Some(lines)
    }

    fn note_written(&self, lines: &[u8], outcome: io::Result<()>) {
        let count = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        match outcome {
            Ok(()) => self.metrics.written.add(count),
            Err(error) => self.note_lost(count, &go_reason(&error)),
        }
        self.metrics.waiting_bytes.add(-length(lines.len()));
        self.waiting.lock().in_hand = 0;
        self.changed.notify_all();
    }

    fn note_lost(&self, count: u64, reason: &str) {
        self.metrics.dropped.add(count);
        if self.losses.admits().is_some() {
            let lost = self.metrics.dropped.value();
            log::warn!("audit log lines are lost", "reason" = reason, "lost-so-far" = lost);
        }
    }
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The destination of the audit lines.
enum Sink {
    Stderr,
    Stdout,
    File {
        file: File,
        /// Whether the file may end with a partial line because a write has failed.
        is_torn: bool,
    },
    Rotated(RotatedFile),
}

impl Sink {
    fn open(output: Output) -> Result<Self, OpenError> {
        match output {
            Output::Stderr => Ok(Self::Stderr),
            Output::Stdout => Ok(Self::Stdout),
            Output::Journal => Err(OpenError::Journal),
            Output::File(path) => OpenOptions::new()
                .append(true)
                .create(true)
                .mode(FILE_MODE)
                .open(&path)
                .map(|file| Self::File { file, is_torn: false })
                .map_err(|source| OpenError::File { path, source }),
            Output::RotatedFile(path, rotation) => RotatedFile::open(&path, rotation)
                .map(Self::Rotated)
                .map_err(|source| OpenError::File { path, source }),
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().lock().write_all(lines),
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::File { file, is_torn } => {
                if *is_torn {
                    file.write_all(b"\n")?;
                }
                *is_torn = true;
                file.write_all(lines)?;
                *is_torn = false;
                Ok(())
            }
            Self::Rotated(file) => file.write(lines.split_inclusive(|byte| *byte == b'\n')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metrics, MetricsLevel};

    #[test]
    fn audit_lines_beyond_the_queue_limit_are_dropped_and_counted() {
        let metrics = Metrics::new(&[], MetricsLevel::Basic);
        // No thread drains the queue in this test.
        let writer = Writer::over(metrics.audit.clone());
        let line = |bytes: usize| [vec![b'x'; bytes - 1], b"\n".to_vec()].concat();
        writer.push(line(LINE_BYTES_QUEUED_MAX / 2));
        assert!(writer.is_half_empty());
        writer.push(line(LINE_BYTES_QUEUED_MAX / 2));
        assert!(!writer.is_half_empty());
        writer.push(line(2));
        assert_eq!(metrics.audit.dropped.value(), 1);
        let taken = writer.shared.take().unwrap();
        writer.push(line(2));
        assert_eq!(metrics.audit.dropped.value(), 2, "the taken lines are not written yet");
        writer.shared.note_written(&taken, Ok(()));
        assert_eq!((metrics.audit.written.value(), metrics.audit.waiting_bytes.value()), (2, 0));
        writer.push(line(2));
        let taken = writer.shared.take().unwrap();
        writer.shared.note_written(&taken, Err(io::ErrorKind::StorageFull.into()));
        assert_eq!((metrics.audit.written.value(), metrics.audit.dropped.value()), (2, 3));
        assert!(writer.is_half_empty());
    }

    #[test]
    fn a_line_truncated_by_a_full_disk_does_not_damage_the_next_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let file = File::create(&path).unwrap();
        let mut sink = Sink::File { file, is_torn: false };
        sink.write(b"whole\npart").unwrap();
        let Sink::File { is_torn, .. } = &mut sink else { unreachable!() };
        *is_torn = true;
        sink.write(b"next\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\npart\nnext\n");
    }

    #[test]
    fn the_audit_file_is_readable_only_by_its_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let metrics = Metrics::new(&[], MetricsLevel::Basic).audit;
        let output = Output::File(path.to_str().unwrap().to_owned());
        let writer = Writer::open(output, metrics).unwrap();
        writer.push(b"line\n".to_vec());
        writer.finish();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line\n");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let missing = Output::File(dir.path().join("no/such").to_str().unwrap().to_owned());
        let opened = Writer::open(missing, Metrics::new(&[], MetricsLevel::Basic).audit);
        assert!(opened.unwrap_err().to_string().starts_with("cannot open the audit log "));
    }
}
