//! The tree of commands: what each is called, takes and does, and how a command line finds its command.
//!
//! A name may be shortened as long as it is unambiguous (`mem li`). Words that are no command of a group
//! are refused at the top and answered with help below it, as `etcdctl` does.

use std::future::Future;
use std::pin::Pin;

use crate::failure::Failure;
use crate::flags::{Flag, Kind};
use crate::security::SECURITY_FLAGS;
use crate::session::Session;

/// Headings of the top-level help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    KeyValue,
    Maintenance,
    Utility,
}

impl Group {
    pub(crate) const ALL: [(Self, &'static str); 3] = [
        (Self::KeyValue, "Key-value commands"),
        (Self::Maintenance, "Cluster maintenance commands"),
        (Self::Utility, "Utility commands"),
    ];
}

/// A command's work, in the making.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// How a command is carried out.
pub(crate) type Run = for<'a> fn(&'a Session) -> Running<'a>;

/// A command or a group of commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    /// Name and arguments; the first word is the name.
    pub(crate) usage: &'static str,
    /// One line for the list of commands.
    pub(crate) short: &'static str,
    /// What the command's own help begins with, if not `short`.
    pub(crate) long: &'static str,
    pub(crate) example: &'static str,
    pub(crate) group: Option<Group>,
    pub(crate) flags: &'static [Flag],
    /// Flags that the children take as well.
    pub(crate) inherited: &'static [Flag],
    pub(crate) children: &'static [&'static Self],
    /// Whether it needs no server, and so none of the environment.
    pub(crate) is_local: bool,
    pub(crate) run: Option<Run>,
}

impl Command {
    /// A command with nothing in it, to be filled in.
    pub(crate) const EMPTY: Self = Self {
        usage: "",
        short: "",
        long: "",
        example: "",
        group: None,
        flags: &[],
        inherited: &[],
        children: &[],
        is_local: false,
        run: None,
    };

    pub(crate) fn name(&self) -> &'static str {
        self.usage.split(' ').next().unwrap_or_default()
    }

    /// The child that `word` names or abbreviates.
    fn child(&self, word: &str) -> Option<&'static Self> {
        let exact = self.children.iter().find(|child| child.name() == word);
        let mut abbreviated = self.children.iter().filter(|child| child.name().starts_with(word));
        let only = match (abbreviated.next(), abbreviated.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        };
        exact.or(only).copied()
    }
}

/// A command found, with the groups above it and what is left of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// From the root to the command.
    pub(crate) path: Vec<&'static Command>,
    /// The command line without the names of the commands.
    pub(crate) line: Vec<Vec<u8>>,
}

impl Found {
    pub(crate) fn command(&self) -> &'static Command {
        self.path.last().expect("a path begins with the root")
    }

    /// Every flag that the command takes.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let inherited = self.path.iter().flat_map(|command| command.inherited);
        self.command().flags.iter().chain(inherited).chain(SECURITY_FLAGS).copied().collect()
    }
}

/// Finds the command of a command line. `Err` is the word at the top that is no command.
pub(crate) fn find(root: &'static Command, line: &[Vec<u8>]) -> Result<Found, String> {
    let mut found = Found { path: vec![root], line: line.to_vec() };
    while !found.command().children.is_empty() {
        let Some(at) = first_word(&found.flags(), &found.line) else { break };
        let word = String::from_utf8_lossy(&found.line[at]).into_owned();
        match found.command().child(&word) {
            Some(child) => {
                found.line.remove(at);
                found.path.push(child);
            }
            None if found.path.len() == 1 => return Err(word),
            None => break,
        }
    }
    Ok(found)
}

/// Where the first word stands that is neither a flag nor the value of one.
fn first_word(flags: &[Flag], line: &[Vec<u8>]) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = line.get(at) {
        let text = String::from_utf8_lossy(word);
        if text == "--" {
            return None;
        }
        if !text.starts_with('-') || text.len() == 1 {
            return Some(at);
        }
        let is_bool = |flag: &Flag| {
            flag.kind == Kind::Bool
                && (text.strip_prefix("--") == Some(flag.name)
                    || text.strip_prefix('-').is_some_and(|short| {
                        short.chars().next() == flag.short && flag.short.is_some()
                    }))
        };
        let complete = text.contains('=')
            || matches!(&*text, "--help" | "-h")
            || (!text.starts_with("--") && text.len() > 2)
            || flags.iter().any(is_bool);
        at += if complete { 1 } else { 2 };
    }
    None
}

/// Commands that `etcdctl` has and this tool does not.
const ABSENT: &[&str] =
    &["auth", "check", "completion", "elect", "lock", "make-mirror", "role", "user"];

/// What to print about a word that is no command below the root.
pub(crate) fn unknown(root: &Command, program: &str, word: &str) -> String {
    let mut text = format!("unknown command \"{word}\" for \"{program}\"");
    if ABSENT.contains(&word) {
        text.push_str(": not in this version of Quorate; use etcd's own etcdctl");
        return text;
    }
    let close = |child: &&&Command| {
        let name = child.name();
        edit_distance(word, name) <= 2 || name.starts_with(&word.to_lowercase())
    };
    let names: Vec<_> = root.children.iter().filter(close).map(|child| child.name()).collect();
    if !names.is_empty() {
        text.push_str("\n\nDid you mean this?\n");
        names.iter().for_each(|name| text.push_str(&format!("\t{name}\n")));
    }
    text
}

/// How many letters must be changed, added or removed, ignoring case.
fn edit_distance(one: &str, other: &str) -> usize {
    let one: Vec<char> = one.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=one.len()).collect();
    for (i, letter) in other.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, mine) in one.iter().enumerate() {
            let changed = diagonal + usize::from(*mine != letter);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[one.len()]
}

#[cfg(test)]
mod tests {
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
    fn commands_are_found_by_unique_prefix_wherever_flags_stand() {
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
    fn ambiguous_and_unknown_words_are_refused() {
        let line = |word: &str| vec![word.as_bytes().to_vec()];
        assert_eq!(find(&ROOT, &line("de")).unwrap_err(), "de");
        assert_eq!(find(&ROOT, &line("foo")).unwrap_err(), "foo");
        assert_eq!(unknown(&ROOT, "etcdctl", "foo"), r#"unknown command "foo" for "etcdctl""#);
        let absent = r#"unknown command "role" for "quorate ctl": not in this version of Quorate"#;
        assert!(unknown(&ROOT, "quorate ctl", "role").starts_with(absent));
        assert!(ABSENT.iter().all(|name| find(&ROOT, &line(name)).is_err()));
        assert!(unknown(&ROOT, "etcdctl", "pit").ends_with("Did you mean this?\n\tget\n\tput\n"));
    }

    #[test]
    fn every_leaf_runs_and_every_name_is_unique() {
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
