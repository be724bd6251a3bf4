//! What a recording has seen so far, and the profile that comes of it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::binaries::Binaries;
use crate::encoding::{FunctionNames, Location, Mapping, Profile, Row, ValueType};
use crate::names;

/// Stacks that are told apart. What comes at others is counted, and told as that.
pub(crate) const STACKS_MAX: usize = 1 << 14;

/// A thread's name and the addresses of its stack.
type Stack = (String, Vec<u64>);

/// How often each stack was seen.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    stacks: HashMap<Stack, u64>,
    /// Samples of stacks for which there was no room.
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

    /// Samples of stacks for which there was no room.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The profile of CPU time that this is, with a sample each `period`.
    pub(crate) fn into_cpu_profile(
        self,
        binaries: &Binaries,
        period: Duration,
        (began, lasted): (SystemTime, Duration),
    ) -> Profile {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let cpu = ValueType { what: "cpu", unit: "nanoseconds" };
        let mut places = Places::new(binaries, self.stacks.keys().flat_map(|(_, all)| all));
        let mut rows: Vec<Row> = self
            .stacks
            .iter()
            .map(|((thread, addresses), count)| Row {
                locations: addresses.iter().map(|address| places.number(*address)).collect(),
                values: vec![*count, count * nanos],
                labels: vec![("thread", thread.clone())],
            })
            .collect();
        rows.sort_by(|one, other| other.values.cmp(&one.values));
        Profile {
            types: vec![ValueType { what: "samples", unit: "count" }, cpu],
            rows,
            mappings: places.mappings(),
            locations: places.locations,
            functions: places.functions,
            began,
            lasted,
            period: Some((cpu, nanos)),
            comments: Vec::new(),
        }
    }
}

/// The numbers of locations and functions.
struct Places<'a> {
    binaries: &'a Binaries,
    named: HashMap<u64, names::Function>,
    numbers: HashMap<u64, u64>,
    function_numbers: HashMap<String, u64>,
    locations: Vec<Location>,
    functions: Vec<FunctionNames>,
}

impl<'a> Places<'a> {
    fn new<'b>(binaries: &'a Binaries, addresses: impl Iterator<Item = &'b u64>) -> Self {
        let mut addresses: Vec<u64> = addresses.copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        let named = names::functions(binaries, &addresses);
        let (numbers, function_numbers) = (HashMap::new(), HashMap::new());
        let (locations, functions) = (Vec::new(), Vec::new());
        Self { binaries, named, numbers, function_numbers, locations, functions }
    }

    /// The number of the location at an address.
    fn number(&mut self, address: u64) -> u64 {
        if let Some(number) = self.numbers.get(&address) {
            return *number;
        }
        let function = self.named.get(&address).map_or(0, |function| {
            let next = self.functions.len() as u64 + 1;
            *self.function_numbers.entry(function.symbol.clone()).or_insert_with(|| {
                let names::Function { name, symbol } = function.clone();
                self.functions.push(FunctionNames { name, symbol });
                next
            })
        });
        let mapping = self.binaries.at(address).map_or(0, |index| index as u64 + 1);
        self.locations.push(Location { mapping, address, function });
        let number = self.locations.len() as u64;
        self.numbers.insert(address, number);
        number
    }

    fn mappings(&self) -> Vec<Mapping> {
        let mappings = self.binaries.all.iter().enumerate().map(|(index, binary)| {
            let number = index as u64 + 1;
            let mut of_it = self.locations.iter().filter(|location| location.mapping == number);
            Mapping {
                start: binary.mapping.start,
                end: binary.mapping.end,
                file_offset: binary.mapping.file_offset,
                file: binary.mapping.path.clone(),
                build_id: binary.build_id.clone(),
                // With one that is named readers look for none themselves.
                has_functions: of_it.any(|location| location.function > 0),
            }
        });
        mappings.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_beyond_their_number_are_left_out_and_counted() {
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
