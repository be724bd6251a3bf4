//! Describes log entries in words: the request and its subject.
//!
//! Keys are shown in full. For a value, only its length is shown, and passwords are omitted.

use bytes::Bytes;
use prost::Message;
use quorate_api::raftpb::{ConfChange, ConfChangeType, ConfState};
use quorate_cli::gotext::quote;
use quorate_state::alarm::Cause;
use quorate_state::apply::{AlarmCommand, AuthCommand, ClusterCommand, Command, Request};
use quorate_storage::wal::EntryRef;

/// Describes an entry.
pub(crate) fn entry(entry: EntryRef<'_>) -> String {
    match entry.kind {
        0 if entry.data.is_empty() => "empty: a leader's first entry".to_owned(),
        0 => match Request::decode_shallow(&Bytes::copy_from_slice(entry.data)) {
            Ok(request) => command(&request.command),
            Err(fault) => format!("cannot be decoded: {fault}"),
        },
        1 => match ConfChange::decode(entry.data) {
            Ok(change) => conf_change(&change),
            Err(error) => format!("malformed conf change: {error}"),
        },
        kind => format!("unknown entry kind {kind}"),
    }
}

fn conf_change(change: &ConfChange) -> String {
    let id = change.node_id.unwrap_or_default();
    let what = match change.r#type.unwrap_or_default().try_into() {
        Ok(ConfChangeType::ConfChangeAddNode) => "add member",
        Ok(ConfChangeType::ConfChangeRemoveNode) => "remove member",
        Ok(ConfChangeType::ConfChangeUpdateNode) => "update member",
        Ok(ConfChangeType::ConfChangeAddLearnerNode) => "add learner",
        Err(_) => "unknown conf change for member",
    };
    let context = String::from_utf8_lossy(change.context.as_deref().unwrap_or_default());
    format!("{what} {id:x} {context}").trim_end().to_owned()
}

/// Describes voters and learners.
pub(crate) fn conf_state(encoded: &[u8]) -> String {
    let ids = |ids: &[u64]| ids.iter().map(|id| format!("{id:x}")).collect::<Vec<_>>().join(" ");
    match ConfState::decode(encoded) {
        Ok(state) if state.learners.is_empty() => format!("voters {}", ids(&state.voters)),
        Ok(state) => format!("voters {} learners {}", ids(&state.voters), ids(&state.learners)),
        Err(error) => format!("malformed voters: {error}"),
    }
}

fn command(command: &Command) -> String {
    match command {
        Command::Range(request) => format!("range {}", range(&request.key, &request.range_end)),
        Command::Put(request) => {
            let lease = if request.lease == 0 {
                String::new()
            } else {
                format!(", lease {:x}", request.lease)
            };
            format!("put {} ({} bytes{lease})", quote(&request.key), request.value.len())
        }
        Command::DeleteRange(request) => {
            format!("delete {}", range(&request.key, &request.range_end))
        }
        Command::Txn(request) => format!(
            "transaction: {} comparisons, {} operations if they hold, {} otherwise",
            request.compare.len(),
            request.success.len(),
            request.failure.len()
        ),
        Command::Compaction(request) => format!("compaction to revision {}", request.revision),
        Command::LeaseGrant(request) => {
            format!("lease {:x} granted for {} s", request.id, request.ttl)
        }
        Command::LeaseRevoke(request) => format!("lease {:x} revoked", request.id),
        Command::LeaseCheckpoint(request) => {
            format!("checkpoint of {} leases", request.checkpoints.len())
        }
        Command::Alarm(AlarmCommand { request, cause }) => {
            let cause = match cause {
                Cause::FullDisk => ", because of a full disk",
                Cause::Other => "",
            };
            format!(
                "alarm {} of member {:x}, action {}{cause}",
                request.alarm, request.member_id, request.action
            )
        }
        Command::Auth(command) => auth(command),
        Command::Cluster(command) => match command {
            ClusterCommand::VersionSet(request) => format!("cluster version {}", request.ver),
            ClusterCommand::MemberAttrSet(request) => {
                let name = request
                    .member_attributes
                    .as_ref()
                    .map_or("", |described| described.name.as_str());
                format!("member {:x} is {}", request.member_id, quote(name.as_bytes()))
            }
            ClusterCommand::DowngradeInfoSet(request) if request.enabled => {
                format!("downgrade to {}", request.ver)
            }
            ClusterCommand::DowngradeInfoSet(_) => "no downgrade".to_owned(),
        },
        Command::Nothing => "nothing".to_owned(),
    }
}

fn auth(command: &AuthCommand) -> String {
    let (what, whom) = match command {
        AuthCommand::Authenticate(request) => ("authenticate user", &*request.name),
        AuthCommand::Enable => ("enable authentication", ""),
        AuthCommand::Disable => ("disable authentication", ""),
        AuthCommand::Status => ("authentication status", ""),
        AuthCommand::UserAdd(request) => ("add user", &*request.name),
        AuthCommand::UserDelete(request) => ("delete user", &*request.name),
        AuthCommand::UserGet(request) => ("get user", &*request.name),
        AuthCommand::UserChangePassword(request) => ("change the password of user", &*request.name),
        AuthCommand::UserGrantRole(request) => ("grant a role to user", &*request.user),
        AuthCommand::UserRevokeRole(request) => ("revoke a role from user", &*request.name),
        AuthCommand::UserList => ("list users", ""),
        AuthCommand::RoleAdd(request) => ("add role", &*request.name),
        AuthCommand::RoleDelete(request) => ("delete role", &*request.role),
        AuthCommand::RoleGet(request) => ("get role", &*request.role),
        AuthCommand::RoleGrantPermission(request) => ("grant a permission to role", &*request.name),
        AuthCommand::RoleRevokePermission(request) => {
            ("revoke a permission from role", &*request.role)
        }
        AuthCommand::RoleList => ("list roles", ""),
    };
    if whom.is_empty() { what.to_owned() } else { format!("{what} {}", quote(whom.as_bytes())) }
}

fn range(key: &[u8], end: &[u8]) -> String {
    match end {
        [] => quote(key),
        [0] => format!("from {} on", quote(key)),
        end => format!("from {} to {}", quote(key), quote(end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_api::etcdserverpb::{InternalRaftRequest, PutRequest, RequestHeader};

    #[test]
    fn printed_requests_contain_keys_but_no_values() {
        let put = PutRequest {
            key: "k".into(),
            value: "SECRET".into(),
            lease: 0x7b,
            ..PutRequest::default()
        };
        let header = Some(RequestHeader { id: 1, ..RequestHeader::default() });
        let request = InternalRaftRequest { header, put: Some(put), ..Default::default() };
        let data = request.encode_to_vec();
        let shown = entry(EntryRef { index: 1, term: 1, kind: 0, data: &data });
        assert_eq!(shown, "put \"k\" (6 bytes, lease 7b)");
        let shown = |kind, data: &[u8]| entry(EntryRef { index: 1, term: 1, kind, data });
        assert_eq!(shown(0, &[]), "empty: a leader's first entry");
        assert!(shown(0, b"\xff").starts_with("cannot be decoded: "));
        assert_eq!(shown(7, &[]), "unknown entry kind 7");
    }
}
