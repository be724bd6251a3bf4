//! Generates manual pages from the command tree: one for `man`, and one in Markdown.
//!
//! The pages contain the help text of each command, and texts that are not in the command tree ([`Manual`]). Each tool
//! has a test that compares its committed pages with the generated ones.

mod markdown;
mod roff;

use crate::command::{Command, Found};
use crate::flags::{Flag, Kind};
use crate::help::shown_default;

pub use self::roff::Page;

/// A program, and the manual texts that are not in its command tree.
#[derive(Clone, Copy, Debug)]
pub struct Manual<R: 'static> {
    /// The name of the page, for example `quorate-ctl`.
    pub name: &'static str,
    /// The command that the user types, for example `quorate ctl`.
    pub program: &'static str,
    /// The name of etcd's tool, if there is one. Under this name, the program also behaves as this tool.
    pub alias: Option<&'static str>,
    /// One-line summary without a full stop.
    pub summary: &'static str,
    /// The paragraphs of the description.
    pub description: &'static [&'static str],
    /// The paragraphs about environment variables.
    pub environment: &'static [&'static str],
    /// The exit codes, each with its meaning.
    pub exits: &'static [(&'static str, &'static str)],
    /// The related pages.
    pub see_also: &'static [&'static str],
    /// The root of the program's command tree.
    pub root: &'static Command<R>,
}

/// A command that can be run, with the path from the root to it.
struct Leaf<R: 'static> {
    found: Found<R>,
}

impl<R> Leaf<R> {
    /// Returns the usage line: the program, the groups, the command, and placeholders for its arguments.
    fn usage(&self, program: &str) -> String {
        let [_, groups @ .., last] = &self.found.path[..] else { return program.to_owned() };
        let groups = groups.iter().map(|group| group.name());
        [program].into_iter().chain(groups).chain([last.usage]).collect::<Vec<_>>().join(" ")
    }

    fn about(&self) -> &'static str {
        let command = self.found.command();
        if command.long.is_empty() { command.short } else { command.long }
    }

    /// Returns the flags of the command and of its groups below the root.
    fn flags(&self) -> Vec<Flag> {
        let groups = self.found.path.iter().skip(1).flat_map(|command| command.inherited);
        sorted(self.found.command().flags.iter().chain(groups))
    }
}

impl<R> Manual<R> {
    /// Returns all commands that can be run, in the order of the help text.
    fn leaves(&self) -> Vec<Leaf<R>> {
        let mut leaves = Vec::new();
        gather(&mut vec![self.root], &mut leaves);
        leaves
    }

    /// Returns the flags that all commands accept, including those that the help text of a command omits.
    fn global_flags(&self) -> Vec<Flag> {
        sorted(self.root.inherited.iter().chain(self.root.hidden))
    }
}

fn gather<R>(path: &mut Vec<&'static Command<R>>, leaves: &mut Vec<Leaf<R>>) {
    let command = *path.last().expect("a path begins with the root");
    if command.run.is_some() {
        leaves.push(Leaf { found: Found { path: path.clone(), line: Vec::new() } });
    }
    // Commands whose names begin with an underscore are omitted, because only scripts use them.
    for child in command.children.iter().filter(|child| !child.name().starts_with('_')) {
        path.push(child);
        gather(path, leaves);
        path.pop();
    }
}

fn sorted<'a>(flags: impl Iterator<Item = &'a Flag>) -> Vec<Flag> {
    let mut flags: Vec<Flag> = flags.copied().collect();
    flags.sort_by_key(|flag| flag.name);
    flags
}

/// Returns the forms of a flag: `-w`, `--write-out`.
fn names_of(flag: &Flag) -> Vec<String> {
    let short = flag.short.map(|short| format!("-{short}"));
    short.into_iter().chain([format!("--{}", flag.name)]).collect()
}

/// Returns the placeholder for a flag's value.
const fn value_of(flag: &Flag) -> Option<&'static str> {
    match flag.kind {
        Kind::Bool => None,
        Kind::Int | Kind::Uint => Some("number"),
        Kind::Text | Kind::Bytes => Some("text"),
        Kind::Duration => Some("duration"),
        Kind::List => Some("texts"),
    }
}

