//! Catch-up: sends history to watchers that are behind until they become live.
//!
//! One pass takes some of the groups that are behind, in the order of `behind`, reads history once
//! for all of them without the hub's lock, and queues the matching events for each group. For a
//! group that comes close to the current revision, the remaining history is read under the lock,
//! while nothing can be published. Then the group becomes live. No event is therefore missed or
//! sent twice, however fast revisions are published.
//!
//! The bytes read under the lock are bounded, however large a revision is. The size of a response is
//! also bounded, except that a response always contains at least one whole revision. A group with
//! more history to read stays behind, and the next pass continues with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::events::{EventSet, EventSetBuilder};
use super::history::{Event, History, HistoryFault};
use super::hub::{Hub, Locked, Position, State};
use super::index::{Index, Watched};
use super::limits::CatchUpLimits;
use super::queue::Item;
use super::slab::Handle;
use super::unsynced::Lack;

/// The maximum number of groups that one pass takes.
const GROUPS_MAX: usize = 512;

/// While the held bytes are at their maximum, no further revision is added to a response after this many bytes of
/// events. The number is small because each client that does not read occupies the memory of one such response. Small
/// responses hardly delay a client that reads, because it receives its next response soon.
const FULL_RESPONSE_BYTES: usize = 16 << 10;

/// The cost of reading one change, in addition to the bytes of its record.
const CHANGE_BYTES: usize = 64;

/// Where a read of history stops before it reaches the current revision.
#[derive(Clone, Copy)]
enum Stop {
    /// At the end of a revision, after this many changes.
    AfterChanges(usize),
    /// After this many bytes are read and copied. The events of an incomplete revision are dropped.
    AtBytes(usize),
}

/// A group that a pass serves with history from revision `next` on.
struct Task {
    group: Handle,
    entry: Handle,
    next: i64,
}

/// Groups that receive the same events, because they watch the same keys from the same revision on.
struct Unit {
    watched: Watched,
    next: i64,
    groups: Vec<Handle>,
    events: EventSetBuilder,
    revision_count: usize,
    last_revision: i64,
    /// The number of collected events, not counting the events of the last revision.
    whole_count: usize,
    /// The revision up to which all events are collected. It is set once the unit is full or the
    /// read has ended.
    covered: Option<i64>,
}

/// One read of history for many units.
struct Sweep {
    units: Vec<Unit>,
    /// The compacted revision. Revisions below it can no longer be read.
    compacted_revision: i64,
    /// The newest revision when the read began.
    built_at: i64,
    /// The fault that ended the read.
    fault: Option<HistoryFault>,
}

impl Hub {
    /// Serves some of the groups that are behind. Returns whether more groups can be served immediately. The pass reads
    /// the store and may wait for the disk, so this method must run on a thread that may block, and on only one thread
    /// at a time.
    ///
    /// # Errors
    ///
    /// The history could not be read. The groups are still behind, and a later pass continues with them.
    pub fn catch_up(&self) -> Result<bool, HistoryFault> {
        let mut state = self.lock();
        let mut limits = *self.catch_up_limits();
        if state.held.is_full() {
            limits.response_bytes = limits.response_bytes.min(FULL_RESPONSE_BYTES);
        }
        let limits = &limits;
        let (tasks, watched) = state.take_behind(limits.response_bytes);
        drop(state);
        if !tasks.is_empty() {
            let history = self.latest();
            let stop = Stop::AfterChanges(limits.pass_changes);
            let sweep = Sweep::read(tasks, watched, &*history, (limits, stop), self.seed());
            let mut state = self.lock();
            let near = sweep.settle(&mut state, limits)?;
            self.catch_up_locked(&mut state, near, limits)?;
        }
        Ok(!self.lock().behind.is_empty())
    }

    /// Serves groups that are close to the current revision until they reach it, while nothing is
    /// published. A group stays behind if it needs more than one response, more bytes than may be
    /// read under the lock, or changes from another machine.
    fn catch_up_locked(
        &self,
        state: &mut Locked<'_>,
        near: Vec<Task>,
        limits: &CatchUpLimits,
    ) -> Result<(), HistoryFault> {
        if near.is_empty() {
            return Ok(());
        }
        let history = self.latest();
        if history.current_revision() != state.current {
            // The store is being replaced, so the newest history and the hub's current revision belong to different
            // stores. The groups stay behind.
            state.return_all(near);
            return Ok(());
        }
        let (near, remote): (Vec<Task>, Vec<Task>) =
            near.into_iter().partition(|task| history.is_local(task.next));
        state.return_all(remote);
        let watched = state.watched_by(&near);
        let stop = Stop::AtBytes(limits.locked_bytes_max);
        let left = Sweep::read(near, watched, &*history, (limits, stop), self.seed())
            .settle(state, limits)?;
        state.return_all(left);
        Ok(())
    }
}

