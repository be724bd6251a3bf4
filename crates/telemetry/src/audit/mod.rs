//! The audit log: one line of JSON for each call that the rules select, with the user, the request and the result.
//!
//! Each call that may be logged has a [`CallAccount`], in which the edge records facts about the call. When the call
//! ends, the [rules](Rules) decide whether it is logged, and its line is queued for the [writer thread](writer).
//! Secrets need not be removed, because they are never recorded: [`Asked`] has no field for a value, a password or a
//! token.
//!
//! # Cost
//!
//! Without an audit log, there is no [`Auditor`], and a call costs only one additional check.
//!
//! # Not here
//!
//! Extracting the operations of a request (`edge::calls::asked`), rotated files (`log::rotate`).

mod line;
mod rules;
mod writer;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

pub use self::line::{Asked, Detail};
use self::line::{Entry, LeftOut, encode};
pub use self::rules::{MethodName, RuleError, Rules};
pub use self::writer::OpenError;
use self::writer::Writer;
use crate::log::Output;
use crate::metrics::AuditMetrics;

/// The maximum number of operations that a line lists. A transaction may have thousands of operations; the line
/// summarises the others ([`LeftOut`]).
const ASKED_MAX: usize = 32;

/// How calls are handled while the queue is filling up because the disk is slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The call is served, and its line is dropped if the queue is full.
    #[default]
    Drop,
    /// Calls are refused while the queue is more than half full.
    Refuse,
}

/// The settings of an audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The destination of the audit lines.
    pub output: Output,
    /// The rules that select calls.
    pub rules: Rules,
    /// How calls are handled while lines are produced faster than they can be written.
    pub overflow: Overflow,
}

/// Records calls and writes them to the audit log.
#[derive(Debug)]
pub struct Auditor {
    rules: Rules,
    overflow: Overflow,
    writer: Writer,
    metrics: AuditMetrics,
}

impl Auditor {
    /// Opens the log.
    ///
    /// # Errors
    ///
    /// The output cannot be opened.
    pub fn open(settings: Settings, metrics: &AuditMetrics) -> Result<Self, OpenError> {
        let Settings { output, rules, overflow } = settings;
        let writer = Writer::open(output, metrics.clone())?;
        Ok(Self { rules, overflow, writer, metrics: metrics.clone() })
    }

    /// Returns whether a new call, or a new operation on a stream, may be served.
    #[must_use]
    pub fn admits(&self) -> bool {
        match self.overflow {
            Overflow::Drop => true,
            Overflow::Refuse => {
                let has_room = self.writer.is_half_empty();
                if !has_room {
                    self.metrics.refused.inc();
                }
                has_room
            }
        }
    }

    /// Starts the record of a call that arrived from this address on a connection with this client certificate.
    #[must_use]
    pub fn begin(
        self: &Arc<Self>,
        remote: Option<SocketAddr>,
        certificate: Option<Arc<str>>,
    ) -> CallAccount {
        let auditor = Arc::clone(self);
        CallAccount { auditor, remote, certificate, notes: Mutex::default() }
    }

    /// Waits until all lines are written, for at most two seconds.
    pub fn finish(&self) {
        self.writer.finish();
    }
}

/// The record of one call.
#[derive(Debug)]
pub struct CallAccount {
    auditor: Arc<Auditor>,
    remote: Option<SocketAddr>,
    certificate: Option<Arc<str>>,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    user: String,
    asked: Vec<Asked>,
    left_out: Vec<LeftOut>,
    revision: Option<i64>,
}

/// The result of a call, or of one operation on a stream.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The path of the method: `/package.Service/Method`.
    pub method: &'a str,
    /// The name of the gRPC code.
    pub code: &'static str,
    /// The error text; empty if there is none to log.
    pub error: &'a str,
    /// The duration of the call or operation, if known.
    pub took: Option<Duration>,
}

impl CallAccount {
    /// Records the authenticated user.
    pub fn note_user(&self, user: String) {
        self.notes.lock().user = user;
    }

    /// Records an operation of the call, unless the line lists the same operation already. The line lists the
    /// operations that are recorded first, so the caller records the most important ones first.
    pub fn note_asked(&self, asked: Asked) {
        let notes = &mut *self.notes.lock();
        if notes.asked.contains(&asked) {
            return;
        }
        if notes.asked.len() < ASKED_MAX {
            notes.asked.push(asked);
            return;
        }
        match notes.left_out.iter_mut().find(|kind| kind.operation == asked.operation) {
            Some(kind) => kind.add(asked),
            None => notes.left_out.push(LeftOut::new(asked)),
        }
    }

    /// Records the store revision at which the call was executed.
    pub fn note_revision(&self, revision: i64) {
        self.notes.lock().revision = Some(revision);
    }

    /// Returns whether another operation on the stream may be executed. An operation that is logged with
    /// [`CallAccount::log_part`] may be executed only then.
    #[must_use]
    pub fn admits(&self) -> bool {
        self.auditor.admits()
    }

    /// Logs one operation on a stream that remains open.
    pub fn log_part(&self, asked: Asked, outcome: Outcome<'_>) {
        let user = self.notes.lock().user.clone();
        let notes = Notes { user, asked: vec![asked], ..Notes::default() };
        self.log(&notes, outcome);
    }

    /// Logs a call that has ended.
    pub fn end(&self, outcome: Outcome<'_>) {
        let notes = std::mem::take(&mut *self.notes.lock());
        self.log(&notes, outcome);
    }

    fn log(&self, notes: &Notes, outcome: Outcome<'_>) {
        let Notes { user, asked, left_out, revision } = notes;
        let auditor = &self.auditor;
        if !auditor.rules.take(outcome.method, user, (asked, left_out.len())) {
            return;
        }
        auditor.writer.push(encode(&Entry {
            time: SystemTime::now(),
            outcome,
            user,
            certificate: self.certificate.as_deref(),
            remote: self.remote,
            asked,
            left_out,
            revision: *revision,
        }));
    }
}
