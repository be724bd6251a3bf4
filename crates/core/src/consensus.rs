//! The consensus driver of a member. It works in batches: many proposals become one write, and many readers share one
//! round of the read barrier.
//!
//! `Consensus` wraps [`Node`] and enforces these rules for the surrounding threads:
//!
//! * Consecutive proposals are combined into one event. The order of events is preserved.
//! * At most one round of the read barrier is in progress. Readers that arrive during a round wait for the next one.
//! * Applied entries are reported to the node only up to the first membership change whose outcome is still missing.
//! * Leadership is held in a single value ([`LeadershipState`]), which is up to date after each polled effect.
//!
//! # How it is driven
//!
//! The caller executes turns (see [`turn`]). At the end of a turn, it polls effects until there are none left, and sends
//! the messages among them. If the caller owns the log, it syncs the log only after that, so that messages do not wait
//! for the disk. It then passes in the result of the sync, which leads to more effects.
//!
//! # Bound
//!
//! The callers limit the readers and proposals in a batch, and the entries queued for the state machine.

pub(crate) mod turn;

use std::collections::VecDeque;
use std::time::Instant;

use quorate_node::{Effect, Event, Node, Proposal, ProposalFailure};
use quorate_raft::{
    ConfChange, Entry, EntryKind, HardState, LogIndex, MemberId, Note, Role, Status, Term,
};
use quorate_state::units::Millis;

use self::turn::{Intervals, Schedule};
use crate::leadership::LeadershipState;

/// A list of requests that wait for a read barrier.
pub trait WaitingReads: Default {
    /// Returns whether the list is empty.
    fn is_empty(&self) -> bool;
}

impl<T> WaitingReads for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// The consensus driver of a member. `R` is a list of waiting requests.
#[derive(Debug)]
pub struct Consensus<R> {
    node: Node,
    schedule: Schedule,
    /// The time that the caller last passed in.
    now: Millis,
    state: LeadershipState,
    barrier: Barrier<R>,
    proposals: Vec<Proposal>,
    /// The last applied entry that was reported to the node.
    applied: LogIndex,
    /// Indices of membership changes that the state machine has not decided yet.
    undecided: VecDeque<LogIndex>,
}

/// The read barrier, with one round at a time. Readers that arrive during a round wait for the next one.
#[derive(Debug, Default)]
struct Barrier<R> {
    last_round: u64,
    /// The start time of the current round, and the term in which this member led at that time.
    begun: Option<(Millis, Term)>,
    under_way: R,
    next: R,
    /// Whether the outcome of the round has been polled. The caller takes the readers before it polls again.
    is_over: bool,
}

impl<R: WaitingReads> Consensus<R> {
    /// Starts this node and its ticks. All entries up to `applied` have been applied.
    #[must_use]
    pub fn start(mut node: Node, applied: LogIndex, intervals: Intervals, now: Instant) -> Self {
        node.start();
        let election_timeout = intervals.election_timeout.as_millis();
        let election_timeout_millis = u64::try_from(election_timeout).unwrap_or(u64::MAX);
        Self {
            node,
            schedule: Schedule::begin(intervals, now),
            now: Millis(0),
            state: LeadershipState::new(election_timeout_millis),
            barrier: Barrier::default(),
            proposals: Vec::new(),
            applied,
            undecided: VecDeque::new(),
        }
    }

    /// Queues a request for the log.
    pub fn propose(&mut self, proposal: Proposal) {
        self.proposals.push(proposal);
    }

    /// Queues a request that only the leader of this term may propose. Fails if this member does not lead in the term
    /// or is handing over its leadership. During a handover, the request would be kept until the next leader appends it
    /// in a later term.
    pub fn propose_as_leader(
        &mut self,
        term: Term,
        proposal: Proposal,
    ) -> Result<(), ProposalFailure> {
        // The node's own value is used, because the effect that reports its last change may not have been polled yet.
        let now = self.node.leadership();
        if now.role != Role::Leader || now.term != term || self.node.is_handing_over() {
            return Err(ProposalFailure::Dropped);
        }
        self.proposals.push(proposal);
        Ok(())
    }

