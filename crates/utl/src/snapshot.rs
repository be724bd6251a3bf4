//! `snapshot`: inspects snapshots, and restores members from them.

mod restore;
mod source;
mod status;

use crate::command::Command;
use crate::dump::SNAP_DUMP;
use crate::verify::SNAPSHOT_VERIFY;

pub(crate) use restore::SKIP_HASH_CHECK;
pub(crate) use source::Source;

pub(crate) const SNAPSHOT: Command = Command {
    usage: "snapshot <subcommand>",
    short: "Manages etcd node snapshots",
    children: &[&SNAP_DUMP, &restore::RESTORE, &status::STATUS, &SNAPSHOT_VERIFY],
    ..Command::EMPTY
};
