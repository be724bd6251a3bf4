//! Facts that become true when the work of a [`Ready`](crate::Ready) is done, kept until then.

use crate::log_index::LogIndex;
use crate::message::Message;

/// The input of the core when the application calls [`Node::advance`](crate::Node::advance).
#[derive(Debug, Default)]
pub(crate) struct OnAdvance {
    pub(crate) is_awaited: bool,
    /// Messages to this member that attest written data, and the report of the write.
    pub(crate) messages: Vec<Message>,
    pub(crate) applied: Option<Applied>,
}

/// Entries that are applied by then: the index of the last one, and the size of all.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) last: LogIndex,
    pub(crate) encoded_bytes: u64,
    pub(crate) payload_bytes: u64,
}
