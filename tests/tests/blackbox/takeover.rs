//! One server takes over the other's data directory, and all answers stay the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Kind, Options, Server, delete, etcdutl, from_key, has_etcd_tools, key, missing,
    on_both_servers, on_quorate, put, put_leased, put_op, range, refused, txn, write_op,
};
use serde_json::Value;
use tempfile::TempDir;
use tonic::Code;

on_both_servers! {
    alone:
    members_on_etcd_data_directories_return_the_recorded_responses,
    a_directory_written_by_etcd_is_taken_over,
    etcd_can_take_the_directory_back,
}

on_quorate! {
    alone:
    a_taken_over_directory_keeps_its_authentication,
    users_that_are_only_in_the_log_are_taken_over,
}

type Record = (Vec<u8>, Vec<u8>, i64, i64, i64, i64);

/// All of a store's answers about its contents.
#[derive(Debug, PartialEq)]
struct Answers {
    revision: i64,
    records: BTreeMap<i64, Vec<Record>>,
    hashes: BTreeMap<i64, (u32, i64)>,
    leases: BTreeMap<i64, (i64, Vec<Vec<u8>>)>,
}

async fn records(client: &Client, revision: i64) -> Vec<Record> {
    let request = pb::RangeRequest { revision, ..from_key("\0") };
    let answer = client.range(request).await.unwrap();
    let whole = answer.kvs.iter().map(|record| {
        let at = record.fields();
        let (key, value) = (at.key.to_vec(), at.value.to_vec());
        (key, value, at.create_revision, at.mod_revision, at.version, at.lease)
    });
    whole.collect()
}

impl Answers {
    async fn of(client: &Client, revisions: &[i64]) -> Self {
        let mut answers = Self {
            revision: client.revision().await,
            records: BTreeMap::new(),
            hashes: BTreeMap::new(),
            leases: BTreeMap::new(),
        };
        for (place, revision) in revisions.iter().enumerate() {
            answers.records.insert(*revision, records(client, *revision).await);
            // The hash at the compacted revision is not recorded, because the server may return a hash that it stored
            // before the compaction. A restart loses such a hash.
            if place == 0 {
                continue;
            }
            let request = pb::HashKvRequest { revision: *revision };
            let hash = client.hash_kv(request).await.unwrap();
            answers.hashes.insert(*revision, (hash.hash, hash.compact_revision));
        }
        for lease in client.lease_leases(pb::LeaseLeasesRequest {}).await.unwrap().leases {
            let request = pb::LeaseTimeToLiveRequest { id: lease.id, keys: true };
            let seen = client.lease_time_to_live(request).await.unwrap();
            let mut keys: Vec<_> = seen.keys.iter().map(|key| key.to_vec()).collect();
            keys.sort();
            answers.leases.insert(lease.id, (seen.granted_ttl, keys));
        }
        answers
    }
}

/// A golden directory and the recorded answers.
struct Golden {
    name: String,
    answers: Value,
    archive: PathBuf,
}

fn golden() -> Vec<Golden> {
    let Some(folder) = std::env::var_os("QUORATE_GOLDEN") else {
        missing("golden", "tests with recorded answers (QUORATE_GOLDEN is not set)");
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "json") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let answers = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let archive = path.with_file_name(format!("{name}.tar.gz"));
            found.push(Golden { name, answers, archive });
        }
    }
    assert!(!found.is_empty(), "the golden folder is empty");
    found
}

impl Golden {
    fn unpack(&self, place: &Path) -> PathBuf {
        let archive = self.archive.to_str().unwrap();
        let status = Command::new("tar").args(["-xzf", archive, "-C"]).arg(place).status().unwrap();
        assert!(status.success(), "{archive}");
        place.join("data")
    }

    fn has_authentication(&self) -> bool {
        self.answers
            .get("users")
            .is_some_and(|users| users.as_object().is_none_or(|u| !u.is_empty()))
            && self.name.ends_with("-auth")
    }

    /// Returns whether the kind of server can open the directory. etcd opens only directories that were written by its
    /// own or an earlier release.
    fn is_for(&self, kind: Kind) -> bool {
        let version = self.answers["version"].as_str().unwrap();
        kind == Kind::Quorate || version.starts_with("3.5.")
    }

    fn records(&self, kvs: &Value) -> Vec<Record> {
        let number = |record: &Value, name: &str| record[name].as_i64().unwrap_or(0);
        let bytes = |record: &Value, name: &str| base64(record[name].as_str().unwrap_or(""));
        let mut found: Vec<Record> = kvs
            .as_array()
            .unwrap()
            .iter()
            .map(|record| {
                (
                    bytes(record, "key"),
                    bytes(record, "value"),
                    number(record, "create_revision"),
                    number(record, "mod_revision"),
                    number(record, "version"),
                    number(record, "lease"),
                )
            })
            .collect();
        found.sort();
        found
    }
}

fn base64(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = LETTERS.iter().position(|known| *known == letter).unwrap();
        bits = bits << 6 | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    bytes
}

