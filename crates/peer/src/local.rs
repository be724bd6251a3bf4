//! The data about this member that all parts of the transport share: its identity, its timeouts, and the
//! receiver of its reports.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, request};
use quorate_core::incoming::{self, NotForUs, Sender};
use quorate_raft::{MemberId, Message, MessageKind};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backlog::Backlog;
use crate::consensus::Consensus;
use crate::dialer::Dialer;
use crate::handshake::{Introduction, Mismatch};
use crate::known_members::KnownMembers;
use crate::origin::{ORIGIN, Origin};
use crate::proposal;
use crate::settings::SharedSettings;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::throttle::LogThrottle;

/// The shared data of this member.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) id: MemberId,
    pub(crate) introduction: Introduction,
    pub(crate) settings: SharedSettings,
    pub(crate) origin: Origin,
    pub(crate) dialer: Dialer,
    pub(crate) dial_timeout: Duration,
    pub(crate) read_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) consensus: Arc<dyn Consensus>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) backlog: Backlog,
    /// The runtime of the tasks.
    pub(crate) runtime: Handle,
    /// Incremented to reopen all streams.
    pub(crate) reconnects: watch::Sender<u64>,
    pub(crate) known_members: KnownMembers,
    /// Limits the log lines about messages that are not for this member.
    pub(crate) refused_messages: LogThrottle,
}

impl Local {
    /// Returns how often a stream without messages sends a link heartbeat.
    pub(crate) fn link_heartbeat_interval(&self) -> Duration {
        self.read_timeout / 3
    }

    /// Returns the metric label for a sender: the id in hex of a current or removed member, or `of_strangers`
    /// for all unknown senders, because their ids are unbounded.
    pub(crate) fn label(&self, from: MemberId, of_strangers: &'static str) -> Cow<'static, str> {
        match self.known_members.of(from) {
            Sender::Member | Sender::Removed => format!("{from:x}").into(),
            Sender::Unknown => of_strangers.into(),
        }
    }

    /// Adds the headers of every request to another member.
    pub(crate) fn introduce(&self, request: request::Builder) -> request::Builder {
        let request = self.introduction.introduce(request);
        match self.origin.header() {
            Some(origin) => request.header(ORIGIN, origin),
            None => request,
        }
    }

    /// Checks the origin in a member's answer, and reports a conflict that must end this member.
    pub(crate) fn check_origin(&self, from: MemberId, headers: &HeaderMap) -> Result<(), Mismatch> {
        let (checked, end) = self.origin.note(from, headers, self.known_members.member_count());
        if let Some(end) = end {
            self.consensus.report_other_origin(end);
        }
        checked
    }

    /// Returns whether a message may be passed to the core.
    pub(crate) fn admit(&self, message: &Message) -> Result<(), NotForUs> {
        incoming::admit(self.id, message, self.known_members.of(message.from))
    }

    /// Logs a message that is not for this member, at a limited rate.
    pub(crate) fn log_refused(&self, message: &Message, error: NotForUs) {
        if self.refused_messages.admits().is_some() {
            log::warn!(
                "failed to process Raft message",
                "from" = format!("{:x}", message.from),
                "message" = message.kind.to_string(),
                "error" = error.to_string()
            );
        }
    }

    /// Passes messages of this many received bytes to the consensus core when there is space. Messages that
    /// no peer may send are dropped.
    pub(crate) async fn deliver(&self, mut messages: Vec<Message>, bytes: usize) {
        messages.retain_mut(|message| {
            if let Err(error) = self.admit(message) {
                self.log_refused(message, error);
                return false;
            }
            if message.kind == MessageKind::Propose {
                self.refuse_unfit_entries(message);
                return !message.entries.is_empty();
            }
            // A snapshot message without its database cannot be installed. Snapshots arrive by `snapshot_in`.
            !message.kind.is_local() && message.kind != MessageKind::Snapshot
        });
        if !messages.is_empty() {
            let received = self.backlog.admit(messages, bytes).await;
            self.consensus.receive(received);
        }
    }

    /// Removes entries from a forwarded proposal that could not be applied. In the log, such an entry would
    /// end its members at every start. The proposal of such an entry times out.
    fn refuse_unfit_entries(&self, message: &mut Message) {
        message.entries.retain(|entry| match proposal::check(entry) {
            Ok(()) => true,
            Err(error) => {
                if self.refused_messages.admits().is_some() {
                    log::warn!(
                        "refused a forwarded proposal that no member of this version could apply",
                        "from" = format!("{:x}", message.from),
                        "size-bytes" = entry.data.len(),
                        "error" = error.to_string()
                    );
                }
                false
            }
        });
    }

    /// Passes on a snapshot message whose database is stored.
    pub(crate) async fn deliver_snapshot(&self, message: Message) {
        let bytes = message.snapshot.as_ref().map_or(0, |snapshot| snapshot.data.len());
        let received = self.backlog.admit(vec![message], bytes).await;
        self.consensus.receive(received);
    }
}
