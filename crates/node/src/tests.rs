//! Tests of nodes with a disk that completes writes on request and a state machine that only counts
//! entries.

mod bounds;
mod commit_notices;
mod full_disk;
mod leader_changes;
mod read_confirmation;
mod reconfiguration;
mod snapshots;
mod stalls;
mod transfers;

use bytes::Bytes;
use quorate_raft::confchange::wire;
use quorate_raft::{
    ConfChange, ConfChangeKind, ConfState, Entry, EntryKind, HardState, LogIndex, Message,
    MessageKind, NONE, Role, SnapshotOutcome, Term,
};

use crate::{
    BarrierFailure, ConfChangeDecision, Config, Effect, Event, FlowLimits, LogFault, Node,
    Proposal, ProposalFailure, SnapshotPolicy, StartError, limits,
};

fn config(id: u64, voters: &[u64]) -> Config {
    Config {
        id,
        election_ticks: 10,
        pre_vote: true,
        initial_tick_advance: true,
        seed: id,
        first_read_request_id: id << 48,
        proposal_ticks_max: 70,
        fences_stalled_disk: true,
        checks_reconfigurations: true,
        snapshot_policy: SnapshotPolicy::default(),
        flow_limits: FlowLimits::default(),
        hard_state: HardState::default(),
        conf_state: ConfState { voters: voters.to_vec(), ..ConfState::default() },
        snapshot_index: LogIndex(0),
        snapshot_term: Term(0),
        entries: Vec::new(),
        applied: LogIndex(0),
    }
}

/// A node and its collected outputs.
struct Member {
    node: Node,
    applied: Vec<Entry>,
    sent: Vec<Message>,
    unfinished_writes: Vec<u64>,
    passed: Vec<(u64, LogIndex)>,
    failed: Vec<(u64, BarrierFailure)>,
    refused: Vec<(u64, ProposalFailure)>,
    snapshots: usize,
    installed: Vec<LogIndex>,
    stops: Vec<LogFault>,
    refuses_writes: bool,
    /// Whether the state machine does not apply the entries that it receives.
    holds_applications: bool,
    unapplied: Vec<LogIndex>,
}

impl Member {
    fn start(config: Config) -> Self {
        Self::start_with(config, false)
    }

    fn start_with(config: Config, holds_applications: bool) -> Self {
        let mut member = Self {
            node: Node::new(config).unwrap(),
            applied: Vec::new(),
            sent: Vec::new(),
            unfinished_writes: Vec::new(),
            passed: Vec::new(),
            failed: Vec::new(),
            refused: Vec::new(),
            snapshots: 0,
            installed: Vec::new(),
            stops: Vec::new(),
            refuses_writes: false,
            holds_applications,
            unapplied: Vec::new(),
        };
        member.node.start();
        member.collect();
        member
    }

    /// Returns the committed membership changes.
    fn changes(&self) -> Vec<ConfChange> {
        let changes = self.applied.iter().filter(|entry| entry.kind == EntryKind::ConfChange);
        changes.map(|entry| wire::decode_v1(&entry.data).unwrap()).collect()
    }

    fn handle(&mut self, event: Event) {
        self.node.handle(event);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(effect) = self.node.poll_effect() {
            match effect {
                Effect::Persist(persist) => self.unfinished_writes.push(persist.token),
                Effect::Send(message) | Effect::SendSnapshot(message) => self.sent.push(message),
                Effect::InstallSnapshot(snapshot) => {
                    let index = snapshot.metadata.index;
                    self.installed.push(index);
                    // The snapshot replaces the entries that were waiting to be applied.
                    self.unapplied.clear();
                    self.node.handle(Event::Applied { index });
                }
                Effect::Apply(applying) => {
                    let index = applying.entries.last().unwrap().index;
                    self.applied.extend(applying.entries);
                    if self.holds_applications {
                        self.unapplied.push(index);
                    } else {
                        self.node.handle(Event::Applied { index });
                    }
                }
                Effect::BarrierPassed { round, index } => self.passed.push((round, index)),
                Effect::BarrierFailed { round, failure } => self.failed.push((round, failure)),
                Effect::TakeSnapshot => self.snapshots += 1,
                Effect::Stop(fault) => self.stops.push(fault),
                Effect::ProposalFailed { request_id, failure } => {
                    self.refused.push((request_id, failure));
                }
                Effect::RefuseWrites(refuses) => self.refuses_writes = refuses,
                Effect::Leadership(_) => {}
            }
        }
    }

