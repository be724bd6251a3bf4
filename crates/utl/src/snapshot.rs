//! `snapshot`: what a snapshot holds, and members made from one.

mod advertised;
mod restore;
mod status;

pub(crate) use self::status::check_pages;

use crate::command::Command;
use crate::dump::SNAP_DUMP;

pub(crate) const SNAPSHOT: Command = Command {
    usage: "snapshot <subcommand>",
    short: "Manages etcd node snapshots",
    children: &[&SNAP_DUMP, &restore::RESTORE, &status::STATUS],
    ..Command::EMPTY
};
