//! Checks that a newly restored member has the same state as the other members.
//!
//! Members that run Quorate exchange the origins of their states, and exchange no messages if the origins differ
//! (`peer`). Members that run etcd send no origin, so this member compares its state with theirs before it serves
//! clients.

use std::sync::Arc;

use quorate_member::Handles;
use quorate_member::corruption::compare_restored;
use quorate_member::fatal::FaultReports;
use quorate_peer::Peers;
use quorate_state::apply::State;
use quorate_state::backend::Backend;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::restored;
use quorate_telemetry::log;

/// The check of a restored member against the other members.
pub(crate) struct Proof {
    pub(crate) handles: Arc<Handles>,
    pub(crate) faults: FaultReports,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dirs: DataDir,
}

/// Passes the origin of the state to the transport before the first message to a peer. A member without any state has
/// no origin yet and adopts its leader's origin.
pub(crate) fn set_origin_of_state(
    peers: &Peers,
    (state, backend): (&State, &Backend),
    (disk, dirs): (&dyn Disk, &DataDir),
) {
    if state.applied().0 > 0 {
        // An unreadable restore mark is not an error here. It is reported when the mark is needed.
        peers.set_origin(backend.read().restore_mark().unwrap_or_default());
        peers.set_unproven(restored::is_marked(disk, dirs).unwrap_or(true));
    }
}

impl Proof {
    /// If this member was newly restored, compares its state with the states of the members that run etcd. If no
    /// difference is found, removes the restore mark. If the states differ, reports a fault and never returns. The
    /// fault stops the member.
    pub(crate) async fn give(self) {
        if !restored::is_marked(&*self.disk, &self.dirs).unwrap_or(true) {
            return;
        }
        let peers = &self.handles.peers;
        if let Err(other) = compare_restored(&self.handles, &peers.members_without_origin()).await {
            self.faults.report("comparing this restored member with the others", other);
            std::future::pending::<()>().await;
        }
        peers.set_unproven(false);
        if let Err(error) = restored::remove(&*self.disk, &self.dirs) {
            log::warn!(
                "failed to remove the mark of a restored data directory; at its next start, this member \
                 will again compare its state with the states of the other members",
                "error" = error.to_string()
            );
        }
    }
}
