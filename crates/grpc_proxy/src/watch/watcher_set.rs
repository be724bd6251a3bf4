//! All identical watchers, in groups that each follow one watch on a member.
//!
//! A group has a position. The watchers of the group have received all events before the position, and the watch
//! delivers all events from the position on. A watcher that has received all events before a revision can therefore
//! move to any group whose position is at most that revision. The watcher then skips the events that it has already
//! received. All merging of groups follows this rule.
//!
//! # Invariants
//!
//! * The position of a group never decreases.
//!
//! # Cost
//!
//! Adding, moving or removing a watcher takes logarithmic time. Only responses visit all watchers of a group.
//!
//! # Not here
//!
//! Communication with members (`feed`, `catching_up`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::{ResponseHeader, WatchResponse};
use quorate_telemetry::metrics::ProxyMetrics;
use tonic::Status;

use super::mailbox::{Mailbox, WatcherChange};
use super::response;
use crate::call::Caller;
use crate::outbox::OutboxMessage;

/// The parameters of a watch. Watchers with equal parameters can share a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WatchParameters {
    pub(super) caller: Caller,
    /// The key, including the namespace prefix.
    pub(super) key: Bytes,
    pub(super) range_end: Bytes,
    pub(super) filters: Vec<i32>,
    pub(super) prev_kv: bool,
}

impl WatchParameters {
    /// Returns the memory of the key, the range and the filters.
    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.range_end.len() + size_of_val(&*self.filters)
    }
}

/// A client's watcher.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) mailbox: Arc<Mailbox>,
    /// A number that is unique on the client's stream, even among ended watchers.
    pub(super) serial: u64,
    /// The watch id used by the client.
    pub(super) watch_id: i64,
    /// The first revision that the watcher has not received. It is 0 until the watch is created, if the watch starts at
    /// the current revision.
    pub(super) next: i64,
    pub(super) wants_progress: bool,
    /// Whether the client was notified that the watch is created.
    pub(super) is_created: bool,
    /// Whether the stream has sent a progress request to this watcher and is waiting for the response.
    pub(super) awaits_progress: bool,
}

/// The watchers that share one watch on a member.
#[derive(Debug)]
struct Group {
    /// The start revision of the watch.
    start: i64,
    /// The group's position; `None` until a member has created the watch.
    position: Option<i64>,
    /// Whether the watch has caught up with the current revision.
    is_current: bool,
    header: Option<ResponseHeader>,
    watchers: BTreeMap<u64, Watcher>,
    follower: Option<Box<dyn Follower>>,
}

/// Follows a group's watch until the follower is dropped.
pub(super) trait Follower: std::fmt::Debug + Send {
    /// Sends a progress request for the watch.
    fn ask_progress(&self);
}

/// All watchers with the same parameters.
#[derive(Debug)]
pub(super) struct WatcherSet {
    pub(super) parameters: WatchParameters,
    metrics: Arc<ProxyMetrics>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: BTreeMap<u64, Group>,
    /// The positions and numbers of the groups that have caught up. Watchers can join only these groups.
    joinable: BTreeSet<(i64, u64)>,
    /// The group of each watcher.
    group_of: BTreeMap<u64, u64>,
    /// Whether the set was removed from the map of all sets, so that it accepts no watchers.
    is_removed: bool,
    next: u64,
    /// This set's current contribution to the gauge of watchers that share a watch.
    coalescing: i64,
}

/// The group that a watcher was added to.
pub(super) enum Added {
    Joined(u64),
    /// A new group, which has no follower yet.
    NewGroup {
        watcher: u64,
        group: u64,
        /// Whether the new group can join another group as soon as a member has created the new group's watch.
        has_joinable_group: bool,
    },
}

