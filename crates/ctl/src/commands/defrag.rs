//! `defrag`: returns the space of deleted data to the file system, one member at a time.

use std::time::Instant;

use quorate_api::etcdserverpb::DefragmentRequest;

use super::endpoint::{CLUSTER_FLAG, chosen};
use crate::client::Repeat;
use crate::command::{Command, group};
use crate::failure::{Failure, exit, status_text};
use crate::gotext::duration;
use crate::session::Session;

pub(crate) const DEFRAG: Command = Command {
    usage: "defrag",
    short: "Defragments the storage of the etcd members with given endpoints",
    group: Some(group::MAINTENANCE),
    inherited: &[CLUSTER_FLAG],
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    let mut failed = false;
    for endpoint in chosen(session).await? {
        let client = session.client_of(vec![endpoint.clone()]).await?;
        let start = Instant::now();
        let defragment =
            async |channel, request| client.maintenance(channel).defragment(request).await;
        let timeout = Some(session.timeout());
        let result = client.call(timeout, Repeat::Never, DefragmentRequest {}, defragment).await;
        let took = duration(start.elapsed());
        match result {
            Ok(_) => {
                let text = format!("Finished defragmenting etcd member[{endpoint}]. took {took}\n");
                session.print(&text)?;
            }
            Err(status) => {
                failed = true;
                let reason = status_text(&status);
                session.print_error(&format!(
                    "Failed to defragment etcd member[{endpoint}]. took {took}. ({reason})\n"
                ));
            }
        }
    }
    if failed { Err(Failure::silent(exit::ERROR)) } else { Ok(()) }
}
