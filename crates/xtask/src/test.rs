//! `test` runs all tests, and `ci` runs everything that a change must pass.
//!
//! The server is built first, in the black-box test profile, and its path is passed to the tests. Debian's etcd is
//! downloaded, so that the same tests also run against the original. Then one call of cargo builds all test programs,
//! which run one after another. The simulator runs for two minutes.
//!
//! The black-box programs run last. The main one ([`SUITE`]) runs five times: against a single member, against the
//! leader of three members, against a follower, against a server whose data is in a PostgreSQL database, and against a
//! follower with authentication and with certificates for clients and peers. A long run (`--long`) also runs it with
//! authentication and certificates against the single member and the leader. Parts of it also run through a proxy,
//! through a gateway, and against one of three servers on a database. A long run runs all of it in these modes.
//! `QUORATE_GOLDEN` and `RAFT_TESTDATA`, if set, are passed to every test.
//!
//! Tests whose material is missing are skipped, and the last lines of the output report their number. `QUORATE_REQUIRE`
//! lists material that must exist, separated by commas: `golden`, `raft-testdata`, `etcd`, `promtool`, `postgres`,
//! `chromium`, `axe`. The variable is also passed to the tests, which then fail instead of being skipped.

use std::path::PathBuf;
use std::process::Command;

use crate::tally::{Run, Tally};
use crate::test_programs::{self, TestProgram};
use crate::workspace::{cargo, root, status, target};
use crate::{Outcome, deny, protoc, provision, say, sim, tidy};

/// The folder of the black-box tests.
const BLACK_BOX: &str = "tests";

/// The black-box test program that runs in several modes.
const SUITE: &str = "tests/blackbox/main.rs";

/// The number of black-box tests that run in parallel. These tests mostly wait for servers.
const BLACK_BOX_THREADS: &str = "8";

/// Test material: the name in `QUORATE_REQUIRE`, and the environment variable with the path.
const MATERIAL: [(&str, &str); 7] = [
    ("golden", "QUORATE_GOLDEN"),
    ("raft-testdata", "RAFT_TESTDATA"),
    (ETCD, "ETCD_BIN_DIR"),
    (PROMTOOL, "PROMTOOL"),
    (POSTGRES, "POSTGRES_BIN_DIR"),
    (CHROMIUM, "CHROMIUM"),
    (AXE, "AXE_CORE"),
];
const ETCD: &str = "etcd";
const PROMTOOL: &str = "promtool";
const POSTGRES: &str = "postgres";
const CHROMIUM: &str = "chromium";
const AXE: &str = "axe";

/// The value of `QUORATE_CLUSTER` for tests whose clients use a proxy.
const PROXY: &str = "proxy";

/// The tests that a short run sends through the proxy. In these tests, the proxy does more than forward requests. To
/// run all tests through the proxy, use
/// `QUORATE_CLUSTER=proxy cargo test --package quorate-tests --test blackbox quorate`. A long run (`--long`) does this,
/// and also runs all tests through etcd's proxy.
const BY_PROXY: [&str; 9] = [
    "watch::",
    "watch_flow::",
    "lease::",
    "range::",
    "txn::",
    "write::",
    "auth::",
    "--skip",
    "::etcd",
];

/// The value of `QUORATE_CLUSTER` for tests whose connections go through a gateway.
const GATEWAY: &str = "gateway";

/// The tests that a short run sends through the gateway: long streams, different ways of closing a connection, and
/// large amounts of data.
const BY_GATEWAY: [&str; 7] =
    ["watch_flow::", "http::", "websocket::", "grpc_edge::", "lease::", "--skip", "::etcd"];

/// The values of `QUORATE_CLUSTER` for tests against the only server on a database, and against one of three servers on
/// a database.
const ON_DATABASE: &str = "postgres";
const AMONG_THREE_ON_DATABASE: &str = "postgres-three";

