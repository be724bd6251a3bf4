//! What rooms have for a client's stream: messages for the client, and notices for the stream's own task.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_api::etcdserverpb::ResponseHeader;

use crate::outbox::Outbox;

/// What has become of a watcher.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// A member has cancelled it, and its client knows; one that never was leaves no trace.
    Cancelled { was_there: bool },
    /// There was no room for an event of this revision; everything before it was told.
    Behind { next: i64 },
    /// Everything up to the header's revision was told, as somebody had asked.
    Progressed { header: Option<ResponseHeader> },
}

/// News of a watcher, by its serial number: ids are given out again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    pub(super) serial: u64,
    pub(super) news: News,
}

/// See the module. There is at most one notice of each kind for a watcher, and for a question.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) outbox: Arc<Outbox>,
    notices: Mutex<VecDeque<Notice>>,
}

impl Mailbox {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self { outbox, notices: Mutex::default() }
    }

    /// Leaves a notice.
    pub(super) fn notify(&self, serial: u64, news: News) {
        self.notices.lock().push_back(Notice { serial, news });
        self.outbox.wake();
    }

    /// The oldest notice.
    pub(super) fn next(&self) -> Option<Notice> {
        self.notices.lock().pop_front()
    }
}
