//! Watch clients. Each client has its own stream, reads quickly or slowly, cancels its watcher or is disconnected, and
//! resumes where its last stream ended.

use std::task::{Context, Poll, Waker};

use prost::Message as _;
use quorate_api::etcdserverpb::WatchResponse;
use quorate_history_checker::{Operation, Outcome, Request, WatchMessage, WatchRequest, Watcher};
use quorate_state::watch::HeaderFields;

use super::super::{Event, World};
use crate::clock::{MILLI, SECOND};
use crate::member::{ClientRequest, OpId, ROOT};
use crate::translate;

/// A client that opens one watch stream after another.
#[derive(Debug, Default)]
pub(in crate::world) struct WatchClient {
    /// The operation id of the open stream, its host, and the sequence number of the process.
    stream: Option<(OpId, usize, u64)>,
    /// The record of the stream in the history.
    watcher: Watcher,
    /// The start revision of the next stream.
    next: i64,
    /// Whether the client reads slowly.
    is_slow: bool,
    /// Whether the client has asked to cancel the watcher of the open stream.
    has_cancelled: bool,
}

/// The result of reading a stream.
enum StreamRead {
    Empty,
    Messages,
    /// The stream has ended.
    Ended,
}

impl World {
    /// Reads the open stream of a watch client, or opens a new stream.
    pub(in crate::world) fn watch(&mut self, at: usize) {
        if self.watch_clients[at].stream.is_none() {
            self.open_stream(at);
        }
        let read = self.read_stream(at);
        if let Some((_, host, life)) = self.watch_clients[at].stream {
            // A watcher that has room in its queue again, or that has an old start revision, receives its events from
            // history.
            let soon = self.now + 1 + self.rng.below(5 * MILLI);
            self.queue.push(soon, Event::CatchUp { host, life });
        }
        let pause = match (read, self.watch_clients[at].is_slow && !self.faults_ended()) {
            (StreamRead::Ended, _) => self.rng.below(500 * MILLI),
            (_, true) => self.rng.below(2 * SECOND),
            (StreamRead::Messages, false) => self.rng.below(2 * MILLI),
            (StreamRead::Empty, false) => self.rng.below(30 * MILLI),
        };
        self.queue.push(self.now + 1 + pause, Event::Watcher(at));
    }

    fn open_stream(&mut self, at: usize) {
        let running: Vec<usize> =
            (0..self.hosts.len()).filter(|at| self.hosts[*at].process.is_some()).collect();
        if running.is_empty() {
            return;
        }
        let host = running[self.rng.position(running.len())];
        let last = &self.watch_clients[at];
        // The client either resumes its last watch or starts another watch.
        let resumes = last.next > 0 && !self.one_in(4);
        let last = &self.watch_clients[at];
        let request = match resumes {
            true => WatchRequest { start_revision: last.next, ..last.watcher.request.clone() },
            false => {
                let current = self.judge.revision();
                let start_revision = match self.rng.below(5) {
                    0 => 0,
                    1 => 1,
                    2 => current + 1 + i64::try_from(self.rng.below(5)).unwrap_or(0),
                    // Start at the oldest revision of the remaining history.
                    3 => self.last_compaction().unwrap_or(1),
                    _ => (current - i64::try_from(self.rng.below(30)).unwrap_or(0)).max(1),
                };
                WatchRequest {
                    keys: self.draw_keys(),
                    start_revision,
                    prev_kv: self.one_in(2),
                    no_put: self.one_in(6),
                    no_delete: self.one_in(6),
                }
            }
        };
        let create = translate::watch(&request, self.one_in(2), self.one_in(2));
        let stream = self.new_number();
        let called = self.moment();
        let is_slow = self.one_in(3);
        let watch_clients = &mut self.watch_clients[at];
        watch_clients.watcher = Watcher {
            client: 100 + at as u64,
            member: host as u64,
            called,
            request,
            ..Watcher::default()
        };
        watch_clients.is_slow = is_slow;
        watch_clients.has_cancelled = false;
        let life = self.hosts[host].life;
        watch_clients.stream = Some((stream, host, life));
        if let Some(process) = self.hosts[host].process.as_mut() {
            process.handle_request(stream, ROOT, ClientRequest::Watch(create), self.now);
        }
        self.after_step(host, Ok(()));
    }

    /// Returns the revision of the last compaction that was acknowledged to a client.
    fn last_compaction(&self) -> Option<i64> {
        self.judge.history.operations.iter().rev().find_map(|operation| match operation {
            Operation {
                request: Request::Compact { revision },
                outcome: Outcome::Succeeded { .. },
                ..
            } => Some(*revision),
            _ => None,
        })
    }