async fn check_recorded(golden: &Golden, client: &Client) {
    let what = &golden.name;
    let answers = &golden.answers;
    let header = client.range(from_key("\0")).await.unwrap().header.unwrap();
    assert_eq!(header.revision, answers["current_revision"].as_i64().unwrap(), "{what}");
    assert_eq!(header.cluster_id, answers["status"]["cluster_id"].as_u64().unwrap(), "{what}");
    assert_eq!(header.member_id, answers["status"]["member_id"].as_u64().unwrap(), "{what}");
    assert_eq!(records(client, 0).await, golden.records(&answers["kvs"]), "{what}");
    for (revision, kvs) in answers["kvs_at"].as_object().unwrap() {
        let seen = records(client, revision.parse().unwrap()).await;
        assert_eq!(seen, golden.records(kvs), "{what} at {revision}");
    }
    for (revision, expected) in answers["hashkv"].as_object().unwrap() {
        let request = pb::HashKvRequest { revision: revision.parse().unwrap() };
        let seen = client.hash_kv(request).await.unwrap();
        assert_eq!(
            u64::from(seen.hash),
            expected["hash"].as_u64().unwrap(),
            "{what} at {revision}"
        );
        assert_eq!(seen.compact_revision, expected["compact_revision"].as_i64().unwrap(), "{what}");
    }
    let leases = answers["leases"].as_object().unwrap();
    for (id, expected) in leases {
        let request = pb::LeaseTimeToLiveRequest { id: id.parse().unwrap(), keys: true };
        let seen = client.lease_time_to_live(request).await.unwrap();
        assert_eq!(seen.granted_ttl, expected["granted-ttl"].as_i64().unwrap(), "{what}: {id}");
        let mut keys: Vec<_> = seen.keys.iter().map(|key| key.to_vec()).collect();
        keys.sort();
        let none = Vec::new();
        let expected = expected["keys"].as_array().unwrap_or(&none);
        let mut expected: Vec<_> =
            expected.iter().map(|key| base64(key.as_str().unwrap())).collect();
        expected.sort();
        assert_eq!(keys, expected, "{what}: {id}");
    }
    let listed = client.lease_leases(pb::LeaseLeasesRequest {}).await.unwrap().leases;
    assert_eq!(listed.len(), leases.len(), "{what}");
    let members = client.member_list(pb::MemberListRequest { linearizable: true }).await.unwrap();
    let expected = answers["members"].as_array().unwrap();
    assert_eq!(members.members.len(), expected.len(), "{what}");
    for (member, expected) in members.members.iter().zip(expected) {
        assert_eq!(member.id, expected["ID"].as_u64().unwrap(), "{what}");
        assert_eq!(member.name, expected["name"].as_str().unwrap(), "{what}");
        assert_eq!(member.peer_urls, [expected["peerURLs"][0].as_str().unwrap()], "{what}");
    }
}

async fn members_on_etcd_data_directories_return_the_recorded_responses(kind: Kind) {
    for golden in golden() {
        if golden.has_authentication() || !golden.is_for(kind) {
            continue;
        }
        let place = TempDir::new().unwrap();
        let data = golden.unpack(place.path());
        let name = golden.answers["members"][0]["name"].as_str().unwrap();
        let mut server = Options::new(kind).name(name).data(&data).start().await;
        check_recorded(&golden, &server.client()).await;
        // The store is unchanged after another restart, clean or not, and accepts writes.
        server.stop().await;
        server.start_again().await;
        check_recorded(&golden, &server.client()).await;
        server.kill();
        server.start_again().await;
        let client = server.client();
        check_recorded(&golden, &client).await;
        let revision = client.revision().await;
        assert_eq!(client.write("after", "v").await, revision + 1);
        server.kill();
        server.start_again().await;
        assert_eq!(server.client().read("after").await.unwrap(), b"v");
    }
}

async fn a_taken_over_directory_keeps_its_authentication(kind: Kind) {
    for golden in golden().iter().filter(|golden| golden.has_authentication()) {
        let place = TempDir::new().unwrap();
        let data = golden.unpack(place.path());
        let server = Options::new(kind).data(&data).start().await;
        let client = server.client();
        let unguarded = client.range(key("/a/0018")).await;
        refused(unguarded, Code::InvalidArgument, "etcdserver: user name is empty");
        for (name, password) in golden.answers["passwords"].as_object().unwrap() {
            let user = client.log_in(name, password.as_str().unwrap()).await.unwrap();
            let request = pb::AuthUserGetRequest { name: name.clone() };
            let roles = user.user_get(request).await.unwrap().roles;
            let said = golden.answers["users"][name]["roles"].as_array().unwrap();
            assert!(said.iter().map(|role| role.as_str().unwrap()).eq(&roles), "{roles:?}");
        }
        let alice = client.log_in("alice", "alicepw").await.unwrap();
        let readable = alice.range(range("/a/", "/b/")).await.unwrap();
        assert!(!readable.kvs.is_empty());
        let denied = "etcdserver: permission denied";
        refused(alice.range(range("/a/", "/c/")).await, Code::PermissionDenied, denied);
        refused(alice.put(put("/a/new", "v")).await, Code::PermissionDenied, denied);
        alice.put(put("/b/new", "v")).await.unwrap();
    }
}

