//! `role`: adds, deletes and shows roles, and changes their permissions.

use quorate_api::authpb::Permission;
use quorate_api::authpb::permission::Type;
use quorate_api::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGetRequest, AuthRoleGrantPermissionRequest,
    AuthRoleListRequest, AuthRoleRevokePermissionRequest,
};

use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::flags::{Flag, Matches};
use crate::key_range::KeyRange;
use crate::output::{Access, Reply};
use crate::session::Session;

pub(crate) const ROLE: Command = Command {
    usage: "role <subcommand>",
    short: "Role related commands. Use `etcdctl role --help` to see subcommands",
    long: "Role related commands",
    group: Some(group::AUTHENTICATION),
    children: &[&ADD, &DELETE, &GET, &GRANT_PERMISSION, &LIST, &REVOKE_PERMISSION],
    ..Command::EMPTY
};

const ADD: Command = Command {
    usage: "add <role name>",
    short: "Adds a new role",
    run: Some(|session| Box::pin(add(session))),
    ..Command::EMPTY
};

const DELETE: Command = Command {
    usage: "delete <role name>",
    short: "Deletes a role",
    run: Some(|session| Box::pin(delete(session))),
    ..Command::EMPTY
};

const GET: Command = Command {
    usage: "get <role name>",
    short: "Gets detailed information of a role",
    run: Some(|session| Box::pin(get(session))),
    ..Command::EMPTY
};

const GRANT_PERMISSION: Command = Command {
    usage: "grant-permission [options] <role name> <permission type> <key> [endkey]",
    short: "Grants a key to a role",
    flags: &[
        Flag::bool(
            "from-key",
            "grant a permission of keys that are greater than or equal to the given key using byte compare",
        ),
        Flag::bool("prefix", "grant a prefix permission"),
    ],
    run: Some(|session| Box::pin(grant_permission(session))),
    ..Command::EMPTY
};

const LIST: Command = Command {
    usage: "list",
    short: "Lists all roles",
    run: Some(|session| Box::pin(list(session))),
    ..Command::EMPTY
};

const REVOKE_PERMISSION: Command = Command {
    usage: "revoke-permission <role name> <key> [endkey]",
    short: "Revokes a key from a role",
    flags: &[
        Flag::bool(
            "from-key",
            "revoke a permission of keys that are greater than or equal to the given key using byte compare",
        ),
        Flag::bool("prefix", "revoke a prefix permission"),
    ],
    run: Some(|session| Box::pin(revoke_permission(session))),
    ..Command::EMPTY
};

/// Returns the only argument. If the number of arguments is not one, returns an error that names this command.
fn only_name(session: &Session, command: &str) -> Result<String, Failure> {
    match (session.matches.arg(0), session.matches.args.len()) {
        (Some(name), 1) => Ok(name),
        _ => {
            let text = format!("role {command} command requires role name as its argument");
            Err(Failure::bad_args(text))
        }
    }
}

/// Returns the key range of a permission. `args` are the key and, optionally, the range end.
fn range(matches: &Matches, args: &[Vec<u8>]) -> Result<KeyRange, Failure> {
    let (prefix, from_key) = (matches.bool("prefix"), matches.bool("from-key"));
    let key = args.first().cloned().unwrap_or_default();
    if prefix && from_key && (key.is_empty() || args.len() == 1) {
        return Err(Failure::bad_args("--from-key and --prefix flags are mutually exclusive"));
    }
    // An empty key stands for the first possible key, with or without a range flag.
    if key.is_empty() {
        let end = if prefix || from_key { vec![0] } else { Vec::new() };
        return Ok(KeyRange { key: vec![0], end });
    }
    let unexpected = |flag: &str| {
        Err(Failure::bad_args(format!("unexpected endkey argument with --{flag} flag")))
    };
    match args.get(1) {
        Some(_) if prefix => unexpected("prefix"),
        Some(_) if from_key => unexpected("from-key"),
        Some(end) => Ok(KeyRange { key, end: end.clone() }),
        None if prefix => Ok(KeyRange::prefix(key)),
        None if from_key => Ok(KeyRange::from(key)),
        None => Ok(KeyRange { key, end: Vec::new() }),
    }
}

async fn add(session: &Session) -> Result<(), Failure> {
    let name = only_name(session, "add")?;
    let client = session.client().await?;
    let add = async |channel, request| client.auth(channel).role_add(request).await;
    let request = AuthRoleAddRequest { name: name.clone() };
    let reply = client.call(None, Repeat::Never, request, add).await?;
    session.show(&Reply::Access(Access::RoleAdd(name, reply)))
}

