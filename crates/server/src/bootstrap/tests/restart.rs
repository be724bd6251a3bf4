//! Tests of restarts in clusters with several members.

use quorate_api::raftpb::{ConfChange, ConfChangeType};
use quorate_node::{Effect, Event};
use quorate_raft::Role;
use quorate_state::apply::EntryMeta;
use quorate_state::backend::Batch;
use quorate_state::members::ChangeContext;
use quorate_state::schema::Bucket;
use quorate_state::units::MemberId;
use quorate_state::versions::Version;

use super::*;

const IDS: [u64; 3] =
    [3_131_651_684_461_204_394, 8_654_977_167_160_755_696, 16_938_316_412_043_011_415];

/// Returns the configuration of `n1`, one of three founders.
pub(super) fn config(folder: &TempDir) -> Config {
    let cluster = "n1=http://127.0.0.1:17181,n2=http://127.0.0.1:17182,n3=http://127.0.0.1:17183";
    let members = quorate_config::InitialMembers::parse(cluster).unwrap();
    Config {
        name: "n1".to_owned(),
        data_dir: folder.path().join("data").to_str().unwrap().to_owned(),
        initial_cluster: cluster.to_owned(),
        initial_advertise_peer_urls: members.urls_of("n1").unwrap().to_vec(),
        ..Config::default()
    }
}

fn change(kind: ConfChangeType, id: u64, context: String) -> ConfChange {
    ConfChange {
        r#type: Some(kind as i32),
        node_id: Some(id),
        context: Some(context.into()),
        ..ConfChange::default()
    }
}

fn add_learner(id: u64) -> ConfChange {
    let urls = vec![format!("http://127.0.0.1:{id}")];
    let member = Member { is_learner: true, ..Member::new(MemberId(id), urls) };
    change(ConfChangeType::ConfChangeAddLearnerNode, id, member.to_json())
}

fn remove(id: u64) -> ConfChange {
    ConfChange { context: None, ..change(ConfChangeType::ConfChangeRemoveNode, id, String::new()) }
}

/// Founds `n1`, applies the founders and these changes, and commits them to the backend file. Leaves two further
/// entries, which are not committed, in the log.
pub(super) fn create_used_directory(config: &Config, changes: &[ConfChange]) {
    let mut booted = boot_with(config, &real_disk(), &NoNames).unwrap();
    let mut entries = log_of(config).entries;
    for (index, change) in (4..).zip(changes) {
        let data = change.encode_to_vec().into();
        entries.push(wal::Entry { index, term: 2, kind: 1, data });
    }
    for entry in &entries {
        let meta = EntryMeta { index: entry.index, term: entry.term, ..EntryMeta::default() };
        let change = ConfChange::decode(entry.data.clone()).unwrap();
        booted.state.apply_conf_change(meta, &change).unwrap();
    }
    let last = entries.len() as u64;
    booted.backend.commit(&booted.state.take_batch()).unwrap();
    for index in last + 1..last + 3 {
        entries.push(wal::Entry { index, term: 2, kind: 0, data: "".into() });
    }
    // As after a crash, the commit index in the log is behind the applied index.
    booted
        .wal
        .save(Some(&wal::HardState { term: 2, vote: IDS[1], commit: 3 }), &entries[3..])
        .unwrap();
}

#[test]
fn consensus_starts_with_the_members_in_the_backend_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[add_learner(77), remove(IDS[2])]);
    // A restart ignores the flags about the initial cluster.
    let bare = Config { data_dir: config.data_dir, ..Config::default() };
    let booted = boot_with(&bare, &real_disk(), &NoNames).unwrap();
    assert_eq!(booted.identity.member_id, IDS[1]);
    assert_eq!(booted.peers, []);
    let conf_state = booted.state.members().conf_state();
    assert_eq!((conf_state.voters, conf_state.learners), (IDS[..2].to_vec(), vec![77]));
    // The entry that removed the third founder is not applied again, so there are two voters.
    assert_eq!((booted.node.commit_index(), booted.node.is_sole_voter()), (LogIndex(5), false));
}

/// Writes these members to the backend file of a stopped member.
fn write_rows(config: &Config, members: &[Member]) {
    let path = DataDir::new(Path::new(&config.data_dir), None).backend();
    let backend = Backend::open(&real_disk(), &path, bolt::Options::default()).unwrap();
    let mut batch = Batch::new();
    for member in members {
        batch.put(Bucket::Members, member.id.to_string(), member.to_json());
    }
    backend.commit(&batch).unwrap();
}

