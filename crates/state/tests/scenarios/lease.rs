//! Commands about leases. They use the member's clock, which only `advance` moves.

use quorate_api::etcdserverpb as pb;
use quorate_state::apply::{self, Response};
use quorate_state::lease::Renewal;
use quorate_state::units::LeaseId;
use quorate_test_support::script::Command;

use crate::member::{Member, done, number, shown};

/// A limit larger than the number of leases in any script.
const ALL: usize = 1000;

impl Member {
    pub(crate) fn leases(&mut self, name: &str, command: &Command) -> Option<String> {
        let leases = self.state.published().leases;
        let id = || LeaseId(number(command, 0));
        Some(match name {
            // grant 5 ttl=60
            "grant" => {
                let ttl = command.value("ttl").unwrap();
                let request = pb::LeaseGrantRequest { id: number(command, 0), ttl };
                self.apply(apply::Command::LeaseGrant(request), |response| match response {
                    Response::LeaseGrant(grant) => format!("lease {}, {} s", grant.id, grant.ttl),
                    other => format!("{other:?}"),
                })
            }
            // revoke 5
            "revoke" => {
                let request = pb::LeaseRevokeRequest { id: number(command, 0) };
                self.apply(apply::Command::LeaseRevoke(request), |response| match response {
                    Response::LeaseRevoke(done) => {
                        format!("revision {}", done.header.unwrap().revision)
                    }
                    other => format!("{other:?}"),
                })
            }
            // checkpoint 5 remaining=30: applies a log entry with this checkpoint
            "checkpoint" => {
                let remaining_ttl = command.value("remaining").unwrap();
                let checkpoint = pb::LeaseCheckpoint { id: number(command, 0), remaining_ttl };
                let request = pb::LeaseCheckpointRequest { checkpoints: vec![checkpoint] };
                self.apply(apply::Command::LeaseCheckpoint(request), |_| done())
            }
            // lead extend=5: this member becomes leader after applying everything, and extends all
            // leases by 5 seconds
            "lead" => {
                leases.promote(1, command.value("extend").unwrap_or(0) * 1000, self.now);
                done()
            }
            // follow: this member is no longer the leader
            "follow" => {
                leases.demote();
                done()
            }
            // renew 5
            "renew" => match leases.renew(id(), 1, self.now) {
                Renewal::Renewed { ttl_secs } => format!("{ttl_secs} s"),
                Renewal::NotFound => "not found".to_owned(),
                Renewal::NotPrimary => "ask the leader".to_owned(),
                Renewal::CheckpointFirst => "after a checkpoint of 0 in the log".to_owned(),
                Renewal::Expired => "expired, being revoked".to_owned(),
            },
            // lease 5
            "lease" => match leases.time_to_live(id(), self.now) {
                None => "not found".to_owned(),
                Some(found) => {
                    let left = found
                        .remaining_secs
                        .map_or("no clock".to_owned(), |left| format!("{left} s"));
                    let keys = leases.keys(id()).unwrap_or_default();
                    let keys: Vec<String> = keys.iter().map(|key| shown(key)).collect();
                    format!(
                        "granted {} s, left {left}, keys ({})",
                        found.granted_secs,
                        keys.join(",")
                    )
                }
            },
            // leases
            "leases" => ids(leases.list()),
            // expired: lists the leases that the leader would revoke now
            "expired" => ids(leases.expired(1, self.now, ALL)),
            // due-checkpoints: lists the checkpoints that the leader would propose now
            "due-checkpoints" => {
                let due = leases.due_checkpoints(1, self.now, ALL);
                let due: Vec<String> = due
                    .iter()
                    .map(|due| format!("{}: {} s", due.id.0, due.remaining_secs))
                    .collect();
                if due.is_empty() { "none".to_owned() } else { due.join(", ") }
            }
            _ => return None,
        })
    }
}

fn ids(ids: Vec<LeaseId>) -> String {
    let ids: Vec<String> = ids.iter().map(|id| id.0.to_string()).collect();
    if ids.is_empty() { "none".to_owned() } else { ids.join(", ") }
}
