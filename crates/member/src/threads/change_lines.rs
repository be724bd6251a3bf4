//! The log lines about changes to members, users, roles and authentication, with etcd's texts, levels and fields. Every
//! member logs each change when it applies the change.

use quorate_api::authpb::permission::Type;
use quorate_api::etcdserverpb::{AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest};
use quorate_core::bootstrap::Identity;
use quorate_state::apply::AuthCommand;
use quorate_state::auth::{User, View};
use quorate_state::members::{Member, MemberChange};
use quorate_telemetry::log::{self, Line};

/// Maximum number of bytes of a key in a log line. Longer keys are truncated, because a key may be megabytes long.
const KEY_BYTES_SHOWN: usize = 16 * 1024;

/// Logs a change to the members. `member` is the affected member after the change, or before its removal.
pub(crate) fn log_member_change(own: &Identity, change: &MemberChange, member: &Member) {
    let cluster_id = format!("{:x}", own.cluster_id);
    let own_id = format!("{:x}", own.member_id);
    let id = member.id.to_string();
    match change {
        MemberChange::Add(_) => log::info!(
            "added member",
            "cluster-id" = cluster_id,
            "local-member-id" = own_id,
            "added-peer-id" = id,
            "added-peer-peer-urls" = member.peer_urls,
            "added-peer-is-learner" = member.is_learner
        ),
        MemberChange::Promote(_) => log::info!(
            "promote member",
            "cluster-id" = cluster_id,
            "local-member-id" = own_id,
            "promoted-member-id" = id
        ),
        MemberChange::Remove(_) => log::info!(
            "removed member",
            "cluster-id" = cluster_id,
            "local-member-id" = own_id,
            "removed-remote-peer-id" = id,
            "removed-remote-peer-urls" = member.peer_urls,
            "removed-remote-peer-is-learner" = member.is_learner
        ),
        MemberChange::UpdatePeerUrls(..) => log::info!(
            "updated member",
            "cluster-id" = cluster_id,
            "local-member-id" = own_id,
            "updated-remote-peer-id" = id,
            "updated-remote-peer-urls" = member.peer_urls,
            "updated-remote-peer-is-learner" = member.is_learner
        ),
    }
}

/// Returns the line to log after this command has been applied without a refusal. `view` contains the users and roles
/// before the command. Returns `None` if the command changes nothing.
pub(crate) fn line_about(command: &AuthCommand, view: &View) -> Option<Line> {
    let roles_of = |name: &str| view.user(name).map_or(&[][..], User::roles);
    Some(match command {
        AuthCommand::Enable if view.is_enabled() => {
            log::pending!(Info, "authentication is already enabled; ignored auth enable request")
        }
        AuthCommand::Enable => log::pending!(Info, "enabled authentication"),
        AuthCommand::Disable if view.is_enabled() => log::pending!(Info, "disabled authentication"),
        AuthCommand::UserAdd(request) => {
            log::pending!(Info, "added a user", "user-name" = request.name)
        }
        AuthCommand::UserDelete(request) => log::pending!(
            Info,
            "deleted a user",
            "user-name" = request.name,
            "user-roles" = roles_of(&request.name)
        ),
        AuthCommand::UserChangePassword(request) => log::pending!(
            Info,
            "changed a password of a user",
            "user-name" = request.name,
            "user-roles" = roles_of(&request.name)
        ),
        AuthCommand::UserGrantRole(request) => line_about_grant(request, roles_of(&request.user)),
        AuthCommand::UserRevokeRole(request) => {
            line_about_revocation(request, roles_of(&request.name))
        }
        AuthCommand::RoleAdd(request) => {
            log::pending!(Info, "created a role", "role-name" = request.name)
        }
        AuthCommand::RoleDelete(request) => {
            log::pending!(Info, "deleted a role", "role-name" = request.role)
        }
        AuthCommand::RoleGrantPermission(request) => {
            let permission = request.perm.as_ref()?;
            log::pending!(
                Info,
                "granted/updated a permission to a user",
                // etcd uses this name for the field with the role's name.
                "user-name" = request.name,
                "permission-name" = name_of(permission.perm_type),
                "key" = shown(&permission.key),
                "range-end" = shown(&permission.range_end)
            )
        }
        AuthCommand::RoleRevokePermission(request) => log::pending!(
            Info,
            "revoked a permission on range",
            "role-name" = request.role,
            "key" = shown(&request.key),
            "range-end" = shown(&request.range_end)
        ),
        AuthCommand::Disable
        | AuthCommand::Authenticate(_)
        | AuthCommand::Status
        | AuthCommand::UserGet(_)
        | AuthCommand::UserList
        | AuthCommand::RoleGet(_)
        | AuthCommand::RoleList => return None,
    })
}

fn line_about_grant(request: &AuthUserGrantRoleRequest, roles: &[String]) -> Line {
    if roles.contains(&request.role) {
        return log::pending!(
            Warn,
            "ignored grant role request to a user",
            "user-name" = request.user,
            "user-roles" = roles,
            "duplicate-role-name" = request.role
        );
    }
    let mut roles: Vec<_> = roles.iter().chain([&request.role]).collect();
    roles.sort();
    log::pending!(
        Info,
        "granted a role to a user",
        "user-name" = request.user,
        "user-roles" = roles,
        "added-role-name" = request.role
    )
}

fn line_about_revocation(request: &AuthUserRevokeRoleRequest, roles: &[String]) -> Line {
    let rest: Vec<_> = roles.iter().filter(|role| **role != request.role).collect();
    log::pending!(
        Info,
        "revoked a role from a user",
        "user-name" = request.name,
        "old-user-roles" = roles,
        "new-user-roles" = rest,
        "revoked-role-name" = request.role
    )
}

fn name_of(permission_type: i32) -> &'static str {
    Type::try_from(permission_type).map_or("", |kind| kind.as_str_name())
}

fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(KEY_BYTES_SHOWN)]).into_owned()
}
