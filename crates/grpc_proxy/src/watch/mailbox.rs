//! Messages from watcher sets to a client's stream: responses for the client and notices for the stream's task.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_api::etcdserverpb::ResponseHeader;

use crate::outbox::Outbox;

/// A change in the state of a watcher.
#[derive(Clone, Copy, Debug)]
pub(super) enum WatcherChange {
    /// A member cancelled the watch, and the client was notified. `was_there` is false if the watch was never created.
    Cancelled { was_there: bool },
    /// The events of revision `next` did not fit in the outbox. All earlier events were delivered.
    Behind { next: i64 },
    /// The response to a progress request: all events up to the header's revision were delivered.
    Progressed { header: Option<ResponseHeader> },
}

/// A notice about a watcher. It identifies the watcher by its serial number, because watch ids are reused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    pub(super) serial: u64,
    pub(super) change: WatcherChange,
}

/// The messages for one client stream. A mailbox holds at most one notice of each kind per watcher or progress request.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) outbox: Arc<Outbox>,
    notices: Mutex<VecDeque<Notice>>,
}

impl Mailbox {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self { outbox, notices: Mutex::default() }
    }

    /// Adds a notice.
    pub(super) fn notify(&self, serial: u64, change: WatcherChange) {
        self.notices.lock().push_back(Notice { serial, change });
        self.outbox.wake();
    }

    /// Takes the oldest notice.
    pub(super) fn next(&self) -> Option<Notice> {
        self.notices.lock().pop_front()
    }
}