/// The tests that a short run sends to one of three servers on a database. They test the requests that the server
/// forwards to the sequencer, and the decisions that the sequencer makes for the server.
const BY_THREE_ON_DATABASE: [&str; 8] =
    ["watch::", "lease::", "range::", "txn::", "write::", "auth::", "--skip", "::etcd"];

/// Builds the server and runs all tests. `--long` selects a long run.
pub(crate) fn run(args: &[String]) -> Outcome {
    let required = required(&std::env::var("QUORATE_REQUIRE").unwrap_or_default())?;
    check_material(&required)?;
    let long = args.iter().any(|arg| arg == "--long");
    let filters: Vec<&str> =
        args.iter().map(String::as_str).filter(|arg| !matches!(*arg, "--long" | "--")).collect();

    let material = Material::prepare(&required, long)?;
    let programs = test_programs::build(material.passed_to(cargo(&["test", "--workspace"])))?;
    let (black_box, others): (Vec<_>, Vec<_>) =
        programs.iter().partition(|program| program.is_of(&root().join(BLACK_BOX)));
    let mut tally = Tally::new(print);
    // All programs run, even if tests of an earlier one fail.
    let runs = others.iter().map(|program| {
        let command = material.passed_to(program.command());
        Run::new(program.source().to_owned(), command)
    });
    let mut outcome = tally.run(runs.collect());
    let mut examples =
        material.passed_to(cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]));
    examples.arg("--");
    let examples = Run::new("the examples in the documentation".to_owned(), examples);
    outcome = outcome.and(tally.run(vec![examples]));

    outcome = outcome.and(sim::run_limited());

    let runs = black_box_runs(&black_box, &material, &filters)?;
    outcome = outcome.and(tally.run(runs));
    if let Err(why) = &outcome {
        say(why);
    }
    conclude(outcome.is_ok(), tally.text())
}

/// Returns the runs of the black-box programs, and those of the suite in the other modes.
fn black_box_runs(
    programs: &[&TestProgram],
    material: &Material,
    filters: &[&str],
) -> Result<Vec<Run>, String> {
    let run = |program: &TestProgram, mode: Option<&str>, is_secured: bool, filters: &[&str]| {
        let mut command = material.passed_to(program.command());
        command.args(filters);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", BLACK_BOX_THREADS);
        }
        let mode = mode.map(|mode| ("QUORATE_CLUSTER", mode));
        let mut heading = program.source().to_owned();
        for (variable, value) in
            mode.into_iter().chain(is_secured.then_some(("QUORATE_SECURED", "1")))
        {
            command.env(variable, value);
            heading.push_str(&format!(" {variable}={value}"));
        }
        Run::new(heading, command)
    };
    let mut runs: Vec<_> =
        programs.iter().map(|program| run(program, None, false, filters)).collect();

    let suite = programs
        .iter()
        .find(|program| program.source().ends_with(SUITE))
        .ok_or(format!("{SUITE} is not among the test programs"))?;
    let long = material.is_long;
    // To a client, a cluster must behave like a single member. A long run verifies this with etcd as well.
    let ours = ["quorate", "--skip", "_to_etcd"];
    let filters = if filters.is_empty() && !long { &ours[..] } else { filters };
    let part = |of_short: &'static [&'static str]| if filters == ours { of_short } else { filters };
    for (mode, filters) in [
        ("leader", filters),
        (ON_DATABASE, filters),
        ("follower", filters),
        (PROXY, part(&BY_PROXY)),
        (GATEWAY, part(&BY_GATEWAY)),
        (AMONG_THREE_ON_DATABASE, part(&BY_THREE_ON_DATABASE)),
    ] {
        let is_on_database = [ON_DATABASE, AMONG_THREE_ON_DATABASE].contains(&mode);
        if !is_on_database || material.postgres.is_some() {
            runs.push(run(suite, Some(mode), false, filters));
        }
    }
    // A follower forwards most requests to the leader, so this run also covers secured connections between members.
    let modes: &[_] =
        if long { &[Some("follower"), Some("leader"), None] } else { &[Some("follower")] };
    runs.extend(modes.iter().map(|mode| run(suite, *mode, true, filters)));
    Ok(runs)
}

