//! `downgrade`: prepares the cluster for an older version.

use quorate_api::etcdserverpb::DowngradeRequest;
use quorate_api::etcdserverpb::downgrade_request::DowngradeAction;

use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::output::Reply;
use crate::session::Session;

pub(crate) const DOWNGRADE: Command = Command {
    usage: "downgrade <TARGET_VERSION>",
    short: "Downgrade related commands. Use `etcdctl downgrade --help` to see subcommands",
    long: "Downgrade related commands",
    group: Some(group::MAINTENANCE),
    children: &[&CANCEL, &ENABLE, &VALIDATE],
    ..Command::EMPTY
};

const CANCEL: Command = Command {
    usage: "cancel",
    short: "Cancel the ongoing downgrade action to cluster",
    run: Some(|session| Box::pin(run(session, DowngradeAction::Cancel, "cancel"))),
    ..Command::EMPTY
};

const ENABLE: Command = Command {
    usage: "enable <TARGET_VERSION>",
    short: "Start a downgrade action to cluster",
    run: Some(|session| Box::pin(run(session, DowngradeAction::Enable, "enable"))),
    ..Command::EMPTY
};

const VALIDATE: Command = Command {
    usage: "validate <TARGET_VERSION>",
    short: "Validate downgrade capability before starting downgrade",
    run: Some(|session| Box::pin(run(session, DowngradeAction::Validate, "validate"))),
    ..Command::EMPTY
};

async fn run(
    session: &Session,
    action: DowngradeAction,
    name: &'static str,
) -> Result<(), Failure> {
    let version = if action == DowngradeAction::Cancel {
        String::new()
    } else {
        match (session.matches.arg(0), session.matches.args.len()) {
            (None, _) => return Err(Failure::bad_args("TARGET_VERSION not provided")),
            (Some(version), 1) if version.is_empty() => {
                return Err(Failure::bad_args("target version not provided"));
            }
            (Some(version), 1) => version,
            _ => return Err(Failure::bad_args("too many arguments")),
        }
    };
    let client = session.client().await?;
    let request = DowngradeRequest { action: action as i32, version };
    let downgrade = async |channel, request| client.maintenance(channel).downgrade(request).await;
    let reply = client.call(Some(session.timeout()), Repeat::Never, request, downgrade).await?;
    session.show(&Reply::Downgrade(name, reply))
}
