//! Tests that run the whole tool within the test process, on files created here.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use prost::Message as _;
use quorate_api::etcdserverpb::Request;
use quorate_api::record::{Fields, KeyValue};
use quorate_state::backend::{Backend, Batch};
use quorate_state::schema::{Bucket, RecordKey, Revision, cluster};
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};
use quorate_storage::wal::{self, HardState, SnapshotMark, Wal};
use sha2::{Digest as _, Sha256};

use super::*;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Runs the tool. Returns the exit code, standard output and standard error.
pub(crate) fn utl(words: &[impl AsRef<OsStr>]) -> (u8, String, String) {
    let (output, errors) = (Written::default(), Written::default());
    let terminal = Terminal { output: Box::new(output.clone()), errors: Box::new(errors.clone()) };
    let args = [OsStr::new("etcdutl")].into_iter().chain(words.iter().map(AsRef::as_ref));
    let code = run(args.map(OsString::from), terminal);
    (code, output.text(), errors.text())
}

fn success<W: AsRef<OsStr>>(words: &[W]) -> String {
    let (code, output, errors) = utl(words);
    assert_eq!(code, 0, "{errors}");
    output
}

/// Creates a backend file with some records, one of which is deleted.
fn backend(path: &Path) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, path, Options::default()).unwrap();
    let mut batch = Batch::new();
    for main in 2..=10 {
        let tombstone = main == 10;
        let key = RecordKey { revision: Revision::new(main, 0), tombstone };
        let name = if tombstone { "k2".to_owned() } else { format!("k{main}") };
        let fields = Fields { key: name.as_bytes(), value: b"v", ..Fields::default() };
        batch.put_record(key, KeyValue::new(&fields).encoded().clone());
    }
    batch.set_consistent_index(20, 3);
    backend.commit(&batch).unwrap();
}

#[test]
fn other_commands_accept_the_directory_of_a_restored_member() {
    let root = tempfile::tempdir().unwrap();
    let (file, data) = (root.path().join("db"), root.path().join("new"));
    backend(&file);
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    let status = success(&["snapshot", "status", file, "-w", "json"]);
    assert!(status.contains("\"revision\":10,\"totalKey\":7,"), "{status}");
    let hash = success(&["hashkv", file]);
    assert!(hash.ends_with(", 10, -1\n"), "{hash}");
    let restore = ["snapshot", "restore", file, "--data-dir", data];
    let (code, _, errors) = utl(&restore);
    assert_eq!(code, 1);
    assert!(errors.ends_with("Error: snapshot missing hash but --skip-hash-check=false\n"));
    assert!(!Path::new(data).exists());
    drop(success(&[&restore[..], &["--skip-hash-check"]].concat()));
    let (code, _, errors) = utl(&[&restore[..], &["--skip-hash-check"]].concat());
    assert!(code == 1 && errors.contains("not empty or could not be read"), "{errors}");
    let database = format!("{data}/member/snap/db");
    for _ in 0..2 {
        assert_eq!(success(&["hashkv", &database]), hash);
        let judged = success(&["verify", data]);
        assert!(judged.contains("member 8e9e05c52164694d of cluster cdf818194e3a8c32"), "{judged}");
        assert!(judged.contains("applied up to entry 1 of 1"), "{judged}");
        drop(success(&["migrate", "--data-dir", data, "--target-version", "3.6"]));
        drop(success(&["defrag", "--data-dir", data]));
    }
    let dumped = success(&["snap", "dump", data]);
    assert!(dumped.contains("voters 8e9e05c52164694d"), "{dumped}");
    let dumped = success(&["wal", "dump", data]);
    assert!(dumped.contains("add member 8e9e05c52164694d"), "{dumped}");
}

/// Sets the cluster version in a backend file.
fn set_cluster_version(file: &Path, version: &'static str) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, file, Options::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(Bucket::Cluster, cluster::VERSION, version);
    backend.commit(&batch).unwrap();
}

#[test]
fn a_directory_of_a_cluster_older_than_3_5_is_refused_but_a_snapshot_of_it_can_be_restored() {
    let root = tempfile::tempdir().unwrap();
    let (file, data) = (root.path().join("db"), root.path().join("new"));
    backend(&file);
    set_cluster_version(&file, "3.4.0");
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    let report = success(&["snapshot", "verify", file]);
    assert!(!report.contains("REFUSED"), "{report}");
    drop(success(&["snapshot", "restore", file, "--data-dir", data, "--skip-hash-check"]));
    drop(success(&["verify", data]));
    set_cluster_version(Path::new(&format!("{data}/member/snap/db")), "3.4.0");
    let (code, report, errors) = utl(&["verify", data]);
    assert!(code == 1 && report.contains("REFUSED"), "{code} {report}");
    assert!(errors.contains("upgrade all members to etcd 3.5 first"), "{errors}");
}

