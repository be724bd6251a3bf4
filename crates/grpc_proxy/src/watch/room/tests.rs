//! Tests of groups that merge and split. There are no members: the tests pass in the responses.

use http_body_util::BodyExt as _;
use quorate_api::mvccpb::Event;
use quorate_api::record::{Fields, KeyValue};

use super::*;
use crate::outbox::{Outbox, OutboxBody};

struct Client {
    mailbox: Arc<Mailbox>,
    body: OutboxBody,
}

impl Client {
    fn new() -> Self {
        let outbox = Arc::new(Outbox::default());
        let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
        let body = outbox.body(task);
        Self { mailbox: Arc::new(Mailbox::new(outbox)), body }
    }

    fn watcher(&self, watch_id: i64, next: i64) -> Watcher {
        let mailbox = Arc::clone(&self.mailbox);
        Watcher {
            mailbox,
            serial: 0,
            watch_id,
            next,
            wants_progress: false,
            is_created: false,
            awaits_progress: false,
        }
    }

    /// Returns a short form of the responses that the client received since.
    async fn told(mut self) -> Vec<String> {
        self.mailbox.outbox.end(Status::ok(""));
        let mut wire = Vec::new();
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.unwrap().into_data() {
                wire.extend_from_slice(&data);
            }
        }
        let mut told = Vec::new();
        let mut rest = &wire[..];
        while let Some((head, after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let response = <WatchResponse as prost::Message>::decode(&after[..length]).unwrap();
            rest = &after[length..];
            if response.created {
                told.push("created".to_owned());
            }
            if response.canceled {
                told.push(format!("cancelled at {}", response.compact_revision));
            }
            told.extend(response.events.iter().map(|event| response::revision(event).to_string()));
        }
        told
    }
}

