//! All rooms, by the watch parameters of their watchers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_telemetry::metrics::ProxyMetrics;

use super::room::{Entered, Room, Watcher, Wish};

/// The rooms of the proxy.
#[derive(Debug)]
pub(super) struct Rooms {
    metrics: Arc<ProxyMetrics>,
    rooms: Mutex<HashMap<Wish, Arc<Room>>>,
}

impl Rooms {
    pub(super) fn new(metrics: Arc<ProxyMetrics>) -> Self {
        Self { metrics, rooms: Mutex::default() }
    }

    /// Adds a watcher to the room with its parameters.
    pub(super) fn enter(&self, wish: Wish, watcher: Watcher) -> (Arc<Room>, Entered) {
        let mut rooms = self.rooms.lock();
        let room = match rooms.entry(wish) {
            Entry::Occupied(found) => Arc::clone(found.get()),
            Entry::Vacant(vacant) => {
                let room = Room::new(vacant.key().clone(), Arc::clone(&self.metrics));
                Arc::clone(vacant.insert(Arc::new(room)))
            }
        };
        // The watcher is added while the map is locked, because an empty room may be removed at any time.
        let entered = room.enter(watcher);
        (room, entered)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.rooms.lock().is_empty()
    }

    /// Removes the room if it is empty.
    pub(super) fn tidy(&self, room: &Arc<Room>) {
        let mut rooms = self.rooms.lock();
        let is_it = rooms.get(&room.wish).is_some_and(|found| Arc::ptr_eq(found, room));
        if is_it && room.is_empty() {
            rooms.remove(&room.wish);
        }
    }
}
