//! `snapshot`: what a snapshot holds, and members made from one.

mod restore;
mod status;

use crate::command::Command;
use crate::dump::SNAP_DUMP;
use crate::verify::SNAPSHOT_VERIFY;

pub(crate) const SNAPSHOT: Command = Command {
    usage: "snapshot <subcommand>",
    short: "Manages etcd node snapshots",
    children: &[&SNAP_DUMP, &restore::RESTORE, &status::STATUS, &SNAPSHOT_VERIFY],
    ..Command::EMPTY
};
