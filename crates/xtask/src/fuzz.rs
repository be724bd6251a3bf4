//! `fuzz` runs the targets of `fuzz/` with cargo-fuzz, one after the other.
//!
//! Each target starts with the samples in `fuzz/seeds/<target>`, which tests generate and also use as inputs
//! (`test_support::mutate`). New inputs are kept in `fuzz/corpus`, which is not committed. A failing input is stored in
//! `fuzz/artifacts`. Add it to the samples once the defect is fixed.

use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, output, root, status};
use crate::{Outcome, say};

/// The default run time of a target, in seconds.
const SECONDS: u64 = 60;

/// The maximum input size, in bytes. Targets run faster on small inputs, and this size still allows every relevant
/// kind of input.
const INPUT_BYTES_MAX: u64 = 64 << 10;

/// An in-memory directory for temporary files, if the machine has one. Targets whose parsers read files write their
/// input there.
const MEMORY_FOLDER: &str = "/dev/shm";

const USAGE: &str = "usage: cargo xtask fuzz [TARGET] [--seconds N]";

/// Runs the named target, or all targets.
pub(crate) fn run(args: &[String]) -> Outcome {
    let targets = targets()?;
    let Request { target, seconds } = Request::read(args)?;
    let chosen: Vec<&String> =
        targets.iter().filter(|known| target.is_none_or(|target| target == *known)).collect();
    if chosen.is_empty() {
        return Err(format!("{USAGE}\n\ntargets: {}", targets.join(", ")));
    }
    if let Err(why) = output(&mut cargo(&["fuzz", "--version"])) {
        return Err(format!(
            "{why}\n\ncargo-fuzz is not installed: run `cargo install cargo-fuzz`. Without it, `cargo test fuzz` runs \
             the targets on a limited number of inputs; QUORATE_FUZZ_CASES=1000000 raises this number"
        ));
    }
    let mut failed = Vec::new();
    for target in chosen {
        say(&format!("{target}: {seconds} s"));
        if let Err(why) = status(&mut fuzz(target, seconds)?) {
            say(&why);
            failed.push(target.as_str());
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!("failed targets (see fuzz/artifacts): {}", failed.join(", "))),
    }
}

struct Request<'a> {
    target: Option<&'a str>,
    seconds: u64,
}

impl<'a> Request<'a> {
    fn read(args: &'a [String]) -> Result<Self, String> {
        let mut request = Self { target: None, seconds: SECONDS };
        let mut words = args.iter();
        while let Some(word) = words.next() {
            if word == "--seconds" {
                let number = words.next().and_then(|number| number.parse().ok());
                request.seconds = number.ok_or(USAGE)?;
            } else if request.target.is_none() && !word.starts_with('-') {
                request.target = Some(word);
            } else {
                return Err(USAGE.to_owned());
            }
        }
        Ok(request)
    }
}

/// Returns the names of all targets.
fn targets() -> Result<Vec<String>, String> {
    let folder = root().join("fuzz/fuzz_targets");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

fn fuzz(target: &str, seconds: u64) -> Result<Command, String> {
    let corpus = root().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
    let mut command = cargo(&["fuzz", "run", target]);
    command.arg(&corpus).arg(root().join("fuzz/seeds").join(target)).arg("--");
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    command.arg("-print_final_stats=1");
    // The fuzzer needs unstable compiler flags, which `RUSTC_BOOTSTRAP` allows with the repository's toolchain.
    command.env("RUSTC_BOOTSTRAP", "1");
    if Path::new(MEMORY_FOLDER).is_dir() && std::env::var_os("TMPDIR").is_none() {
        command.env("TMPDIR", MEMORY_FOLDER);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<(Option<String>, u64), String> {
        let args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Request::read(&args).map(|request| (request.target.map(str::to_owned), request.seconds))
    }

    #[test]
    fn a_fuzz_target_and_a_run_time_are_parsed() {
        assert_eq!(read(&[]), Ok((None, SECONDS)));
        assert_eq!(read(&["apply", "--seconds", "5"]), Ok((Some("apply".into()), 5)));
        for wrong in [&["--seconds"][..], &["--seconds", "x"], &["a", "b"], &["--long"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_fuzz_target_is_built_and_has_samples() {
        let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        for target in targets().unwrap() {
            let built = manifest.contains(&format!("path = \"fuzz_targets/{target}.rs\""));
            assert!(built, "fuzz/Cargo.toml does not build {target}");
            let samples = root().join("fuzz/seeds").join(&target);
            assert!(
                samples.is_dir(),
                "no test has stored samples of {target} in {}",
                samples.display()
            );
        }
    }
}
