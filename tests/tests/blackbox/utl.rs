//! `quorate utl` compared with Debian's `etcdutl`: both must print the same output for equal files, and both servers
//! must start from the files that either tool writes.
//!
//! The kind under test is the kind of server that wrote the files. Quorate keeps the cluster version at 3.5, so that
//! Debian's etcd can start from these files.

use std::path::{Path, PathBuf};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Finished, Kind, Options, Server, Utl, Watch, delete, has_etcd_tools, on_both_servers, watch_key,
};

on_both_servers! {
    alone:
    status_output_matches_etcdutl,
    a_snapshot_can_be_restored_as_one_member_of_etcd_or_quorate,
    a_snapshot_can_be_restored_as_three_members_of_etcd_or_quorate,
    a_bumped_revision_cancels_watches_of_older_revisions,
    failed_restores_print_the_same_errors_as_etcdutl,
    restoring_a_damaged_snapshot_leaves_no_files,
    utl_and_the_server_compute_equal_hashes,
    a_defragmented_directory_is_smaller_and_complete,
    the_storage_version_can_be_migrated_down_and_up,
    the_files_of_a_running_member_are_refused,
    files_are_dumped_as_text,
    verify_reports_the_condition_of_a_directory,
}

const KEYS: usize = 100;

/// Returns options with which a server of either kind writes files that etcd 3.5 can read.
fn options(kind: Kind) -> Options {
    let options = Options::new(kind);
    if kind == Kind::Quorate { options.flag("--hold-cluster-version=3.5") } else { options }
}

/// Starts a server with some data, and saves a snapshot of it.
async fn saved(kind: Kind) -> (Server, PathBuf) {
    let server = options(kind).start().await;
    let client = server.client();
    for number in 0..KEYS {
        client.write(format!("k{number}"), number.to_string()).await;
    }
    let pieces = client.snapshot().await.unwrap();
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.blob.to_vec()).collect();
    let file = server.scratch().join("saved.db");
    std::fs::write(&file, bytes).unwrap();
    (server, file)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the line that states why a tool failed.
fn complaint(finished: &Finished) -> &str {
    let mut lines = finished.stderr.lines();
    lines.find(|line| line.starts_with("Error: ")).unwrap_or_else(|| panic!("{finished:?}"))
}

async fn status_output_matches_etcdutl(kind: Kind) {
    if !has_etcd_tools() {
        return;
    }
    let (_server, file) = saved(kind).await;
    for (format, separator) in [("simple", ", "), ("json", ","), ("fields", "\n")] {
        let args = ["snapshot", "status", text(&file), "-w", format];
        let (theirs, ours) = (Utl::Etcdutl.run(&args).success(), Utl::Quorate.run(&args).success());
        let parts = |text: &str| -> Vec<String> {
            text.trim_end_matches('\n').split(separator).map(|part| part.replace('}', "")).collect()
        };
        let (theirs, ours) = (parts(&theirs), parts(&ours));
        // etcdutl 3.5 counts the entries of all buckets as keys, and does not print the version of the file.
        assert_eq!((&ours[..2], &ours[3]), (&theirs[..2], &theirs[3]), "{format}");
        assert!(ours[2].contains("100") && theirs.len() == 4 && ours.len() == 5, "{ours:?}");
    }
    for format in ["protobuf", "unheard-of"] {
        let args = ["snapshot", "status", text(&file), "-w", format];
        let (theirs, ours) = (Utl::Etcdutl.run(&args), Utl::Quorate.run(&args));
        assert_eq!((ours.code, complaint(&ours)), (theirs.code, complaint(&theirs)));
    }
    let table = Utl::Quorate.run(&["snapshot", "status", text(&file), "-w", "table"]).success();
    assert!(table.contains("│ TOTAL KEYS │") && table.contains("│        100 │"), "{table}");
    for args in [&["snapshot", "status"][..], &["snapshot", "status", "/nonexistent/file"]] {
        let (theirs, ours) = (Utl::Etcdutl.run(args), Utl::Quorate.run(args));
        assert_eq!((ours.code, complaint(&ours)), (theirs.code, complaint(&theirs)));
    }
}

