//! `sim` builds the simulator of whole clusters and runs it, and `test` does so for a while.

use std::process::Command;

use crate::Outcome;
use crate::workspace::{cargo, status, target};

/// How it is built: nearly as fast as a release, with every check that there is.
const PROFILE: &str = "sim";

/// How many seeds `test` runs, the same everywhere, and for how many minutes at most.
const TEST_SEEDS: &str = "200";
const TEST_MINUTES: &str = "2";

/// Runs seeds as these arguments ask.
pub(crate) fn run(args: &[String]) -> Outcome {
    status(simulator()?.args(args))
}

/// Runs seeds for as long as a change may wait for them.
pub(crate) fn run_for_a_while() -> Outcome {
    status(simulator()?.args(["--seeds", TEST_SEEDS, "--minutes", TEST_MINUTES]))
}

/// The simulator, built.
fn simulator() -> Result<Command, String> {
    status(&mut cargo(&["build", "--profile", PROFILE, "--package", "quorate-simulate"]))?;
    Ok(Command::new(target()?.join(PROFILE).join("quorate-simulate")))
}