#[test]
fn member_rows_that_differ_from_the_raft_configuration_are_corrected_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[add_learner(77), remove(IDS[2])]);
    // In etcd, an update of a learner's URLs turns the learner's row into a voter's row, and a restore by an older
    // version leaves the row of a former member.
    let learner = Member::new(MemberId(77), vec!["http://127.0.0.1:77".to_owned()]);
    let former = Member::new(MemberId(99), vec!["http://127.0.0.1:99".to_owned()]);
    write_rows(&config, &[learner, former]);
    for _ in 0..2 {
        let mut booted = boot_with(&config, &real_disk(), &NoNames).unwrap();
        let listed = booted.state.members().conf_state();
        assert_eq!((listed.voters, listed.learners), (IDS[..2].to_vec(), vec![77]));
        let counted = booted.node.status().config.conf_state();
        assert_eq!((counted.voters, counted.learners), (IDS[..2].to_vec(), vec![77]));
        booted.backend.commit(&booted.state.take_batch()).unwrap();
    }
}

#[test]
fn a_removed_member_does_not_start_and_reports_its_removal() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[remove(IDS[1])]);
    assert_eq!(refusal(&config), "the member has been permanently removed from the cluster");
}

#[test]
fn learners_beyond_the_limit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let two = Config { max_learners: 2, ..config(&folder) };
    create_used_directory(&two, &[add_learner(77), add_learner(78)]);
    let one = Config { max_learners: 1, ..two.clone() };
    assert_eq!(refusal(&one), "membership: too many learner members in cluster");
    drop(boot_with(&two, &real_disk(), &NoNames).unwrap());
}

/// Restarts a member with an election timeout of 1000 ticks, and ticks its node until the node campaigns. The node's
/// writes complete immediately. Returns the node and the number of ticks.
fn campaigning(change: impl FnOnce(&mut Config)) -> (Node, u64) {
    let folder = tempfile::tempdir().unwrap();
    let timing = Config { heartbeat_interval_ms: 1, ..config(&folder) };
    let mut config = Config { election_timeout_ms: 1_000, ..timing };
    create_used_directory(&config, &[]);
    change(&mut config);
    let mut node = boot_with(&config, &real_disk(), &NoNames).unwrap().node;
    node.start();
    for ticks in 1..=2_000 {
        while let Some(effect) = node.poll_effect() {
            if let Effect::Persist(persist) = effect {
                node.handle(Event::Persisted { token: persist.token });
            }
        }
        node.handle(Event::Tick);
        if node.status().soft_state.role != Role::Follower {
            return (node, ticks);
        }
    }
    panic!("the node did not campaign within two election timeouts");
}

#[test]
fn election_flags_are_passed_to_the_node() {
    let (node, ticks) = campaigning(|_| {});
    assert_eq!(node.status().soft_state.role, Role::PreCandidate);
    assert!(ticks <= 1_000, "{ticks}");
    let (node, _) = campaigning(|config| config.pre_vote = false);
    assert_eq!(node.status().soft_state.role, Role::Candidate);
    let (_, ticks) = campaigning(|config| config.initial_election_tick_advance = false);
    assert!(ticks >= 1_000, "{ticks}");

    // The writes of the candidate's vote never complete, as on a stalled disk.
    for fences in [true, false] {
        let (mut node, _) = campaigning(|config| {
            config.pre_vote = false;
            config.fence_stalled_disk = fences;
        });
        for _ in 0..2_000 {
            node.handle(Event::Tick);
        }
        let notes = node.take_notes();
        let is_stalled =
            notes.iter().any(|note| note.text.contains("longer than an election timeout"));
        assert_eq!(is_stalled, fences, "{notes:?}");
    }
}

/// Writes the cluster version to the backend file of a stopped member.
fn set_cluster_version(config: &Config, version: &'static str) {
    let path = DataDir::new(Path::new(&config.data_dir), None).backend();
    let backend = Backend::open(&real_disk(), &path, bolt::Options::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(Bucket::Cluster, &b"clusterVersion"[..], version);
    backend.commit(&batch).unwrap();
}

#[test]
fn a_member_of_a_cluster_older_than_3_5_is_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[]);
    set_cluster_version(&config, "3.4.0");
    let refused = refusal(&config);
    assert!(refused.contains("upgrade all members to etcd 3.5 first"), "{refused}");
    set_cluster_version(&config, "3.0.0");
    drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
}