    fn finish_writes(&mut self) {
        while let Some(token) = self.unfinished_writes.pop() {
            self.unfinished_writes.clear();
            self.handle(Event::Persisted { token });
        }
    }

    fn propose(&mut self, request_id: u64, data: &'static str) {
        let data = Bytes::from_static(data.as_bytes());
        self.handle(Event::Propose(vec![Proposal { request_id, data }]));
    }

    fn applied_data(&self) -> Vec<&[u8]> {
        self.applied.iter().map(|entry| &entry.data[..]).collect()
    }
}

/// Delivers messages between members until no message is in flight.
fn exchange_messages(members: &mut [Member]) {
    exchange_if(members, |_| true);
}

/// Exchanges messages like [`exchange_messages`], but loses all messages to `absent`.
fn exchange_messages_without(members: &mut [Member], absent: u64) {
    exchange_if(members, |message| message.to != absent);
}

/// Exchanges messages like [`exchange_messages`], but loses those for which `arrives` returns false.
fn exchange_if(members: &mut [Member], mut arrives: impl FnMut(&Message) -> bool) {
    loop {
        for member in &mut *members {
            member.finish_writes();
        }
        let mut messages: Vec<Message> =
            members.iter_mut().flat_map(|member| std::mem::take(&mut member.sent)).collect();
        messages.retain(&mut arrives);
        if messages.is_empty() {
            return;
        }
        for message in messages {
            let to = usize::try_from(message.to).unwrap() - 1;
            members[to].handle(Event::Received(vec![message]));
        }
    }
}

fn three() -> Vec<Member> {
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id, &[1, 2, 3]))).collect();
    while members[0].node.leadership().role != Role::Leader {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    members
}

#[test]
fn a_sole_voter_leads_at_once_and_applies_only_durable_entries() {
    let mut member = Member::start(config(1, &[1]));
    member.finish_writes();
    assert_eq!(member.node.leadership().role, Role::Leader);
    assert!(member.node.is_sole_voter());
    assert_eq!(member.applied.len(), 1, "only the empty entry of the new term is applied");
    member.propose(1, "a");
    member.propose(2, "b");
    assert_eq!(member.applied.len(), 1, "the proposed entry is not durable yet");
    member.finish_writes();
    assert_eq!(member.applied_data(), [&b""[..], b"a", b"b"]);
}

#[test]
fn a_follower_may_defer_all_ticks_before_the_one_at_which_an_election_is_due() {
    let mut members = three();
    assert_eq!(
        members[0].node.deferrable_ticks(),
        0,
        "a leader sends its heartbeats with its ticks"
    );
    let follower = &mut members[1];
    let mut deferred = 0;
    while follower.node.deferrable_ticks() > 0 {
        for _ in 0..follower.node.deferrable_ticks() {
            follower.handle(Event::Tick);
            deferred += 1;
        }
        assert_eq!(follower.node.leadership().role, Role::Follower);
    }
    assert!((9..=19).contains(&deferred), "{deferred}");
    follower.handle(Event::Tick);
    assert_eq!(follower.node.leadership().role, Role::PreCandidate);
    assert_eq!(follower.node.deferrable_ticks(), 0, "a candidate's ticks are punctual");
}

#[test]
fn withdrawn_proposals_are_not_sent_to_a_new_leader() {
    let mut members = [Member::start(config(1, &[1, 2])), Member::start(config(2, &[1, 2]))];
    members[0].propose(7, "withdrawn");
    members[0].propose(8, "wanted");
    members[0].handle(Event::Withdraw(vec![3, 7]));
    while members[0].node.leadership().leader == NONE {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    assert!(members.iter().all(|member| member.applied_data().contains(&&b"wanted"[..])));
    assert!(members.iter().all(|member| !member.applied_data().contains(&&b"withdrawn"[..])));
}

#[test]
fn a_membership_change_that_waits_too_long_for_a_leader_fails() {
    let mut member = Member::start(Config { proposal_ticks_max: 3, ..config(1, &[1, 2]) });
    member.propose(7, "a write");
    let change =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 2, ..ConfChange::default() };
    for _ in 0..2 {
        member.handle(Event::Tick);
    }
    member.handle(Event::ProposeConfChange { request_id: 8, change });
    for _ in 0..2 {
        member.handle(Event::Tick);
    }
    assert!(member.refused.is_empty(), "the client of a write measures the time itself");
    member.handle(Event::Tick);
    assert_eq!(member.refused, [(8, ProposalFailure::Expired)]);
}