/// Restores the members of one cluster, and starts them.
async fn restore(utl: Utl, kind: Kind, names: &[&str], file: &Path, more: &[&str]) -> Vec<Server> {
    let prepare = |name: &&str| {
        let options = options(kind).name(name);
        let options = if names.len() > 1 { options.timing(50, 500) } else { options };
        options.prepare()
    };
    let mut servers: Vec<Server> = names.iter().map(prepare).collect();
    let words = servers.iter().map(|server| format!("{}={}", server.name(), server.peer_url()));
    let words = words.collect::<Vec<_>>().join(",");
    for server in &mut servers {
        let cluster = format!("--initial-cluster={words}");
        let peer = format!("--initial-advertise-peer-urls={}", server.peer_url());
        let name = format!("--name={}", server.name());
        let data = format!("--data-dir={}", server.data().display());
        let args = ["snapshot", "restore", text(file), &name, &cluster, &peer, &data];
        drop(utl.run(&[&args[..], more].concat()).success());
        server.set_cluster(words.clone(), false);
        server.launch();
    }
    for server in &mut servers {
        let ready = server.ready().await;
        ready.unwrap_or_else(|exit| panic!("{} failed to start: {exit}", server.name()));
    }
    servers
}

/// Returns the installed pairs of tool and server of which at least one is Quorate's.
fn pairs() -> Vec<(Utl, Kind)> {
    let ours = (Utl::Quorate, Kind::Quorate);
    if has_etcd_tools() && Kind::Etcd.is_present() {
        vec![ours, (Utl::Quorate, Kind::Etcd), (Utl::Etcdutl, Kind::Quorate)]
    } else {
        vec![ours]
    }
}

async fn hash(server: &Server, revision: i64) -> (u32, i64) {
    let hash = server.client().hash_kv(pb::HashKvRequest { revision }).await.unwrap();
    (hash.hash, hash.compact_revision)
}

async fn becomes(kind: Kind, names: &[&str]) {
    let (server, file) = saved(kind).await;
    let revision = server.client().revision().await;
    let expected = hash(&server, revision).await;
    let mut clusters = Vec::new();
    for (utl, kind) in pairs() {
        let mut restored = restore(utl, kind, names, &file, &[]).await;
        for server in &restored {
            let client = server.client();
            assert_eq!(client.read("k99").await.unwrap(), b"99", "{utl:?} {kind:?}");
            assert_eq!(hash(server, revision).await, expected, "{utl:?} {kind:?}");
            let list = pb::MemberListRequest { linearizable: true };
            let listed = client.member_list(list).await.unwrap();
            let mut found: Vec<_> = listed.members.into_iter().map(|member| member.name).collect();
            found.sort();
            assert_eq!(found, names, "{utl:?} {kind:?}");
            clusters.push((listed.header.unwrap().cluster_id, utl, kind));
        }
        restored[0].client().write("after", "restore").await;
        // Writes survive a restart, because the member appended them to the restored log.
        restored[0].kill();
        restored[0].start_again().await;
        assert_eq!(restored[0].client().read("after").await.unwrap(), b"restore");
    }
    assert_eq!(clusters.len(), names.len() * pairs().len());
}

async fn a_snapshot_can_be_restored_as_one_member_of_etcd_or_quorate(kind: Kind) {
    becomes(kind, &["alone"]).await;
}

async fn a_snapshot_can_be_restored_as_three_members_of_etcd_or_quorate(kind: Kind) {
    becomes(kind, &["r0", "r1", "r2"]).await;
}

async fn a_bumped_revision_cancels_watches_of_older_revisions(kind: Kind) {
    let (server, file) = saved(kind).await;
    let revision = server.client().revision().await;
    for (utl, kind) in pairs() {
        let raised = ["--bump-revision=1000", "--mark-compacted"];
        let restored = restore(utl, kind, &["alone"], &file, &raised).await;
        let client = restored[0].client();
        assert_eq!(client.read("k99").await.unwrap(), b"99");
        assert_eq!(client.revision().await, revision + 1000, "{utl:?} {kind:?}");
        let mut watch = Watch::open(&client);
        let request = pb::WatchCreateRequest { start_revision: revision, ..watch_key("k1") };
        let created = watch.create(request).await;
        assert!(created.created);
        let ended = watch.next().await;
        assert!(ended.canceled, "{utl:?} {kind:?}: {ended:?}");
        assert_eq!(ended.compact_revision, revision + 1000, "{utl:?} {kind:?}");
        assert_eq!(client.write("k1", "new").await, revision + 1001);
    }
}

