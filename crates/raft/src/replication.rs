//! Replication: how a leader makes its followers' logs equal to its own, and how followers respond
//! (Raft thesis, sections 3.5 and 3.6).
//!
//! A leader sends each follower the entries starting at `next_index`, together with the identity of the preceding
//! entry. A follower that has that entry appends the entries and replaces conflicting ones. Otherwise it refuses the
//! append and returns, as a hint, the position at which the logs may agree. With the hint, finding the last common
//! entry takes at most one round trip per term in the logs rather than one per entry, because each side uses the terms
//! to rule out several entries at once.
//!
//! An entry is committed once a quorum has it and it belongs to the leader's own term. Committing
//! it also commits all entries before it.
//!
//! # Not here
//!
//! The followers' progress (`progress`), and snapshots for followers that are too far behind
//! (`snapshot`).

use bytes::Bytes;

use crate::entry::{Entry, EntryId, MemberId, payload_bytes};
use crate::error::StepError;
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::note::note;
use crate::progress::{Progress, ProgressState};
use crate::raft::Raft;
use crate::received::{Append, AppendRefused, Heartbeat};
use crate::storage::Storage;
use crate::term::Term;
use crate::unstable::Appended;

/// Whether to send an append if there are no entries to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenEmpty {
    /// Send the empty append, which carries the commit index or probes where the logs agree.
    Send,
    /// Do not send an empty append.
    Skip,
}

/// The leader's side of replication.
impl<S: Storage> Raft<S> {
    /// Sends every other member the entries that it lacks.
    pub(crate) fn broadcast_append(&mut self) {
        self.append_to_all(WhenEmpty::Send);
    }

    pub(crate) fn append_to_all(&mut self, when_empty: WhenEmpty) {
        let mut position = 0;
        while let Some(peer) = self.tracker.peer(position) {
            self.send_append(peer, when_empty);
            position += 1;
        }
    }

    /// Sends a follower the entries that it lacks, as flow control allows. Returns whether it sent
    /// any message.
    pub(crate) fn send_append(&mut self, to: MemberId, when_empty: WhenEmpty) -> bool {
        let Some(progress) = self.tracker.progress.get_mut(&to) else { return false };
        if progress.is_paused() {
            return false;
        }
        let index = progress.next_index.prev();
        let Ok(log_term) = self.log.term(index) else {
            // The follower needs compacted entries.
            return self.send_snapshot(to);
        };
        // While the window is full, only empty appends are sent, in reply to heartbeat responses.
        // They reveal whether the appends in the window were lost.
        let is_window_full =
            progress.state == ProgressState::Replicate && progress.inflights.is_full();
        let entries = if is_window_full {
            Vec::new()
        } else {
            let entries = self.log.entries(index + 1, self.config.max_size_per_message);
            entries.expect("the entries after a known entry are in the log")
        };
        if entries.is_empty() && when_empty == WhenEmpty::Skip {
            return false;
        }
        let commit = self.log.committed();
        progress.record_sent_entries(entries.len() as u64, payload_bytes(&entries));
        progress.record_sent_commit(commit);
        let kind = MessageKind::Append;
        self.send(Message { log_term, index, entries, commit, ..Message::new(kind, to) });
        true
    }

    /// Sends the commit index to each follower that would commit further entries if it knew that all entries up to
    /// `index` are committed.
    pub(crate) fn announce_commit(&mut self, index: LogIndex) {
        let mut position = 0;
        while let Some(peer) = self.tracker.peer(position) {
            if self.progress(peer, |progress, _| progress.would_learn_commit(index)) {
                self.send_append(peer, WhenEmpty::Send);
            }
            position += 1;
        }
    }

    /// Sends heartbeats, which also request confirmation of pending reads.
    pub(crate) fn broadcast_heartbeat(&mut self) {
        let context = self.reads.heartbeat_context();
        let mut position = 0;
        while let Some(peer) = self.tracker.peer(position) {
            position += 1;
            self.send_heartbeat(peer, context.clone());
        }
        self.reads.note_all_asked();
    }

    /// Sends a heartbeat with the current context of the pending reads.
    pub(crate) fn send_heartbeat(&mut self, to: MemberId, context: Bytes) {
        let Some(progress) = self.tracker.progress.get_mut(&to) else { return };
        // The commit index in a heartbeat is limited to the follower's acknowledged index, because the logs may differ
        // beyond it.
        let commit = progress.match_index.min(self.log.committed());
        progress.record_sent_commit(commit);
        self.send(Message { commit, context, ..Message::new(MessageKind::Heartbeat, to) });
    }

