//! Recovers the state from files that etcd wrote, and compares it with etcd's own report.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::Arc;

use prost::Message;
use quorate_api::{raftpb, snappb};
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};
use serde_json::Value;

use super::*;
use crate::backend::Backend;
use crate::members::{CLUSTER_TOKEN_DEFAULT, V2Membership, cluster_id, member_id};
use crate::units::LeaseId;

/// An unpacked etcd data directory, and etcd's own report of its content.
struct Golden {
    name: String,
    folder: tempfile::TempDir,
    said: Value,
}

fn goldens() -> Vec<Golden> {
    let Some(folder) = std::env::var_os("QUORATE_GOLDEN").map(PathBuf::from) else {
        let required = std::env::var_os("QUORATE_REQUIRE").unwrap_or_default();
        let is_required = required.to_string_lossy().contains("golden");
        assert!(!is_required, "QUORATE_GOLDEN is required but not set");
        println!("skipped: tests with files written by etcd (QUORATE_GOLDEN is not set)");
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz") else {
            continue;
        };
        let unpacked = tempfile::tempdir().unwrap();
        let status = Process::new("tar")
            .args(["-xzf", path.to_str().unwrap(), "--exclude=*.wal", "--exclude=*.tmp"])
            .args(["-C", unpacked.path().to_str().unwrap()])
            .status();
        assert!(status.unwrap().success());
        let said = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let said = serde_json::from_slice(&said).unwrap();
        found.push(Golden { name: name.to_owned(), folder: unpacked, said });
    }
    assert!(!found.is_empty(), "{} contains no golden data", folder.display());
    found
}

fn recover(db: &Path) -> Result<State, RecoverError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, db, Options::default()).unwrap();
    State::recover(&backend, StateOptions::default())
}

/// Returns the state recovered from the snapshot file without its trailing checksum.
fn snapshot(golden: &Golden) -> State {
    let path = golden.folder.path().join("snapshot.db");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 32);
    std::fs::write(&path, bytes).unwrap();
    recover(&path).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text.trim_end_matches('=').chars().flat_map(|digit| {
        let value = DIGITS.find(digit).unwrap();
        (0..6).rev().map(move |bit| value >> bit & 1)
    });
    let bits: Vec<usize> = bits.collect();
    let byte = |bits: &[usize]| bits.iter().fold(0, |byte, bit| byte << 1 | bit);
    bits.chunks_exact(8).map(|bits| u8::try_from(byte(bits)).unwrap()).collect()
}

/// Returns the membership of the newest `.snap` file.
fn v2_membership(golden: &Golden) -> V2Membership {
    let folder = golden.folder.path().join("data/member/snap");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let newest = names.filter(|path| path.extension().is_some_and(|ext| ext == "snap")).max();
    let file = snappb::Snapshot::decode(&*std::fs::read(newest.unwrap()).unwrap()).unwrap();
    let snapshot = raftpb::Snapshot::decode(file.data.unwrap_or_default()).unwrap();
    V2Membership::from_json(&snapshot.data.unwrap_or_default()).unwrap()
}

fn said_members(golden: &Golden) -> Vec<Member> {
    let urls = |value: &Value| -> Vec<String> {
        let urls = value.as_array().unwrap();
        urls.iter().map(|url| url.as_str().unwrap().to_owned()).collect()
    };
    let members = golden.said["members"].as_array().unwrap().iter();
    members
        .map(|member| Member {
            id: MemberId(member["ID"].as_u64().unwrap()),
            peer_urls: urls(&member["peerURLs"]),
            is_learner: false,
            name: member["name"].as_str().unwrap().to_owned(),
            client_urls: urls(&member["clientURLs"]),
        })
        .collect()
}

#[test]
fn recovered_keys_and_leases_match_the_responses_of_etcd() {
    for golden in goldens() {
        let state = snapshot(&golden);
        let name = &golden.name;
        assert_eq!(Some(state.store.current_revision()), golden.said["current_revision"].as_i64());
        let view = state.published().view();
        let all = read_range(&view, &range("\0", "\0")).unwrap().unwrap();
        let keys: Vec<Vec<u8>> = all.kvs.iter().map(|kv| kv.key().to_vec()).collect();
        let said = golden.said["kvs"].as_array().unwrap().iter();
        let said: Vec<Vec<u8>> = said.map(|kv| base64(kv["key"].as_str().unwrap())).collect();
        assert_eq!(keys, said, "{name}");

        let leases = golden.said["leases"].as_object().unwrap();
        let published = state.published();
        assert_eq!(published.leases.count(), leases.len(), "{name}");
        for lease in leases.values() {
            let id = LeaseId(lease["id"].as_i64().unwrap());
            let found = published.leases.time_to_live(id, Millis(0)).unwrap();
            assert_eq!(Some(found.granted_secs), lease["granted-ttl"].as_i64(), "{name}");
            let mut said: Vec<Vec<u8>> = lease["keys"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|key| base64(key.as_str().unwrap()))
                .collect();
            said.sort();
            let keys = published.leases.keys(id).unwrap();
            assert_eq!(keys.iter().map(|key| key.to_vec()).collect::<Vec<_>>(), said, "{name}");
        }
    }
}

