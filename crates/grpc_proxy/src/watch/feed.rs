//! Streams that carry many watches: those of groups that have caught up.
//!
//! A feed carries the watches of one caller. Its task opens the stream, creates each watch at its group's
//! position, and delivers the events. If the member is lost, it repeats this at another member. A group has a
//! seat on a feed; dropping the seat cancels the watch.
//!
//! # Bound
//!
//! [`WATCHES_MAX`] on a feed; beyond that another feed is opened. Requests are encoded only when the stream
//! accepts them.
//!
//! # Locks
//!
//! Rooms drop seats while they are locked. Therefore this module never calls a room while it holds the lock
//! of a feed.

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
    Frames, Members, PAUSE, PAUSE_MAX, QUESTION, QUESTION_MAX, cancel_request, create_request,
    is_passing, progress_request, requests, write,
};
use super::room::{Follower, Room};
use super::rooms::Rooms;
use crate::call::Asker;

/// Watches on a feed. The loss of a member, or a progress response, concerns this many watches at once.
const WATCHES_MAX: usize = 1024;

/// Requests are collected up to this size before they are handed to the transport.
const CHUNK_BYTES: usize = 64 << 10;

/// All feeds, by caller.
#[derive(Debug)]
pub(super) struct Feeds {
    members: Arc<Members>,
    rooms: Arc<Rooms>,
    by_asker: Mutex<HashMap<Asker, Vec<Arc<Feed>>>>,
}

#[derive(Debug, Default)]
struct Feed {
    state: Mutex<State>,
    /// Signals that there are requests to send, or that the feed is empty.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The groups on the feed, by the watch id that the member uses.
    seated: BTreeMap<i64, Seated>,
    last_id: i64,
    /// The watches that must be created.
    fresh: BTreeSet<i64>,
    /// The watches whose creation the member has not answered, in the order of the requests.
    unanswered: VecDeque<i64>,
    /// The watches to cancel.
    ended: Vec<i64>,
    is_progress_wanted: bool,
    /// Whether a progress request is unanswered.
    is_progress_due: bool,
}

#[derive(Clone, Debug)]
struct Seated {
    room: Arc<Room>,
    group: u64,
    /// Whether the create request was sent.
    is_begun: bool,
    /// Whether the member has created the watch.
    is_created: bool,
}

/// A group's watch on a feed.
#[derive(Debug)]
pub(super) struct Seat {
    feed: Arc<Feed>,
    id: i64,
}

impl Follower for Seat {
    fn ask_progress(&self) {
        self.feed.state.lock().is_progress_wanted = true;
        self.feed.changed.notify_one();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let left = {
            let mut state = self.feed.state.lock();
            state.fresh.remove(&self.id);
            let left = state.seated.remove(&self.id);
            if left.as_ref().is_some_and(|seated| seated.is_begun) {
                state.ended.push(self.id);
            }
            left
        };
        drop(left);
        self.feed.changed.notify_one();
    }
}

impl Feeds {
    pub(super) fn new(members: Arc<Members>, rooms: Arc<Rooms>) -> Self {
        Self { members, rooms, by_asker: Mutex::default() }
    }

    /// Adds a group to a feed. The feed follows the group's watch until the seat is dropped.
    pub(super) fn seat(self: &Arc<Self>, room: &Arc<Room>, group: u64) -> Seat {
        let asker = &room.wish.asker;
        let seated = Seated { room: Arc::clone(room), group, is_begun: false, is_created: false };
        let mut by_asker = self.by_asker.lock();
        let feeds = by_asker.entry(asker.clone()).or_default();
        let has_room = |feed: &&Arc<Feed>| feed.state.lock().seated.len() < WATCHES_MAX;
        let feed = if let Some(feed) = feeds.iter().find(has_room) {
            Arc::clone(feed)
        } else {
            let feed = Arc::new(Feed::default());
            feeds.push(Arc::clone(&feed));
            tokio::spawn(Arc::clone(self).follow(asker.clone(), Arc::clone(&feed)));
            feed
        };
        let id = feed.state.lock().add(seated);
        feed.changed.notify_one();
        Seat { feed, id }
    }

    /// Removes a feed that is empty. Returns whether it was empty.
    fn take_empty(&self, asker: &Asker, feed: &Arc<Feed>) -> bool {
        let mut by_asker = self.by_asker.lock();
        if !feed.state.lock().seated.is_empty() {
            return false;
        }
        if let Some(feeds) = by_asker.get_mut(asker) {
            feeds.retain(|other| !Arc::ptr_eq(other, feed));
            if feeds.is_empty() {
                by_asker.remove(asker);
            }
        }
        true
    }

