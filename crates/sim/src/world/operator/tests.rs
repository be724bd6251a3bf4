//! Tests the check that a refusal to start is justified.

use std::time::Instant;

use prost::Message as _;
use quorate_api::raftpb::{ConfChange, ConfChangeType};
use quorate_core::bootstrap::Refusal;
use quorate_raft::{Entry, EntryKind, LogIndex, Term};
use quorate_state::members::Founders;
use quorate_state::units::MemberId;

use super::super::World;
use crate::member::Refused;
use crate::plan::{Plan, Reduction};

/// Creates a world in which the first of three founding members was removed. Returns the world and the three member
/// ids.
#[expect(clippy::disallowed_methods, reason = "any instant serves as the origin")]
fn world_after_removal_of_its_first_member() -> (World, Vec<u64>) {
    let urls = [0, 1, 2].map(|at| (format!("h{at}"), super::url_of(at)));
    let founders =
        Founders::new(urls.iter().map(|(name, url)| (name.as_str(), vec![url.clone()])), "sim");
    let ids: Vec<u64> = founders.iter().map(|one| one.id.0).collect();
    let removal = ConfChange {
        id: Some(1),
        r#type: Some(ConfChangeType::ConfChangeRemoveNode.into()),
        node_id: Some(ids[0]),
        context: None,
    };
    let changes = founders.conf_changes();
    let entries: Vec<Entry> = (1..)
        .zip(changes.chain([removal.encode_to_vec().into()]))
        .map(|(index, data)| Entry {
            term: Term(1),
            index: LogIndex(index),
            kind: EntryKind::ConfChange,
            data,
        })
        .collect();
    let mut world = World::new(Plan::draw(1, &Reduction::default()), Instant::now(), None);
    world.judge.note_committed(0, &entries);
    assert_eq!(world.judge.failure(), None);
    (world, ids)
}

#[test]
fn only_a_removed_member_may_be_refused_because_of_an_outdated_member_list() {
    let (mut world, ids) = world_after_removal_of_its_first_member();
    let published =
        |id| Refused::Bootstrap(Refusal::Published { id: MemberId(id), name: String::new() });
    world.check_refusal(0, &published(ids[0]));
    assert_eq!(world.judge.failure(), None);
    world.check_refusal(1, &published(ids[1]));
    assert!(world.judge.failure().is_some_and(|failure| failure.contains("failed to start")));
}
