//! The rules of this repository that no lint knows.
//!
//! * Dependencies between our crates follow the arrows of the architecture, and no others.
//! * What a manifest declares is used, by production code where it is no dev-dependency.
//! * No file of a crate imports another in a circle.
//! * Where the modules of a crate form layers, imports point to lower layers only.
//! * Public items of library crates are used by more than tests.
//! * Every Rust file opens with a header that says what it is for.
//! * No Rust file grows over [`LINES_MAX`] lines. The files that once did are listed in [`LONG_FILES`];
//!   the list may only shrink.
//! * Rings 0 and 1 have no clock, thread, environment or ambient randomness: time and seeds are arguments.
//! * The crates of these rings have one `clippy.toml`: the root's with bans added. Clippy takes the nearest
//!   file alone, so each has a copy.
//! * Every name in the tables of `docs/bounds.md` is that of something, and each bound has a series and a test.
//! * Every crate is drawn in `ARCHITECTURE.md`, and has what is named as its own there.
//! * The simulator leaves the decisions of a member to production, and has no copy of them.
//! * Every planted defect (`crates/sim/plants`) still applies to the code that it spoils.
//! * The crates that hold a member's data and decide for it do not lose asserts.
//! * Stilted sentences and headings that are sentences do not get more.
//! * Nothing is left unfinished, and no file names a path of somebody's machine.
//!
//! Tests of the pure crates are free to use the environment; what counts as a test is said at
//! [`production`]. The rules also run as a test of this crate.

mod asserts;
mod bounds;
mod circles;
mod decisions;
mod layers;
mod manifest;
mod map;
mod modules;
mod prose;
mod source;
#[cfg(test)]
mod tests;
mod tokens;
mod unused;

use crate::workspace::root;
use crate::{Outcome, plants, say};
use asserts::check_asserts;
use bounds::check_bounds;
use circles::check_circles;
use decisions::check_decisions;
use layers::check_layers;
use manifest::{check_arrows, check_used};
use map::check_map;
use prose::check_prose;
use source::{Source, is_letter, is_test_file, production, read_all};
use unused::check_unused;

/// Lines that a Rust file may have.
const LINES_MAX: usize = 800;

/// Files that are longer, with the length they may not exceed.
const LONG_FILES: &[(&str, usize)] = &[];

