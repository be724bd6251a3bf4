//! The events that the transport reports to its member's consensus core.
//!
//! The transport does not depend on the core or its thread. The member implements this trait.

use std::fmt;

use quorate_raft::{MemberId, SnapshotOutcome};

use crate::backlog::Received;
use crate::origin::OtherOrigin;

/// The receiver of the transport's events. No method may block: they are called by the tasks that serve
/// connections, and by the core's own thread while it sends.
pub trait Consensus: fmt::Debug + Send + Sync + 'static {
    /// Messages of one peer have arrived; they must be processed in order.
    fn receive(&self, received: Received);

    /// A message to this peer was lost.
    fn report_unreachable(&self, peer: MemberId);

    /// This peer's connections have broken and its address refuses new ones.
    fn report_gone(&self, peer: MemberId);

    /// The transfer of a snapshot to this peer has ended. Each snapshot that was to be sent is reported
    /// exactly once.
    fn report_snapshot(&self, to: MemberId, outcome: SnapshotOutcome);

    /// Other members have a state of another origin, so this member cannot continue.
    fn report_other_origin(&self, conflict: OtherOrigin);

    /// A peer reported that this member was removed from the cluster.
    fn report_removal(&self);
}
