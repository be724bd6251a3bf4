//! Bringing watchers that are behind back to the present, from history.
//!
//! One pass takes a number of groups that are behind, reads history once for all of them without holding
//! the hub's lock, and queues each what it matches. A group that comes close to the present is taken the
//! last stretch under the lock, where nothing can be published, and is live from there: nothing is
//! missed and nothing told twice, however fast revisions come.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::events::{Event, EventSet, EventSetBuilder};
use super::history::{History, HistoryFault};
use super::hub::{Hub, Locked, Position, State};
use super::index::{Index, Watched};
use super::queue::Item;
use super::slab::Handle;

/// Groups served by one pass.
const GROUPS_MAX: usize = 512;

/// Distinct revisions in one response.
const RESPONSE_REVISIONS_MAX: usize = 1000;

/// Bytes of events after which a response takes no further revision.
const RESPONSE_BYTES: usize = 1 << 20;

/// Changes that one pass reads, to a revision's end.
const CHANGES_MAX: usize = 50_000;

/// Revisions that may be read with the hub locked.
const LAST_STRETCH: i64 = 64;

/// A group to be served, from `next` on.
struct Task {
    group: Handle,
    entry: Handle,
    next: i64,
}

/// Groups that get the same events: they watch the same, from the same revision on.
struct Unit {
    watched: Watched,
    next: i64,
    groups: Vec<Handle>,
    events: EventSetBuilder,
    revision_count: usize,
    last_revision: i64,
    /// Set once it takes no more: everything up to here is in.
    covered: Option<i64>,
}

/// One reading of history for many units.
struct Sweep {
    units: Vec<Unit>,
    /// History the pass could not read any more.
    compacted_revision: i64,
    /// The newest revision when the pass began.
    built_at: i64,
}

impl Hub {
    /// Serves some of the watchers that are behind, and says whether more could be served at once.
    /// Reads the store, so it may wait for the disk: call it where that is allowed, from one place.
    pub fn catch_up(&self) -> Result<bool, HistoryFault> {
        let (tasks, watched) = self.lock().take_behind();
        if !tasks.is_empty() {
            let history = self.latest();
            let sweep = Sweep::read(tasks, watched, &*history)?;
            let mut state = self.lock();
            let near = sweep.settle(&mut state);
            self.last_stretch(&mut state, near)?;
        }
        Ok(!self.lock().behind.is_empty())
    }

    /// Takes groups that are nearly there to the present, while nothing is published.
    fn last_stretch(&self, state: &mut Locked<'_>, near: Vec<Task>) -> Result<(), HistoryFault> {
        if near.is_empty() {
            return Ok(());
        }
        let history = self.latest();
        if history.current_revision() != state.current {
            // A store is being replaced: the reader is not yet the hub's, or the other way round.
            for task in near {
                state.reposition(task.group, Position::Behind { next: task.next });
            }
            return Ok(());
        }
        let watched = state.watched_by(&near);
        let left = Sweep::read(near, watched, &*history)?.settle(state);
        assert!(left.is_empty(), "nothing is published while the hub is locked");
        Ok(())
    }
}

