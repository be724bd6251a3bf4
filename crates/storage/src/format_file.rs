//! Helpers for tests that compare `FORMAT.md` with the code that writes the files.
//!
//! A test parses the layouts and tables of a section, encodes data with the code, decodes it as the document specifies,
//! and compares the results. As a result, a field, number or name that occurs only in the document or only in the code
//! is detected.

use std::collections::BTreeMap;

use quorate_protobuf::{Fields, Value};

/// The text of `FORMAT.md`.
const TEXT: &str = include_str!("../FORMAT.md");

/// Returns the text of the document with single spaces between words, so that wrapped sentences can
/// be found.
fn running_text() -> String {
    TEXT.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asserts that the document contains this sentence or part of a sentence.
pub(crate) fn assert_says(sentence: &str) {
    assert!(running_text().contains(sentence), "FORMAT.md does not contain this text: {sentence}");
}

/// Returns the layout of `name`: the rest of its line, and the following lines that begin with `|`.
pub(crate) fn layout(name: &str) -> String {
    // Layouts are in fenced blocks. If the text is split at the fences, every second piece is a block.
    let layouts = TEXT.split("```").skip(1).step_by(2).flat_map(str::lines);
    let mut lines = layouts.skip_while(|line| line.split_whitespace().next() != Some(name));
    let first = lines.next().unwrap_or_else(|| panic!("FORMAT.md has no layout for {name}"));
    let first = first.trim_start().strip_prefix(name).unwrap_or_default();
    let more = lines.take_while(|line| line.trim_start().starts_with('|') && line.starts_with(' '));
    std::iter::once(first).chain(more).map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Returns the cells of each row of the table whose header line is `head`.
pub(crate) fn table(head: &str) -> Vec<Vec<String>> {
    let lines = TEXT.lines().skip_while(|line| *line != head).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    let rows: Vec<_> = rows
        .map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "FORMAT.md has no table with the header {head}");
    rows
}

/// Decodes bytes according to a layout of little-endian fields, such as `id u64 | flags u16 (what they
/// mean) | count u16`. Returns the fields with their values, and the remaining bytes.
pub(crate) fn read_numbers<'a>(
    layout: &str,
    mut bytes: &'a [u8],
) -> (Vec<(String, u64)>, &'a [u8]) {
    let mut fields = Vec::new();
    for field in layout.split(['|', ',', '{', '}']) {
        let field = field.split('(').next().unwrap_or_default().trim();
        let Some((name, width)) = field.rsplit_once(' ') else { continue };
        let len = match width {
            "u16" => 2,
            "u32" => 4,
            "u64" => 8,
            _ => continue,
        };
        let (value, rest) = bytes.split_at(len);
        let number = value.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        fields.push((name.to_owned(), number));
        bytes = rest;
    }
    (fields, bytes)
}

/// The value of a field: a number or bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Number(u64),
    Bytes(Vec<u8>),
}

/// Decodes a message according to a layout of its fields, such as `1 type varint | 2 crc varint
/// (why)`. Panics if a field occurs only in the layout or only in the message.
pub(crate) fn read_message(layout: &str, message: &[u8]) -> BTreeMap<String, Content> {
    let mut names: BTreeMap<u32, &str> = BTreeMap::new();
    for field in layout.split(['|', ',']).map(|field| field.split('(').next().unwrap_or_default()) {
        let (number, name) = field.trim().split_once(' ').expect("a field has a number and a name");
        let known = names.insert(number.parse().expect("a field number is an integer"), name);
        assert_eq!(known, None, "{layout}");
    }
    let read = Fields::new(message).map(|field| {
        let (number, value) = field.expect("the written message can be decoded");
        let name = names.remove(&number);
        let name = name.unwrap_or_else(|| panic!("FORMAT.md has no field {number} in: {layout}"));
        let content = match value {
            Value::Varint(number) => Content::Number(number),
            Value::Bytes(bytes) => Content::Bytes(bytes.to_vec()),
            _ => panic!("a field has an unexpected wire type: {layout}"),
        };
        (name.to_owned(), content)
    });
    let read = read.collect();
    assert!(names.is_empty(), "fields {names:?} of {layout} are not written");
    read
}

/// Returns the names of the constants in `source` that begin with `prefix`, at any indentation.
pub(crate) fn declared<'a>(source: &'a str, prefix: &str) -> Vec<&'a str> {
    let names = source.lines().filter_map(|line| {
        let (_, rest) = line.split_once("const ")?;
        rest.split_once(':').map(|(name, _)| name).filter(|name| name.starts_with(prefix))
    });
    names.collect()
}

