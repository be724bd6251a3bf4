//! Golden scripts in `testdata/` that test the replicated state machine from the point of view of
//! clients, operators and the disk.
//!
//! A script begins with the state of a new member, an empty file and a stopped clock. Each group of
//! commands has its own module: `keyspace`, `watch`, `lease` and `cluster`. `member` owns the state
//! and runs the common commands, such as `commit` and `crash`. `UPDATE=1` rewrites the expected
//! output.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod cluster;
mod keyspace;
mod lease;
mod member;
mod watch;

use quorate_test_support::script::{Interpreter, run_own};

fn run(area: &str) {
    run_own(env!("CARGO_MANIFEST_DIR"), area, || -> Interpreter {
        let mut member = member::Member::new();
        Box::new(move |command| member.run(command))
    });
}

#[test]
fn keyspace_scripts_produce_their_recorded_output() {
    run("keyspace");
}

#[test]
fn watch_scripts_produce_their_recorded_output() {
    run("watch");
}

#[test]
fn lease_scripts_produce_their_recorded_output() {
    run("lease");
}

#[test]
fn alarm_scripts_produce_their_recorded_output() {
    run("alarm");
}

#[test]
fn membership_scripts_produce_their_recorded_output() {
    run("members");
}