impl State {
    /// Takes groups that are behind and whose streams have room. At least one group is taken. Further groups are taken
    /// only while one response for each group fits within the limit on held bytes. The second returned list contains
    /// the key or range that each group in the first list watches.
    fn take_behind(&mut self, response_bytes: usize) -> (Vec<Task>, Vec<Watched>) {
        self.behind.begin_pass();
        let mut tasks = Vec::new();
        let count_max = self.held.room().div_ceil(response_bytes.max(1)).clamp(1, GROUPS_MAX);
        while tasks.len() < count_max
            && let Some((next, handle)) = self.behind.pop()
        {
            let group = self.groups.get(handle).expect("a group that is behind exists");
            let (entry, room) = (group.entry, group.queue.has_room());
            if room {
                self.reposition(handle, Position::Reading { next });
                tasks.push(Task { group: handle, entry, next });
            } else {
                self.reposition(handle, Position::Parked { next });
            }
        }
        let watched = self.watched_by(&tasks);
        (tasks, watched)
    }

    fn watched_by(&self, tasks: &[Task]) -> Vec<Watched> {
        tasks.iter().map(|task| self.index.watched(task.entry).clone()).collect()
    }

    /// Cancels the watchers of a group whose history can no longer be read. Their ids remain in use.
    pub(super) fn cancel_compacted(&mut self, handle: Handle, compact_revision: i64) {
        let group = self.groups.get(handle).expect("a group exists until it is cancelled");
        let (stream, watch_ids) = (group.stream, Arc::clone(&group.watch_ids));
        self.drop_group(handle);
        let owner = self.streams.get_mut(stream).expect("a group's stream is open");
        owner.unsynced.add(Lack::Past, watch_ids.len());
        for &watch_id in &*watch_ids {
            owner
                .watchers
                .get_mut(&watch_id)
                .expect("a group contains only watchers of its stream")
                .group = None;
            let reply = Item::Canceled { watch_id, revision: 0, compact_revision };
            self.wakers.extend(owner.queue.push_control(reply));
        }
    }
}

impl Sweep {
    fn read(
        tasks: Vec<Task>,
        watched: Vec<Watched>,
        history: &dyn History,
        (limits, stop): (&CatchUpLimits, Stop),
        seed: u64,
    ) -> Self {
        let mut sweep = Self {
            units: units(tasks, watched),
            compacted_revision: history.compacted_revision(),
            built_at: history.current_revision(),
            fault: None,
        };
        let mut index: Index<Vec<usize>> = Index::new(seed);
        let mut first = i64::MAX;
        for (position, unit) in sweep.units.iter().enumerate() {
            if unit.next >= sweep.compacted_revision {
                let entry = index.acquire(&unit.watched);
                index.value_mut(entry).push(position);
                first = first.min(unit.next);
            }
        }
        let mut scanned_to = sweep.built_at;
        if first <= scanned_to {
            scanned_to = sweep.scan(&index, first, history, limits, stop);
        }
        for unit in &mut sweep.units {
            unit.close(scanned_to);
        }
        sweep
    }

    /// Passes all changes at or after revision `first` to the units in the index. Returns the last revision that was
    /// read completely.
    fn scan(
        &mut self,
        index: &Index<Vec<usize>>,
        first: i64,
        history: &dyn History,
        limits: &CatchUpLimits,
        stop: Stop,
    ) -> i64 {
        let mut scanned_to = self.built_at;
        let mut open_count =
            self.units.iter().filter(|unit| unit.next >= self.compacted_revision).count();
        let mut spent = Spent { change_count: 0, bytes: 0, stop };
        let mut last_revision = first;
        let visited = history.visit_changes(first, &mut |revision, event| {
            let further = revision != last_revision;
            if further && (open_count == 0 || spent.ends_before_a_revision()) {
                scanned_to = revision - 1;
                return false;
            }
            last_revision = revision;
            spent.change_count += 1;
            spent.bytes += CHANGE_BYTES;
            index.matches(event.key, &mut |entry| {
                for position in index.value(entry) {
                    spent.bytes += event.record.len();
                    if !spent.ends_at_once() {
                        let closed = self.units[*position].take(revision, event, limits);
                        open_count -= usize::from(closed);
                    }
                }
            });
            if spent.ends_at_once() {
                scanned_to = revision - 1;
                return false;
            }
            true
        });
        match visited {
            Ok(None) => {}
            Ok(Some(compacted)) => {
                // The units that need a revision below the compacted revision are cancelled. The other units have
                // received nothing yet, because the visit ended below their first revision.
                self.compacted_revision = self.compacted_revision.max(compacted);
                scanned_to = first - 1;
            }
            Err(fault) => {
                // The last revision may be incomplete.
                scanned_to = last_revision - 1;
                self.fault = Some(fault);
            }
        }
        scanned_to
    }