async fn failed_restores_print_the_same_errors_as_etcdutl(kind: Kind) {
    if !has_etcd_tools() {
        return;
    }
    let (server, file) = saved(kind).await;
    let place = server.scratch();
    let (full, taken) = (place.join("full"), place.join("taken"));
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("file"), "").unwrap();
    std::fs::create_dir(&taken).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let bare = place.join("bare.db");
    std::fs::write(&bare, &bytes[..bytes.len() - 32]).unwrap();
    bytes[9000] ^= 1;
    let damaged = place.join("damaged.db");
    std::fs::write(&damaged, bytes).unwrap();
    let (data, good) = (place.join("new"), text(&file));
    let data = format!("--data-dir={}", data.display());
    let in_full = format!("--data-dir={}", full.display());
    let wal = format!("--wal-dir={}", taken.display());
    let twice = "--initial-cluster=default=http://localhost:2380,b=http://localhost:2380";
    for args in [
        &[][..],
        &[good, good, &data],
        &[good, &in_full],
        &[good, &data, &wal],
        &[text(&bare), &data],
        &[text(&damaged), &data],
        &["/nonexistent/file", &data],
        &[good, &data, "--bump-revision=5"],
        &[good, &data, "--mark-compacted"],
        &[good, &data, "--name=other"],
        &[good, &data, twice],
        &[good, &data, "--initial-cluster=default=bogus"],
        &[good, &data, "--initial-advertise-peer-urls=bogus"],
        &[good, &data, "--bump-revision=x"],
        &[good, &data, "--unheard-of"],
    ] {
        let args = [&["snapshot", "restore"], args].concat();
        // etcdutl 3.5 requires the name of a directory.
        let named = if args.len() == 2 { [&args[..], &[&data]].concat() } else { args };
        let theirs = Utl::Etcdutl.run(&named);
        // etcdutl does not remove its incomplete result.
        drop(std::fs::remove_dir_all(place.join("new")));
        let ours = Utl::Quorate.run(&named);
        assert_eq!((ours.code, complaint(&ours)), (theirs.code, complaint(&theirs)), "{named:?}");
        assert!(!place.join("new").exists(), "{named:?}");
    }
    assert_eq!(std::fs::read_dir(&full).unwrap().count(), 1);
    assert_eq!(std::fs::read_dir(&taken).unwrap().count(), 0);
}

async fn restoring_a_damaged_snapshot_leaves_no_files(kind: Kind) {
    let (server, file) = saved(kind).await;
    let bytes = std::fs::read(&file).unwrap();
    let place = server.scratch();
    let (data, wal) = (place.join("new"), place.join("new-log"));
    let data_flag = format!("--data-dir={}", data.display());
    let wal_flag = format!("--wal-dir={}", wal.display());
    let bad = place.join("bad.db");
    let foreign = b"something else".repeat(1000);
    for (what, bytes) in [
        ("empty", &[][..]),
        ("foreign", &foreign),
        ("cut in a page", &bytes[..10_000]),
        ("cut at a page", &bytes[..8192]),
    ] {
        std::fs::write(&bad, bytes).unwrap();
        let args = ["snapshot", "restore", text(&bad), &data_flag, &wal_flag, "--skip-hash-check"];
        let refused = Utl::Quorate.run(&args);
        assert_eq!(refused.code, Some(1), "{what}: {refused:?}");
        assert!(!data.exists() && !wal.exists(), "{what}");
        assert_eq!(Utl::Quorate.run(&["snapshot", "status", text(&bad)]).code, Some(1), "{what}");
        assert_eq!(std::fs::read(&bad).unwrap(), bytes, "{what}");
    }
    // Without a digest, each page is checked.
    let mut detected = 0;
    for page in 2..bytes.len() / 4096 {
        let mut changed = bytes.clone();
        changed[page * 4096 + 20..][..2].copy_from_slice(b"XX");
        std::fs::write(&bad, changed).unwrap();
        let judged = Utl::Quorate.run(&["snapshot", "verify", text(&bad)]);
        let args = ["snapshot", "restore", text(&bad), &data_flag, &wal_flag, "--skip-hash-check"];
        let restored = Utl::Quorate.run(&args);
        if judged.stdout.contains(" byte ") {
            assert_eq!(restored.code, Some(1), "{page}: {restored:?} {judged:?}");
            assert!(complaint(&restored).contains(text(&bad)), "{restored:?}");
            assert!(!data.exists() && !wal.exists(), "{page}");
        }
        detected += usize::from(restored.stderr.contains("bad.db is damaged at offset "));
        drop((std::fs::remove_dir_all(&data), std::fs::remove_dir_all(&wal)));
    }
    assert!(detected > 0, "no damaged page was detected");
    let args = ["snapshot", "restore", text(&file), &data_flag, &wal_flag];
    drop(Utl::Quorate.run(&args).success());
    assert!(data.join("member/snap/db").is_file() && !data.join("member/wal").exists());
    assert_eq!(std::fs::read_dir(&wal).unwrap().count(), 1);
}

