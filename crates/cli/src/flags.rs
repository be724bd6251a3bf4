//! The grammar of flags. It is the same as pflag's, because `etcdctl` and `etcdutl` use pflag.
//!
//! Flags and arguments may be mixed. `--` marks the end of the flags. `--name value` and `--name=value` are equivalent,
//! except that a boolean takes a value only after `=`. One-letter flags can be combined. Error messages are
//! pflag's.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use crate::gotext::{parse_duration, parse_int, parse_uint, quote};

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A boolean.
    Bool,
    /// A number.
    Int,
    /// An unsigned number.
    Uint,
    /// A string, which is valid UTF-8.
    Text,
    /// A string of any bytes: a path, or a part of a key.
    Bytes,
    /// A duration.
    Duration,
    /// A comma-separated list. The values of repeated flags are concatenated.
    List,
}

/// A flag of a command.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The name, without dashes.
    pub name: &'static str,
    /// The one-letter form.
    pub short: Option<char>,
    /// The type of the value.
    pub kind: Kind,
    /// The default, as written on the command line.
    pub default: &'static str,
    /// The description in the help text.
    pub usage: &'static str,
}

impl Flag {
    /// Creates a boolean flag, off by default.
    #[must_use]
    pub const fn bool(name: &'static str, usage: &'static str) -> Self {
        Self { name, short: None, kind: Kind::Bool, default: "false", usage }
    }

    /// Creates a number flag, 0 by default.
    #[must_use]
    pub const fn int(name: &'static str, usage: &'static str) -> Self {
        Self { name, short: None, kind: Kind::Int, default: "0", usage }
    }

    /// Creates an unsigned number flag.
    #[must_use]
    pub const fn uint(name: &'static str, default: &'static str, usage: &'static str) -> Self {
        Self { name, short: None, kind: Kind::Uint, default, usage }
    }

    /// Creates a string flag.
    #[must_use]
    pub const fn text(name: &'static str, default: &'static str, usage: &'static str) -> Self {
        Self { name, short: None, kind: Kind::Text, default, usage }
    }

    /// Creates a flag for a path or a part of a key, empty by default.
    #[must_use]
    pub const fn bytes(name: &'static str, usage: &'static str) -> Self {
        Self { name, short: None, kind: Kind::Bytes, default: "", usage }
    }

    /// Creates a duration flag.
    #[must_use]
    pub const fn duration(name: &'static str, default: &'static str, usage: &'static str) -> Self {
        Self { name, short: None, kind: Kind::Duration, default, usage }
    }

    /// Adds a one-letter form.
    #[must_use]
    pub const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    /// Checks a value. The error is the reason why the value is invalid.
    fn check(&self, value: &str) -> Result<(), String> {
        match self.kind {
            Kind::Bool => parse_bool(value).map(drop),
            Kind::Int => parse_int(value, 0).map(drop),
            Kind::Uint => parse_uint(value, 0).map(drop),
            Kind::Duration => parse_duration(value).map(drop),
            Kind::Text | Kind::Bytes | Kind::List => Ok(()),
        }
    }

    fn display(&self) -> String {
        match self.short {
            Some(short) => format!("-{short}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {}: invalid syntax", quote(value.as_bytes()))),
    }
}

/// A command line error, or a request for help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlagError {
    /// The user requested help.
    Help,
    /// The error, worded as in pflag.
    Wrong(String),
}

/// A parsed command line.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    /// Values by flag name. Every known flag has a value.
    values: BTreeMap<&'static str, Vec<u8>>,
    /// The flags given on the command line.
    changed: BTreeMap<&'static str, bool>,
    /// The arguments, without the flags.
    pub args: Vec<Vec<u8>>,
    /// The number of `args` before `--`, if there is a `--`.
    pub args_before_dashes: Option<usize>,
}

impl Matches {
    /// Parses `line` with the given flags.
    pub fn parse(flags: &[Flag], line: &[Vec<u8>]) -> Result<Self, FlagError> {
        let mut matches = Self::default();
        for flag in flags {
            matches.values.insert(flag.name, flag.default.into());
        }
        let mut rest = line.iter();
        while let Some(word) = rest.next() {
            if word == b"--" {
                matches.args_before_dashes = Some(matches.args.len());
                matches.args.extend(rest.cloned());
                break;
            }
            match &word[..] {
                [b'-', b'-', long @ ..] => matches.long(flags, long, &mut rest)?,
                [b'-', letters @ ..] if !letters.is_empty() => {
                    matches.short(flags, letters, &mut rest)?;
                }
                _ => matches.args.push(word.clone()),
            }
        }
        Ok(matches)
    }

