//! Damaged files are repaired only where etcd repairs them, and damaged `.snap` files are skipped as in etcd. Quorate
//! refuses any other file that it cannot use, with an error that names the file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use quorate_tests::{
    Exit, Kind, Options, Random, Server, from_key, is_long, on_both_servers, on_quorate,
};

on_both_servers! {
    alone:
    a_torn_last_log_record_is_truncated,
    a_zeroed_last_log_record_is_truncated,
    a_log_with_a_changed_byte_in_a_record_is_refused,
    damage_to_an_older_segment_is_refused,
    bytes_after_the_end_of_the_log_are_ignored,
    a_missing_backend_is_refused,
    damaged_snapshot_files_are_skipped,
    leftover_files_of_a_crash_are_ignored,
    unknown_files_are_reported,
}

on_quorate! {
    alone:
    a_changed_byte_anywhere_in_the_log_is_refused_or_harmless,
    a_log_truncated_at_any_offset_is_refused_or_harmless,
    a_truncated_backend_is_refused,
    a_backend_without_valid_meta_pages_is_refused,
    a_damaged_backend_never_causes_a_panic,
    files_in_another_format_are_refused,
    a_log_that_lost_applied_entries_is_refused,
}

const SEGMENT: u64 = 64_000_000;

/// A stopped server with a few writes in its log, and the offset of each record.
struct Stopped {
    server: Server,
    records: Vec<u64>,
    end: u64,
}

impl Stopped {
    async fn new(kind: Kind) -> Self {
        let mut server = Server::start(kind).await;
        let client = server.client();
        for number in 0..20 {
            client.write(format!("k{number:02}"), vec![b'v'; 1_000]).await;
        }
        // The last write is the last record unless a hard state follows it. A clean stop would add a hard state, but a
        // kill does not.
        server.kill();
        let (records, end) = records(server.wal_files().last().unwrap());
        Self { server, records, end }
    }

    fn wal(&self) -> PathBuf {
        self.server.wal_files().last().unwrap().clone()
    }

    async fn start(&mut self) -> Result<usize, Exit> {
        self.server.try_start_again().await?;
        let answer = self.server.client().range(from_key("k")).await.unwrap();
        Ok(answer.kvs.len())
    }
}

/// Returns the offsets of a segment's records, and the end of the last record.
fn records(segment: &Path) -> (Vec<u64>, u64) {
    let bytes = std::fs::read(segment).unwrap();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 8) {
        let head = i64::from_le_bytes(head.try_into().unwrap());
        if head == 0 {
            break;
        }
        found.push(at as u64);
        let padding = if head < 0 { (head >> 56 & 7) as usize } else { 0 };
        at += 8 + (head & 0x00ff_ffff_ffff_ffff) as usize + padding;
    }
    (found, at as u64)
}

