//! Tests of a single member: the work that it returns, and the messages and proposals that it refuses.

use super::*;
use crate::storage::MemoryStorage;
use crate::{ConfChange, ReadOnlyOption, RefusalKind, Snapshot};

/// Returns the storage of a member that has applied everything up to index 10 in term 1. Its group has these `voters`.
fn storage(voters: &[MemberId]) -> MemoryStorage {
    let mut snapshot = Snapshot::default();
    snapshot.metadata.index = LogIndex(10);
    snapshot.metadata.term = Term(1);
    snapshot.metadata.conf_state.voters = voters.to_vec();
    MemoryStorage::recover(
        HardState { term: Term(1), vote: 0, commit: LogIndex(10) },
        snapshot,
        Vec::new(),
    )
}

fn config() -> Config {
    Config { pre_vote: false, check_quorum: false, ..Config::new(1, 1) }
}

fn node(voters: &[MemberId]) -> Node<MemoryStorage> {
    Node::new(config(), storage(voters)).unwrap()
}

/// Does all pending work. Returns the committed entries and the messages.
fn settle(node: &mut Node<MemoryStorage>) -> (Vec<Entry>, Vec<Message>) {
    let (mut committed, mut sent) = (Vec::new(), Vec::new());
    while node.has_ready() {
        let ready = node.ready();
        node.storage_mut().append(ready.entries);
        committed.extend(ready.committed_entries);
        sent.extend(ready.messages);
        node.advance();
    }
    (committed, sent)
}

fn entry(term: u64, index: u64) -> Entry {
    Entry { term: Term(term), index: LogIndex(index), ..Entry::default() }
}

/// Returns a message of `kind` from member 2 in term 2.
fn from_peer(kind: MessageKind) -> Message {
    Message { from: 2, term: Term(2), ..Message::new(kind, 1) }
}

fn append(prev_index: u64, prev_term: u64, entries: Vec<Entry>) -> Message {
    let (index, log_term) = (LogIndex(prev_index), Term(prev_term));
    Message { index, log_term, entries, ..from_peer(MessageKind::Append) }
}

/// Returns member 1 of a group of three. It leads in term 2 and has committed one entry of its own.
fn leader() -> Node<MemoryStorage> {
    let mut node = node(&[1, 2, 3]);
    node.campaign();
    settle(&mut node);
    node.step(from_peer(MessageKind::VoteResponse)).unwrap();
    settle(&mut node);
    node.step(Message { index: LogIndex(11), ..from_peer(MessageKind::AppendResponse) }).unwrap();
    settle(&mut node);
    assert!(node.is_leader() && node.has_committed_in_term());
    node
}

#[test]
fn single_member_elects_itself_and_commits() {
    let mut node = node(&[1]);
    node.campaign();
    let (committed, sent) = settle(&mut node);
    assert!(node.is_leader());
    assert!(sent.is_empty());
    assert_eq!(committed, vec![entry(2, 11)]);
    assert!(node.has_committed_in_term());

    node.propose_batch([Bytes::from_static(b"a"), Bytes::from_static(b"b")]).unwrap();
    let (committed, _) = settle(&mut node);
    let data: Vec<_> = committed.iter().map(|entry| entry.data.as_ref()).collect();
    assert_eq!(data, [b"a", b"b"]);
    assert_eq!((node.commit_index(), node.applied_index()), (LogIndex(13), LogIndex(13)));

    node.read_index(Bytes::from_static(b"read"));
    let ready = node.ready();
    assert_eq!(ready.read_states.len(), 1);
    assert_eq!(ready.read_states[0].index, LogIndex(13));
}

#[test]
fn sole_voter_answers_reads_only_after_a_commit_in_its_term() {
    let mut node = node(&[1]);
    node.campaign();
    // The member leads once its vote is written. The first entry of the term is not written yet.
    drop(node.ready());
    node.advance();
    assert!(node.is_leader() && !node.has_committed_in_term());
    node.read_index(Bytes::from_static(b"early"));
    let ready = node.ready();
    assert!(ready.read_states.is_empty());
    node.storage_mut().append(ready.entries);
    node.advance();
    assert_eq!(node.ready().read_states[0].index, LogIndex(11));
}

