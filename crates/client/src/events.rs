//! A watch that survives the loss of its connection. It continues at the revision after the last received revision, so
//! that it reports every event exactly once. If the connection breaks between two fragments of a response, the last
//! revision may be incomplete. The watch then continues at this revision, and skips the events that it has reported.

use std::time::Duration;

use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use quorate_api::mvccpb::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status, Streaming};

use crate::failure::status_text;
use crate::{Client, Connection, as_grpc_go};

/// The delay before a lost stream is reopened.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The capacity of a stream's request queue. A full queue already contains progress requests, so a further progress
/// request can be dropped.
const REQUESTS_MAX: usize = 4;
const NO_LEADER: &str = "etcdserver: no leader";

/// Determines whether a watch ends when its member has no leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// The watch ends, unless it has just lost its connection to another member, which may have been the leader.
    Required,
    /// The watch waits for a leader.
    Awaited,
}

/// A watch and its state.
#[expect(missing_debug_implementations, reason = "an active watch has no useful debug output")]
pub struct Events<'a> {
    client: &'a Client,
    /// The request that would create the watch at its current revision.
    create: WatchCreateRequest,
    /// The number of events of revision `create.start_revision` that have been returned, if the other events of the
    /// revision may follow in another fragment.
    returned_count: usize,
    /// The number of returned events that the current stream still has to repeat.
    repeated_count: usize,
    leader: Leader,
    /// The number of streams on which the watch has been created so far.
    streams: u64,
    /// The value of `streams` when the current stream was opened.
    streams_before: u64,
    stream: Option<Stream>,
    /// Whether to send a progress request on the next stream.
    asks_progress: bool,
    /// Whether the loss of all servers has been logged. Opening a stream resets this flag.
    has_warned: bool,
}