#[test]
fn a_directory_whose_log_contains_a_change_with_the_v2_api_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let (file, data) = (root.path().join("db"), root.path().join("new"));
    backend(&file);
    let (file, data_dir) = (file.to_str().unwrap(), data.to_str().unwrap());
    drop(success(&["snapshot", "restore", file, "--data-dir", data_dir, "--skip-hash-check"]));
    let (start, options) =
        (SnapshotMark { index: 1, term: 1, conf_state: None }, wal::Options::default());
    let (mut log, contents) =
        Wal::open(Arc::new(RealDisk), &data.join("member/wal"), &start, options).unwrap();
    let request = Request {
        id: Some(7),
        method: Some("PUT".to_owned()),
        path: Some("/1/foo".to_owned()),
        ..Request::default()
    };
    let entry = wal::Entry { index: 2, term: 1, kind: 0, data: request.encode_to_vec().into() };
    log.save(Some(&HardState { commit: 2, ..contents.hard_state }), &[entry]).unwrap();
    log.close().unwrap();
    let (code, report, errors) = utl(&["verify", data_dir]);
    assert!(code == 1 && report.contains("REFUSED"), "{code} {report}");
    assert!(errors.contains("entry 2 changes /1/foo with the v2 API"), "{errors}");
}

#[test]
fn a_member_can_be_restored_with_the_default_wal_directory_as_a_flag() {
    let root = tempfile::tempdir().unwrap();
    let (file, data) = (root.path().join("db"), root.path().join("new"));
    backend(&file);
    let (file, data_dir) = (file.to_str().unwrap(), data.to_str().unwrap());
    let restore = |wal: &str| {
        let words = ["snapshot", "restore", file, "--data-dir", data_dir, "--skip-hash-check"];
        utl(&[&words[..], &["--wal-dir", wal]].concat())
    };
    for refused in ["new/member", "new/member/log", "new/./member/wal/x", "new/restoring", "new"] {
        let (code, _, errors) = restore(root.path().join(refused).to_str().unwrap());
        assert!(code == 1 && errors.contains("conflicts with the files"), "{refused}: {errors}");
        assert!(!data.exists(), "{refused}");
    }
    let (code, _, errors) = restore(root.path().join("new/./member/wal").to_str().unwrap());
    assert_eq!(code, 0, "{errors}");
    assert!(success(&["verify", data_dir]).contains("applied up to entry 1 of 1"));
}

#[test]
fn a_failed_restore_removes_the_directories_that_it_has_created() {
    let root = tempfile::tempdir().unwrap();
    let (file, data) = (root.path().join("db"), root.path().join("a/b/new"));
    backend(&file);
    // The log can be renamed to this name, but the longer temporary name exceeds the limit of the file system.
    let wal = root.path().join("c/d").join("x".repeat(253));
    let words = ["snapshot", "restore", file.to_str().unwrap(), "--skip-hash-check"];
    let (data, wal) = (data.to_str().unwrap(), wal.to_str().unwrap());
    let (code, _, errors) = utl(&[&words[..], &["--data-dir", data, "--wal-dir", wal]].concat());
    assert!(code == 1 && errors.contains("name too long"), "{errors}");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1, "only the snapshot remains");
}

#[test]
fn bumping_the_revision_compacts_all_history() {
    let root = tempfile::tempdir().unwrap();
    let (file, data) = (root.path().join("db"), root.path().join("new"));
    backend(&file);
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    let restore = ["snapshot", "restore", file, "--data-dir", data, "--skip-hash-check"];
    let raised = ["--bump-revision=100", "--mark-compacted"];
    drop(success(&[&restore[..], &raised].concat()));
    let database = format!("{data}/member/snap/db");
    let hash = success(&["hashkv", &database]);
    assert!(hash.ends_with(", 110, 110\n"), "{hash}");
    let (code, _, errors) = utl(&["hashkv", &database, "--rev=10"]);
    assert!(code == 1 && errors.contains("compacted"), "{errors}");
}

