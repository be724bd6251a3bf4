//! `help` and `options`: what the tool can do, and the flags of every command.

use super::ROOT;
use crate::command::{Command, Group, find, unknown};
use crate::failure::Failure;
use crate::help::{flag_usages, help};
use crate::security::SECURITY_FLAGS;
use crate::session::{GLOBAL_FLAGS, Session};

pub(crate) const HELP: Command = Command {
    usage: "help [command]",
    short: "Help about any command",
    long: "Help provides help for any command in the application.\nSimply type etcdctl help [path to command] for full details.",
    group: Some(Group::Utility),
    is_local: true,
    run: Some(|session| Box::pin(show_help(session))),
    ..Command::EMPTY
};

pub(crate) const OPTIONS: Command = Command {
    usage: "options",
    short: "Show the global command-line flags",
    group: Some(Group::Utility),
    is_local: true,
    run: Some(|session| Box::pin(show_options(session))),
    ..Command::EMPTY
};

async fn show_help(session: &Session) -> Result<(), Failure> {
    let program = &session.program;
    match find(&ROOT, &session.matches.args) {
        Ok(found) => session.print(&help(program, &found)),
        Err(word) => Err(Failure::error(unknown(&ROOT, program, &word))),
    }
}

async fn show_options(session: &Session) -> Result<(), Failure> {
    let flags = flag_usages(&[GLOBAL_FLAGS, SECURITY_FLAGS].concat(), None);
    session.print(&format!("The following options can be passed to any command:\n\n{flags}"))
}
