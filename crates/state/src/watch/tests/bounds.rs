//! Tests of the bounds that apply to all watchers and streams together.

use super::*;
use crate::watch::queue::CONTROL_BACKLOG_MAX;

#[test]
fn watchers_are_refused_at_the_memory_limit_for_watchers() {
    let (_, hub) = setup_with(WatchLimits { watcher_bytes_max: 2000, ..WatchLimits::default() });
    let mut first = hub.open_stream(1 << 20);
    let mut second = hub.open_stream(1 << 20);
    watch(&mut first, create(&[b'k'; 400], b"", 0));
    watch(&mut second, create(b"a", &[b'b'; 400], 0));
    let full = hub.stats().watcher_bytes;
    watch(&mut second, create(&[b'k'; 400], b"", 0));
    watch(&mut second, create(b"a", b"", 0));
    let refused = "-1@1: created canceled 0 etcdserver: too many requests";
    assert_eq!(received(&mut first), ["0@1: created"]);
    assert_eq!(received(&mut second), ["0@1: created", refused, refused]);
    assert_eq!((hub.stats().watcher_bytes, hub.stats().refused_watcher_count), (full, 2));
    second.cancel(0);
    watch(&mut second, create(b"a", b"", 0));
    assert_eq!(received(&mut second), ["0@1: canceled 0 ", "1@1: created"]);
    drop((first, second));
    assert_eq!(hub.stats().watcher_bytes, 0);
}

/// Opens streams that never take their responses.
fn idle_streams(hub: &Hub, count: usize, start_revision: i64) -> Vec<WatchStream> {
    let mut streams: Vec<_> = (0..count).map(|_| hub.open_stream(1 << 20)).collect();
    for stream in &mut streams {
        watch(stream, create(b"k", b"", start_revision));
    }
    streams
}

#[test]
fn an_event_for_many_streams_is_held_in_memory_once() {
    let (keyspace, hub) = setup(QueueLimits::default());
    let streams = idle_streams(&hub, 100, 0);
    keyspace.put(&hub, b"k", &[b'x'; 1000]);
    assert!((1000..1100).contains(&hub.stats().held_bytes), "{:?}", hub.stats());
    drop(streams);
    assert_eq!(hub.stats().held_bytes, 0);
}

#[test]
fn pending_events_are_counted_for_each_watcher() {
    let (keyspace, hub) = setup(QueueLimits::default());
    let mut streams = idle_streams(&hub, 2, 0);
    watch(&mut streams[0], create(b"k", b"", 0));
    assert_eq!(hub.stats().pending_event_count, 0);
    keyspace.put(&hub, b"k", b"v");
    keyspace.put(&hub, b"other", b"v");
    keyspace.put(&hub, b"k", b"v");
    assert_eq!(hub.stats().pending_event_count, 2 * 3);
    assert_eq!(
        drain(&mut streams[1]).len(),
        3,
        "the stream receives the created response and two events"
    );
    assert_eq!(hub.stats().pending_event_count, 2 * 2);
    drop(streams);
    assert_eq!(hub.stats().pending_event_count, 0);
}

#[test]
fn at_the_memory_limit_a_stream_queues_one_response_and_loses_no_event() {
    let (keyspace, hub) =
        setup_with(WatchLimits { held_bytes_max: 3000, ..WatchLimits::default() });
    let mut streams = idle_streams(&hub, 2, 0);
    for number in 0..20 {
        keyspace.put(&hub, b"k", &[b'a' + number; 1000]);
    }
    assert!(hub.stats().held_bytes < 4100, "{:?}", hub.stats());
    assert_eq!(hub.stats().slow_watcher_count, 2);
    for stream in &mut streams {
        let mut received = Vec::new();
        loop {
            let more = drain(stream);
            if more.is_empty() {
                break;
            }
            received.extend(more.into_iter().flat_map(|response| response.events));
            catch_up(&hub);
        }
        let revisions = received.into_iter().map(|event| event.kv.unwrap().fields().mod_revision);
        assert!(revisions.eq(2..22));
    }
}

/// Returns a hub whose memory limit is reached, because nothing reads its streams.
fn full_hub() -> (Keyspace, Hub, Vec<WatchStream>) {
    let (keyspace, hub) =
        setup_with(WatchLimits { held_bytes_max: 1000, ..WatchLimits::default() });
    let idle = idle_streams(&hub, 3, 0);
    keyspace.put(&hub, b"k", &[b'x'; 1000]);
    keyspace.put(&hub, b"k", b"");
    assert!(hub.stats().held_bytes >= 1000, "{:?}", hub.stats());
    assert_eq!(hub.stats().slow_watcher_count, 3);
    (keyspace, hub, idle)
}

