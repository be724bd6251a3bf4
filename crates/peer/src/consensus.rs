//! The events that the transport reports to its member's consensus core.
//!
//! The transport depends neither on the core nor on its thread. The member implements the trait [`Consensus`].

use std::fmt;

use quorate_raft::{MemberId, SnapshotOutcome};

use crate::backlog::Received;
use crate::origin::OtherOrigin;

/// The receiver of the transport's events. No method may block, because the methods are called by the tasks that serve
/// connections, and by the core's own thread while it sends.
pub trait Consensus: fmt::Debug + Send + Sync + 'static {
    /// Called when messages from one peer have arrived. They must be processed in order.
    fn receive(&self, received: Received);

    /// Called when a message to this peer was lost.
    fn report_unreachable(&self, peer: MemberId);

    /// Called when a stream of this peer has broken and all of the peer's URLs refuse connections.
    fn report_gone(&self, peer: MemberId);

    /// Called when the transfer of a snapshot to this peer ends. Each snapshot passed to the transport is reported
    /// exactly once.
    fn report_snapshot(&self, to: MemberId, outcome: SnapshotOutcome);

    /// Called when other members have a state of a different origin, so this member cannot continue.
    fn report_other_origin(&self, conflict: OtherOrigin);

    /// Called when a peer reports that this member was removed from the cluster.
    fn report_removal(&self);
}
