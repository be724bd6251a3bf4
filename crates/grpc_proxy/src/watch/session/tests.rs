//! Tests of a client's stream. No member is reachable, so watches remain unanswered.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use prost::Message as _;
use quorate_api::etcdserverpb::{WatchCancelRequest, WatchProgressRequest};
use quorate_cli::flags::Matches;
use quorate_telemetry::metrics::ProxyMetrics;
use tokio::runtime::Handle;

use super::super::member::{Frames, requests, write};
use super::*;
use crate::byte_limit::ByteLimit;
use crate::line::{FLAGS, Options};
use crate::security::targets;
use crate::upstream::Upstream;

fn hub(watcher_bytes_max: usize) -> Arc<Hub> {
    let words = [b"--endpoints=unix:///nowhere".to_vec()];
    let options = Options::of(&Matches::parse(FLAGS, &words).unwrap()).unwrap();
    let targets = targets(&options, false).unwrap();
    let (keep_alive, limits) = (options.dial_keep_alive, options.limits);
    let upstream =
        Upstream::new(&options.endpoints, targets, keep_alive, limits, Handle::current()).unwrap();
    let mut hub = Hub::new(upstream, Arc::new(ProxyMetrics::new(&[])), None, None);
    hub.watcher_bytes = ByteLimit::new(watcher_bytes_max);
    Arc::new(hub)
}

async fn send(frames: &Frames, requests: impl IntoIterator<Item = RequestUnion>) {
    let mut chunk = BytesMut::new();
    for request in requests {
        write(&mut chunk, request);
    }
    frames.send(Ok(Frame::data(chunk.freeze()))).await.unwrap();
}

fn create(watch_id: i64, start_revision: i64) -> RequestUnion {
    let key = Bytes::copy_from_slice(&watch_id.to_be_bytes());
    let request = WatchCreateRequest { key, watch_id, start_revision, ..Default::default() };
    RequestUnion::CreateRequest(request)
}

fn progress() -> RequestUnion {
    RequestUnion::ProgressRequest(WatchProgressRequest {})
}

fn cancel(watch_id: i64) -> RequestUnion {
    RequestUnion::CancelRequest(WatchCancelRequest { watch_id })
}

/// The responses that the client receives.
struct Responses {
    body: Body,
    wire: BytesMut,
}

impl Responses {
    fn of(hub: &Arc<Hub>, body: Body) -> Self {
        Self { body: serve(hub, &HeaderMap::new(), body).into_body(), wire: BytesMut::new() }
    }

    async fn next(&mut self) -> WatchResponse {
        loop {
            if let Some((head, rest)) = self.wire.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if rest.len() >= length {
                    let message = self.wire.split_to(5 + length);
                    return WatchResponse::decode(&message[5..]).unwrap();
                }
            }
            let frame = self.body.frame().await.unwrap().unwrap();
            self.wire.extend_from_slice(&frame.into_data().unwrap());
        }
    }
}

#[tokio::test]
async fn watchers_beyond_the_memory_limit_are_refused_until_others_are_cancelled() {
    let hub = hub(2 * (WATCHER_BYTES + 8));
    let (frames, body) = requests();
    let mut responses = Responses::of(&hub, body);
    send(&frames, (1..=3).map(|id| create(id, 0))).await;
    let refused = responses.next().await;
    assert!(refused.created && refused.canceled);
    assert_eq!(refused.watch_id, NO_WATCHER);
    assert_eq!(refused.cancel_reason, "etcdserver: too many requests");
    send(&frames, [cancel(2)]).await;
    assert_eq!(responses.next().await.watch_id, 2);
    send(&frames, [create(4, 0), create(5, 0)]).await;
    assert_eq!(responses.next().await.watch_id, NO_WATCHER, "watcher 5 is refused");
    send(&frames, [cancel(1), cancel(4)]).await;
    for watch_id in [1, 4] {
        assert_eq!(responses.next().await.watch_id, watch_id);
    }
    assert_eq!(hub.watcher_bytes.used(), 0);
}

#[tokio::test]
async fn a_progress_response_covers_watchers_that_are_created_before_it() {
    let hub = hub(usize::MAX);
    let mut session = Session::new(&hub, &HeaderMap::new());
    let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
    let mut body = session.mailbox.outbox.body(task);
    for union in [create(1, 0), progress(), create(2, 1)] {
        session.handle(WatchRequest { request_union: Some(union) });
    }
    for (serial, revision) in [(0, 10), (1, 8)] {
        let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "watcher 2 may lack earlier events");
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        session.handle_notice(Notice { serial, change: WatcherChange::Progressed { header } });
    }
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let response = WatchResponse::decode(&frame[5..]).unwrap();
    assert_eq!((response.watch_id, response.header.unwrap().revision), (NO_WATCHER, 8));
}

#[tokio::test]
async fn a_progress_response_does_not_wait_for_watchers_that_start_after_its_revision() {
    let hub = hub(usize::MAX);
    let mut session = Session::new(&hub, &HeaderMap::new());
    let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
    let mut body = session.mailbox.outbox.body(task);
    for union in [create(1, 0), create(2, 12), progress(), create(3, 11)] {
        session.handle(WatchRequest { request_union: Some(union) });
    }
    let header = Some(ResponseHeader { revision: 10, ..ResponseHeader::default() });
    session.handle_notice(Notice { serial: 0, change: WatcherChange::Progressed { header } });
    let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Some(Ok(frame))) = polled else { panic!("the client received no response") };
    let response = WatchResponse::decode(&frame.into_data().unwrap()[5..]).unwrap();
    assert_eq!((response.watch_id, response.header.unwrap().revision), (NO_WATCHER, 10));
    assert!(session.progress.asked.is_empty(), "a later progress request would not be sent");
}

#[tokio::test]
async fn requests_take_logarithmic_time_in_the_number_of_watchers() {
    // With linear time for each request, this test would take most of a minute.
    const COUNT: i64 = 30_000;
    let hub = hub(usize::MAX);
    let (frames, body) = requests();
    let mut responses = Responses::of(&hub, body);
    for id in 1..=COUNT {
        send(&frames, [create(id, 0)]).await;
    }
    for watch_id in 1..=COUNT {
        send(&frames, [cancel(watch_id)]).await;
        assert_eq!(responses.next().await.watch_id, watch_id);
    }
    assert_eq!(hub.watcher_bytes.used(), 0);
}
