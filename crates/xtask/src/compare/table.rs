//! The rows of the comparison and the table that they form.

use std::path::Path;

use super::Options;
use crate::Outcome;

/// A section of the comparison, which has a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// The cases with one member.
    Alone,
    /// The cases with three members.
    Clusters,
}

impl Section {
    pub(super) const ALL: [Self; 2] = [Self::Alone, Self::Clusters];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "compare",
            Self::Clusters => "compare clusters",
        }
    }

    /// Returns the marker lines around the table of a minor version (`3.5`).
    fn markers(self, version: &str) -> [String; 2] {
        ["begin", "end"].map(|edge| format!("<!-- {} {version}: {edge} -->", self.name()))
    }

    /// Returns whether a line ends a table of this section, for any version.
    fn is_end(self, line: &str) -> bool {
        let rest = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_prefix(self.name()));
        let version = rest.and_then(|rest| rest.strip_suffix(": end -->"));
        version.is_some_and(|version| version.trim().starts_with(|c: char| c.is_ascii_digit()))
    }
}

/// Returns the minor version in a name such as `etcd 3.5.16`.
fn minor_version(name: &str) -> String {
    let version = name.rsplit(' ').next().unwrap_or_default();
    version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// The description of the workload and of the measured figure.
    pub(super) work: String,
    pub(super) etcd: f64,
    pub(super) quorate: f64,
    pub(super) unit: &'static str,
    /// The value compared with the target: the median of the pairs' ratios, or another figure.
    pub(super) measured: f64,
    /// The maximum for `measured`, if there is a target.
    pub(super) target: Option<f64>,
    /// Whether `measured` is a ratio rather than our server's figure in the row's unit.
    pub(super) is_ratio: bool,
    /// The p50 and p99 latencies of etcd, then of our server, in milliseconds.
    pub(super) latency: Option<[[f64; 2]; 2]>,
}

impl Row {
    /// Creates a row from pairs of measurements. The first measurement of a pair is etcd's.
    pub(super) fn of_pairs(
        work: impl Into<String>,
        unit: &'static str,
        pairs: &[(f64, f64)],
        target: impl Into<Option<f64>>,
    ) -> Self {
        let all = |figure: fn(&(f64, f64)) -> f64| median(pairs.iter().map(figure).collect());
        Self {
            work: work.into(),
            etcd: all(|pair| pair.0),
            quorate: all(|pair| pair.1),
            unit,
            measured: all(|pair| pair.1 / pair.0),
            target: target.into(),
            is_ratio: true,
            latency: None,
        }
    }

    fn reached(&self) -> Option<bool> {
        self.target.map(|target| self.measured <= target)
    }
}

/// Returns the median; for an even count, the mean of the two middle numbers.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    match (numbers.len() / 2, numbers.len() % 2) {
        (0, 0) => f64::NAN,
        (middle, 0) => f64::midpoint(numbers[middle - 1], numbers[middle]),
        (middle, _) => numbers[middle],
    }
}

/// Renders the table in Markdown, with a line that describes the measurement.
pub(super) fn render(rows: &[Row], [first, second]: [&str; 2], options: &Options) -> String {
    let mut lines = vec![
        format!("| work | {first} | {second} | ratio | target | p50 ms | p99 ms |"),
        "|---|--:|--:|--:|--:|--:|--:|".to_owned(),
    ];
    for row in rows {
        let with_unit =
            |value: f64| format!("{} {}", figure(value), row.unit).trim_end().to_owned();
        let ratio = match row.reached() {
            Some(false) => format!("**{}** (missed)", measured(row)),
            _ => measured(row),
        };
        let target = match row.target {
            Some(target) if row.is_ratio => format!("≤ {target:.2}"),
            Some(target) => format!("≤ {} {}", figure(target), row.unit),
            None => String::new(),
        };
        let latency = |position: usize| {
            row.latency.map_or(String::new(), |[etcd, quorate]| {
                format!("{} → {}", figure(etcd[position]), figure(quorate[position]))
            })
        };
        lines.push(format!(
            "| {} | {} | {} | {ratio} | {target} | {} | {} |",
            row.work,
            with_unit(row.etcd),
            with_unit(row.quorate),
            latency(0),
            latency(1)
        ));
    }
    let pairs = match options.pairs {
        1 => "One alternating pair".to_owned(),
        pairs => format!("Medians of {pairs} alternating pairs"),
    };
    let quick = if options.quick { ", with a fifth of the usual number of operations" } else { "" };
    lines.push(String::new());
    lines.push(format!("{pairs}{quick}; one machine for servers and load."));
    lines.join("\n") + "\n"
}

fn measured(row: &Row) -> String {
    if row.is_ratio {
        format!("{:.2}", row.measured)
    } else {
        format!("{} {}", figure(row.measured), row.unit)
    }
}

