//! Installs client libraries for the tests: a Python virtual environment and an npm prefix in the target folder.
//!
//! The installations are kept for later runs, under names derived from their lists of requirements. On a machine
//! without Python, npm or a registry, the tests are skipped with the reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

/// Timeout of an installer, in seconds.
const LIMIT_SECS: &str = "180";

/// Returns the folder with the scripts and their lists of requirements.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Returns the path of a Python interpreter that has the clients listed in `requirements.txt`. The error states why it
/// is missing.
pub(crate) fn python() -> Result<PathBuf, String> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = |place: &Path, list: &Path| {
        run(Command::new("python3").args(["-m", "venv"]).arg(place))?;
        let mut pip = Command::new(place.join("bin/python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--requirement",
        ]);
        run(pip.arg(list))
    };
    let made = INSTALLED.get_or_init(|| made("python", "requirements.txt", install));
    made.clone().map(|place| place.join("bin/python"))
}

/// Returns the folder with the modules listed in `package.json`. The error states why it is missing.
pub(crate) fn node_modules() -> Result<PathBuf, String> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = |place: &Path, list: &Path| {
        run(Command::new("node").arg("--version"))?;
        std::fs::create_dir_all(place).map_err(|error| error.to_string())?;
        std::fs::copy(list, place.join("package.json")).map_err(|error| error.to_string())?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]);
        run(npm.current_dir(place))
    };
    let made = INSTALLED.get_or_init(|| made("node", "package.json", install));
    made.clone().map(|place| place.join("node_modules"))
}

/// Returns the folder of an installation. If the folder does not exist, the listed packages are installed first.
fn made(
    name: &str,
    list: &str,
    install: impl FnOnce(&Path, &Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let list = folder().join(list);
    let sum = Sha256::digest(std::fs::read(&list).map_err(|error| error.to_string())?);
    let sum: String = sum.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    // The programs of a virtual environment contain its path, so it cannot be moved into place after the installation.
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{sum}"));
    let whole = place.join("whole");
    if whole.exists() {
        return Ok(place);
    }
    drop(std::fs::remove_dir_all(&place));
    install(&place, &list)?;
    std::fs::write(whole, "").map_err(|error| error.to_string())?;
    Ok(place)
}

/// Runs an installer. The error contains the end of the installer's output.
fn run(command: &Command) -> Result<(), String> {
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=10", LIMIT_SECS]).arg(command.get_program());
    limited.args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    let said = limited.output().map_err(|error| error.to_string())?;
    if said.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{}: {}: {last}", command.get_program().display(), said.status))
}
