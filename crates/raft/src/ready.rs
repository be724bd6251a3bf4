//! The pending work for the application: data to write, messages to send, entries to apply.
//!
//! [`Node::ready`] collects the work in one of two forms. With synchronous writes, the application
//! does the work in order and reports it with one call to [`Node::advance`]. With asynchronous
//! writes, messages carry the work to two storage threads, and each thread reports its own work.
//! Each piece of work is returned once.
//!
//! # Invariants
//!
//! * A message that attests to a write is sent only after that write: with synchronous writes, the
//!   application sends it after writing; with asynchronous writes, it is one of the write's
//!   responses.
//! * The report of a write also covers all earlier writes.

use crate::advance::Applied;
use crate::entry::{Entry, encoded_bytes, payload_bytes};
use crate::message::{LOCAL_APPEND, LOCAL_APPLY, Message, MessageKind};
use crate::node::Node;
use crate::state::{HardState, ReadState, Snapshot, SoftState};
use crate::storage::Storage;

/// Pending work, in the order in which it must be done. [`Node`] describes the two ways of doing this work. With
/// asynchronous writes, `entries`, `snapshot` and `committed_entries` are empty, because the messages to the storage
/// threads contain this data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Leader and role, if either has changed. They need not be stored.
    pub soft_state: Option<SoftState>,
    /// Term, vote and commit index to write, if any of them has changed.
    pub hard_state: Option<HardState>,
    /// Responses to read requests. Each response may be used as soon as its index is applied.
    pub read_states: Vec<ReadState>,
    /// Entries to append to the stored log. They replace the stored entries, starting at the first new entry's index.
    pub entries: Vec<Entry>,
    /// A snapshot to install before entries are appended after it.
    pub snapshot: Option<Snapshot>,
    /// Entries to apply, after `entries` and `snapshot` are written.
    pub committed_entries: Vec<Entry>,
    /// Messages to send. With synchronous writes, they are sent only after the hard state, the entries and the snapshot
    /// are written. Only a leader may send them earlier. With asynchronous writes, they are sent immediately, and they
    /// include the messages to the storage threads.
    pub messages: Vec<Message>,
    /// Whether the writes must be durable before messages are sent. False if only the commit index
    /// has changed.
    pub must_sync: bool,
}

