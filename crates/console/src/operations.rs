//! Operations that change the cluster. They are available only with `--allow-writes` (on a member,
//! `--console-allow-writes`). Each makes at most one call that changes the cluster, with the caller's token.
//!
//! # Guarantees
//!
//! * Every write to a key is a transaction that compares the key's revision with the revision that the page has shown.
//!   If another client has changed the key since then, nothing is written.
//! * The console never repeats an operation.

use std::time::Duration;

use quorate_api::authpb::permission::Type;
use quorate_api::authpb::{Permission, UserAddOptions};
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request as OpRequest;
use quorate_api::etcdserverpb::response_op::Response as OpResponse;
use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmType, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest,
    AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest,
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, CompactionRequest, Compare,
    DefragmentRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, MemberAddRequest,
    MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest, MoveLeaderRequest, PutRequest,
    RangeRequest, RequestOp, ResponseHeader, StatusRequest, TxnRequest,
};
use serde_json::{Value, json};

use crate::cluster::Caller;
use crate::encode::{hex, key_meta, lease, revision};
use crate::input::Input;
use crate::members::Members;
use crate::refusal::{Kind, Refusal};

/// Time limit of a defragmentation, which reads and writes the whole backend file.
const DEFRAGMENT_TIME: Duration = Duration::from_secs(600);

/// Time limit of a compaction that waits until the old revisions are deleted.
const COMPACT_TIME: Duration = Duration::from_secs(300);

/// Calls a method of the Auth service whose response consists only of a header.
macro_rules! account {
    ($caller:expr, $method:ident, $request:expr) => {{
        let make = async |channel, request| $caller.client.auth(channel).$method(request).await;
        done($caller.change($request, make).await?.header.as_ref())
    }};
}

/// Calls a method of the Cluster service that returns the new members.
macro_rules! member {
    ($caller:expr, $method:ident, $request:expr) => {{
        let make = async |channel, request| $caller.client.cluster(channel).$method(request).await;
        $caller.change($request, make).await?
    }};
}

/// Carries out the operation with this name. The name does not include the prefix `write/`.
pub(crate) async fn operate(
    members: &Members,
    caller: &Caller,
    name: &str,
    input: &Input,
) -> Result<Value, Refusal> {
    Ok(match name {
        "put" => put(caller, input).await?,
        "delete" => delete(caller, input).await?,
        "lease_grant" | "lease_revoke" => of_lease(caller, name, input).await?,
        "compact" | "defragment" | "move_leader" | "alarm_disarm" => {
            Box::pin(maintain(members, caller, name, input)).await?
        }
        "member_add" => {
            let (peer_urls, is_learner) = (urls(input)?, input.flag("learner")?);
            let added = member!(caller, member_add, MemberAddRequest { peer_urls, is_learner });
            let id = added.member.map_or(0, |member| member.id);
            json!({ "revision": revision(added.header.as_ref()), "id": hex(id) })
        }
        "member_update" => {
            let (id, peer_urls) = (input.required_id("id")?, urls(input)?);
            let changed = member!(caller, member_update, MemberUpdateRequest { id, peer_urls });
            done(changed.header.as_ref())
        }
        "member_promote" => {
            let id = input.required_id("id")?;
            done(member!(caller, member_promote, MemberPromoteRequest { id }).header.as_ref())
        }
        "member_remove" => {
            let id = input.required_id("id")?;
            done(member!(caller, member_remove, MemberRemoveRequest { id }).header.as_ref())
        }
        _ => Box::pin(of_account(caller, name, input)).await?,
    })
}

