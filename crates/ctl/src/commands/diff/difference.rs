//! Formats a difference between two records, and the totals, as text and as JSON.

use quorate_api::record::{Fields, KeyValue};

use crate::gotext::quote;
use crate::output::json_bytes;

/// A key whose records differ.
#[derive(Clone, Copy, Debug)]
pub(super) enum Difference<'a> {
    OnlyAtSource(&'a KeyValue),
    OnlyAtDestination(&'a KeyValue),
    Changed(&'a KeyValue, &'a KeyValue),
}

impl<'a> Difference<'a> {
    /// Returns the difference between two records of one key.
    pub(super) fn between(
        source: &'a KeyValue,
        destination: &'a KeyValue,
        metadata: bool,
    ) -> Option<Self> {
        let differs = source.value() != destination.value()
            || metadata && numbers(&source.fields()) != numbers(&destination.fields());
        differs.then_some(Self::Changed(source, destination))
    }

    /// Formats the difference as one line.
    pub(super) fn text(&self, is_json: bool) -> String {
        let key = |record: &KeyValue| {
            if is_json { json_bytes(record.key()) } else { quote(record.key()) }
        };
        match self {
            Self::OnlyAtSource(record) if is_json => {
                format!("{{\"key\":{},\"source\":{}}}\n", key(record), object(record))
            }
            Self::OnlyAtDestination(record) if is_json => {
                format!("{{\"key\":{},\"destination\":{}}}\n", key(record), object(record))
            }
            Self::Changed(source, destination) if is_json => format!(
                "{{\"key\":{},\"source\":{},\"destination\":{}}}\n",
                key(source),
                object(source),
                object(destination)
            ),
            Self::OnlyAtSource(record) => format!("- {}\n", key(record)),
            Self::OnlyAtDestination(record) => format!("+ {}\n", key(record)),
            Self::Changed(source, destination) => {
                format!("~ {}  {}\n", key(source), changes(source, destination))
            }
        }
    }
}

/// Returns the numeric fields of a record with their names.
fn numbers(fields: &Fields<'_>) -> [(&'static str, i64); 4] {
    [
        ("create_revision", fields.create_revision),
        ("mod_revision", fields.mod_revision),
        ("version", fields.version),
        ("lease", fields.lease),
    ]
}

/// Formats a record without its key. Shows only the length of the value, because the value may be large or secret.
fn object(record: &KeyValue) -> String {
    let fields = record.fields();
    let numbers = numbers(&fields).map(|(name, number)| format!("\"{name}\":{number},")).concat();
    format!("{{{numbers}\"value_bytes\":{}}}", fields.value.len())
}

/// Lists every changed field, because each may help to find the cause.
fn changes(source: &KeyValue, destination: &KeyValue) -> String {
    let (source, destination) = (source.fields(), destination.fields());
    let mut changes = Vec::new();
    if source.value != destination.value {
        let (left, right) = (source.value.len(), destination.value.len());
        changes.push(format!("value ({left} bytes, {right} bytes)"));
    }
    for ((name, left), (_, right)) in numbers(&source).into_iter().zip(numbers(&destination)) {
        if left != right {
            changes.push(match name {
                "lease" => format!("{name} ({left:016x}, {right:016x})"),
                _ => format!("{name} ({left}, {right})"),
            });
        }
    }
    changes.join(", ")
}

/// Number of keys of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    only_at_source: u64,
    only_at_destination: u64,
    changed: u64,
    same: u64,
}

impl Totals {
    /// Counts a key and its difference, if there is one.
    pub(super) fn count(&mut self, difference: Option<&Difference<'_>>) {
        *match difference {
            Some(Difference::OnlyAtSource(_)) => &mut self.only_at_source,
            Some(Difference::OnlyAtDestination(_)) => &mut self.only_at_destination,
            Some(Difference::Changed(..)) => &mut self.changed,
            None => &mut self.same,
        } += 1;
    }

    pub(super) fn differences(&self) -> u64 {
        self.only_at_source + self.only_at_destination + self.changed
    }

    pub(super) fn keys(&self) -> u64 {
        self.differences() + self.same
    }

    /// Formats the last line, with the totals and the revisions of both sides.
    pub(super) fn text(&self, (source, destination): (i64, i64), is_json: bool) -> String {
        let Self { only_at_source, only_at_destination, changed, same } = self;
        if is_json {
            return format!(
                "{{\"source_revision\":{source},\"destination_revision\":{destination},\
                 \"only_at_source\":{only_at_source},\"only_at_destination\":{only_at_destination},\
                 \"changed\":{changed},\"same\":{same}}}\n"
            );
        }
        format!(
            "{only_at_source} keys only in the source (revision {source}), {only_at_destination} only in the \
             destination (revision {destination}), {changed} differ, {same} are the same\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &str, mod_revision: i64) -> KeyValue {
        KeyValue::new(&Fields {
            key: key.as_bytes(),
            value: value.as_bytes(),
            mod_revision,
            create_revision: 2,
            version: 1,
            lease: 0,
        })
    }

    #[test]
    fn a_difference_is_printed_on_one_line() {
        let (left, right) = (record("a\n", "v", 2), record("a\n", "vw", 3));
        let changed = Difference::between(&left, &right, false).unwrap();
        assert_eq!(
            changed.text(false),
            "~ \"a\\n\"  value (1 bytes, 2 bytes), mod_revision (2, 3)\n"
        );
        assert_eq!(Difference::OnlyAtSource(&left).text(false), "- \"a\\n\"\n");
        assert_eq!(Difference::OnlyAtDestination(&left).text(false), "+ \"a\\n\"\n");
        let line: serde_json::Value = serde_json::from_str(&changed.text(true)).unwrap();
        assert_eq!(line["key"], "YQo=");
        assert_eq!(
            (&line["source"]["value_bytes"], &line["destination"]["mod_revision"]),
            (&1.into(), &3.into())
        );
    }

    #[test]
    fn revisions_and_leases_of_records_are_compared_only_on_request() {
        let (left, right) = (record("a", "v", 2), record("a", "v", 3));
        assert!(Difference::between(&left, &right, false).is_none());
        assert!(Difference::between(&left, &right, true).is_some());
        assert!(Difference::between(&left, &left, true).is_none());
    }

    #[test]
    fn totals_count_compared_keys_and_differences() {
        let (left, right) = (record("a", "v", 2), record("a", "w", 3));
        let mut totals = Totals::default();
        for difference in [
            Some(Difference::OnlyAtSource(&left)),
            Difference::between(&left, &right, false),
            Difference::between(&left, &left, false),
        ] {
            totals.count(difference.as_ref());
        }
        assert_eq!((totals.keys(), totals.differences()), (3, 2));
        let line: serde_json::Value = serde_json::from_str(&totals.text((7, 9), true)).unwrap();
        assert_eq!((&line["destination_revision"], &line["same"]), (&9.into(), &1.into()));
    }
}
