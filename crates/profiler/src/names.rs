//! Function names, from symbol tables.
//!
//! A symbol table is read once, and only the requested names are kept, because a binary has about a hundred thousand
//! symbols.

use std::collections::HashMap;

use object::{Object as _, ObjectSymbol as _, SymbolKind};

use crate::binaries::{Binaries, Binary, BinaryFile, with_file};

/// The names of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The demangled name.
    pub(crate) name: String,
    /// The linker symbol.
    pub(crate) symbol: String,
}

/// Returns the functions that contain these addresses. Addresses without a symbol are omitted.
pub(crate) fn functions(binaries: &Binaries, addresses: &[u64]) -> HashMap<u64, Function> {
    let mut by_binary: HashMap<usize, Vec<u64>> = HashMap::new();
    for address in addresses {
        if let Some(index) = binaries.at(*address) {
            by_binary.entry(index).or_default().push(*address);
        }
    }
    let found = by_binary
        .into_iter()
        .filter_map(|(index, wanted)| functions_of(&binaries.all[index], wanted));
    found.flatten().collect()
}

/// Returns the names of the functions at addresses in this process, one entry for each address.
#[must_use]
pub fn functions_at(addresses: &[u64]) -> Vec<Option<String>> {
    let mut found = functions(&Binaries::of_process(), addresses);
    let name = |address: &u64| found.remove(address).map(|function| function.name);
    addresses.iter().map(name).collect()
}

fn functions_of(binary: &Binary, mut wanted: Vec<u64>) -> Option<HashMap<u64, Function>> {
    wanted.sort_unstable();
    wanted.dedup();
    with_file(&binary.mapping, |file| Some(look_up(binary, file, &wanted)))
}

fn look_up(binary: &Binary, file: &BinaryFile<'_>, wanted: &[u64]) -> HashMap<u64, Function> {
    let mut found = HashMap::new();
    // A stripped binary still has dynamic symbols, to which other binaries link.
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() != SymbolKind::Text || symbol.size() == 0 {
            continue;
        }
        let start = binary.in_memory(symbol.address());
        let first = wanted.partition_point(|address| *address < start);
        let inside = wanted[first..].iter().take_while(|it| **it - start < symbol.size());
        for address in inside {
            if let Ok(name) = symbol.name() {
                found.entry(*address).or_insert_with(|| Function::new(name));
            }
        }
    }
    found
}

impl Function {
    fn new(symbol: &str) -> Self {
        // The alternate format omits the hash at the end of the symbol.
        Self { name: format!("{:#}", rustc_demangle::demangle(symbol)), symbol: symbol.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn somewhere() -> u64 {
        std::hint::black_box(somewhere as fn() -> u64) as usize as u64
    }

    #[test]
    fn functions_are_named_by_their_symbols() {
        let names = functions_at(&[somewhere(), 1]);
        let name = names[0].as_deref().unwrap();
        assert!(name.ends_with("names::tests::somewhere"), "{name}");
        assert_eq!(names[1], None);
    }
}
