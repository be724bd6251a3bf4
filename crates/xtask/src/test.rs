//! `test` runs every test there is, and `ci` what a change must pass.
//!
//! The server is built first, in the profile for black-box tests, and its path handed to them; a
//! Debian etcd is provisioned, so that the same tests prove themselves on the original. The black-box
//! package runs last: its summary is the last thing on the screen. `QUORATE_GOLDEN` and
//! `RAFT_TESTDATA`, when set, reach every test.

use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, status, target};
use crate::{Outcome, protoc, provision, say, tidy};

const BLACK_BOX: &str = "quorate-tests";

/// Black-box tests at a time: they mostly wait for servers.
const BLACK_BOX_THREADS: &str = "6";

/// Builds the server and runs every test; `--long` switches the long forms on.
pub(crate) fn run(args: &[String]) -> Outcome {
    let long = args.iter().any(|arg| arg == "--long");
    let filters: Vec<&str> =
        args.iter().map(String::as_str).filter(|arg| !matches!(*arg, "--long" | "--")).collect();

    status(&mut cargo(&["build", "--profile", "blackbox", "--package", "quorate"]))?;
    let protoc = protoc::install()?;
    let server = target()?.join("blackbox").join("quorate");
    let prepare = |mut command: Command| {
        command.env("PROTOC", &protoc).env("QUORATE_BIN", &server);
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

    let mut black_box = prepare(cargo(&["test", "--package", BLACK_BOX, "--no-fail-fast"]));
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        black_box.env("RUST_TEST_THREADS", BLACK_BOX_THREADS);
    }
    if std::env::var_os("ETCD_BIN_DIR").is_none() {
        match provision::etcd(provision::DEFAULT_SUITE) {
            Ok(folder) => set_etcd(&mut black_box, &folder),
            Err(why) => say(&provision::skipped(&why)),
        }
    }
    if !filters.is_empty() {
        black_box.arg("--").args(filters);
    }
    let black_box = status(&mut black_box);
    workspace.and(black_box)
}

fn set_etcd(command: &mut Command, folder: &Path) {
    say(&format!("interop tests use {}", folder.display()));
    command.env("ETCD_BIN_DIR", folder);
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
