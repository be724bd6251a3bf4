//! Tests of `recover` on directories created here, with states that real processes rarely produce.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{InternalRaftRequest, Metadata, PutRequest, RequestHeader};
use quorate_api::raftpb::{ConfChange, ConfChangeType, ConfState};
use quorate_api::record::{Fields, KeyValue};
use quorate_state::backend::{Backend, Batch};
use quorate_state::members::{Founders, Member};
use quorate_state::schema::{Bucket, RecordKey, Revision};
use quorate_state::units::MemberId;
use quorate_storage::bolt::Options;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::{Disk, RealDisk};
use quorate_storage::restored;
use quorate_storage::wal::{self, Entry, HardState, SnapshotMark, Wal};
use serde_json::Value;
use tempfile::TempDir;

use crate::tests::utl;

/// Entry kinds, as the log encodes them.
const NORMAL: u8 = 0;
const CONF_CHANGE: u8 = 1;

fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// A cluster of three members and their directories.
struct Lost {
    folder: TempDir,
    founders: Founders,
}

/// An entry after the founding entries: term, kind and data.
type Further = (u64, u8, Bytes);

fn put(term: u64, key: &str) -> Further {
    let put = PutRequest { key: key.to_owned().into(), ..PutRequest::default() };
    let header = Some(RequestHeader { id: 1, ..RequestHeader::default() });
    let request = InternalRaftRequest { header, put: Some(put), ..Default::default() };
    (term, NORMAL, request.encode_to_vec().into())
}

fn change(kind: ConfChangeType, member: &Member) -> Further {
    let change = ConfChange {
        id: None,
        r#type: Some(kind.into()),
        node_id: Some(member.id.0),
        context: Some(member.to_json().into()),
    };
    (1, CONF_CHANGE, change.encode_to_vec().into())
}

impl Lost {
    fn new() -> Self {
        let url = |name: &str| vec![format!("http://{name}:2380")];
        let initial = ["a", "b", "c"].map(|name| (name, url(name)));
        let founders = Founders::new(initial, "lost");
        Self { folder: tempfile::tempdir().unwrap(), founders }
    }

    fn member(&self, at: usize) -> Member {
        self.founders.iter().nth(at).unwrap().clone()
    }

    /// Creates the directory of a founding member with an empty backend file.
    fn directory(&self, at: usize, further: &[Further], commit: u64) -> (PathBuf, Wal) {
        let dirs = DataDir::new(&self.folder.path().join(format!("m{at}")), None);
        std::fs::create_dir_all(dirs.snap()).unwrap();
        drop(Backend::open(&disk(), &dirs.backend(), Options::default()).unwrap());
        let metadata = Metadata {
            node_id: Some(self.member(at).id.0),
            cluster_id: Some(self.founders.cluster_id()),
        };
        let metadata = metadata.encode_to_vec().into();
        let mut wal = Wal::create(disk(), dirs.wal(), metadata, wal::Options::default()).unwrap();
        let founding = self.founders.conf_changes().map(|data| (1, CONF_CHANGE, data));
        let entries: Vec<Entry> = (1..)
            .zip(founding.chain(further.iter().cloned()))
            .map(|(index, (term, kind, data))| Entry { index, term, kind, data })
            .collect();
        let term = entries.last().unwrap().term;
        wal.save(Some(&HardState { term, vote: 0, commit }), &entries).unwrap();
        (dirs.root().to_path_buf(), wal)
    }

    fn closed(&self, at: usize, further: &[Further], commit: u64) -> PathBuf {
        let (path, wal) = self.directory(at, further, commit);
        wal.close().unwrap();
        path
    }

    /// Restores the directory of a founding member, with its old id, from the backend file in `from`.
    fn restored(&self, at: usize, from: &Path) -> PathBuf {
        let snapshot = DataDir::new(from, None).backend();
        let directory = self.folder.path().join(format!("restored{at}"));
        let member = self.member(at);
        let urls = |member: &Member| format!("{}={}", member.name, member.peer_urls[0]);
        let (code, _, said) = utl(&[
            "snapshot",
            "restore",
            snapshot.to_str().unwrap(),
            "--skip-hash-check",
            "--data-dir",
            directory.to_str().unwrap(),
            "--name",
            &member.name,
            "--initial-advertise-peer-urls",
            &member.peer_urls[0],
            "--initial-cluster",
            &self.founders.iter().map(urls).collect::<Vec<_>>().join(","),
            "--initial-cluster-token",
            "lost",
        ]);
        assert_eq!(code, 0, "{said}");
        directory
    }

