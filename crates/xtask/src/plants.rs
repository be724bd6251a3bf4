//! `plants`: the simulator is proven by what it catches.
//!
//! `crates/sim/plants` holds defects: each a patch against production code, with a header that says which
//! invariant it breaks, and who relies on it. This chore plants them one at a time in a copy of the tree,
//! builds the simulator there, and runs seeds until one fails or the time is up. A defect in code that the simulator
//! does not run (ports, the proxy, tokens) names the tests that find it in a line `Found by: cargo test ...`, and those are run
//! instead. The outcome of each is a row of the table in `docs/testing.md`, which is written there at once.
//!
//! The copy and what is built from it stay in the target folder, so that a plant costs the crates that it
//! touches and those above, not the whole build.

mod copy;
mod table;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::sim::{PROFILE, PROGRAM};
use crate::workspace::{output, root, target};
use crate::{Outcome, say};

/// Where the patches are, from the root.
const FOLDER: &str = "crates/sim/plants";

/// How long seeds are drawn for one plant, unless the command says otherwise.
const MINUTES: u64 = 10;

/// More seeds than can be run in any time.
const SEEDS: &str = "1000000000";

/// How a line begins that tells of a seed which failed.
const FAILED: (&str, &str) = ("seed ", " fails: ");

/// Where the table is, from the root.
const TABLE: &str = "docs/testing.md";

/// A defect to be planted.
#[derive(Debug)]
struct Plant {
    name: String,
    path: PathBuf,
    breaks: String,
    /// The arguments of `cargo test` that select the tests which find the defect. Without them, the simulator finds it.
    tests: Option<Vec<String>>,
}

/// How a defect was found.
struct Found {
    /// The seed of the simulator that failed. A defect that tests find has none.
    seed: Option<u64>,
    /// The failure that was reported, or the name of the test that failed.
    said: String,
    /// How long it took.
    time: Duration,
}

/// What the command asks for.
struct Wanted {
    names: Vec<String>,
    limit: Duration,
    first: u64,
    threads: String,
    /// The only theme whose seeds are run, if any.
    theme: Option<String>,
}

/// Plants all defects, or those that are named, and prints what the simulator says of each.
pub(crate) fn run(args: &[String]) -> Outcome {
    let wanted = read(args)?;
    let mut plants = all(&root())?;
    let names: BTreeSet<String> = plants.iter().map(|plant| plant.name.clone()).collect();
    if let Some(unknown) = wanted.names.iter().find(|name| plants.iter().all(|p| p.name != **name))
    {
        return Err(format!("there is no plant {unknown} in {FOLDER}"));
    }
    plants.retain(|plant| wanted.names.is_empty() || wanted.names.contains(&plant.name));
    let folder = target()?.join("plants");
    let mut missed = Vec::new();
    print(table::HEADER);
    for plant in &plants {
        let found = try_plant(plant, &folder, &wanted)?;
        let row = table::row(&plant.name, wanted.first, wanted.theme.as_deref(), found.as_ref());
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

fn read(args: &[String]) -> Result<Wanted, String> {
    let limit = Duration::from_secs(60 * MINUTES);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut wanted =
        Wanted { names: Vec::new(), limit, first: 1, threads: cores.to_string(), theme: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--theme" {
            wanted.theme = Some(args.next().ok_or("--theme needs a name")?.clone());
            continue;
        }
        let mut number = || {
            let value = args.next().ok_or(format!("{arg} needs a number"))?;
            value.parse::<u64>().map_err(|_| format!("{arg}: {value} is no number"))
        };
        match arg.as_str() {
            "--minutes" => wanted.limit = Duration::from_secs(60 * number()?),
            "--first" => wanted.first = number()?,
            "--threads" => wanted.threads = number()?.to_string(),
            name if name.starts_with('-') => return Err(format!("plants: unknown option {name}")),
            name => wanted.names.push(name.to_owned()),
        }
    }
    Ok(wanted)
}

/// Builds the simulator with the defect and runs it.
fn try_plant(plant: &Plant, folder: &Path, wanted: &Wanted) -> Result<Option<Found>, String> {
    let (tree, build) = (folder.join("tree"), folder.join("build"));
    copy::refresh(&root(), &tree)?;
    apply(&tree, &plant.path)?;
    say(&format!("{}: building", plant.name));
    if let Some(tests) = &plant.tests {
        return run_tests(&plant.name, tests, (&tree, &build));
    }
    let mut command = cargo(&tree, &build);
    command.args(["build", "--profile", PROFILE, "--package", "quorate-sim", "--bin", PROGRAM]);
    // Quietly: a defect may leave something unused.
    output(&mut command).map_err(|why| format!("{}: {why}", plant.name))?;
    let mut simulator = Command::new(build.join(PROFILE).join(PROGRAM));
    simulator.args(["--first", &wanted.first.to_string(), "--seeds", SEEDS]);
    simulator.args(["--threads", &wanted.threads]);
    simulator.args(wanted.theme.iter().flat_map(|theme| ["--theme", theme]));
    run_until_failure(&mut simulator, wanted.limit)
}

fn cargo(tree: &Path, build: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(tree).env("CARGO_TARGET_DIR", build).env("CARGO_INCREMENTAL", "1");
    command
}

/// Builds the server and the tests with the defect, and runs the tests that find it. They must run, and one must fail:
/// a filter that selects no test is an error, as is code that does not compile.
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
    let Some(said) = read_failed_test(&text) else {
        let ran = text.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ok"));
        return match ran.count() {
            0 => Err(failed(format!("cargo test {} ran no test", tests.join(" ")))),
            _ => Ok(None),
        };
    };
    Ok(Some(Found { seed: None, said, time: start.elapsed() }))
}

