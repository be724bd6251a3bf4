//! `auth`: enables and disables authentication, and shows whether it is enabled.

use std::time::Duration;

use quorate_api::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthStatusRequest,
    AuthUserGrantRoleRequest,
};
use tonic::Status;

use crate::client::{Client, Repeat};
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::output::{Access, Reply};
use crate::session::Session;

pub(crate) const AUTH: Command = Command {
    usage: "auth <enable or disable>",
    short: "Enable or disable authentication. Use `etcdctl auth --help` to see subcommands",
    long: "Enable or disable authentication",
    group: Some(group::AUTHENTICATION),
    children: &[&DISABLE, &ENABLE, &STATUS],
    ..Command::EMPTY
};

const DISABLE: Command = Command {
    usage: "disable",
    short: "Disables authentication",
    run: Some(|session| Box::pin(disable(session))),
    ..Command::EMPTY
};

const ENABLE: Command = Command {
    usage: "enable",
    short: "Enables authentication",
    run: Some(|session| Box::pin(enable(session))),
    ..Command::EMPTY
};

const STATUS: Command = Command {
    usage: "status",
    short: "Returns authentication status",
    run: Some(|session| Box::pin(status(session))),
    ..Command::EMPTY
};

/// Name of the user and the role that must exist before authentication can be enabled.
const ROOT: &str = "root";
const ROOT_ROLE_MISSING: &str = "etcdserver: root user does not have root role";

fn check_no_args(session: &Session, command: &str) -> Result<(), Failure> {
    if session.matches.args.is_empty() {
        return Ok(());
    }
    Err(Failure::bad_args(format!("auth {command} command does not accept any arguments")))
}

async fn enable(session: &Session) -> Result<(), Failure> {
    check_no_args(session, "enable")?;
    let client = session.client().await?;
    let timeout = Some(session.timeout());
    let request = AuthEnableRequest {};
    let enable = async |channel, request| client.auth(channel).auth_enable(request).await;
    match client.call(timeout, Repeat::Never, request, enable).await {
        Err(status) if status.message() == ROOT_ROLE_MISSING => {
            give_root_its_role(&client, timeout).await?;
            client.call(timeout, Repeat::Never, request, enable).await?;
        }
        reply => drop(reply?),
    }
    session.print("Authentication Enabled\n")
}

async fn give_root_its_role(client: &Client, timeout: Option<Duration>) -> Result<(), Status> {
    let request = AuthRoleAddRequest { name: ROOT.to_owned() };
    let add = async |channel, request| client.auth(channel).role_add(request).await;
    client.call(timeout, Repeat::Never, request, add).await?;
    let request = AuthUserGrantRoleRequest { user: ROOT.to_owned(), role: ROOT.to_owned() };
    let grant = async |channel, request| client.auth(channel).user_grant_role(request).await;
    client.call(timeout, Repeat::Never, request, grant).await?;
    Ok(())
}

async fn disable(session: &Session) -> Result<(), Failure> {
    check_no_args(session, "disable")?;
    let client = session.client().await?;
    let disable = async |channel, request| client.auth(channel).auth_disable(request).await;
    let timeout = Some(session.timeout());
    client.call(timeout, Repeat::Never, AuthDisableRequest {}, disable).await?;
    session.print("Authentication Disabled\n")
}

async fn status(session: &Session) -> Result<(), Failure> {
    check_no_args(session, "status")?;
    let client = session.client().await?;
    let ask = async |channel, request| client.auth(channel).auth_status(request).await;
    let timeout = Some(session.timeout());
    let reply = client.call(timeout, Repeat::Safe, AuthStatusRequest {}, ask).await?;
    session.show(&Reply::Access(Access::Status(reply)))
}
