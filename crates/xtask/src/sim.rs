//! `sim` builds and runs the cluster simulator; `test` runs it for two minutes.

use std::process::Command;

use crate::Outcome;
use crate::workspace::{cargo, status, target};

/// The build profile. It is nearly as fast as a release build, with all checks enabled.
pub(crate) const PROFILE: &str = "sim";

/// The simulator, a binary of `quorate-sim`.
pub(crate) const PROGRAM: &str = "quorate-simulate";

/// The time limit of `test`, in minutes. Every run starts at the first seed and runs as many seeds as the machine
/// completes.
const TEST_MINUTES: &str = "2";

/// The last seed of `test`. All seeds up to it are known to pass, so a faster machine cannot fail on an untried seed.
const TEST_SEEDS: &str = "4000";

/// Runs the simulator with the given arguments.
pub(crate) fn run(args: &[String]) -> Outcome {
    status(simulator()?.args(args))
}

/// Runs seeds within the time limit of `test`.
pub(crate) fn run_limited() -> Outcome {
    let limits = ["--minutes", TEST_MINUTES, "--seeds", TEST_SEEDS, "--until-failure"];
    status(simulator()?.args(limits))
}

/// Builds the simulator, and returns the command that runs it.
pub(crate) fn simulator() -> Result<Command, String> {
    let package = ["build", "--profile", PROFILE, "--package", "quorate-sim", "--bin", PROGRAM];
    status(&mut cargo(&package))?;
    Ok(Command::new(target()?.join(PROFILE).join(PROGRAM)))
}
