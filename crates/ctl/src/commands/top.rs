//! `top`: the help text, and the adapter between the session and the crate `top`, which implements the display.

use crate::command::{Command, group};
use crate::failure::{Failure, exit};
use crate::output::Format;
use crate::security::transport;
use crate::session::Session;
use quorate_top::{Cluster, Host, Settings};

pub(crate) const TOP: Command = Command {
    usage: "top [options]",
    short: "Continuously shows the members, requests and prefixes of a cluster",
    long: "Continuously shows the members, requests and prefixes of a cluster: full-screen on a terminal, as plain text
if standard output is not a terminal, or as one JSON object per line with --write-out=json. Press h for a list of the
keys that control the screen. etcdctl has no such command, but this one works with etcd 3.5 and later as well.

The members are read from the newest member list that any member returns. Rates and latencies are computed from the
members' /metrics, if they serve /metrics on their client URLs. Request latencies require etcd 3.7 or later, or
--metrics=extensive. \"-\" marks a value that a member does not report.

The load on the cluster is small. Each refresh requests the status, the member list and the metrics of every member.
Leases are listed every 10s, or every 120s if there are more than 10000. Keys are counted exactly, by prefix, with small
requests. Each pause between requests is at least ten times as long as the previous response took, and each pause
between complete counts is at least ten times as long as the count. Sizes are estimated from the keys read for the
count. Write rates come from a watch, which pauses for up to 5s after it has received 5000 changes or 1 MiB within one
interval. The watch requires permission to read all keys under --prefix.",
    group: Some(group::MAINTENANCE),
    flags: quorate_top::FLAGS,
    is_own: true,
    run: Some(|session| Box::pin(show(session))),
    ..Command::EMPTY
};

async fn show(session: &Session) -> Result<(), Failure> {
    let settings = Settings::of(&session.matches, is_json(session)?, &session.env)?;
    // Logs in first, so that the password prompt or a login error appears before the display starts.
    drop(session.client().await?);
    let host = Host {
        cluster: Cluster {
            endpoints: session.endpoints().await?,
            transport: transport(&session.matches),
            has_credentials: session.has_credentials()?,
            connect: &|endpoints| session.prepare(endpoints),
        },
        print: &|text| session.print(text),
        take_input: &|| session.take_input(),
    };
    Box::pin(quorate_top::run(settings, &host)).await
}

/// Returns whether reports are printed as JSON.
fn is_json(session: &Session) -> Result<bool, Failure> {
    match session.format()? {
        Format::Simple => Ok(false),
        Format::Json => Ok(true),
        Format::Fields | Format::Protobuf | Format::Table => {
            let name = session.matches.text("write-out");
            let text = format!("{name} not supported as output format");
            Err(Failure::new(exit::BAD_FEATURE, text))
        }
    }
}
