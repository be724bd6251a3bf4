//! A client's watch stream: its requests and the state of its watchers.
//!
//! One task owns all of this state. Before each request, it processes the notices from watcher sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse};
use quorate_grpc::ending;
use quorate_grpc::methods::Kind;
use quorate_grpc::wording::in_grpc_gos_words;
use tonic::body::Body;

use super::hub::{Hub, WATCHER_BYTES};
use super::mailbox::{Mailbox, Notice, WatcherChange};
use super::response;
use super::watcher_set::{WatchParameters, Watcher, WatcherSet};
use crate::byte_limit::Share;
use crate::call::Caller;
use crate::framing::{self, Messages};
use crate::outbox::OutboxMessage;
use crate::relay::REQUEST_BYTES_MAX;

/// The watch id in responses that belong to no watcher.
const NO_WATCHER: i64 = -1;

/// A client's watch stream.
struct Session {
    hub: Arc<Hub>,
    mailbox: Arc<Mailbox>,
    caller: Caller,
    watchers: BTreeMap<i64, WatcherEntry>,
    /// The watch ids of the watchers that have not ended, by serial number.
    ids: BTreeMap<u64, i64>,
    /// The watch ids of the watchers that have left their sets.
    behind: BTreeSet<i64>,
    next_id: i64,
    next_serial: u64,
    progress: Progress,
}

/// The state of a watcher.
struct WatcherEntry {
    serial: u64,
    state: WatcherState,
    wants_progress: bool,
    /// The watcher's share of the limit on the memory of watchers.
    bytes: Share,
}

/// The state of a watcher with respect to its watcher set.
enum WatcherState {
    Active {
        set: Arc<WatcherSet>,
        watcher: u64,
    },
    /// The watch has ended. Its id stays reserved until the client cancels the watch, as on a member.
    Ended,
    /// The watcher has left its set. It rejoins a set once the client has read its queued responses.
    Behind {
        parameters: WatchParameters,
        next: i64,
    },
}

/// A progress request for all watchers of the stream.
#[derive(Debug, Default)]
struct Progress {
    /// The watchers that have not answered yet, by serial number, and for each the first revision that it has not
    /// received (0 if unknown).
    asked: BTreeMap<u64, i64>,
    /// The header with the lowest revision among the responses so far.
    least: Option<ResponseHeader>,
    /// Whether another progress request arrived in the meantime.
    is_asked_again: bool,
}

/// Serves a watch call.
pub(crate) fn serve(hub: &Arc<Hub>, headers: &HeaderMap, body: Body) -> Response<Body> {
    let session = Session::new(hub, headers);
    let outbox = Arc::clone(&session.mailbox.outbox);
    let requests = framing::requests(headers, body, REQUEST_BYTES_MAX);
    let task = tokio::spawn(session.run(requests));
    ending::answer(Body::new(outbox.body(task.abort_handle())))
}

/// When the session is dropped at the end of the stream, its watchers are removed from their sets.
impl Drop for Session {
    fn drop(&mut self) {
        for entry in std::mem::take(&mut self.watchers).into_values() {
            self.remove(entry.state);
        }
    }
}

impl Session {
    fn new(hub: &Arc<Hub>, headers: &HeaderMap) -> Self {
        Self {
            hub: Arc::clone(hub),
            mailbox: Arc::new(Mailbox::new(Arc::default())),
            caller: Caller::of(headers),
            watchers: BTreeMap::new(),
            ids: BTreeMap::new(),
            behind: BTreeSet::new(),
            next_id: 0,
            next_serial: 0,
            progress: Progress::default(),
        }
    }

