//! `alarm`: lists and disarms alarms.

use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{AlarmRequest, AlarmResponse};
use tonic::Status;

use crate::client::{Client, Repeat};
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::output::Reply;
use crate::session::Session;

pub(crate) const ALARM: Command = Command {
    usage: "alarm <subcommand>",
    short: "Alarm related commands. Use `etcdctl alarm --help` to see subcommands",
    long: "Alarm related commands",
    group: Some(group::MAINTENANCE),
    children: &[&DISARM, &LIST],
    ..Command::EMPTY
};

const DISARM: Command = Command {
    usage: "disarm",
    short: "Disarms all alarms",
    run: Some(|session| Box::pin(disarm(session))),
    ..Command::EMPTY
};

const LIST: Command = Command {
    usage: "list",
    short: "Lists all alarms",
    run: Some(|session| Box::pin(list(session))),
    ..Command::EMPTY
};

/// Requests all active alarms.
pub(crate) async fn active(
    client: &Client,
    timeout: std::time::Duration,
) -> Result<AlarmResponse, Status> {
    let request = AlarmRequest { action: AlarmAction::Get as i32, ..Default::default() };
    let alarm = async |channel, request| client.maintenance(channel).alarm(request).await;
    client.call(Some(timeout), Repeat::Safe, request, alarm).await
}

async fn list(session: &Session) -> Result<(), Failure> {
    if !session.matches.args.is_empty() {
        return Err(Failure::bad_args("alarm list command accepts no arguments"));
    }
    let client = session.client().await?;
    session.show(&Reply::Alarm(active(&client, session.timeout()).await?))
}

async fn disarm(session: &Session) -> Result<(), Failure> {
    if !session.matches.args.is_empty() {
        return Err(Failure::bad_args("alarm disarm command accepts no arguments"));
    }
    let client = session.client().await?;
    let mut all = AlarmResponse::default();
    for alarm in active(&client, session.timeout()).await?.alarms {
        let request = AlarmRequest {
            action: AlarmAction::Deactivate as i32,
            member_id: alarm.member_id,
            alarm: alarm.alarm,
        };
        let alarm = async |channel, request| client.maintenance(channel).alarm(request).await;
        let reply = client.call(Some(session.timeout()), Repeat::Safe, request, alarm).await?;
        all.alarms.extend(reply.alarms);
    }
    session.show(&Reply::Alarm(all))
}
