//! Watches under load: progress, fragments, catching up on a long history, and slow readers.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Kind, Options, Server, Watch, on_both_servers, put_op, txn, watch_key, watch_prefix,
};

on_both_servers! {
    a_progress_request_returns_the_current_revision,
    progress_requests_are_not_answered_without_a_watcher,
    progress_requests_are_dropped_while_a_watcher_is_not_synced,
    progress_is_sent_periodically_if_requested,
    large_responses_are_fragmented,
    responses_are_not_fragmented_by_default,
    a_long_history_is_caught_up_in_order,
    a_history_of_large_values_is_caught_up_by_fast_and_slow_readers,
    a_watcher_catches_up_during_writes,
    a_slow_reader_gets_every_event,
    a_slow_reader_overtaken_by_a_compaction_is_notified,
    watch_streams_end_when_the_server_stops,
}

/// Reads the events of one watcher up to revision `last`, and checks their order.
async fn read_through(watch: &mut Watch, last: i64) -> Vec<(i64, Vec<u8>)> {
    let mut seen: Vec<(i64, Vec<u8>)> = Vec::new();
    while seen.last().is_none_or(|(revision, _)| *revision < last) {
        let response = watch.next().await;
        assert!(!response.canceled, "{response:?}");
        for event in response.events {
            let record = event.kv.unwrap();
            let revision = record.fields().mod_revision;
            assert!(
                seen.last().is_none_or(|(earlier, _)| *earlier <= revision),
                "the events are out of order"
            );
            seen.push((revision, record.value().to_vec()));
        }
    }
    seen
}

async fn a_progress_request_returns_the_current_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_key("k")).await;
    client.write("k", "1").await;
    let last = client.write("unrelated", "2").await;
    assert_eq!(watch.events(1).await.len(), 1);
    watch.progress().await;
    let progress = watch.next().await;
    assert_eq!(progress.watch_id, -1);
    assert!(progress.events.is_empty() && !progress.created && !progress.canceled);
    assert_eq!(progress.header.unwrap().revision, last);
}

async fn progress_requests_are_not_answered_without_a_watcher(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    if server.is_3_7() {
        watch.progress().await;
    }
    // If the server answered the progress request, the answer would arrive before the response to this create request.
    watch.create(watch_key("k")).await;
    watch.progress().await;
    assert_eq!(watch.next().await.watch_id, -1);
}

async fn progress_requests_are_dropped_while_a_watcher_is_not_synced(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    // A watcher that waits for a future revision is not synced.
    let request = pb::WatchCreateRequest { start_revision: 100, ..watch_key("k") };
    watch.create(request).await;
    watch.progress().await;
    if !server.is_3_7() {
        assert_eq!(
            watch.next().await.watch_id,
            -1,
            "Debian's release does not check for unsynced watchers"
        );
    }
    watch.cancel(0).await;
    let reply = watch.next().await;
    assert!(reply.canceled, "the progress request must be dropped: {reply:?}");
    watch.create(watch_key("k")).await;
    watch.progress().await;
    assert_eq!(watch.next().await.watch_id, -1);
}

async fn progress_is_sent_periodically_if_requested(kind: Kind) {
    let flag = if kind == Kind::Etcd {
        "--experimental-watch-progress-notify-interval=200ms"
    } else {
        "--watch-progress-notify-interval=200ms"
    };
    let server = Options::new(kind).flag(flag).start().await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest { progress_notify: true, watch_id: 3, ..watch_key("k") };
    watch.create(request).await;
    watch.create(watch_key("k")).await;
    let revision = client.write("unrelated", "v").await;
    loop {
        let progress = watch.next().await;
        assert_eq!(
            progress.watch_id, 3,
            "only the watcher with progress notifications receives one: {progress:?}"
        );
        assert!(progress.events.is_empty() && !progress.created && !progress.canceled);
        if progress.header.unwrap().revision == revision {
            break;
        }
    }
}

/// Writes `count` values of `size` bytes in one revision.
async fn write_at_once(client: &Client, count: usize, size: usize) -> i64 {
    let puts = (0..count).map(|number| put_op(format!("k{number:03}"), vec![b'v'; size]));
    client.txn(txn(puts.collect())).await.unwrap().header.unwrap().revision
}

