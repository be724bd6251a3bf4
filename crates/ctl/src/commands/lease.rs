//! `lease`: grants, revokes, lists, inspects and renews leases.

use std::time::Duration;

use quorate_api::etcdserverpb::{
    LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
};
use tonic::Status;

use super::lease_id;
use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::{Failure, exit, status_text};
use crate::flags::Flag;
use crate::gotext::parse_int;
use crate::output::{Format, Reply};
use crate::renewal::{keep, renew_once};
use crate::session::Session;

pub(crate) const LEASE: Command = Command {
    usage: "lease <subcommand>",
    short: "Lease related commands. Use `etcdctl lease --help` to see subcommands",
    long: "Lease related commands",
    group: Some(group::KEY_VALUE),
    children: &[&GRANT, &KEEP_ALIVE, &LIST, &REVOKE, &TIME_TO_LIVE],
    ..Command::EMPTY
};

const GRANT: Command = Command {
    usage: "grant <ttl>",
    short: "Creates leases",
    run: Some(|session| Box::pin(grant(session))),
    ..Command::EMPTY
};

const KEEP_ALIVE: Command = Command {
    usage: "keep-alive [options] <leaseID>",
    short: "Keeps leases alive (renew)",
    flags: &[Flag::bool(
        "once",
        "Resets the keep-alive time to its original value and exits immediately",
    )],
    run: Some(|session| Box::pin(keep_alive(session))),
    ..Command::EMPTY
};

const LIST: Command = Command {
    usage: "list",
    short: "List all active leases",
    run: Some(|session| Box::pin(list(session))),
    ..Command::EMPTY
};

const REVOKE: Command = Command {
    usage: "revoke <leaseID>",
    short: "Revokes leases",
    run: Some(|session| Box::pin(revoke(session))),
    ..Command::EMPTY
};

const TIME_TO_LIVE: Command = Command {
    usage: "timetolive <leaseID> [options]",
    short: "Get lease information",
    flags: &[Flag::bool("keys", "Get keys attached to this lease")],
    run: Some(|session| Box::pin(time_to_live(session))),
    ..Command::EMPTY
};

/// TTL that is assumed for a lease until the first response reports it.
const FIRST_LIFE: Duration = Duration::from_secs(5);

/// Returns the only argument. If the number of arguments is not one, returns an error with the text `refusal`.
fn only_arg(session: &Session, refusal: &str) -> Result<String, Failure> {
    match (session.matches.arg(0), session.matches.args.len()) {
        (Some(arg), 1) => Ok(arg),
        _ => Err(Failure::bad_args(refusal)),
    }
}

/// Converts the error of a failed call. The lease commands have a different exit code for this error than other
/// commands.
fn bad_connection(status: &Status) -> Failure {
    Failure::new(exit::BAD_CONNECTION, status_text(status))
}

async fn grant(session: &Session) -> Result<(), Failure> {
    let ttl = only_arg(session, "lease grant command needs TTL argument")?;
    let ttl =
        parse_int(&ttl, 10).map_err(|error| Failure::bad_args(format!("bad TTL ({error})")))?;
    let client = session.client().await?;
    let grant = async |channel, request| client.lease(channel).lease_grant(request).await;
    let request = LeaseGrantRequest { ttl, id: 0 };
    let reply = client.call(Some(session.timeout()), Repeat::Safe, request, grant).await;
    let reply = reply.map_err(|status| {
        Failure::error(format!("failed to grant lease ({})", status_text(&status)))
    })?;
    session.show(&Reply::LeaseGrant(reply))
}

async fn revoke(session: &Session) -> Result<(), Failure> {
    let id = lease_id(&only_arg(session, "lease revoke command needs 1 argument")?)?;
    let client = session.client().await?;
    let revoke = async |channel, request| client.lease(channel).lease_revoke(request).await;
    let request = LeaseRevokeRequest { id };
    let reply = client.call(Some(session.timeout()), Repeat::Safe, request, revoke).await;
    let reply = reply.map_err(|status| {
        Failure::error(format!("failed to revoke lease ({})", status_text(&status)))
    })?;
    session.show(&Reply::LeaseRevoke(id, reply))
}

async fn time_to_live(session: &Session) -> Result<(), Failure> {
    let id = lease_id(&only_arg(session, "lease timetolive command needs lease ID as argument")?)?;
    let keys = session.matches.bool("keys");
    let client = session.client().await?;
    let ask = async |channel, request| client.lease(channel).lease_time_to_live(request).await;
    let request = LeaseTimeToLiveRequest { id, keys };
    let reply = client.call(None, Repeat::Safe, request, ask).await;
    let reply = reply.map_err(|status| bad_connection(&status))?;
    session.show(&Reply::LeaseTimeToLive(reply, keys))
}

async fn list(session: &Session) -> Result<(), Failure> {
    let client = session.client().await?;
    let list = async |channel, request| client.lease(channel).lease_leases(request).await;
    let reply = client.call(None, Repeat::Safe, LeaseLeasesRequest {}, list).await;
    session.show(&Reply::LeaseList(reply.map_err(|status| bad_connection(&status))?))
}

async fn keep_alive(session: &Session) -> Result<(), Failure> {
    let id = lease_id(&only_arg(session, "lease keep-alive command needs lease ID as argument")?)?;
    let client = session.client().await?;
    if session.matches.bool("once") {
        let reply = renew_once(&client, id).await.map_err(|status| bad_connection(&status))?;
        if reply.ttl <= 0 {
            let text = "etcdserver: requested lease not found";
            return Err(Failure::new(exit::BAD_CONNECTION, text));
        }
        return session.show(&Reply::LeaseKeepAlive(reply));
    }
    let show = |reply| session.show(&Reply::LeaseKeepAlive(reply));
    keep(&client, id, FIRST_LIFE, show).await?;
    if session.format()? == Format::Simple {
        session.print(&format!("lease {id:016x} expired or revoked.\n"))?;
    }
    Ok(())
}
