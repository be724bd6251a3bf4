//! Generates the metrics reference page from the declarations of the families.

use std::fmt::Write as _;

use super::registry::Declared;
use super::{Metrics, MetricsLevel};

const HEAD: &str = "\
# Metrics of a member

This page is generated from the declarations of the series (`telemetry::metrics`), and a test
compares it with them. A member serves the series at `/metrics`, as text or protobuf. A series with
labels appears when it has its first value. `grpc_server_handling_seconds` exists only with
`--metrics=extensive`.

etcd's series of the Go runtime (`go_…`) do not exist. Use `process_resident_memory_bytes` and
`process_cpu_seconds_total` for the process, and the series `quorate_…_bytes` for the memory of each
queue.
";

/// The section of a metric on the page, by the prefix of its name.
const SECTIONS: [(&str, &str); 4] = [
    ("etcd_", "etcd's series"),
    ("grpc_server_", "Calls"),
    ("quorate_", "Quorate's own series"),
    ("", "The process"),
];

/// A row of the reference page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentedSeries {
    /// The section of the page.
    pub section: &'static str,
    /// The name of the metric.
    pub name: &'static str,
    /// The type: counter, gauge or histogram.
    pub kind: &'static str,
    /// The names of the labels.
    pub labels: Vec<&'static str>,
    /// The help text of the metric.
    pub help: &'static str,
}

/// Returns all metrics, grouped by section.
#[must_use]
pub fn documented_series() -> Vec<DocumentedSeries> {
    let metrics = Metrics::new(&[], MetricsLevel::Extensive);
    let declared: Vec<_> = metrics.registry.declared().collect();
    let of_section = |position: usize| {
        let families = declared.iter().filter(move |family| section(family) == position);
        families.map(move |family| DocumentedSeries {
            section: SECTIONS[position].1,
            name: family.name,
            kind: family.kind.name(),
            labels: family.labels.clone(),
            help: family.help,
        })
    };
    (0..SECTIONS.len()).flat_map(of_section).collect()
}

/// Returns the reference page in Markdown, with a row for each family.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    let mut title = "";
    for series in documented_series() {
        let DocumentedSeries { section, name, kind, labels, help } = series;
        if section != title {
            title = section;
            page.push_str(&format!(
                "\n## {title}\n\n| series | type | labels | |\n|---|---|---|---|\n"
            ));
        }
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", "))
            .expect("writing to a string cannot fail");
    }
    page
}

fn section(family: &Declared) -> usize {
    let is_of = |(prefix, _): &(&str, &str)| family.name.starts_with(prefix);
    SECTIONS.iter().position(is_of).expect("the last prefix is empty")
}
