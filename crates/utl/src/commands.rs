//! The tree of the tool's commands.

use quorate_cli::command::find;

use crate::command::Command;
use crate::failure::Failure;
use crate::session::{GLOBAL_FLAGS, Session};
use crate::{
    completion, db, defrag, dump, hashkv, import, migrate, recover, snapshot, verify, version,
};

/// The root of the command tree.
pub(crate) const ROOT: Command = Command {
    usage: "etcdutl",
    short: "An administrative command line tool for etcd3.",
    own_example: "  # Restore a snapshot as a new member's directory
  quorate utl snapshot restore backup.db --name a --data-dir restored --initial-cluster a=http://127.0.0.1:2380

  # Check the directory of a stopped member
  quorate utl verify /var/lib/quorate/default

  # Create a new cluster from the directories of one that has lost its quorum
  quorate utl recover /var/lib/a /var/lib/b",
    inherited: GLOBAL_FLAGS,
    children: &[
        &completion::COMPLETION,
        &db::DB,
        &defrag::DEFRAG,
        &hashkv::HASHKV,
        &HELP,
        &import::IMPORT,
        &migrate::MIGRATE,
        &recover::RECOVER,
        &snapshot::SNAPSHOT,
        &verify::VERIFY,
        &version::VERSION,
        &dump::WAL,
    ],
    ..Command::EMPTY
};

const HELP: Command = Command {
    usage: "help [command]",
    short: "Help about any command",
    long: "Help provides help for any command in the application.\nSimply type etcdutl help [path to command] for full details.",
    run: Some(show_help),
    ..Command::EMPTY
};

fn show_help(session: &Session) -> Result<(), Failure> {
    // The commands come from a function because the constant cannot refer to itself.
    let found = find(root(), &session.matches.args);
    let found = found.map_err(|word| Failure::arguments(root().unknown(session.program, &word)))?;
    session.print(&quorate_cli::help::help(session.program, &found))
}

fn root() -> &'static Command {
    &ROOT
}