#[test]
fn a_leader_refuses_proposals_beyond_the_uncommitted_limit() {
    let mut member = Member::start(config(1, &[1]));
    member.finish_writes();
    let data = Bytes::from(vec![0; 64 << 20]);
    let fitting = limits::UNCOMMITTED_BYTES_MAX / (64 << 20);
    let propose = |member: &mut Member, request_id| {
        let proposal = Proposal { request_id, data: data.clone() };
        member.handle(Event::Propose(vec![proposal]));
    };
    for request_id in 0..fitting {
        propose(&mut member, request_id);
    }
    assert!(member.refused.is_empty());
    propose(&mut member, 99);
    assert_eq!(member.refused, [(99, ProposalFailure::QueueFull)]);
    member.finish_writes();
    propose(&mut member, 100);
    assert_eq!(member.refused.len(), 1, "committed entries no longer count");
}

#[test]
fn a_removed_leader_drops_proposals() {
    let mut members = three();
    let index = members[0].applied.last().unwrap().index.next();
    let change =
        ConfChange { kind: ConfChangeKind::RemoveNode, node_id: 1, ..ConfChange::default() };
    members[0].holds_applications = true;
    members[0].handle(Event::ProposeConfChange { request_id: 1, change: change.clone() });
    exchange_messages_without(&mut members, 3);
    assert_eq!(members[0].unapplied, [index]);
    let conf_state = ConfState { voters: vec![2, 3], ..ConfState::default() };
    let decision = ConfChangeDecision { index, change: Some(change), members: conf_state };
    members[0].handle(Event::ConfChangeDecided(decision));
    members[0].handle(Event::Applied { index });
    assert_eq!(members[0].node.leadership().role, Role::Leader);
    members[0].propose(2, "x");
    assert_eq!(members[0].refused, [(2, ProposalFailure::Dropped)]);
    assert_eq!(members[0].node.take_refused_for_room(), 0);
}

#[test]
fn proposals_wait_for_a_leader() {
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id, &[1, 2, 3]))).collect();
    members[0].propose(1, "early");
    assert!(members[0].sent.is_empty());
    while members[0].applied.is_empty() {
        members[0].handle(Event::Tick);
        exchange_messages(&mut members);
    }
    assert_eq!(members[2].applied_data(), [&b""[..], b"early"]);
}

#[test]
fn a_read_barrier_passes_with_a_quorum_and_fails_on_a_leader_change() {
    let mut members = three();
    members[0].propose(1, "a");
    exchange_messages(&mut members);
    members[1].handle(Event::ReadBarrier { round: 7 });
    assert!(members[1].passed.is_empty());
    exchange_messages(&mut members);
    assert_eq!(members[1].passed, [(7, LogIndex(2))]);
    // The leader becomes silent while a barrier is pending, and another member becomes the leader.
    members[1].handle(Event::ReadBarrier { round: 8 });
    members[1].sent.clear();
    let mut others = members.split_off(1);
    for member in &mut others {
        for _ in 0..10 {
            member.handle(Event::Tick);
            member.sent.clear();
        }
    }
    for _ in 0..20 {
        others[1].handle(Event::Tick);
        let messages = std::mem::take(&mut others[1].sent);
        for message in messages.into_iter().filter(|message| message.to == 2) {
            others[0].handle(Event::Received(vec![message]));
            others[0].finish_writes();
        }
        for message in std::mem::take(&mut others[0].sent) {
            if message.to == 3 {
                others[1].handle(Event::Received(vec![message]));
                others[1].finish_writes();
            }
        }
        if others[0].node.leadership().leader == 3 {
            break;
        }
    }
    assert_eq!(others[0].node.leadership().leader, 3);
    assert_eq!(others[0].failed, [(8, BarrierFailure::LeaderChanged)]);
}

