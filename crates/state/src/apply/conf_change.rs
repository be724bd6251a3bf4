//! Applies conf changes to the membership and returns the change that consensus must apply.

use quorate_api::raftpb::{ConfChange, ConfState};

use super::{EntryMeta, Fault, State};
use crate::members::{MemberChange, MembershipRefusal, conf_state_json};

/// The result of applying a conf change.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfChangeApplied {
    /// The change's id, which identifies the waiting proposer.
    pub request_id: u64,
    /// The change, or why it was refused; `None` if the entry was applied before, in which case
    /// consensus has its effect from the stored members.
    pub outcome: Option<Result<MemberChange, MembershipRefusal>>,
    /// The change that consensus applies in place of the entry. If the change was refused, it names
    /// no node.
    pub change: ConfChange,
    /// Voters and learners after the change.
    pub conf_state: ConfState,
}

impl State {
    /// Applies an entry that holds a conf change.
    pub fn apply_conf_change(
        &mut self,
        entry: EntryMeta,
        mut change: ConfChange,
    ) -> Result<ConfChangeApplied, Fault> {
        let request_id = change.id.unwrap_or_default();
        if entry.index <= self.applied.0 {
            let conf_state = self.members.conf_state();
            return Ok(ConfChangeApplied { request_id, outcome: None, change, conf_state });
        }
        let verdict = self.members.validate(&change, self.options.learner_count_max)?;
        match &verdict {
            Ok(valid) => {
                self.members.apply(valid.clone(), &mut self.batch);
                self.facts_changed = true;
            }
            Err(_) => change.node_id = Some(0),
        }
        let conf_state = self.members.conf_state();
        if verdict.is_ok() {
            self.batch.set_conf_state(conf_state_json(&conf_state));
        }
        self.advance(&entry);
        Ok(ConfChangeApplied { request_id, outcome: Some(verdict), change, conf_state })
    }
}
