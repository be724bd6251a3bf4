//! The table of locations and functions in one profile.

use std::collections::HashMap;

use crate::binaries::Binaries;
use crate::encoding::{FunctionNames, Location, Mapping};
use crate::names;

/// Assigns ids to locations and functions.
pub(crate) struct LocationTable<'a> {
    binaries: &'a Binaries,
    named: HashMap<u64, names::Function>,
    numbers: HashMap<u64, u64>,
    function_numbers: HashMap<String, u64>,
    pub(crate) locations: Vec<Location>,
    pub(crate) functions: Vec<FunctionNames>,
}

impl<'a> LocationTable<'a> {
    /// Creates a table for a profile that uses only these addresses.
    pub(crate) fn new<'b>(
        binaries: &'a Binaries,
        addresses: impl Iterator<Item = &'b u64>,
    ) -> Self {
        let mut addresses: Vec<u64> = addresses.copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        let named = names::functions(binaries, &addresses);
        let (numbers, function_numbers) = (HashMap::new(), HashMap::new());
        let (locations, functions) = (Vec::new(), Vec::new());
        Self { binaries, named, numbers, function_numbers, locations, functions }
    }

    /// Returns the demangled name of the function at an address.
    pub(crate) fn name(&self, address: u64) -> Option<&str> {
        self.named.get(&address).map(|function| function.name.as_str())
    }

    /// Returns the id of the location at an address. Adds the location if it is new.
    pub(crate) fn number(&mut self, address: u64) -> u64 {
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

    /// Returns the mappings of all binaries.
    pub(crate) fn mappings(&self) -> Vec<Mapping> {
        let mappings = self.binaries.all.iter().enumerate().map(|(index, binary)| {
            let number = index as u64 + 1;
            let mut of_it = self.locations.iter().filter(|location| location.mapping == number);
            Mapping {
                start: binary.mapping.start,
                end: binary.mapping.end,
                file_offset: binary.mapping.file_offset,
                file: binary.mapping.path.clone(),
                build_id: binary.build_id.clone(),
                // Readers look up symbols themselves unless this flag is set.
                has_functions: of_it.any(|location| location.function > 0),
            }
        });
        mappings.collect()
    }
}