#[test]
fn proposals_of_a_batch_share_one_message_per_follower() {
    let mut node = leader();
    node.propose_batch((0..100).map(|_| Bytes::from_static(b"x"))).unwrap();
    let ready = node.ready();
    assert_eq!(ready.entries.len(), 100);
    // Member 3 has not responded yet, so it is still being probed.
    let appends: Vec<_> = ready.messages.iter().map(|m| (m.to, m.entries.len())).collect();
    assert_eq!(appends, [(2, 100)]);
    assert!(ready.must_sync);
}

#[test]
fn a_restarted_member_continues_from_the_applied_index() {
    // The state machine has applied everything up to the saved commit index, 12, which is beyond the snapshot at index
    // 10.
    let mut storage = storage(&[1, 2, 3]);
    storage.append((11..=14).map(|index| entry(1, index)));
    storage.set_hard_state(HardState { term: Term(1), vote: 2, commit: LogIndex(12) });
    let config = Config { applied: LogIndex(12), ..config() };
    let mut node = Node::new(config.clone(), storage.clone()).unwrap();
    assert_eq!(
        (node.applied_index(), node.commit_index(), node.last_index()),
        (LogIndex(12), LogIndex(12), LogIndex(14))
    );
    assert!(!node.has_ready());
    node.step(Message { commit: LogIndex(14), ..append(14, 1, Vec::new()) }).unwrap();
    let (committed, _) = settle(&mut node);
    assert_eq!(committed, [entry(1, 13), entry(1, 14)]);

    let applied = |applied| Node::new(Config { applied, ..config.clone() }, storage.clone()).err();
    assert_eq!(
        applied(LogIndex(13)),
        Some(ConfigError::Applied {
            applied: LogIndex(13),
            first: LogIndex(10),
            commit: LogIndex(12)
        })
    );
    assert_eq!(
        applied(LogIndex(9)),
        Some(ConfigError::Applied {
            applied: LogIndex(9),
            first: LogIndex(10),
            commit: LogIndex(12)
        })
    );
}

#[test]
fn a_stored_commit_index_outside_the_log_is_refused() {
    let mut storage = storage(&[1]);
    storage.set_hard_state(HardState { term: Term(1), vote: 0, commit: LogIndex(11) });
    let refused = Node::new(config(), storage).err();
    assert_eq!(
        refused,
        Some(ConfigError::Commit { commit: LogIndex(11), first: LogIndex(10), last: LogIndex(10) })
    );
}

#[test]
fn a_member_without_a_configuration_does_not_campaign() {
    let mut node = Node::new(config(), MemoryStorage::new()).unwrap();
    for _ in 0..100 {
        node.tick();
    }
    node.campaign();
    assert!(!node.has_ready());
    // The founding members are added through ordinary log entries.
    let mut founder = ConfChange { node_id: 2, ..ConfChange::default() };
    let first = Entry {
        term: Term(1),
        index: LogIndex(1),
        ..AnyConfChange::V1(founder.clone()).into_entry()
    };
    node.step(Message { commit: LogIndex(1), ..append(0, 0, vec![first]) }).unwrap();
    let (committed, sent) = settle(&mut node);
    assert_eq!(committed.len(), 1);
    assert_eq!((sent[0].kind, sent[0].index), (MessageKind::AppendResponse, LogIndex(1)));
    assert_eq!(node.apply_conf_change(founder.clone()).unwrap().voters, [2]);
    // To reject a change, the application applies it with the member id set to zero.
    founder.node_id = NONE;
    assert_eq!(node.apply_conf_change(founder).unwrap().voters, [2]);
}