    /// Follows all watches of a feed until it is empty.
    async fn follow(self: Arc<Self>, asker: Asker, feed: Arc<Feed>) {
        let mut pause = PAUSE;
        while !self.take_empty(&asker, &feed) {
            feed.state.lock().begin();
            let (frames, body) = requests();
            let mut has_told = false;
            let ended = tokio::select! {
                ended = self.read(&feed, &asker, body, &mut has_told) => ended,
                () = feed.send(frames) => continue,
            };
            if let Err(status) = ended
                && !is_passing(&status, &asker)
            {
                feed.fail(&self.rooms, &status);
                continue;
            }
            if has_told {
                pause = PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn read(
        &self,
        feed: &Feed,
        asker: &Asker,
        body: Body,
        has_told: &mut bool,
    ) -> Result<(), Status> {
        let mut messages = self.members.open(asker, body).await?;
        while let Some(response) = self.members.next(asker, &mut messages).await? {
            *has_told = true;
            feed.deliver(&self.rooms, response);
        }
        Ok(())
    }
}

impl State {
    fn add(&mut self, seated: Seated) -> i64 {
        self.last_id += 1;
        self.seated.insert(self.last_id, seated);
        self.fresh.insert(self.last_id);
        self.last_id
    }

    /// Resets the state for a new stream, on which no request was sent.
    fn begin(&mut self) {
        self.fresh = self.seated.keys().copied().collect();
        self.unanswered.clear();
        self.ended.clear();
        self.is_progress_wanted |= std::mem::take(&mut self.is_progress_due);
        for seated in self.seated.values_mut() {
            (seated.is_begun, seated.is_created) = (false, false);
        }
    }

    /// Returns the group that a response is for, and records whether its watch is created.
    fn answered(&mut self, response: &WatchResponse) -> Option<&Seated> {
        let mut id = response.watch_id;
        if response.created {
            // The response to a refused watch has no id, but responses come in the order of the requests.
            let place = self.unanswered.iter().position(|asked| id < 0 || *asked == id)?;
            id = self.unanswered.remove(place)?;
        }
        let seated = self.seated.get_mut(&id)?;
        seated.is_created |= response.created;
        Some(seated)
    }
}

impl Feed {
    /// Encodes the next requests to the member, up to a chunk.
    fn requests(&self) -> BytesMut {
        let mut chunk = BytesMut::new();
        while chunk.len() < CHUNK_BYTES {
            let fresh = {
                let mut state = self.state.lock();
                let id = state.fresh.pop_first();
                id.and_then(|id| {
                    let seated = state.seated.get_mut(&id)?;
                    seated.is_begun = true;
                    let place = (id, Arc::clone(&seated.room), seated.group);
                    state.unanswered.push_back(id);
                    Some(place)
                })
            };
            let Some((id, room, group)) = fresh else { break };
            // This also creates the watch of a group that is already gone: the cancel request follows.
            let start = room.start(group).unwrap_or_default();
            write(&mut chunk, create_request(&room.wish, id, start));
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

    /// Delivers a response to its groups. A group whose watch the member has cancelled leaves its room, which
    /// is removed if it is empty.
    fn deliver(&self, rooms: &Rooms, response: WatchResponse) {
        let place = |seated: &Seated| (Arc::clone(&seated.room), seated.group);
        let is_about_all = response.watch_id < 0 && !response.created;
        let told: Vec<(Arc<Room>, u64)> = {
            let mut state = self.state.lock();
            if is_about_all {
                state.is_progress_due = false;
                state.seated.values().filter(|seated| seated.is_created).map(place).collect()
            } else {
                state.answered(&response).map(place).into_iter().collect()
            }
        };
        // A group that no longer wants its watch has dropped its seat.
        let tell = |(room, group): &(Arc<Room>, u64), response| {
            if !room.deliver(*group, response) {
                rooms.tidy(room);
            }
        };
        let Some((last, others)) = told.split_last() else { return };
        others.iter().for_each(|place| tell(place, response.clone()));
        tell(last, response);
    }

    /// Ends all groups and the streams of their watchers.
    fn fail(&self, rooms: &Rooms, status: &Status) {
        let all: Vec<Seated> = self.state.lock().seated.values().cloned().collect();
        for seated in all {
            seated.room.fail(seated.group, status);
            rooms.tidy(&seated.room);
        }
    }

    /// Sends requests until the feed is empty.
    async fn send(&self, frames: Frames) {
        let mut question = QUESTION;
        loop {
            let chunk = self.requests();
            if !chunk.is_empty() {
                if frames.send(Ok(Frame::data(chunk.freeze()))).await.is_err() {
                    // The reading half reports how the stream ended.
                    std::future::pending::<()>().await;
                }
                continue;
            }
            let (is_empty, is_progress_due) = {
                let state = self.state.lock();
                (state.seated.is_empty(), state.is_progress_due)
            };
            if is_empty {
                return;
            }
            tokio::select! {
                () = self.changed.notified() => question = QUESTION,
                () = sleep(question), if is_progress_due => {
                    self.state.lock().is_progress_wanted = true;
                    question = (question * 2).min(QUESTION_MAX);
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
    use super::super::room::{Entered, Watcher, Wish};
    use super::*;
    use crate::outbox::Outbox;

    fn wish() -> Wish {
        Wish {
            asker: Asker::default(),
            key: "a".into(),
            range_end: "".into(),
            filters: Vec::new(),
            prev_kv: false,
        }
    }

    fn metrics() -> Arc<ProxyMetrics> {
        Arc::new(ProxyMetrics::new(&[]))
    }

    fn seat_of(feed: &Arc<Feed>, room: Arc<Room>, group: u64) -> Seat {
        let seated = Seated { room, group, is_begun: false, is_created: false };
        let id = feed.state.lock().add(seated);
        Seat { feed: Arc::clone(feed), id }
    }

    fn seat(feed: &Arc<Feed>) -> Seat {
        seat_of(feed, Arc::new(Room::new(wish(), metrics())), 1)
    }

    /// Returns a short form of the requests to the member.
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
    fn dropped_seats_cancel_their_watches_and_a_new_stream_creates_all_others() {
        let feed = Arc::new(Feed::default());
        let [first, second, third] = std::array::from_fn(|_| seat(&feed));
        drop(second);
        assert_eq!(asked(&feed), ["create 1", "create 3"], "one has left before it was asked for");
        third.ask_progress();
        drop(first);
        assert_eq!(asked(&feed), ["progress", "cancel 1"]);
        assert!(asked(&feed).is_empty());
        let fourth = seat(&feed);
        feed.state.lock().begin();
        assert_eq!(asked(&feed), ["create 3", "create 4", "progress"], "it was not answered");
        drop((third, fourth));
        assert_eq!(asked(&feed), ["cancel 3", "cancel 4"]);
        assert!(feed.state.lock().seated.is_empty());
    }

    #[test]
    fn a_refused_watch_leaves_no_state() {
        let (feed, rooms) = (Arc::new(Feed::default()), Rooms::new(metrics()));
        let watcher = Watcher {
            mailbox: Arc::new(Mailbox::new(Arc::new(Outbox::default()))),
            serial: 0,
            watch_id: 0,
            next: 0,
            wants_progress: false,
            is_created: false,
            awaits_progress: false,
        };
        let (room, entered) = rooms.enter(wish(), watcher);
        let Entered::Alone { group, .. } = entered else { panic!("nobody was there") };
        room.followed_by(group, Box::new(seat_of(&feed, Arc::clone(&room), group)));
        assert_eq!(asked(&feed), ["create 1"]);
        feed.deliver(&rooms, created(-1));
        assert!(rooms.is_empty());
        assert!(feed.state.lock().seated.is_empty());
    }

    #[test]
    fn a_refusal_belongs_to_the_first_unanswered_create_request() {
        let feed = Arc::new(Feed::default());
        let seats: [Seat; 4] = std::array::from_fn(|_| seat(&feed));
        asked(&feed);
        let [first, second, third, fourth] = seats;
        drop(second);
        let mut state = feed.state.lock();
        assert!(state.answered(&created(1)).is_some());
        assert!(state.answered(&created(-1)).is_none(), "it was for the one that has left");
        assert!(state.answered(&created(-1)).is_some());
        assert!(state.answered(&created(4)).is_some());
        assert!(state.unanswered.is_empty());
        let is_created = state.seated.iter().map(|(id, seated)| (*id, seated.is_created));
        assert_eq!(is_created.collect::<Vec<_>>(), [(1, true), (3, true), (4, true)]);
        drop(state);
        drop((first, third, fourth));
    }
}
