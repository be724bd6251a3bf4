//! Tells the program which commit it is of: `QUORATE_GIT_SHA` of the environment, or else what the checkout
//! says ([`commit`]). It belongs to the last crate of the build, so that a commit makes that one anew and no
//! other.

#![expect(clippy::print_stdout, reason = "this is how cargo is told")]

mod commit;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=QUORATE_GIT_SHA");
    println!("cargo::rerun-if-changed=build");
    if std::env::var_os("QUORATE_GIT_SHA").is_some() {
        return;
    }
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    // `<root>/crates/quorate`. What is further up is no checkout of ours.
    let Some(root) = manifest.ancestors().nth(2) else { return };
    let found = commit::find(root);
    for path in found.read {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    if let Some(hash) = found.hash {
        println!("cargo::rustc-env=QUORATE_GIT_SHA={hash}");
    }
}