#[test]
fn one_proposal_may_exceed_the_uncommitted_limit() {
    let limited = Config { max_uncommitted_size: 10, ..config() };
    let mut node = Node::new(limited, storage(&[1, 2])).unwrap();
    node.campaign();
    settle(&mut node);
    node.step(from_peer(MessageKind::VoteResponse)).unwrap();
    let big = Bytes::from_static(&[0; 100]);
    node.propose(big.clone()).unwrap();
    assert_eq!(node.propose(big.clone()), Err(StepError::ProposalDropped));
    node.propose(Bytes::new()).unwrap();
    settle(&mut node);
    node.step(Message { index: LogIndex(13), ..from_peer(MessageKind::AppendResponse) }).unwrap();
    settle(&mut node);
    assert_eq!(node.applied_index(), LogIndex(13));
    node.propose(big).unwrap();
}

#[test]
fn proposals_are_forwarded_to_the_leader_or_dropped() {
    let mut node = node(&[1, 2, 3]);
    let data = Bytes::from_static(b"data");
    assert_eq!(node.propose(data.clone()), Err(StepError::ProposalDropped));
    assert_eq!(node.propose_batch([]), Err(StepError::EmptyProposal));
    node.step(append(10, 1, Vec::new())).unwrap();
    settle(&mut node);
    node.propose(data.clone()).unwrap();
    let (_, sent) = settle(&mut node);
    assert_eq!((sent[0].kind, sent[0].to, sent[0].term), (MessageKind::Propose, 2, Term(0)));

    let alone = Config { disable_proposal_forwarding: true, ..config() };
    let mut node = Node::new(alone, storage(&[1, 2, 3])).unwrap();
    node.step(append(10, 1, Vec::new())).unwrap();
    assert_eq!(node.propose(data), Err(StepError::ProposalDropped));
}

#[test]
fn a_candidate_with_an_old_term_receives_the_current_term() {
    let mut node = node(&[1, 2, 3]);
    node.step(Message { term: Term(7), ..append(10, 1, Vec::new()) }).unwrap();
    settle(&mut node);
    let log = (LogIndex(20), Term(2));
    let vote = Message { index: log.0, log_term: log.1, ..from_peer(MessageKind::Vote) };
    node.step(vote).unwrap();
    let (_, sent) = settle(&mut node);
    let [answer] = &sent[..] else { panic!("expected one response, not {sent:?}") };
    assert_eq!((answer.kind, answer.to), (MessageKind::VoteResponse, 2));
    assert_eq!((answer.term, answer.reject), (Term(7), true));

    // A candidate enters term 7 when it receives a message of that term.
    let mut candidate = self::node(&[1, 2, 3]);
    candidate.campaign();
    settle(&mut candidate);
    let rejection = Message { reject: true, term: Term(7), ..from_peer(MessageKind::VoteResponse) };
    candidate.step(rejection).unwrap();
    assert_eq!((candidate.role(), candidate.term()), (Role::Follower, Term(7)));
}