#[test]
fn no_further_snapshot_is_requested_until_the_last_one_is_taken() {
    let policy = SnapshotPolicy { entry_count: 10, catch_up_count: 5, ..SnapshotPolicy::default() };
    let mut member = Member::start(Config { snapshot_policy: policy, ..config(1, &[1]) });
    for request_id in 0..30 {
        member.propose(request_id, "x");
        member.finish_writes();
    }
    assert_eq!(member.snapshots, 1);
    member.handle(Event::SnapshotTaken { index: LogIndex(11) });
    member.propose(31, "x");
    member.finish_writes();
    assert_eq!(member.snapshots, 2);
}

#[test]
fn the_log_in_memory_is_bounded_by_the_snapshot_entry_count() {
    let policy = SnapshotPolicy { entry_count: 10, catch_up_count: 5, ..SnapshotPolicy::default() };
    let mut member = Member::start(Config { snapshot_policy: policy, ..config(1, &[1]) });
    let data = Bytes::from(vec![0; 1000]);
    for request_id in 0..40 {
        member.handle(Event::Propose(vec![Proposal { request_id, data: data.clone() }]));
        member.finish_writes();
        assert!(member.node.log_bytes() <= 14_000, "{} bytes", member.node.log_bytes());
    }
}

#[test]
fn the_size_of_the_log_in_memory_is_bounded() {
    let policy = SnapshotPolicy {
        entry_count: 1 << 30,
        catch_up_count: 1 << 30,
        catch_up_bytes: 10_000,
        transfer_bytes: 1 << 30,
    };
    let mut member = Member::start(Config { snapshot_policy: policy, ..config(1, &[1]) });
    let data = Bytes::from(vec![0; 1000]);
    for request_id in 0..50 {
        member.handle(Event::Propose(vec![Proposal { request_id, data: data.clone() }]));
        member.finish_writes();
        assert!(member.node.log_bytes() <= 11_100);
    }
    assert_eq!(member.applied.len(), 51);
}

#[test]
fn a_restarted_member_continues_after_the_applied_index() {
    let mut first = Member::start(config(1, &[1]));
    first.finish_writes();
    for request_id in 0..5 {
        first.propose(request_id, "x");
        first.finish_writes();
    }
    let entries = first.applied.clone();
    // The commit index on disk lags behind the applied index, which is common after a kill.
    let hard_state = HardState { term: entries[0].term, vote: 1, commit: LogIndex(1) };
    let again = Config { hard_state, entries, applied: LogIndex(4), ..config(1, &[1]) };
    let mut second = Member::start(again.clone());
    second.finish_writes();
    let indexes: Vec<LogIndex> = second.applied.iter().map(|entry| entry.index).collect();
    assert_eq!(indexes, [5, 6, 7].map(LogIndex));
    let lost = Config { applied: LogIndex(9), ..again };
    assert!(matches!(
        Node::new(lost),
        Err(StartError::LogLost { last_index: LogIndex(6), applied: LogIndex(9) })
    ));
}

#[test]
fn appends_in_reverse_order_are_accepted_without_a_rejection() {
    let mut members = three();
    exchange_messages(&mut members);
    for request_id in 0..5 {
        members[0].propose(request_id, "x");
    }
    let sent = std::mem::take(&mut members[0].sent);
    let mut to_second: Vec<_> = sent.into_iter().filter(|message| message.to == 2).collect();
    assert!(to_second.len() > 1, "several appends are in flight");
    to_second.reverse();
    for message in to_second {
        members[1].handle(Event::Received(vec![message]));
    }
    members[1].finish_writes();
    let refused = members[1].sent.iter().filter(|message| message.reject).count();
    assert_eq!(refused, 0);
    let stored = members[1].sent.iter().map(|message| message.index).max();
    assert_eq!(stored, Some(LogIndex(6)));
}

#[test]
fn an_append_without_its_predecessor_is_rejected_after_a_tick() {
    let mut members = three();
    exchange_messages(&mut members);
    members[0].propose(1, "lost");
    members[0].sent.clear();
    members[0].propose(2, "x");
    let mut sent = std::mem::take(&mut members[0].sent);
    sent.retain(|message| message.to == 2);
    members[1].handle(Event::Received(sent));
    members[1].finish_writes();
    assert!(members[1].sent.is_empty());
    members[1].handle(Event::Tick);
    members[1].finish_writes();
    assert!(members[1].sent.iter().any(|message| message.reject));
}