fn room() -> Room {
    let wish = Wish {
        asker: Asker::default(),
        key: Bytes::from_static(b"a"),
        range_end: Bytes::new(),
        filters: Vec::new(),
        prev_kv: false,
    };
    Room::new(wish, Arc::new(ProxyMetrics::new(&[])))
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

fn created(revision: i64) -> WatchResponse {
    WatchResponse { header: header(revision), created: true, ..WatchResponse::default() }
}

fn progress(revision: i64) -> WatchResponse {
    WatchResponse { header: header(revision), ..WatchResponse::default() }
}

fn events(revisions: &[i64]) -> WatchResponse {
    let event = |revision: &i64| Event {
        kv: Some(KeyValue::new(&Fields {
            key: b"a",
            mod_revision: *revision,
            ..Fields::default()
        })),
        ..Event::default()
    };
    WatchResponse {
        header: header(revisions.last().copied().unwrap_or_default()),
        events: revisions.iter().map(event).collect(),
        ..WatchResponse::default()
    }
}

fn alone(entered: Entered) -> u64 {
    match entered {
        Entered::Alone { group, .. } => group,
        Entered::Joined(_) => panic!("it joined a group"),
    }
}

#[tokio::test]
async fn a_watcher_from_now_on_joins_a_current_group_with_undelivered_events() {
    let room = room();
    let (first, second) = (Client::new(), Client::new());
    let group = alone(room.enter(first.watcher(1, 0)));
    assert!(room.deliver(group, created(10)));
    assert!(room.deliver(group, events(&[11])));
    // The member has created the watch at revision 13, which the first group has not reached.
    let other = alone(room.enter(second.watcher(1, 0)));
    assert!(!room.deliver(other, created(13)), "its watch is not wanted any more");
    assert_eq!(room.metrics.watchers_coalescing.value(), 1);
    assert!(room.deliver(group, events(&[12, 13, 14])));
    assert!(room.deliver(group, events(&[15])));
    assert_eq!(first.told().await, ["created", "11", "12", "13", "14", "15"]);
    assert_eq!(second.told().await, ["created", "14", "15"]);
}

#[tokio::test]
async fn a_watcher_with_a_past_start_revision_catches_up_before_joining_a_group() {
    let room = room();
    let (now, past) = (Client::new(), Client::new());
    let group = alone(room.enter(now.watcher(1, 0)));
    assert!(room.deliver(group, created(20)));
    let other = alone(room.enter(past.watcher(1, 5)));
    assert!(room.deliver(other, created(20)));
    assert!(room.deliver(other, events(&[7, 9])));
    assert!(room.deliver(group, events(&[21])));
    assert!(!room.deliver(other, events(&[15, 21])), "it is where the others are");
    assert!(room.deliver(group, events(&[22])));
    assert_eq!(past.told().await, ["created", "7", "9", "15", "21", "22"]);
    assert_eq!(now.told().await, ["created", "21", "22"]);
}

#[tokio::test]
async fn no_group_is_joined_that_is_still_catching_up() {
    let room = room();
    let (past, now, later) = (Client::new(), Client::new(), Client::new());
    let group = alone(room.enter(past.watcher(1, 5)));
    assert!(room.deliver(group, created(20)));
    // The watch delivers from revision 5 on, and it is unknown when it will catch up.
    let other = alone(room.enter(now.watcher(1, 0)));
    assert!(room.deliver(other, created(20)));
    assert!(!room.deliver(group, progress(20)), "it is where the other one is");
    let Entered::Alone { watcher, group: third, has_company: true } =
        room.enter(later.watcher(2, 30))
    else {
        panic!("a member has to check it first");
    };
    assert_eq!(room.start(third), Some(30));
    assert!(!room.deliver(third, created(20)), "what it wants is still to come");
    assert!(room.deliver(other, events(&[25, 30])));
    assert_eq!(room.metrics.watchers_coalescing.value(), 2);
    room.leave(watcher);
    assert_eq!(room.metrics.watchers_coalescing.value(), 1);
    assert_eq!(past.told().await, ["created", "25", "30"]);
    assert_eq!(later.told().await, ["created", "30"]);
}

#[tokio::test]
async fn a_refused_watcher_receives_no_events_of_other_watchers() {
    let room = room();
    let (first, refused, back) = (Client::new(), Client::new(), Client::new());
    let group = alone(room.enter(first.watcher(1, 0)));
    assert!(room.deliver(group, created(10)));
    let other = alone(room.enter(refused.watcher(1, 11)));
    assert!(room.deliver(group, events(&[11])));
    let refusal = WatchResponse { canceled: true, watch_id: -1, ..created(11) };
    assert!(!room.deliver(other, refusal));
    // A watcher that was created before and fell behind is not new.
    let returned = Watcher { is_created: true, ..back.watcher(1, 12) };
    assert!(matches!(room.enter(returned), Entered::Joined(_)));
    assert!(room.deliver(group, events(&[12])));
    assert_eq!(first.told().await, ["created", "11", "12"]);
    assert_eq!(refused.told().await, ["created", "cancelled at 0"]);
    assert_eq!(back.told().await, ["12"]);
}

#[tokio::test]
async fn a_reopened_watch_continues_at_its_position() {
    let room = room();
    let client = Client::new();
    let group = alone(room.enter(client.watcher(1, 0)));
    assert_eq!(room.start(group), Some(0));
    assert!(room.deliver(group, created(10)));
    assert!(room.deliver(group, events(&[12])));
    // The latest known revision, so that the watch does not start in the future.
    assert_eq!(room.start(group), Some(12));
    // Another member, which is behind.
    assert!(room.deliver(group, created(8)));
    assert!(room.deliver(group, events(&[12, 13])));
    let cancelled = WatchResponse {
        header: header(20),
        canceled: true,
        compact_revision: 15,
        ..WatchResponse::default()
    };
    assert!(!room.deliver(group, cancelled));
    assert_eq!(room.start(group), None);
    assert!(room.is_empty());
    assert_eq!(client.told().await, ["created", "12", "13", "cancelled at 15"]);
}

#[tokio::test]
async fn a_slow_watcher_leaves_its_group_without_affecting_the_others() {
    let room = room();
    let (slow, quick) = (Client::new(), Client::new());
    let group = alone(room.enter(slow.watcher(1, 0)));
    assert!(room.deliver(group, created(10)));
    let other = alone(room.enter(quick.watcher(1, 0)));
    assert!(!room.deliver(other, created(10)));
    assert!(room.deliver(group, events(&[11])));
    slow.mailbox.outbox.put(Letter::of(vec![0; crate::outbox::BYTES_MAX].into()));
    assert!(room.deliver(group, events(&[12, 13])));
    let Some(notice) = slow.mailbox.next() else { panic!("it has left") };
    assert!(matches!(notice.news, News::Behind { next: 12 }), "{notice:?}");
    assert_eq!(quick.told().await, ["created", "11", "12", "13"]);
}