    /// Proposes a membership change, whose id is the id of the request. `applied` is the last applied entry. It is
    /// reported to the node before the change, so that a client that has seen the previous change applied may propose
    /// the next one.
    pub fn propose_conf_change(&mut self, change: ConfChange, applied: LogIndex) {
        self.flush_proposals();
        self.notice_applied(applied);
        self.node.handle(Event::ProposeConfChange { request_id: change.id, change });
    }

    /// Returns the list of readers that wait for the next round. The caller adds readers to it.
    pub const fn next_readers(&mut self) -> &mut R {
        &mut self.barrier.next
    }

    /// Returns the readers of the round whose outcome was polled last. The caller empties the list before the next
    /// poll.
    pub const fn waiting_reads(&mut self) -> &mut R {
        &mut self.barrier.under_way
    }

    /// Sets the time, read from a monotonic clock. Later heartbeats carry this time.
    fn note_time(&mut self, now: Millis) {
        self.now = self.now.max(now);
        self.node.note_time(now.0);
    }

    /// Handles an event for which there is no separate method.
    pub fn handle(&mut self, event: Event) {
        self.flush_proposals();
        let decides_members = matches!(event, Event::ConfChangeDecided(_));
        match &event {
            Event::ConfChangeDecided(decision) => {
                while self.undecided.front().is_some_and(|first| *first <= decision.index) {
                    self.undecided.pop_front();
                }
            }
            Event::Tick => self.state.ticked_at = self.now,
            Event::Applied { index } => return self.notice_applied(*index),
            Event::ReadBarrier { .. } => unreachable!("only `Consensus` starts rounds"),
            Event::Propose(_)
            | Event::CommitInterval
            | Event::Withdraw(_)
            | Event::ProposeConfChange { .. }
            | Event::Received(_)
            | Event::Persisted { .. }
            | Event::SnapshotTaken { .. }
            | Event::Unreachable(_)
            | Event::Gone(_)
            | Event::SnapshotSent { .. }
            | Event::TransferLeadership(_)
            | Event::BackendSpace { .. } => {}
        }
        self.node.handle(event);
        if decides_members {
            self.note_membership();
        }
    }

    /// Records that the state machine has applied all entries up to this index.
    ///
    /// The report to the node may be delayed, because the node must receive the outcome of a membership change before
    /// the report that the change's entry is applied, and the outcome may still be in a queue.
    pub(crate) fn notice_applied(&mut self, applied: LogIndex) {
        assert!(
            applied <= self.node.commit_index(),
            "only committed entries are applied: another leader could still replace entry {applied}"
        );
        let index = self.undecided.front().map_or(applied, |first| applied.min(first.prev()));
        if index > self.applied {
            self.applied = index;
            self.node.handle(Event::Applied { index });
        }
    }

    /// Ends a batch. The caller has passed in all queued inputs.
    fn end_batch(&mut self) {
        self.flush_proposals();
        self.start_round();
        self.node.end_batch();
    }