#[test]
fn snapshot_verify_finds_damage_before_a_restore() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("db");
    backend(&file);
    let path = file.to_str().unwrap();
    let judged = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let seen = utl(&["snapshot", "verify", path]);
        assert_eq!(std::fs::read(&file).unwrap(), bytes, "the file is unchanged");
        seen
    };
    let database = std::fs::read(&file).unwrap();
    let whole = [&database[..], &Sha256::digest(&database)].concat();
    let (code, output, errors) = judged(&whole);
    assert_eq!(code, 0, "{errors}");
    assert!(output.starts_with("ok, digest, it matches the content\n"), "{output}");
    assert!(output.contains("revision 10, compacted at -1, HashKV "), "{output}");
    let (code, output, _) = judged(&database);
    assert!(code == 0 && output.starts_with("note, digest, missing"), "{output}");

    let (code, output, errors) = judged(&whole[..whole.len() - 1]);
    assert!(code == 1 && output.starts_with("DAMAGED, digest, the file is truncated"), "{output}");
    assert!(
        errors.contains("is damaged") && errors.contains("do not restore a damaged snapshot"),
        "{errors}"
    );
    // After the change of a value, all pages are still sound, so only the digest reveals the change.
    let at = database.windows(2).rposition(|bytes| bytes == b"k9").unwrap();
    let mut changed = whole;
    changed[at + 1] = b'8';
    let (code, output, _) = judged(&changed);
    assert!(code == 1 && output.starts_with("DAMAGED, digest, it does not match"), "{output}");
    // The data has a correct digest, but is not a backend file.
    let garbage = vec![7; database.len()];
    let (code, output, _) = judged(&[&garbage[..], &Sha256::digest(&garbage)].concat());
    assert!(code == 1 && output.contains("DAMAGED, backend, "), "{output}");
}

#[test]
fn snapshot_verify_checks_several_files() {
    let root = tempfile::tempdir().unwrap();
    let [sound, damaged, third] = ["a.db", "b.db", "c.db"].map(|name| root.path().join(name));
    backend(&sound);
    let whole = std::fs::read(&sound).unwrap();
    std::fs::write(&damaged, &whole[..whole.len() - 1]).unwrap();
    std::fs::copy(&damaged, &third).unwrap();
    let [sound, damaged, third] = [&sound, &damaged, &third].map(|path| path.to_str().unwrap());
    let output = success(&["snapshot", "verify", sound, sound]);
    assert_eq!(output.matches(&format!("{sound}, note, digest, missing")).count(), 2, "{output}");
    let (code, output, errors) = utl(&["snapshot", "verify", sound, damaged, third]);
    assert_eq!(code, 1);
    for line in [format!("{sound}, note, digest, "), format!("{damaged}, DAMAGED, digest, ")] {
        assert!(output.contains(&line), "{line}: {output}");
    }
    assert!(errors.contains(&format!("Error: {damaged}, {third} are damaged (")), "{errors}");
    let (code, output, _) = utl(&["snapshot", "verify", sound, "/nonexistent"]);
    assert!(code == 1 && output.is_empty(), "all names are checked first: {output}");
    assert_eq!(utl(&["snapshot", "verify"]).0, 128);
}

