//! The hub: registers watchers and delivers every published change to them.
//!
//! Watchers of one stream that watch the same key or range with the same options form a group. The
//! hub serves a group as a unit, with one queue item and one position in history. A group is *live*
//! (it receives the next change immediately), *behind* (it must first read history, see
//! `catch_up`), or *parked* (behind, and its stream has no room). The hub's lock makes publication
//! and registration mutually exclusive, so a watcher registered at revision R receives exactly the
//! changes after R.
//!
//! # Invariants
//!
//! * For a live group, every matching change from the group's start up to the current revision has
//!   been queued.
//! * For a group that is not live, every matching change before revision `next` has been queued, and no change from
//!   `next` on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::behind::Behind;
use super::events::{EventSet, Form};
use super::held::{Held, HeldBytes};
use super::history::{Event, History, Source, event_of};
use super::index::{Index, Watched};
use super::limits::{CatchUpLimits, WatchLimits};
use super::queue::{Events, Full, Item, Queue};
use super::slab::{Handle, Slab};
use super::unsynced::{Lack, Unsynced};
use crate::mvcc::Changes;
use crate::steps;

/// The maximum number of watchers in one group. Further watchers open another group. The list of a group's watchers is
/// kept short, because a change to the list copies it if queued items refer to it.
const GROUP_MEMBERS_MAX: usize = 1024;

/// The number of groups that a closing stream drops before it releases the lock for other threads. In tests, a few
/// groups need several steps.
const CLOSE_STEP: usize = if cfg!(test) { 2 } else { 256 };

/// The memory of a watcher in bytes, in addition to its key and range end: the entries in the stream and in the index,
/// and a group.
const WATCHER_BYTES: usize = 512;

/// A handle to the hub, through which changes are published and watchers are registered.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    source: RwLock<Arc<dyn Source>>,
    limits: WatchLimits,
    held: Arc<HeldBytes>,
}

/// The hub's counts, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStats {
    /// The number of open streams.
    pub stream_count: usize,
    /// The number of all watchers.
    pub watcher_count: usize,
    /// The number of watchers that are not live.
    pub slow_watcher_count: usize,
    /// Memory used by all watchers, in bytes.
    pub watcher_bytes: usize,
    /// The number of watchers refused because the memory for watchers was used up.
    pub refused_watcher_count: u64,
    /// Bytes of events that clients have not taken yet.
    pub held_bytes: usize,
    /// The number of events that clients have not taken yet. An event counts once for each watcher
    /// that receives it.
    pub pending_event_count: usize,
}

pub(super) struct State {
    pub(super) current: i64,
    /// The live groups of every watched key or range.
    pub(super) index: Index<Vec<Handle>>,
    pub(super) groups: Slab<Group>,
    pub(super) streams: Slab<Stream>,
    /// Groups that can catch up.
    pub(super) behind: Behind,
    /// A counter that records the order of publications, registrations, catch-up passes and progress ticks.
    pub(super) serial: u64,
    pub(super) catch_up_waker: Option<Waker>,
    /// Wakers to wake when the lock is released.
    pub(super) wakers: Vec<Waker>,
    /// A scratch buffer whose memory is reused.
    matched: Vec<(Handle, usize)>,
    /// Bytes of events that clients have not taken yet.
    pub(super) held: Arc<HeldBytes>,
    watcher_bytes: usize,
    watcher_bytes_max: usize,
    /// The number of watchers refused because the memory for watchers was used up.
    refused_count: u64,
}

/// The options that the watchers of a group share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Options {
    pub(super) form: Form,
    pub(super) fragment: bool,
}

pub(super) struct Group {
    pub(super) stream: Handle,
    pub(super) queue: Arc<Queue>,
    pub(super) entry: Handle,
    pub(super) options: Options,
    /// The first revision that the group receives.
    pub(super) from: i64,
    pub(super) watch_ids: Arc<Vec<i64>>,
    pub(super) position: Position,
    /// The value of [`State::serial`] when events were last queued for the group.
    pub(super) last_events: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// The group receives every new change. `slot` is the group's position in the list of its index entry.
    Live {
        slot: usize,
    },
    Behind {
        next: i64,
    },
    Parked {
        next: i64,
    },
    /// A catch-up pass, which began at revision `next`, is reading history for the group.
    Reading {
        next: i64,
    },
}

