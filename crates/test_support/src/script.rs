//! Runs scenario files, which contain commands with their exact expected output.
//!
//! ```text
//! # A comment.
//! command argument key=value key=(value,value)
//! input, any number of lines
//! ----
//! the output, up to an empty line
//! ```
//!
//! Output that contains empty lines is enclosed in doubled `----` lines. The scenario files of etcd's raft library have
//! the same format. Each test supplies an [`Interpreter`] for its commands. The files under `crates/*/testdata` also
//! document behaviour. `UPDATE=1 cargo test` rewrites their expected output.
//!
//! # Not here
//!
//! The meaning of commands.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const GROWS: &str = "writing to a String cannot fail";

/// Runs commands and returns their output.
pub type Interpreter = Box<dyn FnMut(&Command) -> String>;

/// A command with its arguments and input.
#[derive(Debug, Default)]
pub struct Command {
    /// First word of the line.
    pub name: String,
    /// Other words of the line.
    pub arguments: Vec<Argument>,
    /// Lines between the command and the `----`.
    pub input: String,
}

/// An argument, written `key`, `key=value` or `key=(value,..)`.
#[derive(Debug)]
pub struct Argument {
    /// Part before the `=`, or the whole word.
    pub key: String,
    /// Values after the `=`.
    pub values: Vec<String>,
}

impl Command {
    /// Parses a command line without input.
    #[must_use]
    pub fn parse(line: &str) -> Self {
        parse_command(line)
    }

    /// Returns the arguments without values, which are usually node ids.
    pub fn plain(&self) -> impl Iterator<Item = &str> {
        self.arguments.iter().filter(|a| a.values.is_empty()).map(|a| a.key.as_str())
    }

    /// Returns whether the word is among the arguments without values.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        self.plain().any(|argument| argument == word)
    }

    /// Returns the values of `key`.
    #[must_use]
    pub fn values(&self, key: &str) -> &[String] {
        let argument = self.arguments.iter().find(|argument| argument.key == key);
        argument.map_or(&[], |argument| &argument.values)
    }

    /// Returns the single value of `key`, parsed.
    #[must_use]
    pub fn value<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        let value = self.values(key).first()?;
        let parsed = value.parse().ok();
        Some(parsed.unwrap_or_else(|| panic!("{}: cannot parse {key}={value}", self.name)))
    }
}

/// Runs every script in `testdata/<area>` of the crate in `manifest_dir`, each with its own interpreter. `UPDATE=1` in
/// the environment rewrites the expected output.
pub fn run_own(manifest_dir: &str, area: &str, start: impl Fn() -> Interpreter) {
    let directory: PathBuf = [manifest_dir, "testdata", area].iter().collect();
    let files = run_directory(&directory, std::env::var_os("UPDATE").is_some(), start);
    assert!(files > 0, "testdata/{area} has scripts");
}

/// A piece of a script.
#[derive(Debug)]
enum Piece {
    /// Comments or empty lines.
    Text(String),
    /// A command as written and as parsed, its expected output, and its line number.
    Case { source: String, command: Command, expected: String, line: usize },
}

/// Runs every script in `directory` and returns the number of scripts. Panics at the end if any output differs. With
/// `update`, the actual output is written into the scripts instead.
pub fn run_directory(directory: &Path, update: bool, start: impl Fn() -> Interpreter) -> usize {
    let entries = fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", directory.display()));
    let mut paths: Vec<_> =
        entries.map(|entry| entry.expect("the directory can be read").path()).collect();
    paths.sort();
    let mut failures = String::new();
    for path in &paths {
        run_file(path, update, start(), &mut failures);
    }
    assert!(failures.is_empty(), "{failures}");
    paths.len()
}

