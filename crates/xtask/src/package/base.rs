//! The files that a program needs in a minimal root file system: its loader and libraries, copied from the build
//! machine, and the few files in `/etc` that they read.
//!
//! A container with this root has no shell and no other tools.

use std::collections::BTreeSet;
use std::path::Path;

use super::elf::{Needs, needs};
use super::oci::{HOME, USER};
use super::tree::Tree;

/// Library directories of Debian and other systems, which the loader searches by default.
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
];

/// Packages whose licences are copied, if the machine has them.
const LICENCES: [&str; 2] = ["libc6", "libgcc-s1"];

/// Adds the files that the program needs, and returns the version of glibc, if the program uses it.
pub(super) fn put(root: &mut Tree, program: &Needs) -> Result<Option<String>, String> {
    let mut version = None;
    if let Some(loader) = &program.interpreter {
        let mut waiting = program.libraries.clone();
        let mut seen = BTreeSet::new();
        let loader_name = loader.rsplit('/').next().unwrap_or_default();
        root.file(loader.trim_start_matches('/'), 0o755, read(loader)?);
        while let Some(name) = waiting.pop() {
            if name == loader_name || !seen.insert(name.clone()) {
                continue;
            }
            let path = find(&name)?;
            let bytes = read(&path)?;
            waiting.extend(needs(&bytes).map_err(|why| format!("{path}: {why}"))?.libraries);
            if name.starts_with("libc.so") {
                version = version_of(&bytes);
            }
            root.file(path.trim_start_matches('/'), 0o755, bytes);
        }
        for package in LICENCES {
            let path = format!("usr/share/doc/{package}/copyright");
            if let Ok(text) = std::fs::read(Path::new("/").join(&path)) {
                root.file(&path, 0o644, text);
            }
        }
    }
    let user = format!("quorate:x:{USER}:{USER}::{HOME}:/usr/sbin/nologin\n");
    root.file("etc/passwd", 0o644, format!("root:x:0:0::/:/usr/sbin/nologin\n{user}"));
    root.file("etc/group", 0o644, format!("root:x:0:\nquorate:x:{USER}:\n"));
    // Without this file, the resolver would consult the hosts file last.
    root.file("etc/nsswitch.conf", 0o644, "hosts: files dns\n");
    root.folder(HOME.trim_start_matches('/'), 0o700, USER);
    Ok(version)
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{path}: {error}"))
}

fn find(name: &str) -> Result<String, String> {
    let paths = FOLDERS.iter().map(|folder| format!("{folder}/{name}"));
    let mut there = paths.filter(|path| Path::new(path).is_file());
    there.next().ok_or_else(|| {
        format!("{name}: the program needs this library, but no library folder contains it")
    })
}

/// Finds the version in a C library, which contains a text such as `GNU C Library (Debian GLIBC 2.36-9) stable release
/// version 2.36.`
fn version_of(library: &[u8]) -> Option<String> {
    const NAME: &[u8] = b"GNU C Library (";
    let at = library.windows(NAME.len()).position(|window| window == NAME)?;
    let text = library[at + NAME.len()..].split(|byte| *byte == b')').next()?;
    String::from_utf8(text.to_vec()).ok()
}