    /// Reads the available messages.
    fn read_stream(&mut self, at: usize) -> StreamRead {
        let Some((id, host, life)) = self.watch_clients[at].stream else {
            return StreamRead::Ended;
        };
        if self.hosts[host].paused_until > self.now {
            return StreamRead::Empty;
        }
        let is_cancelling = self.one_in(400) && !self.faults_ended();
        let (requests_progress, is_progress_due) = (self.one_in(40), self.one_in(40));
        let messages_max = if self.watch_clients[at].is_slow { 1 } else { 1 + self.rng.below(4) };
        let now = self.moment();
        let is_same_process = self.hosts[host].life == life;
        let process = self.hosts[host].process.as_mut().filter(|_| is_same_process);
        let Some(stream) = process.and_then(|process| process.streams.get_mut(&id)) else {
            self.end_stream(at);
            return StreamRead::Ended;
        };
        if is_progress_due {
            stream.tick_progress();
        }
        if requests_progress {
            stream.request_progress();
        }
        if is_cancelling {
            stream.cancel(0);
            self.watch_clients[at].has_cancelled = true;
        }
        let context = Context::from_waker(Waker::noop());
        let mut messages = Vec::new();
        let mut fault = None;
        while (messages.len() as u64) < messages_max {
            match stream.poll_next(&context, &HeaderFields::default()) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => {
                    fault = Some(error.to_string());
                    break;
                }
                Poll::Ready(Ok(frame)) => {
                    let mut bytes = Vec::new();
                    frame.encode(&mut bytes);
                    let response = WatchResponse::decode(&bytes[..]);
                    messages.push(translate::watch_message(
                        &response.expect("every frame is an encoded response"),
                    ));
                }
            }
        }
        if let Some(fault) = fault {
            self.judge.fail(|| format!("h{host} cannot read history: {fault}"));
        }
        if messages.is_empty() {
            return StreamRead::Empty;
        }
        let has_cancelled = self.watch_clients[at].has_cancelled;
        let mut is_over = false;
        for message in messages {
            if is_over && has_cancelled && matches!(message, WatchMessage::Cancelled) {
                // A compaction ended the watcher before the member read the client's request to cancel it. The member
                // still replies to that request, as etcd does.
                continue;
            }
            is_over |= self.note_message(at, &message);
            self.watch_clients[at].watcher.messages.push((now, message));
        }
        if is_over {
            self.end_stream(at);
            return StreamRead::Ended;
        }
        StreamRead::Messages
    }

    /// Processes a message to a watcher. Returns whether it is the last message.
    fn note_message(&mut self, at: usize, message: &WatchMessage) -> bool {
        self.trace.add(at as u64);
        let watch_clients = &mut self.watch_clients[at];
        match message {
            WatchMessage::Created { revision } => {
                if watch_clients.next == 0 {
                    let start = watch_clients.watcher.request.start_revision;
                    watch_clients.next = if start > 0 { start } else { revision + 1 };
                }
                false
            }
            WatchMessage::Events { events, is_fragment } => {
                if *is_fragment {
                    self.rare_states.note("a watcher's events are split into fragments");
                } else if let Some(last) = events.last() {
                    watch_clients.next = last.revision() + 1;
                }
                false
            }
            WatchMessage::Progress { revision } => {
                watch_clients.next = watch_clients.next.max(revision + 1);
                self.rare_states.note("a watcher receives a progress notification");
                false
            }
            WatchMessage::Compacted { revision } => {
                watch_clients.next = *revision;
                self.rare_states.note("a watcher is cancelled by a compaction");
                true
            }
            WatchMessage::Cancelled => true,
        }
    }

    /// Records an ended stream in the history.
    fn end_stream(&mut self, at: usize) {
        let Some((id, host, life)) = self.watch_clients[at].stream.take() else { return };
        if self.hosts[host].life == life
            && let Some(process) = self.hosts[host].process.as_mut()
        {
            process.give_up(id);
        }
        let watcher = self.watch_clients[at].watcher.clone();
        self.judge.history.watchers.push(watcher);
    }

    /// Ends the streams of a process that has ended or whose connections were reset.
    pub(in crate::world) fn end_watchers(&mut self, host: usize, life: u64) {
        for at in 0..self.watch_clients.len() {
            let stream = self.watch_clients[at].stream;
            if stream.is_some_and(|(_, its_host, its_life)| (its_host, its_life) == (host, life)) {
                self.end_stream(at);
            }
        }
    }

    /// Reads all streams that are still open at the end of the run until no events remain. The events of each stream
    /// must then be complete.
    pub(in crate::world) fn finish_watchers(&mut self) {
        let revision = self.judge.revision();
        for at in 0..self.watch_clients.len() {
            while let Some((_, host, _)) = self.watch_clients[at].stream {
                let process = self.hosts[host].process.as_ref();
                let hub = process.map(|process| process.published_state().hub.clone());
                let has_more = hub.is_some_and(|hub| hub.catch_up().unwrap_or(false));
                // The stream is read after every catch-up step, so that the last events are not missed.
                let read = self.read_stream(at);
                if matches!(read, StreamRead::Empty) && !has_more {
                    self.watch_clients[at].watcher.complete_to = Some(revision);
                    self.end_stream(at);
                }
            }
        }
    }

    /// Sends events from the history to a member's watchers that are behind.
    pub(in crate::world) fn catch_up(&mut self, host: usize, life: u64) {
        let is_paused = self.hosts[host].paused_until > self.now;
        let is_same_process = self.hosts[host].life == life && !is_paused;
        let Some(process) = self.hosts[host].process.as_ref().filter(|_| is_same_process) else {
            return;
        };
        let hub = process.published_state().hub.clone();
        let context = Context::from_waker(Waker::noop());
        if hub.poll_behind(&context).is_pending() {
            return;
        }
        self.rare_states.note("a watcher is behind");
        match hub.catch_up() {
            Ok(true) => {
                let at = self.now + 1 + self.rng.below(MILLI);
                self.queue.push(at, Event::CatchUp { host, life });
            }
            Ok(false) => {}
            Err(fault) => {
                self.judge.fail(|| format!("h{host} cannot read history: {fault}"));
            }
        }
    }
}
