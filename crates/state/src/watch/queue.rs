//! The queue of responses of one stream.
//!
//! The applier and the catch-up pass add items, and the stream's task removes them. The number and the bytes of queued
//! events are bounded. If there is no room for an event, its watchers fall behind and read history later. Replies to
//! the client's own requests are always accepted, but the stream's task stops reading requests while many replies are
//! queued ([`CONTROL_BACKLOG_MAX`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::events::{EventSet, Form};
use super::held::HeldBytes;
use super::limits::QueueLimits;

/// The number of queued replies at which the stream's task stops reading requests.
pub(super) const CONTROL_BACKLOG_MAX: usize = 128;

/// The bytes counted for an item in addition to its events.
const ITEM_BYTES: usize = 128;

/// One item of the queue.
#[derive(Debug)]
pub(super) enum Item {
    Events(Events),
    Created { watch_id: i64, revision: i64 },
    Rejected { reason: Box<str>, revision: i64 },
    Canceled { watch_id: i64, revision: i64, compact_revision: i64 },
    Progress { watch_id: i64, revision: i64 },
}

/// Events for one or more watchers of the stream.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) set: Arc<EventSet>,
    pub(super) form: Form,
    pub(super) watch_ids: Arc<Vec<i64>>,
    pub(super) revision: i64,
    /// Whether large responses are split into fragments.
    pub(super) fragment: bool,
}

impl Events {
    fn count(&self) -> usize {
        self.set.len() * self.watch_ids.len()
    }
}

/// The queue has no room for events.
#[derive(Debug)]
pub(super) struct Full;

/// An item removed from the queue, and whether its removal made room for parked watchers.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) item: Item,
    pub(super) room_again: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    limits: QueueLimits,
    /// The held bytes of all streams.
    held: Arc<HeldBytes>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    /// The number of events. An event counts once for each watcher that receives it.
    event_count: usize,
    control_count: usize,
    waker: Option<Waker>,
    /// Whether events were refused for lack of room, and the stream's watchers have not been
    /// unparked since.
    refused: bool,
}

impl Queue {
    pub(super) fn new(limits: QueueLimits, held: Arc<HeldBytes>) -> Self {
        Self { limits, held, state: Mutex::default() }
    }

    /// Adds events if there is room. The caller wakes the returned waker, if any.
    pub(super) fn push_events(&self, events: Events) -> Result<Option<Waker>, Full> {
        let mut state = self.state.lock();
        let bytes = cost(&events);
        let event_items = state.items.len() - state.control_count;
        let room = event_items == 0
            || (event_items < self.limits.count_max
                && state.bytes + bytes <= self.limits.bytes_max
                && !self.held.is_full());
        if !room {
            state.refused = true;
            return Err(Full);
        }
        state.bytes += bytes;
        state.event_count += events.count();
        state.items.push_back(Item::Events(events));
        Ok(state.waker.take())
    }

    /// Returns whether parked watchers may read history again. If not, [`Taken::room_again`] later reports that there
    /// is room again.
    pub(super) fn has_room(&self) -> bool {
        let mut state = self.state.lock();
        let room = self.takes_history(&state);
        state.refused |= !room;
        room
    }

    /// Adds a reply. The caller wakes the returned waker, if any.
    pub(super) fn push_control(&self, item: Item) -> Option<Waker> {
        let mut state = self.state.lock();
        state.control_count += 1;
        state.items.push_back(item);
        state.waker.take()
    }

    /// Returns the number of queued events before filtering. An event counts once for each watcher that receives it.
    pub(super) fn event_count(&self) -> usize {
        self.state.lock().event_count
    }

    /// Returns the number of queued replies.
    pub(super) fn control_count(&self) -> usize {
        self.state.lock().control_count
    }

    /// Returns whether the queue is too full for progress responses.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.state.lock();
        state.items.len() >= self.limits.count_max
    }

    pub(super) fn poll_take(&self, cx: &Context<'_>) -> Poll<Taken> {
        let mut state = self.state.lock();
        let Some(item) = state.items.pop_front() else {
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => state.waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        };
        match &item {
            Item::Events(events) => {
                state.bytes -= cost(events);
                state.event_count -= events.count();
            }
            Item::Created { .. }
            | Item::Rejected { .. }
            | Item::Canceled { .. }
            | Item::Progress { .. } => state.control_count -= 1,
        }
        assert!(
            state.control_count <= state.items.len(),
            "replies are counted while they are queued: otherwise events would be refused forever"
        );
        assert!(
            !state.items.is_empty() || (state.bytes, state.event_count) == (0, 0),
            "an empty queue has a byte count of zero: otherwise it would refuse events forever"
        );
        let room_again = state.refused && self.takes_history(&state);
        if room_again {
            state.refused = false;
        }
        Poll::Ready(Taken { item, room_again })
    }

    /// Returns whether parked watchers may read history again. They may do so once the queue is half empty or, while
    /// the held bytes are at their maximum, once the queue is empty.
    fn takes_history(&self, state: &State) -> bool {
        let event_items = state.items.len() - state.control_count;
        event_items == 0
            || (event_items <= self.limits.count_max / 2
                && state.bytes <= self.limits.bytes_max / 2
                && !self.held.is_full())
    }
}

fn cost(events: &Events) -> usize {
    ITEM_BYTES + events.set.byte_count()
}
