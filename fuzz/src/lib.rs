//! What the targets of the fuzzer have in common: the folder for those that read files.
//!
//! Each file of `fuzz_targets` gives the fuzzer's bytes to a function of the crate whose reader it tries, where it
//! also runs as a test, bounded. `cargo xtask fuzz` builds and runs them; `seeds` is what they begin with.

use std::path::Path;
use std::sync::LazyLock;

/// A folder of this process, which keeps what a target left there when it failed.
pub fn scratch() -> &'static Path {
    static FOLDER: LazyLock<std::path::PathBuf> = LazyLock::new(|| {
        let folder = tempfile::Builder::new().prefix("quorate-fuzz-").tempdir();
        folder.expect("the fuzzer has a folder").keep()
    });
    &FOLDER
}
