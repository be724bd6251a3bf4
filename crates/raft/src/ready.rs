//! The work a step leaves for the application: what to write, send and apply.

use crate::entry::Entry;
use crate::message::Message;
use crate::state::{HardState, ReadState, Snapshot, SoftState};

/// Outstanding work, in the order in which it is to be done. See
/// [`Node`](crate::Node) for the two ways of doing it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Leader and role, if they have changed. Need not be stored.
    pub soft_state: Option<SoftState>,
    /// Term, vote and commit index, if they have changed: to be written.
    pub hard_state: Option<HardState>,
    /// Answers to read requests. They wait for nothing but their index to be applied.
    pub read_states: Vec<ReadState>,
    /// Entries to append to the stored log, replacing what is there from the first of them on.
    pub entries: Vec<Entry>,
    /// A snapshot to install, before entries are appended after it.
    pub snapshot: Option<Snapshot>,
    /// Entries to apply, after `entries` and `snapshot` are written.
    pub committed_entries: Vec<Entry>,
    /// Messages to send. With synchronous writes, only after everything above is written; with
    /// asynchronous writes at once, the work for the storage threads among them.
    pub messages: Vec<Message>,
    /// Whether the writes must have reached the disk before messages are sent: not if only the
    /// commit index has moved.
    pub must_sync: bool,
}
