//! What stands between an entry and its effect, in the order in which it is asked.

use super::{Command, Refusal, Request, State};
use crate::quota;

impl State {
    /// Asks all guards. What authentication forbids will be asked after the alarms.
    pub(super) fn guard(&self, request: &Request) -> Result<(), Refusal> {
        self.refuse_if_corrupt(&request.command)?;
        self.refuse_if_out_of_space(&request.command)
    }

    /// While members disagree about the data, nothing touches it.
    fn refuse_if_corrupt(&self, command: &Command) -> Result<(), Refusal> {
        let touches_data = match command {
            Command::Range(_)
            | Command::Put(_)
            | Command::DeleteRange(_)
            | Command::Txn(_)
            | Command::Compaction(_)
            | Command::LeaseGrant(_)
            | Command::LeaseRevoke(_) => true,
            Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::Auth(_)
            | Command::Cluster(_)
            | Command::Nothing => false,
        };
        if touches_data && self.alarms.is_corrupt() { Err(Refusal::Corrupt) } else { Ok(()) }
    }

    /// While a member is out of space, nothing grows.
    fn refuse_if_out_of_space(&self, command: &Command) -> Result<(), Refusal> {
        let full = self.alarms.is_out_of_space();
        if full && Self::cost(command) > 0 { Err(Refusal::NoSpace) } else { Ok(()) }
    }

    /// What a command adds to the file, by the quota's measure.
    fn cost(command: &Command) -> u64 {
        match command {
            Command::Put(request) => quota::put_cost(request),
            Command::Txn(request) => quota::txn_cost(request),
            Command::LeaseGrant(_) => quota::LEASE_COST,
            Command::Range(_)
            | Command::DeleteRange(_)
            | Command::Compaction(_)
            | Command::LeaseRevoke(_)
            | Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::Auth(_)
            | Command::Cluster(_)
            | Command::Nothing => 0,
        }
    }
}
