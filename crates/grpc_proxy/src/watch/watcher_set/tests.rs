//! Tests merging and splitting of groups. There are no members, so the tests supply the responses.

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

    /// Returns the responses that the client has received, in a short text form.
    async fn received(mut self) -> Vec<String> {
        self.mailbox.outbox.end(Status::ok(""));
        let mut wire = Vec::new();
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.unwrap().into_data() {
                wire.extend_from_slice(&data);
            }
        }
        let mut received = Vec::new();
        let mut rest = &wire[..];
        while let Some((head, after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let response = <WatchResponse as prost::Message>::decode(&after[..length]).unwrap();
            rest = &after[length..];
            if response.created {
                received.push("created".to_owned());
            }
            if response.canceled {
                received.push(format!("cancelled at {}", response.compact_revision));
            }
            received
                .extend(response.events.iter().map(|event| response::revision(event).to_string()));
        }
        received
    }
}

fn set() -> WatcherSet {
    let parameters = WatchParameters {
        caller: Caller::default(),
        key: Bytes::from_static(b"a"),
        range_end: Bytes::new(),
        filters: Vec::new(),
        prev_kv: false,
    };
    WatcherSet::new(parameters, Arc::new(ProxyMetrics::new(&[])))
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

fn new_group(added: Added) -> u64 {
    match added {
        Added::NewGroup { group, .. } => group,
        Added::Joined(_) => panic!("the watcher joined a group"),
    }
}

#[tokio::test]
async fn a_watcher_without_a_start_revision_joins_a_group_with_undelivered_events() {
    let set = set();
    let (first, second) = (Client::new(), Client::new());
    let group = new_group(set.add(first.watcher(1, 0)).unwrap());
    assert!(set.deliver(group, created(10)));
    assert!(set.deliver(group, events(&[11])));
    // The member creates the watch at revision 13, which the first group has not reached.
    let other = new_group(set.add(second.watcher(1, 0)).unwrap());
    assert!(!set.deliver(other, created(13)), "the watch is no longer needed");
    assert_eq!(set.metrics.watchers_coalescing.value(), 1);
    assert!(set.deliver(group, events(&[12, 13, 14])));
    assert!(set.deliver(group, events(&[15])));
    assert_eq!(first.received().await, ["created", "11", "12", "13", "14", "15"]);
    assert_eq!(second.received().await, ["created", "14", "15"]);
}

#[tokio::test]
async fn a_watcher_with_a_past_start_revision_catches_up_before_joining_a_group() {
    let set = set();
    let (now, past) = (Client::new(), Client::new());
    let group = new_group(set.add(now.watcher(1, 0)).unwrap());
    assert!(set.deliver(group, created(20)));
    let other = new_group(set.add(past.watcher(1, 5)).unwrap());
    assert!(set.deliver(other, created(20)));
    assert!(set.deliver(other, events(&[7, 9])));
    assert!(set.deliver(group, events(&[21])));
    assert!(!set.deliver(other, events(&[15, 21])), "the group has caught up with the first group");
    assert!(set.deliver(group, events(&[22])));
    assert_eq!(past.received().await, ["created", "7", "9", "15", "21", "22"]);
    assert_eq!(now.received().await, ["created", "21", "22"]);
}

#[tokio::test]
async fn a_watcher_does_not_join_a_group_that_is_catching_up() {
    let set = set();
    let (past, now, later) = (Client::new(), Client::new(), Client::new());
    let group = new_group(set.add(past.watcher(1, 5)).unwrap());
    assert!(set.deliver(group, created(20)));
    // The watch delivers events from revision 5 on, and it is unknown when the watch will catch up.
    let other = new_group(set.add(now.watcher(1, 0)).unwrap());
    assert!(set.deliver(other, created(20)));
    assert!(!set.deliver(group, progress(20)), "the group has caught up with the other group");
    let Added::NewGroup { watcher, group: third, has_joinable_group: true } =
        set.add(later.watcher(2, 30)).unwrap()
    else {
        panic!("the watcher joined a group without a check by a member");
    };
    assert_eq!(set.start(third), Some(30));
    assert!(!set.deliver(third, created(20)), "the start revision of the watcher is in the future");
    assert!(set.deliver(other, events(&[25, 30])));
    assert_eq!(set.metrics.watchers_coalescing.value(), 2);
    set.remove(watcher);
    assert_eq!(set.metrics.watchers_coalescing.value(), 1);
    assert_eq!(past.received().await, ["created", "25", "30"]);
    assert_eq!(later.received().await, ["created", "30"]);
}

#[tokio::test]
async fn a_refused_watcher_receives_no_events_for_other_watchers() {
    let set = set();
    let (first, refused, back) = (Client::new(), Client::new(), Client::new());
    let group = new_group(set.add(first.watcher(1, 0)).unwrap());
    assert!(set.deliver(group, created(10)));
    let other = new_group(set.add(refused.watcher(1, 11)).unwrap());
    assert!(set.deliver(group, events(&[11])));
    let refusal = WatchResponse { canceled: true, watch_id: -1, ..created(11) };
    assert!(!set.deliver(other, refusal));
    // A watcher that has fallen behind does not count as new when it returns.
    let returned = Watcher { is_created: true, ..back.watcher(1, 12) };
    assert!(matches!(set.add(returned).unwrap(), Added::Joined(_)));
    assert!(set.deliver(group, events(&[12])));
    assert_eq!(first.received().await, ["created", "11", "12"]);
    assert_eq!(refused.received().await, ["created", "cancelled at 0"]);
    assert_eq!(back.received().await, ["12"]);
}

#[tokio::test]
async fn a_reopened_watch_continues_at_the_latest_known_revision() {
    let set = set();
    let client = Client::new();
    let group = new_group(set.add(client.watcher(1, 0)).unwrap());
    assert_eq!(set.start(group), Some(0));
    assert!(set.deliver(group, created(10)));
    assert!(set.deliver(group, events(&[12])));
    // The reopened watch starts at the latest known revision, because the next revision is still in the future.
    assert_eq!(set.start(group), Some(12));
    // The watch is created again on another member, which is behind.
    assert!(set.deliver(group, created(8)));
    assert!(set.deliver(group, events(&[12, 13])));
    let cancelled = WatchResponse {
        header: header(20),
        canceled: true,
        compact_revision: 15,
        ..WatchResponse::default()
    };
    assert!(!set.deliver(group, cancelled));
    assert_eq!(set.start(group), None);
    assert!(set.is_empty());
    assert_eq!(client.received().await, ["created", "12", "13", "cancelled at 15"]);
}

#[tokio::test]
async fn a_slow_watcher_leaves_its_group_without_affecting_other_watchers() {
    let set = set();
    let (slow, quick) = (Client::new(), Client::new());
    let group = new_group(set.add(slow.watcher(1, 0)).unwrap());
    assert!(set.deliver(group, created(10)));
    let other = new_group(set.add(quick.watcher(1, 0)).unwrap());
    assert!(!set.deliver(other, created(10)));
    assert!(set.deliver(group, events(&[11])));
    slow.mailbox.outbox.put(OutboxMessage::of(vec![0; crate::outbox::BYTES_MAX].into()));
    assert!(set.deliver(group, events(&[12, 13])));
    let Some(notice) = slow.mailbox.next() else {
        panic!("the slow watcher left its group without a notice")
    };
    assert!(matches!(notice.change, WatcherChange::Behind { next: 12 }), "{notice:?}");
    assert_eq!(quick.received().await, ["created", "11", "12", "13"]);
}

#[tokio::test]
async fn watchers_are_added_moved_and_removed_in_logarithmic_time() {
    // With linear time for each watcher, this test would take most of a minute.
    const COUNT: i64 = 30_000;
    let (set, client) = (set(), Client::new());
    let add = |next: i64| match set.add(client.watcher(next, next)).unwrap() {
        Added::NewGroup { watcher, group, .. } => (watcher, group),
        Added::Joined(_) => panic!("the watcher joined a group"),
    };
    // Each of these groups starts at its own revision and has not caught up.
    let mut watchers: Vec<u64> = (2..COUNT).map(|start| add(start).0).collect();
    let (first, group) = add(1);
    watchers.push(first);
    assert!(set.deliver(group, created(1)));
    assert!(set.deliver(group, progress(1)));
    // Each of these groups joins the group that has caught up.
    for start in 2..COUNT {
        let (watcher, group) = add(start);
        assert!(!set.deliver(group, created(1)));
        watchers.push(watcher);
        set.ask_progress(watcher);
    }
    assert_eq!(set.metrics.watchers_coalescing.value(), COUNT - 2);
    for watcher in watchers {
        set.remove(watcher);
    }
    assert!(set.is_empty());
    assert_eq!(set.metrics.watchers_coalescing.value(), 0);
}

#[tokio::test]
async fn a_removed_set_accepts_no_watchers() {
    let (set, client) = (set(), Client::new());
    let group = new_group(set.add(client.watcher(1, 0)).unwrap());
    assert!(!set.remove_if_empty());
    set.fail(group, &Status::unavailable("gone"));
    assert!(set.remove_if_empty());
    assert!(set.add(client.watcher(2, 0)).is_err());
}
