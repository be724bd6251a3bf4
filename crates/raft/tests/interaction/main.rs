//! Golden scripts: commands and the output they must produce, word for word.
//!
//! * `scenario/` tests whole groups of nodes (`environment`, `commands`).
//! * `confchange/` tests the configuration changer, and `quorum/` the quorum computations.
//!
//! The scripts use the same language as the scenario files of etcd's raft library, which serve as an independent
//! reference. The tests run every file below the directory in `RAFT_TESTDATA`; if the variable is unset, they print
//! that these files were skipped. Our own files, under `testdata/`, are always run. `UPDATE=1` rewrites the expected
//! output of our own files.

#![expect(
    clippy::disallowed_methods,
    reason = "an environment variable names the test data folder"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and print the number of scripts"
)]

mod commands;
mod confchange;
mod describe;
mod environment;
mod quorum;

use std::path::Path;

use quorate_test_support::script::Interpreter;

fn run_own(area: &str, start: impl Fn() -> Interpreter) {
    quorate_test_support::script::run_own(env!("CARGO_MANIFEST_DIR"), area, start);
}

fn run_outside(area: &str, start: impl Fn() -> Interpreter) {
    let Some(root) = std::env::var_os("RAFT_TESTDATA") else {
        let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
        assert!(!required.contains("raft-testdata"), "RAFT_TESTDATA is required but not set");
        println!("skipped: scripts of etcd's raft library (RAFT_TESTDATA is not set)");
        return;
    };
    let files =
        quorate_test_support::script::run_directory(&Path::new(&root).join(area), false, start);
    assert!(files > 0, "there are no scripts in {area}/ below RAFT_TESTDATA");
    println!("{files} scripts in {area}/");
}

#[test]
fn scenario_scripts_of_etcd_produce_the_expected_output() {
    run_outside("scenario", environment::interpreter);
}

#[test]
fn confchange_scripts_of_etcd_produce_the_expected_output() {
    run_outside("confchange", confchange::interpreter);
}

#[test]
fn quorum_scripts_of_etcd_produce_the_expected_output() {
    run_outside("quorum", quorum::interpreter);
}

#[test]
fn scenario_scripts_produce_the_expected_output() {
    run_own("scenario", environment::interpreter);
}

#[test]
fn confchange_scripts_produce_the_expected_output() {
    run_own("confchange", confchange::interpreter);
}

#[test]
fn quorum_scripts_produce_the_expected_output() {
    run_own("quorum", quorum::interpreter);
}