fn overwrite(file: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(file).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn truncate(path: &Path, length: u64) {
    File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

/// Checks that a server exited with an error, and that Quorate's log names the file.
#[track_caller]
fn refuses(kind: Kind, outcome: Result<usize, Exit>, file: &str) -> Exit {
    let exit = match outcome {
        Err(exit) => exit,
        Ok(keys) => panic!("the server started with a damaged file and serves {keys} keys"),
    };
    let status =
        exit.status.unwrap_or_else(|| panic!("the server neither serves nor exits: {exit}"));
    assert_ne!(status.code(), Some(0), "{exit}");
    if kind == Kind::Quorate {
        assert!(status.code().is_some(), "the server was killed by a signal: {exit}");
        calm(&exit.log);
        assert!(exit.log.contains(file), "the log does not name the file: {exit}");
    }
    exit
}

/// Checks that the last line of Quorate's log contains this advice.
#[track_caller]
fn advises(kind: Kind, exit: &Exit, advice: &str) {
    let last = exit.log.trim_end().lines().last().unwrap_or_default();
    let is_advised = last.contains("\"what-to-do\":\"") && last.contains(advice);
    assert!(is_advised || kind == Kind::Etcd, "{advice}: {exit}");
}

#[track_caller]
fn calm(log: &str) {
    assert!(!log.contains("panicked at"), "{log}");
}

#[track_caller]
fn ended_by_itself(exit: &Exit, what: &str) {
    let status = exit
        .status
        .unwrap_or_else(|| panic!("{what}: the server neither serves nor exits: {exit}"));
    assert!(status.code().is_some(), "{what}: the server was killed by a signal: {exit}");
    calm(&exit.log);
}

/// Returns the name of the file, which a refusal must contain.
fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

async fn a_torn_last_log_record_is_truncated(kind: Kind) {
    // The file is cut inside the last put, whose record has about a thousand bytes. A short hard state may follow the
    // put.
    for cut in [1, 9, 700] {
        let mut stopped = Stopped::new(kind).await;
        let wal = stopped.wal();
        let last = *stopped.records.iter().rev().find(|at| stopped.end - **at > 800).unwrap();
        truncate(&wal, last + cut);
        let keys = stopped.start().await;
        // The backend may already contain the put. In this case, the log ends before the backend's applied index. Only
        // etcd accepts such a directory.
        match keys {
            Ok(keys) => assert!((19..=20).contains(&keys), "the store has {keys} keys"),
            Err(exit) => {
                assert_eq!(kind, Kind::Quorate, "{exit}");
                refuses(kind, Err(exit), ".wal");
                continue;
            }
        }
        let broken = wal.with_file_name(format!("{}.broken", name(&wal)));
        assert!(broken.exists(), "the damaged file is kept under another name");
        stopped.server.client().write("after", "v").await;
        stopped.server.kill();
        stopped.server.start_again().await;
        assert_eq!(stopped.server.client().read("after").await.unwrap(), b"v");
    }
}

async fn a_zeroed_last_log_record_is_truncated(kind: Kind) {
    let mut stopped = Stopped::new(kind).await;
    let wal = stopped.wal();
    let last = *stopped.records.iter().rev().find(|at| stopped.end - **at > 800).unwrap();
    // The bytes from a sector boundary inside the record to the end of the record are zero.
    let sector = (last + 8 + 512) / 512 * 512;
    overwrite(&wal, sector, &vec![0; usize::try_from(stopped.end - sector).unwrap()]);
    match stopped.start().await {
        Ok(keys) => assert!((19..=20).contains(&keys), "the store has {keys} keys"),
        Err(exit) => {
            assert_eq!(kind, Kind::Quorate, "{exit}");
            refuses(kind, Err(exit), ".wal");
        }
    }
}

async fn a_log_with_a_changed_byte_in_a_record_is_refused(kind: Kind) {
    let stopped = Stopped::new(kind).await;
    let positions = [stopped.records[8] + 300, stopped.end - 400];
    drop(stopped);
    for place in positions {
        let mut stopped = Stopped::new(kind).await;
        let wal = stopped.wal();
        flip(&wal, place);
        let outcome = stopped.start().await;
        refuses(kind, outcome, &name(&wal));
        // If the server is started again, it fails in the same way.
        let outcome = stopped.start().await;
        let exit = refuses(kind, outcome, &name(&wal));
        advises(kind, &exit, "quorate utl verify ");
    }
}

async fn damage_to_an_older_segment_is_refused(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    // The log starts a new segment when the current one is full.
    for number in 0..70 {
        client.write(format!("k{number}"), vec![b'v'; 1_000_000]).await;
    }
    server.kill();
    let files = server.wal_files();
    assert!(files.len() > 1, "{files:?}");
    let (offsets, end) = records(&files[0]);
    assert!(end >= SEGMENT);
    flip(&files[0], offsets[offsets.len() / 2] + 1_000);
    let outcome = server.try_start_again().await.map(|()| 0);
    refuses(kind, outcome, &name(&files[0]));
}

async fn bytes_after_the_end_of_the_log_are_ignored(kind: Kind) {
    let mut stopped = Stopped::new(kind).await;
    // Everything after a record length of zero is ignored.
    overwrite(&stopped.wal(), stopped.end + 8, b"leftovers of an earlier life");
    assert_eq!(stopped.start().await.unwrap(), 20);
    stopped.server.client().write("k99", "v").await;
    stopped.server.kill();
    assert_eq!(stopped.start().await.unwrap(), 21);
}

async fn a_missing_backend_is_refused(kind: Kind) {
    // The server must have taken a disk snapshot, because otherwise it could rebuild the backend from the log alone.
    let mut server = Options::new(kind).flag("--snapshot-count=10").start().await;
    for number in 0..50 {
        server.client().write(format!("k{number}"), "v").await;
    }
    server.stop().await;
    std::fs::remove_file(server.backend()).unwrap();
    let outcome = server.try_start_again().await.map(|()| 0);
    let exit = refuses(kind, outcome, "db");
    advises(kind, &exit, "if the file was moved, put it back");
}

/// Starts a server that takes disk snapshots, and returns it with its snapshot files, oldest first.
async fn with_snapshots(kind: Kind) -> (Server, Vec<PathBuf>) {
    let mut server = Options::new(kind).flag("--snapshot-count=10").start().await;
    for number in 0..50 {
        server.client().write(format!("k{number:02}"), "v").await;
    }
    server.kill();
    let folder = server.data().join("member").join("snap");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "snap")).collect();
    files.sort();
    assert!(files.len() > 1, "{files:?}");
    (server, files)
}

