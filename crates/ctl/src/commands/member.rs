//! `member`: lists, adds, updates, promotes and removes members.

use std::time::Duration;

use quorate_api::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberPromoteRequest,
    MemberRemoveRequest, MemberUpdateRequest, StatusRequest,
};
use tokio::time::timeout;

use super::{member_id, serializable};
use crate::client::{Client, Repeat};
use crate::command::{Command, group};
use crate::failure::{Failure, exit, status_text};
use crate::flags::Flag;
use crate::gotext::quote;
use crate::output::{Format, Reply};
use crate::peer_urls;
use crate::session::Session;

/// Error text for a learner that lacks part of the leader's log.
const NOT_IN_SYNC: &str =
    "etcdserver: can only promote a learner member which is in sync with leader";
/// Timeout for determining how far the learner is behind.
const PROGRESS_TIME: Duration = Duration::from_secs(2);

pub(crate) const MEMBER: Command = Command {
    usage: "member <subcommand>",
    short: "Membership related commands. Use `etcdctl member --help` to see subcommands",
    long: "Membership related commands",
    group: Some(group::MAINTENANCE),
    children: &[&ADD, &LIST, &PROMOTE, &REMOVE, &UPDATE],
    ..Command::EMPTY
};

const ADD: Command = Command {
    usage: "add <memberName> [options]",
    short: "Adds a member into the cluster",
    flags: &[
        Flag::text("peer-urls", "", "comma separated peer URLs for the new member."),
        Flag::bool("learner", "indicates if the new member is raft learner"),
    ],
    run: Some(|session| Box::pin(add(session))),
    ..Command::EMPTY
};

const LIST: Command = Command {
    usage: "list",
    short: "Lists all members in the cluster",
    long: "\
When --write-out is set to simple, this command prints out comma-separated member lists for each endpoint.
The items in the lists are ID, Status, Name, Peer Addrs, Client Addrs, Is Learner.",
    flags: &[Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)")],
    run: Some(|session| Box::pin(list(session))),
    ..Command::EMPTY
};

const PROMOTE: Command = Command {
    usage: "promote <memberID>",
    short: "Promotes a non-voting member in the cluster",
    long: "Promotes a non-voting learner member to a voting one in the cluster.",
    run: Some(|session| Box::pin(promote(session))),
    ..Command::EMPTY
};

const REMOVE: Command = Command {
    usage: "remove <memberID>",
    short: "Removes a member from the cluster",
    run: Some(|session| Box::pin(remove(session))),
    ..Command::EMPTY
};

const UPDATE: Command = Command {
    usage: "update <memberID> [options]",
    short: "Updates a member in the cluster",
    flags: &[Flag::text("peer-urls", "", "comma separated peer URLs for the updated member.")],
    run: Some(|session| Box::pin(update(session))),
    ..Command::EMPTY
};

/// Returns the only argument as a member id.
fn only_id(session: &Session) -> Result<u64, Failure> {
    match (session.matches.arg(0), session.matches.args.len()) {
        (Some(id), 1) => member_id(&id),
        _ => Err(Failure::bad_args("member ID is not provided")),
    }
}

fn peer_urls(session: &Session) -> Result<Vec<String>, Failure> {
    peer_urls::parse(session.matches.text("peer-urls"))
}

async fn add(session: &Session) -> Result<(), Failure> {
    let name = match (session.matches.arg(0), session.matches.args.len()) {
        (None, _) => return Err(Failure::bad_args("member name not provided")),
        (Some(name), 1) => name,
        _ => {
            let args = (0..session.matches.args.len()).filter_map(|at| session.matches.arg(at));
            let urls = args.filter(|arg| arg.to_lowercase().starts_with("http"));
            let hints: String =
                urls.map(|url| format!(", did you mean --peer-urls={url}")).collect();
            return Err(Failure::bad_args(format!("too many arguments{hints}")));
        }
    };
    let request = MemberAddRequest {
        peer_urls: peer_urls(session)?,
        is_learner: session.matches.bool("learner"),
    };
    let client = session.client().await?;
    let add = async |channel, request| client.cluster(channel).member_add(request).await;
    let reply = client.call(Some(session.timeout()), Repeat::Never, request, add).await?;
    session.show(&Reply::MemberAdd(reply.clone()))?;
    if session.format()? == Format::Simple {
        session.print(&configuration(&name, session.matches.text("peer-urls"), &reply))?;
    }
    Ok(())
}

/// Returns the environment variables with which the new member must be started.
fn configuration(name: &str, peer_urls: &str, reply: &MemberAddResponse) -> String {
    let new = reply.member.as_ref().map_or(0, |member| member.id);
    let mut cluster = Vec::new();
    for member in &reply.members {
        let member_name = if member.id == new { name } else { &member.name };
        cluster.extend(member.peer_urls.iter().map(|url| format!("{member_name}={url}")));
    }
    let quoted = |text: &str| quote(text.as_bytes());
    format!(
        "\nETCD_NAME={}\nETCD_INITIAL_CLUSTER={}\nETCD_INITIAL_ADVERTISE_PEER_URLS={}\n\
         ETCD_INITIAL_CLUSTER_STATE=\"existing\"\n",
        quoted(name),
        quoted(&cluster.join(",")),
        quoted(peer_urls)
    )
}