    /// Runs `recover`. Returns the exit code, the JSON output and the messages.
    fn recover(&self, directories: &[&Path], more: &[&str]) -> (u8, Value, String) {
        let new = self.folder.path().join("new");
        let paths = directories.iter().map(|path| path.to_str().unwrap());
        let mut words = vec!["recover", "-w", "json", "--data-dir", new.to_str().unwrap()];
        words.extend(paths.chain(more.iter().copied()));
        let (code, shown, said) = utl(&words);
        let shown = serde_json::from_str(&shown);
        (code, shown.unwrap_or_else(|error| panic!("{error}: {said}")), said)
    }
}

#[test]
fn the_replay_begins_at_a_received_snapshot_image() {
    let lost = Lost::new();
    let (path, mut wal) = lost.directory(0, &[], 3);
    let ids: Vec<u64> = lost.founders.iter().map(|member| member.id.0).collect();
    let conf_state = ConfState { voters: ids, ..ConfState::default() };
    let conf_state = Some(conf_state.encode_to_vec().into());
    wal.save_snapshot(&SnapshotMark { index: 10, term: 2, conf_state }).unwrap();
    let (term, kind, data) = put(2, "behind");
    let state = HardState { term: 2, vote: 0, commit: 10 };
    wal.save(Some(&state), &[Entry { index: 11, term, kind, data }]).unwrap();
    wal.close().unwrap();
    let unsound = |reason: &str| {
        let (code, shown, said) = lost.recover(&[&path], &["--accept-data-loss"]);
        let described = shown["directories"][0]["reason"].as_str().unwrap();
        assert!(code == 1 && described.contains(reason), "{shown}");
        assert!(said.contains("no directory is sound"), "{said}");
    };
    unsound("the backend has applied entries only up to 0, but the log begins after entry 10");

    let image = path.join("member/snap/000000000000000a.snap.db");
    let commit = |index: u64| {
        let backend = Backend::open(&disk(), &image, Options::default()).unwrap();
        let mut batch = Batch::new();
        for member in lost.founders.iter() {
            batch.put(Bucket::Members, member.id.to_string(), member.to_json());
        }
        let key = RecordKey { revision: Revision::new(2, 0), tombstone: false };
        let fields = Fields { key: b"in the image", ..Fields::default() };
        batch.put_record(key, KeyValue::new(&fields).encoded().clone());
        batch.set_consistent_index(index, 2);
        backend.commit(&batch).unwrap();
    };
    commit(9);
    unsound("000000000000000a.snap.db: its last applied entry is 9, expected 10");
    commit(10);
    let (code, shown, said) = lost.recover(&[&path], &["--accept-data-loss", "--yes"]);
    assert_eq!(code, 0, "{said}");
    let (kept, directory) = (&shown["plan"]["kept"], &shown["directories"][0]);
    assert_eq!((&kept["keys"], &kept["revision"]), (&2.into(), &3.into()), "{shown}");
    assert_eq!((&directory["applied"], &directory["lastIndex"]), (&10.into(), &11.into()));
    let made = lost.folder.path().join("new/member/snap/db");
    let hash = utl(&["hashkv", made.to_str().unwrap(), "-w", "json"]).1;
    assert!(hash.contains(&format!("\"hash\":{}", kept["hash"])), "{hash}");
}