#[test]
fn invalid_messages_are_refused_with_specific_errors() {
    let mut node = node(&[1, 2, 3]);
    let mut refuse = |message: Message| node.step(message).unwrap_err();
    assert_eq!(refuse(from_peer(MessageKind::Hup)), StepError::LocalMessage);
    assert_eq!(refuse(from_peer(MessageKind::ForgetLeader)), StepError::LocalMessage);
    let report = Message { from: LOCAL_APPEND, ..from_peer(MessageKind::StorageAppendResponse) };
    assert_eq!(refuse(report), StepError::LocalMessage);
    let stranger = Message { from: 9, ..from_peer(MessageKind::AppendResponse) };
    assert_eq!(refuse(stranger), StepError::PeerNotFound);

    let vote = from_peer(MessageKind::Vote);
    for (from, term) in [(0, 2), (1, 2), (LOCAL_APPLY, 2), (2, 0)] {
        let refused = refuse(Message { from, term: Term(term), ..vote.clone() });
        assert_eq!(refused, StepError::Sender { kind: MessageKind::Vote, from, term: Term(term) });
    }
    let out_of_range = StepError::OutOfRange { kind: MessageKind::Vote, from: 2 };
    let huge = Message { index: LogIndex(u64::MAX), ..vote.clone() };
    assert_eq!(refuse(huge), out_of_range);
    let ahead_of_itself = Message { log_term: Term(3), ..vote };
    assert_eq!(refuse(ahead_of_itself), out_of_range);
    let mut snapshot = Snapshot::default();
    (snapshot.metadata.index, snapshot.metadata.term) = (LogIndex(20), Term(3));
    let snapshot =
        Message { snapshot: Some(Box::new(snapshot)), ..from_peer(MessageKind::Snapshot) };
    let out_of_range = StepError::OutOfRange { kind: MessageKind::Snapshot, from: 2 };
    assert_eq!(refuse(snapshot), out_of_range);

    assert_eq!(refuse(from_peer(MessageKind::Propose)), StepError::EmptyProposal);
    assert_eq!(refuse(from_peer(MessageKind::ReadIndex)), StepError::ReadContexts(0));
    assert_eq!(node.term(), Term(1), "refused messages do not change the term");
}

#[test]
fn inconsistent_appends_are_refused() {
    let mut node = node(&[1, 2, 3]);
    let gap = append(10, 1, vec![entry(2, 11), entry(2, 13)]);
    let refused = node.step(gap).unwrap_err();
    assert_eq!(refused, StepError::InconsistentEntries { prev_index: LogIndex(10), position: 1 });
    let backwards = append(10, 1, vec![entry(2, 11), entry(1, 12)]);
    assert!(matches!(node.step(backwards), Err(StepError::InconsistentEntries { .. })));
    let future = append(10, 1, vec![entry(3, 11)]);
    assert!(matches!(node.step(future), Err(StepError::InconsistentEntries { .. })));
    assert_eq!(node.last_index(), LogIndex(10));

    let good = Message { commit: LogIndex(12), ..append(10, 1, vec![entry(2, 11), entry(2, 12)]) };
    node.step(good).unwrap();
    settle(&mut node);
    assert_eq!(node.commit_index(), LogIndex(12));
    // An append whose entries are already committed is outdated.
    node.step(append(10, 1, vec![entry(2, 11)])).unwrap();
    let (_, sent) = settle(&mut node);
    assert_eq!((sent[0].index, sent[0].reject), (LogIndex(12), false));

    let refused = node.step(Message { commit: LogIndex(13), ..from_peer(MessageKind::Heartbeat) });
    let lost =
        StepError::CommitBeyondLog { leader: 2, commit: LogIndex(13), last_index: LogIndex(12) };
    assert_eq!(lost.kind(), RefusalKind::LogLost);
    assert_eq!(refused, Err(lost));
}

#[test]
fn an_implausible_commit_index_is_not_treated_as_log_loss() {
    let mut node = node(&[1, 2, 3]);
    let last_index = node.last_index();
    let mut heartbeat = |distance: u64| {
        let commit = last_index + distance;
        let heartbeat = from_peer(MessageKind::Heartbeat);
        let refused = node.step(Message { term: Term(7), commit, ..heartbeat }).unwrap_err();
        (refused, node.term())
    };
    let nonsense = StepError::OutOfRange { kind: MessageKind::Heartbeat, from: 2 };
    assert_eq!(nonsense.kind(), RefusalKind::Impossible);
    for distance in [(1 << 40) + 1, 1 << 62, LogIndex::MAX - last_index] {
        assert_eq!(
            heartbeat(distance),
            (nonsense.clone(), Term(1)),
            "a refused heartbeat does not change the term"
        );
    }
    // A wiped member detects the loss of its log, however long the cluster's log is.
    for distance in [1, 1_000_000_000, 1 << 40] {
        let (refused, term) = heartbeat(distance);
        assert_eq!((refused.kind(), term), (RefusalKind::LogLost, Term(7)));
    }
}