async fn damaged_snapshot_files_are_skipped(kind: Kind) {
    let damages: [fn(&[PathBuf]); 3] = [
        |files| flip(files.last().unwrap(), 40),
        |files| truncate(files.last().unwrap(), 0),
        |files| files.iter().for_each(|file| std::fs::remove_file(file).unwrap()),
    ];
    for damage in damages {
        let (mut server, files) = with_snapshots(kind).await;
        damage(&files);
        server.start_again().await;
        assert_eq!(server.client().range(from_key("k")).await.unwrap().count, 50);
        server.client().write("k99", "v").await;
        server.kill();
        server.start_again().await;
        assert_eq!(server.client().revision().await, 52);
    }
}

async fn leftover_files_of_a_crash_are_ignored(kind: Kind) {
    let mut stopped = Stopped::new(kind).await;
    let member = stopped.server.data().join("member");
    for (name, text) in [
        ("snap/tmp123456789", "half a snapshot"),
        ("snap/00000000000000ff.snap.db", "of another time"),
        ("wal/1.tmp", "half a segment"),
    ] {
        std::fs::write(member.join(name), text).unwrap();
    }
    assert_eq!(stopped.start().await.unwrap(), 20);
    stopped.server.client().write("k99", "v").await;
    stopped.server.kill();
    assert_eq!(stopped.start().await.unwrap(), 21);
}

/// Starts a server on a damaged copy of the directory. Checks that the server either starts without a panic, or exits
/// and names the damaged file.
async fn try_damage(original: &Stopped, damage: impl FnOnce(&Path, &Path), what: &str) {
    let copy = tempfile::TempDir::new().unwrap();
    let data = copy.path().join("data");
    copy_sparse(original.server.data(), &data);
    let wal = data.join("member/wal").join(name(&original.wal()));
    damage(&wal, &data.join("member/snap/db"));
    match Options::new(Kind::Quorate).data(&data).try_start().await {
        Ok(server) => {
            calm(&server.log());
            let answer = server.client().range(from_key("\0")).await;
            if let Ok(answer) = answer {
                assert!(answer.kvs.len() <= 20, "{what}");
            }
        }
        Err(exit) => {
            ended_by_itself(&exit, what);
            let named = exit.log.contains(".wal") || exit.log.contains("/db");
            assert!(named, "{what}: the log does not name the file: {exit}");
        }
    }
}

fn copy_sparse(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .args(["-r", "--sparse=always"])
        .args([from, to])
        .status()
        .unwrap();
    assert!(status.success());
}

fn tries() -> u64 {
    if is_long() { 500 } else { 12 }
}

async fn a_changed_byte_anywhere_in_the_log_is_refused_or_harmless(kind: Kind) {
    let original = Stopped::new(kind).await;
    let mut random = Random::by_chance();
    for _ in 0..tries() {
        let at = random.below(original.end);
        try_damage(&original, |wal, _| flip(wal, at), &format!("byte {at} of the log")).await;
    }
}

async fn a_log_truncated_at_any_offset_is_refused_or_harmless(kind: Kind) {
    let original = Stopped::new(kind).await;
    let mut random = Random::by_chance();
    for _ in 0..tries() {
        let at = random.below(original.end);
        try_damage(&original, |wal, _| truncate(wal, at), &format!("log cut at {at}")).await;
    }
}

async fn stopped_cleanly(kind: Kind) -> Server {
    let mut server = Server::start(kind).await;
    for number in 0..200 {
        server.client().write(format!("k{number:03}"), vec![b'v'; 1_000]).await;
    }
    server.stop().await;
    server
}

