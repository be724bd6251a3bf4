//! `plants` checks that the simulator finds planted defects.
//!
//! `crates/sim/plants` contains the defects: patches against production code, whose headers name the violated invariant
//! and the code that relies on it. This command applies one patch at a time to a copy of the source tree, builds the
//! simulator there, and runs seeds until one fails or the time limit is reached. If the simulator does not run the
//! defective code (ports, the proxy, tokens), the patch has a line `Found by: cargo test ...`, and the command runs
//! these tests instead. Each result is written to the table in `docs/testing.md` as soon as it is known.
//!
//! The copy and its build products stay in the target directory, so that only the crates changed by the next plant, and
//! their dependents, are recompiled.

mod copy;
mod table;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::sim::{self, PROFILE, PROGRAM};
use crate::workspace::{output, root, target};
use crate::{Outcome, say};

/// The directory of the patches, relative to the root of the repository.
const FOLDER: &str = "crates/sim/plants";

/// The default maximum time for one plant.
const MINUTES: u64 = 10;

/// A number of seeds that no run completes within its time limit.
const SEEDS: &str = "1000000000";

/// The two fixed parts of a line that reports a failed seed.
const FAILED: (&str, &str) = ("seed ", " failed: ");

/// The page with the table, relative to the root of the repository.
const TABLE: &str = "docs/testing.md";

/// A planted defect.
#[derive(Debug)]
struct Plant {
    name: String,
    path: PathBuf,
    breaks: String,
    /// The arguments of `cargo test` that select the tests for this defect; `None` if the simulator finds it.
    tests: Option<Vec<String>>,
}

/// How a plant was detected.
struct Found {
    /// The failed seed of the simulator; `None` if a test detected the defect.
    seed: Option<u64>,
    /// The reported failure, or the name of the failed test.
    failure: String,
    /// The time from the start of the run to the failure.
    time: Duration,
}

/// The options of the command.
struct Options {
    names: Vec<String>,
    limit: Duration,
    first: u64,
    threads: String,
    /// The theme to which the seeds are restricted, if any.
    theme: Option<String>,
}

/// Tries all plants, or only the named ones, and prints a row for each.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = read(args)?;
    let mut plants = all(&root())?;
    let names: BTreeSet<String> = plants.iter().map(|plant| plant.name.clone()).collect();
    if let Some(unknown) = options.names.iter().find(|name| plants.iter().all(|p| p.name != **name))
    {
        return Err(format!("unknown plant {unknown}: no such patch in {FOLDER}"));
    }
    plants.retain(|plant| options.names.is_empty() || options.names.contains(&plant.name));
    let folder = target()?.join("plants");
    let mut missed = Vec::new();
    print(table::HEADER);
    for plant in &plants {
        let found = try_plant(plant, &folder, &options)?;
        let row = table::row(&plant.name, options.first, options.theme.as_deref(), found.as_ref());
        print(&row);
        table::write(&root().join(TABLE), &names, &plant.name, &row)?;
        if found.is_none() {
            missed.push(plant);
        }
    }
    for plant in &missed {
        say(&format!("not found: {}: {}", plant.name, plant.breaks));
    }
    match missed.len() {
        0 => Ok(()),
        count => Err(format!("{count} of {} planted defects were not found", plants.len())),
    }
}

fn read(args: &[String]) -> Result<Options, String> {
    let limit = Duration::from_secs(60 * MINUTES);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options =
        Options { names: Vec::new(), limit, first: 1, threads: cores.to_string(), theme: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--theme" {
            options.theme = Some(args.next().ok_or("--theme needs a name")?.clone());
            continue;
        }
        let mut number = || {
            let value = args.next().ok_or(format!("{arg} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{arg}: {value} is not a number"))
        };
        match arg.as_str() {
            "--minutes" => options.limit = Duration::from_secs(60 * number()?),
            "--first" => options.first = number()?,
            "--threads" => options.threads = number()?.to_string(),
            name if name.starts_with('-') => return Err(format!("plants: unknown option {name}")),
            name => options.names.push(name.to_owned()),
        }
    }
    Ok(options)
}