impl WatcherSet {
    pub(super) fn new(parameters: WatchParameters, metrics: Arc<ProxyMetrics>) -> Self {
        Self { parameters, metrics, state: Mutex::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().groups.is_empty()
    }

    /// Returns whether the set is empty. An empty set accepts no more watchers.
    pub(super) fn remove_if_empty(&self) -> bool {
        let mut state = self.state.lock();
        state.is_removed = state.groups.is_empty();
        state.is_removed
    }

    /// Adds a watcher. A new watcher has a watch of its own until a member has created it, because the member must
    /// check the token and the user's permission for the range. A returning watcher immediately joins an existing group
    /// if possible. Returns the watcher if the set was removed.
    pub(super) fn add(&self, watcher: Watcher) -> Result<Added, Watcher> {
        let mut state = self.state.lock();
        if state.is_removed {
            return Err(watcher);
        }
        let number = state.number();
        let start = watcher.next;
        let found = if start > 0 { state.joinable_from(start).next() } else { None };
        if let Some(group) = found.filter(|_| watcher.is_created) {
            state.join(group, number, watcher);
            state.update_gauge(&self.metrics);
            return Ok(Added::Joined(number));
        }
        let group = state.number();
        let new_group = Group {
            start,
            position: None,
            is_current: false,
            header: None,
            watchers: BTreeMap::from([(number, watcher)]),
            follower: None,
        };
        state.group_of.insert(number, group);
        state.put(group, new_group);
        state.update_gauge(&self.metrics);
        Ok(Added::NewGroup { watcher: number, group, has_joinable_group: found.is_some() })
    }

    /// Sets the follower of a group.
    pub(super) fn set_follower(&self, group: u64, follower: Box<dyn Follower>) {
        if let Some(group) = self.state.lock().groups.get_mut(&group) {
            if group.awaits_progress() {
                follower.ask_progress();
            }
            group.follower = Some(follower);
        }
    }

    /// Returns the revision at which the group's watch starts, or `None` if the group no longer exists.
    pub(super) fn start(&self, group: u64) -> Option<i64> {
        let state = self.state.lock();
        let group = state.groups.get(&group)?;
        // The start is limited to the latest known revision, because members do not report progress on a stream with a
        // watch that starts in the future. Starting earlier is safe, because watchers skip events that they receive a
        // second time.
        let begun = |position: i64| match group.revision() {
            0 => position,
            known => position.min(known),
        };
        Some(group.position.map_or(group.start, begun))
    }

    /// Returns whether the group's watch has caught up.
    pub(super) fn is_current(&self, group: u64) -> bool {
        self.state.lock().groups.get(&group).is_some_and(|group| group.is_current)
    }

    /// Removes a watcher, and returns the latest header of its group.
    pub(super) fn remove(&self, watcher: u64) -> Option<ResponseHeader> {
        let mut state = self.state.lock();
        let number = state.group_of.remove(&watcher)?;
        let mut group = state.take(number)?;
        group.watchers.remove(&watcher);
        let header = group.header;
        state.put(number, group);
        state.update_gauge(&self.metrics);
        header
    }

    /// Sends a progress request for a watcher's group. Returns a revision before which the watcher has received all
    /// events, or 0 if none is known.
    pub(super) fn ask_progress(&self, watcher: u64) -> i64 {
        let mut state = self.state.lock();
        let State { groups, group_of, .. } = &mut *state;
        let group = group_of.get(&watcher).and_then(|number| groups.get_mut(number));
        let Some(group) = group else { return 0 };
        if let Some(follower) = &group.follower {
            follower.ask_progress();
        }
        let Some(watcher) = group.watchers.get_mut(&watcher) else { return 0 };
        watcher.awaits_progress = true;
        watcher.next
    }

    /// Ends the streams of all watchers of a group.
    pub(super) fn fail(&self, group: u64, status: &Status) {
        let mut state = self.state.lock();
        if let Some(group) = state.take(group) {
            for (number, watcher) in group.watchers {
                state.group_of.remove(&number);
                watcher.mailbox.outbox.end(status.clone());
            }
        }
        state.update_gauge(&self.metrics);
    }

    /// Delivers a response to the watchers of a group. Returns whether the watch is still needed.
    pub(super) fn deliver(&self, number: u64, response: WatchResponse) -> bool {
        let mut state = self.state.lock();
        let Some(mut group) = state.take(number) else { return false };
        if response.header.is_some() {
            group.header.clone_from(&response.header);
        }
        if response.canceled {
            for (number, watcher) in std::mem::take(&mut group.watchers) {
                state.group_of.remove(&number);
                watcher.send_cancelled(&response);
            }
        } else if response.created {
            group.record_created();
        } else if response.events.is_empty() {
            group.record_progress(&response);
        } else {
            for behind in group.deliver_events(response, &self.metrics) {
                state.group_of.remove(&behind);
            }
        }
        state.put(number, group);
        state.coalesce(number);
        state.update_gauge(&self.metrics);
        state.groups.contains_key(&number)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes a group out of the set, so that it can be changed.
    fn take(&mut self, number: u64) -> Option<Group> {
        let group = self.groups.remove(&number)?;
        if let Some(position) = group.joinable_position() {
            self.joinable.remove(&(position, number));
        }
        Some(group)
    }

    /// Puts a group into the set, unless the group has no watchers.
    fn put(&mut self, number: u64, group: Group) {
        if group.watchers.is_empty() {
            return;
        }
        if let Some(position) = group.joinable_position() {
            self.joinable.insert((position, number));
        }
        self.groups.insert(number, group);
    }

    /// Returns the groups that a watcher with this position can join, from the highest to the lowest position.
    fn joinable_from(&self, position: i64) -> impl Iterator<Item = u64> {
        self.joinable.range(..=(position, u64::MAX)).rev().map(|(_, number)| *number)
    }

    /// Adds a watcher to a group.
    fn join(&mut self, number: u64, watcher_number: u64, watcher: Watcher) {
        if let Some(group) = self.groups.get_mut(&number) {
            group.watchers.insert(watcher_number, watcher);
            self.group_of.insert(watcher_number, number);
        }
    }

    /// Merges a group into another group, which has caught up and whose position is at most the position of the merged
    /// group.
    fn coalesce(&mut self, number: u64) {
        let Some(position) = self.groups.get(&number).and_then(|group| group.position) else {
            return;
        };
        let best = self.joinable_from(position).find(|other| *other != number);
        let Some(best) = best else { return };
        let Some(mut joined) = self.take(number) else { return };
        let is_progress_awaited = joined.awaits_progress();
        for (watcher, mut it) in std::mem::take(&mut joined.watchers) {
            it.next = it.next.max(position);
            self.join(best, watcher, it);
        }
        let follower = self.groups.get(&best).and_then(|group| group.follower.as_ref());
        if let Some(follower) = follower.filter(|_| is_progress_awaited) {
            follower.ask_progress();
        }
    }

    fn update_gauge(&mut self, metrics: &ProxyMetrics) {
        // Every group has a first watcher, which does not share the watch of another watcher.
        let now = i64::try_from(self.group_of.len() - self.groups.len()).unwrap_or(i64::MAX);
        metrics.watchers_coalescing.add(now - self.coalescing);
        self.coalescing = now;
    }
}

impl Group {
    fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// Returns the group's position if watchers can join the group.
    fn joinable_position(&self) -> Option<i64> {
        self.position.filter(|_| self.is_current)
    }

    /// Returns whether a watcher waits for progress.
    fn awaits_progress(&self) -> bool {
        self.watchers.values().any(|watcher| watcher.awaits_progress)
    }

    /// Records that the member has created the watch, possibly again, and notifies the watchers.
    fn record_created(&mut self) {
        if self.position.is_none() {
            self.is_current = self.start == 0;
            self.position = Some(if self.start > 0 { self.start } else { self.revision() + 1 });
        }
        for watcher in self.watchers.values_mut() {
            watcher.next = watcher.next.max(self.position.unwrap_or_default());
            watcher.send_created(self.header.as_ref());
        }
    }

    /// Records that all events up to and including the header's revision were delivered, and reports this progress to
    /// the watchers.
    fn record_progress(&mut self, response: &WatchResponse) {
        self.position = self.position.max(Some(self.revision() + 1));
        self.is_current = true;
        let was_asked_for = response.watch_id < 0;
        let header = self.header.as_ref();
        for watcher in self.watchers.values_mut() {
            if was_asked_for {
                if std::mem::take(&mut watcher.awaits_progress) {
                    let header = header.copied();
                    watcher.mailbox.notify(watcher.serial, WatcherChange::Progressed { header });
                }
            } else if watcher.wants_progress {
                // A watcher whose outbox is full misses this notification. It receives the next one if its outbox has
                // space by then.
                watcher.offer(response::progress(header));
            }
        }
    }

    /// Delivers events, and removes the watchers that fall behind. Returns the numbers of these watchers.
    fn deliver_events(&mut self, response: WatchResponse, metrics: &ProxyMetrics) -> Vec<u64> {
        let WatchResponse { header, events, .. } = response;
        let first = events.first().map_or(0, response::revision);
        let after = events.last().map_or(0, response::revision) + 1;
        let everything = response::events(header.as_ref(), events.clone());
        let position = self.position.unwrap_or_default();
        let (mut receiver_count, mut behind) = (0, Vec::new());
        self.watchers.retain(|number, watcher| {
            let shared = if watcher.next <= first {
                everything.clone()
            } else {
                let missing =
                    events.iter().filter(|event| response::revision(event) >= watcher.next);
                let missing: Vec<_> = missing.cloned().collect();
                if missing.is_empty() {
                    return true;
                }
                response::events(header.as_ref(), missing)
            };
            let was_queued = watcher.offer(shared);
            if was_queued {
                receiver_count += 1;
            } else {
                metrics.watchers_behind.inc();
                watcher.fall_behind(position);
                behind.push(*number);
            }
            was_queued
        });
        metrics.events_coalescing.add(u64::saturating_sub(receiver_count, 1));
        self.position = self.position.max(Some(after));
        behind
    }
}

impl Watcher {
    fn send_created(&mut self, header: Option<&ResponseHeader>) {
        if !std::mem::replace(&mut self.is_created, true) {
            let shared = response::created(header);
            self.mailbox.outbox.put(OutboxMessage { watch_id: self.watch_id, shared });
        }
    }

    /// Reports that the watcher has fallen behind. Its group has delivered all events before `position`.
    fn fall_behind(&self, position: i64) {
        let next = self.next.max(position);
        self.mailbox.notify(self.serial, WatcherChange::Behind { next });
    }

    /// Queues a response for the client. Returns false if the response does not fit in the outbox.
    fn offer(&self, shared: Bytes) -> bool {
        self.mailbox.outbox.offer(OutboxMessage { watch_id: self.watch_id, shared })
    }

    fn send_cancelled(&self, response: &WatchResponse) {
        // If the watch was never created, the client receives a single response that is both `created` and `canceled`.
        let is_refused = response.created && !self.is_created;
        let shared = response::encode(WatchResponse {
            created: is_refused,
            watch_id: 0,
            ..response.clone()
        });
        let watch_id = if is_refused { response.watch_id } else { self.watch_id };
        // The notice is sent first, because the client may reuse the id as soon as it receives the response.
        self.mailbox.notify(self.serial, WatcherChange::Cancelled { was_there: !is_refused });
        self.mailbox.outbox.put(OutboxMessage { watch_id, shared });
    }
}

#[cfg(test)]
mod tests;
