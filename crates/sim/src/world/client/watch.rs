//! Watchers: each has its own stream, reads quickly or slowly, is cancelled or disconnected, and resumes where it
//! ended.

use std::task::{Context, Poll, Waker};

use prost::Message as _;
use quorate_api::etcdserverpb::WatchResponse;
use quorate_history_checker::{Operation, Outcome, Request, WatchMessage, WatchRequest, Watcher};
use quorate_state::watch::HeaderFields;

use super::super::{Event, World};
use crate::clock::{MILLI, SECOND};
use crate::member::{Ask, OpId, ROOT};
use crate::translate;

/// Somebody who watches, again and again.
#[derive(Debug, Default)]
pub(in crate::world) struct Watching {
    /// The stream that there is, and whose process it is of.
    stream: Option<(OpId, usize, u64)>,
    /// What is written down of it.
    watcher: Watcher,
    /// Where to go on.
    next: i64,
    /// Whether it reads slowly.
    is_slow: bool,
}

/// What a stream has had to say.
enum Heard {
    Nothing,
    Something,
    /// It has ended.
    End,
}

impl World {
    /// A watcher looks at its stream, or opens one.
    pub(in crate::world) fn watch(&mut self, at: usize) {
        if self.watching[at].stream.is_none() {
            self.open_stream(at);
        }
        let heard = self.read_stream(at);
        if let Some((_, host, life)) = self.watching[at].stream {
            // Whoever has room again, or begins in the past, is served from history.
            let soon = self.now + 1 + self.draw.below(5 * MILLI);
            self.queue.put(soon, Event::CatchUp { host, life });
        }
        let pause = match (heard, self.watching[at].is_slow && !self.is_calm()) {
            (Heard::End, _) => self.draw.below(500 * MILLI),
            (_, true) => self.draw.below(2 * SECOND),
            (Heard::Something, false) => self.draw.below(2 * MILLI),
            (Heard::Nothing, false) => self.draw.below(30 * MILLI),
        };
        self.queue.put(self.now + 1 + pause, Event::Watcher(at));
    }

