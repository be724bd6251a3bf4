//! What the transport tells its member's consensus core.
//!
//! The transport does not know who runs the core, nor on which thread. Whoever assembles the member hands in
//! how it is told.

use std::fmt;

use quorate_raft::{MemberId, SnapshotOutcome};

use crate::backlog::Received;
use crate::origin::OtherOrigin;

/// The receiving side of the transport. No call may block: they come from the tasks that serve connections,
/// and from the core's own thread while it sends.
pub trait Consensus: fmt::Debug + Send + Sync + 'static {
    /// Messages of one peer have come, to be taken in their order.
    fn receive(&self, received: Received);

    /// A message to this peer was lost.
    fn report_unreachable(&self, peer: MemberId);

    /// This peer's connections have broken and it listens no more.
    fn report_gone(&self, peer: MemberId);

    /// How sending a snapshot to this peer has ended. Each snapshot that was to be sent is reported once.
    fn report_snapshot(&self, to: MemberId, outcome: SnapshotOutcome);

    /// Others hold a state of another origin, beside which this member cannot go on.
    fn report_other_origin(&self, conflict: OtherOrigin);

    /// A peer says that this member was removed from the cluster.
    fn report_removal(&self);
}