#[test]
fn a_leader_whose_process_has_ended_is_replaced_within_a_few_ticks() {
    let mut members = three();
    members[0].sent.clear();
    members[0].unfinished_writes.clear();
    for member in &mut members[1..] {
        member.handle(Event::Gone(1));
        assert_eq!(member.node.leadership().leader, NONE);
    }
    members[1].propose(9, "held meanwhile");
    for member in [1, 2] {
        members[member].handle(Event::Tick);
    }
    // The first member is down and receives no messages.
    while members[1..]
        .iter()
        .any(|member| !member.sent.is_empty() || !member.unfinished_writes.is_empty())
    {
        for member in [1, 2] {
            members[member].finish_writes();
            for message in std::mem::take(&mut members[member].sent) {
                if message.to != 1 {
                    members[3 - member].handle(Event::Received(vec![message]));
                }
            }
        }
    }
    assert_eq!(members[1].node.leadership().role, Role::Leader);
    assert_eq!(members[2].node.leadership().leader, 2);
    assert!(members[1].applied_data().contains(&&b"held meanwhile"[..]));
}

#[test]
fn a_leader_that_only_one_member_reports_as_gone_remains_leader() {
    let mut members = three();
    let term = members[0].node.leadership().term;
    members[1].handle(Event::Gone(1));
    for _ in 0..3 {
        for member in &mut members {
            member.handle(Event::Tick);
        }
        exchange_messages(&mut members);
    }
    for member in &members {
        let now = member.node.leadership();
        assert_eq!((now.leader, now.term), (1, term));
    }
    // Only the end of the leader's process matters, not the end of another member's process.
    members[1].handle(Event::Gone(3));
    assert_eq!(members[1].node.leadership().leader, 1);
}

#[test]
fn a_candidate_requests_votes_after_its_own_vote_is_durable() {
    let mut members: Vec<_> = (1..=3)
        .map(|id| Member::start(Config { pre_vote: false, ..config(id, &[1, 2, 3]) }))
        .collect();
    let candidate = &mut members[0];
    while candidate.node.leadership().role != Role::Candidate {
        candidate.handle(Event::Tick);
    }
    let asked = |member: &Member| {
        member.sent.iter().filter(|message| message.kind == MessageKind::Vote).count()
    };
    assert_eq!((asked(candidate), candidate.unfinished_writes.len()), (0, 1));
    candidate.finish_writes();
    assert_eq!(asked(candidate), 2);
    exchange_messages(&mut members);
    assert_eq!(members[0].node.leadership().role, Role::Leader);
}

#[test]
fn succession_does_not_start_without_pre_vote() {
    let mut member = Member::start(Config { pre_vote: false, ..config(2, &[1, 2, 3]) });
    let heartbeat = Message { term: Term(5), from: 1, ..Message::new(MessageKind::Heartbeat, 2) };
    member.handle(Event::Received(vec![heartbeat]));
    member.handle(Event::Gone(1));
    assert_eq!(member.node.leadership().leader, 1);
}

#[test]
fn initial_tick_advance_shortens_the_first_election_timeout() {
    for seed in 1..30 {
        let ticks_until_it_stands = |initial_tick_advance| {
            let voters = config(1, &[1, 2, 3]);
            let mut member = Member::start(Config { initial_tick_advance, seed, ..voters });
            let mut ticks = 0;
            while member.sent.is_empty() {
                member.handle(Event::Tick);
                ticks += 1;
            }
            ticks
        };
        let (advanced, patient) = (ticks_until_it_stands(true), ticks_until_it_stands(false));
        assert!(patient >= 10, "{patient}");
        assert_eq!(advanced, patient - 9, "all but one tick of an election timeout have passed");
    }
}