/// etcd is killed long before the end of its batch interval, so the log contains the user, but the backend file does
/// not.
async fn users_that_are_only_in_the_log_are_taken_over(kind: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let options = Options::new(Kind::Etcd).flag("--backend-batch-interval=1h");
    let mut etcd = options.start().await;
    etcd.client().write("before", "v").await;
    let (name, password) = ("u".to_owned(), "p".to_owned());
    let user = pb::AuthUserAddRequest { name, password, ..pb::AuthUserAddRequest::default() };
    etcd.client().user_add(user).await.unwrap();
    etcd.kill();
    let server = Options::new(kind).data(etcd.data()).start().await;
    let users = server.client().user_list(pb::AuthUserListRequest {}).await.unwrap().users;
    assert_eq!(users, ["u"]);
}

/// Makes changes with all kinds of effects. Returns revisions to query.
async fn write_history(client: &Client) -> Vec<i64> {
    client.grant(100, 6_000).await;
    client.grant(-7, 7_000).await;
    for number in 0..150 {
        let lease = [0, 100, -7][number % 3];
        let name = format!("/k/{:02}", number * 7 % 40);
        client.put(put_leased(name, number.to_string(), lease)).await.unwrap();
        if number % 10 == 0 {
            let start = format!("/k/{:02}", number % 40);
            client.delete_range(delete(start, "/k/20")).await.unwrap();
        }
        if number % 25 == 0 {
            let request = txn(vec![
                put_op("/t/1", number.to_string()),
                write_op(delete("/k/3", "/k/35")),
                put_op("/t/2", vec![0, 255, 10]),
            ]);
            client.txn(request).await.unwrap();
        }
    }
    client.grant(3, 60).await;
    client.lease_revoke(pb::LeaseRevokeRequest { id: 3 }).await.unwrap();
    let current = client.revision().await;
    client.compact_to(current / 2).await;
    for number in 0..20 {
        client.write(format!("/after/{number}"), "x").await;
    }
    let last = client.revision().await;
    vec![current / 2, current / 2 + 1, current, last]
}

/// Returns an etcd server that has written its directory and was then killed or stopped cleanly, with the revisions and
/// the answers.
async fn written_by_etcd(clean: bool, snapshots: bool) -> (Server, Vec<i64>, Answers) {
    let count = if snapshots { "30" } else { "100000" };
    let options = Options::new(Kind::Etcd).flag(format!("--snapshot-count={count}"));
    let mut server = options.start().await;
    let client = server.client();
    let revisions = write_history(&client).await;
    let answers = Answers::of(&client, &revisions).await;
    if clean {
        server.stop().await;
    } else {
        server.kill();
    }
    (server, revisions, answers)
}

async fn a_directory_written_by_etcd_is_taken_over(kind: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    for (clean, snapshots) in [(false, false), (false, true), (true, true)] {
        let (origin, revisions, answers) = written_by_etcd(clean, snapshots).await;
        let mut server = Options::new(kind).data(origin.data()).start().await;
        assert_eq!(Answers::of(&server.client(), &revisions).await, answers);
        server.kill();
        server.start_again().await;
        assert_eq!(Answers::of(&server.client(), &revisions).await, answers);
    }
}

async fn etcd_can_take_the_directory_back(kind: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let (mut origin, mut revisions, _) = written_by_etcd(false, true).await;
    let mut server = Options::new(kind).data(origin.data()).start().await;
    let client = server.client();
    for number in 0..1_000 {
        client.write(format!("/more/{}", number % 50), number.to_string()).await;
    }
    revisions.push(client.revision().await);
    let answers = Answers::of(&client, &revisions).await;
    server.stop().await;
    // etcd's own tool can restore a member from the backend file.
    if !has_etcd_tools() {
        return;
    }
    let copy = server.scratch().join("copy.db");
    std::fs::copy(server.backend(), &copy).unwrap();
    let restored = server.scratch().join("restored");
    let (file, place) = (copy.to_str().unwrap(), restored.to_str().unwrap());
    let args = ["snapshot", "restore", file, "--skip-hash-check", "--data-dir", place];
    drop(etcdutl(&args).success());
    let again = Options::new(Kind::Etcd).data(&restored).start().await;
    assert_eq!(Answers::of(&again.client(), &revisions).await, answers);
    // etcd can also use the whole directory, unless the cluster version is too new for this release of etcd.
    match origin.try_start_again().await {
        Ok(()) => assert_eq!(Answers::of(&origin.client(), &revisions).await, answers),
        Err(exit) => {
            assert_eq!(kind, Kind::Quorate, "{exit}");
            let reason =
                "invalid downgrade; server version is lower than determined cluster version";
            assert!(exit.log.contains(reason), "{exit}");
        }
    }
}