/// Carries out an operation on users, roles or authentication.
async fn of_account(caller: &Caller, name: &str, input: &Input) -> Result<Value, Refusal> {
    let text = |field: &str| input.required_text(field).map(str::to_owned);
    Ok(match name {
        "user_add" => {
            let password = input.text("password")?.unwrap_or_default().to_owned();
            let options = UserAddOptions { no_password: password.is_empty() };
            let request = AuthUserAddRequest {
                name: text("name")?,
                password,
                options: Some(options),
                ..AuthUserAddRequest::default()
            };
            account!(caller, user_add, request)
        }
        "user_delete" => {
            account!(caller, user_delete, AuthUserDeleteRequest { name: text("name")? })
        }
        "user_password" => {
            let request = AuthUserChangePasswordRequest {
                name: text("name")?,
                password: text("password")?,
                ..AuthUserChangePasswordRequest::default()
            };
            account!(caller, user_change_password, request)
        }
        "user_grant" => {
            let request = AuthUserGrantRoleRequest { user: text("name")?, role: text("role")? };
            account!(caller, user_grant_role, request)
        }
        "user_revoke" => {
            let request = AuthUserRevokeRoleRequest { name: text("name")?, role: text("role")? };
            account!(caller, user_revoke_role, request)
        }
        "role_add" => account!(caller, role_add, AuthRoleAddRequest { name: text("name")? }),
        "role_delete" => {
            account!(caller, role_delete, AuthRoleDeleteRequest { role: text("name")? })
        }
        "role_grant" => {
            let request = AuthRoleGrantPermissionRequest {
                name: text("name")?,
                perm: Some(permission(input)?),
            };
            account!(caller, role_grant_permission, request)
        }
        "role_revoke" => {
            let request = AuthRoleRevokePermissionRequest {
                role: text("name")?,
                key: input.bytes("key")?.unwrap_or_default().into(),
                range_end: input.bytes("range_end")?.unwrap_or_default().into(),
            };
            account!(caller, role_revoke_permission, request)
        }
        "auth_enable" => account!(caller, auth_enable, AuthEnableRequest {}),
        "auth_disable" => account!(caller, auth_disable, AuthDisableRequest {}),
        _ => return Err(Refusal::new(Kind::NotFound, "there is no API call with this name")),
    })
}

fn done(header: Option<&ResponseHeader>) -> Value {
    json!({ "revision": revision(header) })
}

fn urls(input: &Input) -> Result<Vec<String>, Refusal> {
    let urls = input.texts("peer_urls")?;
    if urls.is_empty() {
        Err(Refusal::bad_request("\"peer_urls\" must be given"))
    } else {
        Ok(urls)
    }
}

fn permission(input: &Input) -> Result<Permission, Refusal> {
    let perm_type = match input.required_text("type")? {
        "read" => Type::Read,
        "write" => Type::Write,
        "readwrite" => Type::Readwrite,
        _ => return Err(Refusal::bad_request("\"type\" must be read, write or readwrite")),
    };
    Ok(Permission {
        perm_type: perm_type.into(),
        key: input.bytes("key")?.unwrap_or_default().into(),
        range_end: input.bytes("range_end")?.unwrap_or_default().into(),
    })
}

async fn put(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    let value = input.bytes("value")?;
    let value = value.ok_or_else(|| Refusal::bad_request("\"value\" must be given"))?;
    let keeps_lease = input.flag("keep_lease")?;
    let put = PutRequest {
        key: input.key()?.into(),
        value: value.into(),
        lease: if keeps_lease { 0 } else { input.lease("lease")? },
        ignore_lease: keeps_lease,
        ..PutRequest::default()
    };
    compare_and(caller, input, OpRequest::RequestPut(put)).await
}

async fn delete(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    let request = DeleteRangeRequest { key: input.key()?.into(), ..DeleteRangeRequest::default() };
    compare_and(caller, input, OpRequest::RequestDeleteRange(request)).await
}

