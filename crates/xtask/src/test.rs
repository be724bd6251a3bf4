//! `test` runs every test there is, and `ci` what a change must pass.
//!
//! The server is built first, in the profile for black-box tests, and its path handed to them; a
//! Debian etcd is provisioned, so that the same tests prove themselves on the original. The black-box
//! package runs last: its summary is the last thing on the screen. Its suite runs three times: against a
//! member that is alone, at the leader of three, and at a follower. `QUORATE_GOLDEN` and `RAFT_TESTDATA`,
//! when set, reach every test.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{cargo, status, target};
use crate::{Outcome, protoc, provision, say, tidy};

const BLACK_BOX: &str = "quorate-tests";

/// Black-box tests at a time: they mostly wait for servers. Tests of clusters limit themselves.
const BLACK_BOX_THREADS: &str = "6";

/// Builds the server and runs every test; `--long` switches the long forms on.
pub(crate) fn run(args: &[String]) -> Outcome {
    let long = args.iter().any(|arg| arg == "--long");
    let filters: Vec<&str> =
        args.iter().map(String::as_str).filter(|arg| !matches!(*arg, "--long" | "--")).collect();

    status(&mut cargo(&["build", "--profile", "blackbox", "--package", "quorate"]))?;
    let protoc = protoc::install()?;
    let server = target()?.join("blackbox").join("quorate");
    let etcd = match std::env::var_os("ETCD_BIN_DIR") {
        Some(folder) => Some(folder.into()),
        None => provision_etcd(),
    };
    let prepare = |mut command: Command| {
        command.env("PROTOC", &protoc).env("QUORATE_BIN", &server);
        if let Some(folder) = &etcd {
            command.env("ETCD_BIN_DIR", folder);
        }
        if long {
            command.env("QUORATE_LONG", "1");
        }
        command
    };

    // All packages get their turn even when an early one fails.
    let workspace = status(&mut prepare(cargo(&[
        "test",
        "--workspace",
        "--exclude",
        BLACK_BOX,
        "--no-fail-fast",
    ])));

    let black_box = |args: &[&str], place: Option<&str>, filters: &[&str]| {
        let args = [&["test", "--package", BLACK_BOX, "--no-fail-fast"], args].concat();
        let mut command = prepare(cargo(&args));
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", BLACK_BOX_THREADS);
        }
        if let Some(place) = place {
            say(&format!("the black-box tests again, at the {place} of three"));
            command.env("QUORATE_CLUSTER", place);
        }
        status(command.arg("--").args(filters))
    };
    let alone = black_box(&["--tests"], None, &filters);
    let mut outcome = workspace.and(alone);
    // To a client a cluster is one store. That it is so with etcd is checked in the long form.
    let ours = ["quorate", "--skip", "_to_etcd"];
    let filters = if filters.is_empty() && !long { &ours[..] } else { &filters };
    for place in ["leader", "follower"] {
        outcome = outcome.and(black_box(&["--test", "blackbox"], Some(place), filters));
    }
    outcome
}

/// Real etcd to compare with, where it can be had.
fn provision_etcd() -> Option<PathBuf> {
    match provision::etcd(provision::DEFAULT_SUITE) {
        Ok(folder) => {
            say(&format!("interop tests use {}", folder.display()));
            Some(folder)
        }
        Err(why) => {
            say(&provision::skipped(&why));
            None
        }
    }
}

/// Everything that a change must pass, cheapest first.
pub(crate) fn ci() -> Outcome {
    status(&mut cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    let protoc = protoc::install()?;
    let mut clippy = cargo(&["clippy", "--workspace", "--all-targets"]);
    status(clippy.env("PROTOC", protoc).args(["--", "-D", "warnings"]))?;
    run(&[])
}