impl State {
    /// Takes groups that are behind and whose stream has room. The second list says what they watch.
    fn take_behind(&mut self) -> (Vec<Task>, Vec<Watched>) {
        let mut tasks = Vec::new();
        while tasks.len() < GROUPS_MAX
            && let Some(handle) = self.behind.pop_front()
        {
            let Some(group) = self.groups.get(handle) else { continue };
            let Position::Behind { next } = group.position else { continue };
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

    /// Ends the watchers of a group that needs history which is gone. Their ids stay taken.
    fn cancel_compacted(&mut self, handle: Handle, compact_revision: i64) {
        let group = self.groups.get(handle).expect("a group is cancelled while it exists");
        let (stream, watch_ids) = (group.stream, Arc::clone(&group.watch_ids));
        self.drop_group(handle);
        let owner = self.streams.get_mut(stream).expect("a group's stream is open");
        for &watch_id in &*watch_ids {
            owner.watchers.get_mut(&watch_id).expect("members are watchers").group = None;
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
    ) -> Result<Self, HistoryFault> {
        let mut sweep = Self {
            units: units(tasks, watched),
            compacted_revision: history.compacted_revision(),
            built_at: history.current_revision(),
        };
        let mut index: Index<Vec<usize>> = Index::default();
        let mut first = i64::MAX;
        let mut open_count = 0;
        for (position, unit) in sweep.units.iter().enumerate() {
            if unit.next >= sweep.compacted_revision {
                let entry = index.acquire(&unit.watched);
                index.value_mut(entry).push(position);
                first = first.min(unit.next);
                open_count += 1;
            }
        }
        let mut scanned_to = sweep.built_at;
        if first <= scanned_to {
            let units = &mut sweep.units;
            let mut change_count = 0;
            let mut last_revision = first;
            history.visit_changes(first, &mut |revision, event| {
                if revision != last_revision && (change_count >= CHANGES_MAX || open_count == 0) {
                    scanned_to = revision - 1;
                    return false;
                }
                last_revision = revision;
                change_count += 1;
                index.matches(event.key, &mut |entry| {
                    for position in index.value(entry) {
                        open_count -= usize::from(units[*position].take(revision, event));
                    }
                });
                true
            })?;
        }
        for unit in &mut sweep.units {
            unit.covered.get_or_insert(scanned_to.max(unit.next - 1));
        }
        Ok(sweep)
    }

    /// Queues what was read and moves the groups on. Returns those that are nearly at the present.
    fn settle(self, state: &mut State) -> Vec<Task> {
        state.serial += 1;
        let mut near = Vec::new();
        for unit in self.units {
            let covered = unit.covered.expect("set when the reading ended");
            let set = (!unit.events.is_empty()).then(|| Arc::new(unit.events.finish()));
            for handle in unit.groups {
                // Cancelled, or its stream closed, since the pass began.
                if state.groups.get(handle).is_none() {
                    continue;
                }
                if unit.next < self.compacted_revision {
                    state.cancel_compacted(handle, self.compacted_revision);
                } else if !state.queue_caught_up(handle, set.as_ref(), self.built_at) {
                    state.reposition(handle, Position::Parked { next: unit.next });
                } else {
                    near.extend(state.advance(handle, covered + 1));
                }
            }
        }
        near
    }
}

impl State {
    /// Says whether there was room.
    fn queue_caught_up(
        &mut self,
        handle: Handle,
        set: Option<&Arc<EventSet>>,
        revision: i64,
    ) -> bool {
        let group = self.groups.get_mut(handle).expect("looked up just now");
        let Some(set) = set.filter(|set| !set.is_empty_after(group.options.form.filter)) else {
            return true;
        };
        let Ok(waker) = group.queue.push_events(group.item(set, revision)) else { return false };
        group.last_events = self.serial;
        self.wakers.extend(waker);
        true
    }

    /// Moves a group on after a pass: to live, to the last stretch, or behind again.
    fn advance(&mut self, handle: Handle, next: i64) -> Option<Task> {
        let group = self.groups.get_mut(handle).expect("looked up just now");
        group.position = Position::Reading { next };
        let entry = group.entry;
        let missing = self.current - next + 1;
        if missing <= 0 {
            self.go_live(handle);
        } else if missing <= LAST_STRETCH {
            return Some(Task { group: handle, entry, next });
        } else {
            self.reposition(handle, Position::Behind { next });
        }
        None
    }
}

impl Unit {
    /// Offers an event. Says whether the unit closed on it: full, and this is of a further revision.
    fn take(&mut self, revision: i64, event: &Event<'_>) -> bool {
        if revision < self.next || self.covered.is_some() {
            return false;
        }
        if revision != self.last_revision {
            if self.revision_count >= RESPONSE_REVISIONS_MAX
                || self.events.byte_count() >= RESPONSE_BYTES
            {
                self.covered = Some(revision - 1);
                return true;
            }
            self.revision_count += 1;
            self.last_revision = revision;
        }
        self.events.push(event);
        false
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
                covered: None,
            });
            units.len() - 1
        });
        units[position].groups.push(task.group);
    }
    units
}
