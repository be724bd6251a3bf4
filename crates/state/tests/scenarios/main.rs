//! The replicated state machine as seen by a client, an operator and a disk, in golden scripts in
//! `testdata/`.
//!
//! A script begins with the state of a new member, its file and a stopped clock. Each group of
//! commands has its own module here: `keyspace`, `watch`, `lease`, `cluster`. `member` holds the
//! state and runs the common commands: entries, commits, crashes. `UPDATE=1` rewrites the expected
//! output.

#![expect(clippy::unwrap_used, reason = "a test fails that way")]

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
fn keyspace_scenarios() {
    run("keyspace");
}

#[test]
fn watch_scenarios() {
    run("watch");
}

#[test]
fn lease_scenarios() {
    run("lease");
}

#[test]
fn alarm_scenarios() {
    run("alarm");
}

#[test]
fn members_scenarios() {
    run("members");
}
