//! Another member of the cluster: chooses the stream or request for each message, and runs the tasks that keep the
//! connections open.
//!
//! Appends use the append stream, or the message stream if the peer has not opened the append stream. All other
//! messages use the message stream. Without an open stream, messages go through the pipeline. A member that is not in
//! the applied membership has only a pipeline: this member responds to it but opens no streams to it.

use std::sync::Arc;

use parking_lot::Mutex;
use quorate_raft::{MemberId, Message, MessageKind};
use tokio::task::AbortHandle;

use crate::contact::Contact;
use crate::frame::StreamKind;
use crate::incoming::read_stream;
use crate::local::Local;
use crate::outgoing::{Ended, Observer, Outgoing, Pushed, StreamBody, Wake};
use crate::pipeline::Pipeline;
use crate::probe::{self, Pace};
use crate::status::Attempt;
use quorate_net::listen::DirectWriter;
use quorate_telemetry::log;

/// Whether another member is in the applied membership. The names are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerKind {
    /// A member of the cluster according to the membership that this member has applied.
    Member,
    /// A sender that claims to be a member but may not be in this member's log yet.
    Remote,
}

/// Another member and the connections to it.
#[derive(Debug)]
pub(crate) struct Peer {
    local: Arc<Local>,
    pub(crate) contact: Arc<Contact>,
    append: Arc<Outgoing>,
    message: Arc<Outgoing>,
    pipeline: Pipeline,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Peer {
    /// Starts the tasks that communicate with the member.
    pub(crate) fn start(
        local: &Arc<Local>,
        id: MemberId,
        peer_urls: &[String],
        kind: PeerKind,
    ) -> Arc<Self> {
        let contact = Arc::new(Contact::new(local, id, peer_urls));
        let outgoing = || Arc::new(Outgoing::new(&contact.allowance, local.write_timeout));
        let (append, message) = (outgoing(), outgoing());
        let (pipeline, workers) = Pipeline::new(local, &contact);
        let mut tasks: Vec<AbortHandle> =
            workers.into_iter().map(|worker| local.runtime.spawn(worker).abort_handle()).collect();
        let mut spawn = |task: AbortHandle| tasks.push(task);
        if kind == PeerKind::Member {
            for stream in StreamKind::ALL {
                let reader = read_stream(Arc::clone(local), Arc::clone(&contact), stream);
                spawn(local.runtime.spawn(reader).abort_handle());
            }
            let pace = Pace::new(local.read_timeout);
            let prober = probe::keep_probing(Arc::clone(local), Arc::clone(&contact), pace);
            spawn(local.runtime.spawn(prober).abort_handle());
        }
        let (local, tasks) = (Arc::clone(local), Mutex::new(tasks));
        Arc::new(Self { local, contact, append, message, pipeline, tasks })
    }

    /// Ends the tasks and the streams.
    pub(crate) fn stop(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.append.close();
        self.message.close();
        self.contact.status.end();
    }

    /// Returns whether messages wait for the streams that the peer has opened.
    pub(crate) fn has_unsent(&self) -> bool {
        self.append.has_unsent() || self.message.has_unsent()
    }

    /// Ends the streams that the peer has opened. The peer will reopen them.
    pub(crate) fn end_streams(&self) {
        self.append.detach();
        self.message.detach();
    }

    /// Returns whether the peer has opened both streams.
    #[cfg(test)]
    pub(crate) fn has_streams(&self) -> bool {
        self.append.is_attached() && self.message.is_attached()
    }

    fn outgoing(&self, kind: StreamKind) -> &Arc<Outgoing> {
        match kind {
            StreamKind::Append => &self.append,
            StreamKind::Message => &self.message,
        }
    }

    /// Sends a message over the best available connection. Returns whether the message was accepted. Adds to `woken`
    /// the streams that must be flushed after the whole batch is queued.
    pub(crate) fn send(self: &Arc<Self>, message: Message, woken: &mut Vec<Woken>) -> bool {
        let kind = message.kind;
        // Once a lost append is reported, consensus sends the peer no more appends, so no append would reveal a stuck
        // append stream. It is therefore detected here, when a heartbeat is sent.
        if kind == MessageKind::Heartbeat && self.append.give_up_if_stuck() {
            self.note_stuck(StreamKind::Append);
        }
        let pushed = match kind {
            MessageKind::Append => self.push(StreamKind::Append, message),
            _ => (StreamKind::Message, Pushed::Detached(message)),
        };
        let pushed = match pushed {
            (_, Pushed::Detached(message)) => self.push(StreamKind::Message, message),
            decided => decided,
        };
        let (stream, pushed) = pushed;
        let is_taken = match pushed {
            Pushed::Taken(wake) => {
                woken.extend(wake.map(|wake| Woken { peer: Arc::clone(self), stream, wake }));
                true
            }
            Pushed::Detached(message) => self.pipeline.push(message),
            Pushed::Full | Pushed::Stuck => false,
        };
        if !is_taken {
            self.count_dropped(kind);
        }
        is_taken
    }

    fn push(&self, stream: StreamKind, message: Message) -> (StreamKind, Pushed) {
        let pushed = self.outgoing(stream).push(message);
        if let Pushed::Stuck = pushed {
            self.note_stuck(stream);
        }
        (stream, pushed)
    }

    fn note_stuck(&self, stream: StreamKind) {
        let attempt = Attempt { source: stream.name(), action: "write" };
        self.contact.status.deactivate(attempt, &"i/o timeout");
        log_lost(&self.local, &self.contact, stream);
    }

    fn count_sent(&self, bytes: usize) {
        let network = &self.local.metrics.network;
        network.peer_sent_bytes.with(&[&self.contact.name]).add(bytes as u64);
    }

    fn count_dropped(&self, kind: MessageKind) {
        let contact = &self.contact;
        self.local.metrics.network.peer_sent_failures.with(&[&contact.name]).inc();
        if let Some(left_out) = contact.notices.dropped.admits() {
            log::warn!(
                "dropped internal Raft message since sending buffer is full",
                "message-type" = kind.name(),
                "local-member-id" = self.local.introduction.member,
                "remote-peer-id" = contact.name,
                "remote-peer-active" = contact.status.is_active(),
                "dropped-before" = left_out
            );
        }
    }

    /// Returns the body that answers the peer's request for this stream. It replaces any earlier body. `writer` writes
    /// to the request's connection.
    pub(crate) fn open_stream(
        &self,
        kind: StreamKind,
        writer: Option<DirectWriter>,
    ) -> StreamBody<StreamObserver> {
        let outgoing = self.outgoing(kind);
        let member = &self.local.introduction.member;
        let observer = StreamObserver {
            local: Arc::clone(&self.local),
            contact: Arc::clone(&self.contact),
            kind,
        };
        let interval = self.local.link_heartbeat_interval();
        let (body, replaced) = StreamBody::attach(kind, outgoing, writer, interval, observer);
        if replaced.was_attached {
            body.observer().report_losses(replaced);
            log::warn!(
                "closed TCP streaming connection with remote peer",
                "stream-writer-type" = kind.name(),
                "local-member-id" = member,
                "remote-peer-id" = self.contact.name
            );
        }
        self.contact.status.activate();
        log::info!(
            "established TCP streaming connection with remote peer",
            "stream-writer-type" = kind.name(),
            "local-member-id" = member,
            "remote-peer-id" = self.contact.name
        );
        body
    }
}

/// A stream to which messages were added while its connection was waiting for messages.
#[derive(Debug)]
pub(crate) struct Woken {
    peer: Arc<Peer>,
    stream: StreamKind,
    wake: Wake,
}

impl Woken {
    /// Sends the queued messages on this thread, or wakes the connection's task, which sends them.
    pub(crate) fn flush(self) {
        let Self { peer, stream, wake } = self;
        let bytes = peer.outgoing(stream).flush(wake);
        if bytes > 0 {
            peer.count_sent(bytes);
        }
    }
}

/// Reports the progress and the end of a stream that the peer has opened.
#[derive(Debug)]
pub(crate) struct StreamObserver {
    local: Arc<Local>,
    contact: Arc<Contact>,
    kind: StreamKind,
}

impl StreamObserver {
    fn report_losses(&self, ended: Ended) {
        if ended.lost_any {
            self.local.consensus.report_unreachable(self.contact.id);
        }
    }
}

impl Observer for StreamObserver {
    fn wrote(&self, bytes: usize) {
        self.local.metrics.network.peer_sent_bytes.with(&[&self.contact.name]).add(bytes as u64);
    }

    fn lost(&self, ended: Ended) {
        let attempt = Attempt { source: self.kind.name(), action: "write" };
        self.contact.status.deactivate(attempt, &"the connection was closed");
        log_lost(&self.local, &self.contact, self.kind);
        self.report_losses(ended);
        if ended.lost_any {
            self.local.metrics.network.peer_sent_failures.with(&[&self.contact.name]).inc();
        }
    }
}

fn log_lost(local: &Local, contact: &Contact, stream: StreamKind) {
    log::warn!(
        "lost TCP streaming connection with remote peer",
        "stream-writer-type" = stream.name(),
        "local-member-id" = local.introduction.member,
        "remote-peer-id" = contact.name
    );
}