async fn delete(session: &Session) -> Result<(), Failure> {
    let role = only_name(session, "delete")?;
    let client = session.client().await?;
    let delete = async |channel, request| client.auth(channel).role_delete(request).await;
    let request = AuthRoleDeleteRequest { role: role.clone() };
    let reply = client.call(None, Repeat::Never, request, delete).await?;
    session.show(&Reply::Access(Access::RoleDelete(role, reply)))
}

async fn get(session: &Session) -> Result<(), Failure> {
    let role = only_name(session, "get")?;
    let client = session.client().await?;
    let get = async |channel, request| client.auth(channel).role_get(request).await;
    let request = AuthRoleGetRequest { role: role.clone() };
    let reply = client.call(None, Repeat::Safe, request, get).await?;
    session.show(&Reply::Access(Access::RoleGet(role, reply)))
}

async fn list(session: &Session) -> Result<(), Failure> {
    if !session.matches.args.is_empty() {
        return Err(Failure::bad_args("role list command requires no arguments"));
    }
    let client = session.client().await?;
    let list = async |channel, request| client.auth(channel).role_list(request).await;
    let reply = client.call(None, Repeat::Safe, AuthRoleListRequest {}, list).await?;
    session.show(&Reply::Access(Access::RoleList(reply)))
}

async fn grant_permission(session: &Session) -> Result<(), Failure> {
    let args = &session.matches.args;
    let (Some(name), Some(kind), [_, _, keys @ ..]) =
        (session.matches.arg(0), session.matches.arg(1), &args[..])
    else {
        return Err(grant_usage());
    };
    if keys.is_empty() {
        return Err(grant_usage());
    }
    let perm_type = Type::from_str_name(&kind.to_uppercase())
        .ok_or_else(|| Failure::bad_args(format!("invalid permission type: {kind}")))?;
    let KeyRange { key, end } = range(&session.matches, keys)?;
    let perm = Permission { perm_type: perm_type.into(), key: key.into(), range_end: end.into() };
    let client = session.client().await?;
    let grant = async |channel, request| client.auth(channel).role_grant_permission(request).await;
    let request = AuthRoleGrantPermissionRequest { name: name.clone(), perm: Some(perm) };
    let reply = client.call(None, Repeat::Never, request, grant).await?;
    session.show(&Reply::Access(Access::RoleGrantPermission(name, reply)))
}

fn grant_usage() -> Failure {
    Failure::bad_args(
        "role grant command requires role name, permission type, and key [endkey] as its argument",
    )
}

async fn revoke_permission(session: &Session) -> Result<(), Failure> {
    let (Some(role), [_, keys @ ..]) = (session.matches.arg(0), &session.matches.args[..]) else {
        return Err(revoke_usage());
    };
    let Some(given) = keys.first() else { return Err(revoke_usage()) };
    let KeyRange { key, end } = range(&session.matches, keys)?;
    let client = session.client().await?;
    let revoke =
        async |channel, request| client.auth(channel).role_revoke_permission(request).await;
    let request = AuthRoleRevokePermissionRequest {
        role: role.clone(),
        key: key.into(),
        range_end: end.clone().into(),
    };
    let response = client.call(None, Repeat::Never, request, revoke).await?;
    // The key is printed as given on the command line.
    let key = given.clone();
    session.show(&Reply::Access(Access::RoleRevokePermission { role, key, end, response }))
}

fn revoke_usage() -> Failure {
    Failure::bad_args(
        "role revoke-permission command requires role name and key [endkey] as its argument",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &[&str]) -> Result<(Vec<u8>, Vec<u8>), String> {
        let line: Vec<_> = line.iter().map(|word| word.as_bytes().to_vec()).collect();
        let matches = Matches::parse(GRANT_PERMISSION.flags, &line).unwrap();
        range(&matches, &matches.args)
            .map(|range| (range.key, range.end))
            .map_err(|failure| failure.message.unwrap())
    }

    #[test]
    fn permissions_cover_a_key_a_range_or_all_keys() {
        for (line, key, end) in [
            (&["a"][..], "a", ""),
            (&["a", "c"], "a", "c"),
            (&["a", "--prefix"], "a", "b"),
            (&["a", "--from-key"], "a", "\0"),
            (&["", "--prefix"], "\0", "\0"),
            (&["", "--from-key"], "\0", "\0"),
            (&["", "end"], "\0", ""),
        ] {
            assert_eq!(of(line), Ok((key.into(), end.into())), "{line:?}");
        }
        for line in [
            &["a", "--prefix", "--from-key"][..],
            &["", "--prefix", "--from-key"],
            &["a", "b", "--prefix"],
            &["a", "b", "--from-key"],
        ] {
            assert!(of(line).is_err(), "{line:?}");
        }
    }
}
