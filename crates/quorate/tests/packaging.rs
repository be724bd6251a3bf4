//! What is installed beside the program is what other programs take.

use std::path::Path;
use std::process::Command;

/// The unit is one that systemd starts, with nothing in it that it passes over.
#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let unit = std::fs::read_to_string(root.join("packaging/systemd/quorate.service")).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/quorate $DAEMON_ARGS\n"));
    let installed = unit.replace("/usr/bin/quorate", env!("CARGO_BIN_EXE_quorate"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quorate.service");
    std::fs::write(&path, installed).unwrap();
    let checked = Command::new("systemd-analyze").arg("verify").arg(&path).output();
    let Ok(checked) = checked else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&checked.stderr);
    // Of other units of the machine it may say what it likes.
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("quorate.service")).collect();
    assert!(checked.status.success() && of_ours.is_empty(), "{said}");
}