struct Stream {
    connection: Connection,
    /// Sender of the stream's requests. Dropping it ends the stream.
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl<'a> Events<'a> {
    /// Prepares a watch. No request is sent before the first call of [`Self::next`].
    #[must_use]
    pub fn new(client: &'a Client, create: WatchCreateRequest, leader: Leader) -> Self {
        Self {
            client,
            create,
            returned_count: 0,
            repeated_count: 0,
            leader,
            streams: 0,
            streams_before: 0,
            stream: None,
            asks_progress: false,
            has_warned: false,
        }
    }

    /// Returns the next response, including the responses to creation and cancellation. Opens as many streams as
    /// necessary. The error is the reason why the watch ended. This method is cancel-safe.
    pub async fn next(&mut self) -> Result<WatchResponse, Status> {
        loop {
            let status = match self.try_next().await {
                Ok(mut response) => {
                    if self.advance(&mut response) {
                        return Ok(response);
                    }
                    continue;
                }
                Err(status) => status,
            };
            match self.stream.take() {
                Some(stream) => self.client.leave(&stream.connection, &status),
                None if self.has_warned => {}
                None => {
                    self.has_warned = true;
                    self.client.warn(&status, 0);
                }
            }
            let resumes = self.streams_before > 0 && self.streams == self.streams_before;
            if !can_go_on(&status, resumes || self.leader == Leader::Awaited) {
                return Err(status);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Sends a progress request now or, if no stream is open, as soon as a stream is opened.
    pub fn ask_progress(&mut self) {
        match &self.stream {
            Some(stream) => stream.ask_progress(),
            None => self.asks_progress = true,
        }
    }

    /// Prepares for a new stream, which repeats the events of the current revision that were returned.
    fn reconnect(&mut self) {
        self.streams_before = self.streams;
        self.repeated_count = self.returned_count;
    }

    async fn try_next(&mut self) -> Result<WatchResponse, Status> {
        if self.stream.is_none() {
            self.reconnect();
            let opened = open(self.client, &self.create, self.leader).await?;
            if std::mem::take(&mut self.asks_progress) {
                opened.ask_progress();
            }
            self.has_warned = false;
            self.stream = Some(opened);
        }
        let stream = self.stream.as_mut().expect("a stream is open");
        let response = stream.responses.message().await.map_err(as_grpc_go)?;
        response.ok_or_else(|| Status::unavailable("EOF"))
    }

    /// Updates the position at which the watch continues, and removes the events that were returned before. Returns
    /// false if no other events remain.
    fn advance(&mut self, response: &mut WatchResponse) -> bool {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        self.streams += u64::from(response.created && !response.canceled);
        let Some(last) = response.events.last().map(revision_of) else {
            if is_progress(response)
                || (response.created && self.create.start_revision == 0 && !response.canceled)
            {
                (self.create.start_revision, self.returned_count) = (revision + 1, 0);
            }
            return true;
        };
        let first = self.create.start_revision;
        let is_first = |event: &&Event| revision_of(event) == first;
        let repeated =
            response.events.iter().take(self.repeated_count).take_while(is_first).count();
        response.events.drain(..repeated);
        let has_more = !response.events.is_empty();
        self.repeated_count = if has_more { 0 } else { self.repeated_count - repeated };
        (self.create.start_revision, self.returned_count) = if response.fragment {
            let is_last = |event: &&Event| revision_of(event) == last;
            let count = response.events.iter().rev().take_while(is_last).count();
            (last, count + if last == first { self.returned_count } else { 0 })
        } else {
            (last + 1, 0)
        };
        has_more
    }
}

impl Stream {
    fn ask_progress(&self) {
        let union = RequestUnion::ProgressRequest(WatchProgressRequest {});
        // If the queue is full, a progress request is already queued. If it is closed, the next call of `Events::next`
        // returns the error.
        drop(self.requests.try_send(WatchRequest { request_union: Some(union) }));
    }
}

async fn open(
    client: &Client,
    create: &WatchCreateRequest,
    leader: Leader,
) -> Result<Stream, Status> {
    let connection = client.connect(None).await?;
    let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
    let union = RequestUnion::CreateRequest(create.clone());
    // The channel is new and its receiver exists, so sending cannot fail.
    drop(requests.try_send(WatchRequest { request_union: Some(union) }));
    let opening = async {
        let mut request = client.stream_request(ReceiverStream::new(receiver)).await?;
        if leader == Leader::Required {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        client.watch(connection.channel.clone()).watch(request).await.map_err(as_grpc_go)
    };
    match opening.await {
        Ok(opened) => Ok(Stream { connection, requests, responses: opened.into_inner() }),
        Err(status) => {
            client.leave(&connection, &status);
            Err(status)
        }
    }
}

/// Returns the reason why the server ended a watch, worded as in etcd's client.
#[must_use]
pub fn cancel_text(response: &WatchResponse) -> String {
    if response.compact_revision != 0 {
        return "etcdserver: mvcc: required revision has been compacted".to_owned();
    }
    if response.created {
        return response.cancel_reason.clone();
    }
    if response.cancel_reason.is_empty() {
        return "etcdserver: mvcc: required revision is a future revision".to_owned();
    }
    status_text(&Status::failed_precondition(response.cancel_reason.clone()))
}

fn revision_of(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |record| record.fields().mod_revision)
}

/// Returns whether a response is a progress notification.
#[must_use]
pub fn is_progress(response: &WatchResponse) -> bool {
    let revision = response.header.as_ref().map_or(0, |header| header.revision);
    response.events.is_empty()
        && !response.canceled
        && !response.created
        && response.compact_revision == 0
        && revision != 0
}

/// Returns whether the watch may continue on another stream. A member without a leader ends the watches that require a
/// leader. If such a watch `awaits_leader`, it may still continue: the member whose stream was lost before may have
/// been the leader, and the other members are then about to elect a new one.
fn can_go_on(status: &Status, awaits_leader: bool) -> bool {
    match status.code() {
        Code::Unavailable => awaits_leader || status.message() != NO_LEADER,
        Code::Internal => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use quorate_api::etcdserverpb::ResponseHeader;
    use quorate_api::record::{Fields, KeyValue};

    use super::*;
    use crate::transport::Transport;
    use crate::{Limits, Logger, Timeouts};

    fn unreachable_client() -> Client {
        let second = Duration::from_secs(1);
        let timeouts =
            Timeouts { dial_timeout: second, keepalive_time: second, keepalive_timeout: second };
        let limits = Limits::new(0, 0).unwrap();
        let (transport, nobody) = (Transport::default(), Rc::default());
        Client::new(
            vec!["127.0.0.1:1".to_owned()],
            &transport,
            nobody,
            timeouts,
            limits,
            Logger::default(),
        )
        .unwrap()
    }

    #[test]
    fn a_watch_continues_after_the_last_received_revision() {
        let client = unreachable_client();
        let mut events = Events::new(&client, WatchCreateRequest::default(), Leader::Required);
        let header = Some(ResponseHeader { revision: 10, ..Default::default() });
        let mut created = WatchResponse { header, created: true, ..Default::default() };
        events.advance(&mut created);
        assert_eq!((events.create.start_revision, events.streams), (11, 1));
        let fields = Fields { key: b"a", mod_revision: 15, ..Fields::default() };
        let event = Event { kv: Some(KeyValue::new(&fields)), ..Default::default() };
        events.advance(&mut WatchResponse { events: vec![event], ..created.clone() });
        assert_eq!(events.create.start_revision, 16);
        let header = Some(ResponseHeader { revision: 20, ..Default::default() });
        let mut progress = WatchResponse { header, ..Default::default() };
        assert!(is_progress(&progress) && !is_progress(&created));
        events.advance(&mut progress);
        assert_eq!(events.create.start_revision, 21);
        events.advance(&mut created);
        assert_eq!(events.create.start_revision, 21);
    }

    fn events_at(revisions: &[i64], fragment: bool) -> WatchResponse {
        let event = |(number, &mod_revision): (usize, _)| {
            let key = &*number.to_string().into_bytes();
            let fields = Fields { key, mod_revision, ..Fields::default() };
            Event { kv: Some(KeyValue::new(&fields)), ..Default::default() }
        };
        let header = Some(ResponseHeader { revision: 30, ..Default::default() });
        let events = revisions.iter().enumerate().map(event).collect();
        WatchResponse { header, events, fragment, ..Default::default() }
    }

    /// Returns the keys of the events that the caller of [`Events::next`] receives.
    fn returned(events: &mut Events<'_>, mut response: WatchResponse) -> Option<Vec<String>> {
        let key = |event: Event| String::from_utf8(event.kv.unwrap().key().to_vec()).unwrap();
        let is_returned = events.advance(&mut response);
        is_returned.then(|| response.events.into_iter().map(key).collect())
    }

    #[test]
    fn a_watch_whose_connection_breaks_between_fragments_returns_each_event_once() {
        let client = unreachable_client();
        let mut events = Events::new(&client, WatchCreateRequest::default(), Leader::Required);
        assert_eq!(returned(&mut events, events_at(&[14, 15], true)).unwrap(), ["0", "1"]);
        assert_eq!(events.create.start_revision, 15);
        assert_eq!(returned(&mut events, events_at(&[15], true)).unwrap(), ["0"]);
        assert_eq!(events.create.start_revision, 15);
        // The next stream repeats the two events of revision 15 that have been returned.
        events.reconnect();
        assert_eq!(returned(&mut events, events_at(&[15], true)), None);
        assert_eq!(returned(&mut events, events_at(&[15, 15], true)).unwrap(), ["1"]);
        events.reconnect();
        assert_eq!(
            returned(&mut events, events_at(&[15, 15, 15, 15, 16], false)).unwrap(),
            ["3", "4"]
        );
        assert_eq!(events.create.start_revision, 17);
        // The fragment before the break contained the last event of its revision.
        assert_eq!(returned(&mut events, events_at(&[17], true)).unwrap(), ["0"]);
        events.reconnect();
        assert_eq!(returned(&mut events, events_at(&[17], false)), None);
        assert_eq!(events.create.start_revision, 18);
        assert_eq!(returned(&mut events, events_at(&[18], false)).unwrap(), ["0"]);
    }

    #[test]
    fn a_watch_without_a_leader_continues_only_while_it_awaits_the_next_leader() {
        assert!(can_go_on(&Status::unavailable("connection reset"), false));
        assert!(can_go_on(&Status::internal("a broken frame"), false));
        assert!(!can_go_on(&Status::unknown("anything"), true));
        assert!(!can_go_on(&Status::unavailable(NO_LEADER), false));
        assert!(can_go_on(&Status::unavailable(NO_LEADER), true));
    }

    #[test]
    fn cancellation_texts_contain_the_reason() {
        let text = |compact_revision, reason: &str| {
            let cancel_reason = reason.to_owned();
            cancel_text(&WatchResponse { compact_revision, cancel_reason, ..Default::default() })
        };
        assert_eq!(text(5, "any"), "etcdserver: mvcc: required revision has been compacted");
        assert_eq!(text(0, ""), "etcdserver: mvcc: required revision is a future revision");
        assert_eq!(text(0, "x"), "rpc error: code = FailedPrecondition desc = x");
    }
}
