//! Which refusals to start are right.

use std::time::Instant;

use prost::Message as _;
use quorate_api::raftpb::{ConfChange, ConfChangeType};
use quorate_core::bootstrap::Refusal;
use quorate_raft::{Entry, EntryKind, LogIndex, Term};
use quorate_state::members::Founders;
use quorate_state::units::MemberId;

use super::super::World;
use crate::member::Refused;
use crate::plan::{Less, Plan};

/// A world in which the first of three founders was removed, and the ids of the three.
#[expect(clippy::disallowed_methods, reason = "an instant has no other beginning")]
fn world_without_its_first() -> (World, Vec<u64>) {
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
    let mut world = World::new(Plan::draw(1, &Less::default()), Instant::now(), None);
    world.judge.note_committed(0, &entries);
    assert_eq!(world.judge.verdict(), None);
    (world, ids)
}

#[test]
fn a_member_that_was_removed_may_be_known_still_to_one_who_is_behind() {
    let (mut world, ids) = world_without_its_first();
    let published =
        |id| Refused::Verdict(Refusal::Published { id: MemberId(id), name: String::new() });
    world.judge_refusal(0, &published(ids[0]));
    assert_eq!(world.judge.verdict(), None);
    world.judge_refusal(1, &published(ids[1]));
    assert!(world.judge.verdict().is_some_and(|wrong| wrong.contains("does not start")));
}
