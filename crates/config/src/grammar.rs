//! Parses the command line according to the grammar of Go's `flag` package, which operators know from etcd.
//!
//! `-x v`, `--x v`, `-x=v` and `--x=v` are equivalent. A boolean takes a value only after `=`. The first word that is
//! not a flag, or `--`, ends the flags. If a flag is given twice, the last value applies.

use quorate_gotext::quote::go_quote;

use super::absent::{self, Demand};
use super::draft::Draft;
use super::flags;

/// The result of parsing the command line. The values of the flags are in the draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandLine {
    /// The command line is valid. It contains flags, followed by these other words.
    Flags(Vec<String>),
    /// The user requested help.
    Help,
    /// A syntax error or an invalid value, with the text of the error.
    Wrong(String),
}

/// Returns a flag without its value, which may be a secret.
pub(super) fn without_value(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

fn undefined(name: &str) -> String {
    format!("flag provided but not defined: -{name}")
}

/// Parses the arguments after the program's name, and stores the values in the draft.
///
/// The whole line is parsed before removed flags are refused, so that the error names all of them.
pub(super) fn read(arguments: &[String], draft: &mut Draft) -> CommandLine {
    let outcome = read_all(arguments, draft);
    match (outcome, draft.demands.first()) {
        (CommandLine::Flags(_), Some(first)) => {
            let head = undefined(first.setting.trim_start_matches('-'));
            let lines = absent::lines(&draft.demands).join("\n");
            CommandLine::Wrong(format!("{head}\n{lines}"))
        }
        (outcome, _) => outcome,
    }
}

fn read_all(arguments: &[String], draft: &mut Draft) -> CommandLine {
    let mut rest = arguments;
    while let Some((argument, after)) = rest.split_first() {
        if argument == "--" {
            return CommandLine::Flags(after.to_vec());
        }
        if argument.len() < 2 || !argument.starts_with('-') {
            return CommandLine::Flags(rest.to_vec());
        }
        rest = after;
        let body = argument.strip_prefix("--").unwrap_or(&argument[1..]);
        if body.starts_with(['-', '=']) {
            return CommandLine::Wrong(format!("bad flag syntax: {}", without_value(argument)));
        }
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (body, None),
        };
        match one(name, value, &mut rest, draft) {
            Ok(()) => {}
            Err(ended) => return ended,
        }
    }
    CommandLine::Flags(Vec::new())
}

/// Sets one flag. If the argument contains no value, the value is the next word.
fn one(
    name: &str,
    value: Option<String>,
    rest: &mut &[String],
    draft: &mut Draft,
) -> Result<(), CommandLine> {
    if let Some(absent) = absent::find(name) {
        value_or_next(name, absent.is_bool, value, rest)?;
        draft.explicit.insert(name.to_owned());
        draft.demands.push(Demand { setting: format!("--{name}"), reason: absent.reason });
        return Ok(());
    }
    let Some(flag) = flags::find(name) else {
        return Err(match name {
            "help" | "h" => CommandLine::Help,
            _ => CommandLine::Wrong(undefined(name)),
        });
    };
    let is_bool = flag.setting.is_bool();
    let value = value_or_next(name, is_bool, value, rest)?;
    flag.set(draft, &value).map_err(|reason| {
        let value = go_quote(&value);
        CommandLine::Wrong(if is_bool {
            format!("invalid boolean value {value} for -{name}: {reason}")
        } else {
            format!("invalid value {value} for flag -{name}: {reason}")
        })
    })
}

/// Returns the value of a flag: the value after `=`, or the next word if the flag requires a value.
fn value_or_next(
    name: &str,
    is_bool: bool,
    value: Option<String>,
    rest: &mut &[String],
) -> Result<String, CommandLine> {
    match (value, rest.split_first()) {
        (Some(value), _) => Ok(value),
        (None, _) if is_bool => Ok("true".to_owned()),
        (None, Some((next, after))) => {
            *rest = after;
            Ok(next.clone())
        }
        (None, None) => Err(CommandLine::Wrong(format!("flag needs an argument: -{name}"))),
    }
}

/// Returns the command line for the log, with secrets removed.
pub(super) fn redacted(arguments: &[String]) -> Vec<String> {
    let mut redacted = Vec::with_capacity(arguments.len());
    let mut awaits: Option<&flags::Flag> = None;
    for argument in arguments {
        if let Some(flag) = awaits.take() {
            redacted.push(flag.redacted(argument).into_owned());
            continue;
        }
        let body = argument.trim_start_matches('-');
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (body, None),
        };
        let dashes = &argument[..argument.len() - body.len()];
        match (flags::find(name).filter(|_| !dashes.is_empty()), value) {
            (Some(flag), Some(value)) => {
                redacted.push(format!("{dashes}{name}={}", flag.redacted(value)));
            }
            (flag, _) => {
                awaits = flag.filter(|flag| !flag.setting.is_bool());
                redacted.push(argument.clone());
            }
        }
    }
    redacted
}
