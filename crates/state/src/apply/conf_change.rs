//! Applies conf changes to the membership, and returns the changes that consensus must apply.

use quorate_api::raftpb::ConfChange;

use super::{EntryMeta, Fault, State};
use crate::members::{MemberChange, MembershipRefusal, conf_state_json};

impl State {
    /// Applies an entry that contains a conf change. Returns the change, or why it was refused. Returns `None` if the
    /// stored state already contains the entry. In that case, the members with which consensus started already reflect
    /// the change.
    pub fn apply_conf_change(
        &mut self,
        entry: EntryMeta,
        change: &ConfChange,
    ) -> Result<Option<Result<MemberChange, MembershipRefusal>>, Fault> {
        if entry.index <= self.applied.0 {
            return Ok(None);
        }
        let verdict = self.members.validate(change, self.options.learner_count_max)?;
        if let Ok(valid) = &verdict {
            self.members.apply(valid.clone(), &mut self.batch);
            self.batch.set_conf_state(conf_state_json(&self.members.conf_state()));
            self.facts_changed = true;
        }
        self.advance(&entry);
        Ok(Some(verdict))
    }
}
