//! `endpoint`: prints the health, status and hash of each endpoint.

use std::rc::Rc;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb::{
    AlarmType, HashKvRequest, MemberListRequest, RangeRequest, StatusRequest,
};
use tonic::Code;

use super::alarm;
use crate::client::{Client, Repeat};
use crate::command::{Command, group};
use crate::failure::{Failure, exit, status_text};
use crate::flags::Flag;
use crate::gotext::duration;
use crate::output::{Health, Reply};
use crate::session::Session;

pub(crate) const CLUSTER_FLAG: Flag =
    Flag::bool("cluster", "use all endpoints from the cluster member list");

pub(crate) const ENDPOINT: Command = Command {
    usage: "endpoint <subcommand>",
    short: "Endpoint related commands. Use `etcdctl endpoint --help` to see subcommands",
    long: "Endpoint related commands",
    group: Some(group::MAINTENANCE),
    inherited: &[CLUSTER_FLAG],
    children: &[&HASH_KV, &HEALTH, &STATUS],
    ..Command::EMPTY
};

const HEALTH: Command = Command {
    usage: "health",
    short: "Checks the healthiness of endpoints specified in `--endpoints` flag",
    run: Some(|session| Box::pin(health(session))),
    ..Command::EMPTY
};

const STATUS: Command = Command {
    usage: "status",
    short: "Prints out the status of endpoints specified in `--endpoints` flag",
    long: "\
When --write-out is set to simple, this command prints out comma-separated status lists for each endpoint.
The items in the lists are endpoint, ID, version, storage version, db size, in use, percentage not in use, quota, is leader, is learner, raft term, raft index, raft applied index, errors, downgrade target version, downgrade enabled.",
    run: Some(|session| Box::pin(status(session))),
    ..Command::EMPTY
};

const HASH_KV: Command = Command {
    usage: "hashkv",
    short: "Prints the KV history hash for each endpoint in --endpoints",
    flags: &[Flag::int("rev", "maximum revision to hash (default: latest revision)")],
    run: Some(|session| Box::pin(hash_kv(session))),
    ..Command::EMPTY
};

/// Returns the endpoints to query: the given endpoints, or the endpoints of all members.
pub(crate) async fn chosen(session: &Session) -> Result<Vec<String>, Failure> {
    if !session.matches.bool("cluster") {
        return session.endpoints().await;
    }
    let client = session.client().await.map_err(|failure| match failure.code {
        // For a connection error at this point, etcdctl exits with a different code than in other places.
        exit::BAD_CONNECTION => Failure { code: exit::ERROR, ..failure },
        _ => failure,
    })?;
    let list = async |channel, request| client.cluster(channel).member_list(request).await;
    let request = MemberListRequest { linearizable: true };
    let reply = client.call(Some(session.timeout()), Repeat::Safe, request, list).await;
    let reply = reply.map_err(|status| {
        let reason = status_text(&status);
        Failure::error(format!("failed to fetch endpoints from etcd cluster member list: {reason}"))
    })?;
    let mut urls = Vec::new();
    for member in reply.members {
        urls.extend(session.usable_urls(member.client_urls).await?);
    }
    Ok(urls)
}

async fn health(session: &Session) -> Result<(), Failure> {
    let mut checks = Vec::new();
    for endpoint in chosen(session).await? {
        let client = Rc::new(session.prepare(vec![endpoint.clone()])?);
        let timeout = session.timeout();
        checks.push(tokio::task::spawn_local(check(client, endpoint, timeout)));
    }
    let mut list = Vec::new();
    for check in checks {
        list.push(check.await.map_err(|error| Failure::error(error.to_string()))?);
    }
    let healthy = list.iter().all(|health| health.error.is_empty());
    session.show(&Reply::Health(list))?;
    if healthy { Ok(()) } else { Err(Failure::error("unhealthy cluster")) }
}

/// Checks whether an endpoint answers a linearizable read and has no alarm.
async fn check(client: Rc<Client>, endpoint: String, timeout: Duration) -> Health {
    if let Err(status) = client.log_in().await {
        let error = status_text(&status);
        return Health { endpoint, healthy: false, took: String::new(), error };
    }
    let start = Instant::now();
    let request = RangeRequest { key: "health".into(), ..Default::default() };
    let range = async |channel, request| client.kv(channel).range(request).await;
    let result = client.call(Some(timeout), Repeat::Safe, request, range).await;
    let took = duration(start.elapsed());
    let error = match result {
        // A permission error also proves that a quorum answered.
        Err(status) if status.code() != Code::PermissionDenied => status_text(&status),
        _ => {
            let left = timeout.saturating_sub(start.elapsed());
            match alarm::active(&client, left).await {
                Err(_) => "Unable to fetch the alarm list".to_owned(),
                Ok(reply) if reply.alarms.is_empty() => String::new(),
                Ok(reply) => {
                    let name = |alarm| match AlarmType::try_from(alarm) {
                        Ok(AlarmType::Nospace) => "NOSPACE ",
                        Ok(AlarmType::Corrupt) => "CORRUPT ",
                        _ => "UNKNOWN ",
                    };
                    let names: String =
                        reply.alarms.iter().map(|alarm| name(alarm.alarm)).collect();
                    format!("Active Alarm(s): {names}")
                }
            }
        }
    };
    Health { endpoint, healthy: error.is_empty(), took, error }
}

async fn status(session: &Session) -> Result<(), Failure> {
    let (mut list, mut failed) = (Vec::new(), false);
    for endpoint in chosen(session).await? {
        let client = session.client_of(vec![endpoint.clone()]).await?;
        let status = async |channel, request| client.maintenance(channel).status(request).await;
        let timeout = Some(session.timeout());
        match client.call(timeout, Repeat::Safe, StatusRequest {}, status).await {
            Ok(reply) => list.push((endpoint, reply)),
            Err(status) => {
                failed = true;
                let reason = status_text(&status);
                let text = format!("Failed to get the status of endpoint {endpoint} ({reason})\n");
                session.print_error(&text);
            }
        }
    }
    session.show(&Reply::Status(list))?;
    if failed { Err(Failure::silent(exit::ERROR)) } else { Ok(()) }
}

async fn hash_kv(session: &Session) -> Result<(), Failure> {
    let revision = session.matches.int("rev");
    let (mut list, mut failure) = (Vec::new(), None);
    for endpoint in chosen(session).await? {
        let client = session.client_of(vec![endpoint.clone()]).await?;
        let hash = async |channel, request| client.maintenance(channel).hash_kv(request).await;
        let timeout = Some(session.timeout());
        match client.call(timeout, Repeat::Safe, HashKvRequest { revision }, hash).await {
            Ok(reply) => list.push((endpoint, reply)),
            Err(status) => {
                let reason = status_text(&status);
                let text = format!("Failed to get the hash of endpoint {endpoint} ({reason})\n");
                session.print_error(&text);
                failure = Some(Failure::error(reason));
            }
        }
    }
    session.show(&Reply::HashKv(list))?;
    failure.map_or(Ok(()), Err)
}
