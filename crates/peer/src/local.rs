//! What every part of the transport knows of its own member: who it is, how patient, and whom to tell.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, request};
use quorate_core::incoming::{self, NotForUs, Sender};
use quorate_raft::{MemberId, Message, MessageKind};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::acquaintance::Acquaintances;
use crate::backlog::Backlog;
use crate::consensus::Consensus;
use crate::dialer::Dialer;
use crate::handshake::{Introduction, Mismatch};
use crate::origin::{ORIGIN, Origin};
use crate::proposal;
use crate::settings::SharedSettings;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::throttle::LogThrottle;

/// See the module. Shared by all tasks.
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
    /// Where tasks run.
    pub(crate) runtime: Handle,
    /// Counts the calls to redial everything.
    pub(crate) reconnects: watch::Sender<u64>,
    pub(crate) acquaintances: Acquaintances,
    /// Bounds the lines about messages that are not for this member.
    pub(crate) refused_messages: LogThrottle,
}

impl Local {
    /// How often a stream that has nothing to say shows that it lives.
    pub(crate) fn link_heartbeat_interval(&self) -> Duration {
        self.read_timeout / 3
    }

    /// What comes from there in series: the id in hex of a member, or of one that was removed. There is no end to what
    /// strangers may call themselves, so all of them share one name.
    pub(crate) fn label(&self, from: MemberId, of_strangers: &'static str) -> Cow<'static, str> {
        match self.acquaintances.of(from) {
            Sender::Member | Sender::Removed => format!("{from:x}").into(),
            Sender::Unknown => of_strangers.into(),
        }
    }

    /// Adds what every request to another member carries.
    pub(crate) fn introduce(&self, request: request::Builder) -> request::Builder {
        let request = self.introduction.introduce(request);
        match self.origin.header() {
            Some(origin) => request.header(ORIGIN, origin),
            None => request,
        }
    }

    /// Checks the origin that a member answers with, and reports where this member has to end for it.
    pub(crate) fn check_origin(&self, from: MemberId, headers: &HeaderMap) -> Result<(), Mismatch> {
        let (checked, end) = self.origin.note(from, headers, self.acquaintances.member_count());
        if let Some(end) = end {
            self.consensus.report_other_origin(end);
        }
        checked
    }

    /// Whether the message may be handed on at all.
    pub(crate) fn admit(&self, message: &Message) -> Result<(), NotForUs> {
        incoming::admit(self.id, message, self.acquaintances.of(message.from))
    }

    /// Writes a line about a message that is not for the core, now and then.
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

    /// Hands messages to the consensus core that came in so many bytes, once there is room. Those that no
    /// peer may send are left out.
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
            // A snapshot without its database cannot be installed; the two come by a way of their own.
            !message.kind.is_local() && message.kind != MessageKind::Snapshot
        });
        if !messages.is_empty() {
            let received = self.backlog.admit(messages, bytes).await;
            self.consensus.receive(received);
        }
    }

    /// Leaves out of a forwarded proposal what could not be carried out: once in the log it would end its
    /// members, and again at each start. Its proposer waits in vain.
    fn refuse_unfit_entries(&self, message: &mut Message) {
        message.entries.retain(|entry| match proposal::check(entry) {
            Ok(()) => true,
            Err(error) => {
                if self.refused_messages.admits().is_some() {
                    log::warn!(
                        "refused a forwarded proposal, which no member of this version could carry out",
                        "from" = format!("{:x}", message.from),
                        "size-bytes" = entry.data.len(),
                        "error" = error.to_string()
                    );
                }
                false
            }
        });
    }

    /// Hands on a snapshot whose database is in its place.
    pub(crate) async fn deliver_snapshot(&self, message: Message) {
        let bytes = message.snapshot.as_ref().map_or(0, |snapshot| snapshot.data.len());
        let received = self.backlog.admit(vec![message], bytes).await;
        self.consensus.receive(received);
    }
}
