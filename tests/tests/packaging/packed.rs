//! The packages of the program, built once for all tests, and the reproducibility of their bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use quorate_tests::Kind;
use sha2::{Digest as _, Sha256};

/// Returns the output folder of one run.
fn pack(name: &str) -> PathBuf {
    assert!(Kind::Quorate.is_present());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["xtask", "package", "--into"]).arg(&folder);
    let packed = command.arg("--binary").arg(Kind::Quorate.program()).output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    folder
}

/// Returns the file with this prefix and suffix. All tests share the output of one run.
pub(crate) fn file(begin: &str, end: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| pack("package"));
    let mut paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    };
    paths.find(is_it).unwrap_or_else(|| panic!("{begin}…{end} was not packed"))
}

fn files_in(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn packaging_is_reproducible_and_writes_correct_checksums() {
    let first = files_in(file("SHA256SUMS", "").parent().unwrap());
    let second = files_in(&pack("package-again"));
    assert_eq!(first.keys().collect::<Vec<_>>(), second.keys().collect::<Vec<_>>());
    for (name, bytes) in &first {
        assert!(second[name] == *bytes, "{name} differs");
    }
    let sums = String::from_utf8(first["SHA256SUMS"].clone()).unwrap();
    let expected: String = first
        .iter()
        .filter(|(name, _)| *name != "SHA256SUMS")
        .map(|(name, bytes)| (name, Sha256::digest(bytes)))
        .map(|(name, sum)| (name, sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
        .map(|(name, sum)| format!("{sum}  {name}\n"))
        .collect();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&sums), sorted(&expected));
    assert_eq!(first.len(), 5);
}
