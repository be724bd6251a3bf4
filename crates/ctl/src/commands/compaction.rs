//! `compaction`: discards the history before a revision.

use quorate_api::etcdserverpb::CompactionRequest;

use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::Failure;
use crate::flags::Flag;
use crate::gotext::parse_int;
use crate::session::Session;

pub(crate) const COMPACTION: Command = Command {
    usage: "compaction [options] <revision>",
    short: "Compacts the event history in etcd",
    group: Some(group::KEY_VALUE),
    flags: &[Flag::bool(
        "physical",
        "'true' to wait for compaction to physically remove all old revisions",
    )],
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    let revision = match (session.matches.arg(0), session.matches.args.len()) {
        (Some(revision), 1) => parse_int(&revision, 10).map_err(Failure::error)?,
        _ => return Err(Failure::bad_args("compaction command needs 1 argument")),
    };
    let client = session.client().await?;
    let request = CompactionRequest { revision, physical: session.matches.bool("physical") };
    let compact = async |channel, request| client.kv(channel).compact(request).await;
    client.call(Some(session.timeout()), Repeat::Never, request, compact).await?;
    session.print(&format!("compacted revision {revision}\n"))
}