async fn list(session: &Session) -> Result<(), Failure> {
    let linearizable = !serializable(session.matches.text("consistency"))?;
    let client = session.client().await?;
    let list = async |channel, request| client.cluster(channel).member_list(request).await;
    let request = MemberListRequest { linearizable };
    let reply = client.call(Some(session.timeout()), Repeat::Safe, request, list).await?;
    session.show(&Reply::MemberList(reply))
}

async fn promote(session: &Session) -> Result<(), Failure> {
    let id = only_id(session)?;
    let client = session.client().await?;
    let promote = async |channel, request| client.cluster(channel).member_promote(request).await;
    let request = MemberPromoteRequest { id };
    match client.call(Some(session.timeout()), Repeat::Never, request, promote).await {
        Ok(reply) => session.show(&Reply::MemberPromote(id, reply)),
        Err(status) if status.message() == NOT_IN_SYNC => {
            // The progress line is not part of etcdctl's output, so it follows the error line, which scripts may parse.
            let refusal = status_text(&status);
            let progress = match timeout(PROGRESS_TIME, progress(session, client, id)).await {
                Ok(progress) => progress.unwrap_or_else(|reason| reason),
                Err(_) => format!("learner {id:x} is not responding"),
            };
            Err(Failure::new(exit::ERROR, format!("{refusal}\n{progress}")))
        }
        Err(status) => Err(status.into()),
    }
}

/// Describes how much of the log a learner has. Returns an error text if that cannot be determined.
async fn progress(session: &Session, client: Client, id: u64) -> Result<String, String> {
    let client = client.without_warnings();
    let list = async |channel, request| client.cluster(channel).member_list(request).await;
    let request = MemberListRequest { linearizable: false };
    let listed = client.call(None, Repeat::Safe, request, list).await;
    let listed =
        listed.map_err(|status| format!("cannot list members: {}", status_text(&status)))?;
    let learner = listed.members.into_iter().find(|member| member.id == id);
    let Some(Member { client_urls, .. }) = learner.filter(|it| !it.client_urls.is_empty()) else {
        return Err(format!("learner {id:x} has not started, or cannot reach the leader"));
    };
    let unreachable = |reason: String| format!("learner {id:x} is not responding: {reason}");
    let learner = async {
        let client = session.prepare(session.usable_urls(client_urls).await?)?;
        client.without_warnings().failing_fast().logged_in().await
    };
    let learner = learner.await;
    let learner = learner.map_err(|failure| unreachable(failure.message.unwrap_or_default()))?;
    let learner_index = committed(&learner).await.map_err(unreachable)?;
    let index = committed(&client).await?;
    Ok(progress_text(id, learner_index, index))
}

/// Returns a member's commit index.
async fn committed(client: &Client) -> Result<u64, String> {
    let status = async |channel, request| client.maintenance(channel).status(request).await;
    let reply = client.call(None, Repeat::Safe, StatusRequest {}, status).await;
    reply.map(|status| status.raft_index).map_err(|status| status_text(&status))
}

fn progress_text(id: u64, learner_index: u64, index: u64) -> String {
    let (behind, percent) = (
        index.saturating_sub(learner_index),
        u128::from(learner_index) * 100 / u128::from(index.max(1)),
    );
    format!(
        "learner {id:x} is {behind} log entries behind: it has {learner_index} of {index} ({percent}%), and needs 90% \
         to be promoted"
    )
}

async fn remove(session: &Session) -> Result<(), Failure> {
    let id = only_id(session)?;
    let client = session.client().await?;
    let remove = async |channel, request| client.cluster(channel).member_remove(request).await;
    let request = MemberRemoveRequest { id };
    let reply = client.call(Some(session.timeout()), Repeat::Never, request, remove).await?;
    session.show(&Reply::MemberRemove(id, reply))
}

async fn update(session: &Session) -> Result<(), Failure> {
    let id = only_id(session)?;
    let request = MemberUpdateRequest { id, peer_urls: peer_urls(session)? };
    let client = session.client().await?;
    let update = async |channel, request| client.cluster(channel).member_update(request).await;
    let reply = client.call(Some(session.timeout()), Repeat::Never, request, update).await?;
    session.show(&Reply::MemberUpdate(id, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_add_prints_the_start_configuration() {
        let member = |id, name: &str, url: &str| Member {
            id,
            name: name.to_owned(),
            peer_urls: vec![url.to_owned()],
            ..Default::default()
        };
        let reply = MemberAddResponse {
            header: None,
            member: Some(member(2, "", "http://b:1")),
            members: vec![member(1, "a", "http://a:1"), member(2, "", "http://b:1")],
        };
        assert_eq!(
            configuration("b", "http://b:1", &reply),
            "\nETCD_NAME=\"b\"\nETCD_INITIAL_CLUSTER=\"a=http://a:1,b=http://b:1\"\n\
             ETCD_INITIAL_ADVERTISE_PEER_URLS=\"http://b:1\"\nETCD_INITIAL_CLUSTER_STATE=\"existing\"\n"
        );
    }

    #[test]
    fn the_progress_of_a_learner_is_printed_in_entries_and_as_a_percentage() {
        let text = progress_text(0xa1, 120, 1_000);
        assert!(text.starts_with("learner a1 is 880 log entries behind: "), "{text}");
        assert!(text.contains("120 of 1000 (12%)"), "{text}");
        // The learner may be queried after the other member, and may then be ahead of it.
        assert!(progress_text(1, 7, 6).contains("is 0 log entries behind"));
        assert!(progress_text(1, 0, 0).contains("(0%)"));
        assert!(progress_text(1, u64::MAX, u64::MAX).contains("(100%)"));
    }
}
