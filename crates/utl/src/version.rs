//! `version`: prints the version of this tool.

use quorate_version::{ETCD_VERSION, Version};

use crate::command::Command;
use crate::failure::Failure;
use crate::session::Session;

pub(crate) const VERSION: Command = Command {
    usage: "version",
    short: "Prints the version of etcdutl",
    run: Some(run),
    ..Command::EMPTY
};

fn run(session: &Session) -> Result<(), Failure> {
    let Version { major, minor } = Version::OWN;
    session.print(&format!("etcdutl version: {ETCD_VERSION}\nAPI version: {major}.{minor}\n"))
}
