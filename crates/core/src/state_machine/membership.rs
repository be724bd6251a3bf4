//! Membership changes. Each change is accepted or refused when it is applied. Consensus receives the outcome
//! immediately, and the proposer receives it when the change is published.

use bytes::Bytes;
use prost::Message as _;
use quorate_api::raftpb;
use quorate_node::ConfChangeDecision;
use quorate_raft::{ConfChange, ConfChangeKind, LogIndex};
use quorate_state::apply::{EntryMeta, Fault, RequestFault};
use quorate_state::members::MemberChange;
use quorate_state::units::MemberId;

use super::{Outlet, Output, StateMachine};
use crate::snapshot::configuration_of;

impl<T> StateMachine<T> {
    pub(super) fn apply_conf_change<O: Outlet<Completion = T>>(
        &mut self,
        meta: EntryMeta,
        data: Bytes,
        outlet: &mut O,
    ) -> Result<(), Fault> {
        let index = LogIndex(meta.index);
        let change = raftpb::ConfChange::decode(data).map_err(RequestFault::from)?;
        let id = MemberId(change.node_id.unwrap_or_default());
        let before = self.state.members().get(id).cloned();
        let outcome = self.state.apply_conf_change(meta, &change)?;
        let decided = match &outcome {
            Some(Ok(change)) => {
                outlet.put(Output::Members(self.state.members().clone()));
                if let Some(member) = self.state.members().get(id).cloned().or(before) {
                    outlet.put(Output::Changed { change: change.clone(), member });
                }
                if *change == MemberChange::Remove(self.own_id) {
                    outlet.put(Output::Removed);
                }
                Some(for_consensus(change))
            }
            Some(Err(refusal)) => {
                outlet.put(Output::ChangeRefused(*refusal));
                None
            }
            // The entry was applied before the member started, and consensus started with the resulting members.
            None => None,
        };
        let members = configuration_of(self.state.members());
        outlet.put(Output::Decided(ConfChangeDecision { index, change: decided, members }));
        let outcome = outcome.map_or(Ok(()), |outcome| outcome.map(drop));
        self.verdicts.push((change.id.unwrap_or_default(), outcome));
        Ok(())
    }
}

/// Returns the effect of a change on the raft configuration.
fn for_consensus(change: &MemberChange) -> ConfChange {
    let (kind, id) = match change {
        MemberChange::Add(member) if member.is_learner => {
            (ConfChangeKind::AddLearnerNode, member.id)
        }
        MemberChange::Add(member) => (ConfChangeKind::AddNode, member.id),
        MemberChange::Promote(id) => (ConfChangeKind::AddNode, *id),
        MemberChange::Remove(id) => (ConfChangeKind::RemoveNode, *id),
        MemberChange::UpdatePeerUrls(id, _) => (ConfChangeKind::UpdateNode, *id),
    };
    ConfChange { kind, node_id: id.0, ..ConfChange::default() }
}
