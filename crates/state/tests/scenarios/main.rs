//! The replicated state machine as a client, an operator and a disk see it, in golden scripts under `testdata/`.
//!
//! A script begins with the state of a new member, a file below it and a clock that stands. Each file of commands
//! has its own module here: `keyspace`, `watch`, `lease`, `cluster`. `member` holds the state and
//! carries out what is common to all: entries, commits, crashes. `UPDATE=1` rewrites what is expected.

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
