//! A watcher from its client's point of view: the request, and every received message.
//!
//! A watch that resumes after an interruption is recorded as a new watcher, which starts at the revision after the last
//! revision that the client received. The same check therefore covers new and resumed watches.

use bytes::Bytes;

use crate::Moment;
use crate::operation::{KeyRange, KeyValue};

/// A change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The stored record. For a deletion, it contains only the key and the deletion's revision.
    pub kv: KeyValue,
    /// Whether the key was deleted.
    pub is_delete: bool,
    /// The previous record, if it was requested and is known.
    pub previous: Option<KeyValue>,
}

impl Event {
    /// Creates an event for a stored key.
    #[must_use]
    pub const fn put(kv: KeyValue) -> Self {
        Self { kv, is_delete: false, previous: None }
    }

    /// Creates an event for a deleted key.
    #[must_use]
    pub const fn delete(key: Bytes, revision: i64) -> Self {
        let kv = KeyValue {
            key,
            value: Bytes::new(),
            create_revision: 0,
            mod_revision: revision,
            version: 0,
            lease: 0,
        };
        Self { kv, is_delete: true, previous: None }
    }

    /// Returns the revision of the event.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.kv.mod_revision
    }
}

/// The request of a watcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchRequest {
    /// The keys to watch.
    pub keys: KeyRange,
    /// The first revision to report; 0 for the next revision.
    pub start_revision: i64,
    /// Whether events include the previous record.
    pub prev_kv: bool,
    /// Whether put events are left out.
    pub no_put: bool,
    /// Whether delete events are left out.
    pub no_delete: bool,
}

/// One message to a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchMessage {
    /// The watcher was created.
    Created {
        /// The current revision of the member.
        revision: i64,
    },
    /// A message with events.
    Events {
        /// The events, in order.
        events: Vec<Event>,
        /// Whether more events of the last revision may follow in the next message.
        is_fragment: bool,
    },
    /// A progress notification: the watcher has received every event up to this revision.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The watcher has ended, because the next revision that it needs is compacted.
    Compacted {
        /// The oldest revision from which a watch can start.
        revision: i64,
    },
    /// The watcher has ended for another reason.
    Cancelled,
}

/// A watcher, from its request to its end or to the end of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watcher {
    /// The client, for error messages only.
    pub client: u64,
    /// The member that received the request, for error messages only.
    pub member: u64,
    /// When the client sent the request.
    pub called: Moment,
    /// The request.
    pub request: WatchRequest,
    /// The received messages, in order, each with the moment at which it arrived.
    pub messages: Vec<(Moment, WatchMessage)>,
    /// The revision up to which the recorder waited for the watcher to receive every event; `None` if it did not wait.
    pub complete_to: Option<i64>,
}