/// Returns the description of a flag as one sentence, with its default.
fn description_of(flag: &Flag) -> String {
    let mut description = flag.usage.trim().trim_end_matches('.').to_owned();
    // A first word such as `gRPC` keeps its spelling.
    let is_plain = description.split(' ').next().is_some_and(|word| word == word.to_lowercase());
    if let Some(first) = description.get(..1).map(str::to_uppercase)
        && is_plain
    {
        description.replace_range(..1, &first);
    }
    format!("{description}{}.", shown_default(flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Run = fn();

    const ROOT: Command<Run> = Command {
        usage: "tool",
        inherited: &[Flag::text("write-out", "simple", "set the format").short('w')],
        hidden: &[Flag::text("endpoint", "", "gRPC endpoint")],
        children: &[
            &Command { usage: "__complete", run: Some(|| {}), ..Command::EMPTY },
            &Command {
                usage: "get [options] <key>",
                short: "Gets a key",
                example: "  tool get \\a\n.b",
                flags: &[Flag::bool("all", "all of them."), Flag::int("limit", "maximum number")],
                run: Some(|| {}),
                ..Command::EMPTY
            },
            &Command {
                usage: "member <subcommand>",
                inherited: &[Flag::bool("quiet", "print less")],
                children: &[&Command {
                    usage: "list",
                    short: "Lists members",
                    long: "Lists members.\n\nOne <line> each, `<x>`:\n\n  tool list",
                    run: Some(|| {}),
                    ..Command::EMPTY
                }],
                ..Command::EMPTY
            },
        ],
        ..Command::EMPTY
    };

    const MANUAL: Manual<Run> = Manual {
        name: "a-tool",
        program: "a tool",
        alias: Some("tool"),
        summary: "does this and that",
        description: &["One.", "'Two'."],
        environment: &["A_FLAG."],
        exits: &[("0", "the command succeeded.")],
        see_also: &["other(1)"],
        root: &ROOT,
    };

    #[test]
    fn the_man_page_contains_the_declared_commands_and_flags() {
        let expected = r#".\" Generated from the declarations of commands and flags; a test compares it with them.
.TH "A\-TOOL" "1" "" "Quorate" "Quorate"
.SH "NAME"
a\-tool \- does this and that
.SH "SYNOPSIS"
.B a tool
.RI [ options ]
.I command
.RI [ arguments ]
.br
.B tool
.RI [ options ]
.I command
.RI [ arguments ]
.SH "DESCRIPTION"
.PP
One.
.PP
\&'Two'.
.SH "COMMANDS"
.SS "a tool get [options] <key>"
Gets a key
.PP
.EX
  tool get \ea
\&.b
.EE
.TP
.B \-\-all
All of them.
.TP
.BI "\-\-limit " "number"
Maximum number.
.SS "a tool member list"
Lists members.
.PP
One <line> each, `<x>`:
.PP
  tool list
.TP
.B \-\-quiet
Print less.
.SH "OPTIONS"
Every command accepts these options.
.TP
.BI "\-\-endpoint " "text"
gRPC endpoint.
.TP
.BI "\-w, \-\-write\-out " "text"
Set the format (default "simple").
.SH "ENVIRONMENT"
.PP
A_FLAG.
.SH "EXIT STATUS"
.TP
.B 0
the command succeeded.
.SH "SEE ALSO"
other(1)
"#;
        assert_eq!(MANUAL.man_page(), expected);
    }

    #[test]
    fn the_markdown_page_contains_the_declared_commands_and_flags() {
        let expected = r#"# `a tool`

This page is generated from the declarations of commands and flags, and a test compares it with them. The program also behaves as this tool when it is run under the name `tool`.

One.

'Two'.

## Commands

### `a tool get [options] <key>`

Gets a key

```
  tool get \a
.b
```

| flag | |
|---|---|
| `--all` | All of them. |
| `--limit number` | Maximum number. |

### `a tool member list`

Lists members.

One \<line> each, `<x>`:

```
  tool list
```

| flag | |
|---|---|
| `--quiet` | Print less. |

## Options of every command

| flag | |
|---|---|
| `--endpoint text` | gRPC endpoint. |
| `-w`, `--write-out text` | Set the format (default "simple"). |

## Environment

A_FLAG.

## Exit status

| code | |
|---|---|
| 0 | the command succeeded. |
"#;
        assert_eq!(MANUAL.markdown(), expected);
    }
}
