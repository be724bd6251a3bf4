//! The tree of commands: what each is called, takes and does, and how a command line finds its command.
//!
//! A name may be shortened as long as it is unambiguous (`mem li`). Words that are no command of a group
//! are refused at the top and answered with help below it, as etcd's tools do.

use crate::flags::{Flag, Kind};

/// A command or a group of commands. `R` runs one.
#[derive(Clone, Copy, Debug)]
pub struct Command<R: 'static> {
    /// Name and arguments; the first word is the name.
    pub usage: &'static str,
    /// One line for the list of commands.
    pub short: &'static str,
    /// What the command's own help begins with, if not `short`.
    pub long: &'static str,
    /// Example lines for its help.
    pub example: &'static str,
    /// Example lines that only the help under the tool's own name has: etcd's tool has none there.
    pub own_example: &'static str,
    /// The heading under which its parent lists it.
    pub group: Option<&'static str>,
    /// The headings of its own list, in order.
    pub groups: &'static [&'static str],
    /// Its own flags.
    pub flags: &'static [Flag],
    /// Flags that the children take as well.
    pub inherited: &'static [Flag],
    /// Flags that the children take as well and no help tells of.
    pub hidden: &'static [Flag],
    /// The commands below it, in the order of their names.
    pub children: &'static [&'static Self],
    /// Whether it needs no server, and so none of the environment.
    pub is_local: bool,
    /// The exit code where this command, or one below it, cannot be begun, if not the tools' usual ones.
    pub failure_code: Option<u8>,
    /// Whether etcd's tool has no such command. Only its full name names it, so that it takes no short form from those
    /// that scripts know.
    pub is_own: bool,
    /// What runs it; nothing for a group.
    pub run: Option<R>,
}

impl<R> Command<R> {
    /// A command with nothing in it, to be filled in.
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

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.usage.split(' ').next().unwrap_or_default()
    }

    /// Whether one of its commands lists the global flags, so that no help repeats them.
    pub(crate) fn lists_flags_apart(&self) -> bool {
        self.children.iter().any(|child| child.name() == "options")
    }

    /// The child that `word` names or abbreviates.
    fn child(&self, word: &str) -> Option<&'static Self> {
        let exact = self.children.iter().find(|child| child.name() == word);
        let is_short_form = |child: &&&Self| !child.is_own && child.name().starts_with(word);
        let mut abbreviated = self.children.iter().filter(is_short_form);
        let only = match (abbreviated.next(), abbreviated.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        };
        exact.or(only).copied()
    }

    /// What to print about a word that is no child of this command, the root of `program`.
    #[must_use]
    pub fn unknown(&self, program: &str, word: &str) -> String {
        let mut text = format!("unknown command \"{word}\" for \"{program}\"");
        let close = |child: &&&Self| {
            let name = child.name();
            // What etcd's tool would suggest is not to drown among what it does not have.
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

/// A command found, with the groups above it and what is left of the command line.
#[derive(Clone, Debug)]
pub struct Found<R: 'static> {
    /// From the root to the command.
    pub path: Vec<&'static Command<R>>,
    /// The command line without the names of the commands.
    pub line: Vec<Vec<u8>>,
}

impl<R> Found<R> {
    /// The command itself.
    ///
    /// # Panics
    ///
    /// Never: what was found has a path.
    #[must_use]
    pub fn command(&self) -> &'static Command<R> {
        self.path.last().expect("a path begins with the root")
    }

    /// The exit code where it cannot be begun, if it has one of its own.
    pub(crate) fn failure_code(&self) -> Option<u8> {
        self.path.iter().rev().find_map(|command| command.failure_code)
    }

    pub(crate) fn root(&self) -> &'static Command<R> {
        self.path.first().expect("a path begins with the root")
    }

    /// Every flag that the command takes.
    #[must_use]
    pub fn flags(&self) -> Vec<Flag> {
        let inherited = self.path.iter().flat_map(|command| command.inherited);
        let hidden = self.path.iter().flat_map(|command| command.hidden);
        self.command().flags.iter().chain(inherited).chain(hidden).copied().collect()
    }
}

/// Finds the command of a command line.
///
/// # Errors
///
/// The word at the top that is no command.
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