/// Applies the patch, and runs the simulator or the tests.
fn try_plant(plant: &Plant, folder: &Path, options: &Options) -> Result<Option<Found>, String> {
    let (tree, build) = (folder.join("tree"), folder.join("build"));
    copy::refresh(&root(), &tree)?;
    apply(&tree, &plant.path)?;
    say(&format!("{}: building", plant.name));
    if let Some(tests) = &plant.tests {
        return run_tests(&plant.name, tests, (&tree, &build));
    }
    let mut command = cargo(&tree, &build);
    command.args(["build", "--profile", PROFILE, "--package", "quorate-sim", "--bin", PROGRAM]);
    // The compiler's warnings are not shown, because a defect may leave code unused.
    output(&mut command).map_err(|why| format!("{}: {why}", plant.name))?;
    let mut simulator = Command::new(build.join(PROFILE).join(PROGRAM));
    simulator.args(["--first", &options.first.to_string(), "--seeds", SEEDS]);
    simulator.args(["--threads", &options.threads]);
    simulator.args(options.theme.iter().flat_map(|theme| ["--theme", theme]));
    run_until_found(&mut simulator, options.limit, |seed| passes_without_plant(seed, options))
}

/// Returns whether a seed passes in the simulator without a plant. Only then does a failure of the seed with the plant
/// prove that the simulator detects the plant.
fn passes_without_plant(seed: u64, options: &Options) -> Result<bool, String> {
    let mut simulator = sim::simulator()?;
    simulator.args(["--first", &seed.to_string(), "--seeds", "1"]);
    simulator.args(options.theme.iter().flat_map(|theme| ["--theme", theme]));
    let run = simulator.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.map(|status| status.success()).map_err(|error| format!("{PROGRAM}: {error}"))
}

fn cargo(tree: &Path, build: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(tree).env("CARGO_TARGET_DIR", build).env("CARGO_INCREMENTAL", "1");
    command
}

/// Builds the server and the tests with the defect, and runs the selected tests. Returns `None` if they all pass.
/// Returns an error if the code does not compile or the filter selects no tests.
fn run_tests(
    name: &str,
    tests: &[String],
    (tree, build): (&Path, &Path),
) -> Result<Option<Found>, String> {
    let failed = |why| format!("{name}: {why}");
    let server = build.join("debug").join("quorate");
    output(cargo(tree, build).args(["build", "--workspace", "--tests"])).map_err(failed)?;
    let start = Instant::now();
    let run = cargo(tree, build).env("QUORATE_BIN", server).arg("test").args(tests).output();
    let run = run.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&run.stdout);
    let Some(failure) = read_failed_test(&text) else {
        let ran = text.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ok"));
        return match ran.count() {
            0 => Err(failed(format!("cargo test {} ran no tests", tests.join(" ")))),
            _ => Ok(None),
        };
    };
    Ok(Some(Found { seed: None, failure, time: start.elapsed() }))
}

/// Returns the name of the first failed test in the output of `cargo test`.
fn read_failed_test(text: &str) -> Option<String> {
    let mut failed = text.lines().filter_map(|line| line.strip_suffix(" ... FAILED"));
    failed.find_map(|line| line.strip_prefix("test ")).map(str::to_owned)
}

/// Runs the simulator until it reports the failure of a seed that passes without the plant, or until the time limit.
fn run_until_found(
    simulator: &mut Command,
    limit: Duration,
    passes_without_plant: impl Fn(u64) -> Result<bool, String>,
) -> Result<Option<Found>, String> {
    let failed = |error: std::io::Error| format!("{PROGRAM}: {error}");
    simulator.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = simulator.spawn().map_err(failed)?;
    let stdout = process.stdout.take().expect("standard output is piped");
    let start = Instant::now();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        for failure in lines.filter_map(|line| read_failure(&line)) {
            if sender.send(failure).is_err() {
                // The receiver has been dropped, because the result is known or the time limit is reached.
                break;
            }
        }
    });
    let found = loop {
        match receiver.recv_timeout(limit.saturating_sub(start.elapsed())) {
            Ok((seed, failure)) => match passes_without_plant(seed) {
                Ok(true) => {
                    break Ok(Some(Found { seed: Some(seed), failure, time: start.elapsed() }));
                }
                Ok(false) => say(&format!("seed {seed} also fails without the plant: {failure}")),
                Err(why) => break Err(why),
            },
            Err(RecvTimeoutError::Timeout) => break Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(format!("{PROGRAM} ended early and reported no failed seed"));
            }
        }
    };
    drop(process.kill());
    process.wait().map_err(failed)?;
    found
}

/// Parses a line that reports a failed seed.
fn read_failure(line: &str) -> Option<(u64, String)> {
    let (seed, failure) = line.strip_prefix(FAILED.0)?.split_once(FAILED.1)?;
    Some((seed.parse().ok()?, failure.to_owned()))
}

