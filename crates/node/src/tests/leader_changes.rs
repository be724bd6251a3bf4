//! Tests of how changes of leaders are detected and logged.

use quorate_raft::{Message, MessageKind, NONE, Term};

use super::{Member, config};
use crate::Event;

#[test]
fn a_leader_that_is_elected_again_after_it_was_lost_is_a_new_leader() {
    let mut member = Member::start(config(2, &[1, 2, 3]));
    member.finish_writes();
    member.node.take_notes();
    let mut previous = member.node.leadership();
    let mut observe = |kind, from, term, leader| {
        let message = Message { from, to: 2, term: Term(term), ..Message::new(kind, 2) };
        member.handle(Event::Received(vec![message]));
        member.finish_writes();
        let now = member.node.leadership();
        assert_eq!((now.leader, now.term), (leader, Term(term)));
        let has_new_leader = now.has_new_leader(&previous);
        previous = now;
        let notes = member.node.take_notes().into_iter();
        let texts = notes.map(|note| note.text).filter(|text| text.starts_with("raft.node: "));
        (has_new_leader, texts.collect::<Vec<_>>())
    };
    // A message of a later term that is not from a leader ends the term of the known leader.
    let (heartbeat, response) = (MessageKind::Heartbeat, MessageKind::AppendResponse);
    for (kind, from, term, leader, is_new, text) in [
        (heartbeat, 1, 2, 1, true, "raft.node: 2 elected leader 1 at term 2"),
        (response, 3, 3, NONE, false, "raft.node: 2 lost leader 1 at term 3"),
        (heartbeat, 1, 3, 1, true, "raft.node: 2 elected leader 1 at term 3"),
        (heartbeat, 3, 4, 3, true, "raft.node: 2 changed leader from 1 to 3 at term 4"),
    ] {
        assert_eq!(observe(kind, from, term, leader), (is_new, vec![text.to_owned()]));
    }
    assert_eq!(observe(heartbeat, 3, 4, 3), (false, vec![]));
}
