//! The audit log: who has asked for what, and what came of it; a line of JSON for each call that the rules take.
//!
//! A call that is taken account of has a [`CallAccount`], in which the edge notes what it finds out. When the call ends,
//! the [rules](Rules) decide whether it is told, and a line waits for the thread that [writes](writer) it. Secrets are not
//! left out here: they are never noted. Values, passwords and tokens have no place in [`Asked`].
//!
//! # Cost
//!
//! Without an audit log there is no [`Auditor`], which is one look for each call.
//!
//! # Not here
//!
//! What a request asks for (`edge::calls::asked`); files that are set aside (`log::rotate`).

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
use self::line::{Entry, encode};
pub use self::rules::{MethodName, RuleError, Rules};
pub use self::writer::OpenError;
use self::writer::Writer;
use crate::log::Output;
use crate::metrics::AuditMetrics;

/// Things asked for that a line lists. A transaction may have thousands.
const ASKED_MAX: usize = 32;

/// What happens to a call while the lines before it wait for a slow disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// It is carried out, and its line is dropped if there is no room for it.
    #[default]
    Drop,
    /// It is refused from the moment on when half of the room is taken.
    Refuse,
}

/// What an audit log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where lines go.
    pub output: Output,
    /// Which calls are told.
    pub rules: Rules,
    /// What happens where lines cannot be written as fast as they come.
    pub overflow: Overflow,
}

/// Takes account of calls; see the module.
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
    /// It cannot be written to.
    pub fn open(settings: Settings, metrics: &AuditMetrics) -> Result<Self, OpenError> {
        let Settings { output, rules, overflow } = settings;
        let writer = Writer::open(output, metrics.clone())?;
        Ok(Self { rules, overflow, writer, metrics: metrics.clone() })
    }

    /// Whether a call that comes now may be carried out.
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

    /// Takes account of a call, from this address, by who has shown this certificate.
    #[must_use]
    pub fn begin(
        self: &Arc<Self>,
        remote: Option<SocketAddr>,
        certificate: Option<Arc<str>>,
    ) -> CallAccount {
        let auditor = Arc::clone(self);
        CallAccount { auditor, remote, certificate, notes: Mutex::default() }
    }

    /// Waits until all lines are written, or until time is up.
    pub fn finish(&self) {
        self.writer.finish();
    }
}

/// What is noted of one call.
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
    left_out: usize,
    revision: Option<i64>,
}

/// How a call, or something asked for on a stream, has ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// `/package.Service/Method`.
    pub method: &'a str,
    /// gRPC's word for it.
    pub code: &'static str,
    /// Why it was refused; empty where nothing is to be told.
    pub error: &'a str,
    /// How long it took.
    pub took: Option<Duration>,
}

impl CallAccount {
    /// Who asks is this user, as far as he is known.
    pub fn note_user(&self, user: String) {
        self.notes.lock().user = user;
    }

    /// The call asks for this.
    pub fn note_asked(&self, asked: Asked) {
        let notes = &mut *self.notes.lock();
        if notes.asked.len() < ASKED_MAX {
            notes.asked.push(asked);
        } else {
            notes.left_out += 1;
        }
    }

    /// It was carried out at this revision of the store.
    pub fn note_revision(&self, revision: i64) {
        self.notes.lock().revision = Some(revision);
    }

    /// Tells of a part of a call that goes on.
    pub fn tell_part(&self, asked: Asked, outcome: Outcome<'_>) {
        let user = self.notes.lock().user.clone();
        let notes = Notes { user, asked: vec![asked], left_out: 0, revision: None };
        self.tell(&notes, outcome);
    }

    /// Tells of the call, which has ended.
    pub fn end(&self, outcome: Outcome<'_>) {
        let notes = std::mem::take(&mut *self.notes.lock());
        self.tell(&notes, outcome);
    }

    fn tell(&self, notes: &Notes, outcome: Outcome<'_>) {
        let Notes { user, asked, left_out, revision } = notes;
        let auditor = &self.auditor;
        if !auditor.rules.take(outcome.method, user, (asked, *left_out)) {
            return;
        }
        auditor.writer.push(encode(&Entry {
            time: SystemTime::now(),
            outcome,
            user,
            certificate: self.certificate.as_deref(),
            remote: self.remote,
            asked,
            left_out: *left_out,
            revision: *revision,
        }));
    }
}
