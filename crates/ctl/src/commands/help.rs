//! `help` and `options`: print the commands of the tool, and the flags that every command accepts.

use super::ROOT;
use quorate_cli::command::find;

use crate::command::{Command, group};
use crate::failure::Failure;
use crate::help::{flag_usages, help};
use crate::security::SECURITY_FLAGS;
use crate::session::{GLOBAL_FLAGS, Session};

pub(crate) const HELP: Command = Command {
    usage: "help [command]",
    short: "Help about any command",
    long: "Help provides help for any command in the application.\nSimply type etcdctl help [path to command] for full details.",
    group: Some(group::UTILITY),
    is_local: true,
    run: Some(|session| Box::pin(show_help(session))),
    ..Command::EMPTY
};

pub(crate) const OPTIONS: Command = Command {
    usage: "options",
    short: "Show the global command-line flags",
    group: Some(group::UTILITY),
    is_local: true,
    run: Some(|session| Box::pin(show_options(session))),
    ..Command::EMPTY
};

async fn show_help(session: &Session) -> Result<(), Failure> {
    let program = &session.program;
    match find(&ROOT, &session.matches.args) {
        Ok(found) => session.print(&help(program, &found)),
        Err(word) => Err(Failure::error(ROOT.unknown(program, &word))),
    }
}

async fn show_options(session: &Session) -> Result<(), Failure> {
    session.print(&options())
}

fn options() -> String {
    let flags = flag_usages(&[GLOBAL_FLAGS, SECURITY_FLAGS].concat(), None);
    format!("The following options can be passed to any command:\n\n{flags}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &str) -> String {
        let line: Vec<_> = line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        help("etcdctl", &find(&ROOT, &line).unwrap())
    }

    #[test]
    fn the_top_level_help_groups_commands_and_hides_global_flags() {
        let text = text("");
        assert!(text.starts_with(
            "A simple command line client for etcd3.\n\nUsage:\n  etcdctl [command]\n\n\
             Key-value commands\n  compaction  Compacts the event history in etcd\n"
        ));
        assert!(!text.contains("--endpoints"));
        assert!(text.ends_with(
            "\n\nUse \"etcdctl [command] --help\" for more information about a command.\n\
             Use \"etcdctl options\" for a list of global command-line options (applies to all commands).\n"
        ));
    }

    #[test]
    fn the_reference_page_lists_the_same_options_as_the_command() {
        let names = |text: &str, end: char| -> Vec<String> {
            let first = |line: &str| {
                let (_, rest) = line.split_once("--")?;
                Some(rest.split([' ', end]).next()?.to_owned())
            };
            let mut names: Vec<String> = text.lines().filter_map(first).collect();
            names.sort();
            names
        };
        let page = crate::reference();
        let (_, rest) =
            page.split_once("\n## Options of every command\n\n| flag | |\n|---|---|\n").unwrap();
        let table = rest.split("\n\n").next().unwrap();
        assert_eq!(names(table, '`'), names(&options(), ' '));
        assert!(table.contains("| `--cacert text` |"), "{table}");
        assert!(table.contains("| gRPC endpoints (default"), "{table}");
    }

    #[test]
    fn the_help_of_a_command_aligns_its_flags() {
        let text = text("lease timetolive");
        assert_eq!(
            text,
            "Get lease information\n\nUsage:\n  etcdctl lease timetolive <leaseID> [options] [flags]\n\n\
             Flags:\n  -h, --help   help for timetolive\n      --keys   Get keys attached to this lease\n\
             Use \"etcdctl options\" for a list of global command-line options (applies to all commands).\n"
        );
    }

    #[test]
    fn defaults_are_shown_unless_they_are_empty() {
        assert!(text("get").contains(
            "      --consistency string   Linearizable(l) or Serializable(s) (default \"l\")\n"
        ));
        let inherited = text("endpoint hashkv");
        assert!(inherited.contains("Global Flags:\n      --cluster   use all endpoints"));
    }
}
