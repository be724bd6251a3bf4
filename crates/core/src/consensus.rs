//! Consensus, fed in batches: many proposals become one write, and many readers share one round.
//!
//! It wraps [`Node`] with what the threads around it have to keep to:
//!
//! * Proposals that follow one another become one event; anything else keeps its place among them.
//! * One round of the read barrier is under way at a time. Who comes meanwhile waits for the next.
//! * The node hears that entries are applied only up to the first change of the membership whose verdict has not
//!   come yet.
//! * What it knows of its leadership is one value ([`LeadershipState`]), which is right whenever an effect was polled.
//!
//! # How it is driven
//!
//! Whatever has queued up is handed in, then [`Consensus::end_batch`] is called. Effects are polled until there are
//! none, and their messages sent; only then is a log synced that belongs to the caller, so that nobody waits for
//! this disk who need not. Its report goes in, and leads to more effects.
//!
//! # Bound
//!
//! What it holds back is bounded by who hands it in: readers and proposals of one batch, entries under way to the
//! state machine.

use std::collections::VecDeque;

use quorate_node::{Effect, Event, Node, Proposal, ProposalFailure};
use quorate_raft::{ConfChange, Entry, EntryKind, HardState, LogIndex, Note, Role, Status, Term};
use quorate_state::units::Millis;

use crate::leadership::LeadershipState;

/// A list of those who wait for a read barrier.
pub trait Readers: Default {
    /// Whether nobody is on the list.
    fn is_empty(&self) -> bool;
}

impl<T> Readers for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// A member's consensus; see the module. `R` lists readers.
#[derive(Debug)]
pub struct Consensus<R> {
    node: Node,
    /// The time, as the caller last gave it.
    now: Millis,
    state: LeadershipState,
    barrier: Barrier<R>,
    proposals: Vec<Proposal>,
    /// As the node was told.
    applied: LogIndex,
    /// Entries on their way through the state machine that change the membership.
    undecided: VecDeque<LogIndex>,
}

/// One round of the read barrier at a time; who comes meanwhile waits for the next.
#[derive(Debug, Default)]
struct Barrier<R> {
    last_round: u64,
    /// When the round under way was begun, and in which term this member led then.
    begun: Option<(Millis, Term)>,
    under_way: R,
    next: R,
    /// The round's outcome was handed out; the caller has those who waited for it.
    is_over: bool,
}

impl<R: Readers> Consensus<R> {
    /// Drives this node, which begins with everything up to `applied` carried out.
    #[must_use]
    pub fn new(node: Node, applied: LogIndex, election_timeout_millis: u64) -> Self {
        Self {
            node,
            now: Millis(0),
            state: LeadershipState::new(election_timeout_millis),
            barrier: Barrier::default(),
            proposals: Vec::new(),
            applied,
            undecided: VecDeque::new(),
        }
    }

    /// Starts the clock: called once, before anything else.
    pub fn start(&mut self) {
        self.node.start();
    }

    /// Takes a request for the log.
    pub fn propose(&mut self, proposal: Proposal) {
        self.proposals.push(proposal);
    }

    /// The same for what only a leader may want: it fails unless this member leads in this term still.
    pub fn propose_as_leader(
        &mut self,
        term: Term,
        proposal: Proposal,
    ) -> Result<(), ProposalFailure> {
        // By what the node says now: the effect that tells of it may not have been polled.
        let now = self.node.leadership();
        if now.role != Role::Leader || now.term != term {
            return Err(ProposalFailure::Dropped);
        }
        self.proposals.push(proposal);
        Ok(())
    }

    /// Takes a change of the membership for the log; its id is the request's. `applied` is where the state machine
    /// is: whoever was told that the last change is in force may propose the next.
    pub fn propose_conf_change(&mut self, change: ConfChange, applied: LogIndex) {
        self.flush_proposals();
        self.notice_applied(applied);
        self.node.handle(Event::ProposeConfChange { request_id: change.id, change });
    }

    /// Those who wait for the next round; to be added to.
    pub const fn next_readers(&mut self) -> &mut R {
        &mut self.barrier.next
    }

    /// Those who waited for the round whose outcome was polled last; to be taken out before the next poll.
    pub const fn readers(&mut self) -> &mut R {
        &mut self.barrier.under_way
    }

    /// Takes the time, by a clock that never goes back. Heartbeats carry it from now on.
    pub fn note_time(&mut self, now: Millis) {
        self.now = self.now.max(now);
        self.node.note_time(now.0);
    }

