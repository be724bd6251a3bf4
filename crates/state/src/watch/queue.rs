//! What waits to be sent on one stream.
//!
//! The applier and the catch-up pass put items in, the stream's task takes them out. Events are bounded
//! in number and bytes: when there is no room, their watchers go behind and are served from history
//! later. Replies to the client's own requests always find room; the stream's task stops reading
//! requests while many of them wait ([`CONTROL_BACKLOG_MAX`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::events::{EventSet, Form};
use super::held::HeldBytes;
use super::limits::QueueLimits;

/// Replies that may wait before the stream's task stops reading requests.
pub(super) const CONTROL_BACKLOG_MAX: usize = 128;

/// What an item costs besides its events.
const ITEM_BYTES: usize = 128;

/// One thing to be sent.
#[derive(Debug)]
pub(super) enum Item {
    Events(Events),
    Created { watch_id: i64, revision: i64 },
    Rejected { reason: Box<str>, revision: i64 },
    Canceled { watch_id: i64, revision: i64, compact_revision: i64 },
    Progress { watch_id: i64, revision: i64 },
}

/// The same events for several watchers of the stream.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) set: Arc<EventSet>,
    pub(super) form: Form,
    pub(super) watch_ids: Arc<Vec<i64>>,
    pub(super) revision: i64,
    /// Whether large responses are split.
    pub(super) fragment: bool,
}

impl Events {
    fn count(&self) -> usize {
        self.set.len() * self.watch_ids.len()
    }
}

/// There is no room for events.
#[derive(Debug)]
pub(super) struct Full;

/// An item taken out, and whether room for watchers that went behind came free with it.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) item: Item,
    pub(super) room_again: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    limits: QueueLimits,
    /// What waits on all streams.
    held: Arc<HeldBytes>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    /// Events, counted for each watcher that is to get them.
    event_count: usize,
    control_count: usize,
    waker: Option<Waker>,
    /// Somebody was turned away since there was room last.
    refused: bool,
}

impl Queue {
    pub(super) fn new(limits: QueueLimits, held: Arc<HeldBytes>) -> Self {
        Self { limits, held, state: Mutex::default() }
    }

    /// Adds events if there is room. The waker, if any, is to be woken.
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

    /// Whether events would find room. If not, the stream's task will say when they do.
    pub(super) fn has_room(&self) -> bool {
        let mut state = self.state.lock();
        let room = self.takes_history(&state);
        state.refused |= !room;
        room
    }

    /// Adds a reply. The waker, if any, is to be woken.
    pub(super) fn push_control(&self, item: Item) -> Option<Waker> {
        let mut state = self.state.lock();
        state.control_count += 1;
        state.items.push_back(item);
        state.waker.take()
    }

    /// Events waiting, counted for each watcher that is to get them; filters have not been asked.
    pub(super) fn event_count(&self) -> usize {
        self.state.lock().event_count
    }

    /// Replies waiting.
    pub(super) fn control_count(&self) -> usize {
        self.state.lock().control_count
    }

    /// Whether nothing more should be added that nobody asked for.
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
        let room_again = state.refused && self.takes_history(&state);
        if room_again {
            state.refused = false;
        }
        Poll::Ready(Taken { item, room_again })
    }

    /// Whether it is half empty; empty, once as much is held over all streams as may be.
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