impl<S: Storage> Node<S> {
    /// Returns whether [`ready`](Self::ready) would return any work.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        let raft = &self.raft;
        let hard_state = raft.hard_state();
        raft.soft_state() != self.soft_state
            || (hard_state != self.hard_state && !hard_state.is_empty())
            || !raft.messages.is_empty()
            || !raft.messages_after_append.is_empty()
            || !raft.read_states.is_empty()
            || raft.log.unstable.next_snapshot().is_some()
            || raft.log.unstable.has_next_entries()
            || raft.log.has_next_committed(self.applies_unstable())
    }

    /// Takes the pending work. With synchronous writes, the application must call
    /// [`advance`](Self::advance) before it calls `ready` again.
    pub fn ready(&mut self) -> Ready {
        assert!(
            !self.on_advance.is_awaited,
            "advance is called after each Ready, before the next Ready is requested"
        );
        let applies_unstable = self.applies_unstable();
        let raft = &mut self.raft;
        let (soft_state, hard_state) = (raft.soft_state(), raft.hard_state());
        assert!(
            hard_state.term >= self.hard_state.term && hard_state.commit >= self.hard_state.commit,
            "term and commit index never decrease: a lower term would allow a second vote, and a lower commit \
             index would invalidate the newest snapshot"
        );
        let entries = raft.log.unstable.next_entries();
        let must_sync = !entries.is_empty()
            || hard_state.vote != self.hard_state.vote
            || hard_state.term != self.hard_state.term;
        let mut ready = Ready {
            soft_state: (soft_state != self.soft_state).then_some(soft_state),
            hard_state: (hard_state != self.hard_state).then_some(hard_state),
            read_states: std::mem::take(&mut raft.read_states),
            entries,
            snapshot: raft.log.unstable.next_snapshot().cloned(),
            committed_entries: raft.log.next_committed(applies_unstable),
            messages: std::mem::take(&mut raft.messages),
            must_sync,
        };
        self.soft_state = soft_state;
        self.hard_state = hard_state;
        if let Some(last) = ready.committed_entries.last() {
            let bytes = encoded_bytes(&ready.committed_entries);
            raft.log.accept_applying(last.index, bytes, applies_unstable);
        }
        if self.raft.config.async_storage_writes {
            self.hand_out_to_threads(&mut ready);
        } else {
            self.keep_for_advance(&mut ready);
        }
        self.raft.log.unstable.accept_in_progress();
        ready
    }

    /// Reports that the work of the last [`Ready`] is done: its data is written and its entries are
    /// applied.
    pub fn advance(&mut self) {
        assert!(
            !self.raft.config.async_storage_writes,
            "advance is not called with asynchronous storage writes: the storage threads report their own work"
        );
        let done = std::mem::take(&mut self.on_advance);
        assert!(done.is_awaited, "advance is called only after a Ready");
        for message in done.messages {
            let stepped = self.step_own(message);
            assert_eq!(stepped, Ok(()), "a report of this member's own writes is never refused");
        }
        if let Some(applied) = done.applied {
            let Applied { last, encoded_bytes, payload_bytes } = applied;
            self.raft.entries_applied(last, encoded_bytes, payload_bytes);
        }
    }

    /// Returns whether entries may be applied before their write is reported. This is safe only if the application
    /// itself writes and applies in order.
    fn applies_unstable(&self) -> bool {
        !self.raft.config.async_storage_writes
    }

    fn keep_for_advance(&mut self, ready: &mut Ready) {
        let id = self.raft.config.id;
        self.on_advance.is_awaited = true;
        for message in std::mem::take(&mut self.raft.messages_after_append) {
            if message.to == id {
                self.on_advance.messages.push(message);
            } else {
                ready.messages.push(message);
            }
        }
        self.on_advance.messages.extend(self.append_report(ready));
        self.on_advance.applied = ready.committed_entries.last().map(|last| Applied {
            last: last.index,
            encoded_bytes: encoded_bytes(&ready.committed_entries),
            payload_bytes: payload_bytes(&ready.committed_entries),
        });
    }

    fn hand_out_to_threads(&mut self, ready: &mut Ready) {
        let mut responses = std::mem::take(&mut self.raft.messages_after_append);
        let is_append_needed = !ready.entries.is_empty()
            || ready.hard_state.is_some_and(|hard_state| !hard_state.is_empty())
            || ready.snapshot.is_some()
            || !responses.is_empty();
        let from = self.raft.config.id;
        if is_append_needed {
            let hard_state = ready.hard_state.unwrap_or_default();
            // The report comes last. When the core receives the report, it discards data that the other responses need.
            responses.extend(self.append_report(ready));
            ready.messages.push(Message {
                from,
                term: hard_state.term,
                vote: hard_state.vote,
                commit: hard_state.commit,
                entries: std::mem::take(&mut ready.entries),
                snapshot: ready.snapshot.take().map(Box::new),
                responses,
                ..Message::new(MessageKind::StorageAppend, LOCAL_APPEND)
            });
        }
        if !ready.committed_entries.is_empty() {
            let entries = std::mem::take(&mut ready.committed_entries);
            let response = Message {
                from: LOCAL_APPLY,
                entries: entries.clone(),
                ..Message::new(MessageKind::StorageApplyResponse, from)
            };
            ready.messages.push(Message {
                from,
                entries,
                responses: vec![response],
                ..Message::new(MessageKind::StorageApply, LOCAL_APPLY)
            });
        }
    }

    /// Returns the message that will report this write, and all earlier ones, as done.
    ///
    /// The report contains the last position of the log even if this write adds no entries. A
    /// report counts only in the term in which it was created, because its entries may since have
    /// been replaced. Entries whose own report arrived too late are therefore covered by a later
    /// report.
    fn append_report(&self, ready: &Ready) -> Option<Message> {
        let raft = &self.raft;
        let has_entries = raft.log.unstable.count() > 0;
        if !has_entries && ready.snapshot.is_none() {
            return None;
        }
        let mut report = Message::new(MessageKind::StorageAppendResponse, raft.config.id);
        report.from = LOCAL_APPEND;
        report.term = raft.term;
        if has_entries {
            let last = raft.log.last_id();
            report.index = last.index;
            report.log_term = last.term;
        }
        report.snapshot = ready.snapshot.clone().map(Box::new);
        Some(report)
    }
}
