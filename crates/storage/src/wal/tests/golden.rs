//! Tests with logs written by real etcd.

use std::process::Command;

use super::*;

/// Unpacks every golden data directory and calls `check` with the path of its log.
#[expect(clippy::disallowed_methods, reason = "an environment variable names the test data folder")]
fn for_each_golden(check: impl Fn(&str, &Path)) {
    let Some(folder) = std::env::var_os("QUORATE_GOLDEN").map(PathBuf::from) else {
        let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
        assert!(!required.contains("golden"), "QUORATE_GOLDEN is required but not set");
        println!("skipped: tests with files written by etcd (QUORATE_GOLDEN is not set)");
        return;
    };
    let mut seen = 0;
    for name in RealDisk.read_dir(&folder).unwrap() {
        let name = name.into_string().unwrap();
        if !name.ends_with(".tar.gz") {
            continue;
        }
        let root = tempfile::tempdir().unwrap();
        let status = Command::new("tar")
            .args(["-xzf".as_ref(), folder.join(&name).as_os_str()])
            .args(["--sparse".as_ref(), "-C".as_ref(), root.path().as_os_str()])
            .arg("data/member/wal")
            .status()
            .unwrap();
        assert!(status.success());
        check(&name, &root.path().join("data/member/wal"));
        seen += 1;
    }
    assert!(seen > 0, "no golden data in {}", folder.display());
}

#[test]
fn logs_of_etcd_members_are_read_and_continued() {
    for_each_golden(|name, dir| {
        let start = SnapshotMark::default();
        let seen = read(&RealDisk, dir, &start).unwrap();
        assert!(seen.start_marked && seen.metadata.is_some());
        assert!(seen.hard_state.commit > 100, "{name}: {:?}", seen.hard_state);
        assert!(seen.entries.len() > 200, "{name}: {}", seen.entries.len());
        let last = seen.entries.last().unwrap();
        assert!(last.index >= seen.hard_state.commit);
        assert_eq!(seen.entries[0].kind, 1);
        let marks = snapshot_marks(&RealDisk, dir).unwrap();
        assert!(marks.len() > 3, "{name}: {marks:?}");
        assert!(marks[1..].iter().all(|mark| mark.conf_state.is_some()));

        // For a log written by etcd 3.7, encoding the content again yields the same bytes.
        let (mut wal, contents) = Wal::open(real(), dir, &start, Options::default()).unwrap();
        assert_eq!((contents.entries.len(), contents.repaired), (seen.entries.len(), None));
        if name.contains("3.7") {
            assert_eq!(rewritten(&seen), original(dir, &seen), "{name}");
        }
        let next = entry(last.index + 1, last.term, &[3; 2000]);
        let state = HardState { commit: last.index + 1, ..seen.hard_state };
        wal.save(Some(&state), std::slice::from_ref(&next)).unwrap();
        wal.save_snapshot(&mark(next.index, next.term)).unwrap();
        wal.close().unwrap();
        let (_, again) = Wal::open(real(), dir, &marks[2], Options::default()).unwrap();
        assert!(again.start_marked);
        assert_eq!(again.entries.last(), Some(&next));
        assert_eq!(again.entries[0].index, marks[2].index + 1);
        assert_eq!(snapshot_marks(&RealDisk, dir).unwrap().len(), marks.len() + 1);
    });
}

/// Returns the data of all entry records in the log.
fn original(dir: &Path, seen: &Contents) -> Vec<Vec<u8>> {
    let listing = list(&RealDisk, dir).unwrap();
    let segments: Vec<Segment> = listing
        .segments
        .iter()
        .map(|name| Segment::open(&RealDisk, dir, *name, OpenMode::Read).unwrap())
        .collect();
    let mut scanner = scan::Scanner::new(&segments).unwrap();
    let mut found = Vec::new();
    while let Some(next) = scanner.next().unwrap() {
        if next.record.kind == record::kind::ENTRY {
            found.push(next.record.data.to_vec());
        }
    }
    assert_eq!(found.len(), seen.entries.len());
    found
}

/// Returns the data of the same entry records as encoded by Quorate.
fn rewritten(seen: &Contents) -> Vec<Vec<u8>> {
    let encode = |entry: &Entry| {
        let mut encoder = RecordEncoder::new(0);
        encoder.push_entry(entry.into());
        let length = u64::from_le_bytes(*encoder.buffer.first_chunk().unwrap());
        let (bytes, _) = record::split_length(length);
        record::decode_record(&encoder.buffer[8..8 + bytes as usize]).unwrap().data.to_vec()
    };
    seen.entries.iter().map(encode).collect()
}