/// Returns the name of the first test that failed, from what `cargo test` prints.
fn read_failed_test(text: &str) -> Option<String> {
    let mut failed = text.lines().filter_map(|line| line.strip_suffix(" ... FAILED"));
    failed.find_map(|line| line.strip_prefix("test ")).map(str::to_owned)
}

/// Runs the simulator until it tells of a seed that failed, or the time is up.
fn run_until_failure(simulator: &mut Command, limit: Duration) -> Result<Option<Found>, String> {
    let failed = |error: std::io::Error| format!("{PROGRAM}: {error}");
    simulator.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = simulator.spawn().map_err(failed)?;
    let stdout = process.stdout.take().expect("it is piped");
    let start = Instant::now();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let found = lines.filter_map(|line| read_failure(&line)).next();
        // Nobody listens any more once the time is up.
        drop(tell.send(found));
    });
    let found = told.recv_timeout(limit);
    drop(process.kill());
    process.wait().map_err(failed)?;
    match found {
        Ok(Some((seed, said))) => Ok(Some(Found { seed: Some(seed), said, time: start.elapsed() })),
        Ok(None) => Err(format!("{PROGRAM} ended early and reported no seed that fails")),
        Err(_) => Ok(None),
    }
}

/// Reads a line that tells of a seed which failed.
fn read_failure(line: &str) -> Option<(u64, String)> {
    let (seed, said) = line.strip_prefix(FAILED.0)?.split_once(FAILED.1)?;
    Some((seed.parse().ok()?, said.to_owned()))
}

/// Changes the copy. It lies in a folder of a repository, of which `git` is to know nothing.
fn apply(tree: &Path, patch: &Path) -> Outcome {
    let ceiling = tree.parent().expect("the copy lies in a folder");
    let mut git = Command::new("git");
    git.current_dir(tree).env("GIT_CEILING_DIRECTORIES", ceiling).arg("apply").arg(patch);
    output(&mut git).map(drop)
}

/// All plants, by name.
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
    let required =
        |key: &str| header(key).ok_or(format!("{FOLDER}/{name}.patch: no line begins `{key}`"));
    let breaks = required("Breaks: ")?;
    required("Relied on by: ")?;
    let tests = header("Found by: cargo test ");
    let tests = tests.map(|tests| tests.split_whitespace().map(str::to_owned).collect());
    Ok(Plant { name, path, breaks, tests })
}

/// Says which plants are no longer fit to be planted: they have to follow the code.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let plants = match all(root) {
        Ok(plants) => plants,
        Err(why) => return vec![why],
    };
    let mut complaints = Vec::new();
    let text = std::fs::read_to_string(root.join(TABLE)).unwrap_or_default();
    if !table::names(&text).iter().eq(plants.iter().map(|plant| &plant.name)) {
        complaints.push(format!("{TABLE}: the table of plants is not of those in {FOLDER}"));
    }
    for plant in plants {
        let mut git = Command::new("git");
        git.current_dir(root).args(["apply", "--check"]).arg(&plant.path);
        if let Err(why) = output(&mut git) {
            complaints.push(format!("{FOLDER}/{}.patch: does not apply: {why}", plant.name));
        }
    }
    complaints
}

#[expect(clippy::print_stdout, reason = "the table is the chore's answer")]
fn print(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plant_applies_says_what_it_breaks_and_has_its_row() {
        assert_eq!(check(&root()), Vec::<String>::new());
        assert!(all(&root()).unwrap().len() >= 31, "one for each invariant, and six of old");
    }

    #[test]
    fn a_seed_that_failed_is_read_from_its_line() {
        let found = read_failure("seed 17 fails: RealTime: a|b").unwrap();
        assert_eq!(found, (17, "RealTime: a|b".to_owned()));
        assert!(read_failure("17 seeds, 0.1 cluster-hours, 0 failures").is_none());
        assert!(read_failure("seed x fails: y").is_none());
    }

    #[test]
    fn a_failed_test_is_read_from_the_output_of_cargo_test() {
        let text = "running 2 tests\ntest a::good ... ok\ntest b::bad ... FAILED\n";
        assert_eq!(read_failed_test(text), Some("b::bad".to_owned()));
        assert_eq!(read_failed_test("test a::good ... ok\n"), None);
    }

    #[test]
    fn the_simulator_is_stopped_when_it_has_failed_or_its_time_is_up() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let long = Duration::from_secs(60);
        let found = run_until_failure(&mut shell("echo 'seed 3 fails: x'; exec sleep 60"), long);
        assert_eq!(found.unwrap().unwrap().seed, Some(3));
        let found = run_until_failure(&mut shell("exec sleep 60"), Duration::from_millis(10));
        assert!(found.unwrap().is_none());
        assert!(run_until_failure(&mut shell("exit 0"), long).is_err());
    }

    #[test]
    fn options_are_read() {
        let args = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        let given =
            args(&["a", "--minutes", "3", "--first", "9", "--threads", "1", "--theme", "Leases"]);
        let wanted = read(&given).unwrap();
        assert_eq!(wanted.names, ["a"]);
        assert_eq!((wanted.limit.as_secs(), wanted.first, &wanted.threads[..]), (180, 9, "1"));
        assert_eq!(wanted.theme.as_deref(), Some("Leases"));
        assert!(read(&args(&["--minutes"])).is_err());
        assert!(read(&args(&["--hours", "1"])).is_err());
    }
}