    async fn run(mut self, mut requests: Messages) {
        let outbox = Arc::clone(&self.mailbox.outbox);
        let mut is_open = true;
        loop {
            let may_read = is_open && !outbox.is_full();
            let request = tokio::select! {
                () = outbox.woken() => None,
                request = requests.message(), if may_read => Some(request),
            };
            while let Some(notice) = self.mailbox.next() {
                self.handle_notice(notice);
            }
            match request {
                None => {}
                Some(Ok(Some(request))) => match framing::decode(request) {
                    Ok(request) => self.handle(request),
                    Err(status) => outbox.end(status),
                },
                // The watchers continue after the client has closed its side of the stream.
                Some(Ok(None)) => is_open = false,
                Some(Err(status)) => {
                    is_open = false;
                    outbox.end(in_grpc_gos_words(status, Kind::BidiStream));
                }
            }
            if !outbox.is_full() {
                self.catch_up();
            }
            if self.progress.asked.is_empty() && self.progress.is_asked_again {
                self.ask_progress();
            }
        }
    }

    fn handle_notice(&mut self, Notice { serial, change }: Notice) {
        let Some(&watch_id) = self.ids.get(&serial) else { return };
        match change {
            WatcherChange::Cancelled { was_there } => {
                let entry = self.forget(watch_id);
                if let Some(entry) = entry.filter(|_| was_there) {
                    // Only the number of the watcher remains.
                    entry.bytes.release();
                    self.watchers
                        .insert(watch_id, WatcherEntry { state: WatcherState::Ended, ..entry });
                }
            }
            WatcherChange::Behind { next } => {
                if let Some(entry) = self.watchers.get_mut(&watch_id)
                    && let WatcherState::Active { set, .. } = &entry.state
                {
                    let set = Arc::clone(set);
                    entry.state = WatcherState::Behind { parameters: set.parameters.clone(), next };
                    self.behind.insert(watch_id);
                    self.hub.remove_if_empty(&set);
                }
                // A progress request cannot be answered while a watcher is behind, so the request in progress is
                // dropped.
                self.progress = Progress::default();
            }
            WatcherChange::Progressed { header } => {
                if self.progress.asked.remove(&serial).is_some() {
                    self.progress.send(header);
                    self.answer_progress();
                }
            }
        }
    }

