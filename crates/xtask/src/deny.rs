//! `deny` checks the supply chain: the source and the licence of each dependency must be allowed.
//!
//! `deny.toml` contains the rules. If cargo-deny is installed, it runs as well, and also checks for duplicate versions
//! and security advisories. This module checks the other rules, and needs neither cargo-deny nor a network. If the
//! advisory database exists, or `QUORATE_REQUIRE` contains `advisories`, the check fails unless advisories were
//! checked.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::dependencies::{self, Dependencies};
use crate::workspace::{cargo, root, status};
use crate::{Outcome, say};

/// The only allowed package registry.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks every dependency, including test dependencies.
pub(crate) fn run() -> Outcome {
    let rules = root().join("deny.toml");
    let rules =
        std::fs::read_to_string(&rules).map_err(|error| format!("{}: {error}", rules.display()))?;
    let allowed = allowed(&rules)?;
    let all = dependencies::all()?;
    let complaints = complaints(&all, &allowed);
    if !complaints.is_empty() {
        return Err(complaints.join("\n"));
    }
    say(&format!("deny: {} packages, all from crates.io and under allowed licences", all.len()));
    let mut installed = Command::new("cargo-deny");
    installed.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let is_installed = installed.status().is_ok_and(|status| status.success());
    let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
    let advisories = Advisories {
        is_installed,
        is_fetched: is_installed && status(&mut cargo(&["deny", "fetch", "db"])).is_ok(),
        is_here: database().is_some_and(|folder| folder.is_dir()),
        is_required: required.split(',').any(|name| name == ADVISORIES),
    };
    match advisories.lookup()? {
        Lookup::Fetched => status(&mut cargo(&["deny", "check"])),
        Lookup::Local => status(&mut cargo(&["deny", "check", "--disable-fetch"])),
        Lookup::Nothing if is_installed => {
            say("deny: advisories were not checked, because the database cannot be fetched");
            status(&mut cargo(&["deny", "check", "bans", "licenses", "sources"]))
        }
        Lookup::Nothing => {
            say("deny: advisories were not checked, because cargo-deny is not installed");
            Ok(())
        }
    }
}

/// The name of the advisory check in `QUORATE_REQUIRE`.
pub(crate) const ADVISORIES: &str = "advisories";

/// Returns the directory with cargo-deny's copies of the advisory database.
fn database() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    Some(home?.join("advisory-dbs"))
}

/// The conditions that determine how advisories are checked.
#[derive(Clone, Copy, Debug)]
struct Advisories {
    is_installed: bool,
    is_fetched: bool,
    is_here: bool,
    is_required: bool,
}

/// The source of the advisories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
    Fetched,
    Local,
    Nothing,
}

impl Advisories {
    fn lookup(self) -> Result<Lookup, String> {
        let Self { is_installed, is_fetched, is_here, is_required } = self;
        match (is_installed, is_fetched, is_here) {
            (true, true, _) => Ok(Lookup::Fetched),
            (true, false, true) => Ok(Lookup::Local),
            (true, false, false) if is_required => {
                Err("advisories are required, but their database cannot be fetched".to_owned())
            }
            (false, _, true) => Err("the advisory database exists, but cargo-deny is not \
                 installed: cargo install --locked cargo-deny"
                .to_owned()),
            (false, _, false) if is_required => {
                Err("advisories are required, but cargo-deny is not installed".to_owned())
            }
            (_, _, false) => Ok(Lookup::Nothing),
        }
    }
}

/// Returns the licences allowed by the rules.
fn allowed(rules: &str) -> Result<Vec<String>, String> {
    let line = rules.lines().find_map(|line| line.strip_prefix("allow = ["));
    let list = line.and_then(|line| line.strip_suffix(']'));
    let list = list.ok_or("deny.toml: there is no line `allow = […]`")?;
    Ok(list.split(',').map(|name| name.trim().trim_matches('"').to_owned()).collect())
}

fn complaints(all: &Dependencies, allowed: &[String]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in all.values() {
        let named = format!("{} {}", package.name, package.version);
        match &package.source {
            Some(source) if source != REGISTRY => {
                complaints
                    .push(format!("{named} comes from {source}, which is not an allowed source"));
            }
            Some(_) if package.checksum.is_none() => {
                complaints.push(format!("{named} has no checksum in Cargo.lock"));
            }
            Some(_) | None => {}
        }
        match package.licence.as_deref().map(|licence| (licence, is_allowed(licence, allowed))) {
            None => complaints.push(format!("{named} does not name a licence in its manifest")),
            Some((_, Ok(true))) => {}
            Some((licence, Ok(false))) => {
                complaints.push(format!("{named} has the licence {licence}, which is not allowed"));
            }
            Some((licence, Err(why))) => complaints.push(format!("{named}: {licence}: {why}")),
        }
    }
    complaints
}