/// The properties that watchers of one stream must share to form a group. `next` is 0 for live
/// groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    entry: Handle,
    options: Options,
    from: i64,
    next: i64,
}

pub(super) struct Stream {
    pub(super) queue: Arc<Queue>,
    pub(super) watchers: BTreeMap<i64, Watcher>,
    /// Ids of the watchers that want periodic progress notifications.
    pub(super) progress_ids: BTreeSet<i64>,
    pub(super) unsynced: Unsynced,
    /// The groups that accept more watchers.
    open: BTreeMap<GroupKey, Handle>,
    parked: Vec<Handle>,
    next_id: i64,
    /// The value of [`State::serial`] when progress notifications were last sent.
    pub(super) last_tick: u64,
}

pub(super) struct Watcher {
    /// The watcher's group; `None` once history that the watcher needed is compacted. The id then
    /// stays in use until the client cancels the watcher.
    pub(super) group: Option<Handle>,
    pub(super) created: u64,
    /// Memory counted for this watcher, in bytes.
    bytes: usize,
}

/// The parameters of a watcher to register.
pub(super) struct Registration {
    pub(super) watched: Watched,
    pub(super) options: Options,
    pub(super) start_revision: i64,
    /// The requested id; 0 to let the hub choose one.
    pub(super) watch_id: i64,
    pub(super) progress: bool,
}

/// Why a watcher was not registered.
#[derive(Debug)]
pub(super) enum RegisterRefusal {
    /// The requested id is in use.
    DuplicateId,
    /// The memory for watchers is used up.
    TooMany,
}

impl Hub {
    /// Creates the hub of a keyspace whose newest revision is `current_revision`. The hub reads
    /// history from `source`.
    #[must_use]
    pub fn new(source: Arc<dyn Source>, current_revision: i64, limits: WatchLimits) -> Self {
        let state = State::new(current_revision, &limits);
        let held = Arc::clone(&state.held);
        let shared = Shared { state: Mutex::new(state), source: RwLock::new(source), limits, held };
        Self { shared: Arc::new(shared) }
    }

