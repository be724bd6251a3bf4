//! What becomes true once the work of a [`Ready`](crate::Ready) is done, kept until the application says so.

use crate::log_index::LogIndex;
use crate::message::Message;

/// What [`Node::advance`](crate::Node::advance) makes known to the core.
#[derive(Debug, Default)]
pub(crate) struct OnAdvance {
    pub(crate) is_awaited: bool,
    /// Messages to this member, which attest what has been written, and the report of the write.
    pub(crate) messages: Vec<Message>,
    pub(crate) applied: Option<Applied>,
}

/// Entries that will have been applied: the last one's index, and the size of all.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) last: LogIndex,
    pub(crate) encoded_bytes: u64,
    pub(crate) payload_bytes: u64,
}
