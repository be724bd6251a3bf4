//! Streams with many watches, for groups that have caught up.
//!
//! All watches on a feed belong to the same caller. The feed's task opens the stream, creates each watch at its group's
//! position, and delivers the events. If the connection to the member is lost, the task repeats these steps on another
//! member. Each group holds a [`FeedWatch`]. Dropping it cancels the watch.
//!
//! # Bound
//!
//! A feed has at most [`WATCHES_MAX`] watches. Beyond that limit, another feed is opened. Requests are encoded only
//! when the stream accepts them.
//!
//! # Locks
//!
//! A watcher set drops [`FeedWatch`]es while the set itself is locked, and each drop locks the feed. Therefore this
//! module never calls a watcher set while it holds the lock of a feed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::BytesMut;
use http_body::Frame;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::WatchResponse;
use tokio::sync::Notify;
use tokio::time::sleep;
use tonic::Status;
use tonic::body::Body;

use super::member::{
    Frames, Members, PAUSE, PAUSE_MAX, PROGRESS_INTERVAL, PROGRESS_INTERVAL_MAX, cancel_request,
    create_request, is_retryable, progress_request, requests, write,
};
use super::watcher_set::{Follower, WatcherSet};
use super::watcher_sets::WatcherSets;
use crate::call::Caller;

/// Maximum number of watches on a feed. The loss of a member, or a progress response, affects up to this many watches
/// at a time.
const WATCHES_MAX: usize = 1024;

/// Number of bytes of requests that are collected before they are passed to the transport.
const CHUNK_BYTES: usize = 64 << 10;

/// All feeds, by caller.
#[derive(Debug)]
pub(super) struct Feeds {
    members: Arc<Members>,
    sets: Arc<WatcherSets>,
    by_caller: Mutex<HashMap<Caller, Vec<Arc<Feed>>>>,
}

#[derive(Debug, Default)]
struct Feed {
    state: Mutex<State>,
    /// Signals that there are requests to send, or that the feed is empty.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The groups on the feed, by the id of their watch on the member.
    watches: BTreeMap<i64, WatchState>,
    last_id: i64,
    /// The watches still to be created on the member.
    fresh: BTreeSet<i64>,
    /// The watches whose create requests the member has not answered yet, in request order.
    unanswered: VecDeque<i64>,
    /// The watches to cancel.
    ended: Vec<i64>,
    is_progress_wanted: bool,
    /// Whether a progress request was sent and has not been answered yet.
    is_progress_due: bool,
}

#[derive(Clone, Debug)]
struct WatchState {
    set: Arc<WatcherSet>,
    group: u64,
    /// Whether the create request was sent.
    is_begun: bool,
    /// Whether the member has created the watch.
    is_created: bool,
}

/// A group's watch on a feed.
#[derive(Debug)]
pub(super) struct FeedWatch {
    feed: Arc<Feed>,
    id: i64,
}

impl Follower for FeedWatch {
    fn ask_progress(&self) {
        self.feed.state.lock().is_progress_wanted = true;
        self.feed.changed.notify_one();
    }
}

impl Drop for FeedWatch {
    fn drop(&mut self) {
        let left = {
            let mut state = self.feed.state.lock();
            state.fresh.remove(&self.id);
            let left = state.watches.remove(&self.id);
            if left.as_ref().is_some_and(|watch| watch.is_begun) {
                state.ended.push(self.id);
            }
            left
        };
        drop(left);
        self.feed.changed.notify_one();
    }
}

impl Feeds {
    pub(super) fn new(members: Arc<Members>, sets: Arc<WatcherSets>) -> Self {
        Self { members, sets, by_caller: Mutex::default() }
    }

