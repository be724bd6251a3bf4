//! Guards: the checks that an entry must pass before it is executed, in the order in which they
//! run.

use super::{Command, Permission, Refusal, Request};
use crate::alarm::Alarms;
use crate::auth::{Access, Caller, View};
use crate::lease::Leases;
use crate::quota;
use crate::units::LeaseId;

/// The part of the state that the guards read.
pub(super) struct Guards<'a> {
    pub(super) alarms: &'a Alarms,
    pub(super) auth: &'a View,
    pub(super) leases: &'a Leases,
}

impl Guards<'_> {
    /// Runs all guards.
    pub(super) fn check(&self, request: &Request) -> Result<(), Refusal> {
        self.refuse_if_corrupt(&request.command)?;
        self.refuse_if_out_of_space(&request.command)?;
        if self.auth.is_enabled() { self.refuse_if_forbidden(request) } else { Ok(()) }
    }

    /// Refuses a request for which the caller lacks the permission. Permissions are checked against
    /// the users and roles as of this entry, so that every member makes the same decision.
    fn refuse_if_forbidden(&self, request: &Request) -> Result<(), Refusal> {
        let caller = Caller { name: &request.username, revision: request.auth_revision };
        let Self { auth, leases, .. } = *self;
        let permission = Permission { auth, caller, leases };
        let checked = match &request.command {
            Command::Range(range) => permission.check_range(range),
            Command::Put(put) => permission.check_put(put),
            Command::DeleteRange(delete) => permission.check_delete_range(delete),
            Command::Txn(txn) => permission.check_txn(txn),
            Command::LeaseRevoke(revoke) => {
                permission.check_lease(Access::Write, LeaseId(revoke.id))
            }
            Command::Auth(command) if command.is_for_admins() => auth.check_admin(caller),
            // The guards have nothing to check. Either the command checks the caller when it is executed, or the member
            // that received the request has checked the permission, or a member proposes the command itself.
            Command::Auth(_)
            | Command::Compaction(_)
            | Command::LeaseGrant(_)
            | Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::Cluster(_)
            | Command::Nothing => Ok(()),
        };
        Ok(checked?)
    }

    /// Refuses commands that read or write data while a corruption alarm is raised.
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

    /// Refuses commands that add data while a NOSPACE alarm is raised.
    fn refuse_if_out_of_space(&self, command: &Command) -> Result<(), Refusal> {
        let full = self.alarms.is_out_of_space();
        if full && Self::cost(command) > 0 { Err(Refusal::NoSpace) } else { Ok(()) }
    }

    /// Returns the number of bytes that a command adds to the file, as counted by the quota.
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
