//! The entry point for watchers: adds a watcher to the room of identical watchers, and opens a watch at a
//! member if the room has none to share.

use std::sync::Arc;

use quorate_telemetry::metrics::ProxyMetrics;

use super::catching_up::{self, CatchingUp};
use super::feed::Feeds;
use super::member::Members;
use super::room::{Entered, Follower, Room, Watcher, Wish};
use super::rooms::Rooms;
use crate::leasing::Latest;
use crate::namespace::Namespace;
use crate::upstream::Upstream;

/// Adds watchers to rooms.
#[derive(Debug)]
pub(crate) struct Hub {
    members: Arc<Members>,
    rooms: Arc<Rooms>,
    feeds: Arc<Feeds>,
}

impl Hub {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        metrics: Arc<ProxyMetrics>,
        namespace: Option<Namespace>,
        latest: Option<Arc<Latest>>,
    ) -> Self {
        let members = Arc::new(Members { upstream, namespace, latest });
        let rooms = Arc::new(Rooms::new(metrics));
        let feeds = Arc::new(Feeds::new(Arc::clone(&members), Arc::clone(&rooms)));
        Self { members, rooms, feeds }
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        self.members.namespace.as_ref()
    }

    /// Adds a watcher.
    pub(super) fn enter(&self, wish: Wish, watcher: Watcher) -> (Arc<Room>, u64) {
        let begins_now = watcher.next == 0;
        match self.rooms.enter(wish, watcher) {
            (room, Entered::Joined(watcher)) => (room, watcher),
            (room, Entered::Alone { watcher, group, has_company }) => {
                let follower: Box<dyn Follower> = if begins_now || has_company {
                    Box::new(self.feeds.seat(&room, group))
                } else {
                    let catching_up = CatchingUp {
                        members: Arc::clone(&self.members),
                        rooms: Arc::clone(&self.rooms),
                        feeds: Arc::clone(&self.feeds),
                        room: Arc::clone(&room),
                        group,
                    };
                    Box::new(catching_up::follow(catching_up))
                };
                room.followed_by(group, follower);
                (room, watcher)
            }
        }
    }

    /// Removes the room if it is empty.
    pub(super) fn tidy(&self, room: &Arc<Room>) {
        self.rooms.tidy(room);
    }
}
