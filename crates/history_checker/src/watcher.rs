//! What a watcher asked for, and all it was told.
//!
//! A watcher that goes on elsewhere after an interruption is a new one, which starts at the revision
//! after the last that it knows: so going on is checked by the same rule as beginning.

use bytes::Bytes;

use crate::Moment;
use crate::operation::{KeyRange, KeyValue};

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key as it was stored, or its name and the revision of its deletion.
    pub kv: KeyValue,
    /// Whether it was deleted.
    pub is_delete: bool,
    /// What was there before, if that was asked for and is known.
    pub previous: Option<KeyValue>,
}

impl Event {
    /// A key was stored.
    #[must_use]
    pub const fn put(kv: KeyValue) -> Self {
        Self { kv, is_delete: false, previous: None }
    }

    /// A key was deleted.
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

    /// The revision that it belongs to.
    #[must_use]
    pub const fn revision(&self) -> i64 {
        self.kv.mod_revision
    }
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchRequest {
    /// Changes of which keys.
    pub keys: KeyRange,
    /// The first revision of interest; 0 for the one after the newest.
    pub start_revision: i64,
    /// Whether events tell what was there before.
    pub prev_kv: bool,
    /// Without what was stored.
    pub no_put: bool,
    /// Without what was deleted.
    pub no_delete: bool,
}

/// One response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The watcher exists from now on.
    Created {
        /// The revision that the member was at.
        revision: i64,
    },
    /// Things changed.
    Events {
        /// What, in order.
        events: Vec<Event>,
        /// Whether more of the last revision may follow in the next response.
        is_fragment: bool,
    },
    /// All up to this revision has been told.
    Progress {
        /// Which.
        revision: i64,
    },
    /// There will be no more, because what comes next has been compacted.
    Compacted {
        /// The oldest revision that can be watched.
        revision: i64,
    },
    /// There will be no more, for another reason.
    Cancelled,
}

/// A watcher's whole life, from its request to its end or that of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watcher {
    /// Who watched, for the reader of a failure only.
    pub client: u64,
    /// Which member was asked, for the reader of a failure only.
    pub member: u64,
    /// When.
    pub called: Moment,
    /// For what.
    pub request: WatchRequest,
    /// What it was told and when, in order.
    pub told: Vec<(Moment, Told)>,
    /// What it must have been told of by the end, if it was waited for: every event up to this revision.
    pub complete_to: Option<i64>,
}
