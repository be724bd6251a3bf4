//! A member that was just restored from a snapshot, until the others are found to hold the same state.
//!
//! Members of Quorate tell one another which restore their state comes from, and exchange no messages where that differs
//! (`peer`). Members of etcd tell nothing, so they are compared before this member serves clients.

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

/// The proof that a member which was just restored holds what the others hold.
pub(crate) struct Proof {
    pub(crate) handles: Arc<Handles>,
    pub(crate) faults: FaultReports,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dirs: DataDir,
}

/// Takes over where the state comes from, before the first member is talked to. A member without a state has no origin
/// yet, and takes over its leader's.
pub(crate) fn tell_origin(
    peers: &Peers,
    (state, backend): (&State, &Backend),
    (disk, dirs): (&dyn Disk, &DataDir),
) {
    if state.applied().0 > 0 {
        // What cannot be read is found out by whoever needs it.
        peers.set_origin(backend.read().restore_mark().unwrap_or_default());
        peers.set_unproven(restored::is_marked(disk, dirs).unwrap_or(true));
    }
}

impl Proof {
    /// Compares this member, if it was just restored, with those of etcd, and removes the mark if nothing speaks against
    /// it. Where something does it stops the member and never returns.
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
                "failed to remove the mark of a restored data directory; the next start compares it again",
                "error" = error.to_string()
            );
        }
    }
}