/// Returns whether the allowed licences satisfy an SPDX expression. A slash is an old form of OR.
fn is_allowed(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = &words[..];
    let is_met = any(&mut words, allowed)?;
    match words.first() {
        None => Ok(is_met),
        Some(word) => Err(format!("unexpected {word}")),
    }
}

/// Parses alternatives, which bind less tightly than conjunctions.
fn any(words: &mut &[&str], allowed: &[String]) -> Result<bool, String> {
    let mut is_met = every(words, allowed)?;
    while let ["OR", rest @ ..] = words {
        *words = rest;
        is_met |= every(words, allowed)?;
    }
    Ok(is_met)
}

fn every(words: &mut &[&str], allowed: &[String]) -> Result<bool, String> {
    let mut is_met = one(words, allowed)?;
    while let ["AND", rest @ ..] = words {
        *words = rest;
        is_met &= one(words, allowed)?;
    }
    Ok(is_met)
}

fn one(words: &mut &[&str], allowed: &[String]) -> Result<bool, String> {
    match words {
        ["(", rest @ ..] => {
            *words = rest;
            let is_met = any(words, allowed)?;
            let [")", rest @ ..] = words else {
                return Err("a closing parenthesis is missing".to_owned());
            };
            *words = rest;
            Ok(is_met)
        }
        [name, "WITH", exception, rest @ ..] => {
            let name = format!("{name} WITH {exception}");
            *words = rest;
            Ok(allowed.contains(&name))
        }
        [name, rest @ ..] if !["AND", "OR", ")", "WITH"].contains(name) => {
            let is_met = allowed.iter().any(|allowed| allowed == name);
            *words = rest;
            Ok(is_met)
        }
        _ => Err("a licence is missing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_checked_against_the_allowed_licences() {
        let rules = "[licenses]\nallow = [\"MIT\", \"ISC\", \"Apache-2.0 WITH LLVM-exception\"]\n";
        let allowed = allowed(rules).unwrap();
        for (expression, expected) in [
            ("MIT", Ok(true)),
            ("GPL-3.0-only", Ok(false)),
            ("MIT/GPL-3.0-only", Ok(true)),
            ("GPL-3.0-only OR MIT AND ISC", Ok(true)),
            ("(GPL-3.0-only OR MIT) AND Zlib", Ok(false)),
            ("ISC AND (Zlib OR MIT)", Ok(true)),
            ("Apache-2.0 WITH LLVM-exception", Ok(true)),
            ("Apache-2.0", Ok(false)),
            ("MIT AND", Err(())),
            ("(MIT", Err(())),
            ("MIT ISC", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(is_allowed(expression, &allowed).map_err(drop), expected, "{expression}");
        }
        assert!(self::allowed("[licenses]\n").is_err());
    }

    #[test]
    fn advisories_are_looked_up_in_the_fetched_or_the_local_database() {
        let lookup = |is_installed, is_fetched, is_here, is_required| {
            Advisories { is_installed, is_fetched, is_here, is_required }.lookup().map_err(drop)
        };
        assert_eq!(lookup(true, true, false, false), Ok(Lookup::Fetched));
        assert_eq!(lookup(true, false, true, true), Ok(Lookup::Local));
        assert_eq!(lookup(true, false, false, false), Ok(Lookup::Nothing));
        assert_eq!(lookup(true, false, false, true), Err(()));
        assert_eq!(lookup(false, false, true, false), Err(()));
        assert_eq!(lookup(false, false, false, true), Err(()));
        assert_eq!(lookup(false, false, false, false), Ok(Lookup::Nothing));
    }

    #[test]
    fn deny_toml_has_an_advisories_section() {
        let rules = std::fs::read_to_string(root().join("deny.toml")).unwrap();
        assert!(rules.lines().any(|line| line == "[advisories]"));
    }

    #[test]
    fn the_dependencies_of_this_workspace_are_allowed() {
        run().unwrap();
    }
}
