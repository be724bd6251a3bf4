//! Turns of consensus, and its effects.

use quorate_core::Job;
use quorate_node::{Effect, Event};
use quorate_raft::confchange::wire;
use quorate_raft::{Entry, EntryKind, MessageKind};

use super::input::{Input, LogOrder};
use super::{Fatal, Out, Process};

impl Process {
    pub(super) fn run_consensus_on_its_thread(&mut self) -> Result<(), Fatal> {
        self.run_consensus()?;
        if self.consensus_writes_log {
            self.log().prepare().map_err(|error| Fatal::of("the log")(&error))?;
        }
        self.sleeps_until = self.consensus.sleep();
        Ok(())
    }

    /// Executes a turn on another thread. The thread that drives consensus keeps sleeping unless it would wake too late.
    pub(super) fn run_consensus_inline(&mut self) -> Result<(), Fatal> {
        self.run_consensus()?;
        if self.consensus.oversleeps() {
            self.sleeps_until = self.clock_now().instant;
        }
        Ok(())
    }

    pub(super) fn run_consensus(&mut self) -> Result<(), Fatal> {
        self.consensus.begin_turn(self.clock_now());
        let inputs = std::mem::take(&mut self.inputs);
        let has_inputs = !inputs.is_empty();
        let mut withdrawn = Vec::new();
        for input in inputs {
            match input {
                Input::Event(event) => {
                    let decided = matches!(event, Event::ConfChangeDecided(_));
                    self.consensus.handle(event);
                    if decided {
                        self.publish_leadership();
                    }
                }
                Input::Propose(proposal) => self.consensus.propose(proposal),
                Input::ProposeAsLeader { term, proposal } => {
                    let id = proposal.request_id;
                    if let Err(failure) = self.consensus.propose_as_leader(term, proposal) {
                        self.fail_proposal(id, failure);
                    }
                }
                Input::Barrier(reader) => self.consensus.next_readers().push(reader),
                Input::Change(change) => {
                    self.consensus.propose_conf_change(change, self.outputs.published);
                }
                Input::Mark(mark) => self.mark(mark)?,
                Input::ChangeGivenUp(id) => withdrawn.push(id),
                Input::Applied => {}
            }
        }
        if self.consensus.end_turn(self.outputs.published, has_inputs).is_some() {
            let leads = self.consensus.leadership().leads();
            let withdrawn = self.outputs.pending.forget_withdrawn(leads);
            if !withdrawn.is_empty() {
                self.consensus.handle(Event::Withdraw(withdrawn));
            }
        }
        self.handle_effects()?;
        let kept = withdrawn.into_iter().filter(|id| !self.sent_changes.contains(id));
        self.withdrawn_changes.extend(kept);
        Ok(())
    }

    /// Checks that these entries contain no membership change that was withdrawn in an earlier turn, before it was sent
    /// to a leader.
    fn check_changes(&mut self, entries: &[Entry], is_sent: bool) {
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::ConfChange) {
            let change = wire::decode_v1(&entry.data).expect("members propose readable changes");
            assert!(
                !self.withdrawn_changes.contains(&change.id),
                "a withdrawn membership change is not proposed: it would take effect after its client has given up"
            );
            if is_sent {
                self.sent_changes.insert(change.id);
            }
        }
    }

    /// Moves the log to its own thread once there are other voters, so that consensus can exchange messages while the
    /// disk is working. The log then stays on that thread.
    fn update_log_writer(&mut self) {
        self.consensus_writes_log &= !self.consensus.has_other_voters();
    }

    fn handle_effects(&mut self) -> Result<(), Fatal> {
        self.update_log_writer();
        loop {
            while let Some(effect) = self.consensus.poll_effect() {
                self.handle_effect(effect)?;
            }
            if !self.consensus_writes_log {
                break;
            }
            let synced = self.log().sync().map_err(|error| Fatal::of("the log")(&error))?;
            let Some(synced) = synced else { break };
            self.consensus.handle(Event::Persisted { token: synced.token });
        }
        self.publish_leadership();
        self.note_committed();
        Ok(())
    }

    fn handle_effect(&mut self, effect: Effect) -> Result<(), Fatal> {
        match effect {
            Effect::Persist(persist) => {
                self.check_changes(&persist.entries, false);
                let dropped = self.terms.note(&persist);
                self.out.extend(dropped.into_iter().map(Out::Dropped));
                if let Some(first) = persist.entries.first() {
                    self.promised.log = self.promised.log.min(first.index.prev());
                }
                if self.consensus_writes_log {
                    self.log().append(&persist).map_err(|error| Fatal::of("the log")(&error))?;
                } else {
                    self.log_orders.push_back(LogOrder::Append(persist));
                }
            }
            Effect::Apply(applying) => {
                self.note_committed();
                let is_change = |entry: &&Entry| entry.kind != EntryKind::Normal;
                if let Some(change) = applying.entries.iter().rfind(is_change) {
                    self.promised.change = change.index;
                }
                self.out.push(Out::Applying(applying.entries.clone()));
                self.jobs.push_back(Job::Apply(applying.entries));
            }
            Effect::Send(message) => {
                if message.kind == MessageKind::Propose {
                    self.check_changes(&message.entries, true);
                }
                self.promise(&message);
                self.out.push(Out::Send(message));
            }
            Effect::SendSnapshot(message) => self.jobs.push_back(Job::SendSnapshot(message)),
            Effect::InstallSnapshot(snapshot) => {
                self.note_committed();
                self.publish_leadership();
                self.install_index = snapshot.metadata.index;
                self.installing_since = self.now;
                self.jobs.push_back(Job::InstallSnapshot(snapshot));
            }
            Effect::TakeSnapshot => self.jobs.push_back(Job::TakeSnapshot),
            Effect::Leadership(leadership) => self.change_leadership(leadership),
            Effect::BarrierPassed { index, .. } => {
                self.publish_leadership();
                for reader in std::mem::take(self.consensus.waiting_reads()) {
                    self.await_applied(index, reader);
                }
            }
            Effect::BarrierFailed { .. } => {
                for reader in std::mem::take(self.consensus.waiting_reads()) {
                    self.fail_reader(&reader);
                }
            }
            Effect::ProposalFailed { request_id, failure } => {
                self.fail_proposal(request_id, failure);
            }
            Effect::RefuseWrites(refuses) => self.refuse_writes(refuses),
            Effect::Stop(fault) => self.out.push(Out::Fault(fault)),
        }
        Ok(())
    }
}