#[test]
fn clients_that_keep_reading_receive_events_from_history_at_the_memory_limit() {
    let (keyspace, hub, idle) = full_hub();
    for value in [b"4", b"5", b"6"] {
        keyspace.put(&hub, b"a", value);
    }
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 4));
    watch(&mut stream, create(b"a", b"c", 5));
    assert!(hub.poll_behind(&Context::from_waker(Waker::noop())).is_ready());
    catch_up(&hub);
    let created = ["0@6: created", "1@6: created"];
    assert_eq!(received(&mut stream), [&created[..], &["0@6: put a=4 put a=5 put a=6"]].concat());
    catch_up(&hub);
    assert_eq!(received(&mut stream), ["1@6: put a=5 put a=6"]);
    stream.request_progress();
    assert_eq!(received(&mut stream), ["-1@6:"]);
    assert_eq!(hub.stats().slow_watcher_count, 3, "only the watchers of idle streams are slow");
    drop(idle);
}

#[test]
fn clients_that_keep_reading_receive_live_events_at_the_memory_limit() {
    let (keyspace, hub, idle) = full_hub();
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"a", b"", 0));
    assert_eq!(received(&mut stream), ["0@3: created"]);
    for round in 0..20 {
        // The second and third events are published before the stream's task has run.
        for value in [b"1", b"2", b"3"] {
            keyspace.put(&hub, b"a", value);
        }
        let first = 4 + 3 * round;
        assert_eq!(received(&mut stream), [format!("0@{first}: put a=1")]);
        assert!(hub.poll_behind(&Context::from_waker(Waker::noop())).is_ready());
        catch_up(&hub);
        assert_eq!(received(&mut stream), [format!("0@{}: put a=2 put a=3", first + 2)]);
    }
    stream.request_progress();
    assert_eq!(received(&mut stream), ["-1@63:"]);
    drop(idle);
}

#[test]
fn at_the_memory_limit_only_empty_queues_receive_events() {
    let (keyspace, hub, idle) = full_hub();
    let mut streams = idle_streams(&hub, 100, 3);
    catch_up(&hub);
    let held = hub.stats().held_bytes;
    for _ in 0..10 {
        keyspace.put(&hub, b"k", &[b'y'; 100]);
        catch_up(&hub);
        assert!(hub.poll_behind(&Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(hub.stats().held_bytes, held, "no events are held for streams that do not read");
    let received = drain(&mut streams[0]);
    assert_eq!(received.iter().map(|response| response.events.len()).sum::<usize>(), 1);
    catch_up(&hub);
    let received = drain(&mut streams[0]);
    assert_eq!(received.iter().map(|response| response.events.len()).sum::<usize>(), 10);
    drop(idle);
}

#[test]
fn at_the_memory_limit_history_is_sent_in_small_responses() {
    let (keyspace, hub) = setup_with(WatchLimits { held_bytes_max: 1, ..WatchLimits::default() });
    for _ in 0..1000 {
        keyspace.put(&hub, b"k", &[b'x'; 1000]);
    }
    let held = hub.hold(1);
    let mut streams = idle_streams(&hub, 20, 2);
    catch_up(&hub);
    assert!(hub.stats().held_bytes < 20 * (20 << 10), "{:?}", hub.stats());
    let mut revisions = Vec::new();
    for _ in 0..1000 {
        let events = drain(&mut streams[0]).into_iter().flat_map(|response| response.events);
        revisions.extend(events.map(|event| event.kv.unwrap().fields().mod_revision));
        catch_up(&hub);
    }
    assert!(revisions.into_iter().eq(2..1002));
    drop(held);
}

#[test]
fn a_watch_stream_does_not_accept_requests_while_too_many_replies_are_queued() {
    let (_, hub) = setup(QueueLimits::default());
    let mut stream = hub.open_stream(1 << 20);
    for _ in 0..CONTROL_BACKLOG_MAX {
        assert!(stream.accepts_requests());
        watch(&mut stream, create(b"k", b"", 0));
    }
    assert!(!stream.accepts_requests());
    assert_eq!(received(&mut stream).len(), CONTROL_BACKLOG_MAX);
    assert!(stream.accepts_requests());
}
