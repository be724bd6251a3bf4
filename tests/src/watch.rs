//! One watch stream, message by message.

use std::pin::Pin;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use crate::{Client, within};

type Opening = Pin<Box<dyn Future<Output = Result<Streaming<pb::WatchResponse>, Status>> + Send>>;

/// A watch stream. A message is read only when the test asks for it, although the connection may buffer some messages.
pub struct Watch {
    requests: mpsc::Sender<pb::WatchRequest>,
    state: State,
}

/// State of the response side, which a server opens only when it sends its first message.
enum State {
    Opening(Opening),
    Open(Box<Streaming<pb::WatchResponse>>),
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Opens a stream.
    #[must_use]
    pub fn open(client: &Client) -> Self {
        Self::open_with(client, client.metadata())
    }

    /// Opens a stream with metadata.
    #[must_use]
    pub fn open_with(client: &Client, metadata: MetadataMap) -> Self {
        let (requests, receiver) = mpsc::channel(1024);
        let mut stub = client.watch();
        let opening = async move {
            let mut request = tonic::Request::new(ReceiverStream::new(receiver));
            *request.metadata_mut() = metadata;
            stub.watch(request).await.map(tonic::Response::into_inner)
        };
        Self { requests, state: State::Opening(Box::pin(opening)) }
    }

    /// Sends a request.
    pub async fn send(&self, request: RequestUnion) {
        let request = pb::WatchRequest { request_union: Some(request) };
        self.requests.send(request).await.expect("the stream is open");
    }

    /// Sends an empty request.
    pub async fn send_empty(&self) {
        let request = pb::WatchRequest { request_union: None };
        self.requests.send(request).await.expect("the stream is open");
    }

    /// Creates a watcher and returns the response, which must be the next message.
    pub async fn create(&mut self, request: pb::WatchCreateRequest) -> pb::WatchResponse {
        // The sender is cloned so that no reference to `self` is held across an await.
        let requests = self.requests.clone();
        let request_union = Some(RequestUnion::CreateRequest(request));
        let request = pb::WatchRequest { request_union };
        requests.send(request).await.expect("the stream is open");
        let reply = self.next().await;
        assert!(reply.created, "this is not the response to a create request: {reply:?}");
        reply
    }

    /// Cancels a watcher.
    pub async fn cancel(&self, watch_id: i64) {
        self.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id })).await;
    }

    /// Requests a progress notification.
    pub async fn progress(&self) {
        self.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    }

    /// Returns the next message, `None` if the stream has ended, or the status that ended it.
    pub async fn try_next(&mut self) -> Result<Option<pb::WatchResponse>, Status> {
        if let State::Opening(opening) = &mut self.state {
            self.state = State::Open(Box::new(opening.await?));
        }
        let State::Open(stream) = &mut self.state else { unreachable!("just opened") };
        stream.message().await
    }

    /// Returns the next message.
    pub async fn next(&mut self) -> pb::WatchResponse {
        let answer = within("a watch response", self.try_next()).await;
        answer.unwrap().expect("the watch stream is open")
    }

    /// Returns the next `count` events of the stream, regardless of the watcher.
    pub async fn events(&mut self, count: usize) -> Vec<quorate_api::mvccpb::Event> {
        let mut events = Vec::new();
        while events.len() < count {
            let response = self.next().await;
            assert!(!response.canceled, "cancelled: {response:?}");
            events.extend(response.events);
        }
        assert_eq!(events.len(), count, "a response has too many events");
        events
    }

    /// Closes the request side. The response side stays open.
    pub fn close_requests(&mut self) {
        let (closed, _) = mpsc::channel(1);
        self.requests = closed;
    }
}
