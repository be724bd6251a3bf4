//! Rules of this repository that no lint checks.
//!
//! * Each crate depends only on the crates that the architecture allows.
//! * Every declared dependency is used, and production code uses every dependency outside `dev-dependencies`.
//! * The files and modules of a crate have no import cycles.
//! * In a crate with layers, modules import only from lower layers.
//! * Production code uses every public item of the library crates.
//! * Every Rust file opens with a header that states its purpose.
//! * No Rust file has more than [`LINES_MAX`] lines, except the files in [`LONG_FILES`], which may only shrink.
//! * Crates in rings 0 and 1 use no clock, thread, environment or ambient randomness: time and seeds are arguments.
//! * The crates in these rings have the same `clippy.toml`: the contents of the root's file, followed by bans. Each
//!   crate has a copy, because clippy reads only the nearest file.
//! * Every name in the tables of `docs/bounds.md` is declared, and each bound has a metric and a test.
//! * The drawing in `ARCHITECTURE.md` contains every crate, and every name on the page is declared.
//! * The simulator calls production code for the decisions of a member, and does not contain copies of this code.
//! * The patch of every plant (`crates/sim/plants`) applies.
//! * The profile that release builds are optimised with applies to the present dependencies and build settings.
//! * The number of asserts in the crates that store a member's data or make its decisions does not fall.
//! * The number of stilted sentences, and of headings that are sentences, does not rise.
//! * Log and error messages that the documentation quotes occur in the sources.
//! * Every test named in the skip lists of the black-box tests or in the table of plants exists.
//! * Prose in Markdown wraps at 100 columns.
//! * No file contains a marker of unfinished work, or a path that exists on only one machine.
//!
//! Tests of the pure crates may use the environment. [`production`] determines which lines are not tests. The rules
//! also run as a test of this crate.

mod architecture;
mod asserts;
mod bounds;
mod cycles;
mod decisions;
mod layers;
mod manifest;
mod modules;
mod prose;
mod quotations;
mod source;
mod test_names;
#[cfg(test)]
mod tests;
mod tokens;
mod unused;
mod wrapping;

use crate::workspace::root;
use crate::{Outcome, plants, say, train};
use architecture::check_architecture;
use asserts::check_asserts;
use bounds::check_bounds;
use cycles::check_cycles;
use decisions::check_decisions;
use layers::check_layers;
use manifest::{check_arrows, check_used};
use prose::check_prose;
use quotations::check_quotations;
use source::{Source, is_letter, is_test_file, production, read_all};
use test_names::check_test_names;
use unused::check_unused;
use wrapping::check_wrapping;

/// The maximum number of lines of a Rust file.
const LINES_MAX: usize = 800;

/// Longer files, each with its own maximum.
const LONG_FILES: &[(&str, usize)] = &[];

/// Each package of the workspace, with the workspace packages that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("quorate-protobuf", &[]),
    ("quorate-api", &["quorate-protobuf", "quorate-test-support"]),
    // Other crates depend on this one only in tests, for which it reads scenario files and mutates inputs.
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
    (
        "quorate-engine",
        &[
            "quorate-api",
            "quorate-seeded-random",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
            "quorate-tls",
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
    // gRPC framing, used by members, proxies and the load generator.
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
    // HTTP/2 without I/O.
    ("quorate-http2", &["quorate-test-support"]),
    ("quorate-net", &["quorate-http2", "quorate-telemetry", "quorate-test-support", "quorate-tls"]),
    // HTTP responses and debug pages of members and proxies. It is separate so that the proxy does not depend on a
    // member's crates.
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
            // The rules for accepting messages and snapshots, which the simulator uses as well.
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
    // The interface to the data store, and the layers through which a request passes before it reaches the store.
    (
        "quorate-requests",
        &[
            "quorate-api",
            // The order of the checks before a write, which the simulator uses as well.
            "quorate-core",
            "quorate-gotext",
            "quorate-jwt",
            "quorate-net",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
            "quorate-version",
        ],
    ),
    (
        "quorate-member",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-core",
            "quorate-net",
            "quorate-node",
            "quorate-peer",
            "quorate-raft",
            "quorate-requests",
            "quorate-version",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
        ],
    ),
    // The services must not know which data store they use, so this crate does not depend on a member's crates.
    (
        "quorate-edge",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-gotext",
            "quorate-grpc",
            "quorate-http-pages",
            "quorate-http2",
            "quorate-json",
            "quorate-net",
            "quorate-requests",
            "quorate-version",
            "quorate-state",
            "quorate-telemetry",
            "quorate-test-support",
        ],
    ),
    // This is a separate crate, because only a member has a peer port.
    (
        "quorate-peer-port",
        &[
            "quorate-api",
            "quorate-grpc",
            "quorate-http-pages",
            "quorate-member",
            "quorate-net",
            "quorate-peer",
            "quorate-requests",
            "quorate-state",
            "quorate-telemetry",
        ],
    ),
    (
        "quorate-server",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-console",
            "quorate-core",
            "quorate-dns",
            "quorate-edge",
            "quorate-engine",
            "quorate-gotext",
            "quorate-jwt",
            "quorate-member",
            "quorate-net",
            "quorate-node",
            "quorate-peer",
            "quorate-peer-port",
            "quorate-profiler",
            "quorate-raft",
            "quorate-requests",
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
    // The common base of ctl and its live view, so that these two can be compiled in parallel.
    ("quorate-client", &["quorate-api", "quorate-grpc", "quorate-tls"]),
    ("quorate-top", &["quorate-api", "quorate-cli", "quorate-client", "quorate-tls"]),
    (
        "quorate-console",
        &[
            "quorate-api",
            "quorate-cli",
            "quorate-client",
            "quorate-net",
            "quorate-telemetry",
            "quorate-tls",
            "quorate-top",
            "quorate-version",
        ],
    ),
    (
        "quorate-ctl",
        &[
            "quorate-api",
            "quorate-cli",
            "quorate-client",
            "quorate-console",
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
            "quorate-engine",
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
            "quorate-http2",
            "quorate-json",
            "quorate-peer",
            "quorate-state",
            "quorate-storage",
        ],
    ),
    ("quorate-codegen", &[]),
    ("xtask", &[]),
];

