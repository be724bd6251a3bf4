//! What all watchers and streams together may hold.

use super::*;

#[test]
fn watchers_are_refused_once_their_memory_is_used_up() {
    let (_, hub) = setup_with(WatchLimits { watcher_bytes_max: 2000, ..WatchLimits::default() });
    let mut first = hub.open_stream(1 << 20);
    let mut second = hub.open_stream(1 << 20);
    watch(&mut first, create(&[b'k'; 400], b"", 0));
    watch(&mut second, create(b"a", &[b'b'; 400], 0));
    let full = hub.stats().watcher_bytes;
    watch(&mut second, create(&[b'k'; 400], b"", 0));
    watch(&mut second, create(b"a", b"", 0));
    let refused = "-1@1: created canceled 0 etcdserver: too many requests";
    assert_eq!(shown(&mut first), ["0@1: created"]);
    assert_eq!(shown(&mut second), ["0@1: created", refused, refused]);
    assert_eq!((hub.stats().watcher_bytes, hub.stats().refused_watcher_count), (full, 2));
    second.cancel(0);
    watch(&mut second, create(b"a", b"", 0));
    assert_eq!(shown(&mut second), ["0@1: canceled 0 ", "1@1: created"]);
    drop((first, second));
    assert_eq!(hub.stats().watcher_bytes, 0);
}

/// Streams that never take what they are told.
fn idle_streams(hub: &Hub, count: usize, start_revision: i64) -> Vec<WatchStream> {
    let mut streams: Vec<_> = (0..count).map(|_| hub.open_stream(1 << 20)).collect();
    for stream in &mut streams {
        watch(stream, create(b"k", b"", start_revision));
    }
    streams
}

#[test]
fn events_for_many_streams_are_held_once() {
    let (keyspace, hub) = setup(QueueLimits::default());
    let streams = idle_streams(&hub, 100, 0);
    keyspace.put(&hub, b"k", &[b'x'; 1000]);
    assert!((1000..1100).contains(&hub.stats().held_bytes), "{:?}", hub.stats());
    drop(streams);
    assert_eq!(hub.stats().held_bytes, 0);
}

#[test]
fn at_the_bound_a_stream_holds_one_response_and_misses_nothing() {
    let (keyspace, hub) =
        setup_with(WatchLimits { held_bytes_max: 3000, ..WatchLimits::default() });
    let mut streams = idle_streams(&hub, 2, 0);
    for number in 0..20 {
        keyspace.put(&hub, b"k", &[b'a' + number; 1000]);
    }
    assert!(hub.stats().held_bytes < 4100, "{:?}", hub.stats());
    assert_eq!(hub.stats().slow_watcher_count, 2);
    for stream in &mut streams {
        let mut told = Vec::new();
        loop {
            let more = drain(stream);
            if more.is_empty() {
                break;
            }
            told.extend(more.into_iter().flat_map(|response| response.events));
            catch_up(&hub);
        }
        let revisions = told.into_iter().map(|event| event.kv.unwrap().fields().mod_revision);
        assert!(revisions.eq(2..22));
    }
}

#[test]
fn those_behind_wait_for_room_and_are_woken() {
    let (keyspace, hub) =
        setup_with(WatchLimits { held_bytes_max: 1000, ..WatchLimits::default() });
    keyspace.put(&hub, b"k", b"old");
    let held = hub.hold(1000);
    let mut streams = idle_streams(&hub, 1, 2);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(hub.poll_behind(&Context::from_waker(&waker)).is_pending());
    assert!(!hub.catch_up().unwrap(), "nothing can be served");
    assert_eq!(shown(&mut streams[0]), ["0@2: created"]);
    drop(held);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(hub.poll_behind(&Context::from_waker(&waker)).is_ready());
    catch_up(&hub);
    assert_eq!(shown(&mut streams[0]), ["0@2: put k=old"]);
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
