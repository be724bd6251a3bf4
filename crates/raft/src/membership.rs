//! Puts membership changes into effect and handles their consequences for a leader.
//!
//! This module is called when the application applies a change from the log and when a snapshot is
//! installed. `confchange` computes the new configuration.

use crate::confchange::{Changer, ConfChangeError, ConfChangeV2};
use crate::entry::NONE;
use crate::note::note;
use crate::raft::Raft;
use crate::replication::WhenEmpty;
use crate::state::{ConfState, Role};
use crate::storage::Storage;
use crate::tracker::{Configuration, ProgressMap};

impl<S: Storage> Raft<S> {
    /// Applies a committed membership change.
    pub(crate) fn apply_conf_change(
        &mut self,
        change: &ConfChangeV2,
    ) -> Result<ConfState, ConfChangeError> {
        let changer = Changer {
            config: self.tracker.config.clone(),
            progress: self.tracker.progress.clone(),
            last_index: self.log.last_index(),
            limits: self.tracker.limits,
        };
        let changed = changer.apply(change)?;
        self.switch_configuration(changed.config, changed.progress);
        Ok(self.tracker.config.conf_state())
    }

    /// Puts a configuration into effect.
    pub(crate) fn switch_configuration(&mut self, config: Configuration, progress: ProgressMap) {
        let id = self.config.id;
        self.tracker.switch(config, progress, id);
        note!(self, Info, "{id:x} switched to configuration {}", self.tracker.config);

        let own = self.tracker.progress.get(&id);
        self.is_learner = own.is_some_and(|own| own.is_learner);
        let may_lead = own.is_some() && !self.is_learner;
        if self.role != Role::Leader {
            return;
        }
        if !may_lead {
            // The leader was removed or demoted. Unless it must step down, it continues to lead
            // until another member is elected.
            if self.config.step_down_on_removal {
                self.become_follower(self.term, NONE);
            }
            return;
        }
        if self.advance_commit() {
            // With a smaller quorum, more entries may already be committed.
            self.release_parked_reads();
            self.broadcast_append();
        } else {
            // Send entries to new members now, so that they do not wait for the next heartbeat or proposal.
            self.append_to_all(WhenEmpty::Skip);
        }
        // Reads that waited only for members that have left are now confirmed.
        self.answer_confirmed_reads();
        // The followers that were asked to confirm the remaining reads may no longer be voters.
        self.ask_others_to_confirm_reads();
        if !self.tracker.config.voters.contains(self.transferee) {
            self.transferee = NONE;
        }
    }
}
