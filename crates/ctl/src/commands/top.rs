//! `top`: its help text, and its connection to the session. The display itself is the crate `top`.

use crate::command::{Command, group};
use crate::failure::{Failure, exit};
use crate::output::Format;
use crate::security::transport;
use crate::session::Session;
use quorate_top::{Host, Settings};

pub(crate) const TOP: Command = Command {
    usage: "top [options]",
    short: "Shows what members, requests and prefixes of a cluster are at, again and again",
    long: "\
Shows what members, requests and prefixes of a cluster are at, again and again: on the whole screen of a terminal, or as
text without control characters where standard output is none, or as one JSON object a line with --write-out=json. Keys
choose what is seen; h lists them. No command of etcdctl is like it; it works with etcd 3.5 and later as well.

Members are found by the member list, of whichever member answers. Rates and latencies come from what they serve under
/metrics where they serve clients; latencies of requests only etcd 3.7 has there, or --metrics=extensive. \"-\" is what a
member does not tell.

The cluster hardly feels it. A refresh asks each member where it stands, who the members are and for its metrics. Leases
are listed every 10s, or 120s once they are more than 10000. Keys are counted by prefix, exactly, by small questions
with pauses that are ten times as long as the answers took, and again after a pause ten times as long as all of that;
what they take up is estimated of the keys that are seen on the way. What is written is told by a watch, until it has
told of 5000 changes or 1 MiB within one interval; then it rests, up to 5s. A user has to be allowed to read the keys
of --prefix for that.",
    group: Some(group::MAINTENANCE),
    flags: quorate_top::FLAGS,
    is_own: true,
    run: Some(|session| Box::pin(show(session))),
    ..Command::EMPTY
};

async fn show(session: &Session) -> Result<(), Failure> {
    let settings = Settings::of(&session.matches, is_json(session)?, &session.env)?;
    // A password is asked for, and a wrong one refused, before the screen changes.
    drop(session.client().await?);
    let host = Host {
        endpoints: session.endpoints().await?,
        transport: transport(&session.matches),
        connect: &|endpoints| session.prepare(endpoints),
        print: &|text| session.print(text),
        take_input: &|| session.take_input(),
    };
    Box::pin(quorate_top::run(settings, &host)).await
}

/// Whether reports are printed as JSON.
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
