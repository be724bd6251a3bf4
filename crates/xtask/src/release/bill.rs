//! A bill of materials: every package in the program, with its version, licence and checksum, in the format CycloneDX
//! 1.5 (<https://cyclonedx.org/docs/1.5/json/>). The bill contains no timestamp and no serial number, so that the same
//! commit yields the same bytes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::dependencies::Dependency;

/// Builds the bill of materials of a program with these packages, which include its own crates.
pub(super) fn of_materials(
    packages: &BTreeMap<&str, &Dependency>,
    name: &str,
    version: &str,
) -> String {
    let is_own = |package: &Dependency| package.source.is_none();
    let foreign = || packages.values().filter(|package| !is_own(package));
    let components: Vec<Value> = foreign().map(|package| component(package)).collect();
    // The program's own crates form one component, which lists the dependencies of all these crates.
    let own = packages.values().filter(|package| is_own(package));
    let mut direct: Vec<String> =
        own.flat_map(|package| &package.needs).filter_map(|id| reference(packages, id)).collect();
    direct.sort();
    direct.dedup();
    let program = format!("{name}@{version}");
    let mut edges = vec![json!({"ref": program, "dependsOn": direct})];
    edges.extend(foreign().map(|package| {
        let needs: Vec<_> = package.needs.iter().filter_map(|id| reference(packages, id)).collect();
        json!({"ref": purl(package), "dependsOn": needs})
    }));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": program, "name": name, "version": version,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        }},
        "components": components,
        "dependencies": edges,
    });
    format!("{bill:#}\n")
}

fn component(package: &Dependency) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "purl": purl(package),
        "name": package.name,
        "version": package.version,
    });
    if let Some(licence) = &package.licence {
        // A slash is an old form of OR that SPDX no longer allows.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

fn purl(package: &Dependency) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

/// Returns the reference of a package in the bill; `None` for the program's own crates.
fn reference(packages: &BTreeMap<&str, &Dependency>, id: &str) -> Option<String> {
    packages.get(id).filter(|package| package.source.is_some()).map(|package| purl(package))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dependencies;

    fn package(name: &str, source: Option<&str>, needs: &[&str]) -> Dependency {
        Dependency {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: Some("MIT/ISC".to_owned()),
            source: source.map(str::to_owned),
            checksum: source.map(|_| "c0ffee".to_owned()),
            needs: needs.iter().map(|need| (*need).to_owned()).collect::<BTreeSet<_>>(),
        }
    }

    #[test]
    fn workspace_crates_are_merged_into_one_component() {
        let program = package("quorate", None, &["l"]);
        let (library, foreign) =
            (package("library", None, &["f"]), package("foreign", Some("r"), &[]));
        let packages = BTreeMap::from([("p", &program), ("l", &library), ("f", &foreign)]);
        let bill: Value =
            serde_json::from_str(&of_materials(&packages, "quorate", "2.0.0")).unwrap();
        let [component] = &bill["components"].as_array().unwrap()[..] else { panic!("{bill}") };
        assert_eq!(component["purl"], "pkg:cargo/foreign@1.0.0");
        assert_eq!(component["licenses"][0]["expression"], "MIT OR ISC");
        assert_eq!(component["hashes"][0]["content"], "c0ffee");
        let edges = &bill["dependencies"];
        assert_eq!(
            edges[0],
            json!({"ref": "quorate@2.0.0", "dependsOn": ["pkg:cargo/foreign@1.0.0"]})
        );
        assert_eq!(edges.as_array().unwrap().len(), 2);
    }

    /// The bill of this program must list the packages that the program certainly contains, and omit packages that only
    /// tests need.
    #[test]
    fn the_bill_of_materials_matches_the_lock_file() {
        let all = dependencies::all().unwrap();
        let text = of_materials(&dependencies::of_program(&all, "quorate"), "quorate", "1.0.0");
        let bill: Value = serde_json::from_str(&text).unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: BTreeSet<&str> =
            components.iter().map(|component| component["name"].as_str().unwrap()).collect();
        for name in ["tokio", "rustls", "aws-lc-sys", "prost"] {
            assert!(names.contains(name), "{name}");
        }
        for name in ["tempfile", "etcd-client", "protox"] {
            assert!(!names.contains(name), "{name}");
        }
        for component in components {
            assert_eq!(
                component["hashes"][0]["content"].as_str().unwrap().len(),
                64,
                "{component}"
            );
        }
        assert_eq!(
            text,
            of_materials(&dependencies::of_program(&all, "quorate"), "quorate", "1.0.0")
        );
    }
}
