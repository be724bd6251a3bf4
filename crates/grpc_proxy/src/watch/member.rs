//! Streams of watches at members: what is sent on them, and what comes.

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

use super::room::Wish;
use crate::call::Asker;
use crate::framing::{self, Messages};
use crate::leasing::Latest;
use crate::namespace::Namespace;
use crate::upstream::{Upstream, told};

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// Before a stream that has ended is begun again: at first, and at most.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Between two questions how far a stream's watches are, which members pass over while one is not there yet: at first, and at
/// most.
pub(super) const QUESTION: Duration = Duration::from_millis(100);
pub(super) const QUESTION_MAX: Duration = Duration::from_secs(10);

/// What a stream sends to a member.
pub(super) type Frames = mpsc::Sender<Result<Frame<Bytes>, Status>>;

/// The members, as watches know them.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) upstream: Arc<Upstream>,
    pub(super) namespace: Option<Namespace>,
    /// Is shown how far the store is.
    pub(super) latest: Option<Arc<Latest>>,
}

impl Members {
    /// Opens a stream of watches at one of them.
    pub(super) async fn open(&self, asker: &Asker, body: Body) -> Result<Messages, Status> {
        let answer = self.upstream.open(PATH, &asker.headers(), body).await?;
        framing::replies(answer, self.upstream.limits.receive_bytes)
    }

    /// What the member tells next, as clients of the namespace know it; `None` where the stream has ended and may be begun
    /// again.
    pub(super) async fn next(
        &self,
        asker: &Asker,
        messages: &mut Messages,
    ) -> Result<Option<WatchResponse>, Status> {
        let message = match messages.message().await.map_err(told) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(None),
            Err(status) if is_passing(&status, asker) => return Ok(None),
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

/// Whether another member, or the same one later, may go on.
pub(super) fn is_passing(status: &Status, asker: &Asker) -> bool {
    let has_no_leader = status.message() == "etcdserver: no leader";
    status.code() == Code::Unavailable && !(asker.requires_leader() && has_no_leader)
}

/// The body of a call, and what it is made of.
pub(super) fn requests() -> (Frames, Body) {
    let (frames, receiver) = mpsc::channel(1);
    (frames, Body::new(StreamBody::new(ReceiverStream::new(receiver))))
}

/// A watch that tells from a revision on; 0 for now.
pub(super) fn create_request(wish: &Wish, watch_id: i64, start_revision: i64) -> RequestUnion {
    RequestUnion::CreateRequest(WatchCreateRequest {
        key: wish.key.clone(),
        range_end: wish.range_end.clone(),
        start_revision,
        // Whoever is far behind in revisions of other keys learns it, and can join others.
        progress_notify: true,
        filters: wish.filters.clone(),
        prev_kv: wish.prev_kv,
        watch_id,
        ..WatchCreateRequest::default()
    })
}

/// The end of a watch.
pub(super) const fn cancel_request(watch_id: i64) -> RequestUnion {
    RequestUnion::CancelRequest(WatchCancelRequest { watch_id })
}

/// The question how far the stream's watches are.
pub(super) const fn progress_request() -> RequestUnion {
    RequestUnion::ProgressRequest(WatchProgressRequest {})
}

/// Writes a request behind others.
pub(super) fn write(chunk: &mut BytesMut, request: RequestUnion) {
    let request = WatchRequest { request_union: Some(request) };
    chunk.extend_from_slice(&framed(&request));
}
