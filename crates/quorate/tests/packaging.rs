//! What is installed beside the program is what other programs take.

use std::collections::BTreeSet;
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
    let checked = Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(&path).output();
    let Ok(checked) = checked else {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&checked.stderr);
    // Of other units of the machine it may say what it likes.
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("quorate.service")).collect();
    assert!(checked.status.success() && of_ours.is_empty(), "{said}");
}

/// Every word of a text that may name a series.
fn series_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let families = ["etcd_", "quorate_", "grpc_server_", "os_fd_", "process_"];
    words.filter(|word| families.iter().any(|family| word.starts_with(family))).collect()
}

#[test]
fn alerts_find_their_series_and_their_pages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let rules = read("packaging/prometheus/quorate.rules.yml");
    let runbook = read("docs/runbook.md");
    let declared: String = ["series", "state", "process", "own", "grpc"]
        .map(|name| read(&format!("crates/telemetry/src/metrics/{name}.rs")))
        .concat();
    // What ends with an underscore stands for several.
    let named = series_in(&rules).into_iter().chain(series_in(&runbook));
    for name in named.filter(|name| !name.ends_with('_')) {
        let family = name.strip_suffix("_bucket").unwrap_or(name);
        assert!(declared.contains(&format!("\"{family}\"")), "there is no series {name}");
    }
    let after = |line: &'_ str, head: &str| line.trim().strip_prefix(head).map(str::to_owned);
    let alerts: Vec<String> = rules.lines().filter_map(|line| after(line, "- alert: ")).collect();
    let pages: Vec<String> =
        rules.lines().filter_map(|line| after(line, "runbook: docs/runbook.md#")).collect();
    let sections: Vec<String> = runbook.lines().filter_map(|line| after(line, "## ")).collect();
    assert_eq!(alerts, sections, "a section for each alert, in its order");
    let anchors: Vec<String> = alerts.iter().map(|alert| alert.to_lowercase()).collect();
    assert_eq!(pages, anchors);
}