/// Each package and those of ours it may depend on. Arrows point down only.
const ARROWS: &[(&str, &[&str])] = &[
    ("quorate-protobuf", &[]),
    ("quorate-api", &["quorate-protobuf", "quorate-test-support"]),
    // A dev-dependency everywhere: scenario files, and inputs that are changed at random.
    ("quorate-test-support", &["quorate-seeded-random"]),
    ("quorate-raft", &["quorate-protobuf", "quorate-seeded-random", "quorate-test-support"]),
    ("quorate-node", &["quorate-raft", "quorate-seeded-random"]),
    ("quorate-storage", &["quorate-protobuf", "quorate-seeded-random", "quorate-test-support"]),
    (
        "quorate-state",
        &[
            "quorate-api",
            "quorate-seeded-random",
            "quorate-version",
            "quorate-storage",
            "quorate-test-support",
        ],
    ),
    ("quorate-cli", &["quorate-gotext"]),
    ("quorate-dns", &[]),
    (
        "quorate-tcp-gateway",
        &[
            "quorate-cli",
            "quorate-config",
            "quorate-dns",
            "quorate-gotext",
            "quorate-seeded-random",
            "quorate-telemetry",
            "quorate-tls",
        ],
    ),
    (
        "quorate-grpc-proxy",
        &[
            "quorate-api",
            "quorate-cli",
            "quorate-tcp-gateway",
            "quorate-gotext",
            "quorate-grpc",
            "quorate-http-pages",
            "quorate-json",
            "quorate-net",
            "quorate-profiler",
            "quorate-seeded-random",
            "quorate-telemetry",
            "quorate-tls",
        ],
    ),
    ("quorate-gotext", &[]),
    // gRPC on the wire, for a member, a proxy and the load generator.
    ("quorate-grpc", &["quorate-gotext", "quorate-test-support"]),
    ("quorate-profiler", &["quorate-protobuf", "quorate-seeded-random"]),
    ("quorate-json", &["quorate-protobuf", "quorate-test-support"]),
    ("quorate-jwt", &[]),
    ("quorate-version", &[]),
    (
        "quorate-telemetry",
        &["quorate-gotext", "quorate-protobuf", "quorate-seeded-random", "quorate-version"],
    ),
    (
        "quorate-config",
        &["quorate-gotext", "quorate-version", "quorate-telemetry", "quorate-test-support"],
    ),
    ("quorate-seeded-random", &[]),
    ("quorate-history-checker", &["quorate-seeded-random"]),
    ("quorate-tls", &["quorate-gotext", "quorate-telemetry"]),
    ("quorate-net", &["quorate-telemetry", "quorate-test-support", "quorate-tls"]),
    // Answers and debug pages that a member and a proxy share, so that a proxy needs nothing of a member's.
    (
        "quorate-http-pages",
        &["quorate-net", "quorate-profiler", "quorate-version", "quorate-telemetry"],
    ),
    (
        "quorate-core",
        &[
            "quorate-api",
            "quorate-node",
            "quorate-raft",
            "quorate-seeded-random",
            "quorate-state",
            "quorate-storage",
        ],
    ),
    (
        "quorate-peer",
        &[
            "quorate-api",
            // What is accepted from other members is decided there, so that the simulator decides the same.
            "quorate-core",
            "quorate-gotext",
            "quorate-net",
            "quorate-protobuf",
            "quorate-raft",
            "quorate-version",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
            "quorate-test-support",
            "quorate-tls",
        ],
    ),
    (
        "quorate-member",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-core",
            "quorate-gotext",
            "quorate-jwt",
            "quorate-net",
            "quorate-node",
            "quorate-peer",
            "quorate-raft",
            "quorate-version",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
        ],
    ),
    (
        "quorate-edge",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-gotext",
            "quorate-grpc",
            "quorate-http-pages",
            "quorate-json",
            "quorate-member",
            "quorate-net",
            "quorate-peer",
            "quorate-version",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
            "quorate-test-support",
        ],
    ),
    (
        "quorate-server",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-core",
            "quorate-dns",
            "quorate-edge",
            "quorate-gotext",
            "quorate-jwt",
            "quorate-member",
            "quorate-net",
            "quorate-node",
            "quorate-peer",
            "quorate-profiler",
            "quorate-raft",
            "quorate-version",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
            "quorate-tls",
        ],
    ),
    (
        "quorate-sim",
        &[
            "quorate-api",
            "quorate-core",
            "quorate-history-checker",
            "quorate-node",
            "quorate-raft",
            "quorate-seeded-random",
            "quorate-state",
            "quorate-storage",
        ],
    ),
    // What ctl and its live view both stand on, so that the two are built side by side.
    ("quorate-client", &["quorate-api", "quorate-grpc", "quorate-tls"]),
    ("quorate-top", &["quorate-api", "quorate-cli", "quorate-client", "quorate-tls"]),
    (
        "quorate-ctl",
        &[
            "quorate-api",
            "quorate-cli",
            "quorate-client",
            "quorate-dns",
            "quorate-version",
            "quorate-top",
        ],
    ),
    (
        "quorate-bench",
        &[
            "quorate-api",
            "quorate-cli",
            "quorate-grpc",
            "quorate-protobuf",
            "quorate-seeded-random",
            "quorate-tls",
        ],
    ),
    (
        "quorate-utl",
        &[
            "quorate-api",
            "quorate-cli",
            "quorate-config",
            "quorate-core",
            "quorate-raft",
            "quorate-version",
            "quorate-state",
            "quorate-storage",
        ],
    ),
    (
        "quorate",
        &[
            "quorate-bench",
            "quorate-cli",
            "quorate-config",
            "quorate-ctl",
            "quorate-tcp-gateway",
            "quorate-profiler",
            "quorate-grpc-proxy",
            "quorate-version",
            "quorate-server",
            "quorate-telemetry",
            "quorate-utl",
        ],
    ),
    ("quorate-tests", &["quorate-api", "quorate-protobuf", "quorate-seeded-random", "quorate-tls"]),
    (
        "quorate-fuzz",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-edge",
            "quorate-grpc",
            "quorate-json",
            "quorate-net",
            "quorate-peer",
            "quorate-state",
            "quorate-storage",
        ],
    ),
    ("quorate-codegen", &[]),
    ("xtask", &[]),
];

/// Folders of the crates that get time and chance as arguments.
const PURE: [&str; 9] = [
    "crates/protobuf/",
    "crates/seeded_random/",
    "crates/raft/",
    "crates/node/",
    "crates/storage/",
    "crates/state/",
    "crates/core/",
    "crates/history_checker/",
    "crates/sim/",
];

/// Programs in front of a pure crate. They have a clock and threads, and pass both on as arguments.
const PROGRAMS: [&str; 1] = ["crates/sim/src/bin/simulate.rs"];

/// What the pure crates do without.
const AMBIENT: [&str; 6] =
    ["Instant::now", "SystemTime::now", "thread::", "std::env", "rand::", "env::var"];

/// What marks unfinished work. Spelled in halves, because this file is checked too.
const UNFINISHED: [&str; 2] = [concat!("to", "do!("), concat!("unimple", "mented!(")];

/// Paths that exist on one machine only.
const LOCAL_PATHS: [&str; 1] = [concat!("/wo", "rk/")];

