//! The command tree: the name, arguments and run function of each command, and a function that finds the command that a
//! command line names.
//!
//! A name may be abbreviated if the abbreviation is unambiguous (`mem li`). An unknown word at the top level is an
//! error; an unknown word after the name of a group prints the group's help, as in etcd's tools.

use crate::flags::{Flag, Kind};

/// A command or a group of commands. `R` is the type of run functions.
#[derive(Clone, Copy, Debug)]
pub struct Command<R: 'static> {
    /// Name and arguments. The first word is the name.
    pub usage: &'static str,
    /// One-line description for the list of commands.
    pub short: &'static str,
    /// The text at the beginning of the command's own help. If it is empty, `short` is shown instead.
    pub long: &'static str,
    /// Example lines for the command's help.
    pub example: &'static str,
    /// Example lines for a command whose help in etcd's tool has no examples. They are shown only when the tool is
    /// called by its own name.
    pub own_example: &'static str,
    /// The heading under which the parent command lists this command.
    pub group: Option<&'static str>,
    /// The headings of the list of subcommands, in order.
    pub groups: &'static [&'static str],
    /// The command's own flags.
    pub flags: &'static [Flag],
    /// Flags that the command and all its subcommands accept.
    pub inherited: &'static [Flag],
    /// Flags that the command and all its subcommands accept but that no help text shows.
    pub hidden: &'static [Flag],
    /// The subcommands, sorted by name.
    pub children: &'static [&'static Self],
    /// Whether the command works without a server. Such a command ignores the environment variables.
    pub is_local: bool,
    /// The exit code for an invalid command line of this command or one of its subcommands, if it differs from the
    /// tool's usual code.
    pub failure_code: Option<u8>,
    /// Whether the command is our own, that is, missing from etcd's tool. Its name cannot be abbreviated, so that
    /// abbreviations used in scripts keep their meaning.
    pub is_own: bool,
    /// The run function; `None` for a group.
    pub run: Option<R>,
}

impl<R> Command<R> {
    /// An empty command, as a base for constructing commands.
    pub const EMPTY: Self = Self {
        usage: "",
        short: "",
        long: "",
        example: "",
        own_example: "",
        group: None,
        groups: &[],
        flags: &[],
        inherited: &[],
        hidden: &[],
        children: &[],
        is_local: false,
        failure_code: None,
        is_own: false,
        run: None,
    };

    /// Returns the command's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.usage.split(' ').next().unwrap_or_default()
    }

    /// Returns whether a separate subcommand lists the global flags, so that no other help text repeats them.
    pub(crate) fn lists_flags_apart(&self) -> bool {
        self.children.iter().any(|child| child.name() == "options")
    }

    /// Returns the child that `word` names or abbreviates.
    fn child(&self, word: &str) -> Option<&'static Self> {
        let named = |word: &str| self.children.iter().find(|child| child.name() == word);
        let names = self.children.iter().filter(|child| !child.is_own).map(|child| child.name());
        named(word).or_else(|| named(only_match(names, word)?)).copied()
    }

    /// Returns the error text for a top-level word that is not a command. `self` is the root of `program`'s command
    /// tree.
    #[must_use]
    pub fn unknown(&self, program: &str, word: &str) -> String {
        let mut text = format!("unknown command \"{word}\" for \"{program}\"");
        let close = |child: &&&Self| {
            let name = child.name();
            // Our own commands are suggested only for close matches, so that in all other cases the suggestions are
            // etcd's.
            let distance_max = if child.is_own { 1 } else { 2 };
            edit_distance(word, name) <= distance_max || name.starts_with(&word.to_lowercase())
        };
        let names: Vec<_> = self.children.iter().filter(close).map(|child| child.name()).collect();
        if !names.is_empty() {
            text.push_str("\n\nDid you mean this?\n");
            names.iter().for_each(|name| text.push_str(&format!("\t{name}\n")));
        }
        text
    }
}

/// Returns the name that begins with `word`, if there is exactly one.
#[must_use]
pub fn only_match<'a>(names: impl IntoIterator<Item = &'a str>, word: &str) -> Option<&'a str> {
    let mut matches = names.into_iter().filter(|name| name.starts_with(word));
    matches.next().filter(|_| matches.next().is_none())
}

/// A command found by [`find`], with its groups and the rest of the command line.
#[derive(Clone, Debug)]
pub struct Found<R: 'static> {
    /// The commands from the root to the found command.
    pub path: Vec<&'static Command<R>>,
    /// The command line without the command names.
    pub line: Vec<Vec<u8>>,
}

impl<R> Found<R> {
    /// Returns the found command itself.
    ///
    /// # Panics
    ///
    /// Never panics, because the path of a found command is not empty.
    #[must_use]
    pub fn command(&self) -> &'static Command<R> {
        self.path.last().expect("a path begins with the root")
    }

    /// Returns the exit code for an invalid command line, if it differs from the usual exit code.
    pub(crate) fn failure_code(&self) -> Option<u8> {
        self.path.iter().rev().find_map(|command| command.failure_code)
    }

    pub(crate) fn root(&self) -> &'static Command<R> {
        self.path.first().expect("a path begins with the root")
    }

    /// Returns all flags that the command accepts.
    #[must_use]
    pub fn flags(&self) -> Vec<Flag> {
        let path = self.path.iter();
        let inherited = path.flat_map(|command| command.inherited.iter().chain(command.hidden));
        self.command().flags.iter().chain(inherited).copied().collect()
    }

    /// Returns the flags that the command accepts because a group that contains it does.
    pub fn inherited_flags(&self) -> impl Iterator<Item = Flag> {
        let groups = &self.path[..self.path.len().saturating_sub(1).max(1)];
        groups.iter().flat_map(|group| group.inherited.iter().chain(group.hidden)).copied()
    }
}

/// Finds the command for a command line.
///
/// # Errors
///
/// Returns the unknown word if the first word is not a top-level command.
pub fn find<R: Clone>(root: &'static Command<R>, line: &[Vec<u8>]) -> Result<Found<R>, String> {
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

/// Returns the position of the first word that is neither a flag nor a flag's value.
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

/// Returns the number of letters to change, add or remove to turn one word into the other, ignoring case.
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