async fn a_truncated_backend_is_refused(kind: Kind) {
    for keep in [0, 100, 4_096, 10_000, 40_960] {
        let mut server = stopped_cleanly(kind).await;
        truncate(&server.backend(), keep);
        match server.try_start_again().await {
            // An empty file is recreated if its contents can be rebuilt from the log.
            Ok(()) => {
                assert_eq!(keep, 0, "the member started with a backend file of {keep} bytes");
                assert_eq!(server.client().range(from_key("k")).await.unwrap().count, 200);
            }
            Err(exit) => drop(refuses(kind, Err(exit), "db")),
        }
    }
}

async fn a_backend_without_valid_meta_pages_is_refused(kind: Kind) {
    let mut server = stopped_cleanly(kind).await;
    // The member starts even if one of the two meta pages is damaged.
    let page = 4_096;
    flip(&server.backend(), 16 + 8);
    server.start_again().await;
    assert_eq!(server.client().range(from_key("k")).await.unwrap().count, 200);
    server.stop().await;
    flip(&server.backend(), 16 + 8);
    flip(&server.backend(), page + 16 + 8);
    flip(&server.backend(), 16 + 9);
    let outcome = server.try_start_again().await.map(|()| 0);
    refuses(kind, outcome, "db");
}

async fn a_damaged_backend_never_causes_a_panic(kind: Kind) {
    let mut server = stopped_cleanly(kind).await;
    let size = std::fs::metadata(server.backend()).unwrap().len();
    server.start_again().await;
    server.kill();
    let (records, end) = records(server.wal_files().last().unwrap());
    let original = Stopped { server, records, end };
    let mut random = Random::by_chance();
    for _ in 0..tries() {
        // Only bytes of page headers are changed, because they define the structure of the file.
        let page = random.below(size.min(600_000) / 4_096);
        let at = page * 4_096 + random.below(24);
        let what = format!("byte {at} of the backend");
        let copy = tempfile::TempDir::new().unwrap();
        let data = copy.path().join("data");
        copy_sparse(original.server.data(), &data);
        flip(&data.join("member/snap/db"), at);
        match Options::new(kind).data(&data).try_start().await {
            Ok(server) => {
                let _answer = server.client().range(from_key("\0")).await;
                calm(&server.log());
            }
            Err(exit) => {
                ended_by_itself(&exit, &what);
                assert!(exit.log.contains("db"), "{what}: the log does not name the file: {exit}");
            }
        }
    }
}

async fn files_in_another_format_are_refused(kind: Kind) {
    let mut server = stopped_cleanly(kind).await;
    std::fs::write(server.backend(), b"SQLite format 3\0".repeat(4_096)).unwrap();
    let outcome = server.try_start_again().await.map(|()| 0);
    refuses(kind, outcome, "db");
    let mut server = stopped_cleanly(kind).await;
    let wal = server.wal_files().pop().unwrap();
    std::fs::write(&wal, b"\x7fELF\x02\x01\x01\0".repeat(4_096)).unwrap();
    let outcome = server.try_start_again().await.map(|()| 0);
    refuses(kind, outcome, &name(&wal));
}

async fn a_log_that_lost_applied_entries_is_refused(kind: Kind) {
    // After a clean stop, the backend contains everything. Then the log loses its last writes.
    let mut server = stopped_cleanly(kind).await;
    let wal = server.wal_files().pop().unwrap();
    let (records, end) = records(&wal);
    let place = records[records.len() / 2];
    overwrite(&wal, place, &vec![0; usize::try_from(end - place).unwrap()]);
    let outcome = server.try_start_again().await.map(|()| 0);
    refuses(kind, outcome, ".wal");
}

async fn unknown_files_are_reported(kind: Kind) {
    let mut server = Server::start(kind).await;
    server.stop().await;
    for place in ["wal/notes.txt", "snap/notes.txt"] {
        std::fs::write(server.data().join("member").join(place), "x").unwrap();
    }
    server.start_again().await;
    let log = server.log_of_this_run();
    for words in ["ignored file in WAL directory", "found unexpected non-snap file"] {
        let line = log.lines().find(|line| line.contains(words));
        assert!(line.is_some_and(|line| line.contains("notes.txt")), "{words}: {log}");
    }
}