/// Prints every broken rule, and fails when there is one. `--lower` writes the table of [`prose`] instead, and `--prose`
/// prints what it counts.
pub(crate) fn run(args: &[String]) -> Outcome {
    let sources = read_all(&root())?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => {}
        ["--lower"] => return prose::lower(&root(), &sources),
        ["--prose"] | ["--prose", _] => {
            say(&prose::report(&sources, args.get(1).copied()));
            return Ok(());
        }
        _ => return Err("usage: cargo xtask tidy [--lower | --prose [GROUP]]".to_owned()),
    }
    let mut complaints = check(&sources);
    check_asserts(&sources, &mut complaints);
    complaints.extend(plants::check(&root()));
    for complaint in &complaints {
        say(complaint);
    }
    if let Some(note) = prose::fallen(&sources) {
        say(&note);
    }
    match complaints.len() {
        0 => Ok(()),
        count => Err(format!("tidy: {count} complaints")),
    }
}

fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        if source.path.ends_with("Cargo.toml") {
            check_arrows(source, ARROWS, &mut complaints);
        }
        if source.path.ends_with(".rs") {
            check_header(source, &mut complaints);
            check_length(source, &mut complaints);
            check_finished(source, &mut complaints);
            if PURE.iter().any(|folder| source.path.starts_with(folder))
                && !PROGRAMS.contains(&&source.path[..])
            {
                check_pure(source, &mut complaints);
            }
        }
        check_paths(source, &mut complaints);
    }
    check_bans(sources, &mut complaints);
    check_used(sources, &mut complaints);
    check_circles(sources, &mut complaints);
    check_layers(sources, &mut complaints);
    check_unused(sources, &mut complaints);
    check_bounds(sources, &mut complaints);
    check_decisions(sources, &mut complaints);
    check_map(sources, &mut complaints);
    check_prose(sources, &mut complaints);
    for (path, _) in LONG_FILES {
        if !sources.iter().any(|source| source.path == *path) {
            complaints.push(format!("{path}: on the list of long files, but gone"));
        }
    }
    complaints
}

fn check_header(source: &Source, complaints: &mut Vec<String>) {
    if !source.text.starts_with("//!") {
        complaints.push(format!("{}: does not open with a `//!` header", source.path));
    }
}

fn check_length(source: &Source, complaints: &mut Vec<String>) {
    let path = &source.path;
    let lines = source.text.lines().count();
    let listed = LONG_FILES.iter().find(|(listed, _)| listed == path);
    let bound = listed.map_or(LINES_MAX, |(_, bound)| *bound);
    if lines > bound {
        complaints.push(format!("{path}: {lines} lines, at most {bound}"));
    } else if listed.is_some() && lines <= LINES_MAX {
        complaints.push(format!("{path}: no longer long, take it off the list"));
    }
}

fn check_finished(source: &Source, complaints: &mut Vec<String>) {
    for (number, line) in (1..).zip(source.text.lines()) {
        if let Some(mark) = UNFINISHED.iter().find(|mark| line.contains(*mark)) {
            complaints.push(format!("{}:{number}: {mark} is unfinished work", source.path));
        }
    }
}

fn check_pure(source: &Source, complaints: &mut Vec<String>) {
    if is_test_file(&source.path) {
        return;
    }
    for (number, line) in production(&source.text) {
        if let Some(word) = AMBIENT.iter().find(|word| mentions(line, word)) {
            complaints.push(format!("{}:{number}: {word} in a pure crate", source.path));
        }
    }
}

/// Complains about pure crates whose `clippy.toml` is not the one that all of them have.
fn check_bans(sources: &[Source], complaints: &mut Vec<String>) {
    let text = |path: &str| sources.iter().find(|source| source.path == path).map(|s| &s.text[..]);
    let Some(root) = text("clippy.toml") else { return };
    let of = |folder: &str| text(&format!("{folder}clippy.toml"));
    let common = of(PURE[0]);
    for folder in PURE {
        match of(folder) {
            None => complaints.push(format!("{folder}: has no clippy.toml with the bans")),
            Some(bans) if !bans.starts_with(root) => {
                complaints.push(format!("{folder}clippy.toml: does not begin as the root's"));
            }
            found if found != common => {
                complaints.push(format!("{folder}clippy.toml: not that of {}", PURE[0]));
            }
            Some(_) => {}
        }
    }
}

/// True when the word stands in the line and is not the end of a longer one.
fn mentions(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(is_letter))
}

fn check_paths(source: &Source, complaints: &mut Vec<String>) {
    for (number, line) in (1..).zip(source.text.lines()) {
        if let Some(path) = LOCAL_PATHS.iter().find(|path| line.contains(*path)) {
            let place = &source.path;
            complaints.push(format!("{place}:{number}: {path} is a path of one machine"));
        }
    }
}