/// Formats a number with three significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Replaces the table of this etcd version between its markers in a file. A version without markers receives a new
/// section after the sections of the other versions. A missing file is created.
pub(super) fn write(file: &Path, section: Section, etcd: &str, table: &str) -> Outcome {
    let named = |error: std::io::Error| format!("{}: {error}", file.display());
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let version = minor_version(etcd);
            let places = Section::ALL.map(|section| section.markers(&version).join("\n") + "\n");
            format!("# Performance\n\n{}", places.join("\n"))
        }
        Err(error) => return Err(named(error)),
    };
    let replaced = replace(&text, section, etcd, table).ok_or_else(|| {
        let markers = section.markers(&minor_version(etcd));
        format!("{} has no lines {}", file.display(), markers.join(" and "))
    })?;
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(named)?;
    }
    std::fs::write(file, replaced).map_err(named)
}

fn replace(text: &str, section: Section, etcd: &str, table: &str) -> Option<String> {
    let [begin, end] = section.markers(&minor_version(etcd));
    if let Some((before, rest)) = text.split_once(&begin) {
        let (_, after) = rest.split_once(&end)?;
        return Some(format!("{before}{begin}\n\n{table}\n{end}{after}"));
    }
    let last = text.lines().rfind(|line| section.is_end(line))?;
    let (before, after) = text.split_once(last)?;
    Some(format!("{before}{last}\n\n### Compared with {etcd}\n\n{begin}\n\n{table}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::parse(&[]).unwrap()
    }

    #[test]
    fn the_result_is_the_median_of_the_pairwise_ratios() {
        // The machine was busy during the second pair, but the pair's ratio is hardly affected.
        let row = Row::of_pairs("w", "us", &[(50.0, 20.0), (500.0, 210.0), (52.0, 20.0)], 0.42);
        assert_eq!((row.etcd, row.quorate), (52.0, 20.0));
        assert!((row.measured - 0.4).abs() < 1e-9);
        assert_eq!(row.reached(), Some(true));
    }

    #[test]
    fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0]) - 2.5).abs() < 1e-9);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn a_missed_target_is_marked() {
        let mut row = Row::of_pairs("put", "us", &[(50.0, 25.0)], 0.4);
        row.latency = Some([[4.0, 20.0], [2.0, 9.5]]);
        let table = render(&[row], ["etcd", "ours"], &options());
        assert!(table.contains(
            "| put | 50.0 us | 25.0 us | **0.50** (missed) | ≤ 0.40 | 4.00 → 2.00 | 20.0 → 9.50 |"
        ));
        let row = Row {
            measured: 12.0,
            is_ratio: false,
            target: Some(50.0),
            ..Row::of_pairs("longest", "ms", &[(2000.0, 12.0)], 0.0)
        };
        let table = render(&[row], ["etcd", "ours"], &options());
        assert!(table.contains("| longest | 2000 ms | 12.0 ms | 12.0 ms | ≤ 50.0 ms |"), "{table}");
    }

    #[test]
    fn each_table_replaces_the_text_between_its_markers() {
        let etcd = "etcd 3.5.16";
        let [begin, end] = Section::Clusters.markers("3.5");
        let [other_begin, other_end] = Section::Alone.markers("3.5");
        let other = format!("a\n{other_begin}\nstays\n{other_end}\n");
        let text = format!("{other}{begin}\nold\n{end}\nb\n");
        assert_eq!(
            replace(&text, Section::Clusters, etcd, "new\n").unwrap(),
            format!("{other}{begin}\n\nnew\n\n{end}\nb\n")
        );
        assert_eq!(replace("nothing", Section::Alone, etcd, "new"), None);
    }

    #[test]
    fn each_etcd_version_has_its_own_table() {
        let text = "a\n<!-- compare 3.5: begin -->\nold\n<!-- compare 3.5: end -->\nb\n\
                    <!-- compare clusters 3.5: begin -->\n<!-- compare clusters 3.5: end -->\n";
        let first = replace(text, Section::Alone, "etcd 3.7.1", "new\n").unwrap();
        let added = "<!-- compare 3.5: end -->\n\n### Compared with etcd 3.7.1\n\n\
                     <!-- compare 3.7: begin -->\n\nnew\n\n<!-- compare 3.7: end -->\nb\n";
        assert!(first.contains(added) && first.contains("old"), "{first}");
        // The next run must find the markers that the first run has written.
        let again = replace(&first, Section::Alone, "etcd 3.7.2", "newer\n").unwrap();
        assert!(again.contains("newer") && !again.contains("new\n"), "{again}");
        assert_eq!(again.matches("### Compared with").count(), 1);
    }
}