    /// Queues the collected events and updates the positions of the groups. Returns the groups that
    /// are close to the current revision. After a fault, these groups stay behind, and the fault is returned.
    fn settle(self, state: &mut State, limits: &CatchUpLimits) -> Result<Vec<Task>, HistoryFault> {
        state.serial += 1;
        let mut near = Vec::new();
        for unit in self.units {
            let covered = unit.covered.expect("the read of history has ended");
            let set = (!unit.events.is_empty()).then(|| Arc::new(unit.events.finish(&state.held)));
            for handle in unit.groups {
                // The group no longer exists if its watchers were cancelled, or their stream was closed, after the pass
                // began.
                if state.groups.get(handle).is_none() {
                    continue;
                }
                if unit.next < self.compacted_revision {
                    state.cancel_compacted(handle, self.compacted_revision);
                } else if !state.queue_caught_up(handle, set.as_ref(), self.built_at) {
                    state.reposition(handle, Position::Parked { next: unit.next });
                } else {
                    near.extend(state.advance(handle, covered + 1, limits));
                }
            }
        }
        let Some(fault) = self.fault else { return Ok(near) };
        state.return_all(near);
        Err(fault)
    }
}

impl State {
    /// Queues the events for a group. Returns whether there was room.
    fn queue_caught_up(
        &mut self,
        handle: Handle,
        set: Option<&Arc<EventSet>>,
        revision: i64,
    ) -> bool {
        let group = self.groups.get_mut(handle).expect("the lookup above found the group");
        let Some(set) = set.filter(|set| !set.is_empty_after(group.options.form.filter)) else {
            return true;
        };
        let Ok(waker) = group.queue.push_events(group.item(set, revision)) else { return false };
        group.last_events = self.serial;
        self.wakers.extend(waker);
        true
    }

    /// Updates the position of a group after a read. Returns a task if the group can be brought up
    /// to date under the lock. Otherwise, the group is now live or behind.
    fn advance(&mut self, handle: Handle, next: i64, limits: &CatchUpLimits) -> Option<Task> {
        let entry = self.groups.get(handle).expect("the lookup above found the group").entry;
        let missing = self.current - next + 1;
        if missing <= 0 {
            self.go_live(handle);
        } else if missing <= limits.locked_revisions_max {
            return Some(Task { group: handle, entry, next });
        } else {
            self.return_behind(handle, next);
        }
        None
    }

    fn return_all(&mut self, tasks: Vec<Task>) {
        for task in tasks {
            self.return_behind(task.group, task.next);
        }
    }

    /// Ends the pass of a group that is still behind. The group stays in the round if the pass did not reach it.
    fn return_behind(&mut self, handle: Handle, next: i64) {
        let group = self.groups.get(handle).expect("the lookup above found the group");
        let is_unreached = group.position == Position::Reading { next };
        self.reposition(handle, Position::Behind { next });
        if is_unreached {
            self.behind.keep_in_round(next, handle);
        }
    }
}

impl Unit {
    /// Collects an event if the unit needs its revision. Returns `true` if the unit is full and
    /// `event` begins a new revision, which ends the collection.
    fn take(&mut self, revision: i64, event: &Event<'_>, limits: &CatchUpLimits) -> bool {
        if revision < self.next || self.covered.is_some() {
            return false;
        }
        if revision != self.last_revision {
            // A response always contains at least one revision, because otherwise the group would
            // never advance.
            let full = self.revision_count >= limits.response_revisions_max
                || self.events.byte_count() >= limits.response_bytes;
            if full && self.revision_count > 0 {
                self.covered = Some(revision - 1);
                return true;
            }
            self.revision_count += 1;
            self.last_revision = revision;
            self.whole_count = self.events.len();
        }
        self.events.push(event);
        false
    }

    /// Ends the collection after history was read to the end of revision `scanned_to`.
    fn close(&mut self, scanned_to: i64) {
        if self.covered.is_none() {
            if self.last_revision > scanned_to {
                self.events.truncate(self.whole_count);
            }
            self.covered = Some(scanned_to.max(self.next - 1));
        }
    }
}

/// The changes and bytes that a read has consumed.
struct Spent {
    change_count: usize,
    bytes: usize,
    stop: Stop,
}

impl Spent {
    fn ends_before_a_revision(&self) -> bool {
        match self.stop {
            Stop::AfterChanges(changes) => self.change_count >= changes,
            Stop::AtBytes(_) => false,
        }
    }

    fn ends_at_once(&self) -> bool {
        match self.stop {
            Stop::AfterChanges(_) => false,
            Stop::AtBytes(bytes) => self.bytes > bytes,
        }
    }
}

fn units(tasks: Vec<Task>, watched: Vec<Watched>) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut known = BTreeMap::new();
    for (task, watched) in tasks.into_iter().zip(watched) {
        let position = *known.entry((task.entry, task.next)).or_insert_with(|| {
            units.push(Unit {
                watched,
                next: task.next,
                groups: Vec::new(),
                events: EventSetBuilder::default(),
                revision_count: 0,
                last_revision: 0,
                whole_count: 0,
                covered: None,
            });
            units.len() - 1
        });
        units[position].groups.push(task.group);
    }
    units
}
