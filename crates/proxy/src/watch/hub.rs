//! All rooms, and the tasks that follow watches of members for them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use parking_lot::Mutex;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_api::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use quorate_telemetry::metrics::ProxyMetrics;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Code, Status};

use super::room::{Entered, Room, Watcher, Wish};
use crate::framing::{self, Messages};
use crate::namespace::Namespace;
use crate::upstream::{Upstream, told};

const PATH: &str = "/etcdserverpb.Watch/Watch";

/// Before a watch that has ended is begun again: at first, and at most.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    upstream: Arc<Upstream>,
    metrics: Arc<ProxyMetrics>,
    namespace: Option<Namespace>,
    rooms: Mutex<HashMap<Wish, Arc<Room>>>,
}

type Frames = mpsc::Sender<Result<Frame<Bytes>, Status>>;

impl Hub {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        metrics: Arc<ProxyMetrics>,
        namespace: Option<Namespace>,
    ) -> Self {
        Self { upstream, metrics, namespace, rooms: Mutex::default() }
    }

    pub(super) const fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// Lets a watcher into the room of those who want the same.
    pub(super) fn enter(self: &Arc<Self>, wish: Wish, watcher: Watcher) -> (Arc<Room>, u64) {
        let mut rooms = self.rooms.lock();
        let room = match rooms.entry(wish) {
            Entry::Occupied(found) => Arc::clone(found.get()),
            Entry::Vacant(vacant) => {
                let room = Room::new(vacant.key().clone(), Arc::clone(&self.metrics));
                Arc::clone(vacant.insert(Arc::new(room)))
            }
        };
        // Before the rooms are let go of: an empty one may be taken away.
        match room.enter(watcher) {
            Entered::Joined(watcher) => (room, watcher),
            Entered::Alone { watcher, group } => {
                let following = follow(Arc::clone(self), Arc::clone(&room), group);
                room.followed_by(group, tokio::spawn(following).abort_handle());
                (room, watcher)
            }
        }
    }

    /// Takes a room away in which nobody is.
    pub(super) fn tidy(&self, room: &Arc<Room>) {
        let mut rooms = self.rooms.lock();
        let is_it = rooms.get(&room.wish).is_some_and(|found| Arc::ptr_eq(found, room));
        if is_it && room.is_empty() {
            rooms.remove(&room.wish);
        }
    }
}

/// Follows a watch for a group, begun again where it has got to whenever a member is lost.
async fn follow(hub: Arc<Hub>, room: Arc<Room>, group: u64) {
    let mut pause = PAUSE;
    loop {
        let (frames, body) = requests();
        let (progress, mut wanted) = mpsc::channel(1);
        let Some(start) = room.begin(group, progress) else { break };
        ask(&frames, create_request(&room.wish, start));
        let headers = room.wish.asker.headers();
        let following = async {
            let answer = hub.upstream.open(PATH, &headers, body).await?;
            let messages = framing::replies(answer, hub.upstream.limits.receive_bytes)?;
            read(&hub, &room, group, messages, (&frames, start)).await
        };
        let asking = async {
            while wanted.recv().await.is_some() {
                ask(&frames, progress_request());
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = following => ended,
            () = asking => unreachable!("it never ends"),
        };
        match ended {
            Ok(Followed::NotWanted) => break,
            Ok(Followed::Ended { has_told }) if has_told => pause = PAUSE,
            Ok(Followed::Ended { .. }) => {}
            Err(status) if is_passing(&status, room.wish.asker.requires_leader()) => {}
            Err(status) => {
                room.fail(group, &status);
                break;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    hub.tidy(&room);
}

/// How a watch ended that did not fail for good.
enum Followed {
    NotWanted,
    Ended { has_told: bool },
}

async fn read(
    hub: &Hub,
    room: &Room,
    group: u64,
    mut messages: Messages,
    (frames, start): (&Frames, i64),
) -> Result<Followed, Status> {
    let requires_leader = room.wish.asker.requires_leader();
    let mut has_told = false;
    loop {
        let message = match messages.message().await.map_err(told) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(Followed::Ended { has_told }),
            Err(status) if is_passing(&status, requires_leader) => {
                return Ok(Followed::Ended { has_told });
            }
            Err(status) => return Err(status),
        };
        has_told = true;
        let mut response: WatchResponse = framing::decode(message)?;
        if let Some(namespace) = &hub.namespace {
            response.events.iter_mut().for_each(|event| namespace.strip_event(event));
        }
        if response.created && start > 0 {
            // Answered once the watch has told all that was: from then on others may join it.
            ask(frames, progress_request());
        }
        if !room.deliver(group, response) {
            return Ok(Followed::NotWanted);
        }
    }
}

/// Whether another member, or the same one later, may go on.
fn is_passing(status: &Status, requires_leader: bool) -> bool {
    let has_no_leader = status.message() == "etcdserver: no leader";
    status.code() == Code::Unavailable && !(requires_leader && has_no_leader)
}

/// The body of a call, and what it is made of.
fn requests() -> (Frames, Body) {
    // One to create, and those for progress, which are the same.
    let (frames, receiver) = mpsc::channel(4);
    (frames, Body::new(StreamBody::new(ReceiverStream::new(receiver))))
}

fn ask(frames: &Frames, request: RequestUnion) {
    let request = WatchRequest { request_union: Some(request) };
    // A question for progress that finds no room is asked once more when somebody asks.
    drop(frames.try_send(Ok(Frame::data(framing::framed(&request)))));
}

const fn progress_request() -> RequestUnion {
    RequestUnion::ProgressRequest(WatchProgressRequest {})
}

fn create_request(wish: &Wish, start_revision: i64) -> RequestUnion {
    RequestUnion::CreateRequest(WatchCreateRequest {
        key: wish.key.clone(),
        range_end: wish.range_end.clone(),
        start_revision,
        // Whoever is far behind in revisions of other keys learns it, and can join others.
        progress_notify: true,
        filters: wish.filters.clone(),
        prev_kv: wish.prev_kv,
        ..WatchCreateRequest::default()
    })
}
