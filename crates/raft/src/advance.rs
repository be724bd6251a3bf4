//! Pending effects of a [`Ready`](crate::Ready): the changes that the core makes once the application has done the work
//! in the `Ready`.

use crate::log_index::LogIndex;
use crate::message::Message;

/// Input that the core processes when the application calls
/// [`Node::advance`](crate::Node::advance).
#[derive(Debug, Default)]
pub(crate) struct OnAdvance {
    pub(crate) is_awaited: bool,
    /// Messages in which this member attests to its own writes, and the report of the write.
    pub(crate) messages: Vec<Message>,
    pub(crate) applied: Option<Applied>,
}

/// Entries that the application has applied by the time it calls `advance`: their last index and their total sizes.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) last: LogIndex,
    pub(crate) encoded_bytes: u64,
    pub(crate) payload_bytes: u64,
}