#[test]
fn contradictory_directories_require_the_accept_data_loss_flag() {
    let lost = Lost::new();
    let one = lost.closed(0, &[put(2, "x"), put(2, "y")], 3);
    // This directory's entry 4 has the same index and term as the entry above, but a different key.
    let other = lost.closed(1, &[put(2, "z")], 3);
    let (code, shown, said) = lost.recover(&[&one, &other], &["--yes"]);
    assert_eq!((code, &shown["plan"]["hasMajority"]), (1, &true.into()), "{said}");
    assert!(said.contains("entry 4 of ") && said.contains("of the same index and term"), "{said}");
    // In this directory, entry 4 is committed, but the chosen log has a different entry at this index.
    let third = lost.closed(2, &[put(1, "w")], 4);
    let (code, _, said) = lost.recover(&[&one, &third], &["--yes"]);
    assert!(code == 1 && said.contains("entry 4 of ") && said.contains("is committed"), "{said}");
    assert!(!lost.folder.path().join("new").exists());
    let (code, shown, said) = lost.recover(&[&one, &third], &["--yes", "--accept-data-loss"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(shown["plan"]["leftOut"][0]["says"][0], "put \"w\" (0 bytes)");
    assert_eq!(shown["plan"]["kept"]["keys"], 2);
}

#[test]
fn the_majority_is_counted_in_the_newest_configuration() {
    let lost = Lost::new();
    let added = Member::new(MemberId(77), vec!["http://d:2380".to_owned()]);
    let learner = Member { is_learner: true, ..added.clone() };
    let majority = |changes: &[Further], at: [usize; 2]| {
        let paths = at.map(|at| lost.closed(at, changes, 3));
        let (_, shown, _) = lost.recover(&[&paths[0], &paths[1]], &["--accept-data-loss"]);
        for path in paths {
            std::fs::remove_dir_all(path).unwrap();
        }
        let count = shown["plan"]["votersHere"].as_array().unwrap().len();
        (shown["plan"]["hasMajority"].as_bool().unwrap(), count)
    };
    let add = change(ConfChangeType::ConfChangeAddNode, &added);
    let add_learner = change(ConfChangeType::ConfChangeAddLearnerNode, &learner);
    let remove = change(ConfChangeType::ConfChangeRemoveNode, &lost.member(2));
    assert_eq!(majority(&[], [0, 1]), (true, 2));
    assert_eq!(majority(&[add], [0, 1]), (false, 2));
    assert_eq!(majority(&[add_learner], [0, 1]), (true, 2));
    assert_eq!(majority(std::slice::from_ref(&remove), [0, 1]), (true, 2));
    assert_eq!(majority(&[remove], [0, 2]), (false, 1));
}

#[test]
fn an_entry_that_cannot_be_applied_makes_its_directory_unsound() {
    let lost = Lost::new();
    let unknown = (2, NORMAL, Bytes::from_static(b"\xff"));
    let best = lost.closed(0, &[put(1, "x"), unknown], 4);
    let next = lost.closed(1, &[put(1, "x")], 4);
    let last = lost.closed(2, &[], 3);
    let (code, shown, said) = lost.recover(&[&best, &next, &last], &[]);
    let described = shown["directories"][0]["reason"].as_str().unwrap();
    assert!(code == 0 && described.starts_with("replay: log entry 5 of term 2"), "{shown} {said}");
    assert_eq!(shown["plan"]["chosen"], next.to_str().unwrap());
    assert_eq!(shown["plan"]["kept"]["keys"], 1);
}

#[test]
fn a_directory_marked_as_corrupt_is_not_chosen_for_recovery() {
    let lost = Lost::new();
    let best = lost.closed(0, &[put(1, "x"), put(1, "y")], 5);
    let next = lost.closed(1, &[put(1, "x")], 4);
    std::fs::write(best.join("member/rebuild"), "it differs\n").unwrap();
    let (_, shown, _) = lost.recover(&[&best, &next], &["--accept-data-loss"]);
    let directory = &shown["directories"][0];
    assert_eq!(directory["reason"], "mark: the state is corrupt: it differs");
    assert_eq!(shown["plan"]["chosen"], next.to_str().unwrap());
    // The output lists the entries that only this directory has.
    assert_eq!(shown["plan"]["leftOut"][0]["says"][0], "put \"y\" (0 bytes)");
    assert_eq!(shown["plan"]["contradictions"], serde_json::json!([]));
    let (code, judged, _) = utl(&["verify", best.to_str().unwrap()]);
    assert!(
        code == 0
            && judged.contains(
                "note, mark, the member fetches its state from the other members when it starts"
            ),
        "{judged}"
    );
}

#[test]
fn an_existing_output_path_is_refused_only_if_files_would_be_written() {
    let lost = Lost::new();
    let directory = lost.closed(0, &[put(1, "x")], 4);
    let new = lost.folder.path().join("new");
    std::fs::create_dir(&new).unwrap();
    std::fs::write(new.join("something"), "").unwrap();
    let (code, shown, said) = lost.recover(&[&directory], &["--accept-data-loss"]);
    assert_eq!((code, shown["plan"]["kept"]["keys"].as_u64()), (0, Some(1)), "{said}");
    let data_dir = new.to_str().unwrap();
    for (directory, described) in [
        (directory.to_str().unwrap(), "not empty or could not be read"),
        // Missing directories are reported before all other errors.
        ("/nonexistent", "stat /nonexistent: no such directory"),
    ] {
        let words = ["recover", "--data-dir", data_dir, directory, "--accept-data-loss", "--yes"];
        let (code, _, said) = utl(&words);
        assert!(code != 0 && said.contains(described), "{said}");
    }
}

#[test]
fn without_a_log_the_advice_is_to_restore_the_backend_file() {
    let lost = Lost::new();
    let directory = lost.closed(0, &[put(1, "x")], 4);
    let wal = directory.join("member/wal");
    for segment in std::fs::read_dir(&wal).unwrap() {
        std::fs::remove_file(segment.unwrap().path()).unwrap();
    }
    let (code, _, said) = lost.recover(&[&directory], &["--accept-data-loss"]);
    let way = format!("`snapshot restore {}/member/snap/db --skip-hash-check", directory.display());
    assert!(code == 1 && said.contains(&way), "{said}");
    let (code, _, said) = utl(&["verify", directory.to_str().unwrap()]);
    assert!(code == 1 && said.contains(&way), "{said}");
    std::fs::write(directory.join("member/snap/db"), "no more").unwrap();
    let (code, _, said) = utl(&["verify", directory.to_str().unwrap()]);
    assert!(code == 1 && !said.contains("--skip-hash-check"), "{said}");
}

/// Appends an entry to the log of a restored directory, as if its member had joined its cluster.
fn use_restored(directory: &Path) {
    let dirs = DataDir::new(directory, None);
    restored::remove(&RealDisk, &dirs).unwrap();
    let start = SnapshotMark { index: 3, term: 1, conf_state: None };
    let (mut wal, _) = Wal::open(disk(), dirs.wal(), &start, wal::Options::default()).unwrap();
    let (term, kind, data) = put(2, "y");
    let state = HardState { term, vote: 0, commit: 4 };
    wal.save(Some(&state), &[Entry { index: 4, term, kind, data }]).unwrap();
    wal.close().unwrap();
}

#[test]
fn a_directory_restored_from_a_snapshot_does_not_count_as_a_voter() {
    let lost = Lost::new();
    let one = lost.closed(0, &[put(1, "x")], 4);
    let other = lost.restored(2, &one);
    let (code, shown, said) = lost.recover(&[&one, &other], &["--yes"]);
    assert!(code == 1 && said.contains("for only 1 of the 3 voters"), "{said}");
    assert_eq!(shown["plan"]["hasMajority"], false, "{shown}");
    let directory = &shown["directories"][1];
    assert_eq!(directory["verdict"], "sound, does not count");
    assert!(directory["reason"].as_str().unwrap().starts_with("restored from a snapshot"));
    let words = ["recover", one.to_str().unwrap(), other.to_str().unwrap()];
    let (_, text, _) = utl(&words);
    assert!(text.contains(" does not count: no majority"), "{text}");
    // The directory does not count either if its member has used it in another cluster.
    use_restored(&other);
    let (code, shown, _) = lost.recover(&[&one, &other], &["--yes"]);
    assert_eq!((code, &shown["plan"]["chosen"]), (1, &other.to_str().unwrap().into()), "{shown}");
    assert_eq!(shown["plan"]["votersHere"].as_array().unwrap().len(), 1, "{shown}");
}

#[test]
fn directories_restored_from_the_same_snapshot_count_as_voters() {
    let lost = Lost::new();
    let snapshot = lost.closed(0, &[put(1, "x")], 4);
    let both = [lost.restored(0, &snapshot), lost.restored(1, &snapshot)];
    let majority = || {
        let (_, shown, _) = lost.recover(&[&both[0], &both[1]], &["--accept-data-loss"]);
        shown["plan"]["hasMajority"].as_bool().unwrap()
    };
    assert!(majority());
    // If only one of the members has used its directory, the other member may have lost an earlier one.
    use_restored(&both[0]);
    assert!(!majority());
    use_restored(&both[1]);
    assert!(majority());
}