/// Formats a number with commas between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Tests that `FORMAT.md` lists the files and directories that the code creates.
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::data_dir::DataDir;
    use crate::disk::{Disk, RealDisk};
    use crate::{bolt, lost_log, rebuild, restored, snap, wal};

    /// Documented files that the test does not create: files that remain only after failures, and
    /// files that are removed before a call returns.
    const NOT_MADE_HERE: [&str; 6] = [
        "member/wal/sync-failed.tmp",
        "member/snap/db.sync-failed",
        "member/wal.tmp/",
        "member/wal/*.wal.broken",
        "member/snap/*.snap.broken",
        "member/wal/1.tmp",
    ];

    /// Returns the table's paths, each with its mode.
    fn documented_modes() -> BTreeMap<String, String> {
        let mut modes = BTreeMap::new();
        for row in table("| path | mode | content |") {
            let mut folder = String::new();
            for path in row[0].split(", ").map(|path| path.trim_matches('`')) {
                let path = path.trim_start_matches("<data-dir>/");
                let whole =
                    if path.contains('/') { path.to_owned() } else { folder.clone() + path };
                folder = whole.rfind('/').map_or("", |end| &whole[..=end]).to_owned();
                modes.insert(whole, row[1].clone());
            }
        }
        modes
    }

    fn made(root: &Path, dir: &Path, found: &mut BTreeMap<String, u32>) {
        for name in RealDisk.read_dir(dir).unwrap() {
            let path = dir.join(name);
            let facts = RealDisk.metadata(&path).unwrap().unwrap();
            let mut name = path.strip_prefix(root).unwrap().display().to_string();
            if facts.is_dir {
                made(root, &path, found);
                name.push('/');
            }
            found.insert(name, facts.mode);
        }
    }

    #[test]
    fn the_documented_data_directory_matches_the_created_files() {
        let root = tempfile::tempdir().unwrap();
        let dirs = DataDir::new(&root.path().join("data"), None);
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        dirs.prepare(&RealDisk).unwrap();
        let (metadata, options) = (Bytes::from_static(b"m"), wal::Options::default());
        let mut log = wal::Wal::create(Arc::clone(&disk), dirs.wal(), metadata, options).unwrap();
        while log.prepare(1 << 30).unwrap() {}
        let _db = bolt::Db::open(&disk, &dirs.backend(), bolt::Options::default()).unwrap();
        let snapshot = snap::Snapshot { index: 0xA, term: 0xB, ..snap::Snapshot::default() };
        snap::save(&RealDisk, &dirs.snap(), &snapshot).unwrap();
        for number in [1, 2] {
            let disk = Arc::clone(&disk);
            let incoming = snap::IncomingDatabase::create(disk, &dirs.snap(), number).unwrap();
            if number == 1 {
                incoming.finish(0xC).unwrap();
            }
        }
        lost_log::mark(&RealDisk, &dirs, "why").unwrap();
        restored::leave(&RealDisk, &dirs.member(), "why").unwrap();
        rebuild::done(&RealDisk, &dirs, 1).unwrap();
        rebuild::order(&RealDisk, &dirs, "why").unwrap();

        let mut found = BTreeMap::new();
        made(dirs.root(), dirs.root(), &mut found);
        let hex = |name: &str, number: u64| (format!("{number:016x}"), format!("<hex16 {name}>"));
        let first = wal::SegmentName { sequence: 0, index: 0 }.file_name();
        let names = [
            (first, "<hex16 sequence>-<hex16 index>.wal".to_owned()),
            hex("index", 0xA),
            hex("term", 0xB),
            hex("index", 0xC),
            ("tmp2".to_owned(), "tmp<number>".to_owned()),
        ];
        let documented = documented_modes();
        let mut seen: BTreeSet<String> = NOT_MADE_HERE.map(str::to_owned).into();
        // The empty path stands for the directory itself.
        seen.insert(String::new());
        let umask = 0o666 & !fs::metadata(probe(root.path())).unwrap().permissions().mode();
        for (path, mode) in found {
            let path = names.iter().fold(path, |path, (from, to)| path.replace(from, to));
            let mode_text =
                documented.get(&path).unwrap_or_else(|| panic!("FORMAT.md does not list {path}"));
            match mode_text.strip_suffix(" less umask") {
                Some(octal) => assert_eq!(*octal, format!("{:04o}", mode | umask), "{path}"),
                None => assert_eq!(*mode_text, format!("{mode:04o}"), "{path}"),
            }
            seen.insert(path);
        }
        assert_eq!(documented.into_keys().collect::<BTreeSet<_>>(), seen);
    }

    /// Creates a file to determine the mode after the umask is applied.
    fn probe(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("probe");
        let mode = crate::disk::OpenMode::Create(0o666);
        RealDisk.open(&path, mode).unwrap();
        path
    }
}
