//! `move-leader`: transfers leadership to another member.

use quorate_api::etcdserverpb::{MoveLeaderRequest, StatusRequest};

use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::gotext::parse_uint;
use crate::output::Reply;
use crate::session::Session;

pub(crate) const MOVE_LEADER: Command = Command {
    usage: "move-leader <transferee-member-id>",
    short: "Transfers leadership to another etcd cluster member.",
    group: Some(group::MAINTENANCE),
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    let to = match (session.matches.arg(0), session.matches.args.len()) {
        (Some(id), 1) => parse_uint(&id, 16).map_err(Failure::bad_args)?,
        _ => return Err(Failure::bad_args("move-leader command needs 1 argument")),
    };
    let endpoints = session.endpoints().await?;
    // Only the leader can transfer leadership, so it must be among the endpoints.
    for endpoint in &endpoints {
        let client = session.client_of(vec![endpoint.clone()]).await?;
        let status = async |channel, request| client.maintenance(channel).status(request).await;
        let timeout = Some(session.timeout());
        let reply = client.call(timeout, Repeat::Safe, StatusRequest {}, status).await?;
        let from = reply.leader;
        if reply.header.is_none_or(|header| header.member_id != from) {
            continue;
        }
        let request = MoveLeaderRequest { target_id: to };
        let transfer =
            async |channel, request| client.maintenance(channel).move_leader(request).await;
        let response = client.call(timeout, Repeat::Safe, request, transfer).await?;
        return session.show(&Reply::MoveLeader { from, to, response });
    }
    let endpoints = endpoints.join(" ");
    Err(Failure::bad_args(format!("no leader endpoint given at [{endpoints}]")))
}