/// Changes a key if its mod revision is still the revision that the page has shown. Revision 0 means that the key must
/// not exist.
async fn compare_and(caller: &Caller, input: &Input, change: OpRequest) -> Result<Value, Refusal> {
    let (key, shown) = (input.key()?, input.required_number("if_mod_revision")?);
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone().into(),
        target_union: Some(TargetUnion::ModRevision(shown)),
        ..Compare::default()
    };
    let current = RangeRequest { key: key.into(), keys_only: true, ..RangeRequest::default() };
    let op = |request| vec![RequestOp { request: Some(request) }];
    let request = TxnRequest {
        compare: vec![compare],
        success: op(change),
        failure: op(OpRequest::RequestRange(current)),
    };
    let txn = async |channel, request| caller.client.kv(channel).txn(request).await;
    let response = caller.change(request, txn).await?;
    if response.succeeded {
        return Ok(done(response.header.as_ref()));
    }
    let found = response.responses.into_iter().next().and_then(|op| op.response);
    let current = match found {
        Some(OpResponse::ResponseRange(found)) => {
            found.kvs.first().map(|record| Value::Object(key_meta(&record.fields())))
        }
        _ => None,
    };
    let text = match (&current, shown) {
        (None, _) => "the key has been deleted since it was shown",
        (Some(_), 0) => "the key already exists",
        (Some(_), _) => "the key has been changed since it was shown",
    };
    Err(Refusal::new(Kind::Changed, text)
        .advising("Nothing was written. Read the key again.")
        .with("current", current.unwrap_or_default()))
}

async fn of_lease(caller: &Caller, name: &str, input: &Input) -> Result<Value, Refusal> {
    if name == "lease_revoke" {
        let request = LeaseRevokeRequest { id: input.required_id("id")?.cast_signed() };
        let revoke =
            async |channel, request| caller.client.lease(channel).lease_revoke(request).await;
        return Ok(done(caller.change(request, revoke).await?.header.as_ref()));
    }
    let request = LeaseGrantRequest { ttl: input.required_number("ttl_secs")?, id: 0 };
    let grant = async |channel, request| caller.client.lease(channel).lease_grant(request).await;
    let granted = caller.change(request, grant).await?;
    Ok(json!({ "revision": revision(granted.header.as_ref()), "id": lease(granted.id) }))
}

async fn maintain(
    members: &Members,
    caller: &Caller,
    name: &str,
    input: &Input,
) -> Result<Value, Refusal> {
    match name {
        "compact" => {
            let request = CompactionRequest {
                revision: input.required_number("revision")?,
                physical: input.flag("physical")?,
            };
            let compact = async |channel, request| caller.client.kv(channel).compact(request).await;
            let compacted = caller.change_within(COMPACT_TIME, request, compact).await?;
            Ok(done(compacted.header.as_ref()))
        }
        "defragment" => {
            let member = members.of(caller, input.required_id("member")?).await?;
            let size = async || -> Result<i64, Refusal> {
                let status = async |channel, request| {
                    member.client.maintenance(channel).status(request).await
                };
                Ok(member.read(StatusRequest {}, status).await?.db_size)
            };
            let before = size().await?;
            let defragment = async |channel, request| {
                member.client.maintenance(channel).defragment(request).await
            };
            let done =
                member.change_within(DEFRAGMENT_TIME, DefragmentRequest {}, defragment).await?;
            Ok(json!({
                "revision": revision(done.header.as_ref()),
                "db_bytes_before": before,
                "db_bytes_after": size().await?,
            }))
        }
        "move_leader" => {
            let target_id = input.required_id("to")?;
            // The call must be sent to the leader, because only the leader can transfer its leadership.
            let status =
                async |channel, request| caller.client.maintenance(channel).status(request).await;
            let leader = caller.read(StatusRequest {}, status).await?.leader;
            let leader = members.of(caller, leader).await?;
            let request = MoveLeaderRequest { target_id };
            let make = async |channel, request| {
                leader.client.maintenance(channel).move_leader(request).await
            };
            Ok(done(leader.change(request, make).await?.header.as_ref()))
        }
        _ => {
            let alarm = AlarmType::from_str_name(input.required_text("name")?);
            let alarm = alarm.filter(|alarm| *alarm != AlarmType::None);
            let alarm = alarm
                .ok_or_else(|| Refusal::bad_request("\"name\" must be the name of an alarm"))?;
            let request = AlarmRequest {
                action: AlarmAction::Deactivate.into(),
                member_id: input.required_id("member")?,
                alarm: alarm.into(),
            };
            let disarm =
                async |channel, request| caller.client.maintenance(channel).alarm(request).await;
            Ok(done(caller.change(request, disarm).await?.header.as_ref()))
        }
    }
}