#[test]
fn paths_that_are_not_utf8_are_accepted() {
    fn words(words: &[&'static str]) -> Vec<&'static OsStr> {
        words.iter().map(|word| OsStr::new(*word)).collect()
    }
    let root = tempfile::tempdir().unwrap();
    let [file, data] =
        [&b"b\xe9"[..], b"d\xe9"].map(|name| root.path().join(OsStr::from_bytes(name)));
    backend(&file);
    let (file, data) = (file.as_os_str(), data.as_os_str());
    drop(success(&[&words(&["snapshot", "status"])[..], &[file]].concat()));
    drop(success(&[&words(&["hashkv"])[..], &[file]].concat()));
    let restore = words(&["snapshot", "restore", "--skip-hash-check", "--data-dir"]);
    drop(success(&[&restore[..], &[data, file]].concat()));
    drop(success(&[&words(&["defrag", "--data-dir"])[..], &[data]].concat()));
    drop(success(&[&words(&["verify"])[..], &[data]].concat()));
}

#[test]
fn the_status_of_a_snapshot_is_formatted_as_in_etcdutl() {
    let root = tempfile::tempdir().unwrap();
    let (file, data) = (root.path().join("db"), root.path().join("new"));
    backend(&file);
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    drop(success(&["snapshot", "restore", "--skip-hash-check", file, "--data-dir", data]));
    drop(success(&["migrate", "--data-dir", data, "--target-version", "3.6"]));
    let database = format!("{data}/member/snap/db");
    let fields = success(&["snapshot", "status", &database, "-w", "fields"]);
    assert!(fields.ends_with("\n\"Version\" : 3.6.0\n"), "{fields}");
    let table = success(&["snapshot", "status", &database, "-w", "table"]);
    assert!(table.contains("│ VERSION │"), "{table}");
}

#[test]
fn a_migration_is_not_forced_if_the_current_version_is_unknown() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("member/snap");
    std::fs::create_dir_all(&directory).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let path = directory.join("db");
    drop(Backend::open(&disk, &path, Options::default()).unwrap());
    let before = std::fs::read(&path).unwrap();
    let data = root.path().to_str().unwrap();
    let line = ["migrate", "--data-dir", data, "--target-version=3.6", "--force"];
    let (code, _, errors) = utl(&line);
    assert_eq!(code, 1, "{errors}");
    assert!(
        errors.ends_with("Error: cannot detect storage schema version: missing term information\n"),
        "{errors}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn usage_errors_exit_with_the_same_codes_as_in_etcdutl() {
    for (words, code, described) in [
        (&["foo"][..], 1, "Error: unknown command \"foo\" for \"etcdutl\"\n"),
        (&["snapshot", "status"], 128, "snapshot status requires exactly one argument"),
        (&["hashkv"], 1, "Error: accepts 1 arg(s), received 0\nUsage:\n"),
        (&["hashkv", "a", "b"], 1, "accepts 1 arg(s), received 2"),
        (&["migrate"], 1, "required flag(s) \"data-dir\", \"target-version\" not set"),
        (&["migrate", "--data-dir=x"], 1, "required flag(s) \"target-version\" not set"),
        (&["migrate", "--data-dir=x", "--target-version="], 128, "wrong target version format"),
        (&["defrag"], 1, "required flag(s) \"data-dir\" not set"),
        (&["version", "-w", "foo"], 4, "unsupported output format"),
        (&["snapshot", "status", "x", "--foo"], 1, "unknown flag: --foo"),
        (&["snapshot", "status", "/nonexistent/x"], 1, "stat /nonexistent/x: no such file"),
        (&["verify", "/nonexistent"], 128, "stat /nonexistent: no such directory"),
        (&["recover", "/nonexistent"], 128, "stat /nonexistent: no such directory"),
    ] {
        let (seen, _, errors) = utl(words);
        assert_eq!(seen, code, "{words:?}: {errors}");
        assert!(errors.contains(described), "{words:?}: {errors}");
    }
}

#[test]
fn the_error_for_an_invalid_snapshot_suggests_no_flag() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let new = folder.path().join("new");
    for (path, reason) in [(&*empty, "the file is empty"), (folder.path(), "it is a directory")] {
        let path = path.to_str().unwrap();
        for more in [&[][..], &["--skip-hash-check"]] {
            let words = ["snapshot", "restore", path, "--data-dir", new.to_str().unwrap()];
            let (code, _, errors) = utl(&[&words, more].concat());
            let said = format!("Error: {path} is not a snapshot: {reason}\n");
            assert!(code == 1 && errors.ends_with(&said), "{errors}");
        }
    }
    assert!(!new.exists());
}

#[test]
fn a_defragmentation_is_logged_with_the_same_fields_as_in_etcd() {
    let (folder, path) = (tempfile::tempdir().unwrap(), Path::new("member/snap/db"));
    let path = folder.path().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let options = Options::default();
    drop(Backend::open(&disk, &path, options).unwrap());
    let (code, _, errors) = utl(&["defrag", "--data-dir", folder.path().to_str().unwrap()]);
    assert_eq!(code, 0, "{errors}");
    let fields: Vec<serde_json::Value> = errors
        .lines()
        .map(|line| serde_json::from_str(line.split('\t').next_back().unwrap()).unwrap())
        .collect();
    let [before, after] = &fields[..] else { panic!("{errors}") };
    for name in ["current-db-size-bytes", "current-db-size-in-use-bytes"] {
        let number = |fields: &serde_json::Value, name: &str| fields[name].as_i64().unwrap();
        let diff = number(after, &format!("{name}-diff"));
        assert_eq!(number(before, name) + diff, number(after, name), "{errors}");
    }
    assert!(before["current-db-size"].is_string() && after["took"].is_string(), "{errors}");
}

#[test]
fn help_shows_every_command_and_flag() {
    let top = success::<&str>(&[]);
    assert!(top.starts_with(
        "An administrative command line tool for etcd3.\n\nUsage:\n  etcdutl [command]\n"
    ));
    assert!(top.contains("  -w, --write-out string "), "{top}");
    assert!(!top.contains("options"), "{top}");
    let restore = success(&["help", "snapshot", "restore"]);
    assert!(restore.contains("      --bump-revision uint "), "{restore}");
    assert!(restore.contains("\n\nGlobal Flags:\n"), "{restore}");
    assert_eq!(success(&["version"]), "etcdutl version: 3.7.1\nAPI version: 3.7\n");
}
