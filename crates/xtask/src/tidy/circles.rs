//! No file imports another in a circle.
//!
//! Who reads one file of a circle has to read all of them, so files of a crate are to stand in layers.
//! A module may import from those it lies in, which are opened together anyway.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Imports, Modules};
use super::source::Source;

#[cfg(test)]
mod tests;

/// Complains about the circles inside each crate.
pub(super) fn check_circles(sources: &[Source], complaints: &mut Vec<String>) {
    for manifest in sources.iter().filter_map(|source| source.path.strip_suffix("Cargo.toml")) {
        let src = format!("{manifest}src/");
        let modules = Modules::read(&src, sources);
        let imports = modules.imports();
        let circles = circles(&imports);
        complaints.extend(circles.iter().map(|circle| describe(circle, &imports)));
    }
}

/// The sets of files of which each leads to every other.
fn circles<'a>(imports: &Imports<'a>) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        next.entry(from).or_default().insert(to);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|from| (*from, reachable(from, &next))).collect();
    let leads = |from: &str, to: &str| reach.get(from).is_some_and(|reach| reach.contains(to));
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for file in next.keys().filter(|file| leads(file, file)) {
        if !circles.iter().any(|circle| circle.contains(file)) {
            let back = reach[file].iter().filter(|other| leads(other, file));
            circles.push(back.copied().collect());
        }
    }
    circles
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

fn describe(circle: &BTreeSet<&str>, imports: &Imports<'_>) -> String {
    let mut text = format!("{} files import each other in a circle:", circle.len());
    for ((from, to), names) in imports {
        if circle.contains(from) && circle.contains(to) {
            let names: Vec<_> = names.iter().copied().collect();
            text += &format!("\n  {from} -> {to}: {}", names.join(", "));
        }
    }
    text
}
