//! Writes the Rust code that is generated from `crates/api/proto`, into `generated/` of the crates that include it.
//!
//! The code is committed, because its generators are a ninth of the work of a build (decision record 0028).
//! `cargo xtask generate` starts this program; a test fails while the committed code is not what it would write.

mod api;
mod json;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Generated files: names and contents.
type Generated = BTreeMap<String, String>;

/// Why nothing is generated.
type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    for (folder, files) in generate()? {
        std::fs::create_dir_all(&folder)?;
        for (name, text) in files {
            std::fs::write(folder.join(name), text)?;
        }
    }
    Ok(())
}

/// Generates all files. Returns them by folder.
fn generate() -> Result<[(PathBuf, Generated); 2], Failed> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = crates.join("api/proto");
    let folder = |name: &str| crates.join(name).join("src/generated");
    Ok([(folder("api"), api::generate(&proto)?), (folder("json"), json::generate(&proto)?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_code_is_what_would_be_generated() {
        for (folder, files) in generate().unwrap() {
            let committed: Generated = std::fs::read_dir(&folder)
                .unwrap()
                .map(|file| file.unwrap())
                .map(|file| {
                    let name = file.file_name().into_string().unwrap();
                    (name, std::fs::read_to_string(file.path()).unwrap())
                })
                .collect();
            assert!(committed == files, "{}: run `cargo xtask generate`", folder.display());
        }
    }
}
