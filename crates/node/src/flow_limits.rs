//! Limits of the messages that replicate the log.

use crate::limits;

/// The limits of appends, in flight and at the follower. Members use the default; a simulation uses small limits, so
/// that it reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// See [`limits::APPEND_BYTES_MAX`].
    pub append_bytes: u64,
    /// See [`limits::INFLIGHT_APPENDS_MAX`].
    pub inflight_appends: usize,
    /// See [`limits::INFLIGHT_BYTES_MAX`].
    pub inflight_bytes: u64,
    /// See [`limits::UNAPPLIED_BYTES_MAX`].
    pub unapplied_bytes: u64,
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self {
            append_bytes: limits::APPEND_BYTES_MAX,
            inflight_appends: limits::INFLIGHT_APPENDS_MAX,
            inflight_bytes: limits::INFLIGHT_BYTES_MAX,
            unapplied_bytes: limits::UNAPPLIED_BYTES_MAX,
        }
    }
}
