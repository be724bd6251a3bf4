//! Tests of snapshots whose image is newer than their message.

use std::path::Path;

use quorate_state::backend::{Backend, Batch};
use quorate_state::members::MemberChange;
use quorate_state::schema::{Bucket, meta};
use quorate_storage::bolt::ReadTx;

use super::*;

/// Creates a backend file with these members and the entries up to `index`, all of term 3.
fn image_at(dir: &Path, index: u64, version: Option<&'static str>) -> ReadTx {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let path = dir.join(format!("image-{index}-{}", version.unwrap_or("3.5")));
    let backend = Backend::open(&disk, &path, Options::default()).unwrap();
    let mut batch = Batch::new();
    let mut members = Members::default();
    for (id, is_learner) in [(1, false), (2, true), (9, false)] {
        let urls = vec![format!("http://{id}:2380")];
        let member = Member { is_learner, ..Member::new(units::MemberId(id), urls) };
        members.apply(MemberChange::Add(member), &mut batch);
    }
    if let Some(version) = version {
        batch.put(Bucket::Meta, meta::STORAGE_VERSION, version);
    }
    batch.set_consistent_index(index, 3);
    backend.commit(&batch).unwrap();
    backend.db().read()
}

#[test]
fn a_snapshot_with_a_newer_image_has_the_index_and_members_of_the_image() {
    let (one, two) = pair();
    let dir = tempfile::tempdir().unwrap();
    let outcome = |report| match report {
        Report::Snapshot { to: 2, outcome } => Some(outcome),
        _ => None,
    };
    // This is the state of an etcd member after a restart, before it has applied the entry that adds member 9 again.
    let conf_state = ConfState { voters: vec![1], learners: vec![2], ..ConfState::default() };
    let metadata = SnapshotMetadata { conf_state, index: LogIndex(77), term: Term(2) };
    let snapshot = Snapshot { data: Bytes::from_static(b"{}"), metadata };
    let message = Message {
        from: 1,
        term: Term(4),
        snapshot: Some(Box::new(snapshot)),
        ..Message::new(MessageKind::Snapshot, 2)
    };
    let send = |index, version| {
        let image = image_at(dir.path(), index, version);
        one.peers.send_snapshot(OutgoingSnapshot { message: message.clone(), image });
    };
    send(80, Some("3.6.0"));
    let received = two.receive(1).remove(0).snapshot.unwrap().metadata;
    let ConfState { voters, learners, .. } = received.conf_state;
    assert_eq!((received.index, received.term), (LogIndex(80), Term(3)));
    assert_eq!((voters, learners), (vec![1, 9], vec![2]));
    assert_eq!(one.wait_for(outcome), SnapshotOutcome::Finished);
    assert!(database_path(two.dir.path(), 80).exists());
    // If the image is at the message's index, the message determines the members, because etcd's table of members may
    // contain rows of former members.
    send(77, Some("3.6.0"));
    let received = two.receive(1).remove(0).snapshot.unwrap().metadata;
    let ConfState { voters, learners, .. } = received.conf_state;
    assert_eq!((received.index, voters, learners), (LogIndex(77), vec![1], vec![2]));
    assert_eq!(one.wait_for(outcome), SnapshotOutcome::Finished);
    std::fs::remove_file(database_path(two.dir.path(), 77)).unwrap();
    let mut unknown = message.clone();
    unknown.snapshot.as_mut().unwrap().metadata.conf_state.voters = vec![1, 5];
    let image = image_at(dir.path(), 77, Some("3.7"));
    one.peers.send_snapshot(OutgoingSnapshot { message: unknown, image });
    assert_eq!(one.wait_for(outcome), SnapshotOutcome::Failed, "member 5 has no row");
    // A file of etcd 3.5 may lack promotions, an image older than the message may lack any change, and a file without
    // an index belongs to no snapshot. All three files are refused.
    for (index, version) in [(81, None), (76, Some("3.6.0")), (0, Some("3.6.0"))] {
        send(index, version);
        assert_eq!(one.wait_for(outcome), SnapshotOutcome::Failed, "{index} {version:?}");
    }
    assert_eq!(
        std::fs::read_dir(two.dir.path()).unwrap().count(),
        1,
        "the refused files are removed"
    );
}
