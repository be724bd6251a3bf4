//! Pending writes, pending applications (groups of entries returned for applying), and the messages to deliver once
//! they are done.
//!
//! With each write, the core returns the messages that may be sent only once the write is durable. Writes complete in
//! the order in which they were returned to the caller, and so do applications.
//!
//! A new commit index alone does not cause a write. Losing it is harmless, because the member receives it again, and
//! etcd does not sync it either. The new commit index is kept here and added to the next necessary write.
//!
//! The commit index of a membership change is an exception. It is durable before the change is applied. Otherwise a
//! member could forget a change that it has acknowledged: the last voter of two would wait, after a crash, for the vote
//! of the member that was removed.

use std::collections::VecDeque;

use quorate_raft::{Entry, EntryKind, HardState, LogIndex, Message, Snapshot, encoded_bytes};

use crate::effect::{Applying, Persist};
use crate::limits::WRITES_MAX;

/// Pending writes and applications.
#[derive(Debug, Default)]
pub(crate) struct Persistence {
    writes: VecDeque<Write>,
    /// The size in bytes of the entries in `writes`.
    writing_bytes: u64,
    applications: VecDeque<Application>,
    /// Applications that wait for writes, in log order.
    held_applications: VecDeque<HeldApplication>,
    last_token: u64,
    /// A hard state that differs from the written hard state only in its commit index.
    unwritten: Option<HardState>,
    written: HardState,
    /// Ticks since the start of the node.
    now: u64,
}

/// A pending write: the data to add to the in-memory log and the messages to deliver once the write
/// is done.
#[derive(Debug)]
pub(crate) struct Write {
    token: u64,
    /// The tick at which the core requested the write.
    ordered_at: u64,
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) responses: Vec<Message>,
}

#[derive(Debug)]
struct Application {
    last_index: LogIndex,
    responses: Vec<Message>,
}

/// An application that begins once all writes up to a token are durable.
#[derive(Debug)]
struct HeldApplication {
    after: u64,
    order: Message,
}

impl Persistence {
    pub(crate) fn new(written: HardState) -> Self {
        Self { written, ..Self::default() }
    }

    /// Adds the write that the core requests in `order`, and returns the data to write. If there is no data to write,
    /// returns an error with the messages to deliver immediately. While a write is pending, there are none, because the
    /// messages wait for that write.
    pub(crate) fn order_write(&mut self, order: Message) -> Result<Persist, Vec<Message>> {
        let ordered = HardState { term: order.term, vote: order.vote, commit: order.commit };
        if !ordered.is_empty() {
            self.unwritten = Some(ordered);
        }
        let vote_changed = !ordered.is_empty()
            && (ordered.term, ordered.vote) != (self.written.term, self.written.vote);
        let snapshot = order.snapshot.map(|snapshot| *snapshot);
        if order.entries.is_empty() && snapshot.is_none() && !vote_changed {
            return match self.writes.back_mut() {
                Some(last) => {
                    // A response is not added if it is already pending.
                    let is_news = |response: &Message| !last.responses.contains(response);
                    let news: Vec<_> = order.responses.into_iter().filter(is_news).collect();
                    last.responses.extend(news);
                    Err(Vec::new())
                }
                None => Err(order.responses),
            };
        }
        if let (Some(snapshot), Some(first)) = (&snapshot, order.entries.first()) {
            assert!(
                first.index == snapshot.metadata.index.next(),
                "entries written with a snapshot follow it: otherwise the log would have a gap after the snapshot"
            );
        }
        Ok(self.begin_write(snapshot, order.entries, order.responses))
    }

    /// Returns a write of the newest commit index, unless a write already contains it.
    fn write_commit_index(&mut self) -> Option<Persist> {
        self.unwritten.map(|_| self.begin_write(None, Vec::new(), Vec::new()))
    }

    fn begin_write(
        &mut self,
        snapshot: Option<Snapshot>,
        entries: Vec<Entry>,
        responses: Vec<Message>,
    ) -> Persist {
        self.last_token += 1;
        let hard_state = self.unwritten.take();
        if let Some(hard_state) = hard_state {
            assert!(
                hard_state.term >= self.written.term,
                "the written term never decreases: otherwise the member could vote twice in a term after a restart"
            );
            self.written = hard_state;
        }
        self.writing_bytes += encoded_bytes(&entries);
        self.writes.push_back(Write {
            token: self.last_token,
            ordered_at: self.now,
            snapshot: snapshot.clone(),
            entries: entries.clone(),
            responses,
        });
        Persist { token: self.last_token, snapshot, entries, hard_state }
    }

