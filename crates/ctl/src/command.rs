//! The type of this tool's commands, and the headings under which the help lists them.

use std::future::Future;
use std::pin::Pin;

use quorate_cli::command;

use crate::failure::Failure;
use crate::session::Session;

/// Headings of the top-level help.
pub(crate) mod group {
    pub(crate) const KEY_VALUE: &str = "Key-value commands";
    pub(crate) const MAINTENANCE: &str = "Cluster maintenance commands";
    pub(crate) const CONCURRENCY: &str = "Concurrency commands";
    pub(crate) const AUTHENTICATION: &str = "Authentication commands";
    pub(crate) const UTILITY: &str = "Utility commands";
}

/// The future of a running command.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;
/// The function that runs a command.
pub(crate) type Run = for<'a> fn(&'a Session) -> Running<'a>;
/// A command or a group of commands.
pub(crate) type Command = command::Command<Run>;

#[cfg(test)]
mod tests {
    use quorate_cli::command::find;

    use super::*;
    use crate::commands::ROOT;

    fn check(line: &str, path: &str, left: &str) {
        let words = |line: &str| -> Vec<Vec<u8>> {
            line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
        };
        let found = find(&ROOT, &words(line)).unwrap();
        let names: Vec<_> = found.path[1..].iter().map(|command| command.name()).collect();
        assert_eq!((names.join(" ").as_str(), found.line), (path, words(left)), "{line}");
    }

    #[test]
    fn commands_are_found_by_unique_prefix_wherever_the_flags_are() {
        check("get a", "get", "a");
        check("mem li -w json", "member list", "-w json");
        check("--endpoints a:1 lease gr 60", "lease grant", "--endpoints a:1 60");
        check("-w json --debug put put put", "put", "-w json --debug put put");
        check("--hex endpoint --cluster status", "endpoint status", "--hex --cluster");
        check("lease", "lease", "");
        check("lease foo", "lease", "foo");
        check("", "", "");
    }

    #[test]
    fn ambiguous_and_unknown_commands_are_refused() {
        let line = |word: &str| vec![word.as_bytes().to_vec()];
        assert_eq!(find(&ROOT, &line("de")).unwrap_err(), "de");
        assert_eq!(find(&ROOT, &line("foo")).unwrap_err(), "foo");
        assert_eq!(ROOT.unknown("etcdctl", "foo"), r#"unknown command "foo" for "etcdctl""#);
        assert!(ROOT.unknown("etcdctl", "pit").ends_with("Did you mean this?\n\tget\n\tput\n"));
    }

    #[test]
    fn every_command_has_a_run_function_and_a_unique_name() {
        fn walk(command: &Command) {
            let mut names: Vec<_> = command.children.iter().map(|child| child.name()).collect();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(names.is_sorted(), "{names:?}");
            assert_eq!(command.run.is_some(), command.children.is_empty(), "{}", command.usage);
            command.children.iter().for_each(|child| walk(child));
        }
        walk(&ROOT);
    }
}