/// Directories of the crates whose code receives time and random seeds as arguments.
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

/// Programs in the directories of pure crates. These programs may use clocks and threads.
const PROGRAMS: [&str; 1] = ["crates/sim/src/bin/simulate.rs"];

/// Names that must not occur in the pure crates.
const AMBIENT: [&str; 6] =
    ["Instant::now", "SystemTime::now", "thread::", "std::env", "rand::", "env::var"];

/// Macros that mark unfinished work. Their names are split, because this file is checked as well.
const UNFINISHED: [&str; 2] = [concat!("to", "do!("), concat!("unimple", "mented!(")];

/// Prefixes of paths that exist on only one machine.
const LOCAL_PATHS: [&str; 1] = [concat!("/wo", "rk/")];

/// Prints every violation, and fails if there is any. `--lower` writes the table of [`prose`] instead, and `--prose`
/// prints the counted sentences.
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
    complaints.extend(train::check(&root()));
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
        if source.path.ends_with(".md") {
            check_wrapping(source, &mut complaints);
        }
        check_paths(source, &mut complaints);
    }
    check_bans(sources, &mut complaints);
    check_used(sources, &mut complaints);
    check_cycles(sources, &mut complaints);
    check_layers(sources, &mut complaints);
    check_unused(sources, &mut complaints);
    check_bounds(sources, &mut complaints);
    check_decisions(sources, &mut complaints);
    check_architecture(sources, &mut complaints);
    check_prose(sources, &mut complaints);
    check_quotations(sources, &mut complaints);
    check_test_names(sources, &mut complaints);
    for (path, _) in LONG_FILES {
        if !sources.iter().any(|source| source.path == *path) {
            complaints.push(format!("{path}: listed in LONG_FILES, but not found"));
        }
    }
    complaints
}

fn check_header(source: &Source, complaints: &mut Vec<String>) {
    if !source.text.starts_with("//!") {
        complaints.push(format!("{}: must begin with a `//!` header", source.path));
    }
}

fn check_length(source: &Source, complaints: &mut Vec<String>) {
    let path = &source.path;
    let lines = source.text.lines().count();
    let listed = LONG_FILES.iter().find(|(listed, _)| listed == path);
    let bound = listed.map_or(LINES_MAX, |(_, bound)| *bound);
    if lines > bound {
        complaints.push(format!("{path}: {lines} lines, but the maximum is {bound}"));
    } else if listed.is_some() && lines <= LINES_MAX {
        complaints.push(format!("{path}: no longer too long; remove it from LONG_FILES"));
    }
}

fn check_finished(source: &Source, complaints: &mut Vec<String>) {
    for (number, line) in (1..).zip(source.text.lines()) {
        if let Some(mark) = UNFINISHED.iter().find(|mark| line.contains(*mark)) {
            complaints.push(format!("{}:{number}: {mark} marks unfinished work", source.path));
        }
    }
}

fn check_pure(source: &Source, complaints: &mut Vec<String>) {
    if is_test_file(&source.path) {
        return;
    }
    for (number, line) in production(&source.text) {
        if let Some(word) = AMBIENT.iter().find(|word| mentions(line, word)) {
            complaints
                .push(format!("{}:{number}: {word} is not allowed in a pure crate", source.path));
        }
    }
}

/// Reports a pure crate whose `clippy.toml` differs from the files of the other pure crates.
fn check_bans(sources: &[Source], complaints: &mut Vec<String>) {
    let text = |path: &str| sources.iter().find(|source| source.path == path).map(|s| &s.text[..]);
    let Some(root) = text("clippy.toml") else { return };
    let of = |folder: &str| text(&format!("{folder}clippy.toml"));
    let common = of(PURE[0]);
    for folder in PURE {
        match of(folder) {
            None => complaints.push(format!(
                "{folder}clippy.toml: file not found; it must contain the bans for pure crates"
            )),
            Some(bans) if !bans.starts_with(root) => {
                complaints.push(format!(
                    "{folder}clippy.toml: does not begin with the text of the root's clippy.toml"
                ));
            }
            found if found != common => {
                complaints
                    .push(format!("{folder}clippy.toml: differs from {}clippy.toml", PURE[0]));
            }
            Some(_) => {}
        }
    }
}

/// Returns whether the line contains the word. The end of a longer word does not count.
fn mentions(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(is_letter))
}

fn check_paths(source: &Source, complaints: &mut Vec<String>) {
    for (number, line) in (1..).zip(source.text.lines()) {
        if let Some(path) = LOCAL_PATHS.iter().find(|path| line.contains(*path)) {
            let place = &source.path;
            complaints.push(format!("{place}:{number}: {path} exists on only one machine"));
        }
    }
}
