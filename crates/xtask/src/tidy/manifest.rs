//! Forbidden dependencies between our crates, and unused dependencies, in the manifests.
//!
//! A dependency is used if a path begins with its name: `bytes::Bytes`, `use bytes as`. Production code must use the
//! entries of `[dependencies]`; a dependency used only by tests must be a dev-dependency. Each entry of
//! `[workspace.dependencies]` must be used by at least one manifest.

use super::source::{Source, folder, is_test_file, production, words};

#[cfg(test)]
mod tests;

/// Dependencies that are needed although no source names them: package, dependency, and reason.
const UNNAMED: &[(&str, &str, &str)] =
    &[("quorate-api", "tonic-prost", "used by the generated stubs, which tidy does not read")];

/// The kind of a dependency, which determines the code that may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Production,
    Tests,
    Build,
    /// `[workspace.dependencies]`, from which the manifests take the versions.
    Workspace,
}

/// A declared dependency, and its line in the manifest.
#[derive(Debug)]
struct Dependency<'a> {
    line: usize,
    kind: Kind,
    name: &'a str,
}

/// Reports dependencies between our crates that are not in `arrows`.
pub(super) fn check_arrows(
    source: &Source,
    arrows: &[(&str, &[&str])],
    complaints: &mut Vec<String>,
) {
    let Some(package) = package(&source.text) else { return };
    let Some((_, allowed)) = arrows.iter().find(|(name, _)| *name == package) else {
        complaints.push(format!("{}: package {package} has no entry in ARROWS", source.path));
        return;
    };
    for Dependency { line, name, .. } in dependencies(&source.text) {
        let ours = arrows.iter().any(|(package, _)| *package == name);
        if ours && !allowed.contains(&name) {
            let path = &source.path;
            complaints.push(format!("{path}:{line}: {package} may not depend on {name}"));
        }
    }
}

/// Reports unused dependencies.
pub(super) fn check_used(sources: &[Source], complaints: &mut Vec<String>) {
    let manifests = || sources.iter().filter(|source| source.path.ends_with("Cargo.toml"));
    for manifest in manifests() {
        let package = package(&manifest.text).unwrap_or_default();
        for Dependency { line, kind, name } in dependencies(&manifest.text) {
            let unnamed =
                UNNAMED.iter().any(|(owner, known, _)| (*owner, *known) == (package, name));
            let used = match kind {
                Kind::Workspace => manifests().any(|other| declares(other, name)),
                Kind::Production | Kind::Tests | Kind::Build => {
                    unnamed || is_used(sources, folder(&manifest.path), kind, name)
                }
            };
            if !used {
                let place = &manifest.path;
                complaints.push(format!("{place}:{line}: {name} is not used"));
            }
        }
    }
}

fn declares(manifest: &Source, name: &str) -> bool {
    let mut declared = dependencies(&manifest.text).into_iter();
    declared.any(|dependency| dependency.kind != Kind::Workspace && dependency.name == name)
}

fn is_used(sources: &[Source], folder: &str, kind: Kind, dependency: &str) -> bool {
    let name = dependency.replace('-', "_");
    sources
        .iter()
        .filter(|source| source.path.ends_with(".rs"))
        .filter_map(|source| Some((source.path.strip_prefix(folder)?, source)))
        .filter(|(path, _)| match kind {
            Kind::Production => {
                let is_built = path.starts_with("src/") || path.starts_with("fuzz_targets/");
                is_built && !is_test_file(path)
            }
            Kind::Tests => true,
            Kind::Build => path.starts_with("build"),
            Kind::Workspace => false,
        })
        .any(|(_, source)| match kind {
            Kind::Tests => source.text.lines().any(|line| begins_a_path(line, &name)),
            Kind::Production | Kind::Build | Kind::Workspace => {
                production(&source.text).any(|(_, line)| begins_a_path(line, &name))
            }
        })
}

/// Returns whether a path in the line begins with the name: `name::..`, `use name;`, `use name as`.
fn begins_a_path(line: &str, name: &str) -> bool {
    words(line).any(|(at, word)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        word == name
            && !before.ends_with("::")
            && (after.starts_with("::") || before.trim_start().ends_with("use "))
    })
}

fn package(manifest: &str) -> Option<&str> {
    let (_, section) = manifest.split_once("[package]")?;
    let line = section.lines().find(|line| line.starts_with("name"))?;
    line.split('"').nth(1)
}

/// Returns all dependencies of a manifest.
fn dependencies(manifest: &str) -> Vec<Dependency<'_>> {
    let mut found = Vec::new();
    let mut inside = None;
    for (number, text) in (1..).zip(manifest.lines()) {
        let text = text.trim();
        if let Some(section) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = section_kind(section);
            // `[dependencies.name]`
            if let Some((section, name)) = section.rsplit_once('.')
                && let Some(kind) = section_kind(section)
            {
                found.push(Dependency { line: number, kind, name });
            }
        } else if let Some(kind) = inside
            && !text.starts_with('#')
        {
            let name = text.split(['=', '.', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                found.push(Dependency { line: number, kind, name });
            }
        }
    }
    found
}

fn section_kind(section: &str) -> Option<Kind> {
    // `[target.'cfg(unix)'.dependencies]`
    let (before, name) = section.rsplit_once('.').unwrap_or(("", section));
    match (before, name) {
        ("workspace", "dependencies") => Some(Kind::Workspace),
        (_, "dependencies") => Some(Kind::Production),
        (_, "dev-dependencies") => Some(Kind::Tests),
        (_, "build-dependencies") => Some(Kind::Build),
        _ => None,
    }
}