/// The material that tests receive through the environment.
struct Material {
    protoc: PathBuf,
    server: PathBuf,
    etcd: Option<PathBuf>,
    patroni: Option<PathBuf>,
    promtool: Option<PathBuf>,
    postgres: Option<PathBuf>,
    browser: Option<provision::Browser>,
    axe: Option<PathBuf>,
    is_long: bool,
}

impl Material {
    /// Builds the server, and collects the test material that is configured or can be downloaded. The build does not
    /// wait for the downloads.
    fn prepare(required: &[&str], is_long: bool) -> Result<Self, String> {
        std::thread::scope(|scope| {
            let build = ["build", "--profile", "blackbox", "--package", "quorate"];
            let built = scope.spawn(move || status(&mut cargo(&build)));
            let material = Self::collect(required, is_long).inspect_err(|why| say(why));
            built.join().map_err(|_| "the thread that builds the server panicked")??;
            material
        })
    }

    fn collect(required: &[&str], is_long: bool) -> Result<Self, String> {
        let protoc = protoc::install()?;
        let server = target()?.join("blackbox").join("quorate");
        let etcd = etcd(required.contains(&ETCD))?;
        let patroni = provision::patroni().inspect_err(|why| {
            say(&format!("provision: Patroni is not available, so its test is skipped: {why}"));
        });
        let promtool = promtool(required.contains(&PROMTOOL))?;
        let postgres = postgres(required.contains(&POSTGRES))?;
        let (browser, axe) = browser(required)?;
        let patroni = patroni.ok();
        Ok(Self { protoc, server, etcd, patroni, promtool, postgres, browser, axe, is_long })
    }

    fn passed_to(&self, mut command: Command) -> Command {
        command.env("PROTOC", &self.protoc).env("QUORATE_BIN", &self.server);
        if let Some(folder) = &self.etcd {
            command.env("ETCD_BIN_DIR", folder);
        }
        if let Some(folder) = &self.patroni {
            command.env("PATRONI_DIR", folder);
        }
        if let Some(program) = &self.promtool {
            command.env("PROMTOOL", program);
        }
        if let Some(folder) = &self.postgres {
            command.env("POSTGRES_BIN_DIR", folder);
        }
        if let Some(provision::Browser { chromium, driver }) = &self.browser {
            command.env("CHROMIUM", chromium).env("CHROMEDRIVER", driver);
        }
        if let Some(script) = &self.axe {
            command.env("AXE_CORE", script);
        }
        if self.is_long {
            command.env("QUORATE_LONG", "1");
        }
        command
    }
}

/// Prints the skipped tests as the last lines, whether the run passed or failed.
fn conclude(has_passed: bool, summary: String) -> Outcome {
    if !has_passed {
        return Err(summary);
    }
    print(&summary);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the results of the tests are the output of the command")]
fn print(line: &str) {
    println!("{line}");
}

/// Parses the list of required material.
fn required(list: &str) -> Result<Vec<&'static str>, String> {
    let named = |name: &str| {
        let mut known = MATERIAL.iter().map(|(known, _)| *known).chain([deny::ADVISORIES]);
        known
            .find(|known| *known == name)
            .ok_or(format!("QUORATE_REQUIRE: unknown material {name}"))
    };
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(named).collect()
}

/// Checks that required material exists at the path in its variable. Material that can be downloaded may have no path
/// yet.
fn check_material(required: &[&str]) -> Outcome {
    for (name, variable) in MATERIAL {
        let path = std::env::var_os(variable).map(PathBuf::from);
        let is_there = path.as_ref().is_some_and(|path| path.exists());
        let is_fetched =
            [ETCD, PROMTOOL, POSTGRES, CHROMIUM, AXE].contains(&name) && path.is_none();
        if required.contains(&name) && !is_there && !is_fetched {
            return Err(format!(
                "{name} is required (QUORATE_REQUIRE), but {variable} is not the path of an existing file or folder"
            ));
        }
    }
    Ok(())
}