    /// Begins a publication. Registrations wait until it is dropped. The caller must make the
    /// revisions visible to readers after this call and before [`Publication::deliver`]. As a
    /// result, no watcher receives a change that cannot be read yet, and no client misses a change
    /// between its read and its registration.
    #[must_use]
    pub fn publication(&self) -> Publication<'_> {
        Publication { state: self.lock() }
    }

    /// Adds a stream. Returns its handle and the queue of its responses.
    pub(super) fn admit_stream(&self) -> (Handle, Arc<Queue>) {
        let mut state = self.lock();
        let queue = Arc::new(Queue::new(self.shared.limits.queue, Arc::clone(&state.held)));
        let stream = Stream {
            queue: Arc::clone(&queue),
            watchers: BTreeMap::new(),
            progress_ids: BTreeSet::new(),
            unsynced: Unsynced::default(),
            open: BTreeMap::new(),
            parked: Vec::new(),
            next_id: 0,
            last_tick: 0,
        };
        let handle = state.streams.insert(stream);
        drop(state);
        (handle, queue)
    }

    /// Switches to a store that was installed from a snapshot. Live watchers read from the new store
    /// the revisions that they have not received yet.
    pub fn replace_store(&self, source: Arc<dyn Source>, current_revision: i64) {
        let mut state = self.lock();
        *self.shared.source.write() = source;
        let next = state.current + 1;
        state.current = current_revision;
        let live: Vec<(Handle, i64)> = state
            .groups
            .iter()
            .filter(|(_, group)| matches!(group.position, Position::Live { .. }))
            .map(|(handle, group)| (handle, group.from.max(next)))
            .filter(|(_, next)| *next <= current_revision)
            .collect();
        for (handle, next) in live {
            state.reposition(handle, Position::Behind { next });
        }
    }

    /// Switches to a store that does not continue the previous one: its revisions may differ from the revisions that
    /// the watchers have received, and its newest revision may be lower. Therefore all watchers are cancelled. As after
    /// a compaction, their clients read the keyspace again.
    pub fn replace_history(&self, source: Arc<dyn Source>, current_revision: i64) {
        let mut state = self.lock();
        *self.shared.source.write() = source;
        state.current = current_revision;
        state.serial += 1;
        let groups: Vec<Handle> = state.groups.iter().map(|(handle, _)| handle).collect();
        for handle in groups {
            // A compacted revision of 0 would tell the client that it has cancelled the watcher itself.
            state.cancel_compacted(handle, current_revision.max(1));
        }
    }

    /// Waits until a watcher is behind and [`Hub::catch_up`] can serve it.
    pub fn poll_behind(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if !state.behind.is_empty() {
            return Poll::Ready(());
        }
        state.catch_up_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Counts bytes as held until the returned value is dropped. The caller drops it when the client has taken the
    /// bytes.
    #[must_use]
    pub fn hold(&self, bytes: usize) -> Held {
        self.shared.held.hold(bytes)
    }

    /// Returns the counts for metrics.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        let state = self.lock();
        let mut stats = HubStats {
            stream_count: state.streams.iter().count(),
            watcher_bytes: state.watcher_bytes,
            refused_watcher_count: state.refused_count,
            held_bytes: state.held.used(),
            ..HubStats::default()
        };
        for (_, stream) in state.streams.iter() {
            stats.watcher_count += stream.watchers.len();
            stats.pending_event_count += stream.queue.event_count();
        }
        stats.slow_watcher_count = state
            .groups
            .iter()
            .filter(|(_, group)| !matches!(group.position, Position::Live { .. }))
            .map(|(_, group)| group.watch_ids.len())
            .sum();
        stats
    }

    pub(super) fn latest(&self) -> Box<dyn History> {
        self.shared.source.read().latest()
    }

    /// Returns the seed of the indexes of watched ranges.
    pub(super) fn seed(&self) -> u64 {
        self.shared.limits.seed
    }

    pub(super) fn catch_up_limits(&self) -> &CatchUpLimits {
        &self.shared.limits.catch_up
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { guard: Some(self.shared.state.lock()) }
    }

    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        self.shared.state.is_locked()
    }

    /// Makes the parked groups of a stream eligible for catch-up, because the stream has room
    /// again.
    pub(super) fn unpark(&self, stream: Handle) {
        let mut state = self.lock();
        let Some(parked) = state.streams.get_mut(stream).map(|s| std::mem::take(&mut s.parked))
        else {
            return;
        };
        for handle in parked {
            if let Some(&Position::Parked { next }) =
                state.groups.get(handle).map(|group| &group.position)
            {
                state.reposition(handle, Position::Behind { next });
            }
        }
    }

    /// Removes a stream and its watchers, in steps.
    pub(super) fn close_stream(&self, stream: Handle) {
        loop {
            let mut state = self.lock();
            let Some(closing) = state.streams.get_mut(stream) else { return };
            let (mut groups, mut bytes) = (BTreeSet::new(), 0);
            while groups.len() < CLOSE_STEP
                && let Some((_, watcher)) = closing.watchers.pop_first()
            {
                groups.extend(watcher.group);
                bytes += watcher.bytes;
            }
            let done = closing.watchers.is_empty();
            assert!(
                bytes <= state.watcher_bytes,
                "memory is released only once: otherwise the bound on watchers would have no effect"
            );
            state.watcher_bytes -= bytes;
            for handle in groups {
                // The group may have been dropped in an earlier step, together with another of its watchers.
                if state.groups.get(handle).is_some() {
                    state.drop_group(handle);
                }
            }
            if done {
                state.streams.remove(stream);
                return;
            }
        }
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hub").field(&self.stats()).finish()
    }
}

/// The exclusive right to publish. Dropping it wakes the streams that received events.
pub struct Publication<'a> {
    state: Locked<'a>,
}

impl Publication<'_> {
    /// Delivers the changes of one revision to the watchers of their keys. Each revision must be
    /// delivered once, in order.
    pub fn deliver(&mut self, changes: &Changes) {
        if self.state.index.is_empty() {
            // No key is watched, so the changes need not be matched.
            self.state.deliver(changes.revision, &[]);
        } else if let [change] = &changes.events[..] {
            self.state.deliver(changes.revision, &[event_of(change)]);
        } else {
            let events: Vec<_> = changes.events.iter().map(event_of).collect();
            self.state.deliver(changes.revision, &events);
        }
    }

    #[cfg(test)]
    pub(super) fn deliver_events(&mut self, revision: i64, events: &[Event<'_>]) {
        self.state.deliver(revision, events);
    }
}