fn run_file(path: &Path, update: bool, mut interpreter: Interpreter, failures: &mut String) {
    let pieces = parse(&fs::read_to_string(path).expect("a script is valid UTF-8"));
    let mut rewritten = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => rewritten.push_str(&text),
            Piece::Case { source, command, expected, line } => {
                let mut actual = interpreter(&command);
                if !actual.is_empty() && !actual.ends_with('\n') {
                    actual.push('\n');
                }
                if actual != expected && !update {
                    let place = format!("{}:{line}: {}", path.display(), command.name);
                    writeln!(failures, "{place}\n{}", difference(&expected, &actual)).expect(GROWS);
                    // The remaining commands depend on the failed command.
                    return;
                }
                rewritten.push_str(&source);
                rewritten.push_str(&enclosed(&actual));
            }
        }
    }
    if update {
        fs::write(path, rewritten).expect("a script can be rewritten");
    }
}

fn enclosed(output: &str) -> String {
    if output.lines().any(str::is_empty) {
        format!("----\n----\n{output}----\n----\n\n")
    } else {
        format!("----\n{output}\n")
    }
}

/// Returns the first line that differs, with the lines around it.
fn difference(expected: &str, actual: &str) -> String {
    let pairs = expected.lines().zip(actual.lines());
    let common = pairs.take_while(|(expected, actual)| expected == actual).count();
    let part = |text: &str| {
        let lines: Vec<_> = text.lines().skip(common.saturating_sub(3)).take(9).collect();
        lines.join("\n")
    };
    format!("--- expected\n{}\n--- actual\n{}\n", part(expected), part(actual))
}

fn parse(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            pieces.push(Piece::Text(format!("{line}\n")));
            continue;
        }
        let mut source = format!("{line}\n");
        let mut command = parse_command(line);
        for (_, line) in lines.by_ref().take_while(|(_, line)| *line != "----") {
            writeln!(source, "{line}").expect(GROWS);
            writeln!(command.input, "{line}").expect(GROWS);
        }
        let is_doubled = lines.next_if(|(_, line)| *line == "----").is_some();
        let mut expected = String::new();
        let is_end = |line: &str| if is_doubled { line == "----" } else { line.is_empty() };
        for (_, line) in lines.by_ref().take_while(|(_, line)| !is_end(line)) {
            writeln!(expected, "{line}").expect(GROWS);
        }
        if is_doubled {
            lines.next_if(|(_, line)| *line == "----");
            lines.next_if(|(_, line)| line.is_empty());
        }
        pieces.push(Piece::Case { source, command, expected, line: number + 1 });
    }
    pieces
}

fn parse_command(line: &str) -> Command {
    // Spaces separate arguments, except inside the parentheses of a list.
    let mut words = vec![String::new()];
    let mut depth = 0;
    for character in line.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 => words.push(String::new()),
            _ => words.last_mut().expect("there is at least one word").push(character),
        }
    }
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let name = words.next().unwrap_or_default();
    let arguments = words.map(|word| match word.split_once('=') {
        None => Argument { key: word, values: Vec::new() },
        Some((key, list)) => {
            let values = list.split(|c: char| c == ',' || c.is_whitespace());
            let values = values.filter(|value| !value.is_empty()).map(str::to_owned).collect();
            Argument { key: key.to_owned(), values }
        }
    });
    Command { name, arguments: arguments.collect(), input: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_arguments_and_input_are_parsed() {
        let pieces = parse("# why\n\nput a key=1 list=(2, 3) bare\nmore\n----\nok\n\nlast\n----\n");
        let [Piece::Text(_), Piece::Text(_), Piece::Case { command, expected, line, .. }, last] =
            &pieces[..]
        else {
            panic!("{pieces:?}")
        };
        assert_eq!((command.name.as_str(), command.input.as_str()), ("put", "more\n"));
        assert_eq!(command.plain().collect::<Vec<_>>(), ["a", "bare"]);
        assert_eq!((command.value("key"), command.values("list").len()), (Some(1), 2));
        assert_eq!((expected.as_str(), *line), ("ok\n", 3));
        assert!(matches!(last, Piece::Case { expected, .. } if expected.is_empty()));
    }

    #[test]
    fn output_with_empty_lines_is_preserved() {
        let written = format!("show\n{}", enclosed("a\n\nb\n"));
        let pieces = parse(&format!("{written}show\n----\n"));
        let [Piece::Case { expected, .. }, Piece::Case { .. }] = &pieces[..] else {
            panic!("{pieces:?}")
        };
        assert_eq!(expected, "a\n\nb\n");
    }
}
