//! Formats the output of a command, which consists of rows and columns.
//!
//! `etcdutl` names the same value differently in each format (`total keys`, `totalKey`, `Keys`), so a column has a name
//! for each format. Formats for people may round a value, and formats for programs print it exactly.

use quorate_cli::gotext::{quote, size};
use quorate_cli::table;
use serde_json::Value;

use crate::failure::Failure;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Simple,
    Json,
    Fields,
    Table,
    Protobuf,
}

/// The names of a column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Name in the heading of a table.
    pub(crate) title: &'static str,
    /// Name in JSON.
    pub(crate) json: &'static str,
    /// Name in the fields format.
    pub(crate) field: &'static str,
}

impl Column {
    pub(crate) const fn new(title: &'static str, json: &'static str, field: &'static str) -> Self {
        Self { title, json, field }
    }
}

/// A value in the output.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    Text(String),
    /// A version, which etcdutl prints without quotation marks in the fields format.
    Version(String),
    Number(i64),
    Unsigned(u64),
    /// A hash, shown in hexadecimal in formats for people.
    Hash(u32),
    /// A number of bytes, shown with a unit in formats for people.
    Bytes(u64),
    /// A value that could not be determined.
    Unknown,
}

impl Cell {
    fn shown(&self) -> String {
        match self {
            Self::Text(text) | Self::Version(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Unsigned(number) => number.to_string(),
            Self::Hash(hash) => format!("{hash:x}"),
            Self::Bytes(bytes) => size(*bytes),
            Self::Unknown => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) | Self::Version(text) => text.as_str().into(),
            Self::Number(number) => (*number).into(),
            Self::Unsigned(number) | Self::Bytes(number) => (*number).into(),
            Self::Hash(hash) => (*hash).into(),
            Self::Unknown => Value::Null,
        }
    }

    fn field(&self) -> String {
        match self {
            Self::Text(text) => quote(text.as_bytes()),
            Self::Version(version) => version.clone(),
            other => other.json().to_string(),
        }
    }
}

/// The output of a command.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    columns: &'static [Column],
    rows: Vec<Vec<Cell>>,
    /// Whether this is a list of rows, rather than a single object.
    is_list: bool,
    /// Whether this is a single row of a list whose rows are printed one at a time.
    is_row: bool,
}

impl Report {
    /// Creates a report on a single object.
    pub(crate) fn one(columns: &'static [Column], row: Vec<Cell>) -> Self {
        assert_eq!(
            columns.len(),
            row.len(),
            "a row has one value for each column: otherwise values would appear under the wrong headings"
        );
        Self { columns, rows: vec![row], is_list: false, is_row: false }
    }

    /// Creates a report for one row of a list whose rows are printed one at a time. In JSON, each row is on its own
    /// line.
    pub(crate) fn row(columns: &'static [Column], row: Vec<Cell>) -> Self {
        Self { is_row: true, ..Self::one(columns, row) }
    }

    /// Creates a report on a list of objects.
    pub(crate) fn list(columns: &'static [Column], rows: Vec<Vec<Cell>>) -> Self {
        assert!(
            rows.iter().all(|row| row.len() == columns.len()),
            "a row has one value for each column: otherwise values would appear under the wrong headings"
        );
        Self { columns, rows, is_list: true, is_row: false }
    }
}

impl Format {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "simple" => Self::Simple,
            "json" => Self::Json,
            "fields" => Self::Fields,
            "table" => Self::Table,
            "protobuf" => Self::Protobuf,
            _ => return None,
        })
    }

    /// Formats the report.
    pub(crate) fn render(self, report: &Report) -> Result<String, Failure> {
        let mut out = String::new();
        match self {
            Self::Simple => {
                for row in &report.rows {
                    let cells: Vec<String> = row.iter().map(Cell::shown).collect();
                    out.push_str(&cells.join(", "));
                    out.push('\n');
                }
            }
            Self::Json => {
                let objects = report.rows.iter().map(|row| object(report.columns, row));
                let mut objects: Vec<String> = objects.collect();
                out = match (report.is_list, objects.pop()) {
                    (false, Some(only)) => only,
                    (_, last) => {
                        format!("[{}]", Vec::from_iter(objects.into_iter().chain(last)).join(","))
                    }
                };
                out.push('\n');
            }
            Self::Fields => {
                for row in &report.rows {
                    for (column, cell) in report.columns.iter().zip(row) {
                        out.push_str(&format!("\"{}\" : {}\n", column.field, cell.field()));
                    }
                    if report.is_list || report.is_row {
                        out.push('\n');
                    }
                }
            }
            Self::Table => {
                let titles: Vec<&str> = report.columns.iter().map(|column| column.title).collect();
                let rows: Vec<Vec<String>> =
                    report.rows.iter().map(|row| row.iter().map(Cell::shown).collect()).collect();
                out = table::draw(&titles, &rows);
            }
            Self::Protobuf => return Err(Failure::FormatOfThis("protobuf")),
        }
        Ok(out)
    }
}

/// Formats a row as a JSON object, in column order.
fn object(columns: &[Column], row: &[Cell]) -> String {
    let member =
        |(column, cell): (&Column, &Cell)| format!("{}:{}", Value::from(column.json), cell.json());
    let members: Vec<String> = columns.iter().zip(row).map(member).collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] =
        &[Column::new("hash", "hash", "Hash"), Column::new("total size", "totalSize", "Size")];

    fn check(report: &Report, format: Format, expected: &str) {
        assert_eq!(format.render(report).unwrap(), expected);
    }

    #[test]
    fn a_report_is_printed_in_every_format() {
        let row = vec![Cell::Hash(0x8651_e862), Cell::Bytes(49_152)];
        let report = Report::one(COLUMNS, row);
        check(&report, Format::Simple, "8651e862, 49 kB\n");
        check(&report, Format::Json, "{\"hash\":2253514850,\"totalSize\":49152}\n");
        check(&report, Format::Fields, "\"Hash\" : 2253514850\n\"Size\" : 49152\n");
        let table = Format::Table.render(&report).unwrap();
        assert!(table.contains("│ 8651e862 │      49 kB │"), "{table}");
        let refused = Format::Protobuf.render(&report).unwrap_err();
        assert_eq!(
            (refused.code(), refused.to_string().as_str()),
            (4, "protobuf not supported as output format")
        );
    }
}
