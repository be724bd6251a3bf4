//! The samples of a CPU recording, and the profile computed from them.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::binaries::Binaries;
use crate::encoding::{Profile, Row, ValueType};
use crate::location_table::LocationTable;

/// The maximum number of distinct stacks. Samples of further stacks are only counted.
pub(crate) const STACKS_MAX: usize = 1 << 14;

/// A thread's name and the addresses of its stack.
type Stack = (String, Vec<u64>);

/// The number of samples for each stack.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    stacks: HashMap<Stack, u64>,
    /// The number of samples that were dropped because the limit on stacks was reached.
    left_out: u64,
}

impl Recording {
    /// Counts a sample.
    pub(crate) fn count(&mut self, thread: &str, addresses: Vec<u64>) {
        let stack = (thread.to_owned(), addresses);
        if let Some(count) = self.stacks.get_mut(&stack) {
            *count += 1;
        } else if self.stacks.len() < STACKS_MAX {
            self.stacks.insert(stack, 1);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the number of samples that were dropped because the limit on stacks was reached.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the CPU profile. Each sample counts as one `period` of CPU time.
    pub(crate) fn into_cpu_profile(
        self,
        binaries: &Binaries,
        period: Duration,
        (began, lasted): (SystemTime, Duration),
    ) -> Profile {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let cpu = ValueType { what: "cpu", unit: "nanoseconds" };
        let mut table = LocationTable::new(binaries, self.stacks.keys().flat_map(|(_, all)| all));
        let mut rows: Vec<Row> = self
            .stacks
            .iter()
            .map(|((thread, addresses), count)| Row {
                locations: addresses.iter().map(|address| table.number(*address)).collect(),
                values: vec![*count, count * nanos],
                labels: vec![("thread", thread.clone())],
            })
            .collect();
        rows.sort_by(|one, other| other.values.cmp(&one.values));
        Profile {
            types: vec![ValueType { what: "samples", unit: "count" }, cpu],
            rows,
            mappings: table.mappings(),
            locations: table.locations,
            functions: table.functions,
            began,
            lasted,
            period: Some((cpu, nanos)),
            comments: Vec::new(),
            shown_first: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_stacks_are_dropped_and_counted() {
        let mut recording = Recording::default();
        for number in 0..STACKS_MAX as u64 {
            recording.count("a", vec![number]);
        }
        recording.count("a", vec![u64::MAX]);
        recording.count("a", vec![7]);
        assert_eq!(recording.left_out(), 1);
        assert_eq!(recording.stacks[&("a".to_owned(), vec![7])], 2);
    }
}
