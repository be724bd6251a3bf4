//! The files to pack, and the archive (ustar) that contains them.
//!
//! The bytes of the archive depend only on the files and on the single timestamp of all entries, not on the order of
//! insertion or on the user who packs the files. Packing files owned by root needs no root permissions.

use std::collections::BTreeMap;

/// The block size of an archive, in bytes.
const BLOCK: usize = 512;
/// The maximum length of a name in an archive, in bytes.
const NAME_MAX: usize = 100;

/// Files by path. Paths have no leading slash.
#[derive(Clone, Default)]
pub(super) struct Tree {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone)]
struct Entry {
    mode: u32,
    owner: u32,
    what: What,
}

#[derive(Clone)]
enum What {
    Folder,
    File(Vec<u8>),
    Link(String),
    /// The path of the file that has another name here.
    SameFile(String),
}

impl Tree {
    /// Adds a file and its parent directories.
    pub(super) fn file(&mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) {
        self.put(path, mode, 0, What::File(bytes.into()));
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, to: &str) {
        self.put(path, 0o777, 0, What::Link(to.to_owned()));
    }

    /// Adds another name of a file of the tree (a hard link).
    pub(super) fn same_file(&mut self, path: &str, other: &str) {
        assert!(other < path, "a file precedes its other names in the archive");
        let mode = self.entries.get(other).map_or(0, |entry| entry.mode);
        self.put(path, mode, 0, What::SameFile(other.to_owned()));
    }

    /// Adds a directory with an owner.
    pub(super) fn folder(&mut self, path: &str, mode: u32, owner: u32) {
        self.put(path, mode, owner, What::Folder);
    }

    fn put(&mut self, path: &str, mode: u32, owner: u32, what: What) {
        assert!(!path.starts_with('/'), "the paths of a package are relative to its root");
        for (end, _) in path.match_indices('/') {
            let folder = Entry { mode: 0o755, owner: 0, what: What::Folder };
            self.entries.entry(path[..end].to_owned()).or_insert(folder);
        }
        self.entries.insert(path.to_owned(), Entry { mode, owner, what });
    }

    /// Returns the total size of all files in KiB.
    pub(super) fn size_kib(&self) -> usize {
        let sizes = self.entries.values().map(|entry| match &entry.what {
            What::File(bytes) => bytes.len().div_ceil(1024),
            What::Folder | What::Link(_) => 1,
            What::SameFile(_) => 0,
        });
        sizes.sum()
    }

    /// Returns the archive. `prefix` is prepended to each name.
    pub(super) fn archive(&self, prefix: &str, time: u64) -> Result<Vec<u8>, String> {
        let mut archive = Vec::new();
        if !prefix.is_empty() {
            let root = Entry { mode: 0o755, owner: 0, what: What::Folder };
            append(&mut archive, prefix, &root, time)?;
        }
        for (path, entry) in &self.entries {
            let slash = if matches!(entry.what, What::Folder) { "/" } else { "" };
            append(&mut archive, &format!("{prefix}{path}{slash}"), entry, time)?;
        }
        // The archive ends with two blocks of zeros.
        archive.resize(archive.len() + 2 * BLOCK, 0);
        Ok(archive)
    }
}

fn append(archive: &mut Vec<u8>, name: &str, entry: &Entry, time: u64) -> Result<(), String> {
    let (kind, bytes, target) = match &entry.what {
        What::Folder => (b'5', &[][..], ""),
        What::File(bytes) => (b'0', bytes.as_slice(), ""),
        What::Link(target) => (b'2', &[][..], target.as_str()),
        What::SameFile(other) => (b'1', &[][..], other.as_str()),
    };
    if name.len() > NAME_MAX || target.len() > NAME_MAX {
        return Err(format!("{name}: the name is too long for an archive"));
    }
    let mut header = [0; BLOCK];
    let mut field = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    field(0, name);
    field(100, &format!("{:07o}", entry.mode));
    field(108, &format!("{:07o}", entry.owner));
    field(116, &format!("{:07o}", entry.owner));
    field(124, &format!("{:011o}", bytes.len()));
    field(136, &format!("{time:011o}"));
    // The checksum is computed with spaces in the checksum field.
    field(148, "        ");
    field(157, target);
    field(257, "ustar\x0000");
    if entry.owner == 0 {
        field(265, "root");
        field(297, "root");
    }
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(bytes);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    Ok(())
}