/// Returns member 1 of a group of three. Its log starts after index 10, and it has committed up to index 13 in term 4.
fn with_commits() -> Node<MemoryStorage> {
    let mut node = node(&[1, 2, 3]);
    let entries = vec![entry(2, 11), entry(4, 12), entry(4, 13), entry(4, 14)];
    let append = append(10, 1, entries);
    node.step(Message { term: Term(4), commit: LogIndex(13), ..append }).unwrap();
    settle(&mut node);
    assert_eq!((node.commit_index(), node.last_index()), (LogIndex(13), LogIndex(14)));
    node
}

#[test]
fn messages_that_contradict_committed_entries_are_refused() {
    let mut node = with_commits();
    let snapshot = |index, term| {
        let mut snapshot = Snapshot::default();
        (snapshot.metadata.index, snapshot.metadata.term) = (index, term);
        Message { snapshot: Some(Box::new(snapshot)), ..from_peer(MessageKind::Snapshot) }
    };
    for (message, index, term, own_index) in [
        // Appends that conflict with a committed entry: at the first new entry, or at the entry before it.
        (append(11, 2, vec![entry(5, 12)]), 12, 5, 12),
        (append(12, 2, vec![entry(5, 13)]), 12, 2, 12),
        // An entry before the start of the log, with a higher term than the log has at its start.
        (append(8, 1, vec![entry(5, 9)]), 9, 5, 10),
        // An entry at or beyond the end of the log, with a lower term than the last committed entry.
        (append(14, 3, vec![entry(5, 15)]), 14, 3, 13),
        (append(20, 3, Vec::new()), 20, 3, 13),
        (snapshot(LogIndex(12), Term(5)), 12, 5, 12),
        (snapshot(LogIndex(20), Term(3)), 20, 3, 13),
    ] {
        let own_term = if own_index == 10 { 1 } else { 4 };
        let refused = node.step(Message { term: Term(5), ..message }).unwrap_err();
        let expected = StepError::CommitContradicted {
            leader: 2,
            index: LogIndex(index),
            term: Term(term),
            own_index: LogIndex(own_index),
            own_term: Term(own_term),
        };
        assert_eq!(refused.kind(), RefusalKind::GroupLost);
        assert_eq!(refused, expected);
        assert_eq!(
            (node.commit_index(), node.last_index()),
            (LogIndex(13), LogIndex(14)),
            "the refused message does not change the log"
        );
    }
    // Uncommitted entries may be replaced, and committed entries may be sent again.
    for message in [
        append(8, 1, vec![entry(1, 9), entry(1, 10), entry(2, 11), entry(4, 12)]),
        append(0, 0, Vec::new()),
        append(13, 4, vec![entry(5, 14)]),
        append(20, 4, Vec::new()),
        snapshot(LogIndex(12), Term(4)),
    ] {
        node.step(Message { term: Term(5), ..message }).unwrap();
    }
}

#[test]
fn a_term_too_high_for_later_elections_is_refused() {
    let mut node = node(&[1, 2, 3]);
    for kind in [
        MessageKind::Heartbeat,
        MessageKind::Append,
        MessageKind::Snapshot,
        MessageKind::Vote,
        MessageKind::PreVote,
        MessageKind::VoteResponse,
        MessageKind::PreVoteResponse,
        MessageKind::AppendResponse,
        MessageKind::HeartbeatResponse,
        MessageKind::TimeoutNow,
        MessageKind::TransferLeader,
        MessageKind::ReadIndexResponse,
    ] {
        for term in [(1 << 63) - 2, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX] {
            let refused = node.step(Message { term: Term(term), reject: true, ..from_peer(kind) });
            assert_eq!(
                refused,
                Err(StepError::Term { kind, from: 2, term: Term(term), own: Term(1) })
            );
            assert_eq!(node.term(), Term(1));
        }
    }
    // An election can follow every accepted term.
    for term in [1 << 40, 1 << 62, (1 << 62) + (1 << 32), (1 << 62) + (1 << 33)] {
        node.step(Message { term: Term(term), ..from_peer(MessageKind::Heartbeat) }).unwrap();
        node.campaign();
        settle(&mut node);
        node.step(Message { term: Term(term + 1), ..from_peer(MessageKind::VoteResponse) })
            .unwrap();
        assert!(node.is_leader());
        node.step(Message { from: 3, term: Term(term + 2), ..from_peer(MessageKind::Heartbeat) })
            .unwrap();
        settle(&mut node);
    }
}

