//! `sim` builds and runs the cluster simulator; `test` runs it for two minutes.

use std::process::Command;

use crate::Outcome;
use crate::workspace::{cargo, status, target};

/// The build profile: nearly as fast as a release, with all checks.
pub(crate) const PROFILE: &str = "sim";

/// The simulator, a binary of `quorate-sim`.
pub(crate) const PROGRAM: &str = "quorate-simulate";

/// The time limit of `test`, in minutes. It always runs the same seeds, from the first on, as many as the machine
/// completes.
const TEST_MINUTES: &str = "2";

/// The last seed for `test`. The result must not depend on the speed of the machine, and these seeds are known
/// to pass.
const TEST_SEEDS: &str = "4000";

/// Runs seeds as the arguments request.
pub(crate) fn run(args: &[String]) -> Outcome {
    status(simulator()?.args(args))
}

/// Runs seeds within the time limit of `test`.
pub(crate) fn run_limited() -> Outcome {
    let limits = ["--minutes", TEST_MINUTES, "--seeds", TEST_SEEDS, "--until-failure"];
    status(simulator()?.args(limits))
}

/// Builds the simulator.
pub(crate) fn simulator() -> Result<Command, String> {
    let package = ["build", "--profile", PROFILE, "--package", "quorate-sim", "--bin", PROGRAM];
    status(&mut cargo(&package))?;
    Ok(Command::new(target()?.join(PROFILE).join(PROGRAM)))
}