    /// Holds messages until all pending writes are durable. Returns the messages if no write is
    /// pending.
    pub(crate) fn hold_back(&mut self, messages: Vec<Message>) -> Vec<Message> {
        match self.writes.back_mut() {
            Some(last) => {
                last.responses.extend(messages);
                Vec::new()
            }
            None => messages,
        }
    }

    /// Advances one tick.
    pub(crate) const fn tick(&mut self) {
        self.now += 1;
    }

    /// Returns the age of the oldest pending write, in ticks.
    pub(crate) fn write_age(&self) -> u64 {
        self.writes.front().map_or(0, |oldest| self.now - oldest.ordered_at)
    }

    /// Returns the index of the last entry in the oldest pending write that has entries.
    pub(crate) fn oldest_write_end(&self) -> Option<LogIndex> {
        self.writes.iter().find_map(|write| write.entries.last()).map(|last| last.index)
    }

    /// Returns whether the number of pending writes has reached its limit.
    pub(crate) fn is_full(&self) -> bool {
        self.writes.len() >= WRITES_MAX
    }

    /// Removes and returns the oldest pending write if its token is at most `token`.
    pub(crate) fn finish_write(&mut self, token: u64) -> Option<Write> {
        assert!(
            token <= self.last_token,
            "a write is reported only after it is requested: otherwise unwritten entries would count as durable"
        );
        let write = self.writes.pop_front_if(|write| write.token <= token)?;
        self.writing_bytes -= encoded_bytes(&write.entries);
        assert!(
            !self.writes.is_empty() || self.writing_bytes == 0,
            "the byte count is zero if no writes are pending: otherwise the member would refuse appends forever"
        );
        Some(write)
    }

    /// Returns the size in bytes of the entries in pending writes.
    pub(crate) const fn writing_bytes(&self) -> u64 {
        self.writing_bytes
    }

    /// Queues an application. If the entries contain a membership change, the application waits until the commit index is
    /// durable. Returns the write that it waits for, unless that write has already begun.
    pub(crate) fn order_application(&mut self, order: Message) -> Option<Persist> {
        if order.entries.is_empty() {
            return None;
        }
        let changes_members = order.entries.iter().any(|entry| entry.kind != EntryKind::Normal);
        let write = if changes_members { self.write_commit_index() } else { None };
        let after = self.writes.back().filter(|_| changes_members).map_or(0, |last| last.token);
        self.held_applications.push_back(HeldApplication { after, order });
        write
    }

    /// Returns the next application if it waits for no write.
    pub(crate) fn next_application(&mut self) -> Option<Applying> {
        let oldest = self.writes.front().map_or(u64::MAX, |oldest| oldest.token);
        let order = self.held_applications.pop_front_if(|held| held.after < oldest)?.order;
        let last_index = order.entries.last()?.index;
        assert!(
            self.applications.back().is_none_or(|before| before.last_index < last_index),
            "entries are returned for applying in log order: otherwise a report would also cover later entries"
        );
        self.applications.push_back(Application { last_index, responses: order.responses });
        Some(Applying { entries: order.entries })
    }

    /// Removes and returns the messages to deliver once entries up to `index` are applied.
    pub(crate) fn finish_applications(&mut self, index: LogIndex) -> Vec<Message> {
        let mut responses = Vec::new();
        while let Some(done) = self.applications.pop_front_if(|one| one.last_index <= index) {
            responses.extend(done.responses);
        }
        responses
    }