#[test]
fn a_stored_term_too_high_for_later_elections_is_refused() {
    let start = |term, last_term| {
        let snapshot = storage(&[1]).snapshot().unwrap();
        let state = HardState { term, vote: 0, commit: LogIndex(10) };
        let entries = vec![entry(last_term, 11)];
        Node::new(config(), MemoryStorage::recover(state, snapshot, entries))
    };
    let end = (1 << 63) - 1;
    assert_eq!(start(Term(end), 1).unwrap_err(), ConfigError::Term(Term(end)));
    assert_eq!(start(Term(u64::MAX), 1).unwrap_err(), ConfigError::Term(Term(u64::MAX)));
    assert_eq!(start(Term(2), end - 1).unwrap_err(), ConfigError::Term(Term(end - 1)));
    assert!(start(Term(1 << 62), 1 << 62).is_ok());
}

#[test]
fn commit_index_stops_at_the_last_entry_of_the_append() {
    let mut node = node(&[1, 2, 3]);
    let old = Message { from: 3, ..append(10, 1, (11..=15).map(|i| entry(2, i)).collect()) };
    node.step(old).unwrap();
    settle(&mut node);
    // The leader of term 3 has the same entry at index 11 as this log, and a different entry at index 12. It sends only
    // part of its entries.
    let half = Message { term: Term(3), commit: LogIndex(14), ..append(10, 1, vec![entry(2, 11)]) };
    node.step(half).unwrap();
    assert_eq!((node.commit_index(), node.last_index()), (LogIndex(11), LogIndex(15)));
    let other =
        Message { term: Term(3), commit: LogIndex(14), ..append(11, 2, vec![entry(3, 12)]) };
    node.step(other).unwrap();
    assert_eq!((node.commit_index(), node.last_index()), (LogIndex(12), LogIndex(12)));
    let (committed, _) = settle(&mut node);
    assert_eq!(committed, [entry(2, 11), entry(3, 12)]);
}

#[test]
fn a_member_with_an_unapplied_membership_change_does_not_campaign() {
    let config = Config { async_storage_writes: true, ..config() };
    let mut node = Node::new(config, storage(&[1, 2, 3])).unwrap();
    let change = ConfChange { node_id: 4, ..ConfChange::default() };
    let change =
        Entry { term: Term(2), index: LogIndex(11), ..AnyConfChange::V1(change).into_entry() };
    node.step(Message { commit: LogIndex(11), ..append(10, 1, vec![change]) }).unwrap();
    node.campaign();
    assert_eq!((node.role(), node.term()), (Role::Follower, Term(2)));
    // Once the change has been written, handed out by `ready` and applied, the node can campaign.
    while node.has_ready() {
        for work in node.ready().messages {
            if work.kind == MessageKind::StorageAppend {
                node.storage_mut().append(work.entries);
            }
            let own = work.responses.into_iter().filter(|response| response.to == 1);
            own.for_each(|response| node.step_local(response).unwrap());
        }
    }
    assert_eq!(node.applied_index(), LogIndex(11));
    node.campaign();
    assert_eq!((node.role(), node.term()), (Role::Candidate, Term(3)));
}

