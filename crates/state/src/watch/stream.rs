//! One client's watch stream, which handles requests and returns responses in order.
//!
//! A stream belongs to the task that serves the connection. Replies and events pass through one
//! queue. A watcher's `created` therefore comes before its events, its events come before its
//! `canceled`, and a progress notification comes after every event that it covers.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use quorate_api::etcdserverpb::{WatchCreateRequest, watch_create_request::FilterType};

use super::events::{Filter, Form};
use super::frame::{Body, Frame, Header, HeaderFields, number_len};
use super::history::HistoryFault;
use super::hub::{Hub, Options, RegisterRefusal, Registration};
use super::index::Watched;
use super::intervals::RangeEnd;
use super::queue::{CONTROL_BACKLOG_MAX, Events, Item, Queue};
use super::slab::Handle;

/// The watch id in replies that concern no watcher.
const NO_WATCHER: i64 = -1;

/// Why a watcher is not created, with the text that the client receives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum CreateRefusal {
    #[error("etcdserver: mvcc: required revision has been compacted")]
    NegativeRevision,
    #[error("mvcc: watcher range is empty")]
    EmptyRange,
    #[error("mvcc: duplicate watch ID provided on the WatchStream")]
    DuplicateId,
    #[error("etcdserver: too many requests")]
    TooMany,
    /// The permission check failed with this text.
    #[error("{0}")]
    Denied(String),
}

impl From<RegisterRefusal> for CreateRefusal {
    fn from(why: RegisterRefusal) -> Self {
        match why {
            RegisterRefusal::DuplicateId => Self::DuplicateId,
            RegisterRefusal::TooMany => Self::TooMany,
        }
    }
}

/// One client's watch stream.
#[derive(Debug)]
pub struct WatchStream {
    hub: Hub,
    handle: Handle,
    queue: Arc<Queue>,
    fragment_bytes_max: usize,
    sending: Option<Sending>,
    progress_round: Option<ProgressRound>,
}

/// A round of progress notifications, some of which are not queued yet.
#[derive(Clone, Copy, Debug)]
struct ProgressRound {
    /// The lowest id of a watcher whose turn has not come yet.
    next_id: i64,
    /// The value of `hub::State::serial` at the previous tick.
    since: u64,
}

/// Events that are being sent to one watcher after another.
#[derive(Debug)]
struct Sending {
    header: Header,
    events: Bytes,
    event_count: usize,
    watch_ids: Arc<Vec<i64>>,
    /// The index of the current watcher.
    at: usize,
    /// The end of each event; `None` unless responses are split.
    ends: Option<Arc<[usize]>>,
    /// The number of events already sent to the current watcher.
    sent_count: usize,
    /// The remaining events, given by their set and the index of the first remaining event. They are sent after every
    /// watcher has received this part.
    rest: Option<(Events, usize)>,
}

impl Hub {
    /// Opens a stream. For watchers that request fragments, responses are split to stay below
    /// `fragment_bytes_max`.
    #[must_use]
    pub fn open_stream(&self, fragment_bytes_max: usize) -> WatchStream {
        let (handle, queue) = self.admit_stream();
        let hub = self.clone();
        WatchStream { hub, handle, queue, fragment_bytes_max, sending: None, progress_round: None }
    }
}

impl WatchStream {
    /// Handles a create request. `authorize` checks the permission to read the range, given by its normalised key and
    /// range end, and the error that it returns becomes the cancel reason. Returns the watcher's id if a watcher was
    /// created.
    pub fn create(
        &mut self,
        mut request: WatchCreateRequest,
        authorize: impl FnOnce(&[u8], &[u8]) -> Result<(), String>,
    ) -> Option<i64> {
        if request.key.is_empty() {
            request.key = Bytes::from_static(&[0]);
        }
        let checked = check(&request, authorize);
        let mut state = self.hub.lock();
        let created = checked.and_then(|registration| {
            state.register(self.handle, registration).map_err(CreateRefusal::from)
        });
        match created {
            Ok(watch_id) => Some(watch_id),
            Err(refusal) => {
                let reason = refusal.to_string().into_boxed_str();
                let reply = Item::Rejected { reason, revision: state.current };
                let waker = self.queue.push_control(reply);
                state.wakers.extend(waker);
                None
            }
        }
    }