#[test]
fn a_single_acknowledgement_is_sent_for_all_appends_of_a_write() {
    let mut members = three();
    exchange_messages(&mut members);
    for request_id in 0..5 {
        members[0].propose(request_id, "x");
    }
    let mut sent = std::mem::take(&mut members[0].sent);
    sent.retain(|message| message.to == 2);
    assert_eq!(sent.len(), 5);
    members[1].handle(Event::Received(sent));
    members[1].finish_writes();
    let acknowledged: Vec<_> = members[1].sent.iter().map(|message| message.index).collect();
    assert_eq!(acknowledged, [LogIndex(6)]);
}

/// Makes a member propose `count` changes in a row. Returns the ids of the changes that were appended to the log as
/// changes, not as empty entries.
fn changes_at_once(proposer: usize, count: u64) -> Vec<u64> {
    let mut members = three();
    exchange_messages(&mut members);
    for id in 1..=count {
        let change = ConfChange {
            id,
            kind: ConfChangeKind::AddLearnerNode,
            node_id: 10 + id,
            ..ConfChange::default()
        };
        members[proposer].handle(Event::ProposeConfChange { request_id: id, change });
    }
    // The leader appends the first change and holds back the next changes. A follower forwards all of them to the
    // leader.
    let held = usize::try_from(count - 1).unwrap().min(limits::HELD_CHANGES_MAX);
    let are_held = members[proposer].node.held_change_count();
    assert_eq!(are_held, if proposer == 0 { held } else { 0 });
    for _ in 0..count {
        exchange_messages(&mut members);
        members[0].handle(Event::Tick);
    }
    assert_eq!(members[0].node.held_change_count(), 0);
    let changes = members[0].applied.iter().filter(|entry| entry.kind == EntryKind::ConfChange);
    changes.map(|entry| wire::decode_v1(&entry.data).unwrap().id).collect()
}

#[test]
fn a_membership_change_waits_for_the_previous_change() {
    assert_eq!(changes_at_once(0, 3), [1, 2, 3], "changes proposed by the leader");
    assert_eq!(changes_at_once(1, 3), [1, 2, 3], "changes proposed by a follower");
}

#[test]
fn membership_changes_beyond_the_waiting_limit_become_empty_entries() {
    // One change is in progress, and the other accepted changes are held back until it is applied.
    let taken = 1 + u64::try_from(limits::HELD_CHANGES_MAX).unwrap();
    for proposer in [0, 1] {
        assert!(
            changes_at_once(proposer, taken + 2).into_iter().eq(1..=taken),
            "changes proposed by member {proposer}"
        );
    }
}

/// Returns a message from member 1 to member 3.
fn from_one(kind: MessageKind, term: Term) -> Message {
    Message { from: 1, term, ..Message::new(kind, 3) }
}

#[test]
fn a_member_that_has_lost_its_log_neither_answers_nor_votes() {
    let mut members = three();
    members[0].propose(1, "acknowledged");
    exchange_messages(&mut members);
    assert_eq!(members[2].applied_data(), [&b""[..], b"acknowledged"]);
    // The third member restarts without any state, not even the ids of the other members.
    members[2] = Member::start(config(3, &[]));
    members[0].handle(Event::Tick);
    exchange_messages(&mut members);
    let lost = &members[2];
    let [LogFault::LogLost(error)] = &lost.stops[..] else { panic!("{:?}", lost.stops) };
    assert_eq!(
        error.to_string(),
        "leader 1 relies on acknowledged log entries up to index 2, but the log of this member ends at \
         index 0: it has lost entries"
    );
    // After the fault, the member ignores all events and does not write anything.
    let mut lost = members.pop().unwrap();
    assert_eq!((lost.unfinished_writes.len(), lost.sent.len()), (0, 0));
    lost.handle(Event::Received(vec![
        Message { index: LogIndex(9), log_term: Term(8), ..from_one(MessageKind::Vote, Term(9)) },
        from_one(MessageKind::Heartbeat, Term(9)),
    ]));
    for _ in 0..30 {
        lost.handle(Event::Tick);
    }
    assert_eq!((lost.unfinished_writes.len(), lost.sent.len(), lost.stops.len()), (0, 0, 1));
}

