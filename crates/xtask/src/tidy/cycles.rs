//! Import cycles between the files of a crate, and between its modules.
//!
//! To understand one file in a cycle, a reader has to read all files in it. A module may import from its parents, so
//! such imports do not count, and cycles through a parent are not found between files. Therefore sibling modules are
//! also compared as a whole, each with all of its submodules: if a file in one module imports from its sibling, no file
//! in the sibling may import from that module.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Imports, Modules, module_of};
use super::source::Source;

#[cfg(test)]
mod tests;

/// Reports the import cycles inside each crate.
pub(super) fn check_cycles(sources: &[Source], complaints: &mut Vec<String>) {
    for manifest in sources.iter().filter_map(|source| source.path.strip_suffix("Cargo.toml")) {
        let src = format!("{manifest}src/");
        let modules = Modules::read(&src, sources);
        let imports = modules.imports();
        let cycles = cycles(&imports);
        complaints.extend(cycles.iter().map(|cycle| describe(cycle, &imports)));
        // A cycle of files is often a cycle of modules as well, and must be reported only once.
        if cycles.is_empty() {
            complaints.extend(cycles_of_modules(&src, &imports));
        }
    }
}

/// Returns the complaints about cycles of sibling modules, each considered with its submodules.
fn cycles_of_modules(src: &str, imports: &Imports<'_>) -> Vec<String> {
    let mut siblings: BTreeMap<(String, String), Vec<(&str, &str)>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        if let Some(pair) = siblings_of(src, from, to) {
            siblings.entry(pair).or_default().push((from, to));
        }
    }
    let edges = siblings.keys().map(|(from, to)| ((&**from, &**to), BTreeSet::new())).collect();
    let cycles = cycles(&edges);
    let complaints = cycles.iter().map(|cycle| {
        let names: Vec<_> = cycle.iter().copied().collect();
        let mut text = format!("import cycle of modules: {}", names.join(", "));
        for ((from, to), files) in &siblings {
            if cycle.contains(&**from) && cycle.contains(&**to) {
                for (from, to) in files {
                    text += &format!("\n  {from} -> {to}");
                }
            }
        }
        text
    });
    complaints.collect()
}

/// Returns the two sibling modules that contain the two files, or `None` if one file is a parent of the other.
fn siblings_of(src: &str, from: &str, to: &str) -> Option<(String, String)> {
    let [from, to] = [from, to].map(|path| path.strip_prefix(src).and_then(module_of));
    let (from, to) = (from?, to?);
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let sibling = |module: &[&str]| (module.len() > common).then(|| module[..=common].join("::"));
    Some((sibling(&from)?, sibling(&to)?))
}

/// Returns the cycles: sets of files in which each file imports every other, directly or indirectly.
fn cycles<'a>(imports: &Imports<'a>) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        next.entry(from).or_default().insert(to);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|from| (*from, reachable(from, &next))).collect();
    let leads = |from: &str, to: &str| reach.get(from).is_some_and(|reach| reach.contains(to));
    let mut cycles: Vec<BTreeSet<&str>> = Vec::new();
    for file in next.keys().filter(|file| leads(file, file)) {
        if !cycles.iter().any(|cycle| cycle.contains(file)) {
            let back = reach[file].iter().filter(|other| leads(other, file));
            cycles.push(back.copied().collect());
        }
    }
    cycles
}

fn reachable<'a>(from: &'a str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        let targets = next.get(file).into_iter().flatten();
        open.extend(targets.filter(|target| found.insert(**target)));
    }
    found
}

fn describe(cycle: &BTreeSet<&str>, imports: &Imports<'_>) -> String {
    let mut text = format!("import cycle of {} files:", cycle.len());
    for ((from, to), names) in imports {
        if cycle.contains(from) && cycle.contains(to) {
            let names: Vec<_> = names.iter().copied().collect();
            text += &format!("\n  {from} -> {to}: {}", names.join(", "));
        }
    }
    text
}
