//! Membership changes: each is accepted or refused here. Consensus receives the outcome immediately, the proposer when
//! the change is published.

use bytes::Bytes;
use prost::Message as _;
use quorate_api::raftpb;
use quorate_raft::LogIndex;
use quorate_raft::confchange::wire;
use quorate_state::apply::{EntryMeta, Fault, RequestFault};
use quorate_state::members::MemberChange;

use super::{Outlet, Output, StateMachine};

impl<T> StateMachine<T> {
    pub(super) fn apply_conf_change<O: Outlet<Told = T>>(
        &mut self,
        meta: EntryMeta,
        data: Bytes,
        outlet: &mut O,
    ) -> Result<(), Fault> {
        let index = LogIndex(meta.index);
        let change = raftpb::ConfChange::decode(data.clone()).map_err(RequestFault::from)?;
        let outcome = self.state.apply_conf_change(meta, &change)?;
        let decided = match &outcome {
            Some(Ok(change)) => {
                outlet.put(Output::Members(self.state.members().clone()));
                if *change == MemberChange::Remove(self.own_id) {
                    outlet.put(Output::Removed);
                }
                wire::decode_v1(&data).ok()
            }
            Some(Err(refusal)) => {
                outlet.put(Output::ChangeRefused(*refusal));
                None
            }
            // Consensus was started with the members after this change.
            None => None,
        };
        outlet.put(Output::Decided { index, change: decided });
        let outcome = outcome.map_or(Ok(()), |outcome| outcome.map(drop));
        self.verdicts.push((change.id.unwrap_or_default(), outcome));
        Ok(())
    }
}
