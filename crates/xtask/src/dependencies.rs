//! The dependencies of the program, read from `cargo metadata` and the lock file. The supply chain checks and the bill
//! of materials use them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::workspace::{cargo, output, root};

/// The platform of releases.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// A dependency of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The licence in the package's manifest, if any.
    pub(crate) licence: Option<String>,
    /// The source of the package; `None` for packages of this repository.
    pub(crate) source: Option<String>,
    /// The SHA-256 of the download, in hexadecimal.
    pub(crate) checksum: Option<String>,
    /// The identifiers of the package's own dependencies.
    pub(crate) needs: BTreeSet<String>,
}

/// Packages by their identifiers.
pub(crate) type Dependencies = BTreeMap<String, Dependency>;

/// Returns all dependencies of the workspace on the release platform, including test dependencies.
pub(crate) fn all() -> Result<Dependencies, String> {
    let args = ["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM];
    let metadata = output(&mut cargo(&args))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let lock = root().join("Cargo.lock");
    let lock =
        std::fs::read_to_string(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    read(&metadata, &checksums(&lock)).ok_or_else(|| "cargo metadata: unexpected output".to_owned())
}

/// Returns the dependencies of one program of the workspace, except dependencies used only by tests and build scripts.
pub(crate) fn of_program<'a>(
    all: &'a Dependencies,
    name: &str,
) -> BTreeMap<&'a str, &'a Dependency> {
    let root = all.iter().find(|(_, package)| package.name == name && package.source.is_none());
    let mut found = BTreeMap::new();
    let mut left: Vec<&str> = root.map(|(id, _)| id.as_str()).into_iter().collect();
    while let Some(id) = left.pop() {
        let Some(package) = all.get(id) else { continue };
        if found.insert(id, package).is_none() {
            left.extend(package.needs.iter().map(String::as_str));
        }
    }
    found
}

/// Returns the checksums in a lock file, by package name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |entry: &str, field: &str| {
        let line = entry.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(" = \""));
        line.and_then(|line| line.strip_suffix('"')).map(str::to_owned)
    };
    let entries = lock.split("[[package]]").skip(1);
    let named = entries.filter_map(|entry| {
        let name = (value(entry, "name")?, value(entry, "version")?);
        Some((name, value(entry, "checksum")?))
    });
    named.collect()
}

fn read(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Option<Dependencies> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut found = Dependencies::new();
    for package in metadata["packages"].as_array()? {
        let (name, version) = (text(&package["name"])?, text(&package["version"])?);
        let checksum = checksums.get(&(name.clone(), version.clone())).cloned();
        let dependency = Dependency {
            name,
            version,
            licence: text(&package["license"]),
            source: text(&package["source"]),
            checksum,
            needs: BTreeSet::new(),
        };
        found.insert(text(&package["id"])?, dependency);
    }
    for node in metadata["resolve"]["nodes"].as_array()? {
        let needs = node["deps"].as_array()?.iter().filter(|dependency| is_shipped(dependency));
        let needs = needs.filter_map(|dependency| text(&dependency["pkg"])).collect();
        found.get_mut(node["id"].as_str()?)?.needs = needs;
    }
    Some(found)
}

/// Returns whether a dependency is linked into the program. Dependencies of build scripts and tests are not.
fn is_shipped(dependency: &Value) -> bool {
    let kinds = dependency["dep_kinds"].as_array();
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_linked_packages_are_listed_as_dependencies_of_a_program() {
        let metadata = json!({
            "packages": [
                {"id": "p", "name": "program", "version": "1.0.0", "license": "MIT", "source": null},
                {"id": "a", "name": "a", "version": "2.0.0", "license": "MIT", "source": "registry"},
                {"id": "b", "name": "b", "version": "3.0.0", "license": null, "source": "registry"},
                {"id": "t", "name": "t", "version": "4.0.0", "license": "MIT", "source": "registry"},
            ],
            "resolve": {"nodes": [
                {"id": "p", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": null}, {"kind": "dev"}]},
                    {"pkg": "t", "dep_kinds": [{"kind": "dev"}]},
                ]},
                {"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": null}]}]},
                {"id": "b", "deps": [{"pkg": "t", "dep_kinds": [{"kind": "build"}]}]},
                {"id": "t", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"2.0.0\"\nchecksum = \"c0ffee\"\n";
        let all = read(&metadata, &checksums(lock)).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!(all["a"].checksum.as_deref(), Some("c0ffee"));
        let program = of_program(&all, "program");
        assert_eq!(program.keys().copied().collect::<Vec<_>>(), ["a", "b", "p"]);
        assert!(of_program(&all, "nothing").is_empty());
    }
}