#[test]
fn recovered_members_and_ids_match_the_responses_of_etcd() {
    for golden in goldens() {
        let mut state = snapshot(&golden);
        let said = said_members(&golden);
        let v2 = v2_membership(&golden);
        assert_eq!(v2.members.iter().cloned().collect::<Vec<_>>(), said, "{}", golden.name);
        // Members that etcd 3.5 did not store in the file are restored from the v2 store.
        state.repair_members(v2.members.clone());
        let members: Vec<Member> = state.members().iter().cloned().collect();
        assert_eq!(members, said);
        assert_eq!(state.versions().cluster(), v2.cluster_version);
        let urls = &said[0].peer_urls;
        assert_eq!(member_id(urls, CLUSTER_TOKEN_DEFAULT, None), said[0].id);
        let status = &golden.said["status"];
        assert_eq!(Some(cluster_id([said[0].id])), status["cluster_id"].as_u64());
    }
}

#[test]
fn member_and_lease_rows_are_encoded_as_in_etcd() {
    for golden in goldens() {
        drop(snapshot(&golden));
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let path = golden.folder.path().join("snapshot.db");
        let backend = Backend::open(&disk, &path, Options::default()).unwrap();
        let state = State::recover(&backend, StateOptions::default()).unwrap();
        let file = backend.read();
        for (key, row) in file.entries(crate::schema::Bucket::Members).unwrap() {
            let id = crate::members::parse_id(std::str::from_utf8(&key).unwrap()).unwrap();
            let member = state.members().get(id).unwrap();
            assert_eq!(member.to_json().as_bytes(), row, "{}", golden.name);
            assert_eq!(id.to_string().as_bytes(), key);
        }
        if let Some(json) = file.conf_state().unwrap() {
            let ours = crate::members::conf_state_json(&state.members().conf_state());
            assert_eq!(ours, json, "{}", golden.name);
        }
        for (key, value) in file.entries(crate::schema::Bucket::Lease).unwrap() {
            let lease = crate::lease::LeaseRecord::decode(&value).unwrap();
            assert_eq!(crate::lease::LeaseRecord::key(lease.id), key);
            assert_eq!(lease.encode(), value);
        }
    }
}

/// Returns the rows of bucket `authUsers` in a file.
fn user_rows(db: &Path) -> Vec<(Bytes, Bytes)> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let backend = Backend::open(&disk, db, Options::default()).unwrap();
    backend.read().entries(crate::schema::Bucket::AuthUsers).unwrap()
}

#[test]
fn recovered_users_and_roles_match_the_responses_of_etcd() {
    for golden in goldens() {
        let db = golden.folder.path().join("data/member/snap/db");
        let rows = user_rows(&db);
        let state = recover(&db);
        let state = state.unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        let view = state.auth().view();
        let Some(users) = golden.said.get("users") else {
            assert!(!view.is_enabled(), "{}", golden.name);
            continue;
        };
        assert!(view.is_enabled());
        let users = users.as_object().unwrap();
        assert!(view.user_names().eq(users.keys().map(String::as_str)));
        for (name, said) in users {
            let roles: Vec<&str> = view.user(name).unwrap().roles().iter().map(|r| &**r).collect();
            let said = said["roles"].as_array().into_iter().flatten();
            assert!(said.map(|role| role.as_str().unwrap()).eq(roles), "{name}");
        }
        let roles = golden.said["roles"].as_object().unwrap();
        // `etcdctl auth enable` also creates the root role, although the script that wrote the data does not.
        let others = view.role_names().filter(|name| *name != "root");
        assert!(others.eq(roles.keys().map(String::as_str)));
        for (name, said) in roles {
            let permissions = view.role_permissions(name).unwrap();
            let said = said["perm"].as_array().unwrap();
            assert_eq!(permissions.len(), said.len(), "{name}");
            for (permission, said) in permissions.iter().zip(said) {
                let bytes = |field: &str| base64(said[field].as_str().unwrap_or_default());
                assert_eq!(permission.key, bytes("key"));
                assert_eq!(permission.range_end, bytes("range_end"));
                let kind = said["permType"].as_i64().unwrap_or_default();
                assert_eq!(i64::from(permission.perm_type), kind);
            }
        }
        // Encoding a user again yields exactly the row in the file.
        for (name, row) in rows {
            let user = view.user(std::str::from_utf8(&name).unwrap()).unwrap();
            assert_eq!(user.to_row(), row);
        }
    }
}