    /// Adds a group to a feed. The feed follows the group's watch until the returned value is dropped.
    pub(super) fn add(self: &Arc<Self>, set: &Arc<WatcherSet>, group: u64) -> FeedWatch {
        let caller = &set.parameters.caller;
        let watch = WatchState { set: Arc::clone(set), group, is_begun: false, is_created: false };
        let mut by_caller = self.by_caller.lock();
        let feeds = by_caller.entry(caller.clone()).or_default();
        let has_space = |feed: &&Arc<Feed>| feed.state.lock().watches.len() < WATCHES_MAX;
        let feed = if let Some(feed) = feeds.iter().find(has_space) {
            Arc::clone(feed)
        } else {
            let feed = Arc::new(Feed::default());
            feeds.push(Arc::clone(&feed));
            tokio::spawn(Arc::clone(self).follow(caller.clone(), Arc::clone(&feed)));
            feed
        };
        let id = feed.state.lock().add(watch);
        feed.changed.notify_one();
        FeedWatch { feed, id }
    }

    /// Removes a feed if it is empty, and returns whether it was empty.
    fn take_empty(&self, caller: &Caller, feed: &Arc<Feed>) -> bool {
        let mut by_caller = self.by_caller.lock();
        if !feed.state.lock().watches.is_empty() {
            return false;
        }
        if let Some(feeds) = by_caller.get_mut(caller) {
            feeds.retain(|other| !Arc::ptr_eq(other, feed));
            if feeds.is_empty() {
                by_caller.remove(caller);
            }
        }
        true
    }

