//! Tests of watchers whose missed events do not fit in one response or in one read under the lock.

use super::*;

/// A keyspace that records how much of it is read while the hub is locked.
struct Observed {
    keyspace: Keyspace,
    hub: Arc<Mutex<Option<Hub>>>,
    /// The bytes of the largest read under the lock.
    locked_bytes: Arc<AtomicUsize>,
    /// The first revision that can be read without waiting for another machine.
    local_from: i64,
}

struct ObservedFacts {
    facts: Facts,
    hub: Hub,
    locked_bytes: Arc<AtomicUsize>,
    local_from: i64,
}

impl Source for Observed {
    fn latest(&self) -> Box<dyn History> {
        Box::new(ObservedFacts {
            facts: self.keyspace.0.lock().clone(),
            hub: self.hub.lock().clone().unwrap(),
            locked_bytes: Arc::clone(&self.locked_bytes),
            local_from: self.local_from,
        })
    }
}

impl History for ObservedFacts {
    fn current_revision(&self) -> i64 {
        self.facts.current
    }

    fn compacted_revision(&self) -> i64 {
        self.facts.compacted
    }

    fn is_local(&self, first: i64) -> bool {
        first >= self.local_from
    }

    fn visit_changes(
        &self,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> Result<Option<i64>, HistoryFault> {
        assert!(self.is_local(first) || !self.hub.is_locked(), "{first} is read under the lock");
        let mut bytes = 0;
        self.facts.visit_changes(first, &mut |revision, event| {
            bytes += event.record.len();
            if self.hub.is_locked() {
                self.locked_bytes.fetch_max(bytes, Ordering::Relaxed);
            }
            visit(revision, event)
        })
    }

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, HistoryFault> {
        self.facts.record_at(key, revision)
    }
}

/// Runs catch-up passes for a client that reads everything immediately. Returns the revisions in
/// each response.
fn read_all(hub: &Hub, stream: &mut WatchStream) -> Vec<Vec<i64>> {
    let mut received = Vec::new();
    loop {
        let more = hub.catch_up().unwrap();
        received.extend(revisions_of(stream));
        if !more {
            return received;
        }
    }
}

/// Returns the revisions in each response that the stream holds.
fn revisions_of(stream: &mut WatchStream) -> Vec<Vec<i64>> {
    let revision =
        |event: &quorate_api::mvccpb::Event| event.kv.as_ref().unwrap().fields().mod_revision;
    drain(stream)
        .iter()
        .filter(|response| !response.events.is_empty())
        .map(|response| response.events.iter().map(revision).collect())
        .collect()
}

#[test]
fn a_large_history_is_sent_exactly_once_in_order() {
    for (count, size) in [(3, 600_000), (5, 600_000), (40, 300_000), (4, 1_500_000), (200, 20_000)]
    {
        for slow in [false, true] {
            let (keyspace, hub) = setup(QueueLimits::default());
            for _ in 0..count {
                keyspace.put(&hub, b"k", &vec![b'x'; size]);
            }
            let mut stream = hub.open_stream(2 << 20);
            watch(&mut stream, create(b"k", b"", 2));
            if slow {
                catch_up(&hub);
            }
            let mut revisions = read_all(&hub, &mut stream);
            while hub.stats().slow_watcher_count > 0 {
                revisions.extend(read_all(&hub, &mut stream));
            }
            let expected: Vec<i64> = (2..count + 2).collect();
            assert_eq!(revisions.concat(), expected, "{count} revisions of {size} bytes");
            keyspace.put(&hub, b"k", b"live");
            assert_eq!(received(&mut stream), [format!("0@{}: put k=live", count + 2)]);
        }
    }
}

#[test]
fn watchers_stay_behind_while_history_cannot_be_read() {
    // The revisions have two changes each, so a read also fails in the middle of a revision. With few revisions, the
    // read under the lock fails; with many, the read without the lock.
    for (count, readable_count) in [(4, 0), (4, 3), (4, 4), (2000, 0), (2000, 2001)] {
        let (keyspace, hub) = setup(QueueLimits::default());
        for _ in 0..count {
            keyspace.write(&hub, &[(b"a", Some(b"1")), (b"b", Some(b"2"))]);
        }
        let mut stream = hub.open_stream(2 << 20);
        watch(&mut stream, create(b"a", b"c", 2));
        let mut revisions = Vec::new();
        for readable_count in [readable_count, 0, 0] {
            keyspace.0.lock().readable_count = readable_count;
            hub.catch_up().unwrap_err();
            revisions.extend(revisions_of(&mut stream));
            assert_eq!(hub.stats().slow_watcher_count, 1);
        }
        keyspace.0.lock().readable_count = usize::MAX;
        revisions.extend(read_all(&hub, &mut stream));
        let expected: Vec<i64> = (2..count + 2).flat_map(|revision| [revision, revision]).collect();
        assert_eq!(revisions.concat(), expected, "after {readable_count} of {count} revisions");
        assert_eq!(hub.stats().slow_watcher_count, 0);
    }
}

#[test]
fn catch_up_reads_a_bounded_number_of_bytes_under_the_lock() {
    let limits = WatchLimits {
        catch_up: CatchUpLimits {
            response_bytes: 1,
            locked_bytes_max: 1000,
            ..CatchUpLimits::default()
        },
        ..WatchLimits::default()
    };
    let keyspace = Keyspace::default();
    let (own, locked_bytes) = (Arc::default(), Arc::default());
    let observed = Observed {
        keyspace: keyspace.clone(),
        hub: Arc::clone(&own),
        locked_bytes: Arc::clone(&locked_bytes),
        local_from: 12,
    };
    let hub = Hub::new(Arc::new(observed), 1, limits);
    *own.lock() = Some(hub.clone());
    for _ in 0..10 {
        let many: Vec<(&[u8], Option<&[u8]>)> = vec![(b"k", Some(&[b'x'; 200])); 50];
        keyspace.write(&hub, &many);
        keyspace.put(&hub, b"k", &[b'y'; 10]);
    }
    let mut stream = hub.open_stream(1 << 20);
    watch(&mut stream, create(b"k", b"", 2));
    let received = read_all(&hub, &mut stream);
    assert_eq!(hub.stats().slow_watcher_count, 0);
    let counts: Vec<usize> = received.iter().map(Vec::len).collect();
    assert_eq!(counts, [50, 1].repeat(10), "each whole revision arrives in a separate response");
    let most = locked_bytes.load(Ordering::Relaxed);
    assert!(most > 0, "small revisions are read under the lock");
    assert!(most < 1500, "{most} bytes were read under the lock");
    *own.lock() = None;
}

/// A pass reads a bounded number of changes, beginning at the lowest of the positions that it serves.
#[test]
fn new_watchers_at_old_revisions_do_not_delay_other_watchers_without_limit() {
    const REVISIONS: i64 = 1000;
    const PASS_CHANGES: usize = 50;
    for (start_revision, last_value_bytes) in [(900, 10), (REVISIONS - 2, 5000)] {
        let catch_up = CatchUpLimits {
            response_revisions_max: 20,
            pass_changes: PASS_CHANGES,
            locked_revisions_max: 10,
            locked_bytes_max: 1000,
            ..CatchUpLimits::default()
        };
        let (keyspace, hub) = setup_with(WatchLimits { catch_up, ..WatchLimits::default() });
        for revision in 2..=REVISIONS {
            let bytes = if revision < REVISIONS - 1 { 10 } else { last_value_bytes };
            keyspace.put(&hub, b"k", &vec![b'x'; bytes]);
        }
        let mut stream = hub.open_stream(1 << 20);
        watch(&mut stream, create(b"k", b"", start_revision));
        drain(&mut stream);
        let (mut others, mut revisions, mut passes) = (Vec::new(), Vec::new(), 0);
        // In a round, the watcher is served once, and the other watchers need one pass for every 50 changes.
        let passes_max = REVISIONS as usize / PASS_CHANGES + 1;
        while revisions.last() != Some(&REVISIONS) {
            let mut other = hub.open_stream(1 << 20);
            watch(&mut other, create(b"other", b"", 1));
            others.push(other);
            hub.catch_up().unwrap();
            passes += 1;
            let responses = drain(&mut stream);
            if !responses.is_empty() {
                passes = 0;
            }
            assert!(passes <= passes_max, "no response in {passes} passes after {revisions:?}");
            let events = responses.iter().flat_map(|response| &response.events);
            revisions.extend(events.map(|e| e.kv.as_ref().unwrap().fields().mod_revision));
        }
        assert!(revisions.into_iter().eq(start_revision..=REVISIONS));
    }
}

#[test]
fn previous_values_count_towards_the_size_of_a_response() {
    let catch_up = CatchUpLimits { response_bytes: 1000, ..CatchUpLimits::default() };
    let (keyspace, hub) = setup_with(WatchLimits { catch_up, ..WatchLimits::default() });
    for _ in 0..10 {
        keyspace.put(&hub, b"k", &[b'x'; 900]);
        keyspace.write(&hub, &[(b"k", None), (b"other", Some(b""))]);
    }
    let mut stream = hub.open_stream(1 << 20);
    let request = |filters| WatchCreateRequest { prev_kv: true, filters, ..create(b"", b"\0", 2) };
    // The deletions themselves are small. Both watchers of the group receive the same parts.
    watch(&mut stream, request(vec![0]));
    watch(&mut stream, request(vec![0]));
    super::catch_up(&hub);
    let mut received = [Vec::new(), Vec::new()];
    for response in drain(&mut stream).iter().filter(|response| !response.created) {
        assert!(response.events.len() <= 2, "{}", show(response));
        for event in &response.events {
            assert_eq!(event.prev_kv.as_ref().unwrap().value().len(), 900);
            let revision = event.kv.as_ref().unwrap().fields().mod_revision;
            received[usize::try_from(response.watch_id).unwrap()].push(revision);
        }
    }
    let expected: Vec<i64> = (1..=10).map(|number| 2 * number + 1).collect();
    assert_eq!(received, [expected.clone(), expected]);
}
