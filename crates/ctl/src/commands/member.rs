//! `member`: who belongs to the cluster.

use quorate_api::etcdserverpb::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberPromoteRequest,
    MemberRemoveRequest, MemberUpdateRequest,
};

use super::{member_id, serializable};
use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::flags::Flag;
use crate::gotext::quote;
use crate::output::{Format, Reply};
use crate::peer_urls;
use crate::session::Session;

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

/// The only argument as a member's id.
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

/// The environment with which the new member is to be started.
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
    let reply = client.call(Some(session.timeout()), Repeat::Never, request, promote).await?;
    session.show(&Reply::MemberPromote(id, reply))
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
    use quorate_api::etcdserverpb::Member;

    use super::*;

    #[test]
    fn a_new_member_is_told_how_to_start() {
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
}