/// Writes one revision whose events take eight megabytes, including previous values.
async fn write_large_revision(client: &Client) -> i64 {
    write_at_once(client, 100, 40_000).await;
    write_at_once(client, 100, 40_000).await
}

async fn large_responses_are_fragmented(kind: Kind) {
    let server = Options::new(kind).flag("--max-request-bytes=4194304").start().await;
    let limit = 4_194_304 + 524_288;
    let client = server.client();
    let request = pb::WatchCreateRequest { fragment: true, prev_kv: true, ..watch_prefix("k") };
    let mut live = Watch::open(&client);
    live.create(request.clone()).await;
    let revision = write_large_revision(&client).await;
    let mut replay = Watch::open(&client);
    replay.create(pb::WatchCreateRequest { start_revision: revision, ..request }).await;
    assert_eq!(live.next().await.events.len(), 100, "the first revision fits into one response");
    for watch in [&mut live, &mut replay] {
        let mut total = 0;
        let mut fragments = 0;
        while total < 100 {
            let response = watch.next().await;
            assert!(prost::Message::encoded_len(&response) < limit);
            assert_eq!(response.header.unwrap().revision, revision);
            assert!(!response.events.is_empty());
            total += response.events.len();
            fragments += usize::from(response.fragment);
            assert_eq!(response.fragment, total < 100, "all pieces but the last are marked");
        }
        assert_eq!(total, 100);
        assert!(fragments > 0, "a response of 8 MB was not fragmented");
    }
}

async fn responses_are_not_fragmented_by_default(kind: Kind) {
    let server = Options::new(kind).flag("--max-request-bytes=4194304").start().await;
    let client = server.client();
    let request = pb::WatchCreateRequest { prev_kv: true, ..watch_prefix("k") };
    let mut live = Watch::open(&client);
    live.create(request.clone()).await;
    let revision = write_large_revision(&client).await;
    let mut replay = Watch::open(&client);
    replay.create(pb::WatchCreateRequest { start_revision: revision, ..request }).await;
    assert_eq!(live.next().await.events.len(), 100);
    for watch in [&mut live, &mut replay] {
        let response = watch.next().await;
        assert_eq!((response.fragment, response.events.len()), (false, 100));
        assert!(prost::Message::encoded_len(&response) > 8_000_000);
    }
}

