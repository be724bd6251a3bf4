//! `check`: tests whether a cluster is fast enough for a load, and measures how much memory its data uses.
//!
//! # Guarantees
//!
//! * A check writes only keys under its prefix. No such keys may exist at the start, and the check deletes its keys
//!   afterwards, even if it is interrupted by a signal.
//! * The memory use of a check does not grow with the load, because latencies are aggregated as they arrive.

mod datascale;
mod load;
mod perf;

use quorate_api::etcdserverpb::{
    CompactionRequest, DefragmentRequest, DeleteRangeRequest, RangeRequest,
};

use crate::client::{Client, Repeat};
use crate::command::{Command, group};
use crate::failure::{Failure, exit, status_text};
use crate::flags::Flag;
use crate::gotext::quote;
use crate::key_range::KeyRange;
use crate::queue::get;
use crate::session::Session;

pub(crate) const CHECK: Command = Command {
    usage: "check <subcommand>",
    short: "commands for checking properties of the etcd cluster. Use `etcdctl check --help` to see subcommands",
    long: "commands for checking properties of the etcd cluster",
    group: Some(group::UTILITY),
    children: &[&datascale::DATASCALE, &perf::PERF],
    ..Command::EMPTY
};

const AUTO_COMPACT: Flag =
    Flag::bool("auto-compact", "Compact storage with last revision after test is finished.");
const AUTO_DEFRAG: Flag = Flag::bool("auto-defrag", "Defragment storage after test is finished.");

/// Returns the index of the load that `--load` names. Loads are sorted by size.
fn load_of(session: &Session) -> Result<usize, Failure> {
    const NAMES: [[&str; 2]; 4] =
        [["s", "small"], ["m", "medium"], ["l", "large"], ["xl", "xLarge"]];
    let given = session.matches.text("load");
    let found = NAMES.iter().position(|names| names.contains(&given));
    let unknown = || Failure::new(exit::BAD_FEATURE, format!("unknown load option {given}"));
    found.ok_or_else(unknown)
}

/// Refuses to run if keys exist under the prefix, because the check would delete them afterwards.
async fn require_empty(session: &Session, client: &Client, hint: &str) -> Result<(), Failure> {
    let prefix = session.matches.text("prefix");
    let range = KeyRange::prefix(prefix.as_bytes().to_vec());
    let request = RangeRequest {
        key: range.key.into(),
        range_end: range.end.into(),
        limit: 1,
        ..Default::default()
    };
    if get(client, request).await?.kvs.is_empty() {
        return Ok(());
    }
    let quoted = quote(prefix.as_bytes());
    let text =
        format!("prefix {quoted} has keys. Delete with {} first", hint.replace("PREFIX", prefix));
    Err(Failure::new(exit::INVALID_INPUT, text))
}

/// Deletes the keys of a check. Returns the revision of the deletion.
async fn delete(session: &Session, client: &Client) -> Result<i64, tonic::Status> {
    let range = KeyRange::prefix(session.matches.text("prefix").as_bytes().to_vec());
    let request = DeleteRangeRequest {
        key: range.key.into(),
        range_end: range.end.into(),
        ..Default::default()
    };
    let delete = async |channel, request| client.kv(channel).delete_range(request).await;
    let reply = client.call(None, Repeat::Never, request, delete).await?;
    Ok(reply.header.map_or(0, |header| header.revision))
}

async fn compact(session: &Session, client: &Client, revision: i64) -> Result<(), Failure> {
    session.print(&format!("Compacting with revision {revision}\n"))?;
    let compact = async |channel, request| client.kv(channel).compact(request).await;
    let request = CompactionRequest { revision, physical: true };
    client.call(None, Repeat::Never, request, compact).await?;
    session.print(&format!("Compacted with revision {revision}\n"))
}

async fn defragment(session: &Session) -> Result<(), Failure> {
    for endpoint in session.endpoints().await? {
        let quoted = quote(endpoint.as_bytes());
        session.print(&format!("Defragmenting {quoted}\n"))?;
        let client = session.client_of(vec![endpoint]).await?;
        let defragment =
            async |channel, request| client.maintenance(channel).defragment(request).await;
        client.call(None, Repeat::Never, DefragmentRequest {}, defragment).await?;
        session.print(&format!("Defragmented {quoted}\n"))?;
    }
    Ok(())
}

/// Prints the number of failed requests for each reason.
fn tell_errors(session: &Session, summary: &load::Summary) -> Result<(), Failure> {
    if summary.errors.is_empty() {
        return Ok(());
    }
    session.print("FAIL: too many errors\n")?;
    for (text, count) in &summary.errors {
        session.print(&format!("FAIL: ERROR({text}) -> {count}\n"))?;
    }
    Ok(())
}

/// Deletes the keys of a check, then compacts and defragments if the flags request it.
async fn clean_up(session: &Session, client: &Client) -> Result<(), Failure> {
    let compacts = session.matches.bool("auto-compact");
    match delete(session, client).await {
        Ok(revision) if compacts => compact(session, client, revision).await?,
        Ok(_) => {}
        Err(status) => {
            let text = status_text(&status);
            session.print(&format!("FAIL: Cleanup failed during key deletion: ERROR({text})\n"))?;
        }
    }
    if session.matches.bool("auto-defrag") { defragment(session).await } else { Ok(()) }
}