    pub(crate) fn handle_append_refused(&mut self, from: MemberId, refused: AppendRefused) {
        let AppendRefused { rejected, hint } = refused;
        let Some(progress) = self.heard_from(from) else { return };
        progress.note_response();
        note!(
            self,
            Debug,
            "{:x} received MsgAppResp(rejected, hint: (index {}, term {})) from {from:x} for index \
             {rejected}",
            self.config.id,
            hint.index,
            hint.term,
        );
        // Entries after the hint cannot match, and the entry at the hint matches only if this log's term at that index
        // is not higher than the follower's. If the hint has no term, the follower's log is empty or the follower runs
        // a very old version.
        let possible = if hint.term > Term::ZERO {
            self.log.last_possible_match(hint.index, hint.term).0
        } else {
            hint.index
        };
        let Some(progress) = self.tracker.progress.get_mut(&from) else { return };
        if !progress.step_back(rejected, possible) {
            return;
        }
        note!(self, Debug, "{:x} decreased progress of {from:x} to [{progress}]", self.config.id);
        if progress.state == ProgressState::Replicate {
            progress.become_probe();
        }
        self.send_append(from, WhenEmpty::Send);
    }

    pub(crate) fn handle_append_accepted(
        &mut self,
        from: MemberId,
        index: LogIndex,
    ) -> Result<(), StepError> {
        let last_index = self.log.last_index();
        let Some(progress) = self.heard_from(from) else { return Ok(()) };
        if index > last_index {
            return Err(StepError::AcknowledgedBeyondLog { from, index, last_index });
        }
        progress.note_response();
        if !self.record_acknowledgement(from, index) {
            return Ok(());
        }
        let is_self = from == self.config.id;
        let when_empty = if self.defers_commit_notices { WhenEmpty::Skip } else { WhenEmpty::Send };
        if self.advance_commit() {
            self.release_parked_reads();
            self.append_to_all(when_empty);
        } else if !is_self && self.progress(from, |p, commit| p.would_learn_commit(commit)) {
            // Send the new commit index now instead of with the next heartbeat.
            self.send_append(from, when_empty);
        }
        if is_self {
            return Ok(());
        }
        // The window may have room for several more appends.
        while self.send_append(from, WhenEmpty::Skip) {}
        if from == self.transferee
            && self.progress(from, |p, _| p.match_index) == self.log.last_index()
        {
            note!(
                self,
                Info,
                "{:x} sent MsgTimeoutNow to {from:x} after received MsgAppResp",
                self.config.id
            );
            self.send_timeout_now(from);
        }
        Ok(())
    }

    /// Returns the progress of a member that has sent a message, or `None` if the member has been
    /// removed.
    fn heard_from(&mut self, from: MemberId) -> Option<&mut Progress> {
        if !self.tracker.progress.contains_key(&from) {
            note!(self, Debug, "{:x} no progress available for {from:x}", self.config.id);
        }
        self.tracker.progress.get_mut(&from)
    }

    /// Records an acknowledgement. Returns whether it changed the member's progress.
    fn record_acknowledgement(&mut self, from: MemberId, index: LogIndex) -> bool {
        let first_index = self.log.first_index();
        let Some(progress) = self.tracker.progress.get_mut(&from) else { return false };
        let is_news = progress.acknowledge(index);
        // A probed member that repeats an acknowledgement has confirmed where the logs agree.
        let ends_probe = progress.state == ProgressState::Probe && progress.match_index == index;
        if !is_news && !ends_probe {
            return false;
        }
        match progress.state {
            ProgressState::Probe => progress.become_replicate(),
            ProgressState::Replicate => progress.inflights.free_up_to(index),
            // The follower no longer needs compacted entries, regardless of which snapshot it
            // installed.
            ProgressState::Snapshot if progress.match_index + 1 >= first_index => {
                note!(
                    self,
                    Debug,
                    "{:x} recovered from needing snapshot, resumed sending replication messages to \
                     {from:x} [{progress}]",
                    self.config.id
                );
                progress.become_probe();
                progress.become_replicate();
            }
            ProgressState::Snapshot => {}
        }
        true
    }

    /// Calls `ask` with a member's progress and the commit index, and returns the result. The member must exist.
    fn progress<T>(&self, id: MemberId, ask: impl FnOnce(&Progress, LogIndex) -> T) -> T {
        let progress = self
            .tracker
            .progress
            .get(&id)
            .expect("the tracker has a progress entry for each member");
        ask(progress, self.log.committed())
    }

    /// Commits the entries that a quorum has. Returns whether the commit index has changed. Only
    /// entries of the leader's own term count (Raft thesis, section 3.6.2): another leader could
    /// still replace an older entry.
    pub(crate) fn advance_commit(&mut self) -> bool {
        let index = self.tracker.replicated_index();
        self.log.try_commit(EntryId { term: self.term, index })
    }

    pub(crate) fn handle_heartbeat_response(&mut self, from: MemberId, context: &[u8]) {
        let last_index = self.log.last_index();
        let Some(progress) = self.heard_from(from) else { return };
        progress.note_response();
        progress.is_flow_paused = false;
        // A follower in the Probe state needs a probe before the leader can stream to it again, even if the follower
        // has all entries.
        if progress.match_index < last_index || progress.state == ProgressState::Probe {
            self.send_append(from, WhenEmpty::Send);
        }
        self.confirm_reads(from, context);
    }