/// Applies a patch to the copy. The copy may be inside a repository. `git` must not find that repository, because it
/// would apply the patch relative to the repository's root.
fn apply(tree: &Path, patch: &Path) -> Outcome {
    let ceiling = tree.parent().expect("the copy has a parent folder");
    let mut git = Command::new("git");
    git.current_dir(tree).env("GIT_CEILING_DIRECTORIES", ceiling).arg("apply").arg(patch);
    output(&mut git).map(drop)
}

/// Reads all plants, sorted by name.
fn all(root: &Path) -> Result<Vec<Plant>, String> {
    let folder = root.join(FOLDER);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut plants = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            plants.push(plant(path)?);
        }
    }
    plants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(plants)
}

fn plant(path: PathBuf) -> Result<Plant, String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
    let header = |key: &str| {
        let mut line = text.lines().take_while(|line| !line.starts_with("--- "));
        line.find_map(|line| line.strip_prefix(key)).map(str::to_owned)
    };
    let required = |key: &str| {
        header(key).ok_or(format!("{FOLDER}/{name}.patch: no line begins with `{key}`"))
    };
    let breaks = required("Breaks: ")?;
    required("Relied on by: ")?;
    let tests = header("Found by: cargo test ");
    let tests = tests.map(|tests| tests.split_whitespace().map(str::to_owned).collect());
    Ok(Plant { name, path, breaks, tests })
}

/// Reports plants whose patch does not apply, and differences between the table and the patches.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let plants = match all(root) {
        Ok(plants) => plants,
        Err(why) => return vec![why],
    };
    let mut complaints = Vec::new();
    let text = std::fs::read_to_string(root.join(TABLE)).unwrap_or_default();
    if !table::names(&text).iter().eq(plants.iter().map(|plant| &plant.name)) {
        complaints.push(format!(
            "{TABLE}: the table of plants does not have exactly one row for each patch in {FOLDER}"
        ));
    }
    for plant in plants {
        let mut git = Command::new("git");
        git.current_dir(root).args(["apply", "--check"]).arg(&plant.path);
        if let Err(why) = output(&mut git) {
            complaints
                .push(format!("{FOLDER}/{}.patch: the patch does not apply: {why}", plant.name));
        }
    }
    complaints
}

#[expect(clippy::print_stdout, reason = "the table is the output of the command")]
fn print(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plant_patch_applies_and_is_listed_in_the_table() {
        assert_eq!(check(&root()), Vec::<String>::new());
        assert!(
            all(&root()).unwrap().len() >= 31,
            "each invariant has a plant, and there are six older plants"
        );
    }

    #[test]
    fn a_failed_seed_is_parsed_from_the_output_of_the_simulator() {
        let found = read_failure("seed 17 failed: RealTime: a|b").unwrap();
        assert_eq!(found, (17, "RealTime: a|b".to_owned()));
        assert!(read_failure("17 seeds, 0.1 cluster-hours, 0 failures").is_none());
        assert!(read_failure("seed x failed: y").is_none());
    }

    #[test]
    fn a_failed_test_is_parsed_from_the_output_of_cargo_test() {
        let text = "running 2 tests\ntest a::good ... ok\ntest b::bad ... FAILED\n";
        assert_eq!(read_failed_test(text), Some("b::bad".to_owned()));
        assert_eq!(read_failed_test("test a::good ... ok\n"), None);
    }

    #[test]
    fn the_simulator_is_stopped_after_a_failure_or_at_the_time_limit() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let long = Duration::from_secs(60);
        let run =
            |script: &str, limit| run_until_found(&mut shell(script), limit, |seed| Ok(seed != 2));
        let found = run("echo 'seed 3 failed: x'; exec sleep 60", long);
        assert_eq!(found.unwrap().unwrap().seed, Some(3));
        let found = run("echo 'seed 2 failed: x'; echo 'seed 3 failed: y'; exec sleep 60", long);
        assert_eq!(found.unwrap().unwrap().seed, Some(3), "the failure of seed 2 does not count");
        let found = run("exec sleep 60", Duration::from_millis(10));
        assert!(found.unwrap().is_none());
        assert!(run("exit 0", long).is_err());
    }

    #[test]
    fn the_options_of_the_plants_command_are_parsed() {
        let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        let given =
            args(&["a", "--minutes", "3", "--first", "9", "--threads", "1", "--theme", "Leases"]);
        let options = read(&given).unwrap();
        assert_eq!(options.names, ["a"]);
        assert_eq!((options.limit.as_secs(), options.first, &options.threads[..]), (180, 9, "1"));
        assert_eq!(options.theme.as_deref(), Some("Leases"));
        assert!(read(&args(&["--minutes"])).is_err());
        assert!(read(&args(&["--hours", "1"])).is_err());
    }
}
