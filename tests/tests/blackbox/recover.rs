//! `quorate utl recover`: a cluster that has permanently lost its quorum becomes a new cluster with all acknowledged
//! writes, or the tool reports that some writes may be missing.
//!
//! The kind under test is the kind of the lost cluster's servers. The recovered cluster is started as Quorate and, if
//! etcd is installed, also as etcd. Quorate keeps the cluster version at 3.5, so that Debian's etcd can start from
//! these files.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, Finished, Kind, Options, Server, Utl, eventually, has_etcd_tools,
    on_both_servers, put_leased,
};
use serde_json::Value;

on_both_servers! {
    alone:
    the_recovered_cluster_contains_every_acknowledged_write,
    no_acknowledged_write_is_lost_without_the_most_advanced_member,
    overwritten_entries_are_left_out_and_reported,
    recovery_from_a_minority_requires_accept_data_loss,
    a_damaged_log_is_reported_and_the_next_member_is_chosen,
    directories_that_cannot_be_compared_are_refused,
}

const LEASE: i64 = 4711;

/// Starts a cluster of three members whose files etcd 3.5 can read. The election timeout is long, so that an isolated
/// leader keeps its role for a while.
async fn three(kind: Kind) -> Cluster {
    let options = ClusterOptions::new(kind, 3).linked().timing(100, 3000);
    match kind {
        Kind::Quorate => options.flag("--hold-cluster-version=3.5").start().await,
        Kind::Etcd => options.start().await,
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn data(cluster: &Cluster, member: usize) -> &Path {
    cluster.server(member).data()
}

fn kill_all(cluster: &mut Cluster) {
    for member in cluster.running() {
        cluster.kill(member);
    }
}

/// Returns the line that states why the tool failed.
fn complaint(finished: &Finished) -> &str {
    complaint_with(1, finished)
}

fn complaint_with(code: i32, finished: &Finished) -> &str {
    assert_eq!(finished.code, Some(code), "{finished:?}");
    let mut lines = finished.stderr.lines();
    lines.find(|line| line.starts_with("Error: ")).unwrap_or_else(|| panic!("{finished:?}"))
}

/// Returns the plan for these directories as JSON, without creating anything.
fn plan(directories: &[&Path], more: &[&str]) -> (Value, Finished) {
    let place = tempfile::tempdir().unwrap();
    let output = format!("--data-dir={}", place.path().join("new").display());
    let mut args = vec!["recover", "-w", "json", &output];
    args.extend(directories.iter().map(|path| text(path)));
    let finished = Utl::Quorate.run(&[&args[..], more].concat());
    assert_eq!(
        std::fs::read_dir(place.path()).unwrap().count(),
        0,
        "the tool prints only a plan and creates no files"
    );
    let shown = serde_json::from_str(&finished.stdout);
    (shown.unwrap_or_else(|error| panic!("{error}: {finished:?}")), finished)
}

/// Returns names, times, lengths and contents of all files in some folders.
fn seen(folders: &[&Path]) -> BTreeMap<PathBuf, (SystemTime, u64, u64)> {
    let mut seen = BTreeMap::new();
    let mut left: Vec<PathBuf> = folders.iter().map(|path| path.to_path_buf()).collect();
    while let Some(path) = left.pop() {
        let facts = std::fs::symlink_metadata(&path).unwrap();
        let mut hasher = DefaultHasher::new();
        if facts.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            std::fs::read(&path).unwrap().hash(&mut hasher);
        }
        seen.insert(path, (facts.modified().unwrap(), facts.len(), hasher.finish()));
    }
    seen
}

/// Creates the members of a new cluster from these directories, and starts them.
async fn recovered(kind: Kind, directories: &[&Path], more: &[&str]) -> Vec<Server> {
    let prepare = |name: &str| {
        let options = Options::new(kind).name(name).timing(50, 500);
        match kind {
            Kind::Quorate => options.flag("--hold-cluster-version=3.5").prepare(),
            Kind::Etcd => options.prepare(),
        }
    };
    let mut servers: Vec<Server> = ["r0", "r1", "r2"].map(prepare).into();
    let words = servers.iter().map(|server| format!("{}={}", server.name(), server.peer_url()));
    let words = words.collect::<Vec<_>>().join(",");
    for server in &mut servers {
        let flags = [
            format!("--initial-cluster={words}"),
            format!("--initial-advertise-peer-urls={}", server.peer_url()),
            format!("--name={}", server.name()),
            format!("--data-dir={}", server.data().display()),
        ];
        let mut args = vec!["recover", "--yes"];
        args.extend(flags.iter().map(String::as_str));
        args.extend(directories.iter().map(|path| text(path)));
        let said = Utl::Quorate.run(&[&args[..], more].concat()).success();
        assert!(said.contains("are created in"), "{said}");
        drop(Utl::Quorate.run(&["verify", text(server.data())]).success());
        server.set_cluster(words.clone(), false);
        server.launch();
    }
    for server in &mut servers {
        let ready = server.ready().await;
        ready.unwrap_or_else(|exit| panic!("{} failed to start: {exit}", server.name()));
    }
    servers
}

/// Returns the installed kinds of server.
fn kinds() -> Vec<Kind> {
    let etcd = has_etcd_tools() && Kind::Etcd.is_present();
    if etcd { vec![Kind::Quorate, Kind::Etcd] } else { vec![Kind::Quorate] }
}

async fn hash(server: &Server, revision: i64) -> u32 {
    server.client().hash_kv(pb::HashKvRequest { revision }).await.unwrap().hash
}

async fn holds(server: &Server, key: &str, value: &str) {
    let found = server.client().read(key).await;
    let found = found.map(|found| String::from_utf8(found).unwrap());
    assert_eq!(found.as_deref(), Some(value), "{key}");
}

/// Writes one key after another until the cluster no longer serves. Returns the number of acknowledged keys.
fn write_on(cluster: &Cluster, member: usize) -> tokio::task::JoinHandle<u32> {
    let client = cluster.client(member);
    tokio::spawn(async move {
        for number in 0.. {
            let request = quorate_tests::put(format!("k{number}"), number.to_string());
            if client.put(request).await.is_err() {
                return number;
            }
        }
        u32::MAX
    })
}

async fn the_recovered_cluster_contains_every_acknowledged_write(kind: Kind) {
    let mut cluster = three(kind).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.grant(LEASE, 10_000).await;
    client.put(put_leased("leased", "v", LEASE)).await.unwrap();
    let user = pb::AuthUserAddRequest {
        name: "someone".to_owned(),
        password: "secret".to_owned(),
        ..pb::AuthUserAddRequest::default()
    };
    client.user_add(user).await.unwrap();
    let before = cluster.settle().await;
    let writing = write_on(&cluster, leader);
    let client = cluster.client((leader + 1) % 3);
    eventually("a hundred keys are written", async || {
        client.read("k100").await.is_some().then_some(())
    })
    .await;
    kill_all(&mut cluster);
    let acknowledged = writing.await.unwrap();
    assert!(acknowledged > 100);

    let directories = [data(&cluster, 0), data(&cluster, 1), data(&cluster, 2)];
    let files = seen(&directories);
    let (plan, _) = plan(&directories, &[]);
    let (plan, listed) = (&plan["plan"], &plan["directories"]);
    assert_eq!((&plan["hasMajority"], &plan["made"]), (&true.into(), &false.into()), "{plan}");
    assert_eq!(plan["votersHere"].as_array().unwrap().len(), 3);
    assert_eq!((&plan["kept"]["leases"], &plan["kept"]["users"]), (&1.into(), &1.into()));
    let revision = plan["kept"]["revision"].as_i64().unwrap();
    assert!(revision >= before + i64::from(acknowledged), "{plan}");
    let chosen: Vec<&Value> = listed.as_array().unwrap().iter().collect();
    assert_eq!(chosen.iter().filter(|one| one["verdict"] == "sound, chosen").count(), 1);
    for kind in kinds() {
        let mut servers = recovered(kind, &directories, &[]).await;
        for server in &servers {
            for number in (0..acknowledged).rev().step_by(7) {
                holds(server, &format!("k{number}"), &number.to_string()).await;
            }
            holds(server, "leased", "v").await;
            let client = server.client();
            assert!(client.renew(LEASE).await.unwrap() > 0);
            let users = client.user_list(pb::AuthUserListRequest {}).await.unwrap();
            assert_eq!(users.users, ["someone"]);
            assert_eq!(u64::from(hash(server, revision).await), plan["kept"]["hash"], "{kind:?}");
        }
        servers[1].client().write("after", "recovery").await;
        servers[2].kill();
        servers[2].start_again().await;
        holds(&servers[2], "after", "recovery").await;
    }
    assert_eq!(seen(&directories), files, "the input directories are unchanged");
}

/// Makes the leader write an entry that no other member receives, waits until the entry is in its log, then kills the
/// leader. Returns the leader's number.
async fn write_alone(cluster: &mut Cluster, key: &str) -> usize {
    let leader = cluster.leader().await;
    cluster.settle().await;
    cluster.links().isolate(leader);
    let (client, lonely) = (cluster.client(leader), key.to_owned());
    let writing = tokio::spawn(async move {
        let request = quorate_tests::put(lonely, "never acknowledged");
        client.put(request).await
    });
    let wanted = format!("put \"{key}\"");
    eventually("the write is in the leader's log", async || {
        let dumped = Utl::Quorate.run(&["wal", "dump", text(data(cluster, leader))]).success();
        dumped.contains(&wanted).then_some(())
    })
    .await;
    cluster.kill(leader);
    assert!(writing.await.unwrap().is_err(), "the write was acknowledged");
    leader
}

async fn no_acknowledged_write_is_lost_without_the_most_advanced_member(kind: Kind) {
    let mut cluster = three(kind).await;
    let client = cluster.client(0);
    for number in 0..50 {
        client.write(format!("k{number}"), number.to_string()).await;
    }
    let furthest = write_alone(&mut cluster, "lonely").await;
    let others: Vec<usize> = (0..3).filter(|member| *member != furthest).collect();
    kill_all(&mut cluster);
    let all = [data(&cluster, 0), data(&cluster, 1), data(&cluster, 2)];
    let (plan_of_all, _) = plan(&all, &[]);
    let shown = &plan_of_all["plan"];
    assert_eq!(shown["chosen"], text(data(&cluster, furthest)), "{shown}");
    assert!(shown["notKnownToBeCommitted"]["last"].is_u64(), "{shown}");
    let said = Utl::Quorate.run(&["recover", text(all[0]), text(all[1]), text(all[2])]).success();
    assert!(said.contains("not known to be committed: ") && said.contains("put \"lonely\""));

    let left = [data(&cluster, others[0]), data(&cluster, others[1])];
    let (plan_of_two, _) = plan(&left, &[]);
    let shown = &plan_of_two["plan"];
    assert_eq!(
        (&shown["hasMajority"], shown["voters"].as_array().unwrap().len()),
        (&true.into(), 3)
    );
    for kind in kinds() {
        let servers = recovered(kind, &left, &[]).await;
        holds(&servers[0], "k49", "49").await;
        assert_eq!(servers[0].client().read("lonely").await, None);
        let more = recovered(kind, &all, &[]).await;
        holds(&more[0], "k49", "49").await;
        holds(&more[0], "lonely", "never acknowledged").await;
    }
}

async fn overwritten_entries_are_left_out_and_reported(kind: Kind) {
    let mut cluster = three(kind).await;
    let former = write_alone(&mut cluster, "lonely").await;
    let leader = cluster.leader().await;
    cluster.client(leader).write("later", "acknowledged").await;
    kill_all(&mut cluster);
    let all = [data(&cluster, 0), data(&cluster, 1), data(&cluster, 2)];
    let (shown, _) = plan(&all, &[]);
    let left_out = shown["plan"]["leftOut"].as_array().unwrap();
    let of_former = left_out.iter().find(|one| one["directory"] == text(data(&cluster, former)));
    let says = of_former.unwrap()["says"].to_string();
    assert!(says.contains("put \\\"lonely\\\""), "{shown}");
    let servers = recovered(Kind::Quorate, &all, &[]).await;
    holds(&servers[0], "later", "acknowledged").await;
    assert_eq!(servers[0].client().read("lonely").await, None);
}

async fn recovery_from_a_minority_requires_accept_data_loss(kind: Kind) {
    let mut cluster = three(kind).await;
    cluster.client(0).write("k", "v").await;
    cluster.settle().await;
    kill_all(&mut cluster);
    let alone = data(&cluster, 1).to_owned();
    let (shown, refused) = plan(&[&alone], &["--yes"]);
    assert_eq!(
        (&shown["plan"]["hasMajority"], &shown["plan"]["made"]),
        (&false.into(), &false.into())
    );
    let text_of = complaint(&refused);
    assert!(text_of.contains("1 of the 3 voters") && text_of.contains("--accept-data-loss"));
    // The log may be in a separate folder.
    let elsewhere = cluster.scratch().join("elsewhere");
    std::fs::rename(alone.join("member/wal"), &elsewhere).unwrap();
    let both = PathBuf::from(format!("{}={}", alone.display(), elsewhere.display()));
    assert!(complaint(&plan(&[&both], &[]).1).contains("not a majority"));
    let (_, accepted) = plan(&[&both], &["--accept-data-loss"]);
    assert_eq!(accepted.code, Some(0));
    for kind in kinds() {
        let raised = ["--accept-data-loss", "--bump-revision=1000", "--mark-compacted"];
        let servers = recovered(kind, &[&both], &raised).await;
        holds(&servers[2], "k", "v").await;
        assert!(servers[0].client().revision().await > 1000);
    }
}

/// Returns the file and the offset of a log record.
fn record_of(server: &Server, says: &str) -> (PathBuf, u64) {
    let args = ["wal", "dump", text(server.data()), "-w", "json"];
    let dumped = Utl::Quorate.run(&args).success();
    let mut rows = dumped.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let row = rows.find(|row| row["says"].as_str().unwrap().starts_with(says)).unwrap();
    let segment = row["segment"].as_str().unwrap();
    (server.data().join("member/wal").join(segment), row["offset"].as_u64().unwrap())
}

async fn a_damaged_log_is_reported_and_the_next_member_is_chosen(kind: Kind) {
    let mut cluster = three(kind).await;
    let client = cluster.client(0);
    for number in 0..20 {
        client.write(format!("k{number}"), number.to_string()).await;
    }
    let best = write_alone(&mut cluster, "lonely").await;
    kill_all(&mut cluster);
    let (segment, offset) = record_of(cluster.server(best), "put \"k10\"");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[usize::try_from(offset).unwrap() + 20] ^= 1;
    std::fs::write(&segment, bytes).unwrap();

    let all = [data(&cluster, 0), data(&cluster, 1), data(&cluster, 2)];
    let (shown, _) = plan(&all, &[]);
    let broken = &shown["directories"][best];
    let reason = broken["reason"].as_str().unwrap();
    assert_eq!(broken["verdict"], "UNSOUND");
    assert!(reason.contains(text(&segment)), "{reason}");
    assert!(reason.contains(&format!("position: {offset}")), "{reason}");
    assert_ne!(shown["plan"]["chosen"], text(all[best]));
    let left_out = shown["plan"]["leftOut"].as_array().unwrap();
    let of_best = left_out.iter().find(|one| one["directory"] == text(all[best])).unwrap();
    assert_eq!(of_best["unreadable"], true);
    assert_eq!(shown["plan"]["hasMajority"], true);
    let next = (best + 1) % 3;
    let (shown, refused) = plan(&[all[best], all[next]], &["--yes"]);
    assert_eq!(shown["plan"]["chosen"], text(all[next]));
    assert!(complaint(&refused).contains("1 of the 3 voters"), "{refused:?}");
    let (shown, refused) = plan(&[all[best]], &["--yes", "--accept-data-loss"]);
    assert!(shown["plan"].is_null());
    assert!(complaint(&refused).contains("no directory is sound"), "{refused:?}");
    let servers = recovered(Kind::Quorate, &all, &[]).await;
    holds(&servers[0], "k19", "19").await;
}

async fn directories_that_cannot_be_compared_are_refused(kind: Kind) {
    let mut cluster = three(kind).await;
    let leader = cluster.leader().await;
    let gone = (leader + 1) % 3;
    cluster.client(leader).write("k", "v").await;
    cluster.kill(gone);
    let place = cluster.scratch().to_owned();
    let new = place.join("new");
    let refused = |words: &[&str]| {
        let output = format!("--data-dir={}", new.display());
        let finished = Utl::Quorate.run(&[&["recover", &output, "--yes"], words].concat());
        assert!(!new.exists(), "{finished:?}");
        complaint(&finished).to_owned()
    };
    let stopped = data(&cluster, gone);
    let running = refused(&[text(stopped), text(data(&cluster, leader))]);
    assert!(running.contains("is in use by a running member"), "{running}");
    // The running member is not affected.
    cluster.client(leader).write("k", "w").await;
    let copy = place.join("copy");
    let copied = std::process::Command::new("cp").arg("-a").args([stopped, &copy]).status();
    assert!(copied.unwrap().success());
    let twice = refused(&[text(stopped), text(&copy)]);
    assert!(twice.contains(&format!("both belong to member {:x}", cluster.id(gone))), "{twice}");
    let mut other = Server::start(Kind::Quorate).await;
    other.kill();
    let strange = refused(&[text(stopped), text(other.data())]);
    assert!(strange.contains("pass only directories of one cluster"), "{strange}");
    let urls: Vec<String> =
        (0..3).map(|one| format!("m{one}={}", cluster.server(one).peer_url())).collect();
    let initial = format!("--initial-cluster={}", urls.join(","));
    let peer = format!("--initial-advertise-peer-urls={}", cluster.server(gone).peer_url());
    let name = format!("--name=m{gone}");
    let same = refused(&[text(stopped), &name, &initial, &peer, "--accept-data-loss"]);
    assert!(same.contains("specify a different --initial-cluster-token"), "{same}");
    let mistyped = Utl::Quorate.run(&["recover", "--yes", "/nonexistent"]);
    assert!(complaint_with(128, &mistyped).contains("no such directory"), "{mistyped:?}");
    let inside = format!("--data-dir={}", copy.join("new").display());
    let inside = refused(&[text(&copy), &inside]);
    assert!(inside.contains("which must not be changed"), "{inside}");
    let nothing = Utl::Quorate.run(&["recover"]);
    assert_eq!(nothing.code, Some(128));
}
