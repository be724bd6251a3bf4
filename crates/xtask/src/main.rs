//! The development commands of the repository: `cargo xtask <command>`.
//!
//! Everything that continuous integration runs also runs locally, with only the Rust toolchain. Each command has its
//! own module, and this module selects the command. Called under the name `protoc`, the program is the protocol buffer
//! compiler that `etcd-client` needs at build time (see [`protoc`]).

mod compare;
mod deny;
mod dependencies;
mod fuzz;
mod package;
mod picture;
mod plants;
mod protoc;
mod provision;
mod release;
mod sim;
mod tally;
mod test;
mod test_programs;
mod tidy;
mod train;
mod workspace;

use std::process::ExitCode;

/// The result of a command; the error is a message for the user.
pub(crate) type Outcome = Result<(), String>;

const USAGE: &str = "\
usage: cargo xtask <command>

  test [--long] [ARGS]  build the server and run all tests; ARGS are passed to the black-box tests
  ci [ARGS]             check formatting, tidy and lints, then run `test` with ARGS
  tidy                  check the rules of the repository that no lint checks
  tidy --lower          write lower counts of stilted sentences to crates/xtask/prose.toml
  tidy --prose [GROUP]  print the counts of stilted sentences, or the sentences of one crate or page
  sim [ARGS]            simulate clusters with faults in virtual time, from seeds (see `sim --help`)
  provision [SUITE]     download Debian's etcd for the interoperability tests and print its directory
                        (suites: trixie, the default; bookworm; sid), or another program for the tests
                        (patroni, promtool, postgres, chromium, axe)
  package [--binary PATH] [--into FOLDER]
                        build the release and pack it: Debian packages, a container image, its root
                        file system, and checksums (target/package)
  picture [--binary PATH]
                        run `quorate ctl top` on a cluster under load and write its screen as an image
                        (docs/top.svg)
  deny                  check the sources and licences of all dependencies
  release prepare VERSION
                        set the version and create its section in the changelog
  release [--binary PATH] [--into FOLDER]
                        build the files of a release from this commit: packages, a bill of materials,
                        the text of the tag, and checksums (target/release-files)
  fuzz [TARGET] [--seconds N]
                        run one fuzz target or all, each for N seconds (60 by default)
  plants [NAME…] [--minutes N] [--first SEED] [--threads N] [--theme NAME]
                        apply the defects of crates/sim/plants one at a time, and print the number of
                        seeds after which the simulator finds each (N minutes at most, 10 by default)
  generate              generate code from the .proto files
  train                 write the profile that release builds are optimised with, from the cases of `compare`
  compare [ARGS]        compare the speed of the server and of Debian's etcd, and print the ratios
";

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    let outcome = if protoc::is_called_as(&program) {
        protoc::run(&args)
    } else {
        match args.split_first() {
            Some((command, rest)) => run(command, rest),
            None => Err(USAGE.to_owned()),
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            say(&message);
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, args: &[String]) -> Outcome {
    match command {
        "test" => test::run(args),
        "ci" => test::ci(args),
        "tidy" => tidy::run(args),
        "sim" => sim::run(args),
        "provision" => provision::run(args),
        "compare" => compare::run(args),
        "train" => train::run(),
        "fuzz" => fuzz::run(args),
        "package" => package::run(args),
        "picture" => picture::run(args),
        "deny" => deny::run(),
        "release" => release::run(args),
        "plants" => plants::run(args),
        "generate" => {
            workspace::status(&mut workspace::cargo(&["run", "--package", "quorate-codegen"]))
        }
        _ => Err(format!("unknown command {command}\n\n{USAGE}")),
    }
}

/// Prints a message for the user.
#[expect(clippy::print_stderr, reason = "this is a command-line program")]
pub(crate) fn say(message: &str) {
    eprintln!("{message}");
}