#[test]
fn a_member_with_a_lower_server_version_does_not_open_newer_files() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[]);
    set_cluster_version(&config, "3.6.0");
    let held =
        |minor| Config { hold_cluster_version: Some(Version::new(3, minor)), ..config.clone() };
    let text = "invalid downgrade; server version is lower than determined cluster version";
    assert!(refusal(&held(5)).starts_with(text), "{}", refusal(&held(5)));
    drop(boot_with(&held(6), &real_disk(), &NoNames).unwrap());
}

/// Returns the type, node id and context of each change after index `from` in the member's log.
fn forced_changes(config: &Config, from: u64) -> Vec<(i32, u64, Option<String>)> {
    log_of(config)
        .entries
        .iter()
        .filter(|entry| entry.index > from)
        .map(|entry| {
            assert_eq!((entry.kind, entry.term), (1, 2));
            let change = ConfChange::decode(entry.data.clone()).unwrap();
            let context = change.context.map(|json| String::from_utf8(json.to_vec()).unwrap());
            (change.r#type.unwrap(), change.node_id.unwrap(), context)
        })
        .collect()
}

#[test]
fn force_new_cluster_removes_the_other_members() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[add_learner(77), remove(IDS[2])]);
    let alone = Config { force_new_cluster: true, ..config.clone() };
    let mut booted = boot_with(&alone, &real_disk(), &NoNames).unwrap();
    // The removals replace the uncommitted entries, and are committed.
    assert_eq!(forced_changes(&config, 5), [(1, 77, None), (1, IDS[0], None)]);
    let bytes = log_of(&config).entries[5].data.clone();
    assert_eq!(bytes, [0x10, 1, 0x18, 77].as_slice());
    assert_eq!(booted.node.commit_index(), LogIndex(7));
    assert_eq!(log_of(&config).hard_state.commit, 3);
    for entry in log_of(&config).entries.drain(5..) {
        let meta = EntryMeta { index: entry.index, term: entry.term, ..EntryMeta::default() };
        let change = ConfChange::decode(entry.data.clone()).unwrap();
        booted.state.apply_conf_change(meta, &change).unwrap();
    }
    let left: Vec<u64> = booted.state.members().iter().map(|member| member.id.0).collect();
    assert_eq!(left, [IDS[1]]);
    booted.backend.commit(&booted.state.take_batch()).unwrap();
    drop(booted);
    // When the member starts for the second time, there are no other members to remove.
    let mut booted = boot_with(&alone, &real_disk(), &NoNames).unwrap();
    assert_eq!(log_of(&config).entries.len(), 7);
    booted.node.start();
    booted.node.handle(Event::Tick);
    assert!(booted.node.is_sole_voter());
}

#[test]
fn force_new_cluster_adds_a_missing_member_before_removing_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    create_used_directory(&config, &[]);
    // The same log is written to the directory of a different member.
    let log = log_of(&config);
    config.data_dir = folder.path().join("other").to_str().unwrap().to_owned();
    begin_log(&config, 1, 5);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let (mut wal, _) =
        Wal::open(real_disk(), dirs.wal(), &SnapshotMark::default(), wal_options(&config)).unwrap();
    wal.save(Some(&wal::HardState { commit: 3, ..log.hard_state }), &log.entries).unwrap();
    drop(wal);
    let alone = Config { force_new_cluster: true, ..config.clone() };
    let booted = boot_with(&alone, &real_disk(), &NoNames).unwrap();
    let added =
        ChangeContext::from_json(forced_changes(&config, 3)[0].2.as_ref().unwrap().as_bytes());
    assert_eq!(added.unwrap().member.peer_urls, ["http://localhost:2380"]);
    let ids: Vec<(i32, u64)> =
        forced_changes(&config, 3).iter().map(|row| (row.0, row.1)).collect();
    assert_eq!(ids, [(0, 5), (1, IDS[0]), (1, IDS[1]), (1, IDS[2])]);
    assert_eq!(booted.node.commit_index(), LogIndex(7));
    assert!(
        log.entries.iter().all(|entry| entry.kind <= 1),
        "the log contains only entry kinds that every version can read"
    );
}

