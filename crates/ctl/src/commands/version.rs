//! `version`: which tool this is.

use crate::command::{Command, group};
use crate::failure::Failure;
use crate::session::Session;

/// The etcd release whose tool this one answers as.
const ETCD_VERSION: &str = "3.7.1";
const API_VERSION: &str = "3.7";

pub(crate) const VERSION: Command = Command {
    usage: "version",
    short: "Prints the version of etcdctl",
    group: Some(group::UTILITY),
    is_local: true,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    session.print(&format!("etcdctl version: {ETCD_VERSION}\nAPI version: {API_VERSION}\n"))
}
