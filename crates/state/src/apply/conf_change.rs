//! Conf changes: judged and applied to the members; consensus is told what came of it.

use quorate_api::raftpb::{ConfChange, ConfState};

use super::{EntryMeta, Fault, State};
use crate::members::{MemberChange, MembershipRefusal, conf_state_json};

/// What applying a conf change came to.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfChangeApplied {
    /// The change's id, by which its proposer waits.
    pub request_id: u64,
    /// What changed, or why nothing did; `None` if the entry was applied before, and consensus knows its
    /// effect from the members.
    pub outcome: Option<Result<MemberChange, MembershipRefusal>>,
    /// What consensus must be given in place of the entry: a refused change names no node.
    pub change: ConfChange,
    /// Voters and learners after it.
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
        let verdict = self.members.judge(&change, self.options.learner_count_max)?;
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