    /// Handles a cancel request. An unknown id is ignored.
    pub fn cancel(&mut self, watch_id: i64) {
        let mut state = self.hub.lock();
        if state.unregister(self.handle, watch_id) {
            let reply = Item::Canceled { watch_id, revision: state.current, compact_revision: 0 };
            let waker = self.queue.push_control(reply);
            state.wakers.extend(waker);
        }
    }

    /// Handles a progress request. The request is dropped if the stream has no watchers, if a watcher is not synced, or
    /// if the queue is busy.
    pub fn request_progress(&mut self) {
        let mut state = self.hub.lock();
        let stream = state.streams.get(self.handle).expect("a stream is open until dropped");
        let all_synced = stream.unsynced.is_empty_at(state.current);
        if stream.watchers.is_empty() || !all_synced || self.queue.is_busy() {
            return;
        }
        let reply = Item::Progress { watch_id: NO_WATCHER, revision: state.current };
        let waker = self.queue.push_control(reply);
        state.wakers.extend(waker);
    }

    /// Begins a round of progress notifications, one for each synced watcher that requested periodic progress and
    /// received no events since the last round. The caller runs this once in each interval. If the queue is too full for
    /// all notifications, the others are queued when it is empty. Until then, no other round begins.
    pub fn tick_progress(&mut self) {
        if self.progress_round.is_none() {
            let mut state = self.hub.lock();
            state.serial += 1;
            let serial = state.serial;
            let stream =
                state.streams.get_mut(self.handle).expect("a stream is open until dropped");
            let since = std::mem::replace(&mut stream.last_tick, serial);
            self.progress_round = Some(ProgressRound { next_id: i64::MIN, since });
        }
        self.continue_progress();
    }

    /// Queues as many notifications of the current round as fit in the queue. Returns whether any were queued.
    fn continue_progress(&mut self) -> bool {
        let Some(ProgressRound { next_id, since }) = self.progress_round else { return false };
        let mut guard = self.hub.lock();
        let state = &mut *guard;
        let stream = state.streams.get(self.handle).expect("a stream is open until dropped");
        let mut any = false;
        for watch_id in stream.progress_ids.range(next_id..).copied() {
            let watcher = &stream.watchers[&watch_id];
            let Some(handle) = watcher.group else { continue };
            let group = state.groups.get(handle).expect("a watcher's group exists");
            let had_events = group.last_events > since.max(watcher.created);
            if had_events || !state.is_synced(handle) {
                continue;
            }
            if self.queue.is_busy() {
                self.progress_round = Some(ProgressRound { next_id: watch_id, since });
                return any;
            }
            let reply = Item::Progress { watch_id, revision: state.current };
            state.wakers.extend(self.queue.push_control(reply));
            any = true;
        }
        self.progress_round = None;
        any
    }

    /// Returns whether the caller should read more requests from the client. If the result is false, the caller must
    /// first take responses.
    #[must_use]
    pub fn accepts_requests(&self) -> bool {
        self.queue.control_count() < CONTROL_BACKLOG_MAX
    }

    /// Waits for the next response. The stream ends only when it is dropped.
    pub fn poll_next(
        &mut self,
        cx: &Context<'_>,
        header: &HeaderFields,
    ) -> Poll<Result<Frame, HistoryFault>> {
        loop {
            if let Some(frame) = self.next_of_sending()? {
                return Poll::Ready(Ok(frame));
            }
            let Poll::Ready(taken) = self.queue.poll_take(cx) else {
                if self.continue_progress() {
                    continue;
                }
                return Poll::Pending;
            };
            if taken.room_again {
                self.hub.unpark(self.handle);
            }
            let (watch_id, revision, body) = match taken.item {
                Item::Events(events) => {
                    let header = Header::new(header, events.revision);
                    self.sending = Some(self.begin(events, 0, header)?);
                    continue;
                }
                Item::Created { watch_id, revision } => (watch_id, revision, Body::Created),
                Item::Rejected { reason, revision } => {
                    (NO_WATCHER, revision, Body::Rejected(reason))
                }
                Item::Canceled { watch_id, revision, compact_revision } => {
                    (watch_id, revision, Body::Canceled { compact_revision })
                }
                Item::Progress { watch_id, revision } => (watch_id, revision, Body::Progress),
            };
            let header = Header::new(header, revision);
            return Poll::Ready(Ok(Frame { header, watch_id, body }));
        }
    }

