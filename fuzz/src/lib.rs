//! Support for the fuzz targets: a folder for the targets that read files.
//!
//! Each file in `fuzz_targets` passes the fuzzer's bytes to a function of the crate that it tests. The same function
//! also runs as a unit test with a limited number of inputs. `cargo xtask fuzz` builds and runs the targets; `seeds`
//! contains their initial inputs.

use std::path::Path;
use std::sync::LazyLock;

/// Returns a folder of this process. The folder is not deleted at the end, so that the files of a failed target can be
/// examined.
pub fn scratch() -> &'static Path {
    static FOLDER: LazyLock<std::path::PathBuf> = LazyLock::new(|| {
        let folder = tempfile::Builder::new().prefix("quorate-fuzz-").tempdir();
        folder.expect("a temporary folder can be created").keep()
    });
    &FOLDER
}