/// Returns the directory of the real etcd to compare with, if it is configured or can be downloaded.
fn etcd(is_required: bool) -> Result<Option<PathBuf>, String> {
    if let Some(folder) = std::env::var_os("ETCD_BIN_DIR") {
        return Ok(Some(folder.into()));
    }
    match provision::etcd(provision::DEFAULT_SUITE) {
        Ok(folder) => {
            say(&format!("the interoperability tests use {}", folder.display()));
            Ok(Some(folder))
        }
        Err(why) if is_required => Err(format!("etcd is required (QUORATE_REQUIRE): {why}")),
        Err(why) => {
            say(&provision::skipped(&why));
            Ok(None)
        }
    }
}

/// Returns the path of the program that tests alert rules, if it is configured or can be downloaded.
fn promtool(is_required: bool) -> Result<Option<PathBuf>, String> {
    if let Some(program) = std::env::var_os("PROMTOOL") {
        return Ok(Some(program.into()));
    }
    match provision::promtool() {
        Ok(program) => Ok(Some(program)),
        Err(why) if is_required => Err(format!("promtool is required (QUORATE_REQUIRE): {why}")),
        Err(why) => {
            say(&format!(
                "provision: promtool is not available, so the test of the alert rules is skipped: {why}"
            ));
            Ok(None)
        }
    }
}

/// Returns the folder with the programs of a PostgreSQL server, if it is configured or can be downloaded.
fn postgres(is_required: bool) -> Result<Option<PathBuf>, String> {
    if let Some(folder) = std::env::var_os("POSTGRES_BIN_DIR") {
        return Ok(Some(folder.into()));
    }
    match provision::postgres() {
        Ok(folder) => Ok(Some(folder)),
        Err(why) if is_required => Err(format!("postgres is required (QUORATE_REQUIRE): {why}")),
        Err(why) => {
            say(&format!(
                "provision: PostgreSQL is not available, so the tests with --engine are skipped: {why}"
            ));
            Ok(None)
        }
    }
}

/// Returns the browser and the accessibility checker, if they are configured or can be downloaded.
fn browser(required: &[&str]) -> Result<(Option<provision::Browser>, Option<PathBuf>), String> {
    let configured = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let browser = match (configured("CHROMIUM"), configured("CHROMEDRIVER")) {
        (Some(chromium), Some(driver)) => Ok(provision::Browser { chromium, driver }),
        _ => provision::chromium(),
    };
    let axe = configured("AXE_CORE").map_or_else(provision::axe, Ok);
    let missing = |name: &str, what: &str, why: &String| {
        if required.contains(&name) {
            return Err(format!("{name} is required (QUORATE_REQUIRE): {why}"));
        }
        say(&format!("provision: {what}: {why}"));
        Ok(())
    };
    if let Err(why) = &browser {
        missing(CHROMIUM, "Chromium is not available, so the browser tests are skipped", why)?;
    }
    if let Err(why) = &axe {
        missing(AXE, "axe-core is not available, so the accessibility checks are skipped", why)?;
    }
    Ok((browser.ok(), axe.ok()))
}

/// Runs all checks that a change must pass, cheapest first.
pub(crate) fn ci(args: &[String]) -> Outcome {
    status(&mut cargo(&["fmt", "--all", "--check"]))?;
    tidy::run(&[])?;
    deny::run()?;
    let mut clippy = cargo(&["clippy", "--workspace", "--all-targets"]);
    status(clippy.env("PROTOC", protoc::install()?).args(["--", "-D", "warnings"]))?;
    run(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_required_test_material_is_parsed() {
        assert_eq!(required("golden, etcd").unwrap(), ["golden", "etcd"]);
        assert_eq!(required("").unwrap(), Vec::<&str>::new());
        assert!(required("gold").unwrap_err().contains("unknown material gold"));
    }
}
