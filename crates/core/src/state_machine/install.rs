//! Installation of a leader's state, after its image has replaced the backend file.

use quorate_raft::Snapshot;
use quorate_state::members::V2Membership;

use super::{ApplyError, Now, Outlet, Output, StateMachine};
use crate::old_members;
use crate::snapshot::{as_counted, configuration_of};
use crate::start::storage_version;

impl<T> StateMachine<T> {
    /// Takes over the state of the requested image, which the backend has installed.
    pub fn installed<O: Outlet<Completion = T>>(
        &mut self,
        now: Now,
        outlet: &mut O,
    ) -> Result<(), ApplyError> {
        let snapshot =
            self.installing.take().expect("an image is installed only if it was requested");
        self.generation += 1;
        self.commit_at = None;
        self.state.install(&self.backend)?;
        let (index, _) = self.applied();
        if index != snapshot.metadata.index {
            return Err(ApplyError::ImageIndex { index, snapshot: snapshot.metadata.index });
        }
        self.repair_members(&snapshot)?;
        let (counted, listed) =
            (&snapshot.metadata.conf_state, configuration_of(self.state.members()));
        assert!(
            listed.is_equivalent(counted),
            "an image lists the members that its snapshot counts: otherwise quorums would include unlisted members; \
             entry {index}: the snapshot counts {counted:?}, and the image lists {listed:?}"
        );
        let is_compacting = !self.state.store().is_compaction_idle();
        let over = self.compaction.restart(is_compacting, now.instant);
        for completion in over.into_iter().chain(self.waiting.drain(..)) {
            outlet.put(Output::Complete(completion));
        }
        outlet.put(Output::Members(self.state.members().clone()));
        self.storage_version = storage_version(&self.backend);
        outlet.put(Output::StorageVersion { version: self.storage_version, is_written: false });
        let (index, term) = self.applied();
        outlet.put(Output::Installed { index, term });
        Ok(())
    }

    /// Corrects the member list of an image that an etcd leader sent. A 3.5 leader does not store every membership
    /// change in the image, but its snapshot message lists the members. The list is then corrected to match the members
    /// that consensus counts, which the raft configuration in the message contains.
    fn repair_members(&mut self, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let mut members = self.state.members().clone();
        if !old_members::are_complete(storage_version(&self.backend)) {
            let listed = V2Membership::from_json(&snapshot.data)?;
            members = members.reconciled(&listed.members);
        }
        self.state.repair_members(as_counted(members, &snapshot.metadata.conf_state));
        self.state.publish();
        Ok(())
    }
}