    /// Takes anything else that happens.
    pub fn handle(&mut self, event: Event) {
        self.flush_proposals();
        let decides_members = matches!(event, Event::ConfChangeDecided { .. });
        match &event {
            Event::ConfChangeDecided { index, .. } => {
                while self.undecided.front().is_some_and(|first| first <= index) {
                    self.undecided.pop_front();
                }
            }
            Event::Tick => self.state.ticked_at = self.now,
            Event::Applied { index } => return self.notice_applied(*index),
            Event::ReadBarrier { .. } => unreachable!("rounds are begun here alone"),
            Event::Propose(_)
            | Event::Withdraw(_)
            | Event::ProposeConfChange { .. }
            | Event::Received(_)
            | Event::Persisted { .. }
            | Event::SnapshotTaken { .. }
            | Event::Unreachable(_)
            | Event::Gone(_)
            | Event::SnapshotSent { .. }
            | Event::TransferLeadership(_)
            | Event::BackendRoom { .. } => {}
        }
        self.node.handle(event);
        if decides_members {
            self.note_company();
        }
    }

    /// The state machine has reached this index.
    ///
    /// Consensus must know what became of a change of the membership before it hears that the entry is
    /// applied; the verdict may still be on its way here.
    pub fn notice_applied(&mut self, applied: LogIndex) {
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

    /// Everything that had queued up was handed in.
    pub fn end_batch(&mut self) {
        self.flush_proposals();
        self.start_round();
    }

    /// The next thing to do, if any.
    ///
    /// When it is the outcome of a read barrier, those who waited for it are [`Consensus::readers`].
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if std::mem::take(&mut self.barrier.is_over) {
            self.start_round();
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
                    self.note_company();
                }
                Effect::InstallSnapshot(_) => self.note_company(),
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

    /// Whether this member decides alone, and so has nobody to talk to while its log is written.
    #[must_use]
    pub fn is_sole_voter(&self) -> bool {
        self.node.is_sole_voter()
    }

    fn note_company(&mut self) {
        self.state.note_company(self.is_alone(), self.node.commit_index());
    }

    /// Whether there is nobody else, not even to learn. Then nobody hears of what is committed before this member has
    /// applied it. A learner that does may apply it first, and acknowledge it to whom it has passed it on for.
    fn is_alone(&self) -> bool {
        let members = self.node.status().config.conf_state();
        let has_learners = !members.learners.is_empty() || !members.learners_next.is_empty();
        self.node.is_sole_voter() && !has_learners
    }

    /// What is known of this member's leadership, as of the effect that was polled last.
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

    /// The last entry known to be committed.
    #[must_use]
    pub fn commit_index(&self) -> LogIndex {
        self.node.commit_index()
    }

    /// A copy of what is known of the group.
    #[must_use]
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// Bytes of the log held in memory, what is being written included.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.node.log_bytes()
    }

    /// Bytes of entries that this leader has taken on and not applied yet.
    #[must_use]
    pub fn uncommitted_bytes(&self) -> u64 {
        self.node.uncommitted_bytes()
    }

    /// Bytes of appends that are kept until those before them come.
    #[must_use]
    pub const fn early_appends_bytes(&self) -> u64 {
        self.node.early_appends_bytes()
    }

    /// How many membership changes wait for the one before them.
    #[must_use]
    pub fn held_change_count(&self) -> usize {
        self.node.held_change_count()
    }

    /// How many messages with entries, and requests, have found no room in the log since the last call.
    pub fn take_refused_for_room(&mut self) -> u64 {
        self.node.take_refused_for_room()
    }

    /// What is worth a line in the log since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        self.node.take_notes()
    }

    /// A hard state to be written before a clean stop.
    #[must_use]
    pub fn unwritten_hard_state(&self) -> Option<HardState> {
        self.node.unwritten_hard_state()
    }
}

#[cfg(test)]
mod tests {
    use quorate_node::{Config, SnapshotPolicy};
    use quorate_raft::{ConfState, HardState, Term};

    use super::*;

    #[test]
    fn a_lone_voter_with_a_learner_is_not_alone() {
        for (learners, is_alone) in [(vec![], true), (vec![2], false)] {
            let node = Node::new(Config {
                id: 1,
                election_ticks: 10,
                pre_vote: true,
                initial_tick_advance: true,
                seed: 1,
                first_read_request_id: 1,
                proposal_ticks_max: 70,
                fences_stalled_disk: true,
                snapshot_policy: SnapshotPolicy::default(),
                hard_state: HardState::default(),
                conf_state: ConfState { voters: vec![1], learners, ..ConfState::default() },
                snapshot_index: LogIndex(0),
                snapshot_term: Term(0),
                entries: Vec::new(),
                applied: LogIndex(0),
            });
            let consensus = Consensus::<Vec<u64>>::new(node.unwrap(), LogIndex(0), 1_000);
            assert!(consensus.is_sole_voter());
            assert_eq!(consensus.is_alone(), is_alone);
        }
    }
}