async fn utl_and_the_server_compute_equal_hashes(kind: Kind) {
    let server = options(kind).start().await;
    let client = server.client();
    for number in 0..50 {
        client.write(format!("k{}", number % 7), number.to_string()).await;
    }
    client.delete_range(delete("k3", "")).await.unwrap();
    client.compact_to(20).await;
    let pieces = client.snapshot().await.unwrap();
    let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.blob.to_vec()).collect();
    let file = server.scratch().join("saved.db");
    std::fs::write(&file, &bytes).unwrap();
    for revision in [0, 21, 30, 51] {
        let rev = format!("--rev={revision}");
        let seen = Utl::Quorate.run(&["hashkv", text(&file), &rev]).success();
        let (hash, compacted) = hash(&server, revision).await;
        let at = if revision == 0 { client.revision().await } else { revision };
        assert_eq!(seen, format!("{hash}, {at}, {compacted}\n"));
    }
    let early = Utl::Quorate.run(&["hashkv", text(&file), "--rev=5"]);
    assert_eq!((early.code, complaint(&early).contains("compacted")), (Some(1), true), "{early:?}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "the file was changed");
}

async fn a_defragmented_directory_is_smaller_and_complete(kind: Kind) {
    let mut server = options(kind).start().await;
    let client = server.client();
    for number in 0..40 {
        client.write(format!("k{number}"), vec![b'x'; 100_000]).await;
    }
    let revision = client.write("kept", "yes").await;
    client.delete_range(delete("k", "k9")).await.unwrap();
    let compact = pb::CompactionRequest { revision: revision + 1, physical: true };
    client.compact(compact).await.unwrap();
    let expected = hash(&server, 0).await;
    server.stop().await;
    let before = std::fs::metadata(server.backend()).unwrap().len();
    let data = format!("--data-dir={}", server.data().display());
    drop(Utl::Quorate.run(&["defrag", &data]).success());
    let after = std::fs::metadata(server.backend()).unwrap().len();
    assert!(after * 4 < before, "the file shrank from {before} to {after} bytes");
    let left: Vec<_> = std::fs::read_dir(server.data().join("member/snap")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    drop(Utl::Quorate.run(&["snapshot", "status", text(&server.backend())]).success());
    if has_etcd_tools() {
        let copy = server.scratch().join("copy.db");
        std::fs::copy(server.backend(), &copy).unwrap();
        drop(Utl::Etcdutl.run(&["snapshot", "status", text(&copy)]).success());
    }
    server.start_again().await;
    assert_eq!(server.client().read("kept").await.unwrap(), b"yes");
    assert_eq!(hash(&server, 0).await, expected);
    let absent = Utl::Quorate.run(&["defrag"]);
    assert_eq!(complaint(&absent), "Error: required flag(s) \"data-dir\" not set");
    let missing = Utl::Quorate.run(&["defrag", "--data-dir=/nonexistent"]);
    assert_eq!(missing.code, Some(1));
}

async fn the_storage_version_can_be_migrated_down_and_up(kind: Kind) {
    let mut server = options(kind).start().await;
    server.client().write("k", "v").await;
    server.stop().await;
    let data = format!("--data-dir={}", server.data().display());
    let backend = server.backend();
    let version = || {
        let args = ["snapshot", "status", text(&backend), "-w", "json"];
        let seen: serde_json::Value =
            serde_json::from_str(&Utl::Quorate.run(&args).success()).unwrap();
        seen["version"].as_str().unwrap().to_owned()
    };
    let migrate =
        |target: &str| Utl::Quorate.run(&["migrate", &data, &format!("--target-version={target}")]);
    assert_eq!(version(), "");
    for (target, named) in [("3.6", "3.6.0"), ("3.7", "3.7.0"), ("3.7", "3.7.0"), ("3.5", "")] {
        drop(migrate(target).success());
        assert_eq!(version(), named);
    }
    // The log line of each step contains the full version, including the patch number.
    let steps = |finished: &Finished| {
        let lines = finished.stderr.lines().filter(|line| line.contains("updated storage version"));
        lines.map(|line| line.split('"').nth(3).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(steps(&migrate("3.7")), ["3.6.0", "3.7.0"]);
    assert_eq!(steps(&migrate("3.5")), ["3.6.0", "3.5.0"]);
    let forced = |target: &str| {
        let args = ["migrate", &data, &format!("--target-version={target}"), "--force"];
        let forced = Utl::Quorate.run(&args);
        assert_eq!(forced.code, Some(0), "{forced:?}");
        forced.stderr
    };
    let set = forced("3.9");
    assert!(set.contains("normal migrate failed, trying with force"), "{set}");
    assert!(
        set.contains("forcefully set storage version\t{\"storage-version\": \"3.9\"}"),
        "{set}"
    );
    let cleared = forced("3.5");
    assert!(cleared.contains("forcefully cleared storage version"), "{cleared}");
    let unparsed = migrate("3.a");
    let expected =
        "Error: failed to parse target version: strconv.ParseInt: parsing \"a\": invalid syntax";
    assert_eq!((unparsed.code, complaint(&unparsed)), (Some(128), expected));
    let wrong = migrate("3");
    let expected = "Error: wrong target version format, expected \"X.Y\", got \"3\"";
    assert_eq!((wrong.code, complaint(&wrong)), (Some(128), expected));
    assert_eq!(migrate("3.8").code, Some(1));
    server.start_again().await;
    assert_eq!(server.client().read("k").await.unwrap(), b"v");
}

async fn the_files_of_a_running_member_are_refused(kind: Kind) {
    let (mut server, _) = saved(kind).await;
    let (data, backend) = (text(server.data()), server.backend());
    let (backend, new) = (text(&backend), server.scratch().join("new"));
    let before = server.client().revision().await;
    for args in [
        &["snapshot", "status", backend][..],
        &["hashkv", backend],
        &["defrag", "--data-dir", data],
        &["migrate", "--data-dir", data, "--target-version=3.6"],
        &["snapshot", "restore", backend, "--skip-hash-check", "--data-dir", text(&new)],
    ] {
        let refused = Utl::Quorate.run(args);
        assert_eq!(refused.code, Some(1), "{args:?}");
        assert!(complaint(&refused).contains("is in use by a running member"), "{refused:?}");
    }
    assert!(!new.exists());
    // The timeout also applies to the wait for a file in use. Zero means no timeout, as with etcdutl.
    let started = std::time::Instant::now();
    let refused = Utl::Quorate.run(&["hashkv", backend, "--timeout=300ms"]);
    assert!(complaint(&refused).contains("is in use by a running member"), "{refused:?}");
    assert!(started.elapsed() >= std::time::Duration::from_millis(300));
    let mut waiting = std::process::Command::new(Kind::Quorate.program())
        .args(["utl", "hashkv", backend, "--timeout=0"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(waiting.try_wait().unwrap(), None);
    server.client().write("k1", "goes on").await;
    assert_eq!(server.client().revision().await, before + 1);
    assert_eq!(waiting.try_wait().unwrap(), None, "the tool waits for the member");
    server.stop().await;
    let ended =
        quorate_tests::eventually("the tool exits", async || waiting.try_wait().unwrap()).await;
    assert!(ended.success());
}

/// Parses the JSON objects that a tool prints line by line.
fn lines(finished: Finished) -> Vec<serde_json::Value> {
    finished.success().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn files_are_dumped_as_text(kind: Kind) {
    let (mut server, _) = saved(kind).await;
    server.client().delete_range(delete("k1", "")).await.unwrap();
    server.stop().await;
    let (backend, data) = (server.backend(), text(server.data()));
    let db = |args: &[&str]| {
        let (command, rest) = args.split_first().unwrap();
        Utl::Quorate.run(&[&["db", command, text(&backend)], rest].concat())
    };
    let buckets = db(&["buckets", "-w", "json"]).success();
    let buckets: serde_json::Value = serde_json::from_str(&buckets).unwrap();
    let records = buckets.as_array().unwrap().iter().find(|row| row["bucket"] == "key").unwrap();
    assert_eq!(records["keys"], KEYS + 1);
    let keys = lines(db(&["keys", "key", "-w", "json"]));
    assert_eq!((&keys[0]["revision"], &keys[0]["key"]), (&"2/0".into(), &"\"k0\"".into()));
    assert_eq!(keys.last().unwrap()["revision"], format!("{}/0 deleted", KEYS + 2));
    assert_eq!(db(&["keys", "key", "--limit=3"]).success().lines().count(), 3);
    assert!(db(&["get", "key", "2/0"]).success().contains("k0"));
    assert!(db(&["get", "members", "absent"]).stderr.contains("there is no key absent"));
    assert!(db(&["keys", "absent"]).stderr.contains("there is no bucket absent"));
    assert_eq!(db(&["check"]).success(), "OK\n");
    let pages = lines(db(&["pages", "-w", "json"]));
    assert_eq!((&pages[0]["type"], &pages[1]["type"]), (&"meta".into(), &"meta".into()));
    assert!(db(&["stats", "-w", "fields"]).success().contains("\"PageSize\" : 4096\n"));
    let records = lines(Utl::Quorate.run(&["wal", "dump", data, "-w", "json"]));
    let says = |text: &str| records.iter().any(|row| row["says"].as_str().unwrap().contains(text));
    assert!(says("member ") && says("add member ") && says("put \"k99\" (2 bytes)"), "{records:?}");
    assert!(says("delete \"k1\"") && says("committed"), "{records:?}");
    assert_eq!(Utl::Quorate.run(&["wal", "dump", data, "-w", "table"]).code, Some(4));
    assert_eq!(Utl::Quorate.run(&["snap", "dump", data]).code, Some(0));
    let other = Utl::Quorate.run(&["snap", "dump", text(&backend)]);
    assert!(complaint(&other).contains("is a backend file") && complaint(&other).contains("`db`"));
}

async fn verify_reports_the_condition_of_a_directory(kind: Kind) {
    let (mut server, _) = saved(kind).await;
    let data = server.data().to_owned();
    let verify = || Utl::Quorate.run(&["verify", text(&data)]);
    let running = verify();
    assert!(complaint(&running).contains("is in use by a running member"), "{running:?}");
    server.kill();
    let killed = verify().success();
    assert!(killed.contains("ok, log, ") && !killed.contains("DAMAGED"), "{killed}");
    server.start_again().await;
    let expected = hash(&server, 0).await.0;
    server.stop().await;
    let stopped = verify().success();
    assert!(stopped.contains(&format!("HashKV {expected}")), "{stopped}");

    // The log lacks an acknowledged entry at its end.
    let segment = server.wal_files().pop().unwrap();
    let log = std::fs::read(&segment).unwrap();
    let records = lines(Utl::Quorate.run(&["wal", "dump", text(&data), "-w", "json"]));
    let last = records.iter().find(|row| row["says"] == "put \"k99\" (2 bytes)").unwrap();
    let offset = usize::try_from(last["offset"].as_u64().unwrap()).unwrap();
    std::fs::write(&segment, &log[..offset]).unwrap();
    let cut = verify();
    assert!(cut.stdout.contains("the log has lost entries"), "{cut:?}");
    assert!(cut.code == Some(1) && complaint(&cut).contains("do not start a member"), "{cut:?}");

    // One byte is changed within the log, and then one in the backend file.
    let mut changed = log.clone();
    changed[offset + 20] ^= 1;
    std::fs::write(&segment, changed).unwrap();
    let broken = verify();
    assert!(broken.stdout.contains(&format!("position: {offset}")), "{broken:?}");
    std::fs::write(&segment, log).unwrap();
    let pages = lines(Utl::Quorate.run(&["db", "pages", text(&server.backend()), "-w", "json"]));
    let leaf = pages
        .iter()
        .filter(|page| page["type"] == "leaf")
        .max_by_key(|page| page["items"].as_u64().unwrap());
    let at = usize::try_from(leaf.unwrap()["id"].as_u64().unwrap()).unwrap() * 4096;
    let good = std::fs::read(server.backend()).unwrap();
    let mut bad = good.clone();
    // This byte is part of the page number in the page header.
    bad[at] ^= 1;
    std::fs::write(server.backend(), bad).unwrap();
    let broken = verify();
    assert!(broken.code == Some(1) && broken.stdout.contains("DAMAGED, backend, "), "{broken:?}");
    std::fs::write(server.backend(), good).unwrap();
    assert_eq!(verify().success(), stopped);
    server.start_again().await;
}
