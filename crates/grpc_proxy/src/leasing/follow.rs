//! Watches all leasing keys, and detects when another proxy asks this proxy to release a key and when other owners have
//! released their keys.
//!
//! A late event causes a delay but never a wrong response, because participants in the protocol do not delete other
//! owners' leasing keys: a leasing key created by this proxy exists until this proxy deletes it or its lease ends.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use quorate_api::mvccpb::Event;
use quorate_api::mvccpb::event::EventType;
use quorate_grpc::framing::framed;
use quorate_grpc::head::HAS_LEADER;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;

use super::Leasing;
use super::guard::leasing_key;
use super::members::Store;
use crate::framing;
use crate::upstream::receive_error;

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// The reason why a watch ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The watch can be continued on another member, or later on the same member.
    Lost,
    /// The events that the watch needs are compacted.
    Missed,
}

/// The state of the check that the watch is alive. The proxy sends progress requests, which the member must answer.
#[derive(Debug, Default)]
pub(super) struct WatchHealth {
    /// Whether a response has arrived since the last check.
    pub(super) has_response: AtomicBool,
    /// Triggers a progress request to the member.
    pub(super) progress_requested: Notify,
    /// Signals that the member did not answer and the watch must be opened again.
    pub(super) is_silent: Notify,
}

/// The position of the watch on the leasing keys.
#[derive(Debug)]
pub(super) struct Following {
    /// The first revision whose events have not arrived yet.
    pub(super) next: i64,
    /// The lease of this proxy's leasing keys.
    pub(super) lease: i64,
}

impl Leasing {
    /// Opens the watch and processes its events until it ends.
    pub(super) async fn follow(
        &self,
        following: &mut Following,
        health: &WatchHealth,
    ) -> Result<Ended, Status> {
        let (frames, receiver) = mpsc::channel(4);
        let body = Body::new(StreamBody::new(ReceiverStream::new(receiver)));
        send(&frames, self.create_request(following.next));
        let mut headers = HeaderMap::new();
        // A member without a leader receives no changes. This header makes it cancel the watch.
        headers.insert(HAS_LEADER, HeaderValue::from_static("true"));
        let upstream = &self.members.upstream;
        let answer = upstream.open(PATH, &headers, body).await?;
        let mut messages = framing::replies(answer, upstream.limits.receive_bytes)?;
        loop {
            let message = tokio::select! {
                message = messages.message() => message.map_err(receive_error)?,
                () = health.progress_requested.notified() => {
                    send(&frames, RequestUnion::ProgressRequest(WatchProgressRequest {}));
                    continue;
                }
            };
            let Some(message) = message else { return Ok(Ended::Lost) };
            let response: WatchResponse = framing::decode(message)?;
            health.has_response.store(true, Ordering::Relaxed);
            if response.canceled {
                let is_gone = response.compact_revision > 0;
                return Ok(if is_gone { Ended::Missed } else { Ended::Lost });
            }
            self.latest.see(response.header.as_ref());
            for mut event in response.events {
                if let Some(namespace) = &self.members.namespace {
                    namespace.strip_event(&mut event);
                }
                self.handle_event(&event, following);
            }
            self.report_load();
        }
    }

    fn create_request(&self, start_revision: i64) -> RequestUnion {
        let all = self.names.all();
        let mut request = WatchCreateRequest {
            key: all.key().clone(),
            range_end: all.range_end(),
            start_revision,
            ..WatchCreateRequest::default()
        };
        if let Some(namespace) = &self.members.namespace {
            namespace.watch(&mut request);
        }
        RequestUnion::CreateRequest(request)
    }
}

impl<S: Store> Leasing<S> {
    /// Processes an event on a leasing key.
    pub(super) fn handle_event(&self, event: &Event, following: &mut Following) {
        let Some(record) = &event.kv else { return };
        let revision = record.fields().mod_revision;
        following.next = following.next.max(revision + 1);
        let found = leasing_key(record);
        let Some(key) = self.names.key(&found.name) else { return };
        if event.r#type == EventType::Delete as i32 {
            self.owned_keys.lose(&key, revision);
            self.deletion_waiters.notify(&found.name);
            return;
        }
        if found.created < revision || found.lease != following.lease {
            // The leasing key belongs to another owner, or another participant has asked this proxy to release it.
            self.owned_keys.lose(&key, revision);
            if found.lease == following.lease {
                self.owned_keys.give_up(&key, found.created, self.members.now());
            }
        }
    }
}

fn send(frames: &mpsc::Sender<Result<Frame<Bytes>, Status>>, request: RequestUnion) {
    let request = WatchRequest { request_union: Some(request) };
    // The create request is the first request in the queue. If the queue is full, a progress request is dropped and
    // sent again in the next period.
    drop(frames.try_send(Ok(Frame::data(framed(&request)))));
}
