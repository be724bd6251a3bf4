//! Compares files written by etcd with etcd's own responses: keys at three revisions, hashes and leases.
//!
//! `QUORATE_GOLDEN` names the directory, and the `README.md` in it explains the fields. The servers
//! were killed, so the backend file in the data directory may lack the last entries, and revisions that are not in this
//! file are not compared with it. The snapshot was taken after everything was committed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::*;

#[test]
fn ranges_of_etcd_files_return_the_same_responses_as_etcd() {
    let Some(folder) = std::env::var_os("QUORATE_GOLDEN").map(PathBuf::from) else {
        let required = std::env::var_os("QUORATE_REQUIRE").unwrap_or_default();
        let is_required = required.to_string_lossy().contains("golden");
        assert!(!is_required, "QUORATE_GOLDEN is required but not set");
        println!("skipped: tests with files written by etcd (QUORATE_GOLDEN is not set)");
        return;
    };
    let mut compared = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let json = entry.unwrap().path();
        if json.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let answers: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let archive = json.with_extension("tar.gz");
        let scratch = tempfile::tempdir().unwrap();
        let unpacked =
            Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(scratch.path()).status();
        assert!(unpacked.unwrap().success(), "{}", archive.display());
        let snapshot = check_file(&scratch.path().join("snapshot.db"), &answers);
        assert_eq!(
            snapshot,
            answers["current_revision"].as_i64().unwrap(),
            "the snapshot contains all revisions"
        );
        check_file(&scratch.path().join("data/member/snap/db"), &answers);
        compared += 1;
    }
    assert!(compared > 0, "{} contains no golden data", folder.display());
}

/// Compares the content of the file with etcd's responses. Returns the file's revision.
fn check_file(path: &Path, answers: &Value) -> i64 {
    let backend = open(path);
    let (mut store, recovered) = Store::recover(&backend, StoreOptions::default()).unwrap();
    check_answers(&store, answers);
    let current = store.current_revision();
    if answers["current_revision"] == current {
        let expected = leased(answers);
        let found = recovered.leases.iter().map(|(key, lease)| (key.to_vec(), *lease));
        assert_eq!(found.collect::<BTreeSet<_>>(), expected);
    }
    // The responses stay the same after the garbage that etcd left behind is deleted, and when nothing is read from the
    // window.
    let mut batch = Batch::new();
    while store.next_garbage(1000, &mut batch).more {}
    store.committed(backend.commit(&batch).unwrap());
    store.publish();
    check_answers(&store, answers);
    let options = StoreOptions { recovered_bytes_max: 0, ..StoreOptions::default() };
    check_answers(&Store::recover(&backend, options).unwrap().0, answers);
    assert_eq!(backend.db().read().check(), []);
    current
}

fn check_answers(store: &Store, answers: &Value) {
    let view = store.reader().view();
    let current = view.current_revision();
    let newest = answers["current_revision"].as_i64().unwrap();
    let mut lists: Vec<(i64, &Value)> = vec![(newest, &answers["kvs"])];
    for (revision, kvs) in answers["kvs_at"].as_object().unwrap() {
        lists.push((revision.parse().unwrap(), kvs));
    }
    for (revision, kvs) in lists.into_iter().filter(|(revision, _)| *revision <= current) {
        let whole = b"\0"[..].into();
        let query = RangeQuery {
            key: Bytes::clone(&whole),
            range_end: whole,
            revision,
            ..RangeQuery::default()
        };
        let found = view.range(&query).unwrap().kvs;
        let expected: Vec<_> = kvs.as_array().unwrap().iter().map(record).collect();
        assert_eq!(found, expected, "at {revision}");
    }
    for (revision, expected) in answers["hashkv"].as_object().unwrap() {
        let revision: i64 = revision.parse().unwrap();
        if revision <= current {
            let hash = view.hash_kv(revision).unwrap();
            assert_eq!(u64::from(hash.hash), expected["hash"].as_u64().unwrap(), "at {revision}");
            assert_eq!(expected["compact_revision"], hash.compact_revision);
            assert_eq!(hash.hash_revision, revision);
        }
    }
}

fn leased(answers: &Value) -> BTreeSet<(Vec<u8>, i64)> {
    let leases = answers["leases"].as_object().unwrap();
    let keys = |lease: &Value| {
        let id = lease["id"].as_i64().unwrap();
        let keys = lease["keys"].as_array().cloned().unwrap_or_default();
        keys.into_iter().map(move |key| (base64(&key), id))
    };
    leases.values().flat_map(keys).collect()
}

fn record(kv: &Value) -> KeyValue {
    KeyValue::new(&Fields {
        key: &base64(&kv["key"]),
        create_revision: kv["create_revision"].as_i64().unwrap(),
        mod_revision: kv["mod_revision"].as_i64().unwrap(),
        version: kv["version"].as_i64().unwrap(),
        value: &base64(&kv["value"]),
        lease: kv["lease"].as_i64().unwrap_or(0),
    })
}

fn base64(text: &Value) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let text = text.as_str().unwrap_or_default().trim_end_matches('=');
    let groups = text.as_bytes().chunks(4).flat_map(|group| {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 6 | u32::from(digit(*byte)));
        let bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        bytes[1..group.len()].to_vec()
    });
    groups.collect()
}