    /// Returns the newest hard state if no write has contained it yet.
    pub(crate) const fn unwritten(&self) -> Option<HardState> {
        self.unwritten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_raft::{MessageKind, Term};

    fn order(index: u64, term: u64, commit: u64) -> Message {
        let (index, term, commit) = (LogIndex(index), Term(term), LogIndex(commit));
        let entries = if index == LogIndex::ZERO {
            Vec::new()
        } else {
            vec![Entry { term, index, ..Entry::default() }]
        };
        let responses =
            vec![Message { index, commit, ..Message::new(MessageKind::StorageAppendResponse, 1) }];
        Message { term, vote: 1, commit, entries, responses, ..Message::default() }
    }

    fn state(term: u64, commit: u64) -> HardState {
        HardState { term: Term(term), vote: 1, commit: LogIndex(commit) }
    }

    #[test]
    fn a_new_commit_index_is_not_written_until_the_next_entries_are_written() {
        let mut persistence = Persistence::default();
        let first = persistence.order_write(order(1, 1, 0)).unwrap();
        assert_eq!(first.hard_state, Some(state(1, 0)));
        // There is no data to write, but the response waits for the previous write.
        assert!(persistence.order_write(order(0, 1, 1)).unwrap_err().is_empty());
        assert!(persistence.order_write(order(0, 1, 1)).unwrap_err().is_empty());
        assert_eq!(persistence.finish_write(first.token).unwrap().responses.len(), 2);
        assert_eq!(persistence.order_write(order(0, 1, 2)).unwrap_err().len(), 1);
        assert_eq!(persistence.unwritten(), Some(state(1, 2)));
        let second = persistence.order_write(order(3, 1, 2)).unwrap();
        assert_eq!(second.hard_state, Some(state(1, 2)));
        assert_eq!(persistence.unwritten(), None);
    }

    #[test]
    fn the_write_age_is_the_number_of_ticks_since_the_oldest_unfinished_write() {
        let mut persistence = Persistence::default();
        persistence.tick();
        let first = persistence.order_write(order(1, 1, 0)).unwrap();
        persistence.tick();
        let second = persistence.order_write(order(2, 1, 0)).unwrap();
        persistence.tick();
        assert_eq!(persistence.write_age(), 2);
        persistence.finish_write(first.token).unwrap();
        assert_eq!(persistence.write_age(), 1);
        persistence.finish_write(second.token).unwrap();
        assert_eq!(persistence.write_age(), 0);
    }

    fn application(index: u64, kind: EntryKind) -> Message {
        let entry = Entry { index: LogIndex(index), kind, ..Entry::default() };
        Message { entries: vec![entry], ..Message::default() }
    }

    #[test]
    fn a_membership_change_is_applied_only_after_its_commit_index_is_durable() {
        let next = |persistence: &mut Persistence| {
            persistence.next_application().map(|applying| applying.entries[0].index.get())
        };
        let mut persistence = Persistence::new(state(1, 3));
        assert!(persistence.order_write(order(0, 1, 4)).is_err());
        let write = persistence.order_application(application(4, EntryKind::ConfChange)).unwrap();
        assert_eq!((write.hard_state, write.entries.len()), (Some(state(1, 4)), 0));
        // Later applications keep their order.
        assert!(persistence.order_application(application(5, EntryKind::Normal)).is_none());
        assert_eq!(next(&mut persistence), None);
        assert!(persistence.finish_write(write.token).is_some());
        assert_eq!(next(&mut persistence), Some(4));
        assert_eq!(next(&mut persistence), Some(5));
        // The index is durable already, so no write is necessary.
        assert!(persistence.order_application(application(6, EntryKind::ConfChange)).is_none());
        assert_eq!(next(&mut persistence), Some(6));
        // A pending write contains the index.
        let pending = persistence.order_write(order(8, 1, 7)).unwrap();
        assert!(persistence.order_application(application(7, EntryKind::ConfChange)).is_none());
        assert_eq!(next(&mut persistence), None);
        assert!(persistence.finish_write(pending.token).is_some());
        assert_eq!(next(&mut persistence), Some(7));
        // Other entries do not wait for writes.
        assert!(persistence.order_write(order(9, 1, 8)).is_ok());
        assert!(persistence.order_application(application(8, EntryKind::Normal)).is_none());
        assert_eq!(next(&mut persistence), Some(8));
    }

    #[test]
    fn a_new_term_is_written_at_once() {
        let mut persistence = Persistence::new(state(1, 5));
        assert!(persistence.order_write(order(0, 2, 5)).is_ok());
    }
}
