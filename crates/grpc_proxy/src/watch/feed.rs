//! Streams that carry many watches of a member: those of groups that have caught up.
//!
//! A feed has the watches of one asker. Its task opens the stream, begins each watch where its group is, hands on what the member
//! tells, and does the same at another member when that one is lost. A group has a seat on a feed; when it lets go of
//! it, its watch is cancelled.
//!
//! # Bound
//!
//! [`WATCHES_MAX`] on a feed; with more there is another one. What is to be sent is made when there is room for it.
//!
//! # Locks
//!
//! Rooms let go of seats while they are locked. So nothing here asks a room while it has locked a feed.

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

/// Watches on a feed. A member that is lost, or an answer how far all are, is about so many.
const WATCHES_MAX: usize = 1024;

/// Requests are gathered up to this before they are handed to the transport.
const CHUNK_BYTES: usize = 64 << 10;

/// All feeds, by who asks.
#[derive(Debug)]
pub(super) struct Feeds {
    members: Arc<Members>,
    rooms: Arc<Rooms>,
    by_asker: Mutex<HashMap<Asker, Vec<Arc<Feed>>>>,
}

#[derive(Debug, Default)]
struct Feed {
    state: Mutex<State>,
    /// There is something to send, or nobody is here any more.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By the ids that members know their watches by.
    seated: BTreeMap<i64, Seated>,
    last_id: i64,
    /// Whose watches are to be begun.
    fresh: BTreeSet<i64>,
    /// Whose watches the member has been asked for and has not answered, in that order.
    unanswered: VecDeque<i64>,
    /// Watches that nobody wants any more.
    ended: Vec<i64>,
    is_progress_wanted: bool,
    /// Whether the member has been asked and has not answered.
    is_progress_due: bool,
}

#[derive(Clone, Debug)]
struct Seated {
    room: Arc<Room>,
    group: u64,
    /// Whether the member has been told of the watch.
    is_begun: bool,
    /// Whether it has answered.
    is_created: bool,
}

/// A group's place on a feed.
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

    /// Has a group followed on a feed, as long as its seat is there.
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

    /// Takes a feed away on which nobody is; false if somebody is.
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

    /// Follows all watches of a feed, as long as there are any.
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

    /// On a new stream nothing has been asked yet.
    fn begin(&mut self) {
        self.fresh = self.seated.keys().copied().collect();
        self.unanswered.clear();
        self.ended.clear();
        self.is_progress_wanted |= std::mem::take(&mut self.is_progress_due);
        for seated in self.seated.values_mut() {
            (seated.is_begun, seated.is_created) = (false, false);
        }
    }

    /// Whom an answer is for, and what it says of the watch.
    fn answered(&mut self, response: &WatchResponse) -> Option<&Seated> {
        let mut id = response.watch_id;
        if response.created {
            // A refusal has no id. But answers come in the order of what was asked.
            let place = self.unanswered.iter().position(|asked| id < 0 || *asked == id)?;
            id = self.unanswered.remove(place)?;
        }
        let seated = self.seated.get_mut(&id)?;
        seated.is_created |= response.created;
        Some(seated)
    }
}

impl Feed {
    /// What the member is to be asked next, up to a chunk.
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
            // Also for a group that has gone meanwhile: its end comes behind it.
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

    /// Tells groups what is for them. One whose watch a member has ended leaves its room, which may be empty then.
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
        // Who does not want its watch any more has left its seat.
        let tell = |(room, group): &(Arc<Room>, u64), response| {
            if !room.deliver(*group, response) {
                rooms.tidy(room);
            }
        };
        let Some((last, others)) = told.split_last() else { return };
        others.iter().for_each(|place| tell(place, response.clone()));
        tell(last, response);
    }

    /// Ends all groups, and their watchers' streams.
    fn fail(&self, rooms: &Rooms, status: &Status) {
        let all: Vec<Seated> = self.state.lock().seated.values().cloned().collect();
        for seated in all {
            seated.room.fail(seated.group, status);
            rooms.tidy(&seated.room);
        }
    }

    /// Sends what is to be asked, until nobody is there for whom to ask.
    async fn send(&self, frames: Frames) {
        let mut question = QUESTION;
        loop {
            let chunk = self.requests();
            if !chunk.is_empty() {
                if frames.send(Ok(Frame::data(chunk.freeze()))).await.is_err() {
                    // How the stream has ended the other direction tells.
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

    /// What the member is asked, in short.
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
    fn seats_that_are_left_end_their_watches_and_on_a_new_stream_all_are_begun() {
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
    fn nothing_is_left_of_a_watch_that_a_member_refuses() {
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
    fn a_refusal_is_for_the_first_that_waits_for_an_answer() {
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
