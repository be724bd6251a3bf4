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
    /// The runtime on which the transport's tasks run.
    pub(crate) runtime: Handle,
    /// Incremented to reopen all streams.
    pub(crate) reconnects: watch::Sender<u64>,
    pub(crate) known_members: KnownMembers,
    /// Limits the rate of log lines about messages that are not for this member.
    pub(crate) refused_messages: LogThrottle,
}

impl Local {
    /// Returns the interval at which a stream without messages sends link heartbeats.
    pub(crate) fn link_heartbeat_interval(&self) -> Duration {
        self.read_timeout / 3
    }

    /// Returns the metric label for a sender: the id in hex of a current or removed member, or `of_unknown` for all
    /// unknown senders, because the number of their ids is unbounded.
    pub(crate) fn label(&self, from: MemberId, of_unknown: &'static str) -> Cow<'static, str> {
        match self.known_members.of(from) {
            Sender::Member | Sender::Removed => format!("{from:x}").into(),
            Sender::Unknown => of_unknown.into(),
        }
    }

    /// Adds the headers that every request to another member's raft paths, except a probe, carries.
    pub(crate) fn introduce(&self, request: request::Builder) -> request::Builder {
        let request = self.introduction.introduce(request);
        match self.origin.header() {
            Some(origin) => request.header(ORIGIN, origin),
            None => request,
        }
    }

    /// Checks the origin in a member's response. Reports a conflict that requires this member to stop.
    pub(crate) fn check_origin(&self, from: MemberId, headers: &HeaderMap) -> Result<(), Mismatch> {
        let (checked, end) = self.origin.note(from, headers, self.known_members.member_count());
        if let Some(end) = end {
            self.consensus.report_other_origin(end);
        }
        checked
    }

    /// Checks that a message may be passed to the core.
    pub(crate) fn admit(&self, message: &Message) -> Result<(), NotForUs> {
        incoming::admit(self.id, message, self.known_members.of(message.from))
    }

    /// Logs, at a limited rate, a message that is not for this member.
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

    /// Passes messages to the consensus core as soon as there is space for them. `bytes` is their size as received.
    /// Messages that no peer may send are dropped.
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
            // A snapshot message without its database cannot be installed. Complete snapshots arrive through
            // `snapshot_in`.
            !message.kind.is_local() && message.kind != MessageKind::Snapshot
        });
        if !messages.is_empty() {
            let received = self.backlog.admit(messages, bytes).await;
            self.consensus.receive(received);
        }
    }

    /// Removes from a forwarded proposal the entries that members could not apply. In the log, such an entry would stop
    /// every member, and would stop it again after each restart. The requests of the removed entries time out.
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

    /// Passes a snapshot message, whose database is already stored, to the consensus core.
    pub(crate) async fn deliver_snapshot(&self, message: Message) {
        let bytes = message.snapshot.as_ref().map_or(0, |snapshot| snapshot.data.len());
        let received = self.backlog.admit(vec![message], bytes).await;
        self.consensus.receive(received);
    }
}
