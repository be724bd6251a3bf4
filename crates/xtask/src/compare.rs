//! `compare` runs the same workloads on etcd and on Quorate in turn, and prints the ratios of their results. It uses
//! the etcd versions in the given directories, or the etcd in `ETCD_BIN_DIR`, or else Debian's etcd. For each version,
//! it prints one table for single members and one for clusters.
//!
//! On a machine with other load, only the ratio of two figures measured in immediate succession is meaningful. Each
//! case is therefore measured several times, on one server directly after the other, and its result is the median ratio
//! of these pairs. The most important figure is the server's CPU time per operation.
//!
//! ```text
//! compare   arguments, order of the cases, destination of the table
//!   small   cases on 100,000 keys, on one member or three, with new servers for each case
//!   large   cases on 1,000,000 keys: memory, restart, compaction, defragmentation, a paged walk
//!   faults  clusters of three that lose a member: a killed leader, a follower that missed 1,000,000 entries
//!   cluster starts members together and finds the leader
//!   server  starts, stops and kills a process
//!   service runs load (`quorate bench`, or a client on tonic) and `quorate ctl` against servers
//!   table   rows and their rendering
//! ```
//!
//! # Not here
//!
//! Generating and measuring load (`quorate bench`, and `tests/examples/tonic_load.rs`).

mod cluster;
mod faults;
mod large;
mod server;
mod service;
mod small;
mod table;

use std::path::PathBuf;

use self::server::Programs;
use self::service::{Generator, Tools};
use self::small::Place;
use self::table::{Row, Section};
use crate::workspace::{cargo, root, status, target};
use crate::{Outcome, protoc, provision, say};

const USAGE: &str = "\
usage: cargo xtask compare [--etcd FOLDER]... [--only NAME,NAME] [--list] [--quick] [--pairs N] [--quorate FILE] [--noise] [--write FILE]

  --etcd     compare with the etcd in this folder; may be repeated, with tables for each version. The default is the
             folder in ETCD_BIN_DIR, or else Debian's etcd, which is downloaded
  --only     run only these cases
  --list     print the names of all cases
  --quick    run each case once with a fifth of the operations, to test the cases rather than to measure
  --pairs    number of pairs of measurements for each case, 3 by default
  --quorate  compare this binary instead of building one
  --noise    run etcd on both sides, to measure the noise of the machine
  --write    write the tables of each version between its markers in this file; missing markers are added
";

/// Options of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    etcd: Vec<PathBuf>,
    only: Vec<String>,
    quick: bool,
    pairs: usize,
    quorate: Option<PathBuf>,
    noise: bool,
    write: Option<PathBuf>,
    list: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            etcd: Vec::new(),
            only: Vec::new(),
            quick: false,
            pairs: 3,
            quorate: None,
            noise: false,
            write: None,
            list: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value\n\n{USAGE}"));
            match arg.as_str() {
                "--quick" => (options.quick, options.pairs) = (true, 1),
                "--noise" => options.noise = true,
                "--list" => options.list = true,
                "--etcd" => options.etcd.push(value()?.into()),
                "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
                "--pairs" => {
                    let pairs = value()?.parse().map_err(|_| "--pairs needs a number")?;
                    options.pairs = 1.max(pairs);
                }
                "--quorate" => options.quorate = Some(value()?.into()),
                "--write" => options.write = Some(value()?.into()),
                _ => return Err(format!("unknown argument {arg}\n\n{USAGE}")),
            }
        }
        if options.noise && options.write.is_some() {
            return Err("--noise measures only etcd, so there is nothing to write".to_owned());
        }
        let known = names();
        if let Some(unknown) = options.only.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("unknown case {unknown}; the cases are: {}", known.join(", ")));
        }
        Ok(options)
    }

    /// Returns whether the case is selected.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == name)
    }

    /// Returns the number of operations for a case, reduced in a quick run.
    const fn amount(&self, whole: u64) -> u64 {
        if self.quick { whole / 5 } else { whole }
    }
}

/// Returns the names of all cases.
fn names() -> Vec<&'static str> {
    let small = |place: fn(Place) -> bool| {
        small::CASES.iter().filter(move |case| place(case.place)).map(|case| case.name)
    };
    let alone = small(Place::is_alone).chain(large::NAMES);
    alone.chain(small(|place| !place.is_alone())).chain(faults::NAMES).collect()
}

/// Runs the cases and prints the table.
#[expect(clippy::print_stdout, reason = "the table is the output of the command")]
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args)?;
    if options.list {
        println!("{}", names().join("\n"));
        return Ok(());
    }
    let (folders, tools) = (folders(&options)?, tools(&options)?);
    // The directories are checked before the first measurement, because a directory without etcd would otherwise fail
    // the run hours later.
    let ours = (!options.noise).then(|| tools.quorate.clone());
    let programs: Vec<Programs> = folders
        .into_iter()
        .map(|folder| Programs::new(folder.join("etcd"), ours.clone(), tools.clone()))
        .collect::<Result<_, _>>()?;
    for programs in &programs {
        for section in Section::ALL {
            let rows = measure(section, programs, &options)?;
            if rows.is_empty() {
                continue;
            }
            let names = programs.sides.each_ref().map(|side| side.name.as_str());
            let table = table::render(&rows, names, &options);
            println!("{table}");
            if let Some(file) = &options.write {
                table::write(&root().join(file), section, names[0], &table)?;
            }
        }
    }
    Ok(())
}

