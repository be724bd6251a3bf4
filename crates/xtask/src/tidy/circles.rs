//! No file imports another in a circle, and no folder of modules another.
//!
//! Who reads one file of a circle has to read all of them, so files of a crate are to stand in layers.
//! A module may import from those it lies in, which are opened together anyway. So what lies beside it is held to the
//! same as wholes: whatever is in one may not need something in the other that, from wherever in it, needs the one.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Imports, Modules, module_of};
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
        // One that files form is told already.
        if circles.is_empty() {
            complaints.extend(circles_of_folders(&src, &imports));
        }
    }
}

/// Complaints about modules that lie beside each other and form a circle, each with all that is inside it.
fn circles_of_folders(src: &str, imports: &Imports<'_>) -> Vec<String> {
    let mut wholes: BTreeMap<(String, String), Vec<(&str, &str)>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        if let Some(pair) = apart(src, from, to) {
            wholes.entry(pair).or_default().push((from, to));
        }
    }
    let edges = wholes.keys().map(|(from, to)| ((&**from, &**to), BTreeSet::new())).collect();
    let circles = circles(&edges);
    let told = circles.iter().map(|circle| {
        let names: Vec<_> = circle.iter().copied().collect();
        let mut text = format!("modules import each other in a circle: {}", names.join(", "));
        for ((from, to), files) in &wholes {
            if circle.contains(&**from) && circle.contains(&**to) {
                for (from, to) in files {
                    text += &format!("\n  {from} -> {to}");
                }
            }
        }
        text
    });
    told.collect()
}

/// The modules, each in the other's folder or at the crate's root, in which two files lie. `None` if one of the files is
/// a module that the other lies in.
fn apart(src: &str, from: &str, to: &str) -> Option<(String, String)> {
    let [from, to] = [from, to].map(|path| path.strip_prefix(src).and_then(module_of));
    let (from, to) = (from?, to?);
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let whole = |module: &[&str]| (module.len() > common).then(|| module[..=common].join("::"));
    Some((whole(&from)?, whole(&to)?))
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
