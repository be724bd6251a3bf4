//! Tests which senders' messages and snapshots are accepted, and how many images are received concurrently.

use quorate_storage::bolt::{Db, Options};
use quorate_storage::disk::RealDisk;

use super::*;

fn snapshot_message() -> Message {
    snapshot_message_from(2)
}

fn snapshot_message_from(from: MemberId) -> Message {
    let conf_state = ConfState { voters: vec![2], learners: vec![1], ..ConfState::default() };
    let metadata = SnapshotMetadata { conf_state, index: LogIndex(7), term: Term(3) };
    let snapshot = quorate_raft::Snapshot { data: bytes::Bytes::new(), metadata };
    Message {
        from,
        term: Term(4),
        snapshot: Some(Box::new(snapshot)),
        ..Message::new(MessageKind::Snapshot, 1)
    }
}

#[test]
fn only_messages_from_members_to_this_member_are_admitted() {
    let message = |to| Message { from: 2, ..Message::new(MessageKind::Heartbeat, to) };
    assert_eq!(admit(1, &message(1), Sender::Member), Ok(()));
    assert_eq!(admit(1, &message(1), Sender::Unknown), Err(NotForUs::UnknownSender));
    assert_eq!(admit(1, &message(1), Sender::Removed), Err(NotForUs::Removed));
    assert_eq!(admit(1, &message(3), Sender::Member), Err(NotForUs::OtherMember));
    assert_eq!(admit(1, &message(3), Sender::Unknown), Err(NotForUs::OtherMember));
    assert_eq!(admit(1, &message(3), Sender::Removed), Err(NotForUs::Removed));
}

#[test]
fn an_invalid_snapshot_message_is_refused_before_its_image_is_stored() {
    let refused = |claimed, sender, change: fn(&mut Message)| {
        let mut message = snapshot_message();
        change(&mut message);
        Snapshot::admit(1, claimed, sender, message)
            .expect_err("the snapshot is refused")
            .to_string()
    };
    assert!(Snapshot::admit(1, Some(2), Sender::Member, snapshot_message()).is_ok());
    let unknown = refused(Some(2), Sender::Unknown, |_| {});
    assert_eq!(unknown, NotForUs::UnknownSender.to_string());
    assert_eq!(refused(Some(2), Sender::Removed, |_| {}), NotForUs::Removed.to_string());
    for claimed in [None, Some(3)] {
        let refused = refused(claimed, Sender::Member, |_| {});
        assert_eq!(refused, NotForUs::OtherSender.to_string());
    }
    let own = Snapshot::admit(1, Some(1), Sender::Member, snapshot_message_from(1));
    assert_eq!(
        own.map_err(|refused| refused.to_string()).err(),
        Some(NotForUs::OtherSender.to_string())
    );
    let of_member = |change| refused(Some(2), Sender::Member, change);
    assert_eq!(of_member(|message| message.to = 9), NotForUs::OtherMember.to_string());
    let kind = of_member(|message| message.kind = MessageKind::Append);
    assert_eq!(kind, "wrong raft message type");
    for change in [
        (|message| message.snapshot = None) as fn(&mut Message),
        |message| message.term = Term(2),
        |message| message.snapshot.as_mut().unwrap().metadata.index = LogIndex::ZERO,
        |message| message.snapshot.as_mut().unwrap().metadata.term = Term::ZERO,
        |message| message.snapshot.as_mut().unwrap().metadata.conf_state.learners.clear(),
    ] {
        let unfit = of_member(change);
        assert!(unfit.starts_with("this member cannot install the snapshot: "), "{unfit}");
    }
}

#[test]
fn images_beyond_the_limit_are_refused_until_an_earlier_image_is_finished_or_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let mut depot = Depot::new(Arc::new(RealDisk), folder.path(), 1);
    let mut begin = |from| begin(&mut depot, from);
    let senders = || 2..2 + INCOMING_MAX as MemberId;
    let mut arriving: Vec<_> = senders().map(|from| begin(from).unwrap()).collect();
    let further = senders().end;
    assert!(matches!(begin(further), Err(Refused::TooMany)));
    arriving.pop().unwrap().discard().unwrap();
    arriving.push(begin(further).unwrap());
    // An empty file is not a valid image.
    assert!(matches!(arriving.pop().unwrap().finish(), Err(Refused::Image(_))));
    assert!(begin(further).unwrap().discard().is_ok());
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, arriving.len(), "a refused image leaves no file");
}

#[test]
fn a_newer_image_replaces_an_earlier_image_of_the_same_sender() {
    let folder = tempfile::tempdir().unwrap();
    let mut depot = Depot::new(Arc::new(RealDisk), folder.path(), 1);
    let mut earlier: Vec<_> = (0..=INCOMING_MAX).map(|_| begin(&mut depot, 2).unwrap()).collect();
    let mut newest = earlier.pop().unwrap();
    let mut of_other = begin(&mut depot, 3).unwrap();
    let mut first = earlier.swap_remove(0);
    assert!(matches!(first.write(b"late"), Err(Refused::Replaced)));
    first.discard().unwrap();
    for replaced in earlier {
        assert!(matches!(replaced.finish(), Err(Refused::Replaced)));
    }
    newest.write(b"more").unwrap();
    of_other.write(b"more").unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn an_image_is_refused_as_soon_as_it_is_not_a_backend_file_or_longer_than_stated() {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut depot = Depot::new(Arc::clone(&disk), folder.path(), 1);
    let mut zeros = begin(&mut depot, 2).unwrap();
    assert!(matches!(zeros.write(&[0; 4096]), Err(Refused::Image(_))));
    zeros.discard().unwrap();

    let db = Db::open(&disk, &folder.path().join("other"), Options::default()).unwrap();
    let image = db.read();
    let mut bytes = vec![0; usize::try_from(image.image_len()).unwrap()];
    assert_eq!(image.read_image_at(0, &mut bytes).unwrap(), bytes.len());
    let mut arriving = begin(&mut depot, 2).unwrap();
    for piece in bytes.chunks(70) {
        arriving.write(piece).unwrap();
    }
    let longer = arriving.write(&[0]);
    assert!(
        matches!(longer, Err(Refused::TooLong { bytes_max }) if bytes_max == image.image_len())
    );
    arriving.discard().unwrap();
}

fn begin(depot: &mut Depot, from: MemberId) -> Result<Arriving, Refused> {
    let message = snapshot_message_from(from);
    let admitted = Snapshot::admit(1, Some(from), Sender::Member, message);
    depot.begin(admitted.expect("a member's snapshot is admitted"))?.create()
}
