//! `user`: adds, deletes and shows users, and changes their passwords and roles.
//!
//! These commands have no timeout, because they may wait for the user to type a password.

use quorate_api::authpb::UserAddOptions;
use quorate_api::etcdserverpb::{
    AuthRoleGetRequest, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGetRequest, AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest,
};

use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::flags::{Flag, Kind};
use crate::output::{Access, Reply};
use crate::session::Session;

pub(crate) const USER: Command = Command {
    usage: "user <subcommand>",
    short: "User related commands. Use `etcdctl user --help` to see subcommands",
    long: "User related commands",
    group: Some(group::AUTHENTICATION),
    children: &[&ADD, &DELETE, &GET, &GRANT_ROLE, &LIST, &PASSWD, &REVOKE_ROLE],
    ..Command::EMPTY
};

const ADD: Command = Command {
    usage: "add <user name or user:password> [options]",
    short: "Adds a new user",
    flags: &[
        interactive("Read password from stdin instead of interactive terminal"),
        Flag::text("new-user-password", "", "Supply password from the command line flag"),
        Flag::bool("no-password", "Create a user without password (CN based auth only)"),
    ],
    run: Some(|session| Box::pin(add(session))),
    ..Command::EMPTY
};

const DELETE: Command = Command {
    usage: "delete <user name>",
    short: "Deletes a user",
    run: Some(|session| Box::pin(delete(session))),
    ..Command::EMPTY
};

const GET: Command = Command {
    usage: "get <user name> [options]",
    short: "Gets detailed information of a user",
    flags: &[Flag::bool("detail", "Show permissions of roles granted to the user")],
    run: Some(|session| Box::pin(get(session))),
    ..Command::EMPTY
};

const GRANT_ROLE: Command = Command {
    usage: "grant-role <user name> <role name>",
    short: "Grants a role to a user",
    run: Some(|session| Box::pin(grant_role(session))),
    ..Command::EMPTY
};

const LIST: Command = Command {
    usage: "list",
    short: "Lists all users",
    run: Some(|session| Box::pin(list(session))),
    ..Command::EMPTY
};

const PASSWD: Command = Command {
    usage: "passwd <user name> [options]",
    short: "Changes password of user",
    flags: &[interactive("If true, read password from stdin instead of interactive terminal")],
    run: Some(|session| Box::pin(passwd(session))),
    ..Command::EMPTY
};

const REVOKE_ROLE: Command = Command {
    usage: "revoke-role <user name> <role name>",
    short: "Revokes a role from a user",
    run: Some(|session| Box::pin(revoke_role(session))),
    ..Command::EMPTY
};

/// Returns the flag that controls whether the password is typed twice. The flag's help text is copied from etcdctl and
/// states the opposite.
const fn interactive(usage: &'static str) -> Flag {
    Flag { name: "interactive", short: None, kind: Kind::Bool, default: "true", usage }
}

/// Returns the arguments. If there are not exactly `COUNT` arguments, returns an error with the text `refusal`.
fn args<const COUNT: usize>(session: &Session, refusal: &str) -> Result<[String; COUNT], Failure> {
    let args = (0..session.matches.args.len()).filter_map(|at| session.matches.arg(at));
    let args: Vec<String> = args.collect();
    args.try_into().map_err(|_| Failure::bad_args(refusal))
}

/// Reads a user's password, typed once or twice.
fn new_password(session: &Session, user: &str) -> Result<String, Failure> {
    if !session.matches.bool("interactive") {
        return Ok(first_word(&session.read_line()?));
    }
    let ask = |prompt: String| {
        let asked = session.read_secret(&prompt);
        asked.map_err(|error| Failure::bad_args(format!("failed to ask password: {error}")))
    };
    let password = ask(format!("Password of {user}: "))?;
    if password.is_empty() {
        return Err(Failure::bad_args("empty password"));
    }
    let again = ask(format!("Type password of {user} again for confirmation: "))?;
    if again != password {
        return Err(Failure::bad_args("given passwords are different"));
    }
    Ok(password)
}