    /// Returns the next effect, if any.
    ///
    /// If the effect is the outcome of a read barrier, [`Consensus::waiting_reads`] lists the readers that waited for
    /// it.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if std::mem::take(&mut self.barrier.is_over) {
            self.start_round();
            self.node.end_batch();
        }
        loop {
            let effect = self.node.poll_effect()?;
            match &effect {
                Effect::Apply(applying) => {
                    let is_change = |entry: &&Entry| entry.kind != EntryKind::Normal;
                    let changes = applying.entries.iter().filter(is_change);
                    self.undecided.extend(changes.map(|entry| entry.index));
                }
                Effect::BarrierPassed { round, .. } | Effect::BarrierFailed { round, .. } => {
                    if *round != self.barrier.last_round {
                        continue;
                    }
                    self.barrier.is_over = true;
                    let has_passed = matches!(effect, Effect::BarrierPassed { .. });
                    if has_passed
                        && let Some((begun_at, term)) = self.barrier.begun
                        && self.state.leads_in(term)
                    {
                        self.state.confirm(begun_at);
                    }
                }
                Effect::Leadership(leadership) => {
                    self.state.change(*leadership, self.now);
                    self.note_membership();
                }
                Effect::InstallSnapshot(_) => self.note_membership(),
                Effect::Persist(_)
                | Effect::Send(_)
                | Effect::SendSnapshot(_)
                | Effect::ProposalFailed { .. }
                | Effect::TakeSnapshot
                | Effect::RefuseWrites(_)
                | Effect::Stop(_) => {}
            }
            return Some(effect);
        }
    }

    fn flush_proposals(&mut self) {
        if !self.proposals.is_empty() {
            let proposals = std::mem::take(&mut self.proposals);
            self.node.handle(Event::Propose(proposals));
        }
    }

    fn start_round(&mut self) {
        if self.barrier.under_way.is_empty() && !self.barrier.next.is_empty() {
            std::mem::swap(&mut self.barrier.under_way, &mut self.barrier.next);
            self.barrier.last_round += 1;
            let now = self.node.leadership();
            self.barrier.begun = (now.role == Role::Leader).then_some((self.now, now.term));
            self.node.handle(Event::ReadBarrier { round: self.barrier.last_round });
        }
    }

    /// Returns the ids of the other members, to which a leader sends heartbeats.
    #[must_use]
    pub fn other_members(&self) -> Vec<MemberId> {
        self.node.other_members()
    }

    /// Returns whether there is another voter. If there is none, the caller may write the log on the thread that drives
    /// consensus, because the write then delays no message.
    #[must_use]
    pub fn has_other_voters(&self) -> bool {
        self.node.has_other_voters()
    }

    fn note_membership(&mut self) {
        // Learners count as members, because a learner that forwarded a client's request may apply the entry, and
        // acknowledge it to the client, before this member applies it.
        self.state.note_membership(self.node.is_only_member(), self.node.commit_index());
    }

    /// Returns the leadership of this member, as of the last polled effect.
    #[must_use]
    pub fn leadership(&self) -> LeadershipState {
        let mut state = LeadershipState { gives_way: self.node.gives_way(), ..self.state };
        if state.leads_in(self.node.leadership().term)
            && let Some(at) = self.node.confirmed_at()
        {
            state.confirm(Millis(at));
        }
        state
    }

    /// Returns how many of the next ticks may be late.
    fn deferrable_ticks(&self) -> u32 {
        self.node.deferrable_ticks()
    }

    /// Returns whether this leader defers its commit notices. While it does, the caller passes
    /// [`Event::CommitInterval`] after each [`quorate_node::COMMIT_NOTICE_INTERVAL`].
    #[must_use]
    pub const fn defers_commit_notices(&self) -> bool {
        self.node.defers_commit_notices()
    }

    /// Returns whether this leader has pending reads and has asked only some of the voters to confirm the newest one.
    #[must_use]
    pub fn has_asked_few_to_confirm_reads(&self) -> bool {
        self.node.has_asked_few_to_confirm_reads()
    }

    /// Returns the last entry known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> LogIndex {
        self.node.commit_index()
    }

    /// Returns a copy of the consensus core's state.
    #[must_use]
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Returns the number of bytes of the log in memory, including entries that are being written.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.node.log_bytes()
    }

    /// Returns the number of bytes of entries that this leader has appended but not applied yet.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> u64 {
        self.node.uncommitted_bytes()
    }

    /// Returns the number of bytes of append messages that are kept until earlier messages arrive.
    #[must_use]
    pub const fn early_appends_bytes(&self) -> u64 {
        self.node.early_appends_bytes()
    }

    /// Returns the number of membership changes that wait for an earlier change.
    #[must_use]
    pub fn held_change_count(&self) -> usize {
        self.node.held_change_count()
    }

    /// Returns the number of append messages and requests that were refused since the last call because the log was
    /// full.
    pub fn take_refused_for_room(&mut self) -> u64 {
        self.node.take_refused_for_room()
    }

    /// Returns the log notes produced since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        self.node.take_notes()
    }

    /// Returns the hard state that must be written before a clean stop, if any.
    #[must_use]
    pub fn unwritten_hard_state(&self) -> Option<HardState> {
        self.node.unwritten_hard_state()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use quorate_node::{Config, SnapshotPolicy};
    use quorate_raft::{ConfState, HardState, Message, MessageKind, Term};

    use super::*;
    use crate::Now;
    use crate::tests::INTERVALS;

    #[expect(clippy::disallowed_methods, reason = "any instant serves as the origin")]
    fn now() -> Instant {
        Instant::now()
    }

    fn consensus(voters: Vec<u64>, learners: Vec<u64>, now: Instant) -> Consensus<Vec<u64>> {
        let node = Node::new(Config {
            id: 1,
            election_ticks: 10,
            pre_vote: false,
            initial_tick_advance: true,
            seed: 1,
            first_read_request_id: 1,
            proposal_ticks_max: 70,
            fences_stalled_disk: true,
            checks_reconfigurations: true,
            snapshot_policy: SnapshotPolicy::default(),
            flow_limits: quorate_node::FlowLimits::default(),
            hard_state: HardState::default(),
            conf_state: ConfState { voters, learners, ..ConfState::default() },
            snapshot_index: LogIndex(0),
            snapshot_term: Term(0),
            entries: Vec::new(),
            applied: LogIndex(0),
        });
        Consensus::start(node.unwrap(), LogIndex(0), INTERVALS, now)
    }

    /// Polls all effects. The simulated disk completes every write immediately, and the readers of a round that has
    /// passed continue. Returns the highest commit index in the sent messages.
    fn settle(consensus: &mut Consensus<Vec<u64>>) -> LogIndex {
        let mut sent = LogIndex(0);
        while let Some(effect) = consensus.poll_effect() {
            match effect {
                Effect::Persist(persist) => {
                    consensus.handle(Event::Persisted { token: persist.token });
                }
                Effect::BarrierPassed { .. } => consensus.waiting_reads().clear(),
                Effect::Send(message) => sent = sent.max(message.commit),
                _ => {}
            }
        }
        sent
    }

    /// Starts the first of three members and makes it the leader. The second one has acknowledged its first entry.
    fn leader(now: Instant) -> Consensus<Vec<u64>> {
        let mut consensus = consensus(vec![1, 2, 3], vec![], now);
        while consensus.status().hard_state.vote != 1 {
            consensus.handle(Event::Tick);
            settle(&mut consensus);
        }
        let vote = from(&consensus, 2, MessageKind::VoteResponse);
        consensus.handle(Event::Received(vec![vote]));
        settle(&mut consensus);
        acknowledge(&mut consensus, 1);
        consensus
    }

    /// Returns a message from this member in the current term.
    fn from(consensus: &Consensus<Vec<u64>>, id: u64, kind: MessageKind) -> Message {
        let term = consensus.status().hard_state.term;
        Message { from: id, term, ..Message::new(kind, 1) }
    }

    /// Makes the second member acknowledge the entries up to `index`.
    fn acknowledge(consensus: &mut Consensus<Vec<u64>>, index: u64) {
        let message = from(consensus, 2, MessageKind::AppendResponse);
        let ack = Message { index: LogIndex(index), ..message };
        consensus.handle(Event::Received(vec![ack]));
        settle(consensus);
    }

    #[test]
    fn deferred_commit_notices_are_sent_in_the_turn_in_which_a_commit_interval_without_commits_ends()
     {
        let start = now();
        let mut consensus = leader(start);
        let turn = |consensus: &mut Consensus<Vec<u64>>, at| {
            consensus.begin_turn(Now { instant: at, millis: Millis(0) });
            _ = consensus.end_turn(LogIndex(0), false);
            settle(consensus)
        };
        // A leader announces commits at once while other members may have forwarded requests to it.
        for _ in 0..10 {
            consensus.handle(Event::Tick);
            settle(&mut consensus);
            let response = from(&consensus, 2, MessageKind::HeartbeatResponse);
            consensus.handle(Event::Received(vec![response]));
        }
        for id in 1..=2 {
            consensus.propose(Proposal { request_id: id, data: Bytes::from_static(b"x") });
            turn(&mut consensus, start);
            acknowledge(&mut consensus, id + 1);
        }
        assert_eq!(consensus.commit_index(), LogIndex(3));
        let interval_end = consensus.sleep();
        assert_eq!(interval_end, start + INTERVALS.commit_notice);
        assert_eq!(turn(&mut consensus, interval_end), LogIndex(0), "there were commits");
        assert_eq!(consensus.sleep(), interval_end + INTERVALS.commit_notice);
        assert_eq!(turn(&mut consensus, interval_end + INTERVALS.commit_notice), LogIndex(3));
        assert!(consensus.sleep() > interval_end + 2 * INTERVALS.commit_notice);
    }

    /// Reads that arrive during a round reach the node only after the round.
    #[test]
    fn a_read_that_arrives_during_a_late_round_makes_the_leader_ask_the_other_voters() {
        let mut consensus = leader(now());
        // Starts a read at a given time, and returns the heartbeats that it causes.
        let read = |consensus: &mut Consensus<Vec<u64>>, millis| {
            consensus.note_time(Millis(millis));
            consensus.next_readers().push(millis);
            consensus.end_batch();
            let effects = std::iter::from_fn(|| consensus.poll_effect());
            let sent = effects.filter_map(|effect| match effect {
                Effect::Send(sent) if sent.kind == MessageKind::Heartbeat => Some(sent),
                _ => None,
            });
            sent.collect::<Vec<_>>()
        };
        let asked = |sent: &[Message]| sent.iter().map(|sent| sent.to).collect::<Vec<_>>();
        let survey = read(&mut consensus, 100);
        assert_eq!(asked(&survey), [2, 3]);
        let context = survey[0].context.clone();
        let response = from(&consensus, 2, MessageKind::HeartbeatResponse);
        let answer = Message { context, ..response };
        consensus.handle(Event::Received(vec![answer]));
        settle(&mut consensus);
        assert_eq!(asked(&read(&mut consensus, 200)), [2]);
        assert!(asked(&read(&mut consensus, 201)).is_empty());
        assert_eq!(asked(&read(&mut consensus, 300)), [3]);
    }

    /// Passes in a message at this time, in a turn on another thread than the one that sleeps.
    fn receive(consensus: &mut Consensus<Vec<u64>>, at: Instant, message: Message) {
        consensus.begin_turn(Now { instant: at, millis: Millis(0) });
        consensus.handle(Event::Received(vec![message]));
        _ = consensus.end_turn(LogIndex(0), true);
        settle(consensus);
    }

    #[test]
    fn a_thread_that_sleeps_through_deferred_ticks_is_woken_when_ticks_must_be_punctual() {
        let start = now();
        let mut consensus = consensus(vec![1, 2, 3], vec![], start);
        let from_leader = |kind| Message { from: 2, term: Term(1), ..Message::new(kind, 1) };
        let after = |ticks| start + INTERVALS.tick * ticks;
        receive(&mut consensus, after(0), from_leader(MessageKind::Heartbeat));
        let deferred = consensus.sleep();
        assert!(deferred > after(1), "a follower with a leader defers ticks");
        receive(&mut consensus, after(0), from_leader(MessageKind::Heartbeat));
        assert!(!consensus.oversleeps());
        receive(&mut consensus, after(0), from_leader(MessageKind::TimeoutNow));
        assert!(consensus.oversleeps(), "a candidate defers no ticks");
        assert_eq!(consensus.sleep(), after(1));
        assert!(!consensus.oversleeps());
    }

    #[test]
    fn a_leader_refuses_proposals_during_a_leadership_transfer() {
        let mut consensus = consensus(vec![1, 2], vec![], now());
        while consensus.status().hard_state.vote != 1 {
            consensus.handle(Event::Tick);
            settle(&mut consensus);
        }
        let term = consensus.status().hard_state.term;
        let vote = Message { from: 2, term, ..Message::new(MessageKind::VoteResponse, 1) };
        consensus.handle(Event::Received(vec![vote]));
        settle(&mut consensus);
        let propose = |consensus: &mut Consensus<Vec<u64>>| {
            let proposal = Proposal { request_id: 7, data: Bytes::from_static(b"revoke") };
            consensus.propose_as_leader(term, proposal)
        };
        assert_eq!(propose(&mut consensus), Ok(()));
        consensus.handle(Event::TransferLeadership(2));
        settle(&mut consensus);
        assert!(consensus.leadership().leads_in(term));
        assert_eq!(propose(&mut consensus), Err(ProposalFailure::Dropped));
    }

    #[test]
    fn a_sole_voter_with_a_learner_does_not_count_as_the_only_member() {
        for (learners, is_alone) in [(vec![], true), (vec![2], false)] {
            let consensus = consensus(vec![1], learners, now());
            assert!(!consensus.has_other_voters());
            assert_eq!(consensus.node.is_only_member(), is_alone);
        }
    }
}