#[test]
fn a_leader_refuses_impossible_acknowledgements_and_proposals() {
    let mut node = leader();
    let refused =
        node.step(Message { index: LogIndex(12), ..from_peer(MessageKind::AppendResponse) });
    let ahead =
        StepError::AcknowledgedBeyondLog { from: 2, index: LogIndex(12), last_index: LogIndex(11) };
    assert_eq!(refused, Err(ahead));

    let unreadable = Entry::proposal(EntryKind::ConfChange, Bytes::from_static(b"\xff"));
    let proposal = Message { entries: vec![unreadable], ..from_peer(MessageKind::Propose) };
    assert!(matches!(node.step(proposal), Err(StepError::ConfChange(_))));
    assert_eq!(node.last_index(), LogIndex(11));

    // Echoes with contexts of another length, or with numbers that were never sent, do not confirm the read.
    node.read_index(Bytes::from_static(b"read"));
    for context in [&b"x"[..], &[2, 0, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let context = Bytes::from_static(context);
        node.step(Message { context, ..from_peer(MessageKind::HeartbeatResponse) }).unwrap();
        assert!(node.ready().read_states.is_empty());
        node.advance();
    }
    let context = Bytes::from_static(&[1, 0, 0, 0, 0, 0, 0, 0]);
    node.step(Message { context, ..from_peer(MessageKind::HeartbeatResponse) }).unwrap();
    assert_eq!(node.ready().read_states[0].index, LogIndex(11));
}

#[test]
fn heartbeat_response_echoes_any_context() {
    let mut node = node(&[1, 2, 3]);
    for context in [&b""[..], b"x", b"twelve bytes"] {
        let context = Bytes::from_static(context);
        let heartbeat = Message { context: context.clone(), ..from_peer(MessageKind::Heartbeat) };
        node.step(heartbeat).unwrap();
        let (_, sent) = settle(&mut node);
        assert_eq!((sent[0].kind, &sent[0].context), (MessageKind::HeartbeatResponse, &context));
    }
}

#[test]
fn a_repeated_acknowledgement_is_skipped_only_if_the_commit_index_rises() {
    let config = Config { skip_repeated_acknowledgements: true, ..config() };
    let mut node = Node::new(config, storage(&[1, 2, 3])).unwrap();
    let mut acknowledged = |message: Message| {
        node.step(message).unwrap();
        let (_, sent) = settle(&mut node);
        sent.first().map(|message| message.index)
    };
    let entries = vec![entry(2, 11), entry(2, 12)];
    assert_eq!(acknowledged(append(10, 1, entries)), Some(LogIndex(12)));
    let commit = |index| Message { commit: LogIndex(index), ..append(12, 2, Vec::new()) };
    assert_eq!(acknowledged(commit(11)), None);
    assert_eq!(acknowledged(commit(12)), None);
    // The leader repeats the commit index because it has lost an acknowledgement.
    assert_eq!(acknowledged(commit(12)), Some(LogIndex(12)));
    let next = Message { commit: LogIndex(13), ..append(12, 2, vec![entry(2, 13)]) };
    assert_eq!(acknowledged(next), Some(LogIndex(13)));
    // A new leader has not received any acknowledgement yet.
    let leader = Message { from: 3, term: Term(3), ..append(13, 2, vec![entry(3, 14)]) };
    assert_eq!(acknowledged(leader.clone()), Some(LogIndex(14)));
    let index = Message { index: LogIndex(14), log_term: Term(3), entries: Vec::new(), ..leader };
    assert_eq!(acknowledged(Message { commit: LogIndex(14), ..index }), None);
}

#[test]
fn a_follower_drops_a_transfer_request_from_another_member() {
    let mut node = node(&[1, 2, 3]);
    node.step(append(10, 1, Vec::new())).unwrap();
    settle(&mut node);
    node.step(Message { from: 3, ..from_peer(MessageKind::TransferLeader) }).unwrap();
    assert!(settle(&mut node).1.is_empty());
    // This member forwards its own request.
    node.transfer_leader(3);
    let (_, sent) = settle(&mut node);
    assert_eq!((sent[0].kind, sent[0].from, sent[0].to), (MessageKind::TransferLeader, 3, 2));
}

#[test]
fn snapshot_with_a_contradictory_configuration_is_refused() {
    let mut node = node(&[1, 2, 3]);
    let mut snapshot = Snapshot::default();
    snapshot.metadata.index = LogIndex(20);
    snapshot.metadata.term = Term(2);
    snapshot.metadata.conf_state.voters = vec![1, 2];
    snapshot.metadata.conf_state.learners = vec![2];
    let message = from_peer(MessageKind::Snapshot);
    let message = Message { snapshot: Some(Box::new(snapshot)), ..message };
    let refused = node.step(message);
    let error = ConfChangeError::Contradictory;
    assert_eq!(refused, Err(StepError::SnapshotConfState(error)));
    assert_eq!(node.last_index(), LogIndex(10));
    // A message without a snapshot has no effect.
    node.step(from_peer(MessageKind::Snapshot)).unwrap();
    let (_, sent) = settle(&mut node);
    assert_eq!((sent[0].kind, sent[0].index), (MessageKind::AppendResponse, LogIndex(10)));
}

#[test]
fn storage_responses_are_accepted_only_through_step_local() {
    let config = Config { async_storage_writes: true, ..config() };
    let mut node = Node::new(config, storage(&[1])).unwrap();
    node.campaign();
    let ready = node.ready();
    let [work] = ready.messages.as_slice() else {
        panic!("expected one message to the append thread")
    };
    assert_eq!((work.kind, work.to), (MessageKind::StorageAppend, LOCAL_APPEND));
    assert_eq!((work.term, work.vote), (Term(2), 1));
    for response in work.responses.clone() {
        assert_eq!(node.step(response.clone()).is_err(), response.from == 1);
        node.step_local(response).unwrap();
    }
    assert!(node.is_leader());
    let foreign = from_peer(MessageKind::AppendResponse);
    assert_eq!(node.step_local(foreign), Err(StepError::LocalMessage));
}

#[test]
fn lease_based_reads_are_answered_without_a_heartbeat_round() {
    let lease = Config { check_quorum: true, read_only: ReadOnlyOption::LeaseBased, ..config() };
    let mut node = Node::new(lease, storage(&[1, 2, 3])).unwrap();
    node.campaign();
    settle(&mut node);
    node.step(from_peer(MessageKind::VoteResponse)).unwrap();
    settle(&mut node);
    node.read_index(Bytes::from_static(b"early"));
    assert!(settle(&mut node).1.is_empty());
    node.step(Message { index: LogIndex(11), ..from_peer(MessageKind::AppendResponse) }).unwrap();
    assert_eq!(node.ready().read_states.len(), 1);
}

#[test]
fn a_node_keeps_a_bounded_number_of_notes_until_they_are_taken() {
    let mut node = node(&[1]);
    let texts: Vec<_> = node.take_notes().into_iter().map(|note| note.text).collect();
    assert_eq!(texts[0], "1 switched to configuration voters=(1)");
    assert!(texts[2].starts_with("newRaft 1 [peers: [1], term: 1, commit: 10"), "{texts:?}");
    assert!(node.take_notes().is_empty());
    for _ in 0..2000 {
        drop(node.propose_conf_change(ConfChange::default()));
        node.step(from_peer(MessageKind::Vote)).unwrap();
    }
    assert_eq!(node.take_notes().len(), 1024);
}

#[test]
fn a_log_that_was_cut_off_before_its_first_hard_state_has_the_term_of_its_last_entry() {
    let snapshot = storage(&[1, 2, 3]).snapshot().unwrap();
    let storage = MemoryStorage::recover(HardState::default(), snapshot, vec![entry(5, 11)]);
    let mut node = Node::new(config(), storage).unwrap();
    assert_eq!(node.term(), Term(5));
    let request = Message { term: Term(1), ..from_peer(MessageKind::PreVote) };
    node.step(request).unwrap();
    let (_, sent) = settle(&mut node);
    assert!(sent.iter().any(|answer| answer.reject && answer.term == Term(5)), "{sent:?}");
}
