//! Describes requests for the audit log: their operations, keys and names, but never values, passwords or tokens.

use quorate_api::authpb::Permission;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::request_op::Request as Operation;
use quorate_api::v3electionpb::{
    CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest,
};
use quorate_api::v3lockpb::{LockRequest, UnlockRequest};
use quorate_telemetry::audit::{Asked, CallAccount};

use super::contended_name::Name;

/// A request whose operations can be recorded.
pub(crate) trait Asks {
    /// Adds the request's operations to the audit record. A request without parameters adds no operations.
    fn note(&self, account: &CallAccount);
}

/// Implements the trait for requests with one operation.
macro_rules! asks {
    ($($request:ty: |$it:ident| $asked:expr;)*) => {
        $(impl Asks for $request {
            fn note(&self, account: &CallAccount) {
                let $it = self;
                account.note_asked($asked);
            }
        })*
    };
}

/// Implements the trait for requests without parameters.
macro_rules! asks_nothing {
    ($($request:ty,)*) => {
        $(impl Asks for $request {
            fn note(&self, _: &CallAccount) {}
        })*
    };
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}

asks! {
    pb::RangeRequest: |it| range(it);
    pb::PutRequest: |it| put(it);
    pb::DeleteRangeRequest: |it| delete_range(it);
    pb::CompactionRequest: |it| Asked::new("compact").number("at", it.revision);
    pb::LeaseGrantRequest: |it| {
        of_lease("lease_grant", it.id).number("ttl", it.ttl)
    };
    pb::LeaseRevokeRequest: |it| of_lease("lease_revoke", it.id);
    pb::LeaseKeepAliveRequest: |it| of_lease("lease_renew", it.id);
    pb::LeaseTimeToLiveRequest: |it| {
        of_lease("lease_time_to_live", it.id).when("keys", it.keys)
    };
    pb::MemberAddRequest: |it| {
        let asked = Asked::new("member_add").text("peer-urls", &it.peer_urls.join(","));
        asked.when("learner", it.is_learner)
    };
    pb::MemberRemoveRequest: |it| Asked::new("member_remove").text("member", &hex(it.id));
    pb::MemberUpdateRequest: |it| {
        let asked = Asked::new("member_update").text("member", &hex(it.id));
        asked.text("peer-urls", &it.peer_urls.join(","))
    };
    pb::MemberPromoteRequest: |it| Asked::new("member_promote").text("member", &hex(it.id));
    pb::AlarmRequest: |it| {
        let asked = Asked::new("alarm").text("action", it.action().as_str_name());
        let asked = asked.text("alarm", it.alarm().as_str_name());
        if it.member_id == 0 { asked } else { asked.text("member", &hex(it.member_id)) }
    };
    pb::HashKvRequest: |it| Asked::new("hash_kv").number("at", it.revision);
    pb::MoveLeaderRequest: |it| Asked::new("move_leader").text("member", &hex(it.target_id));
    pb::DowngradeRequest: |it| {
        let asked = Asked::new("downgrade").text("action", it.action().as_str_name());
        asked.text("version", &it.version)
    };
    pb::AuthUserAddRequest: |it| Asked::new("user_add").text("name", &it.name);
    pb::AuthUserGetRequest: |it| Asked::new("user_get").text("name", &it.name);
    pb::AuthUserDeleteRequest: |it| Asked::new("user_delete").text("name", &it.name);
    pb::AuthUserChangePasswordRequest: |it| {
        Asked::new("user_change_password").text("name", &it.name)
    };
    pb::AuthUserGrantRoleRequest: |it| {
        Asked::new("user_grant_role").text("name", &it.user).text("role", &it.role)
    };
    pb::AuthUserRevokeRoleRequest: |it| {
        Asked::new("user_revoke_role").text("name", &it.name).text("role", &it.role)
    };
    pb::AuthRoleAddRequest: |it| Asked::new("role_add").text("role", &it.name);
    pb::AuthRoleGetRequest: |it| Asked::new("role_get").text("role", &it.role);
    pb::AuthRoleDeleteRequest: |it| Asked::new("role_delete").text("role", &it.role);
    pb::AuthRoleGrantPermissionRequest: |it| {
        let asked = Asked::new("role_grant_permission").text("role", &it.name);
        match &it.perm {
            None => asked,
            Some(permission) => {
                let Permission { key, range_end, .. } = permission;
                let kind = permission.perm_type().as_str_name();
                asked.text("permission", kind).of_keys(key, range_end)
            }
        }
    };
    pb::AuthRoleRevokePermissionRequest: |it| {
        let asked = Asked::new("role_revoke_permission").text("role", &it.role);
        asked.of_keys(&it.key, &it.range_end)
    };
    pb::LeaseLeasesRequest: |_it| of_lease("lease_leases", 0);
    LockRequest: |it| contend("lock", &it.name).number("lease", it.lease);
    UnlockRequest: |it| Asked::new("unlock").of_keys(&it.key, b"");
    CampaignRequest: |it| contend("campaign", &it.name).number("lease", it.lease);
    ProclaimRequest: |it| of_leader("proclaim", it.leader.as_ref());
    LeaderRequest: |it| contend("leader", &it.name);
    ResignRequest: |it| of_leader("resign", it.leader.as_ref());
}

