//! Repository tasks: `cargo xtask <task>`.
//!
//! Everything that continuous integration runs can be run locally, with only the Rust toolchain. Each task has
//! its own module; this one dispatches. Called under the name `protoc`, the program is the protocol buffer
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
mod tidy;
mod workspace;

use std::process::ExitCode;

/// The result of a task; the error is a message for the user.
pub(crate) type Outcome = Result<(), String>;

const USAGE: &str = "\
usage: cargo xtask <chore>

  test [--long] [ARGS]  build the server and run every test; ARGS go to the black-box tests
  ci [ARGS]             formatting, tidy, lints, and then test with ARGS
  tidy                  check the rules that no lint knows
  tidy --lower          write the counts of stilted sentences that have fallen into crates/xtask/prose.toml
  tidy --prose [GROUP]  print how many sentences of each crate and page are stilted, or those of one
  sim [ARGS]            break whole clusters in virtual time, from seeds; `--help` tells more
  provision [SUITE]     fetch Debian's etcd for the interop tests and print where it is
                        (suites: trixie, the default; bookworm; sid)
  package [--binary PATH] [--into FOLDER]
                        build the release and pack it: packages for Debian, a container image and its
                        root file system, with their sums (target/package)
  picture [--binary PATH]
                        run `quorate ctl top` on a cluster under load and write its screen as an image
                        (docs/top.svg)
  deny                  check where dependencies come from, and their licences
  release prepare VERSION
                        write the version and its section of the changelog
  release [--binary PATH] [--into FOLDER]
                        make what is published of this commit: packages, a bill of materials, the
                        text of the tag, and the sums (target/release-files)
  fuzz [TARGET] [--seconds N]
                        run the fuzzer's targets, all or one, for so long each (60)
  plants [NAME…] [--minutes N] [--first SEED]
                        plant the defects of crates/sim/plants, one at a time, and print after how many
                        seeds the simulator finds each (10 minutes at most)
  generate              write the code that is generated from the .proto files
  compare [ARGS]        race the server against Debian's etcd and print the ratios
";

fn main() -> ExitCode {
    let mut args = std::env::args();
    let program = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    let outcome = if protoc::is_called_as(&program) {
        protoc::run(&args)
    } else {
        match args.split_first() {
            Some((chore, rest)) => run(chore, rest),
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

fn run(chore: &str, args: &[String]) -> Outcome {
    match chore {
        "test" => test::run(args),
        "ci" => test::ci(args),
        "tidy" => tidy::run(args),
        "sim" => sim::run(args),
        "provision" => provision::run(args),
        "compare" => compare::run(args),
        "fuzz" => fuzz::run(args),
        "package" => package::run(args),
        "picture" => picture::run(args),
        "deny" => deny::run(),
        "release" => release::run(args),
        "plants" => plants::run(args),
        "generate" => {
            workspace::status(&mut workspace::cargo(&["run", "--package", "quorate-codegen"]))
        }
        _ => Err(format!("unknown chore {chore}\n\n{USAGE}")),
    }
}

/// Prints a message for the user.
#[expect(clippy::print_stderr, reason = "this is a command-line program")]
pub(crate) fn say(message: &str) {
    eprintln!("{message}");
}