    fn open_stream(&mut self, at: usize) {
        let up: Vec<usize> =
            (0..self.hosts.len()).filter(|at| self.hosts[*at].process.is_some()).collect();
        if up.is_empty() {
            return;
        }
        let host = up[self.draw.position(up.len())];
        let last = &self.watching[at];
        // It goes on where it was, or begins with something else.
        let goes_on = last.next > 0 && !self.one_in(4);
        let last = &self.watching[at];
        let request = match goes_on {
            true => WatchRequest { start_revision: last.next, ..last.watcher.request.clone() },
            false => {
                let current = self.judge.revision();
                let start_revision = match self.draw.below(5) {
                    0 => 0,
                    1 => 1,
                    2 => current + 1 + i64::try_from(self.draw.below(5)).unwrap_or(0),
                    // Where the history that is left begins.
                    3 => self.last_compaction().unwrap_or(1),
                    _ => (current - i64::try_from(self.draw.below(30)).unwrap_or(0)).max(1),
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
        let stream = self.number();
        let called = self.moment();
        let is_slow = self.one_in(3);
        let watching = &mut self.watching[at];
        watching.watcher = Watcher {
            client: 100 + at as u64,
            member: host as u64,
            called,
            request,
            ..Watcher::default()
        };
        watching.is_slow = is_slow;
        let life = self.hosts[host].life;
        watching.stream = Some((stream, host, life));
        if let Some(process) = self.hosts[host].process.as_mut() {
            process.ask(stream, ROOT, Ask::Watch(create), self.now);
        }
        self.after_step(host, Ok(()));
    }

    /// The newest revision that a client was told is compacted.
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

    /// Takes what there is.
    fn read_stream(&mut self, at: usize) -> Heard {
        let Some((id, host, life)) = self.watching[at].stream else { return Heard::End };
        if self.hosts[host].paused_until > self.now {
            return Heard::Nothing;
        }
        let cancels = self.one_in(400) && !self.is_calm();
        let (asks, ticks) = (self.one_in(40), self.one_in(40));
        let most = if self.watching[at].is_slow { 1 } else { 1 + self.draw.below(4) };
        let now = self.moment();
        let lives = self.hosts[host].life == life;
        let process = self.hosts[host].process.as_mut().filter(|_| lives);
        let Some(stream) = process.and_then(|process| process.streams.get_mut(&id)) else {
            self.end_stream(at);
            return Heard::End;
        };
        if ticks {
            stream.tick_progress();
        }
        if asks {
            stream.request_progress();
        }
        if cancels {
            stream.cancel(0);
        }
        let context = Context::from_waker(Waker::noop());
        let mut heard = Vec::new();
        let mut fault = None;
        while (heard.len() as u64) < most {
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
                    heard.push(translate::watch_message(&response.expect("a frame is a response")));
                }
            }
        }
        if let Some(fault) = fault {
            self.judge.object(|| format!("h{host} cannot read history: {fault}"));
        }
        if heard.is_empty() {
            return Heard::Nothing;
        }
        let mut is_over = false;
        for message in heard {
            is_over |= self.note_message(at, &message);
            self.watching[at].watcher.messages.push((now, message));
            if is_over && cancels {
                // The answer to a cancellation may come behind the word that a compaction has ended it.
                break;
            }
        }
        if is_over {
            self.end_stream(at);
            return Heard::End;
        }
        Heard::Something
    }

    /// Looks at what a watcher is told; says whether that is the last.
    fn note_message(&mut self, at: usize, message: &WatchMessage) -> bool {
        self.trace.count(at as u64);
        let watching = &mut self.watching[at];
        match message {
            WatchMessage::Created { revision } => {
                if watching.next == 0 {
                    let start = watching.watcher.request.start_revision;
                    watching.next = if start > 0 { start } else { revision + 1 };
                }
                false
            }
            WatchMessage::Events { events, is_fragment } => {
                if *is_fragment {
                    self.seen.note("a watcher's events come in fragments");
                } else if let Some(last) = events.last() {
                    watching.next = last.revision() + 1;
                }
                false
            }
            WatchMessage::Progress { revision } => {
                watching.next = watching.next.max(revision + 1);
                self.seen.note("a watcher is told of progress");
                false
            }
            WatchMessage::Compacted { revision } => {
                watching.next = *revision;
                self.seen.note("a watcher is cancelled by a compaction");
                true
            }
            WatchMessage::Cancelled => true,
        }
    }

    /// A stream is over: what was seen of it is written down.
    fn end_stream(&mut self, at: usize) {
        let Some((id, host, life)) = self.watching[at].stream.take() else { return };
        if self.hosts[host].life == life
            && let Some(process) = self.hosts[host].process.as_mut()
        {
            process.give_up(id);
        }
        let watcher = self.watching[at].watcher.clone();
        self.judge.history.watchers.push(watcher);
    }

    /// The streams of a process that has ended break.
    pub(in crate::world) fn break_watchers(&mut self, host: usize, life: u64) {
        for at in 0..self.watching.len() {
            let stream = self.watching[at].stream;
            if stream.is_some_and(|(_, its, of)| (its, of) == (host, life)) {
                self.end_stream(at);
            }
        }
    }

    /// At the end: whoever still watches is told everything there is, and must have been told of all that happened.
    pub(in crate::world) fn finish_watchers(&mut self) {
        let revision = self.judge.revision();
        for at in 0..self.watching.len() {
            while let Some((_, host, _)) = self.watching[at].stream {
                let process = self.hosts[host].process.as_ref();
                let hub = process.map(|process| process.readers().hub.clone());
                let goes_on = hub.is_some_and(|hub| hub.catch_up().unwrap_or(false));
                // Read afterwards: what was told last is not left behind.
                let heard = self.read_stream(at);
                if matches!(heard, Heard::Nothing) && !goes_on {
                    self.watching[at].watcher.complete_to = Some(revision);
                    self.end_stream(at);
                }
            }
        }
    }

    /// A member serves watchers that are behind.
    pub(in crate::world) fn catch_up(&mut self, host: usize, life: u64) {
        let is_paused = self.hosts[host].paused_until > self.now;
        let lives = self.hosts[host].life == life && !is_paused;
        let Some(process) = self.hosts[host].process.as_ref().filter(|_| lives) else { return };
        let hub = process.readers().hub.clone();
        let context = Context::from_waker(Waker::noop());
        if hub.poll_behind(&context).is_pending() {
            return;
        }
        self.seen.note("a watcher is behind");
        match hub.catch_up() {
            Ok(true) => {
                let at = self.now + 1 + self.draw.below(MILLI);
                self.queue.put(at, Event::CatchUp { host, life });
            }
            Ok(false) => {}
            Err(fault) => {
                self.judge.object(|| format!("h{host} cannot read history: {fault}"));
            }
        }
    }
}
