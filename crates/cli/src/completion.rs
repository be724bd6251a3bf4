//! Shell completion: the candidates for an unfinished command line, and the scripts that request them.
//!
//! A script contains no commands or flags. At each completion, it runs the tool with `__complete` and the words typed
//! so far, and the tool answers from its own declarations. The protocol is that of etcd's tools, so a script generated
//! by one of etcd's tools also works with our tool of the same name.

use crate::command::{Command, Found, find};
use crate::flags::{Flag, Kind};

/// The word that requests completion of the rest of the line.
pub const ASK: &str = "__complete";
/// The word that requests completion without descriptions.
pub const ASK_NAMES: &str = "__completeNoDesc";

/// The shells for which there is a completion script.
pub const SHELLS: &[&str] = &["bash", "fish", "powershell", "zsh"];

/// The instruction to the shell in the last line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    /// File names are valid too.
    Files = 0,
    /// Only the listed candidates are valid.
    Closed = 4,
}

/// Flags with a fixed set of values.
const VALUES: &[(&str, &[&str])] = &[
    ("write-out", &["fields", "json", "protobuf", "simple", "table"]),
    ("consistency", &["l", "s"]),
    ("order", &["ASCEND", "DESCEND"]),
    ("sort-by", &["CREATE", "KEY", "MODIFY", "VALUE", "VERSION"]),
    ("load", &["s", "m", "l", "xl"]),
];

/// Returns the candidates for the last word, one per line with a description, and the directive for the shell.
#[must_use]
pub fn answer<R: Copy>(root: &'static Command<R>, words: &[Vec<u8>], describes: bool) -> String {
    let words: Vec<_> =
        words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", &[][..]),
    };
    let (candidates, directive) = candidates(root, before, last);
    let mut out = String::new();
    for (name, about) in candidates {
        let about = about.lines().next().unwrap_or_default();
        out.push_str(&name);
        if describes && !about.is_empty() {
            out.push('\t');
            out.push_str(about);
        }
        out.push('\n');
    }
    out.push_str(&format!(":{}\n", directive as u8));
    out
}

type Candidates = Vec<(String, &'static str)>;

fn candidates<R: Copy>(
    root: &'static Command<R>,
    before: &[String],
    last: &str,
) -> (Candidates, Directive) {
    let line: Vec<Vec<u8>> = before.iter().map(|word| word.clone().into_bytes()).collect();
    let Ok(found) = find(root, &line) else { return (Vec::new(), Directive::Closed) };
    let mut flags = found.flags();
    flags.sort_by_key(|flag| flag.name);
    if before.iter().any(|word| word == "--") {
        return (Vec::new(), Directive::Files);
    }
    if let Some(flag) = before.last().and_then(|word| awaits_value(&flags, word)) {
        return values(flag, last);
    }
    if let Some((name, value)) = last.strip_prefix("--").and_then(|rest| rest.split_once('=')) {
        let named = flags.iter().find(|flag| flag.name == name);
        return named.map_or((Vec::new(), Directive::Closed), |flag| values(flag, value));
    }
    if last.starts_with('-') {
        return (flag_names(&flags, before, last), Directive::Closed);
    }
    words(&found, last)
}

/// Returns the flag whose value is expected as the next word.
fn awaits_value<'a>(flags: &'a [Flag], word: &str) -> Option<&'a Flag> {
    let flag = match word.strip_prefix("--") {
        Some(name) => flags.iter().find(|flag| flag.name == name)?,
        None => {
            let mut letters = word.strip_prefix('-')?.chars();
            let (letter, None) = (letters.next()?, letters.next()) else { return None };
            flags.iter().find(|flag| flag.short == Some(letter))?
        }
    };
    (flag.kind != Kind::Bool).then_some(flag)
}

fn values(flag: &Flag, begun: &str) -> (Candidates, Directive) {
    match VALUES.iter().find(|(name, _)| *name == flag.name) {
        Some((_, values)) => {
            (beginning(values.iter().map(|value| (*value, "")), begun), Directive::Closed)
        }
        None if flag.kind == Kind::Text => (Vec::new(), Directive::Files),
        None => (Vec::new(), Directive::Closed),
    }
}

/// Returns the flags that begin with `begun` and may still be given.
fn flag_names(flags: &[Flag], before: &[String], begun: &str) -> Candidates {
    let is_given = |flag: &Flag| {
        flag.kind != Kind::List
            && before
                .iter()
                .filter_map(|word| word.strip_prefix("--"))
                .any(|word| word.split_once('=').map_or(word, |(name, _)| name) == flag.name)
    };
    let left = flags.iter().filter(|flag| !is_given(flag));
    let named = left.map(|flag| (format!("--{}", flag.name), flag.usage));
    let help = ("--help".to_owned(), "help for this command");
    named.chain([help]).filter(|(name, _)| name.starts_with(begun)).collect()
}

