//! Checks the systemd unit and the monitoring files with the programs that use them.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A member refuses to start if a flag and its variable are both set.
#[test]
fn the_settings_file_names_the_flags_that_the_unit_sets() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let unit = std::fs::read_to_string(packaging.join("systemd/quorate.service")).unwrap();
    let settings = std::fs::read_to_string(packaging.join("debian/quorate.default")).unwrap();
    let variables = unit.lines().filter_map(|line| line.strip_prefix("Environment=ETCD_"));
    let flags: Vec<String> = variables
        .map(|set| set.split('=').next().unwrap().to_lowercase().replace('_', "-"))
        .collect();
    assert_eq!(flags, ["name", "data-dir"]);
    let (_, exception) = settings.split_once("DAEMON_ARGS, except ").unwrap();
    assert!(flags.iter().all(|flag| exception.contains(&format!("--{flag}"))), "{settings}");
}

/// systemd accepts the unit without warnings.
#[test]
fn systemd_accepts_the_unit_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let unit = std::fs::read_to_string(root.join("packaging/systemd/quorate.service")).unwrap();
    assert!(unit.contains("\nExecStart=/usr/bin/quorate $DAEMON_ARGS\n"));
    let installed = unit.replace("/usr/bin/quorate", env!("CARGO_BIN_EXE_quorate"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quorate.service");
    std::fs::write(&path, installed).unwrap();
    let checked = Command::new("systemd-analyze").args(["--man=no", "verify"]).arg(&path).output();
    let Ok(checked) = checked else {
        eprintln!("skipped: systemd-analyze is not installed, so the unit file is not tested");
        return;
    };
    let said = String::from_utf8_lossy(&checked.stderr);
    // Messages about other units on this machine are ignored.
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("quorate.service")).collect();
    assert!(checked.status.success() && of_ours.is_empty(), "{said}");
}

/// A core dump would contain keys, values, passwords and private keys.
#[test]
fn the_unit_prevents_core_dumps() {
    let unit = read("packaging/systemd/quorate.service");
    assert!(unit.lines().any(|line| line == "LimitCORE=0"), "{unit}");
}

/// Returns the words in `text` that may be names of metric series.
fn series_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let families = ["etcd_", "quorate_", "grpc_server_", "os_fd_", "process_"];
    words.filter(|word| families.iter().any(|family| word.starts_with(family))).collect()
}

/// Returns the text of a file in the repository.
fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// Returns the source files that declare the metric series.
fn declarations() -> String {
    let files = ["series", "state", "process", "own", "grpc"];
    files.map(|name| read(&format!("crates/telemetry/src/metrics/{name}.rs"))).concat()
}

fn assert_declared(name: &str, declared: &str) {
    let family =
        name.strip_suffix("_bucket").or_else(|| name.strip_suffix("_count")).unwrap_or(name);
    assert!(declared.contains(&format!("\"{family}\"")), "no series is named {name}");
}

#[test]
fn alerts_refer_to_existing_metric_series_and_pages() {
    let rules = read("packaging/prometheus/quorate.rules.yml");
    let runbook = read("docs/runbook.md");
    let declared = declarations();
    // A name that ends with an underscore is a prefix of several series.
    let named = series_in(&rules).into_iter().chain(series_in(&runbook));
    for name in named.filter(|name| !name.ends_with('_')) {
        assert_declared(name, &declared);
    }
    let after = |line: &'_ str, head: &str| line.trim().strip_prefix(head).map(str::to_owned);
    let alerts: Vec<String> = rules.lines().filter_map(|line| after(line, "- alert: ")).collect();
    let page = "https://github.com/quorate/quorate/blob/main/docs/runbook.md";
    let pages: Vec<String> =
        rules.lines().filter_map(|line| after(line, &format!("runbook_url: {page}#"))).collect();
    let sections: Vec<String> = runbook.lines().filter_map(|line| after(line, "## ")).collect();
    assert_eq!(alerts, sections, "the runbook has a section for each alert, in the same order");
    let anchors: Vec<String> = alerts.iter().map(|alert| alert.to_lowercase()).collect();
    assert_eq!(pages, anchors);
}

/// The alerts fire for the recorded values that require them, and for no others.
#[test]
fn alerts_fire_only_for_the_recorded_values_that_require_them() {
    let promtool = std::env::var_os("PROMTOOL").unwrap_or_else(|| "promtool".into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus");
    let mut command = Command::new(promtool);
    command.args(["test", "rules", "quorate.rules.test.yml"]).current_dir(folder);
    let Ok(tested) = command.output() else {
        let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
        assert!(!required.contains("promtool"), "promtool is required but is not installed");
        eprintln!("skipped: promtool is not installed, so the alert rules are not tested");
        return;
    };
    let said = [tested.stdout, tested.stderr].concat();
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// Returns the label names in an expression or a legend, from aggregations, selectors and templates.
fn labels_in(text: &str) -> Vec<&str> {
    let between = |open: &'static str, close: char| {
        text.split(open).skip(1).map(move |rest| rest.split(close).next().unwrap())
    };
    let summed = between("by (", ')').flat_map(|list| list.split(','));
    let asked = text.match_indices(['=', '!']).filter_map(|(at, _)| {
        let is_matcher = text[at..].starts_with("=~\"") || text[at..].starts_with("!=\"");
        is_matcher.then(|| text[..at].rsplit([',', '{', ' ']).next().unwrap())
    });
    summed.chain(asked).chain(between("{{", '}')).map(str::trim).collect()
}

#[test]
fn the_dashboard_uses_existing_metric_series() {
    let board: Value = serde_json::from_str(&read("packaging/grafana/quorate.json")).unwrap();
    let declared = declarations();
    let mut places = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let mut shown = 0;
    for panel in board["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{title}: another panel has the same id"
        );
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        for x in at("x")..at("x") + at("w") {
            assert!(x < 24, "{title} exceeds the width of the dashboard");
            for y in at("y")..at("y") + at("h") {
                assert!(places.insert((x, y)), "{title} overlaps another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            panel["description"].as_str().unwrap().ends_with('.'),
            "{title} has no description"
        );
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        for target in panel["targets"].as_array().unwrap() {
            let [expression, legend] =
                ["expr", "legendFormat"].map(|key| target[key].as_str().unwrap());
            for series in series_in(expression) {
                assert_declared(series, &declared);
                shown += 1;
            }
            assert!(expression.contains("job=~\"$job\""), "{title} does not select the cluster");
            for label in [labels_in(expression), labels_in(legend)].concat() {
                let is_scrapers = ["job", "instance", "le"].contains(&label);
                let is_declared = declared.contains(&format!("\"{label}\""));
                assert!(is_scrapers || is_declared, "{title}: no series has the label {label}");
            }
        }
    }
    assert!(shown > 40);
    for variable in board["templating"]["list"].as_array().unwrap() {
        for series in series_in(variable["query"].as_str().unwrap()) {
            assert_declared(series, &declared);
        }
    }
}

#[test]
fn labels_are_found_in_expressions_and_legends() {
    let found = labels_in("sum by (le, To) (x{job=~\"$job\", code!=\"OK\"} >= 1) {{instance}}");
    assert_eq!(found, ["le", "To", "job", "code", "instance"]);
}