/// Adds a snapshot mark to the log, as receiving a snapshot from a leader does.
fn mark_snapshot(config: &Config, index: u64) {
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let start = SnapshotMark::default();
    let (mut wal, _) = Wal::open(real_disk(), dirs.wal(), &start, wal_options(config)).unwrap();
    wal.save_snapshot(&SnapshotMark { index, term: 2, conf_state: Some("".into()) }).unwrap();
    wal.save(Some(&wal::HardState { term: 2, vote: 0, commit: index }), &[]).unwrap();
    wal.sync().unwrap();
}

#[test]
fn a_backend_file_that_does_not_match_the_log_is_refused_as_in_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[]);
    mark_snapshot(&config, 5);
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let db = dirs.backend();
    // The snapshot file is older than the mark.
    let image = dirs.snap().join("0000000000000005.snap.db");
    std::fs::copy(&db, &image).unwrap();
    let own = std::fs::read(&db).unwrap();
    let mismatch = format!(
        "database file ({} index 3) does not match with snapshot (index 5)",
        image.display()
    );
    let refused = refusal(&config);
    assert!(refused.contains(&mismatch) && refused.contains("add it again"), "{refused}");
    // The snapshot file is not a backend file.
    for junk in [Vec::new(), vec![7; 10_000], own[..own.len() / 2].to_vec()] {
        std::fs::write(&image, junk).unwrap();
        let refused = refusal(&config);
        assert!(refused.contains(image.to_str().unwrap()), "{refused}");
        assert!(refused.contains("which is unchanged"), "{refused}");
    }
    assert!(std::fs::read(&db).unwrap() == own, "the previous state is unchanged");
    std::fs::remove_file(&db).unwrap();
    assert_eq!(
        refusal(&config),
        format!("database file ({}) of the backend is missing", db.display())
    );
}

#[test]
fn an_invalid_backend_file_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[]);
    mark_snapshot(&config, 3);
    let db = DataDir::new(Path::new(&config.data_dir), None).backend();
    let own = folder.path().join("own");
    std::fs::rename(&db, &own).unwrap();
    let refused = |problem: &str| {
        let text = refusal(&config);
        let expected = format!("database file ({}) of the backend is {problem}; ", db.display());
        assert!(text.starts_with(&expected) && text.contains("add it again"), "{text}");
    };
    std::fs::write(&db, "").unwrap();
    refused("empty");
    std::fs::remove_file(&db).unwrap();
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &db).unwrap();
    refused("a link to a missing file");
    assert!(!folder.path().join("nowhere").exists(), "the missing directory was not created");
    std::fs::remove_file(&db).unwrap();
    std::os::unix::fs::symlink("/dev/null", &db).unwrap();
    refused("not a regular file");
    std::fs::remove_file(&db).unwrap();
    std::fs::create_dir(&db).unwrap();
    refused("not a regular file");
    std::fs::remove_dir(&db).unwrap();
    // A symbolic link to the file is accepted.
    std::os::unix::fs::symlink(&own, &db).unwrap();
    assert_eq!(boot_with(&config, &real_disk(), &NoNames).unwrap().state.applied().0, 3);
}

#[test]
fn received_snapshot_files_that_are_not_newer_than_the_backend_are_removed() {
    let folder = TempDir::new().unwrap();
    let config = config(&folder);
    create_used_directory(&config, &[]);
    let snap = DataDir::new(Path::new(&config.data_dir), None).snap();
    let [stranger, passed, awaited] = [0, 3, 4].map(|index| snap::database_path(&snap, index));
    for path in [&stranger, &passed, &awaited] {
        std::fs::write(path, b"image").unwrap();
    }
    drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
    assert!(!stranger.exists());
    assert!(!passed.exists());
    assert!(awaited.exists(), "the log may still require the file");
}

#[test]
fn only_a_successful_start_removes_partial_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let config = super::config(&folder);
    drop(boot_with(&config, &real_disk(), &NoNames).unwrap());
    let dirs = DataDir::new(Path::new(&config.data_dir), None);
    let unfinished = dirs.snap().join("tmp7");
    std::fs::write(&unfinished, b"half").unwrap();
    let log = dirs.wal().join("0000000000000000-0000000000000000.wal");
    let sound = std::fs::read(&log).unwrap();
    let damaged: Vec<u8> = sound.iter().map(|byte| !byte).collect();
    std::fs::write(&log, damaged).unwrap();
    refusal(&config);
    assert!(unfinished.exists(), "the file may belong to another process");
    std::fs::write(&log, sound).unwrap();
    boot_with(&config, &real_disk(), &NoNames).unwrap();
    assert!(!unfinished.exists());
}