#[test]
fn messages_after_the_detection_of_a_lost_log_are_ignored() {
    let mut lost = Member::start(config(3, &[]));
    lost.handle(Event::Received(vec![
        Message { commit: LogIndex(5), ..from_one(MessageKind::Heartbeat, Term(2)) },
        Message {
            from: 2,
            index: LogIndex(4),
            log_term: Term(1),
            ..from_one(MessageKind::Vote, Term(3))
        },
    ]));
    lost.finish_writes();
    assert_eq!((lost.sent.len(), lost.stops.len()), (0, 1));
}

#[test]
fn a_member_stops_if_the_group_has_lost_its_committed_entries() {
    let mut members = three();
    for request_id in 0..3 {
        members[0].propose(request_id, "acknowledged");
        exchange_messages_without(&mut members, 2);
    }
    assert_eq!(members[0].applied.len(), 4);
    // The third member has lost its state. Although the third member had acknowledged the entry, it now votes for the
    // second member, which lacks the entry.
    members[2] = Member::start(config(3, &[1, 2, 3]));
    while members[1].node.leadership().role != Role::Leader {
        members[1].handle(Event::Tick);
        exchange_messages_without(&mut members, 1);
    }
    members[1].handle(Event::Tick);
    exchange_messages(&mut members);
    assert!(matches!(&members[0].stops[..], [LogFault::GroupLost(_)]), "{:?}", members[0].stops);
    assert_eq!(members[0].applied.len(), 4, "the member keeps its entries");
    assert!(members[1].stops.is_empty() && members[2].stops.is_empty());
}

#[test]
fn refused_messages_are_logged_once_and_have_no_effect() {
    let mut members = three();
    drop(members[2].node.take_notes());
    let term = members[2].node.leadership().term;
    let huge = (1 << 63) - 2;
    for _ in 0..100 {
        members[2].handle(Event::Received(vec![from_one(MessageKind::Heartbeat, Term(huge))]));
    }
    let texts: Vec<_> = members[2].node.take_notes().into_iter().map(|note| note.text).collect();
    let expected = format!(
        "refused a message from a peer: MsgHeartbeat from 1 carries term {huge}, which is implausibly far \
         ahead of term {term}"
    );
    assert_eq!(texts, [expected]);
    assert_eq!(members[2].node.leadership().term, term);
    members[0].propose(1, "a");
    exchange_messages(&mut members);
    assert_eq!(members[2].applied_data(), [&b""[..], b"a"]);
}

#[test]
fn a_refused_report_from_the_members_own_storage_is_logged() {
    let mut member = Member::start(config(1, &[1]));
    member.finish_writes();
    assert_eq!(member.node.leadership().role, Role::Leader);
    member.node.take_notes();
    let report = |kind, term| Message { from: 1, term, ..Message::new(kind, 1) };
    // A report from an older term is normal.
    member.node.step_own(report(MessageKind::AppendResponse, Term(1)));
    assert!(member.node.take_notes().is_empty());
    let term = member.node.leadership().term;
    let beyond = Message { index: LogIndex(99), ..report(MessageKind::AppendResponse, term) };
    member.node.step_own(beyond);
    let notes = member.node.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].text.starts_with("refused a report from this member's own storage: 1 acknow"));
}

#[test]
fn a_sole_founder_campaigns_only_after_its_membership_is_applied() {
    let data = wire::encode_v1(&ConfChange {
        kind: ConfChangeKind::AddNode,
        node_id: 1,
        ..ConfChange::default()
    });
    let founding = Entry { term: Term(1), index: LogIndex(1), kind: EntryKind::ConfChange, data };
    let hard_state = HardState { term: Term(1), vote: 0, commit: LogIndex(1) };
    let mut member =
        Member::start(Config { hard_state, entries: vec![founding], ..config(1, &[1]) });
    member.finish_writes();
    assert_eq!(member.node.leadership().role, Role::Leader);
    let notes = member.node.take_notes();
    assert!(notes.iter().all(|note| !note.text.contains("cannot campaign")), "{notes:?}");
}

#[test]
fn an_append_at_the_last_possible_index_is_refused() {
    let mut member = Member::start(config(1, &[1, 2]));
    let message = Message {
        from: 2,
        to: 1,
        term: Term(1),
        index: LogIndex::MAX,
        entries: vec![Entry::default()],
        ..Message::new(MessageKind::Append, 1)
    };
    member.handle(Event::Received(vec![message]));
    assert_eq!(member.applied_data(), [b""; 0]);
}