/// Returns the candidates where no flag is expected: commands or arguments.
fn words<R: Copy>(found: &Found<R>, begun: &str) -> (Candidates, Directive) {
    let command = found.command();
    if command.children.is_empty() {
        return match command.name() {
            "completion" => {
                (beginning(SHELLS.iter().map(|shell| (*shell, "")), begun), Directive::Closed)
            }
            "help" => match find(found.root(), &found.line) {
                Ok(asked) if asked.line.is_empty() => {
                    (commands(asked.command(), begun), Directive::Closed)
                }
                Ok(_) | Err(_) => (Vec::new(), Directive::Closed),
            },
            _ => (Vec::new(), Directive::Files),
        };
    }
    (commands(command, begun), Directive::Closed)
}

fn commands<R>(group: &Command<R>, begun: &str) -> Candidates {
    beginning(group.children.iter().map(|child| (child.name(), child.short)), begun)
}

fn beginning(all: impl Iterator<Item = (&'static str, &'static str)>, begun: &str) -> Candidates {
    all.filter(|(name, _)| name.starts_with(begun))
        .map(|(name, about)| (name.to_owned(), about))
        .collect()
}

/// Returns the script for a shell, if it is one of [`SHELLS`]. `program` is the name under which the tool was called. A
/// script for one of our tools completes the command lines of all of them, because they share one program name.
#[must_use]
pub fn script(shell: &str, program: &str) -> Option<String> {
    let template = match shell {
        "bash" => include_str!("completion/bash.sh"),
        "zsh" => include_str!("completion/zsh.sh"),
        "fish" => include_str!("completion/fish.fish"),
        "powershell" => include_str!("completion/powershell.ps1"),
        _ => return None,
    };
    let (name, tools) = match program.split_once(' ') {
        Some((name, _)) => (name, "ctl utl"),
        None => (program, ""),
    };
    let quoted: Vec<_> = tools.split_whitespace().map(|tool| format!("'{tool}'")).collect();
    let lists = template.replace("%NAME%", name).replace("%TOOLS%", tools);
    Some(lists.replace("%QUOTED_TOOLS%", &quoted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &[Flag] = &[
        Flag::text("write-out", "simple", "the form").short('w'),
        Flag { name: "endpoints", short: None, kind: Kind::List, default: "", usage: "where" },
        Flag::bool("debug", "tell more"),
    ];
    const ROOT: Command<u8> = Command {
        usage: "tool",
        inherited: FLAGS,
        children: &[
            &Command { usage: "completion", short: "scripts", run: Some(1), ..Command::EMPTY },
            &Command { usage: "help", short: "help", run: Some(1), ..Command::EMPTY },
            &Command {
                usage: "lease <command>",
                short: "leases",
                children: &[
                    &Command { usage: "grant <ttl>", run: Some(1), ..Command::EMPTY },
                    &Command { usage: "list", run: Some(1), ..Command::EMPTY },
                ],
                ..Command::EMPTY
            },
            &Command {
                usage: "put <key>",
                short: "puts\nand more",
                flags: &[Flag::text("prefix", "", "begin")],
                run: Some(1),
                ..Command::EMPTY
            },
        ],
        ..Command::EMPTY
    };

    fn check(line: &str, expected: &str) {
        let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let answered = answer(&ROOT, &words, true).replace('\n', " ");
        assert_eq!(answered.trim_end(), expected, "{line:?}");
    }

    #[test]
    fn a_command_line_is_completed_from_the_command_tree() {
        check("", "completion\tscripts help\thelp lease\tleases put\tputs :4");
        check("le", "lease\tleases :4");
        check("lease ", "grant list :4");
        check("--debug -w json lease g", "grant :4");
        check("help lease l", "list :4");
        check("completion ", "bash fish powershell zsh :4");
        check("put ", ":0");
        check("nonsense ", ":4");
        check("put -- ", ":0");
    }

    #[test]
    fn flags_and_their_values_are_completed() {
        check("put --p", "--prefix\tbegin :4");
        check(
            "put --prefix=a --endpoints a --",
            "--debug\ttell more --endpoints\twhere --write-out\tthe form --help\thelp for this command :4",
        );
        check("-w ", "fields json protobuf simple table :4");
        check("put --write-out=s", "simple :4");
        check("put --prefix ", ":0");
        check("put --endpoints ", ":4");
        check("put --none=", ":4");
    }

    #[test]
    fn names_are_listed_without_descriptions_on_request() {
        assert_eq!(answer(&ROOT, &[b"p".to_vec()], false), "put\n:4\n");
        assert_eq!(answer(&ROOT, &[], false), "completion\nhelp\nlease\nput\n:4\n");
    }

    #[test]
    fn every_shell_has_a_script_for_both_program_names() {
        for shell in SHELLS {
            for (program, name) in [("etcdctl", "etcdctl"), ("quorate ctl", "quorate")] {
                let script = script(shell, program).unwrap();
                assert!(script.contains(name) && script.contains(ASK), "{shell}");
                assert!(!script.contains("NAME%") && !script.contains("TOOLS%"), "{script}");
            }
        }
        assert_eq!(script("csh", "etcdctl"), None);
    }
}