    /// Records that the application could not deliver a message. In-flight appends are probably
    /// lost.
    pub(crate) fn handle_unreachable(&mut self, from: MemberId) {
        let Some(progress) = self.tracker.progress.get_mut(&from) else {
            note!(self, Debug, "{:x} no progress available for {from:x}", self.config.id);
            return;
        };
        if progress.state == ProgressState::Replicate {
            progress.become_probe();
        }
        note!(
            self,
            Debug,
            "{:x} failed to send message to {from:x} because it is unreachable [{progress}]",
            self.config.id
        );
        self.ask_others_instead_of(from);
    }
}

/// The follower's side of replication.
impl<S: Storage> Raft<S> {
    pub(crate) fn handle_append(
        &mut self,
        leader: MemberId,
        term: Term,
        append: Append,
    ) -> Result<(), StepError> {
        let previous = append.previous;
        let mut response = Message::new(MessageKind::AppendResponse, leader);
        if previous.index < self.log.committed() {
            check_consistent(&append, term)?;
            self.check_agrees(leader, previous)?;
            let entries = append.entries.iter().map(Entry::id);
            for id in entries.take_while(|id| id.index <= self.log.committed()) {
                self.check_agrees(leader, id)?;
            }
            // The append is outdated. Acknowledge up to the commit index, because every leader has
            // the committed entries.
            response.index = self.log.committed();
        } else if self.log.contains(previous) {
            check_consistent(&append, term)?;
            let last_new = previous.index + append.entries.len() as u64;
            let has_entries = !append.entries.is_empty();
            self.append_new(append.entries);
            let committed = self.log.committed();
            self.log.commit_to(committed.max(append.commit.min(last_new)));
            let acknowledged = EntryId { term, index: last_new };
            let is_repeated = !has_entries
                && self.log.committed() > committed
                && self.acknowledged == acknowledged;
            if is_repeated && self.config.skip_repeated_acknowledgements {
                // It is safe not to respond. If the first acknowledgement was lost, this member acknowledges the next
                // append that does not raise the commit index, such as the append after a heartbeat. The number of
                // appends that can be left unanswered before that is limited, because each of them raises the commit
                // index, which cannot pass the end of this log.
                return Ok(());
            }
            self.acknowledged = acknowledged;
            response.index = last_new;
        } else {
            self.check_agrees(leader, previous)?;
            note!(
                self,
                Debug,
                "{:x} [logterm: {}, index: {}] rejected MsgApp [logterm: {}, index: {}] from {:x}",
                self.config.id,
                self.log.term(previous.index).unwrap_or_default(),
                previous.index,
                previous.term,
                previous.index,
                leader
            );
            let end = previous.index.min(self.log.last_index());
            let (hint, hint_term) = self.log.last_possible_match(end, previous.term);
            response.index = previous.index;
            response.reject = true;
            response.reject_hint = hint;
            response.log_term = hint_term;
        }
        self.send(response);
        Ok(())
    }

    /// Refuses a leader if an entry in its log, `id`, contradicts the entries committed on this member. Every
    /// legitimate leader's log contains all committed entries.
    pub(crate) fn check_agrees(&self, leader: MemberId, id: EntryId) -> Result<(), StepError> {
        match self.log.contradiction(id) {
            None => Ok(()),
            Some(own) => Err(StepError::CommitContradicted {
                leader,
                index: id.index,
                term: id.term,
                own_index: own.index,
                own_term: own.term,
            }),
        }
    }

    /// Appends the part of the consecutive `entries` that is not in the log yet. The first of `entries` is after the
    /// commit index, so no committed entry is replaced.
    fn append_new(&mut self, mut entries: Vec<Entry>) {
        let Some(divergence) = self.log.divergence(&entries) else { return };
        let EntryId { term, index } = divergence.id;
        if let Some(own) = divergence.conflicting_term {
            note!(
                self,
                Info,
                "found conflict at index {index} [existing term: {own}, conflicting term: {term}]"
            );
        }
        entries.drain(..divergence.position);
        match self.log.append(entries) {
            Appended::Extended => {}
            Appended::Replaced(from) => {
                note!(self, Info, "replace the unstable entries from index {from}");
            }
            Appended::Truncated(from) => {
                note!(self, Info, "truncate the unstable entries before index {from}");
            }
        }
    }

    pub(crate) fn handle_heartbeat(
        &mut self,
        leader: MemberId,
        heartbeat: Heartbeat,
    ) -> Result<(), StepError> {
        let (commit, last_index) = (heartbeat.commit, self.log.last_index());
        if commit > last_index {
            return Err(StepError::CommitBeyondLog { leader, commit, last_index });
        }
        self.log.commit_to(commit);
        let mut response = Message::new(MessageKind::HeartbeatResponse, leader);
        response.context = heartbeat.context;
        self.send(response);
        Ok(())
    }
}

/// Checks that the entries of an append in `term` are consecutive and that their terms do not
/// decrease.
fn check_consistent(append: &Append, term: Term) -> Result<(), StepError> {
    let mut previous = append.previous;
    for (position, entry) in append.entries.iter().enumerate() {
        let is_next = entry.index == previous.index + 1;
        let is_possible = previous.term <= entry.term && entry.term <= term;
        if !is_next || !is_possible {
            let prev_index = append.previous.index;
            return Err(StepError::InconsistentEntries { prev_index, position });
        }
        previous = entry.id();
    }
    Ok(())
}