    fn long<'a>(
        &mut self,
        flags: &[Flag],
        word: &'a [u8],
        rest: &mut impl Iterator<Item = &'a Vec<u8>>,
    ) -> Result<(), FlagError> {
        // Errors do not contain the value, because it may be a secret.
        let (name, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        };
        let name = &*String::from_utf8_lossy(name);
        if word.starts_with(b"=") || name.starts_with('-') {
            return Err(FlagError::Wrong(format!("bad flag syntax: --{name}")));
        }
        let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
            return Err(match name {
                "help" => FlagError::Help,
                _ => FlagError::Wrong(format!("unknown flag: --{name}")),
            });
        };
        let value = match (value, flag.kind) {
            (Some(value), _) => value,
            (None, Kind::Bool) => b"true",
            (None, _) => rest
                .next()
                .ok_or_else(|| FlagError::Wrong(format!("flag needs an argument: --{name}")))?,
        };
        self.give(flag, value).map_err(FlagError::Wrong)
    }

    fn short<'a>(
        &mut self,
        flags: &[Flag],
        letters: &'a [u8],
        rest: &mut impl Iterator<Item = &'a Vec<u8>>,
    ) -> Result<(), FlagError> {
        let mut left = letters;
        while let Some((&byte, tail)) = left.split_first() {
            // The letters of all flags are ASCII.
            let Some(flag) = flags.iter().find(|flag| flag.short == Some(char::from(byte))) else {
                let letter = String::from_utf8_lossy(left).chars().next().unwrap_or_default();
                return Err(match letter {
                    'h' => FlagError::Help,
                    _ => {
                        // Do not print the rest, because it may contain a secret, as in `-user=name:password` or
                        // `-uname:password`.
                        let before = &letters[..letters.len() - left.len()];
                        let shown = format!("{}{letter}", String::from_utf8_lossy(before));
                        let shown = shown.trim_end_matches('=');
                        FlagError::Wrong(format!("unknown shorthand flag: '{letter}' in -{shown}"))
                    }
                });
            };
            let value = if let Some(value) = tail.strip_prefix(b"=") {
                value
            } else if flag.kind == Kind::Bool {
                self.give(flag, b"true").map_err(FlagError::Wrong)?;
                left = tail;
                continue;
            } else if tail.is_empty() {
                rest.next().ok_or_else(|| {
                    let (letter, letters) = (char::from(byte), String::from_utf8_lossy(letters));
                    let text = format!("flag needs an argument: '{letter}' in -{letters}");
                    FlagError::Wrong(text)
                })?
            } else {
                tail
            };
            return self.give(flag, value).map_err(FlagError::Wrong);
        }
        Ok(())
    }

    /// Sets a flag as if it were on the command line.
    pub fn give(&mut self, flag: &Flag, value: &[u8]) -> Result<(), String> {
        let name = || quote(flag.display().as_bytes());
        match std::str::from_utf8(value) {
            Ok(text) => flag.check(text).map_err(|reason| {
                format!("invalid argument {} for {} flag: {reason}", quote(value), name())
            })?,
            Err(_) if flag.kind == Kind::Bytes => {}
            // The value may be a secret.
            Err(_) => return Err(format!("invalid argument for {} flag: it is not UTF-8", name())),
        }
        let again = self.changed.insert(flag.name, true).is_some();
        let slot = self.values.entry(flag.name).or_default();
        if flag.kind == Kind::List && again {
            slot.push(b',');
            slot.extend(value);
        } else {
            value.clone_into(slot);
        }
        Ok(())
    }

    /// Returns whether the flag was given.
    #[must_use]
    pub fn changed(&self, name: &str) -> bool {
        self.changed.contains_key(name)
    }

    /// Returns a flag's value, which need not be UTF-8 if the flag has the kind [`Kind::Bytes`].
    ///
    /// # Panics
    ///
    /// Panics if the command has no such flag, which is a bug.
    #[must_use]
    pub fn bytes(&self, name: &str) -> &[u8] {
        self.values.get(name).expect("a command reads only its own flags")
    }

    /// Returns a flag's value as a path; `None` if it is empty.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<&Path> {
        Some(self.bytes(name)).filter(|value| !value.is_empty()).map(path_of)
    }

    /// Returns a flag's value as text.
    ///
    /// # Panics
    ///
    /// Panics if the command has no such flag, or if the flag has the kind [`Kind::Bytes`] and its value is not UTF-8.
    /// Both are bugs.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        std::str::from_utf8(self.bytes(name)).expect("only flags of bytes accept other values")
    }

    /// Returns the value of a boolean flag.
    #[must_use]
    pub fn bool(&self, name: &str) -> bool {
        parse_bool(self.text(name)).expect("values are checked when they are set")
    }

    /// Returns the value of a number flag.
    #[must_use]
    pub fn int(&self, name: &str) -> i64 {
        parse_int(self.text(name), 0).expect("values are checked when they are set")
    }

    /// Returns the value of an unsigned number flag.
    #[must_use]
    pub fn uint(&self, name: &str) -> u64 {
        parse_uint(self.text(name), 0).expect("values are checked when they are set")
    }

    /// Returns the value of a duration flag.
    #[must_use]
    pub fn duration(&self, name: &str) -> Duration {
        parse_duration(self.text(name)).expect("values are checked when they are set")
    }

    /// Returns the value of a list flag.
    #[must_use]
    pub fn list(&self, name: &str) -> Vec<String> {
        self.text(name).split(',').map(|item| item.trim().to_owned()).collect()
    }

    /// Returns the argument at `position` as a path, if there is one.
    #[must_use]
    pub fn path_arg(&self, position: usize) -> Option<&Path> {
        self.args.get(position).map(|arg| path_of(arg))
    }

    /// Returns the argument at `position` as text, if there is one. Invalid UTF-8 is replaced.
    #[must_use]
    pub fn arg(&self, position: usize) -> Option<String> {
        self.args.get(position).map(|arg| String::from_utf8_lossy(arg).into_owned())
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &[Flag] = &[
        Flag::bool("prefix", ""),
        Flag::bool("interactive", "").short('i'),
        Flag::int("limit", ""),
        Flag::text("write-out", "simple", "").short('w'),
        Flag::duration("dial-timeout", "2s", ""),
        Flag { name: "endpoints", short: None, kind: Kind::List, default: "d:1", usage: "" },
    ];

    fn parse(line: &str) -> Result<Matches, FlagError> {
        let line: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        Matches::parse(FLAGS, &line)
    }

    fn error_text(line: &str) -> String {
        match parse(line) {
            Err(FlagError::Wrong(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_and_arguments_may_be_mixed() {
        let matches = parse("a --limit 5 b -wjson --prefix c -- --prefix d").unwrap();
        assert_eq!(matches.args, [&b"a"[..], b"b", b"c", b"--prefix", b"d"]);
        assert_eq!(matches.args_before_dashes, Some(3));
        assert_eq!((matches.int("limit"), matches.text("write-out")), (5, "json"));
        assert!(
            matches.bool("prefix") && matches.changed("prefix") && !matches.bool("interactive")
        );
        assert_eq!(matches.duration("dial-timeout"), Duration::from_secs(2));
    }

    #[test]
    fn booleans_take_values_only_after_an_equals_sign() {
        let matches = parse("--prefix=false -iw table - --limit=-3").unwrap();
        assert!(!matches.bool("prefix") && matches.bool("interactive"));
        assert_eq!((matches.text("write-out"), matches.int("limit")), ("table", -3));
        assert_eq!(matches.args, [b"-"]);
        assert_eq!(parse("--prefix false").unwrap().args, [b"false"]);
    }

    #[test]
    fn only_flags_of_bytes_accept_values_that_are_not_utf8() {
        const FLAGS: &[Flag] = &[Flag::bytes("dir", "").short('d'), Flag::text("password", "", "")];
        let parse = |line: &[&[u8]]| {
            Matches::parse(FLAGS, &line.iter().map(|word| word.to_vec()).collect::<Vec<_>>())
        };
        for line in
            [&[&b"--dir=b\xe9"[..]][..], &[b"--dir", b"b\xe9"], &[b"-db\xe9"], &[b"-d", b"b\xe9"]]
        {
            assert_eq!(parse(line).unwrap().bytes("dir"), b"b\xe9", "{line:?}");
        }
        assert_eq!(parse(&[b"x\xe9"]).unwrap().path_arg(0).unwrap().as_os_str().len(), 2);
        assert_eq!(parse(&[]).unwrap().path("dir"), None);
        for line in [&[&b"--password=SECRET\xe9"[..]][..], &[b"--password", b"SECRET\xe9"]] {
            let text = "invalid argument for \"--password\" flag: it is not UTF-8".to_owned();
            assert_eq!(parse(line).unwrap_err(), FlagError::Wrong(text));
        }
    }

    #[test]
    fn repeated_list_flags_accumulate_and_replace_the_default() {
        assert_eq!(parse("x").unwrap().list("endpoints"), ["d:1"]);
        let matches = parse("--endpoints a:1,b:2 --endpoints=c:3").unwrap();
        assert_eq!(matches.list("endpoints"), ["a:1", "b:2", "c:3"]);
    }

    #[test]
    fn flag_errors_are_worded_as_in_pflag() {
        assert_eq!(error_text("--foo"), "unknown flag: --foo");
        assert_eq!(error_text("-iz"), "unknown shorthand flag: 'z' in -iz");
        assert_eq!(error_text("--endpoints"), "flag needs an argument: --endpoints");
        assert_eq!(error_text("-w"), "flag needs an argument: 'w' in -w");
        assert_eq!(error_text("--=x"), "bad flag syntax: --");
        assert_eq!(
            error_text("--limit x"),
            r#"invalid argument "x" for "--limit" flag: strconv.ParseInt: parsing "x": invalid syntax"#
        );
        assert_eq!(
            error_text("-i=x"),
            r#"invalid argument "x" for "-i, --interactive" flag: strconv.ParseBool: parsing "x": invalid syntax"#
        );
        for (line, shown) in [
            ("-user=root:SECRET", "unknown shorthand flag: 'u' in -u"),
            ("-uroot:SECRET", "unknown shorthand flag: 'u' in -u"),
            ("-iuroot:SECRET", "unknown shorthand flag: 'u' in -iu"),
            ("-=SECRET", "unknown shorthand flag: '=' in -"),
            ("---user=SECRET", "bad flag syntax: ---user"),
        ] {
            assert_eq!(error_text(line), shown);
        }
        assert_eq!(parse("a -h").unwrap_err(), FlagError::Help);
        assert_eq!(parse("--help").unwrap_err(), FlagError::Help);
    }
}