    /// Begins sending the events from index `first` on.
    fn begin(&self, events: Events, first: usize, header: Header) -> Result<Sending, HistoryFault> {
        let bytes_max = self.hub.catch_up_limits().response_bytes;
        let encoded = events.set.encoded(events.form, first, bytes_max, || self.hub.latest())?;
        let large = encoded.bytes.len() + 64 >= self.fragment_bytes_max;
        let split = events.fragment && large && encoded.ends.len() > 1;
        Ok(Sending {
            header,
            events: encoded.bytes,
            event_count: encoded.ends.len(),
            watch_ids: Arc::clone(&events.watch_ids),
            at: 0,
            ends: split.then_some(encoded.ends),
            sent_count: 0,
            rest: encoded.next.map(|next| (events, next)),
        })
    }

    fn next_of_sending(&mut self) -> Result<Option<Frame>, HistoryFault> {
        loop {
            let Some(sending) = &mut self.sending else { return Ok(None) };
            let Some(&watch_id) = sending.watch_ids.get(sending.at) else {
                let (header, rest) = (sending.header, sending.rest.take());
                self.sending = match rest {
                    Some((events, first)) => Some(self.begin(events, first, header)?),
                    None => None,
                };
                continue;
            };
            let (events, count, partial) = sending.next_piece(watch_id, self.fragment_bytes_max);
            if !partial {
                sending.at += 1;
            }
            let body = Body::Events { events, count, partial };
            return Ok(Some(Frame { header: sending.header, watch_id, body }));
        }
    }
}

#[cfg(test)]
impl WatchStream {
    /// Compares the count of unsynced watchers with the watchers.
    pub(super) fn counts_unsynced_watchers_correctly(&self) -> bool {
        let state = self.hub.lock();
        let stream = state.streams.get(self.handle).expect("a stream is open until dropped");
        let mut groups = stream.watchers.values().map(|watcher| watcher.group);
        let are_synced = groups.all(|group| group.is_some_and(|group| state.is_synced(group)));
        stream.unsynced.is_empty_at(state.current) == are_synced
    }
}

impl Sending {
    /// Returns the next events for the current watcher, their number, and whether more of them
    /// follow.
    fn next_piece(&mut self, watch_id: i64, bytes_max: usize) -> (Bytes, usize, bool) {
        let around = self.header.len() + number_len(watch_id);
        let fits_whole = self.sent_count == 0 && around + self.events.len() < bytes_max;
        let Some(ends) = self.ends.as_ref().filter(|_| !fits_whole) else {
            return (self.events.clone(), self.event_count, false);
        };
        let start = self.sent_count.checked_sub(1).map_or(0, |last| ends[last]);
        // A piece contains at least one event, and as many events as fit beside the field `fragment`.
        let fits = |end: &usize| around + 2 + (end - start) < bytes_max;
        let rest = &ends[self.sent_count..];
        let count = rest.partition_point(fits).max(1);
        let piece = self.events.slice(start..rest[count - 1]);
        let partial = count < rest.len();
        self.sent_count = if partial { self.sent_count + count } else { 0 };
        (piece, count, partial)
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.hub.close_stream(self.handle);
    }
}

fn check(
    request: &WatchCreateRequest,
    authorize: impl FnOnce(&[u8], &[u8]) -> Result<(), String>,
) -> Result<Registration, CreateRefusal> {
    if request.start_revision < 0 {
        return Err(CreateRefusal::NegativeRevision);
    }
    authorize(&request.key, &request.range_end).map_err(CreateRefusal::Denied)?;
    let end = match &request.range_end[..] {
        [] => None,
        [0] => Some(RangeEnd::Unbounded),
        end if request.key[..] >= *end => return Err(CreateRefusal::EmptyRange),
        // The end is copied, because a slice would keep the request's whole buffer in memory.
        end => Some(RangeEnd::Before(Bytes::copy_from_slice(end))),
    };
    let filters = |kind: FilterType| request.filters.contains(&(kind as i32));
    let filter =
        Filter { puts: filters(FilterType::Noput), deletes: filters(FilterType::Nodelete) };
    Ok(Registration {
        watched: Watched { key: Bytes::copy_from_slice(&request.key), end },
        options: Options {
            form: Form { filter, previous: request.prev_kv },
            fragment: request.fragment,
        },
        start_revision: request.start_revision,
        watch_id: request.watch_id,
        progress: request.progress_notify,
    })
}