asks_nothing! {
    // The service records the user name of a login, but only if the user exists.
    pb::AuthenticateRequest,
    pb::MemberListRequest,
    pb::StatusRequest,
    pb::DefragmentRequest,
    pb::HashRequest,
    pb::SnapshotRequest,
    pb::AuthEnableRequest,
    pb::AuthDisableRequest,
    pb::AuthStatusRequest,
    pb::AuthUserListRequest,
    pb::AuthRoleListRequest,
}

/// The parts of a transaction, most important first. A line lists only some of the operations, so the writes are
/// recorded before the reads, and the reads before the compares. Otherwise, a client could hide a write behind many
/// compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TxnPart {
    Writes,
    Reads,
    Compares,
}

impl Asks for pb::TxnRequest {
    fn note(&self, account: &CallAccount) {
        for part in [TxnPart::Writes, TxnPart::Reads, TxnPart::Compares] {
            note_part(self, part, account);
        }
    }
}

/// Records one part of a transaction and of the transactions in it.
fn note_part(txn: &pb::TxnRequest, part: TxnPart, account: &CallAccount) {
    if part == TxnPart::Compares {
        for compare in &txn.compare {
            account.note_asked(Asked::new("compare").of_keys(&compare.key, &compare.range_end));
        }
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match (&op.request, part) {
            (Some(Operation::RequestPut(it)), TxnPart::Writes) => account.note_asked(put(it)),
            (Some(Operation::RequestDeleteRange(it)), TxnPart::Writes) => {
                account.note_asked(delete_range(it));
            }
            (Some(Operation::RequestRange(it)), TxnPart::Reads) => account.note_asked(range(it)),
            // The decoder recursed at least as deeply when it decoded the message, so the stack is large enough.
            (Some(Operation::RequestTxn(it)), _) => note_part(it, part, account),
            (
                Some(
                    Operation::RequestPut(_)
                    | Operation::RequestDeleteRange(_)
                    | Operation::RequestRange(_),
                )
                | None,
                _,
            ) => {}
        }
    }
}

fn range(it: &pb::RangeRequest) -> Asked {
    let asked = Asked::new("range").of_keys(&it.key, &it.range_end).number("at", it.revision);
    asked.when("count-only", it.count_only).when("keys-only", it.keys_only)
}

fn put(it: &pb::PutRequest) -> Asked {
    Asked::new("put").of_keys(&it.key, b"").number("lease", it.lease)
}

fn delete_range(it: &pb::DeleteRangeRequest) -> Asked {
    Asked::new("delete_range").of_keys(&it.key, &it.range_end)
}

/// Returns the record of an operation on a lease. The request does not name the keys attached to the lease.
fn of_lease(operation: &'static str, lease: i64) -> Asked {
    Asked::new(operation).of_unknown_keys().number("lease", lease)
}

/// Returns the record of an operation on a lock or an election, with the key range of all contenders for its name.
fn contend(operation: &'static str, name: &[u8]) -> Asked {
    let Name { prefix, end } = Name::new(name);
    Asked::new(operation).of_keys(&prefix, &end)
}

fn of_leader(operation: &'static str, leader: Option<&LeaderKey>) -> Asked {
    let asked = Asked::new(operation);
    match leader {
        None => asked,
        Some(leader) => asked.of_keys(&leader.key, b"").number("lease", leader.lease),
    }
}

/// Returns the record of a watcher's creation.
pub(crate) fn watch(it: &pb::WatchCreateRequest) -> Asked {
    Asked::new("watch").of_keys(&it.key, &it.range_end).number("from", it.start_revision)
}

/// Returns the record of a login. The name is omitted if no such user exists, because it may be a password entered by
/// mistake.
pub(crate) fn login(name: Option<&str>) -> Asked {
    Asked::new("login").text("name", name.unwrap_or_default())
}