fn measure(section: Section, programs: &Programs, options: &Options) -> Result<Vec<Row>, String> {
    let (mut rows, more) = match section {
        Section::Alone => {
            (small::run(programs, options, Place::is_alone)?, large::run(programs, options)?)
        }
        Section::Clusters => (
            small::run(programs, options, |place| !place.is_alone())?,
            faults::run(programs, options)?,
        ),
    };
    rows.extend(more);
    Ok(rows)
}

/// Runs each case twice on this program, without comparing anything. The failover of a cluster is omitted, because it
/// kills its members.
pub(crate) fn exercise(program: PathBuf) -> Outcome {
    let mut options = Options::parse(&["--quick".to_owned(), "--noise".to_owned()])?;
    let cases = names().into_iter().filter(|name| *name != "cluster-failover");
    options.only = cases.map(str::to_owned).collect();
    options.quorate = Some(program.clone());
    let programs = Programs::new(program, None, tools(&options)?)?;
    for section in Section::ALL {
        measure(section, &programs, &options)?;
    }
    Ok(())
}

/// Returns the directories of the etcd versions to compare with.
fn folders(options: &Options) -> Result<Vec<PathBuf>, String> {
    if !options.etcd.is_empty() {
        return Ok(options.etcd.clone());
    }
    Ok(vec![match std::env::var_os("ETCD_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => provision::etcd(provision::DEFAULT_SUITE)
            .map_err(|why| format!("compare needs etcd, which is not available: {why}"))?,
    }])
}

/// Returns the paths of our program and of the other files that clients need. Builds our program, unless an option
/// gives its path, and creates the other files if a selected case needs them.
fn tools(options: &Options) -> Result<Tools, String> {
    let quorate = match &options.quorate {
        Some(file) => file.clone(),
        None => {
            say("compare: building the server in the dist profile");
            status(&mut cargo(&["build", "--profile", "dist", "--package", "quorate"]))?;
            target()?.join("dist").join("quorate")
        }
    };
    let tonic =
        small::CASES.iter().any(|case| case.by == Generator::Tonic && options.wants(case.name));
    let tonic_load = if tonic { Some(example("tonic_load")?) } else { None };
    let secured =
        |case: &small::Case| case.place.asks_for_certificates() && options.wants(case.name);
    let wants_certificates = small::CASES.iter().any(secured);
    let certificates = if wants_certificates { Some(certificates()?) } else { None };
    Ok(Tools { quorate, tonic_load, certificates })
}

/// The build profile of the example programs. It optimises the tonic client, as applications in production are
/// optimised.
const LOAD: &str = "load";

/// Builds an example program of the tests package: the tonic client or the certificate generator.
fn example(name: &str) -> Result<PathBuf, String> {
    say(&format!("compare: building {name}"));
    let args = ["build", "--profile", LOAD, "--package", "quorate-tests", "--example", name];
    status(cargo(&args).env("PROTOC", protoc::install()?))?;
    Ok(target()?.join(LOAD).join("examples").join(name))
}

/// Creates the certificates, and returns their directory.
fn certificates() -> Result<PathBuf, String> {
    let program = example("certificates")?;
    let folder = target()?.join("certificates");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    status(std::process::Command::new(program).arg(&folder))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_select_the_benchmark_cases() {
        let options = parse("--only put-1,memory --pairs 5 --write docs/performance.md").unwrap();
        assert!(options.wants("put-1") && options.wants("memory") && !options.wants("put-100"));
        assert_eq!((options.pairs, options.amount(100)), (5, 100));
        let quick = parse("--quick").unwrap();
        assert_eq!((quick.pairs, quick.amount(100)), (1, 20));
        assert!(quick.wants("put-100"));
    }

    #[test]
    fn several_etcd_versions_are_accepted() {
        let options = parse("--etcd /a --etcd /b").unwrap();
        assert_eq!(folders(&options).unwrap(), [PathBuf::from("/a"), PathBuf::from("/b")]);
    }

    #[test]
    fn invalid_arguments_are_reported() {
        assert!(parse("--only nonsense").unwrap_err().contains("put-100"));
        assert!(parse("--pairs").unwrap_err().contains("needs a value"));
        assert!(parse("--noise --write f").unwrap_err().contains("nothing to write"));
        assert!(parse("--frob").unwrap_err().contains("usage:"));
    }

    #[test]
    fn benchmark_case_names_are_unique() {
        let mut names = names();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
