//! Paths in the repository, digests, and functions that run other programs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

/// Returns the root directory of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("xtask lives in crates/xtask").to_owned()
}

/// Returns cargo's build directory, which also contains the files that commands download.
pub(crate) fn target() -> Result<PathBuf, String> {
    let program = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    // `<target>/<profile>/xtask`
    let target =
        program.ancestors().nth(2).ok_or("xtask is not running from a target directory")?;
    Ok(target.to_owned())
}

/// Returns a command that calls the cargo that started this program, with these arguments.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    command
}

/// Runs a program with inherited input and output. If it fails, the error contains its command line.
pub(crate) fn status(command: &mut Command) -> Result<(), String> {
    let line = shown(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{line}: {status}")),
        Err(error) => Err(format!("{line}: {error}")),
    }
}

/// Runs a program, and returns its standard output. If it fails, the error contains its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    output_bytes(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Like [`output`], for a program whose output may be binary.
pub(crate) fn output_bytes(command: &mut Command) -> Result<Vec<u8>, String> {
    let line = shown(command);
    match command.output() {
        Ok(output) if output.status.success() => Ok(output.stdout),
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            Err(format!("{line}: {}: {}", output.status, complaint.trim()))
        }
        Err(error) => Err(format!("{line}: {error}")),
    }
}

fn shown(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// Returns the SHA-256 digest in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}
