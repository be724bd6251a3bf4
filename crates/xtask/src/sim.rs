//! `sim` builds the simulator of whole clusters and runs it, and `test` does so for two minutes.

use std::process::Command;

use crate::Outcome;
use crate::workspace::{cargo, status, target};

/// How it is built: nearly as fast as a release, with every check that there is.
pub(crate) const PROFILE: &str = "sim";

/// The simulator, a binary of `quorate-sim`.
pub(crate) const PROGRAM: &str = "quorate-simulate";

/// For how many minutes `test` runs seeds: always the same ones, from the first on, as far as the machine gets.
const TEST_MINUTES: &str = "2";

/// No further than this: whether a change is right must not depend on how fast the machine is, and these are known.
const TEST_SEEDS: &str = "4000";

/// Runs seeds as these arguments ask.
pub(crate) fn run(args: &[String]) -> Outcome {
    status(simulator()?.args(args))
}

/// Runs seeds for as long as a change may wait for them.
pub(crate) fn run_for_a_while() -> Outcome {
    let limits = ["--minutes", TEST_MINUTES, "--seeds", TEST_SEEDS, "--until-failure"];
    status(simulator()?.args(limits))
}

/// The simulator, built.
fn simulator() -> Result<Command, String> {
    let package = ["build", "--profile", PROFILE, "--package", "quorate-sim", "--bin", PROGRAM];
    status(&mut cargo(&package))?;
    Ok(Command::new(target()?.join(PROFILE).join(PROGRAM)))
}