/// Returns the first word of a line, ignoring the rest.
fn first_word(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Returns the request for a new user, including the password.
fn new_user(session: &Session) -> Result<AuthUserAddRequest, Failure> {
    let [name] = args(session, "user add command requires user name as its argument")?;
    let given = session.matches.text("new-user-password");
    let no_password = session.matches.bool("no-password");
    let (name, password) = match name.split_once(':') {
        _ if no_password => (name, String::new()),
        _ if !given.is_empty() => (name, given.to_owned()),
        Some(("", _)) => return Err(Failure::bad_args("empty user name is not allowed")),
        Some((name, password)) => (name.to_owned(), password.to_owned()),
        None => {
            let password = new_password(session, &name)?;
            (name, password)
        }
    };
    let options = Some(UserAddOptions { no_password });
    Ok(AuthUserAddRequest { name, password, options, ..Default::default() })
}

async fn add(session: &Session) -> Result<(), Failure> {
    let request = new_user(session)?;
    let name = request.name.clone();
    let client = session.client().await?;
    let add = async |channel, request| client.auth(channel).user_add(request).await;
    let reply = client.call(None, Repeat::Never, request, add).await?;
    session.show(&Reply::Access(Access::UserAdd(name, reply)))
}

async fn delete(session: &Session) -> Result<(), Failure> {
    let [name] = args(session, "user delete command requires user name as its argument")?;
    let client = session.client().await?;
    let delete = async |channel, request| client.auth(channel).user_delete(request).await;
    let request = AuthUserDeleteRequest { name: name.clone() };
    let reply = client.call(None, Repeat::Never, request, delete).await?;
    session.show(&Reply::Access(Access::UserDelete(name, reply)))
}

async fn get(session: &Session) -> Result<(), Failure> {
    let [name] = args(session, "user get command requires user name as its argument")?;
    let client = session.client().await?;
    let get = async |channel, request| client.auth(channel).user_get(request).await;
    let request = AuthUserGetRequest { name: name.clone() };
    let reply = client.call(None, Repeat::Safe, request, get).await?;
    if !session.matches.bool("detail") {
        return session.show(&Reply::Access(Access::UserGet(name, reply)));
    }
    session.print(&format!("User: {name}\n"))?;
    for role in reply.roles {
        session.print("\n")?;
        let get = async |channel, request| client.auth(channel).role_get(request).await;
        let request = AuthRoleGetRequest { role: role.clone() };
        let reply = client.call(None, Repeat::Safe, request, get).await?;
        session.show(&Reply::Access(Access::RoleGet(role, reply)))?;
    }
    Ok(())
}

async fn list(session: &Session) -> Result<(), Failure> {
    let [] = args(session, "user list command requires no arguments")?;
    let client = session.client().await?;
    let list = async |channel, request| client.auth(channel).user_list(request).await;
    let reply = client.call(None, Repeat::Safe, AuthUserListRequest {}, list).await?;
    session.show(&Reply::Access(Access::UserList(reply)))
}

async fn passwd(session: &Session) -> Result<(), Failure> {
    let [name] = args(session, "user passwd command requires user name as its argument")?;
    let password = new_password(session, &name)?;
    let client = session.client().await?;
    let change = async |channel, request| client.auth(channel).user_change_password(request).await;
    let request = AuthUserChangePasswordRequest { name, password, ..Default::default() };
    let reply = client.call(None, Repeat::Never, request, change).await?;
    session.show(&Reply::Access(Access::UserChangePassword(reply)))
}

async fn grant_role(session: &Session) -> Result<(), Failure> {
    let refusal = "user grant command requires user name and role name as its argument";
    let [user, role] = args(session, refusal)?;
    let client = session.client().await?;
    let grant = async |channel, request| client.auth(channel).user_grant_role(request).await;
    let request = AuthUserGrantRoleRequest { user: user.clone(), role: role.clone() };
    let response = client.call(None, Repeat::Never, request, grant).await?;
    session.show(&Reply::Access(Access::UserGrantRole { user, role, response }))
}

async fn revoke_role(session: &Session) -> Result<(), Failure> {
    let refusal = "user revoke-role requires user name and role name as its argument";
    let [user, role] = args(session, refusal)?;
    let client = session.client().await?;
    let revoke = async |channel, request| client.auth(channel).user_revoke_role(request).await;
    let request = AuthUserRevokeRoleRequest { name: user.clone(), role: role.clone() };
    let response = client.call(None, Repeat::Never, request, revoke).await?;
    session.show(&Reply::Access(Access::UserRevokeRole { user, role, response }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_of_standard_input_is_the_password() {
        for (line, word) in
            [(&b"secret\n"[..], "secret"), (b"  two words\n", "two"), (b"\n", ""), (b"", "")]
        {
            assert_eq!(first_word(line), word);
        }
    }
}
