//! A protocol buffer compiler for build scripts.
//!
//! The independent client of the black-box tests, `etcd-client`, generates its code at build time and needs a
//! descriptor set from `$PROTOC`. A copy of this program under the name `protoc` uses the `protox` crate to create that
//! descriptor set, so that only the Rust toolchain is required. The copy supports only the flags that `prost-build`
//! passes. Any other flag is an error.

use std::path::{Path, PathBuf};

use crate::{Outcome, workspace};

/// Returns whether the program was started under the compiler's name.
pub(crate) fn is_called_as(program: &str) -> bool {
    Path::new(program).file_stem().is_some_and(|name| name == "protoc")
}

/// Copies this program into the target directory under the compiler's name.
///
/// A copy is needed because cargo may replace the original while build scripts run.
pub(crate) fn install() -> Result<PathBuf, String> {
    let original = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let folder = workspace::target()?.join("xtask");
    let installed = folder.join("protoc");
    let copy = || -> std::io::Result<()> {
        std::fs::create_dir_all(&folder)?;
        let bytes = std::fs::read(&original)?;
        if std::fs::read(&installed).is_ok_and(|present| present == bytes) {
            return Ok(());
        }
        // A running program's file cannot be overwritten, but it can be replaced.
        let fresh = folder.join(format!("protoc.{}", std::process::id()));
        std::fs::copy(&original, &fresh)?;
        std::fs::rename(&fresh, &installed)
    };
    copy().map_err(|error| format!("{}: {error}", installed.display()))?;
    Ok(installed)
}

/// Compiles the files named in the arguments.
pub(crate) fn run(args: &[String]) -> Outcome {
    match Request::parse(args)? {
        Request::Version => print_version(),
        Request::Compile(job) => job.run(),
    }
}

#[expect(clippy::print_stdout, reason = "the version is the output of --version")]
fn print_version() -> Outcome {
    println!("libprotoc 31.0");
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Request {
    Version,
    Compile(Job),
}

#[derive(Debug, Default, PartialEq)]
struct Job {
    output: PathBuf,
    include_imports: bool,
    include_source_info: bool,
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Request {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut job = Job::default();
        let mut output = None;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("missing value for {arg}"));
            match arg.as_str() {
                "--version" => return Ok(Self::Version),
                "--include_imports" => job.include_imports = true,
                "--include_source_info" => job.include_source_info = true,
                // The compiler always accepts optional fields, so the flag has no effect.
                "--experimental_allow_proto3_optional" => {}
                "-o" => output = Some(PathBuf::from(value()?)),
                "-I" => job.folders.push(value()?.into()),
                _ => {
                    if let Some(path) = arg.strip_prefix("--descriptor_set_out=") {
                        output = Some(path.into());
                    } else if let Some(path) = arg.strip_prefix("--proto_path=") {
                        job.folders.push(path.into());
                    } else if let Some(path) = arg.strip_prefix("-I") {
                        job.folders.push(path.into());
                    } else if arg.starts_with('-') {
                        return Err(format!("unknown flag: {arg}"));
                    } else {
                        job.files.push(arg.into());
                    }
                }
            }
        }
        job.output = output.ok_or("missing output: -o FILE")?;
        if job.files.is_empty() {
            return Err("missing input file".to_owned());
        }
        if job.folders.is_empty() {
            job.folders.push(".".into());
        }
        Ok(Self::Compile(job))
    }
}

impl Job {
    fn run(&self) -> Outcome {
        let mut compiler =
            protox::Compiler::new(&self.folders).map_err(|error| format!("{error:?}"))?;
        compiler.include_imports(self.include_imports);
        compiler.include_source_info(self.include_source_info);
        compiler.open_files(&self.files).map_err(|error| format!("{error:?}"))?;
        std::fs::write(&self.output, compiler.encode_file_descriptor_set())
            .map_err(|error| format!("{}: {error}", self.output.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request, String> {
        Request::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_flags_of_prost_build_are_accepted() {
        let line = "--include_imports --include_source_info -o out -I proto -Ideep a.proto b.proto";
        let expected = Job {
            output: "out".into(),
            include_imports: true,
            include_source_info: true,
            folders: vec!["proto".into(), "deep".into()],
            files: vec!["a.proto".into(), "b.proto".into()],
        };
        assert_eq!(parse(line), Ok(Request::Compile(expected)));
        assert_eq!(parse("--version"), Ok(Request::Version));
    }

    #[test]
    fn unknown_flags_are_refused() {
        for line in ["-o out", "a.proto", "-o", "-o out --java_out=x a.proto"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_program_acts_as_a_compiler_only_under_the_name_protoc() {
        assert!(is_called_as("/some/where/protoc"));
        assert!(!is_called_as("/some/protoc/xtask"));
    }
}
