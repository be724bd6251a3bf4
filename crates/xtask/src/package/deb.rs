//! Debian's package format (deb(5)): an `ar` archive of three members, two of which are compressed archives.
//!
//! This module writes the format itself instead of calling `dpkg-deb`, so that a package has the same bytes wherever it
//! is built: `Cargo.lock` pins the compressor. As a result, files owned by root can be packed without root permissions,
//! and packaging needs no dpkg. The tests verify the result with dpkg.
//!
//! The package contains no file checksums (`md5sums`), because dpkg computes missing checksums at installation.

use std::fmt::Write as _;

use super::gzip;
use super::tree::Tree;

/// A package: the control data for dpkg, and its files.
#[derive(Default)]
pub(super) struct Package {
    /// The control fields, in order.
    pub(super) fields: Vec<(&'static str, String)>,
    /// Maintainer scripts, by name.
    pub(super) scripts: Vec<(&'static str, Vec<u8>)>,
    /// Files that the operator may edit, and that an upgrade leaves unchanged.
    pub(super) conffiles: Vec<&'static str>,
    /// The installed files.
    pub(super) files: Tree,
}

impl Package {
    /// Returns the contents of the package file. All entries have the timestamp `time`.
    pub(super) fn build(&self, time: u64) -> Result<Vec<u8>, String> {
        let mut fields = String::new();
        for (name, value) in &self.fields {
            writeln!(fields, "{name}: {value}").expect("writing to a string cannot fail");
        }
        let mut control = Tree::default();
        control.file("control", 0o644, fields);
        if !self.conffiles.is_empty() {
            control.file("conffiles", 0o644, self.conffiles.join("\n") + "\n");
        }
        for (name, script) in &self.scripts {
            control.file(name, 0o755, script.as_slice());
        }
        let mut file = b"!<arch>\n".to_vec();
        member(&mut file, "debian-binary", time, b"2.0\n");
        member(&mut file, "control.tar.gz", time, &gzip(&control.archive("./", time)?));
        member(&mut file, "data.tar.gz", time, &gzip(&self.files.archive("./", time)?));
        Ok(file)
    }
}

fn member(file: &mut Vec<u8>, name: &str, time: u64, bytes: &[u8]) {
    let size = bytes.len();
    let header = format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, "100644");
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(bytes);
    if size % 2 == 1 {
        file.push(b'\n');
    }
}
