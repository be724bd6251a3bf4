//! Sets the commit of the program, from `QUORATE_GIT_SHA` in the environment or else from the checkout ([`commit`]).
//! This is done in the last crate of the build, so that a new commit rebuilds only that crate.

#![expect(clippy::print_stdout, reason = "cargo reads the output of a build script")]

mod commit;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-env-changed=QUORATE_GIT_SHA");
    println!("cargo::rerun-if-changed=build");
    if std::env::var_os("QUORATE_GIT_SHA").is_some() {
        return;
    }
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    // The manifest is in `<root>/crates/quorate`. A checkout in a directory above the root belongs to another
    // repository and is ignored.
    let Some(root) = manifest.ancestors().nth(2) else { return };
    let found = commit::find(root);
    for path in found.read {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    if let Some(hash) = found.hash {
        println!("cargo::rustc-env=QUORATE_GIT_SHA={hash}");
    }
}
