//! Watch streams on members: their requests and responses.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::StreamBody;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::etcdserverpb::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use quorate_grpc::framing::framed;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};

use super::watcher_set::WatchParameters;
use crate::call::Caller;
use crate::framing::{self, Messages};
use crate::leasing::Latest;
use crate::namespace::Namespace;
use crate::upstream::{Upstream, receive_error};

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// Initial pause before a stream is opened again. The pause grows up to [`PAUSE_MAX`].
pub(super) const PAUSE: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Initial pause between two progress requests, which members ignore while a watch on the stream is behind. The pause
/// grows up to [`PROGRESS_INTERVAL_MAX`].
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
pub(super) const PROGRESS_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Sends a stream's requests as frames.
pub(super) type Frames = mpsc::Sender<Result<Frame<Bytes>, Status>>;

/// Opens watch streams on members.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) upstream: Arc<Upstream>,
    pub(super) namespace: Option<Namespace>,
    /// The latest revision, updated with every response, if leasing is on.
    pub(super) latest: Option<Arc<Latest>>,
}

impl Members {
    /// Opens a watch stream on a member.
    pub(super) async fn open(&self, caller: &Caller, body: Body) -> Result<Messages, Status> {
        let answer = self.upstream.open(PATH, &caller.headers(), body).await?;
        framing::replies(answer, self.upstream.limits.receive_bytes)
    }

    /// Returns the next response, with keys as seen by clients of the namespace. Returns `None` if the stream has ended
    /// and may be opened again.
    pub(super) async fn next(
        &self,
        caller: &Caller,
        messages: &mut Messages,
    ) -> Result<Option<WatchResponse>, Status> {
        let message = match messages.message().await.map_err(receive_error) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(None),
            Err(status) if is_retryable(&status, caller) => return Ok(None),
            Err(status) => return Err(status),
        };
        let mut response: WatchResponse = framing::decode(message)?;
        if let Some(latest) = &self.latest {
            latest.see(response.header.as_ref());
        }
        if let Some(namespace) = &self.namespace {
            response.events.iter_mut().for_each(|event| namespace.strip_event(event));
        }
        Ok(Some(response))
    }
}

/// Returns whether the watch may continue on another member, or later on the same member.
pub(super) fn is_retryable(status: &Status, caller: &Caller) -> bool {
    let has_no_leader = status.message() == "etcdserver: no leader";
    status.code() == Code::Unavailable && !(caller.requires_leader() && has_no_leader)
}

/// Creates the body of a stream, and the sender for its requests.
pub(super) fn requests() -> (Frames, Body) {
    let (frames, receiver) = mpsc::channel(1);
    (frames, Body::new(StreamBody::new(ReceiverStream::new(receiver))))
}

/// Returns a request for a watch that starts at `start_revision`; 0 stands for the current revision.
pub(super) fn create_request(
    parameters: &WatchParameters,
    watch_id: i64,
    start_revision: i64,
) -> RequestUnion {
    RequestUnion::CreateRequest(WatchCreateRequest {
        key: parameters.key.clone(),
        range_end: parameters.range_end.clone(),
        start_revision,
        // If events are rare, only progress notifications show that the watch has caught up and can join other groups.
        progress_notify: true,
        filters: parameters.filters.clone(),
        prev_kv: parameters.prev_kv,
        watch_id,
        ..WatchCreateRequest::default()
    })
}

/// Returns a request to cancel a watch.
pub(super) const fn cancel_request(watch_id: i64) -> RequestUnion {
    RequestUnion::CancelRequest(WatchCancelRequest { watch_id })
}

/// Returns a progress request.
pub(super) const fn progress_request() -> RequestUnion {
    RequestUnion::ProgressRequest(WatchProgressRequest {})
}

/// Encodes a request and appends it to `chunk`.
pub(super) fn write(chunk: &mut BytesMut, request: RequestUnion) {
    let request = WatchRequest { request_union: Some(request) };
    chunk.extend_from_slice(&framed(&request));
}