async fn a_long_history_is_caught_up_in_order(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    // The history is longer than one catch-up batch.
    let writers = 20;
    let each = 150;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let client = client.clone();
        tasks.spawn(async move {
            for number in 0..each {
                client.write(format!("k{writer}"), number.to_string()).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let last = 1 + writers * each;
    let mut watch = Watch::open(&client);
    watch.create(pb::WatchCreateRequest { start_revision: 1, ..watch_prefix("k") }).await;
    let seen = read_through(&mut watch, last).await;
    let revisions: Vec<i64> = seen.iter().map(|(revision, _)| *revision).collect();
    assert_eq!(revisions, (2..=last).collect::<Vec<i64>>());
}

/// Reads one watcher's events up to a revision, including previous values, and checks the contents of each response.
async fn read_whole(watch: &mut Watch, fragment: bool, last: i64) -> Vec<(i64, Vec<u8>, Vec<u8>)> {
    let mut seen: Vec<(i64, Vec<u8>, Vec<u8>)> = Vec::new();
    let mut in_pieces = false;
    while in_pieces || seen.last().is_none_or(|(revision, ..)| *revision < last) {
        let response = watch.next().await;
        assert!(!response.canceled, "{response:?}");
        assert!(fragment || !response.fragment, "the client has not requested fragments");
        let fits = prost::Message::encoded_len(&response) < 1_572_864 + 524_288;
        assert!(!fragment || fits || response.events.len() == 1, "a piece is too large");
        in_pieces = response.fragment;
        for event in response.events {
            let before = event.prev_kv.map_or_else(Vec::new, |record| record.value().to_vec());
            let record = event.kv.unwrap();
            seen.push((record.fields().mod_revision, record.value().to_vec(), before));
        }
    }
    seen
}

async fn a_history_of_large_values_is_caught_up_by_fast_and_slow_readers(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for (key, count, size) in [("a", 3, 600_000), ("b", 40, 300_000), ("c", 5, 1_500_000)] {
        let value = |number: u8| vec![b'!' + number; size];
        let mut last = 0;
        for number in 0..count {
            last = client.write(key, value(number)).await;
        }
        let first = last - i64::from(count) + 1;
        for (fragment, prev_kv) in [(false, false), (true, false), (false, true), (true, true)] {
            let expected: Vec<_> = (first..=last)
                .zip(0..count)
                .map(|(revision, number)| {
                    let before = (prev_kv && number > 0).then(|| value(number - 1));
                    (revision, value(number), before.unwrap_or_default())
                })
                .collect();
            let request = pb::WatchCreateRequest {
                start_revision: first,
                fragment,
                prev_kv,
                ..watch_key(key)
            };
            // The slow reader starts to read once the fast reader has read everything.
            let mut slow = Watch::open(&server.client());
            slow.create(request.clone()).await;
            let mut fast = Watch::open(&server.client());
            fast.create(request).await;
            for watch in [&mut fast, &mut slow] {
                let seen = read_whole(watch, fragment, last).await;
                let options = format!("{key}, fragments {fragment}, previous {prev_kv}");
                assert!(seen == expected, "{options}: {} of {count}", seen.len());
            }
        }
    }
}

async fn a_watcher_catches_up_during_writes(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..300 {
        client.write("k", number.to_string()).await;
    }
    let writing = client.clone();
    let writer = tokio::spawn(async move {
        for number in 300..900 {
            writing.write("k", number.to_string()).await;
        }
    });
    let mut watches = BTreeMap::new();
    for start in [2, 50, 299, 301] {
        let mut watch = Watch::open(&client);
        watch.create(pb::WatchCreateRequest { start_revision: start, ..watch_key("k") }).await;
        watches.insert(start, watch);
    }
    for (start, watch) in &mut watches {
        let seen = read_through(watch, 901).await;
        let expected: Vec<_> = (*start..=901)
            .map(|revision| (revision, (revision - 2).to_string().into_bytes()))
            .collect();
        assert_eq!(seen, expected, "from {start}");
    }
    writer.await.unwrap();
}

async fn a_slow_reader_gets_every_event(kind: Kind) {
    let server = Server::start(kind).await;
    // The reader has its own connection, so that its unread bytes do not delay any other client.
    let reader = server.client();
    let mut watch = Watch::open(&reader);
    watch.create(watch_prefix("k")).await;
    let client = server.client();
    let count = 1_500;
    let value = vec![b'v'; 10_000];
    for number in 0..count {
        client.write(format!("k{number}"), &value).await;
    }
    let seen = read_through(&mut watch, 1 + count).await;
    assert_eq!(seen.len(), usize::try_from(count).unwrap());
    assert!(seen.iter().zip(2..).all(|((revision, _), expected)| *revision == expected));
}

async fn a_slow_reader_overtaken_by_a_compaction_is_notified(kind: Kind) {
    let server = Server::start(kind).await;
    let reader = server.client();
    let mut watch = Watch::open(&reader);
    watch.create(watch_prefix("k")).await;
    let client = server.client();
    let value = vec![b'v'; 100_000];
    let mut last = 0;
    for _ in 0..400 {
        last = client.write("k", &value).await;
    }
    client.compact_to(last).await;
    // Either all events were already in transit, or the watcher is cancelled because of the gap. Events are never lost
    // silently.
    let mut next = 2;
    while next <= last {
        let response = watch.next().await;
        if response.canceled {
            assert_eq!(response.compact_revision, last);
            return;
        }
        for event in response.events {
            assert_eq!(
                event.kv.unwrap().fields().mod_revision,
                next,
                "events are missing before this one"
            );
            next += 1;
        }
    }
}

async fn watch_streams_end_when_the_server_stops(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_key("k")).await;
    server.signal("TERM");
    // A stopping server waits for open streams, but not indefinitely.
    let limit = Duration::from_secs(15);
    let ended = tokio::time::timeout(limit, watch.try_next()).await;
    let ended = ended.expect("the stream ends within the limit");
    assert!(matches!(ended, Err(_) | Ok(None)), "{ended:?}");
    server.ended().await;
}