    /// Follows all watches of a feed until the feed is empty.
    async fn follow(self: Arc<Self>, caller: Caller, feed: Arc<Feed>) {
        let mut pause = PAUSE;
        while !self.take_empty(&caller, &feed) {
            feed.state.lock().begin();
            let (frames, body) = requests();
            let mut has_received = false;
            let ended = tokio::select! {
                ended = self.read(&feed, &caller, body, &mut has_received) => ended,
                () = feed.send(frames) => continue,
            };
            if let Err(status) = ended
                && !is_retryable(&status, &caller)
            {
                feed.fail(&self.sets, &status);
                continue;
            }
            if has_received {
                pause = PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn read(
        &self,
        feed: &Feed,
        caller: &Caller,
        body: Body,
        has_received: &mut bool,
    ) -> Result<(), Status> {
        let mut messages = self.members.open(caller, body).await?;
        while let Some(response) = self.members.next(caller, &mut messages).await? {
            *has_received = true;
            feed.deliver(&self.sets, response);
        }
        Ok(())
    }
}

impl State {
    fn add(&mut self, watch: WatchState) -> i64 {
        self.last_id += 1;
        self.watches.insert(self.last_id, watch);
        self.fresh.insert(self.last_id);
        self.last_id
    }

    /// Resets the state for a new stream, on which no request has been sent yet.
    fn begin(&mut self) {
        self.fresh = self.watches.keys().copied().collect();
        self.unanswered.clear();
        self.ended.clear();
        self.is_progress_wanted |= std::mem::take(&mut self.is_progress_due);
        for watch in self.watches.values_mut() {
            (watch.is_begun, watch.is_created) = (false, false);
        }
    }

    /// Returns the group to which a response belongs, and records whether its watch is created.
    fn record_answer(&mut self, response: &WatchResponse) -> Option<&WatchState> {
        let mut id = response.watch_id;
        if response.created {
            // The response to a refused watch has no id. It belongs to the first unanswered request, because responses
            // arrive in request order.
            let number = self.unanswered.iter().position(|asked| id < 0 || *asked == id)?;
            id = self.unanswered.remove(number)?;
        }
        let watch = self.watches.get_mut(&id)?;
        watch.is_created |= response.created;
        Some(watch)
    }
}

impl Feed {
    /// Encodes the next requests to the member, up to the chunk size.
    fn requests(&self) -> BytesMut {
        let mut chunk = BytesMut::new();
        while chunk.len() < CHUNK_BYTES {
            let fresh = {
                let mut state = self.state.lock();
                let id = state.fresh.pop_first();
                id.and_then(|id| {
                    let watch = state.watches.get_mut(&id)?;
                    watch.is_begun = true;
                    let number = (id, Arc::clone(&watch.set), watch.group);
                    state.unanswered.push_back(id);
                    Some(number)
                })
            };
            let Some((id, set, group)) = fresh else { break };
            // Even if the group no longer exists, its watch is created, because the cancel request that follows refers
            // to it.
            let start = set.start(group).unwrap_or_default();
            write(&mut chunk, create_request(&set.parameters, id, start));
        }
        let mut state = self.state.lock();
        if state.fresh.is_empty() && std::mem::take(&mut state.is_progress_wanted) {
            state.is_progress_due = true;
            write(&mut chunk, progress_request());
        }
        for id in state.ended.drain(..) {
            write(&mut chunk, cancel_request(id));
        }
        chunk
    }

    /// Delivers a response to its groups. If the member cancelled a group's watch, the group leaves its watcher set,
    /// and the set is removed if it is empty.
    fn deliver(&self, sets: &WatcherSets, response: WatchResponse) {
        let number = |watch: &WatchState| (Arc::clone(&watch.set), watch.group);
        let is_about_all = response.watch_id < 0 && !response.created;
        let groups: Vec<(Arc<WatcherSet>, u64)> = {
            let mut state = self.state.lock();
            if is_about_all {
                state.is_progress_due = false;
                state.watches.values().filter(|watch| watch.is_created).map(number).collect()
            } else {
                state.record_answer(&response).map(number).into_iter().collect()
            }
        };
        // If a group no longer wants its watch, the watcher set has already dropped the group's `FeedWatch`.
        let deliver = |(set, group): &(Arc<WatcherSet>, u64), response| {
            if !set.deliver(*group, response) {
                sets.remove_if_empty(set);
            }
        };
        let Some((last, others)) = groups.split_last() else { return };
        others.iter().for_each(|number| deliver(number, response.clone()));
        deliver(last, response);
    }

    /// Ends all groups on the feed and the streams of their watchers.
    fn fail(&self, sets: &WatcherSets, status: &Status) {
        let all: Vec<WatchState> = self.state.lock().watches.values().cloned().collect();
        for watch in all {
            watch.set.fail(watch.group, status);
            sets.remove_if_empty(&watch.set);
        }
    }

    /// Sends requests until the feed is empty.
    async fn send(&self, frames: Frames) {
        let mut interval = PROGRESS_INTERVAL;
        loop {
            let chunk = self.requests();
            if !chunk.is_empty() {
                if frames.send(Ok(Frame::data(chunk.freeze()))).await.is_err() {
                    // The reading half returns the reason why the stream ended.
                    std::future::pending::<()>().await;
                }
                continue;
            }
            let (is_empty, is_progress_due) = {
                let state = self.state.lock();
                (state.watches.is_empty(), state.is_progress_due)
            };
            if is_empty {
                return;
            }
            tokio::select! {
                () = self.changed.notified() => interval = PROGRESS_INTERVAL,
                () = sleep(interval), if is_progress_due => {
                    self.state.lock().is_progress_wanted = true;
                    interval = (interval * 2).min(PROGRESS_INTERVAL_MAX);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use quorate_api::etcdserverpb::WatchRequest;
    use quorate_api::etcdserverpb::watch_request::RequestUnion;
    use quorate_telemetry::metrics::ProxyMetrics;

    use super::super::mailbox::Mailbox;
    use super::super::watcher_set::{Added, WatchParameters, Watcher};
    use super::*;
    use crate::outbox::Outbox;

    fn parameters() -> WatchParameters {
        WatchParameters {
            caller: Caller::default(),
            key: "a".into(),
            range_end: "".into(),
            filters: Vec::new(),
            prev_kv: false,
        }
    }

    fn metrics() -> Arc<ProxyMetrics> {
        Arc::new(ProxyMetrics::new(&[]))
    }

    fn watch_of(feed: &Arc<Feed>, set: Arc<WatcherSet>, group: u64) -> FeedWatch {
        let watch = WatchState { set, group, is_begun: false, is_created: false };
        let id = feed.state.lock().add(watch);
        FeedWatch { feed: Arc::clone(feed), id }
    }

    fn watch(feed: &Arc<Feed>) -> FeedWatch {
        watch_of(feed, Arc::new(WatcherSet::new(parameters(), metrics())), 1)
    }

    /// Returns the next requests to the member in a short text form.
    fn asked(feed: &Feed) -> Vec<String> {
        let chunk = feed.requests();
        let mut rest = &chunk[..];
        let mut asked = Vec::new();
        while let Some((head, after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let request = WatchRequest::decode(&after[..length]).unwrap();
            rest = &after[length..];
            asked.push(match request.request_union.unwrap() {
                RequestUnion::CreateRequest(create) => format!("create {}", create.watch_id),
                RequestUnion::CancelRequest(cancel) => format!("cancel {}", cancel.watch_id),
                RequestUnion::ProgressRequest(_) => "progress".to_owned(),
            });
        }
        asked
    }

    fn created(watch_id: i64) -> WatchResponse {
        let canceled = watch_id < 0;
        WatchResponse { watch_id, created: true, canceled, ..WatchResponse::default() }
    }

    #[test]
    fn a_dropped_watch_is_cancelled_upstream() {
        let feed = Arc::new(Feed::default());
        let [first, second, third] = std::array::from_fn(|_| watch(&feed));
        drop(second);
        assert_eq!(
            asked(&feed),
            ["create 1", "create 3"],
            "the second watch was dropped before its request"
        );
        third.ask_progress();
        drop(first);
        assert_eq!(asked(&feed), ["progress", "cancel 1"]);
        assert!(asked(&feed).is_empty());
        drop(third);
        assert_eq!(asked(&feed), ["cancel 3"]);
        assert!(feed.state.lock().watches.is_empty());
    }

    #[test]
    fn remaining_watches_are_created_again_on_a_new_stream() {
        let feed = Arc::new(Feed::default());
        let [first, second] = std::array::from_fn(|_| watch(&feed));
        assert_eq!(asked(&feed), ["create 1", "create 2"]);
        second.ask_progress();
        drop(first);
        assert_eq!(asked(&feed), ["progress", "cancel 1"]);
        let third = watch(&feed);
        feed.state.lock().begin();
        assert_eq!(
            asked(&feed),
            ["create 2", "create 3", "progress"],
            "the unanswered progress request was not sent again"
        );
        drop((second, third));
        assert_eq!(asked(&feed), ["cancel 2", "cancel 3"]);
        assert!(feed.state.lock().watches.is_empty());
    }

    #[test]
    fn a_refused_watch_leaves_no_state() {
        let (feed, sets) = (Arc::new(Feed::default()), WatcherSets::new(metrics()));
        let watcher = Watcher {
            mailbox: Arc::new(Mailbox::new(Arc::new(Outbox::default()))),
            serial: 0,
            watch_id: 0,
            next: 0,
            wants_progress: false,
            is_created: false,
            awaits_progress: false,
        };
        let (set, added) = sets.add(&parameters(), watcher);
        let Added::NewGroup { group, .. } = added else {
            panic!("the first watcher did not create a group")
        };
        set.set_follower(group, Box::new(watch_of(&feed, Arc::clone(&set), group)));
        assert_eq!(asked(&feed), ["create 1"]);
        feed.deliver(&sets, created(-1));
        assert!(sets.is_empty());
        assert!(feed.state.lock().watches.is_empty());
    }

    #[test]
    fn a_refusal_is_matched_to_the_first_unanswered_create_request() {
        let feed = Arc::new(Feed::default());
        let watches: [FeedWatch; 4] = std::array::from_fn(|_| watch(&feed));
        asked(&feed);
        let [first, second, third, fourth] = watches;
        drop(second);
        let mut state = feed.state.lock();
        assert!(state.record_answer(&created(1)).is_some());
        assert!(state.record_answer(&created(-1)).is_none(), "the refused watch was dropped");
        assert!(state.record_answer(&created(-1)).is_some());
        assert!(state.record_answer(&created(4)).is_some());
        assert!(state.unanswered.is_empty());
        let is_created = state.watches.iter().map(|(id, watch)| (*id, watch.is_created));
        assert_eq!(is_created.collect::<Vec<_>>(), [(1, true), (3, true), (4, true)]);
        drop(state);
        drop((first, third, fourth));
    }
}
