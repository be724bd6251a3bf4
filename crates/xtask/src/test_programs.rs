//! Builds test programs with cargo, and runs them without it.
//!
//! Programs of packages that cargo tests in different calls may need different builds of the same dependencies. Here,
//! one call builds all programs, and the caller runs each of them in one or several modes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace::root;

/// A test program that cargo has built.
#[derive(Debug)]
pub(crate) struct TestProgram {
    /// The path of the program's root module, relative to the root of the repository.
    source: String,
    /// The folder of the package.
    package: PathBuf,
    executable: PathBuf,
}

/// Builds test programs with `cargo test` and its arguments, which select the packages.
pub(crate) fn build(mut cargo_test: Command) -> Result<Vec<TestProgram>, String> {
    cargo_test.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo_test
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{cargo_test:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{cargo_test:?}: {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let artifacts = messages.lines().filter_map(test_artifact);
    artifacts
        .map(|artifact| {
            program(&artifact, &root()).ok_or(format!("cargo: an incomplete message: {artifact}"))
        })
        .collect()
}

/// Returns the message of cargo in this line, if the message announces a test program.
fn test_artifact(line: &str) -> Option<Value> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    is_test.then_some(message)
}

/// Returns the test program that a message announces, or `None` if the message lacks a field.
fn program(artifact: &Value, root: &Path) -> Option<TestProgram> {
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    let source = path(&artifact["target"]["src_path"])?;
    let source = source.strip_prefix(root).unwrap_or(&source).display().to_string();
    let package = path(&artifact["manifest_path"])?.parent()?.to_owned();
    Some(TestProgram { source, package, executable: path(&artifact["executable"])? })
}

impl TestProgram {
    /// Returns the path of the program's root module, relative to the root of the repository.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the program belongs to the package in this folder.
    pub(crate) fn is_of(&self, package: &Path) -> bool {
        self.package == package
    }

    /// Returns a command that runs the program as cargo would.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = r#"{"reason":"compiler-artifact","manifest_path":"/r/crates/a/Cargo.toml",
        "target":{"kind":["test"],"name":"b","src_path":"/r/crates/a/tests/b.rs"},"profile":{"test":true},
        "executable":"/r/target/debug/deps/b-1"}"#;

    #[test]
    fn a_test_program_is_found_among_the_messages_of_cargo() {
        let program = |line: &str| program(&test_artifact(line)?, Path::new("/r"));
        let found = program(TEST).unwrap();
        assert_eq!(found.source(), "crates/a/tests/b.rs");
        assert!(found.is_of(Path::new("/r/crates/a")) && !found.is_of(Path::new("/r/crates")));
        assert_eq!(found.command().get_program(), "/r/target/debug/deps/b-1");
        assert_eq!(found.command().get_current_dir(), Some(Path::new("/r/crates/a")));
        for other in [
            &TEST.replace("true", "false"),
            &TEST.replace("compiler-artifact", "build-script-executed"),
            r#"{"reason":"build-finished","success":true}"#,
            "a line that a build script printed",
        ] {
            assert!(test_artifact(other).is_none(), "{other}");
        }
        assert!(test_artifact(TEST).is_some());
    }
}