    fn handle(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create),
            Some(RequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id),
            Some(RequestUnion::ProgressRequest(_)) => self.ask_progress(),
            None => {}
        }
    }

    fn create(&mut self, mut request: WatchCreateRequest) {
        let Some(watch_id) = self.new_id(request.watch_id) else {
            return self.refuse("mvcc: duplicate watch ID provided on the WatchStream");
        };
        if let Some(namespace) = self.hub.namespace() {
            namespace.watch(&mut request);
        }
        request.filters.sort_unstable();
        request.filters.dedup();
        request.filters.shrink_to_fit();
        let parameters = WatchParameters {
            caller: self.caller.clone(),
            // A copy, because the received bytes would keep the memory of the whole request.
            key: Bytes::copy_from_slice(&request.key),
            range_end: Bytes::copy_from_slice(&request.range_end),
            filters: request.filters,
            prev_kv: request.prev_kv,
        };
        let Some(bytes) = self.hub.watcher_bytes.take(WATCHER_BYTES + parameters.bytes()) else {
            return self.refuse("etcdserver: too many requests");
        };
        let watcher = Watcher {
            mailbox: Arc::clone(&self.mailbox),
            serial: self.next_serial,
            watch_id,
            next: request.start_revision,
            wants_progress: request.progress_notify,
            is_created: false,
            awaits_progress: false,
        };
        self.next_serial += 1;
        self.add(&parameters, watcher, bytes);
    }

    /// Reports to the client that a watcher is not created.
    fn refuse(&self, reason: &str) {
        let refused = WatchResponse {
            header: Some(ResponseHeader::default()),
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..WatchResponse::default()
        };
        self.put(NO_WATCHER, response::encode(refused));
    }

    fn add(&mut self, parameters: &WatchParameters, watcher: Watcher, bytes: Share) {
        let (watch_id, serial) = (watcher.watch_id, watcher.serial);
        let wants_progress = watcher.wants_progress;
        let (set, watcher) = self.hub.add(parameters, watcher);
        if !self.progress.asked.is_empty() {
            // The response will promise that each watcher of the stream has received all events up to its revision.
            self.progress.asked.insert(serial, set.ask_progress(watcher));
        }
        let state = WatcherState::Active { set, watcher };
        self.watchers.insert(watch_id, WatcherEntry { serial, state, wants_progress, bytes });
        self.ids.insert(serial, watch_id);
    }

    fn cancel(&mut self, watch_id: i64) {
        if let Some(entry) = self.forget(watch_id) {
            let header = self.remove(entry.state);
            self.put(watch_id, response::cancelled(header.as_ref()));
        }
    }

    /// Removes a watcher from the stream and from an unanswered progress request.
    fn forget(&mut self, watch_id: i64) -> Option<WatcherEntry> {
        let entry = self.watchers.remove(&watch_id)?;
        self.ids.remove(&entry.serial);
        self.behind.remove(&watch_id);
        if self.progress.asked.remove(&entry.serial).is_some() {
            self.answer_progress();
        }
        Some(entry)
    }

    fn remove(&self, state: WatcherState) -> Option<ResponseHeader> {
        let WatcherState::Active { set, watcher } = state else { return None };
        let header = set.remove(watcher);
        self.hub.remove_if_empty(&set);
        header
    }

    /// Makes the watchers that had fallen behind rejoin their sets.
    fn catch_up(&mut self) {
        for watch_id in std::mem::take(&mut self.behind) {
            let Some(WatcherEntry { serial, state, wants_progress, bytes }) =
                self.watchers.remove(&watch_id)
            else {
                continue;
            };
            let WatcherState::Behind { parameters, next } = state else { continue };
            let watcher = Watcher {
                mailbox: Arc::clone(&self.mailbox),
                serial,
                watch_id,
                next,
                wants_progress,
                is_created: true,
                awaits_progress: false,
            };
            self.add(&parameters, watcher, bytes);
        }
    }

    /// Sends a progress request to the sets of all watchers, unless a watcher is behind.
    fn ask_progress(&mut self) {
        if !self.behind.is_empty() {
            return;
        }
        if !self.progress.asked.is_empty() {
            self.progress.is_asked_again = true;
            return;
        }
        self.progress = Progress::default();
        for entry in self.watchers.values() {
            if let WatcherState::Active { set, watcher } = &entry.state {
                self.progress.asked.insert(entry.serial, set.ask_progress(*watcher));
            }
        }
    }

    fn answer_progress(&mut self) {
        if let Some(least) = self.progress.take_response() {
            self.put(NO_WATCHER, response::progress(Some(&least)));
        }
    }

    /// Returns the requested id, or an unused id if `wanted` is 0. Returns `None` if the requested id is in use.
    fn new_id(&mut self, wanted: i64) -> Option<i64> {
        if wanted != 0 {
            return (!self.watchers.contains_key(&wanted)).then_some(wanted);
        }
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        let found = self.next_id;
        self.next_id += 1;
        Some(found)
    }

    fn put(&self, watch_id: i64, shared: Bytes) {
        self.mailbox.outbox.put(OutboxMessage { watch_id, shared });
    }
}

impl Progress {
    fn send(&mut self, header: Option<ResponseHeader>) {
        let Some(header) = header else { return };
        if self.least.is_none_or(|least| header.revision < least.revision) {
            self.least = Some(header);
        }
    }

    /// Returns the header of the response, once each watcher has answered or starts after the header's revision.
    fn take_response(&mut self) -> Option<ResponseHeader> {
        let revision = self.least?.revision;
        // Further answers can only lower the revision, so these watchers are not asked again.
        while self.asked.first_entry().is_some_and(|asked| *asked.get() > revision) {
            self.asked.pop_first();
        }
        if self.asked.is_empty() { self.least.take() } else { None }
    }
}

#[cfg(test)]
mod tests;
