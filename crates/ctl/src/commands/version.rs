//! `version`: prints the version of this tool.

use crate::command::{Command, group};
use crate::failure::Failure;
use crate::session::Session;
use quorate_version::{ETCD_VERSION, Version};

pub(crate) const VERSION: Command = Command {
    usage: "version",
    short: "Prints the version of etcdctl",
    group: Some(group::UTILITY),
    is_local: true,
    run: Some(|session| Box::pin(run(session))),
    ..Command::EMPTY
};

async fn run(session: &Session) -> Result<(), Failure> {
    let Version { major, minor } = Version::OWN;
    session.print(&format!("etcdctl version: {ETCD_VERSION}\nAPI version: {major}.{minor}\n"))
}
