//! The page of all series, made from their declarations.

use std::fmt::Write as _;

use super::registry::Declared;
use super::{Metrics, MetricsLevel};

const HEAD: &str = "\
# Series of a member

Made from the declarations of the series (`telemetry::metrics`); a test compares it. A member tells them at `/metrics`, as text, OpenMetrics or
protobuf. A series with labels appears with its first value. `grpc_server_handling_seconds` is there with `--metrics=extensive` alone.
";

/// Whose names they are, by how they begin.
const SECTIONS: [(&str, &str); 4] = [
    ("etcd_", "Those of etcd"),
    ("grpc_server_", "Calls"),
    ("quorate_", "Our own"),
    ("", "The process"),
];

/// A Markdown page with a row for each family.
#[must_use]
pub fn reference() -> String {
    let metrics = Metrics::new(&[], MetricsLevel::Extensive);
    let mut page = HEAD.to_owned();
    for (position, (_, title)) in SECTIONS.iter().enumerate() {
        page.push_str(&format!(
            "\n## {title}\n\n| series | type | labels | |\n|---|---|---|---|\n"
        ));
        for family in metrics.registry.declared().filter(|family| section(family) == position) {
            let Declared { name, kind, labels, help } = family;
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            writeln!(page, "| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "))
                .expect("a string takes all that is written to it");
        }
    }
    page
}

fn section(family: &Declared) -> usize {
    let is_of = |(prefix, _): &(&str, &str)| family.name.starts_with(prefix);
    SECTIONS.iter().position(is_of).expect("every name begins with nothing")
}