impl std::fmt::Debug for Publication<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publication").field("current", &self.state.current).finish()
    }
}

/// The hub's lock. Dropping it releases the lock and then wakes the collected wakers.
pub(super) struct Locked<'a> {
    guard: Option<MutexGuard<'a, State>>,
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.guard.as_ref().expect("the guard is present until it is dropped")
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().expect("the guard is present until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let wakers = std::mem::take(&mut self.wakers);
        self.guard = None;
        for waker in wakers {
            waker.wake();
        }
    }
}

impl State {
    fn new(current: i64, limits: &WatchLimits) -> Self {
        Self {
            current,
            index: Index::new(limits.seed),
            groups: Slab::default(),
            streams: Slab::default(),
            behind: Behind::default(),
            serial: 0,
            catch_up_waker: None,
            wakers: Vec::new(),
            matched: Vec::new(),
            held: HeldBytes::new(limits.held_bytes_max),
            watcher_bytes: 0,
            watcher_bytes_max: limits.watcher_bytes_max,
            refused_count: 0,
        }
    }

    fn deliver(&mut self, revision: i64, events: &[Event<'_>]) {
        assert!(
            revision > self.current,
            "revisions are published once and in order: otherwise a watcher would receive an event twice"
        );
        self.current = revision;
        if self.index.is_empty() {
            return;
        }
        self.serial += 1;
        let mut matched = std::mem::take(&mut self.matched);
        for (position, event) in events.iter().enumerate() {
            self.index.matches(event.key, &mut |entry| matched.push((entry, position)));
        }
        if events.len() > 1 {
            matched.sort_unstable();
        }
        // Index entries that match every event share one set. If there is only one event, all
        // matching entries share the set.
        let mut whole = None;
        for run in matched.chunk_by(|a, b| a.0 == b.0) {
            let entry = run[0].0;
            if self.index.value_mut(entry).is_empty() {
                continue;
            }
            if run.len() == events.len() {
                let all = || Arc::new(EventSet::new(events.iter().copied(), &self.held));
                let set = whole.get_or_insert_with(all);
                self.deliver_to(entry, &Arc::clone(set), revision);
            } else {
                let part = run.iter().map(|(_, position)| events[*position]);
                self.deliver_to(entry, &Arc::new(EventSet::new(part, &self.held)), revision);
            }
        }
        matched.clear();
        self.matched = matched;
    }

    fn deliver_to(&mut self, entry: Handle, set: &Arc<EventSet>, revision: i64) {
        let mut slot = 0;
        while let Some(&handle) = self.index.value_mut(entry).get(slot) {
            let group = self.groups.get_mut(handle).expect("the index lists groups that exist");
            if group.from > revision || set.is_empty_after(group.options.form.filter) {
                slot += 1;
                continue;
            }
            match group.queue.push_events(group.item(set, revision)) {
                Ok(waker) => {
                    group.last_events = self.serial;
                    self.wakers.extend(waker);
                    slot += 1;
                }
                // The group is removed from the list, and another group moves to its slot, so `slot` is not advanced.
                Err(Full) => self.reposition(handle, Position::Parked { next: revision }),
            }
        }
    }

    /// Registers a watcher and queues the `created` reply.
    pub(super) fn register(
        &mut self,
        stream: Handle,
        registration: Registration,
    ) -> Result<i64, RegisterRefusal> {
        let bytes = WATCHER_BYTES + registration.watched.byte_count();
        if self.watcher_bytes + bytes > self.watcher_bytes_max {
            self.refused_count += 1;
            return Err(RegisterRefusal::TooMany);
        }
        let watch_id = self.choose_id(stream, registration.watch_id)?;
        self.watcher_bytes += bytes;
        let entry = self.index.acquire(&registration.watched);
        let Registration { options, start_revision, progress, .. } = registration;
        let future = start_revision > self.current;
        let from = if future { start_revision } else { 0 };
        let next = if future { 0 } else { start_revision };
        let key = GroupKey { entry, options, from, next };
        let handle = match self.open_group(stream, &key, 1) {
            Some(handle) => {
                self.index.release(entry);
                handle
            }
            None => self.new_group(stream, key),
        };
        self.serial += 1;
        let created = self.serial;
        let group = self.groups.get_mut(handle).expect("the group was found or created above");
        Arc::make_mut(&mut group.watch_ids).push(watch_id);
        let lack = group.lack();
        let owner =
            self.streams.get_mut(stream).expect("a stream that registers a watcher is open");
        owner.unsynced.add(lack, 1);
        owner.watchers.insert(watch_id, Watcher { group: Some(handle), created, bytes });
        if progress {
            owner.progress_ids.insert(watch_id);
        }
        let reply = Item::Created { watch_id, revision: self.current };
        self.wakers.extend(owner.queue.push_control(reply));
        Ok(watch_id)
    }

    /// Removes a watcher. Returns whether the id was in use.
    pub(super) fn unregister(&mut self, stream: Handle, watch_id: i64) -> bool {
        let owner = self.streams.get_mut(stream).expect("a stream that cancels a watcher is open");
        let Some(watcher) = owner.watchers.remove(&watch_id) else { return false };
        owner.progress_ids.remove(&watch_id);
        self.watcher_bytes -= watcher.bytes;
        let Some(handle) = watcher.group else {
            owner.unsynced.remove(Lack::Past, 1);
            return true;
        };
        let group = self.groups.get_mut(handle).expect("a watcher's group exists");
        owner.unsynced.remove(group.lack(), 1);
        Arc::make_mut(&mut group.watch_ids).retain(|id| *id != watch_id);
        if group.watch_ids.is_empty() {
            self.drop_group(handle);
        }
        true
    }

    /// Returns whether the group has reached its start revision and every event up to the current
    /// revision has been queued for it.
    pub(super) fn is_synced(&self, handle: Handle) -> bool {
        steps::count();
        let group = self.groups.get(handle).expect("a watcher's group exists");
        matches!(group.position, Position::Live { .. }) && group.from <= self.current
    }

    fn choose_id(&mut self, stream: Handle, wanted: i64) -> Result<i64, RegisterRefusal> {
        let owner =
            self.streams.get_mut(stream).expect("a stream that registers a watcher is open");
        if wanted != 0 {
            let taken = owner.watchers.contains_key(&wanted);
            return if taken { Err(RegisterRefusal::DuplicateId) } else { Ok(wanted) };
        }
        while owner.watchers.contains_key(&owner.next_id) {
            owner.next_id += 1;
        }
        owner.next_id += 1;
        Ok(owner.next_id - 1)
    }

    fn open_group(&self, stream: Handle, key: &GroupKey, count: usize) -> Option<Handle> {
        let handle = *self.streams.get(stream)?.open.get(key)?;
        let group = self.groups.get(handle).expect("a group that accepts watchers exists");
        (group.watch_ids.len() + count <= GROUP_MEMBERS_MAX).then_some(handle)
    }

    fn new_group(&mut self, stream: Handle, key: GroupKey) -> Handle {
        let owner =
            self.streams.get_mut(stream).expect("a stream that registers a watcher is open");
        let handle = self.groups.insert(Group {
            stream,
            queue: Arc::clone(&owner.queue),
            entry: key.entry,
            options: key.options,
            from: key.from,
            watch_ids: Arc::default(),
            position: Position::Reading { next: key.next },
            last_events: 0,
        });
        let position = match key.next {
            0 => Position::Live { slot: 0 },
            next => Position::Behind { next },
        };
        self.reposition(handle, position);
        handle
    }

    /// Moves a group to another position and updates all lists. If the group becomes live, its slot
    /// is determined here.
    pub(super) fn reposition(&mut self, handle: Handle, position: Position) {
        self.unlist(handle);
        let group = self.groups.get_mut(handle).expect("a group that is moved still exists");
        group.position = position;
        let owner = self.streams.get_mut(group.stream).expect("a group's stream is open");
        match position {
            Position::Live { .. } => {
                if group.from <= self.current {
                    group.from = 0;
                }
                let list = self.index.value_mut(group.entry);
                group.position = Position::Live { slot: list.len() };
                list.push(handle);
            }
            Position::Behind { next } => {
                assert!(
                    next <= self.current,
                    "a group that is behind lacks events: otherwise it would receive live events a second time"
                );
                self.behind.add(next, handle);
                self.wakers.extend(self.catch_up_waker.take());
            }
            Position::Parked { next } => {
                assert!(
                    next <= self.current,
                    "a parked group lacks events: otherwise it would receive live events a second time"
                );
                owner.parked.push(handle);
            }
            Position::Reading { .. } => {}
        }
        owner.unsynced.add(group.lack(), group.watch_ids.len());
        if !matches!(position, Position::Reading { .. }) {
            owner.open.insert(group.key(), handle);
        }
    }

    /// Removes a group from its index entry or the groups that can catch up, from the groups that accept more watchers,
    /// and from the count of unsynced watchers.
    fn unlist(&mut self, handle: Handle) {
        let group = self.groups.get(handle).expect("a group that is moved still exists");
        let (entry, position) = (group.entry, group.position);
        if let Some(owner) = self.streams.get_mut(group.stream) {
            owner.unsynced.remove(group.lack(), group.watch_ids.len());
            if owner.open.get(&group.key()) == Some(&handle) {
                owner.open.remove(&group.key());
            }
        }
        if let Position::Behind { next } = position {
            self.behind.remove(next, handle);
        } else if let Position::Live { slot } = position {
            let list = self.index.value_mut(entry);
            let removed = list.swap_remove(slot);
            assert!(
                removed == handle,
                "a live group is in its recorded slot: otherwise another group would receive no more events"
            );
            if let Some(&moved) = list.get(slot) {
                let moved = self.groups.get_mut(moved).expect("the index lists groups that exist");
                moved.position = Position::Live { slot };
            }
        }
    }

    pub(super) fn drop_group(&mut self, handle: Handle) {
        self.unlist(handle);
        let group = self.groups.remove(handle).expect("the lookup above found the group");
        self.index.release(group.entry);
    }

    /// Makes a group live once every event up to the current revision is queued for it. The group
    /// may be merged into another one.
    pub(super) fn go_live(&mut self, handle: Handle) {
        let group = self.groups.get(handle).expect("a group that becomes live still exists");
        let from = if group.from <= self.current { 0 } else { group.from };
        let key = GroupKey { entry: group.entry, options: group.options, from, next: 0 };
        let (stream, count, last_events) = (group.stream, group.watch_ids.len(), group.last_events);
        let Some(host) = self.open_group(stream, &key, count) else {
            self.reposition(handle, Position::Live { slot: 0 });
            return;
        };
        let watch_ids = Arc::clone(&group.watch_ids);
        self.drop_group(handle);
        let owner = self.streams.get_mut(stream).expect("a group's stream is open");
        for watch_id in &*watch_ids {
            let watcher = owner
                .watchers
                .get_mut(watch_id)
                .expect("a group contains only watchers of its stream");
            watcher.group = Some(host);
        }
        let host = self.groups.get_mut(host).expect("the lookup above found the group");
        owner.unsynced.add(host.lack(), count);
        Arc::make_mut(&mut host.watch_ids).extend_from_slice(&watch_ids);
        // Keeping the later value suppresses at most one periodic progress notification.
        host.last_events = host.last_events.max(last_events);
    }
}

impl Group {
    pub(super) fn item(&self, set: &Arc<EventSet>, revision: i64) -> Events {
        Events {
            set: Arc::clone(set),
            form: self.options.form,
            watch_ids: Arc::clone(&self.watch_ids),
            revision,
            fragment: self.options.fragment,
        }
    }

    /// Returns how far the watchers of the group are from being synced.
    fn lack(&self) -> Lack {
        match self.position {
            Position::Live { .. } => Lack::Until(self.from),
            Position::Behind { .. } | Position::Parked { .. } | Position::Reading { .. } => {
                Lack::Past
            }
        }
    }

    fn key(&self) -> GroupKey {
        let next = match self.position {
            Position::Live { .. } => 0,
            Position::Behind { next } | Position::Parked { next } | Position::Reading { next } => {
                next
            }
        };
        GroupKey { entry: self.entry, options: self.options, from: self.from, next }
    }
}
