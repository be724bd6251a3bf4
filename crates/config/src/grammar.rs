//! The command line by the grammar of Go's `flag` package, which etcd's operators know.
//!
//! `-x v`, `--x v`, `-x=v` and `--x=v` mean the same; a boolean takes its value behind `=` only;
//! the first word that is no flag, or `--`, ends the flags. A flag given twice keeps its last
//! value. Numbers, booleans and spans of time are read as Go reads them, with Go's words for what
//! is wrong.

use super::absent::{self, Demand};
use super::draft::Draft;
use super::flags;
use quorate_gotext::quote::go_quote;

/// What the command line came to, its values being in the draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandLine {
    /// Flags and then these words.
    Flags(Vec<String>),
    /// Somebody asked for help.
    Help,
    /// The grammar or a value is wrong; the lines that say so.
    Wrong(String),
}

/// A word that is no flag, without what may be a secret.
pub(super) fn without_value(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

fn undefined(name: &str) -> String {
    format!("flag provided but not defined: -{name}")
}

/// Reads the arguments behind the program's name into the draft.
///
/// The line is read to its end before flags that are not there are refused, so that they are told of all at
/// once.
pub(super) fn read(arguments: &[String], draft: &mut Draft) -> CommandLine {
    let outcome = read_all(arguments, draft);
    match (outcome, draft.demands.first()) {
        (CommandLine::Flags(_), Some(first)) => {
            let head = undefined(first.setting.trim_start_matches('-'));
            let lines = absent::told(&draft.demands).join("\n");
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

/// Sets one flag, taking its value from the words that follow where it has none of its own.
fn one(
    name: &str,
    value: Option<String>,
    rest: &mut &[String],
    draft: &mut Draft,
) -> Result<(), CommandLine> {
    if let Some(absent) = absent::find(name) {
        let value = value_or_next(name, absent.is_bool, value, rest)?;
        draft.explicit.insert(name.to_owned());
        if !absent.is_idle(&value) {
            draft.demands.push(Demand { setting: format!("--{name}"), reason: absent.reason });
        }
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

/// The value of a flag, from the word that follows where the flag needs one and has none of its own.
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

/// The command line as a log may show it: without what is secret.
pub(super) fn told(arguments: &[String]) -> Vec<String> {
    let mut told = Vec::with_capacity(arguments.len());
    let mut awaits: Option<&flags::Flag> = None;
    for argument in arguments {
        if let Some(flag) = awaits.take() {
            told.push(flag.told(argument).into_owned());
            continue;
        }
        let body = argument.trim_start_matches('-');
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (body, None),
        };
        let dashes = &argument[..argument.len() - body.len()];
        match (flags::find(name).filter(|_| !dashes.is_empty()), value) {
            (Some(flag), Some(value)) => told.push(format!("{dashes}{name}={}", flag.told(value))),
            (flag, _) => {
                awaits = flag.filter(|flag| !flag.setting.is_bool());
                told.push(argument.clone());
            }
        }
    }
    told
}

/// Reads a boolean as Go does.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Why a text is no number of the wanted kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberError {
    /// It is none.
    Syntax,
    /// It does not fit.
    Range,
}

impl NumberError {
    /// The words of the `flag` package.
    pub(super) fn flag_reason(self) -> &'static str {
        match self {
            Self::Syntax => "parse error",
            Self::Range => "value out of range",
        }
    }

    /// The words of the `strconv` package.
    pub(super) fn strconv_reason(self) -> &'static str {
        match self {
            Self::Syntax => "invalid syntax",
            Self::Range => "value out of range",
        }
    }
}

/// Reads a number without a sign, in base 10 or behind `0x`, `0o`, `0b` or `0`.
pub(super) fn parse_uint(text: &str, max: u64) -> Result<u64, NumberError> {
    let lower = text.to_ascii_lowercase();
    let (radix, digits, prefixed) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..], true),
        [b'0', b'o', ..] => (8, &lower[2..], true),
        [b'0', b'b', ..] => (2, &lower[2..], true),
        [b'0', _, ..] => (8, &lower[1..], true),
        _ => (10, lower.as_str(), false),
    };
    if digits.is_empty() || !underscores_separate(digits, prefixed) {
        return Err(NumberError::Syntax);
    }
    let mut value: u64 = 0;
    let mut fits = true;
    for c in digits.chars().filter(|c| *c != '_') {
        let digit = c.to_digit(radix).ok_or(NumberError::Syntax)?;
        match value.checked_mul(u64::from(radix)).and_then(|v| v.checked_add(u64::from(digit))) {
            Some(next) => value = next,
            None => fits = false,
        }
    }
    if fits && value <= max { Ok(value) } else { Err(NumberError::Range) }
}

/// Reads a number with an optional sign.
pub(super) fn parse_int(text: &str) -> Result<i64, NumberError> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = parse_uint(digits, u64::MAX)?;
    let value =
        if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
    value.ok_or(NumberError::Range)
}

/// An underscore may stand between digits, and between a prefix and the first digit; and, as in
/// Go's source, only in a number whose base the text itself decides.
fn underscores_separate(digits: &str, prefixed: bool) -> bool {
    let leads = digits.starts_with('_');
    !(leads && !prefixed || digits.ends_with('_') || digits.contains("__"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("17", Ok(17)),
            ("0x1F", Ok(31)),
            ("0b101", Ok(5)),
            ("0o17", Ok(15)),
            ("017", Ok(15)),
            ("1_000", Ok(1000)),
            ("0x_ff", Ok(255)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(NumberError::Range)),
            ("99999999999999999999x", Err(NumberError::Syntax)),
            ("09", Err(NumberError::Syntax)),
            ("1__0", Err(NumberError::Syntax)),
            ("_1", Err(NumberError::Syntax)),
            ("", Err(NumberError::Syntax)),
            ("0x", Err(NumberError::Syntax)),
            ("-1", Err(NumberError::Syntax)),
            ("1.0", Err(NumberError::Syntax)),
        ] {
            assert_eq!(parse_uint(text, u64::MAX), expected, "{text}");
        }
        assert_eq!(parse_uint("4294967296", u64::from(u32::MAX)), Err(NumberError::Range));
        assert_eq!(parse_int("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(parse_int("9223372036854775808"), Err(NumberError::Range));
        assert_eq!(parse_int("+0x10"), Ok(16));
        assert_eq!(parse_int("--1"), Err(NumberError::Syntax));
    }

    proptest! {
        #[test]
        fn decimal_numbers_read_back(value in any::<i64>()) {
            prop_assert_eq!(parse_int(&value.to_string()), Ok(value));
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in "\\PC{0,12}") {
            let _outcome = parse_int(&text);
        }
    }
}
